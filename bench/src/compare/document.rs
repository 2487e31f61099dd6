//! A report as read from a file. Only the compared parts are read, so that reports may get new
//! keys.

use crate::latency::median;
use crate::report::Report;
use crate::report::json::SCHEMA;
use serde::Deserialize;
use serde_json::{Map, Value};
use spinrpc_tuning::text::printable;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// One side of a comparison.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Document {
    pub(crate) environment: Map<String, Value>,
    /// A signal ended the run early.
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) rows: Vec<Row>,
}

/// All repeats of a workload.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) workload: Value,
    pub(crate) repeats: Vec<Repeat>,
}

/// One measurement.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Repeat {
    /// Absent without calls, like all figures below.
    pub(crate) calls_per_second: Option<f64>,
    pub(crate) bytes_per_second: Option<f64>,
    /// Calls without a reply.
    #[serde(default)]
    pub(crate) lost: u64,
    /// Absent in older reports.
    pub(crate) elapsed_s: Option<f64>,
    pub(crate) latency: Latency,
    #[serde(default)]
    pub(crate) client: Cores,
    pub(crate) server: Option<Cores>,
    pub(crate) ratios: Vec<Ratio>,
}

/// Percentiles in nanoseconds; absent where a load fell behind schedule and they would mislead.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p90_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) p99_9_ns: Option<f64>,
    pub(crate) p99_99_ns: Option<f64>,
    pub(crate) p99_999_ns: Option<f64>,
    pub(crate) max_ns: Option<f64>,
    pub(crate) mean_ns: Option<f64>,
}

/// Activity of the cores of one side.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Cores {
    pub(crate) busy_ticks_per_call: Option<f64>,
}

/// A result as a multiple of a limit measured in the same minute.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) to: String,
    pub(crate) ratio: Option<f64>,
    pub(crate) lower_is_better: bool,
}

impl Document {
    /// Reads a file; the error is one line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let value = read_report(path)?;
        Self::of_stranger(value).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn of_stranger(value: Value) -> Result<Self, String> {
        let document = Self::from_value(value)?;
        let mut repeats = document.rows.iter().flat_map(|row| &row.repeats);
        match repeats.all(Repeat::is_credible) {
            true => Ok(document),
            false => Err("it has a figure below 0 or above 1e18".to_owned()),
        }
    }

    /// Converts a report that was just made.
    pub(crate) fn of(report: &Report) -> Result<Self, String> {
        serde_json::to_value(report).map_err(|error| error.to_string()).and_then(Self::from_value)
    }

    fn from_value(value: Value) -> Result<Self, String> {
        serde_json::from_value(checked(value)?).map_err(|error| error.to_string())
    }

    /// Largest number of repeats of any row.
    pub(crate) fn repeats(&self) -> usize {
        self.rows.iter().map(|row| row.repeats.len()).max().unwrap_or(0)
    }
}

/// Reads a report from an untrusted file, with all its texts made printable.
pub(crate) fn read_report(path: &Path) -> Result<Value, String> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| format!("reading {shown}: {error}"))?;
    parse(file, FILE_BYTES_MAX).map_err(|error| format!("{shown}: {error}"))
}

fn parse(input: impl Read, bytes_max: u64) -> Result<Value, String> {
    let mut text = String::new();
    let read = input.take(bytes_max + 1).read_to_string(&mut text);
    if read.map_err(|error| error.to_string())? as u64 > bytes_max {
        return Err(format!("larger than {} MiB", bytes_max >> 20));
    }
    let mut value = serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))?;
    make_printable(&mut value);
    Ok(value)
}

/// Rejects documents that are not reports.
pub(crate) fn checked(value: Value) -> Result<Value, String> {
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => Ok(value),
        Some(other) => Err(format!("its schema is {other:?}; this program reads {SCHEMA}")),
        None => Err(format!("not a report of spinperf, whose schema is {SCHEMA}")),
    }
}

impl Row {
    /// Calls without a reply, over all repeats.
    pub(crate) fn lost(&self) -> u64 {
        self.repeats.iter().fold(0, |sum, repeat| sum.saturating_add(repeat.lost))
    }

    /// Median of the measured times, where they are known.
    pub(crate) fn elapsed_s(&self) -> f64 {
        median(self.repeats.iter().filter_map(|repeat| repeat.elapsed_s))
    }
}

impl Repeat {
    fn is_credible(&self) -> bool {
        let Latency { p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, .. } = self.latency;
        let Latency { max_ns, mean_ns, .. } = self.latency;
        let percentiles = [p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns];
        let sides = self.server.iter().chain([&self.client]);
        let ticks = sides.map(|cores| cores.busy_ticks_per_call);
        let percentiles = percentiles.into_iter().chain([max_ns, mean_ns]).chain(ticks).flatten();
        let ratios = self.ratios.iter().filter_map(|ratio| ratio.ratio);
        let rates = [self.calls_per_second, self.bytes_per_second, self.elapsed_s];
        let rates = rates.into_iter().flatten().chain([self.lost as f64]);
        let mut figures = rates.chain(percentiles).chain(ratios);
        figures.all(|figure| (0.0..=FIGURE_MAX).contains(&figure))
    }
}

/// Escapes all texts, because a terminal must not obey those of a report.
fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(map) => map.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Longest accepted report: a sweep of thousands of rows.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Thirty years in nanoseconds; no rate comes near it.
pub(crate) const FIGURE_MAX: f64 = 1e18;

#[cfg(test)]
mod tests {
    use super::parse as parse_report;
    use super::*;
    use serde_json::json;

    fn parse(name: &str, calls_per_second: f64) -> Result<Document, String> {
        let report = json!({
            "schema": SCHEMA,
            "environment": {"kernel": "6.1\u{1b}[2J"},
            "rows": [{"name": name, "workload": {"op": "echo"}, "repeats": [{
                "calls_per_second": calls_per_second, "bytes_per_second": 0.0,
                "latency": {"samples": 5}, "ratios": [],
            }]}],
        });
        parse_report(report.to_string().as_bytes(), 1 << 20).and_then(Document::of_stranger)
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_shown() {
        let document = parse("echo\u{1b}]0;owned\u{7}\n64 B", 1.0).unwrap();
        assert_eq!(document.rows[0].name, "echo\\u{1b}]0;owned\\u{7}\\n64 B");
        assert_eq!(document.environment["kernel"], "6.1\\u{1b}[2J");
    }

    #[test]
    fn figures_that_nothing_can_have_are_refused() {
        assert!(parse("echo", 1e18).is_ok());
        for figure in [-1.0, 1e19, 1e300] {
            assert!(parse("echo", figure).unwrap_err().contains("1e18"), "{figure}");
        }
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = parse_report(std::io::repeat(b' '), 1 << 20).unwrap_err();
        assert!(error.contains("larger than 1 MiB"), "{error}");
    }
}
