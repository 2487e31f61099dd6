//! The figures of a repeat: names, places in the JSON document, units; `compare` and `--fail-if` take those with a key. And
//! the report as comma-separated values (RFC 4180): a line for each repeat of each row, with a header. Columns are named as
//! in the JSON document, units last; missing values are empty.

use super::Report;
use crate::failure::Failure;
use crate::units::{joined, show_count, show_us};
use serde_json::Value;
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

    pub(crate) fn is_ratio(&self) -> bool {
        matches!(self.unit, Unit::Ratio { .. })
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

    /// Returns whether a table has it: the others are for conditions and programs.
    pub(crate) fn is_for_people(&self) -> bool {
        self.unit != Unit::Ticks && self.key != "mean"
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

/// All repeats; lines end as RFC 4180 section 2 requires.
pub(crate) fn render(report: &Report) -> Result<String, Failure> {
    let [of_row, of_repeat] = [OF_ROW, COLUMNS].map(|list| places(list).collect::<Vec<_>>());
    let names = of_row.iter().chain(&of_repeat).map(|place| name_of(place));
    let mut text = joined(INDICES.map(str::to_owned).into_iter().chain(names), ",") + LINE_END;
    for (number, row) in report.rows.iter().enumerate() {
        let row = serde_json::to_value(row)?;
        let repeats = row["repeats"].as_array().map_or(&[][..], Vec::as_slice);
        for (repeat_number, repeat) in repeats.iter().enumerate() {
            let indices = [number, repeat_number].map(|index| (index + 1).to_string());
            let of_row = of_row.iter().map(|place| cell(&row, place));
            let of_repeat = of_repeat.iter().map(|place| cell(repeat, place));
            let cells = indices.into_iter().chain(of_row).chain(of_repeat);
            text += &(joined(cells, ",") + LINE_END);
        }
    }
    Ok(text)
}

/// Places in a row or a repeat of the JSON document (RFC 6901), each a column of a CSV file.
fn places(list: &str) -> impl Iterator<Item = String> {
    list.split_whitespace().map(|place| format!("/{place}"))
}

/// Name of the column, unit last: that of the place, without the part of the document that most of them are in.
fn name_of(place: &str) -> String {
    let parts = ["/workload/", "/latency/", "/open/", "/"];
    let plain = parts.iter().find_map(|part| place.strip_prefix(part)).unwrap_or(place);
    plain.replace('/', "_").replace("rate_arrivals", "arrivals").replace("_busy_ticks", "_ticks")
}

fn cell(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => quoted(text),
        Some(other) => quoted(&other.to_string()),
    }
}

/// Quotes a field if necessary (RFC 4180 section 2).
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

const LINE_END: &str = "\r\n";
/// Both counted from 1.
const INDICES: [&str; 2] = ["row", "repeat"];
const OF_ROW: &str = "
    name workload/mode workload/op workload/rate/per_second workload/rate/arrivals workload/cores
    workload/call_bytes workload/reply_bytes workload/depth workload/connections
    workload/idle_connections workload/verify workload/reverse workload/both workload/threads
    workload/slabs workload/ends";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::Placed;
    use crate::load::{Arrivals, Operation, Rate, Workload};
    use crate::report::Row;
    use crate::report::tests::{empty, open_loop, repeat};

    #[test]
    fn every_repeat_is_a_line_with_every_column() {
        let mut report = empty();
        let repeats = vec![repeat(1000, 300.0, &[]), repeat(2000, 200.0, &[])];
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64).at_depth(2), repeats));
        let text = render(&report).unwrap();
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("row,repeat,name,mode,op,"), "{}", lines[0]);
        assert!(
            lines[1].starts_with("1,1,\"echo 64 B, depth 2\",closed,echo,,,1,64,64,2,1,0,"),
            "{}",
            lines[1]
        );
        assert!(lines[2].starts_with("1,2,") && lines[2].contains(",2000,"), "{}", lines[2]);
    }

    #[test]
    fn every_column_has_a_value_in_a_whole_repeat() {
        let rate = Rate { per_second: 1000, arrivals: Arrivals::Poisson, burst: None };
        let echo = Workload::ping_pong(Operation::Echo, 64).at_rate(rate);
        let mut one = repeat(10, 3.0, &[]);
        one.measurement.service = Some(one.measurement.latency);
        one.measurement.open = Some(open_loop(1000));
        let placed = Placed::between(110.0, 110.0);
        let row = Row::new(echo, vec![one.at(Some(placed))]);
        let row = serde_json::to_value(&row).unwrap();
        let found = |at: &str, value: &Value| assert!(value.pointer(at).is_some(), "no {at}");
        places(OF_ROW).for_each(|at| found(&at, &row));
        places(COLUMNS).for_each(|at| found(&at, &row["repeats"][0]));
        FIGURES.iter().for_each(|figure| assert!(places(COLUMNS).any(|at| at == figure.at)));
    }

    #[test]
    fn quotes_and_commas_are_quoted() {
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\""), "\"say \"\"no\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
