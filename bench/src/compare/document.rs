//! A report as it is read from a file: what is compared of it, and nothing else, so that keys may be
//! added to reports.

use crate::report::Report;
use crate::report::json::SCHEMA;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// One side of a comparison.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Document {
    pub(crate) environment: Map<String, Value>,
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
    pub(crate) calls_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) latency: Latency,
    pub(crate) ratios: Vec<Ratio>,
}

/// Percentiles in nanoseconds; absent where a load was not kept up, so that they would mislead.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p90_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) p99_9_ns: Option<f64>,
}

/// A result as a multiple of something measured in the same minute.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) to: String,
    pub(crate) ratio: f64,
    pub(crate) lower_is_better: bool,
}

impl Document {
    /// Reads a file; the error is one line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = fs::read_to_string(path).map_err(|error| format!("reading {shown}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{shown} is not JSON: {error}"))?;
        Self::from_value(value).map_err(|error| format!("{shown}: {error}"))
    }

    /// The same of a report that was just made.
    pub(crate) fn of(report: &Report) -> Result<Self, String> {
        serde_json::to_value(report).map_err(|error| error.to_string()).and_then(Self::from_value)
    }

    fn from_value(value: Value) -> Result<Self, String> {
        match value.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => serde_json::from_value(value).map_err(|error| error.to_string()),
            Some(other) => Err(format!("its schema is {other:?}; this program compares {SCHEMA}")),
            None => Err(format!("not a report of spinperf, which names its schema {SCHEMA}")),
        }
    }

    /// The most repeats of a row.
    pub(crate) fn repeats(&self) -> usize {
        self.rows.iter().map(|row| row.repeats.len()).max().unwrap_or(0)
    }
}
