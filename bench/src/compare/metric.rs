//! Metrics that are compared.

use super::document::{Repeat, Row};
use crate::units::{show_count, show_us};

/// One figure of a repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Rate,
    Bytes,
    P50,
    P90,
    P99,
    P99_9,
    P99_99,
    P99_999,
    Max,
    Mean,
    /// Clock ticks of turns that found work, per call, of the client's cores.
    ClientTicks,
    /// The same of the server's cores.
    ServerTicks,
    /// A result as a multiple of a limit measured in the same second. An empty name stands for
    /// every limit.
    Ratio(String),
}

impl Metric {
    /// Metrics of every row.
    pub(crate) const FIXED: [Self; 12] = [
        Self::Rate,
        Self::Bytes,
        Self::P50,
        Self::P90,
        Self::P99,
        Self::P99_9,
        Self::P99_99,
        Self::P99_999,
        Self::Max,
        Self::Mean,
        Self::ClientTicks,
        Self::ServerTicks,
    ];

    /// Name in conditions and documents.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Rate => "rate".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::P50 => "p50".to_owned(),
            Self::P90 => "p90".to_owned(),
            Self::P99 => "p99".to_owned(),
            Self::P99_9 => "p99.9".to_owned(),
            Self::P99_99 => "p99.99".to_owned(),
            Self::P99_999 => "p99.999".to_owned(),
            Self::Max => "max".to_owned(),
            Self::Mean => "mean".to_owned(),
            Self::ClientTicks => "client-ticks".to_owned(),
            Self::ServerTicks => "server-ticks".to_owned(),
            Self::Ratio(to) if to.is_empty() => "ratio".to_owned(),
            Self::Ratio(to) => format!("ratio:{to}"),
        }
    }

    /// The metric with this name.
    pub(crate) fn from_key(key: &str) -> Option<Self> {
        match key.strip_prefix("ratio:") {
            Some(to) if !to.trim().is_empty() => Some(Self::Ratio(to.trim().to_owned())),
            Some(_) => None,
            None if key == "ratio" => Some(Self::Ratio(String::new())),
            None => Self::FIXED.into_iter().find(|metric| metric.key() == key),
        }
    }

    /// Returns whether a condition about this metric applies to `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let every_ratio = *self == Self::Ratio(String::new());
        self == other || (every_ratio && matches!(other, Self::Ratio(_)))
    }

    /// Name with unit, for a table.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Rate => "calls/s".to_owned(),
            Self::Bytes => "MB/s".to_owned(),
            Self::Ratio(to) => format!("x {to}"),
            Self::ClientTicks | Self::ServerTicks => self.key(),
            percentile => format!("{} µs", percentile.key()),
        }
    }

    /// Unit of its values in documents.
    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Self::Rate => "1/s",
            Self::Bytes => "B/s",
            Self::Ratio(_) | Self::ClientTicks | Self::ServerTicks => "1",
            _ => "ns",
        }
    }

    /// Formats a value for a table with this label.
    pub(crate) fn show(&self, value: f64) -> String {
        match self {
            Self::Rate => show_count(value),
            Self::Bytes => format!("{:.0}", value / 1e6),
            Self::Ratio(_) => format!("{value:.2}"),
            Self::ClientTicks | Self::ServerTicks => format!("{value:.0}"),
            _ => show_us(value),
        }
    }

    /// Value of the metric in a repeat.
    pub(crate) fn of(&self, repeat: &Repeat) -> Option<f64> {
        let latency = &repeat.latency;
        match self {
            Self::Rate => repeat.calls_per_second,
            Self::Bytes => repeat.bytes_per_second,
            Self::P50 => latency.p50_ns,
            Self::P90 => latency.p90_ns,
            Self::P99 => latency.p99_ns,
            Self::P99_9 => latency.p99_9_ns,
            Self::P99_99 => latency.p99_99_ns,
            Self::P99_999 => latency.p99_999_ns,
            Self::Max => latency.max_ns,
            Self::Mean => latency.mean_ns,
            Self::ClientTicks => repeat.client.busy_ticks_per_call,
            Self::ServerTicks => repeat.server.as_ref()?.busy_ticks_per_call,
            Self::Ratio(to) => repeat.ratios.iter().find(|ratio| ratio.to == *to)?.ratio,
        }
    }

    /// Values of the repeats that have the metric.
    pub(crate) fn values(&self, row: &Row) -> Vec<f64> {
        row.repeats.iter().filter_map(|repeat| self.of(repeat)).collect()
    }

    /// For a percentile, the share of samples below it, in percent.
    pub(crate) fn percent(&self) -> Option<f64> {
        match self {
            Self::P50 => Some(50.0),
            Self::P90 => Some(90.0),
            Self::P99 => Some(99.0),
            Self::P99_9 => Some(99.9),
            Self::P99_99 => Some(99.99),
            Self::P99_999 => Some(99.999),
            _ => None,
        }
    }

    /// True for times and other costs; a ratio may be either.
    pub(crate) fn is_cost(&self) -> bool {
        !matches!(self, Self::Rate | Self::Bytes | Self::Ratio(_))
    }

    /// Returns whether a table has it: the others are for conditions and programs.
    pub(crate) fn is_for_people(&self) -> bool {
        !matches!(self, Self::Mean | Self::ClientTicks | Self::ServerTicks)
    }

    /// Returns whether it is unreliable in most runs, because it takes more calls than they have.
    pub(crate) fn is_far_out(&self) -> bool {
        matches!(self, Self::P99_99 | Self::P99_999)
    }
}
