//! The figures of a repeat: names, places in the JSON document, units; `compare` and `--fail-if` take those with a key.

use crate::units::{show_count, show_us};
use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// Name in conditions and documents of comparisons.
    pub(crate) key: Cow<'static, str>,
    /// Place in a repeat of the JSON document (RFC 6901).
    pub(crate) at: &'static str,
    pub(crate) unit: Unit,
    /// For a percentile, the share of samples below it, in percent.
    pub(crate) percent: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    BytesPerSecond,
    Ns,
    /// Of the time-stamp counter, per call.
    Ticks,
    /// A result as a multiple of a limit measured in the same second.
    Ratio {
        lower_is_better: bool,
    },
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "1/s",
            Self::BytesPerSecond => "B/s",
            Self::Ns => "ns",
            Self::Ticks | Self::Ratio { .. } => "1",
        }
    }

    pub(crate) fn lower_is_better(self) -> bool {
        matches!(self, Self::Ns | Self::Ticks | Self::Ratio { lower_is_better: true })
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => show_count(value),
            Self::BytesPerSecond => format!("{:.0}", value / 1e6),
            Self::Ns => show_us(value),
            Self::Ticks => format!("{value:.0}"),
            Self::Ratio { .. } => format!("{value:.2}"),
        }
    }
}

impl Figure {
    pub(crate) fn ratio(to: &str, lower_is_better: bool) -> Self {
        let (key, unit) = (format!("{RATIO}{to}").into(), Unit::Ratio { lower_is_better });
        Self { key, at: "", unit, percent: None }
    }

    pub(crate) fn label(&self) -> String {
        match self.unit {
            Unit::PerSecond => "calls/s".to_owned(),
            Unit::BytesPerSecond => "MB/s".to_owned(),
            Unit::Ns => format!("{} µs", self.key),
            Unit::Ticks => self.key.to_string(),
            Unit::Ratio { .. } => self.key.replacen(RATIO, "x ", 1),
        }
    }
}

const fn figure(key: &'static str, at: &'static str, unit: Unit, percent: Option<f64>) -> Figure {
    Figure { key: Cow::Borrowed(key), at, unit, percent }
}

/// Keys of ratios begin with this, and end with the name of a limit.
pub(crate) const RATIO: &str = "ratio:";

pub(crate) static FIGURES: &[Figure] = &[
    figure("rate", "/calls_per_second", Unit::PerSecond, None),
    figure("bytes", "/bytes_per_second", Unit::BytesPerSecond, None),
    figure("p50", "/latency/p50_ns", Unit::Ns, Some(50.0)),
    figure("p90", "/latency/p90_ns", Unit::Ns, Some(90.0)),
    figure("p99", "/latency/p99_ns", Unit::Ns, Some(99.0)),
    figure("p99.9", "/latency/p99_9_ns", Unit::Ns, Some(99.9)),
    figure("p99.99", "/latency/p99_99_ns", Unit::Ns, Some(99.99)),
    figure("p99.999", "/latency/p99_999_ns", Unit::Ns, Some(99.999)),
    figure("max", "/latency/max_ns", Unit::Ns, None),
    figure("mean", "/latency/mean_ns", Unit::Ns, None),
    figure("client-ticks", "/client/busy_ticks_per_call", Unit::Ticks, None),
    figure("server-ticks", "/server/busy_ticks_per_call", Unit::Ticks, None),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::repeat;

    #[test]
    fn every_figure_has_its_place_in_a_repeat() {
        let one = serde_json::to_value(repeat(10, 3.0, &[])).unwrap();
        FIGURES.iter().for_each(|figure| assert!(one.pointer(figure.at).is_some(), "{figure:?}"));
    }
}
