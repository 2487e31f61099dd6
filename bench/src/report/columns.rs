//! The figures of a repeat: names, places in the JSON document, units. A CSV file has a column for each; `compare` and
//! `--fail-if` take those with a key.

use crate::units::{show_count, show_us};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// Name in conditions and documents of comparisons.
    pub(crate) key: &'static str,
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
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "1/s",
            Self::BytesPerSecond => "B/s",
            Self::Ns => "ns",
            Self::Ticks => "1",
        }
    }

    pub(crate) fn is_cost(self) -> bool {
        matches!(self, Self::Ns | Self::Ticks)
    }

    /// Formats a value for a column with the label of [`Figure::label`].
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => show_count(value),
            Self::BytesPerSecond => format!("{:.0}", value / 1e6),
            Self::Ns => show_us(value),
            Self::Ticks => format!("{value:.0}"),
        }
    }
}

impl Figure {
    pub(crate) fn label(&self) -> String {
        match self.unit {
            Unit::PerSecond => "calls/s".to_owned(),
            Unit::BytesPerSecond => "MB/s".to_owned(),
            Unit::Ns => format!("{} µs", self.key),
            Unit::Ticks => self.key.to_owned(),
        }
    }

    /// Returns whether a table has it: the others are for conditions and programs.
    pub(crate) fn is_for_people(&self) -> bool {
        self.unit != Unit::Ticks && self.key != "mean"
    }
}

/// Places in a repeat of the JSON document (RFC 6901), each a column of a CSV file.
pub(crate) fn places() -> impl Iterator<Item = String> {
    COLUMNS.split_whitespace().map(|place| format!("/{place}"))
}

/// Name of the column, unit last: that of the place, without the part of the document that most of them are in.
pub(crate) fn name_of(place: &str) -> String {
    let plain = ["/latency/", "/open/", "/"].iter().find_map(|part| place.strip_prefix(part));
    plain.unwrap_or(place).replace('/', "_").replace("_busy_ticks", "_ticks")
}

const fn figure(key: &'static str, at: &'static str, unit: Unit, percent: Option<f64>) -> Figure {
    Figure { key, at, unit, percent }
}

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

const COLUMNS: &str = "
    calls lost elapsed_s calls_per_second bytes_per_second
    latency/samples latency/p50_ns latency/p90_ns latency/p99_ns latency/p99_9_ns
    latency/p99_99_ns latency/p99_999_ns latency/max_ns latency/mean_ns
    service/p50_ns service/p99_ns service/p99_9_ns service/max_ns
    open/achieved_per_second open/adherence_percent open/late open/never_sent open/overran
    client/busy_ticks_per_call client/busy_percent client/polls client/empty_polls
    client/credit_stalls client/queue_full client/steal_ms
    server/busy_ticks_per_call server/busy_percent server/polls server/empty_polls
    server/queue_full server/steal_ms
    client/cpu_percent client/system_percent client/switches
    server/cpu_percent server/system_percent server/switches
    client/waited_percent server/waited_percent placement";
