//! A report as read from a file. Only the compared parts are read, so that reports may get new
//! keys.

use crate::floor::Placement;
use crate::latency::median;
use crate::report::figures::{FIGURES, Figure};
use crate::report::{Report, SCHEMA};
use serde::Deserialize;
use serde::de::Error;
use serde_json::{Map, Value};
use spinrpc_tuning::printable::{printable, read_bounded};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Document {
    pub(crate) environment: Map<String, Value>,
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) workload: Value,
    pub(crate) repeats: Vec<Repeat>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct Repeat {
    /// Those that it has, ratios included, by their keys.
    pub(crate) figures: BTreeMap<Cow<'static, str>, f64>,
    pub(crate) samples: u64,
    pub(crate) lost: u64,
    /// Other calls were in flight at the end, and were never answered.
    pub(crate) stuck: bool,
    pub(crate) elapsed_s: Option<f64>,
    pub(crate) waited_percent: [Option<f64>; 2],
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) placement: Option<Placement>,
    pub(crate) cache_line_ns: Option<[f64; 2]>,
}

/// A result as a multiple of a limit measured in the same minute.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Ratio {
    to: String,
    ratio: Option<f64>,
    lower_is_better: bool,
}

impl Ratio {
    pub(super) fn figure(&self) -> Figure {
        Figure::ratio(&self.to, self.lower_is_better)
    }
}

impl Document {
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

    pub(crate) fn of(report: &Report) -> Result<Self, String> {
        serde_json::to_value(report).map_err(|error| error.to_string()).and_then(Self::from_value)
    }

    fn from_value(value: Value) -> Result<Self, String> {
        serde_json::from_value(checked(value)?).map_err(|error| error.to_string())
    }

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

/// Reads JSON of up to this length, with all its texts made printable.
fn parse(input: impl Read, bytes_max: u64) -> Result<Value, String> {
    let text = read_bounded(input, bytes_max).map_err(|error| error.to_string())?;
    let mut value = serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))?;
    make_printable(&mut value);
    Ok(value)
}

pub(crate) fn checked(value: Value) -> Result<Value, String> {
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => Ok(value),
        Some(other) => Err(format!("its schema is {other:?}; this program reads {SCHEMA}")),
        None => Err(format!("not a report of spinperf, whose schema is {SCHEMA}")),
    }
}

impl Row {
    /// Calls without a reply, over all repeats; at least one of a server that stopped answering.
    pub(crate) fn lost(&self) -> u64 {
        let lost = |one: &Repeat| one.lost.max(u64::from(one.stuck));
        self.repeats.iter().fold(0, |sum, repeat| sum.saturating_add(lost(repeat)))
    }

    pub(crate) fn elapsed_s(&self) -> f64 {
        median(self.repeats.iter().filter_map(|repeat| repeat.elapsed_s))
    }
}

impl TryFrom<Value> for Repeat {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let figure = |one: &'static Figure| {
            known(&value, one.at).map(|number| Some((one.key.clone(), number?))).transpose()
        };
        let ratios: Vec<Ratio> = required(&value, "/ratios")?;
        let of_ratios =
            ratios.iter().filter_map(|one| Some((one.figure().key, one.ratio?))).map(Ok);
        let figures = FIGURES.iter().filter_map(figure).chain(of_ratios);
        Ok(Self {
            figures: figures.collect::<Result<_, _>>()?,
            samples: required(&value, "/latency/samples")?,
            lost: known(&value, "/lost")?.unwrap_or_default(),
            stuck: known(&value, "/stuck")?.unwrap_or_default(),
            elapsed_s: known(&value, "/elapsed_s")?,
            waited_percent: [
                known(&value, "/client/waited_percent")?,
                known(&value, "/server/waited_percent")?,
            ],
            ratios,
            placement: known(&value, "/placement")?,
            cache_line_ns: known(&value, "/cache_line_ns")?,
        })
    }
}

fn required<'a, T: Deserialize<'a>>(value: &'a Value, at: &str) -> Result<T, serde_json::Error> {
    known(value, at)?.ok_or_else(|| Error::custom(format!("{at} is missing")))
}

/// The value at a place of a document (RFC 6901); `None` if it is absent or null.
fn known<'a, T: Deserialize<'a>>(
    mut value: &'a Value,
    at: &str,
) -> Result<Option<T>, serde_json::Error> {
    for key in at.split('/').skip(1) {
        if !(value.is_object() || value.is_null()) {
            return Err(Error::custom(format!("{at} is not in an object")));
        }
        value = &value[key];
    }
    Option::deserialize(value).map_err(|error| Error::custom(format!("{at}: {error}")))
}

impl Repeat {
    pub(crate) fn figure(&self, key: &str) -> Option<f64> {
        self.figures.get(key).copied()
    }

    pub(crate) fn is_at(&self, placement: Placement) -> bool {
        // The placement is that of the round trip before.
        let may_be = |own: Placement| {
            self.cache_line_ns.is_some_and(|[before, _]| own.may_be(placement, before))
        };
        self.placement.is_some_and(|own| own == placement || may_be(own))
    }

    fn is_credible(&self) -> bool {
        let others = self.elapsed_s.into_iter().chain([self.lost as f64]);
        let mut figures = self.figures.values().copied().chain(others);
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

    /// Read as 0, a wrong type would be a good result.
    #[test]
    fn values_of_a_wrong_type_are_refused() {
        let sound = json!({"latency": {"samples": 5, "p50_ns": null}, "ratios": []});
        assert!(Repeat::try_from(sound.clone()).is_ok());
        for (key, wrong) in [
            ("lost", json!("3")),
            ("lost", json!(-1)),
            ("stuck", json!("true")),
            ("calls_per_second", json!("1e6")),
            ("server", json!({"waited_percent": true})),
            ("server", json!(5)),
            ("placement", json!("next door")),
            ("latency", json!({"p50_ns": 1})),
            ("latency", json!({"samples": 5.5})),
            ("ratios", json!(null)),
        ] {
            let mut repeat = sound.clone();
            repeat[key] = wrong;
            let error = Repeat::try_from(repeat.clone()).unwrap_err().to_string();
            assert!(error.contains(&format!("/{key}")), "{repeat}: {error}");
        }
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = parse_report(std::io::repeat(b' '), 1 << 20).unwrap_err();
        assert!(error.contains("longer than 1048576 bytes"), "{error}");
    }
}
