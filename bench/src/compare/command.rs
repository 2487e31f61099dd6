//! `spinperf compare`: reports from files, and the exit code.

use super::{Comparison, Condition, Document, table};
use crate::console::{Sink, is_standard_output, say_to_people};
use crate::failure::Failure;
use clap::Args;
use serde_json::Value;
use spinrpc_tuning::printable;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/compare.txt").trim_ascii_end())]
pub(crate) struct CompareArgs {
    /// The report to compare with, as written by `--json`
    pub(crate) before: PathBuf,
    /// The reports to judge, each compared with the first
    #[arg(required = true)]
    pub(crate) after: Vec<PathBuf>,
    /// End with exit code 1 if this change exceeds noise: METRIC, < or >, a signed percentage and,
    /// to select rows, `in` with a part of their names. METRIC is rate, bytes, p50, p90, p99,
    /// p99.9, p99.99, p99.999, max, mean, client-ticks or server-ticks (per call), or ratio (to a
    /// limit of the machine: ratio:memcpy). May be repeated
    #[arg(long, value_name = "CONDITION")]
    pub(crate) fail_if: Vec<Condition>,
    /// Also write a document for programs, schema spinperf-compare/1; of several reports, schema
    /// spinperf-compare-set/1. Without a file or with -, to standard output: the table then goes to
    /// standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let json = Sink::open(args.json.as_deref());
    let json = json.map_err(|failure| Failure::Usage(failure.to_string()))?;
    let before = Document::read(&args.before).map_err(Failure::Usage)?;
    let compare = |path: &PathBuf| {
        let names = [&args.before, path].map(|path| path.display().to_string());
        let after = Document::read(path).map_err(Failure::Usage)?;
        Comparison::new(names, [&before, &after], &args.fail_if)
    };
    let comparisons = args.after.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
    let document = || match comparisons.as_slice() {
        [one] => Ok(serde_json::to_value(one)?),
        all => set_to_json(all),
    };
    json.write(|| document().map(|document| printable::json(&format!("{document:#}\n"))))?;
    let is_output_taken = args.json.as_deref().is_some_and(is_standard_output);
    say_to_people(is_output_taken, &table::render_all(&comparisons))?;
    verdict_of_all(&comparisons)
}

pub(super) fn set_to_json(comparisons: &[Comparison]) -> Result<Value, Failure> {
    let all = serde_json::to_value(comparisons)?;
    Ok(serde_json::json!({ "schema": SET_SCHEMA, "comparisons": all }))
}

pub(super) fn verdict_of_all(comparisons: &[Comparison]) -> Result<(), Failure> {
    if let [one] = comparisons {
        return one.verdict();
    }
    let (mut met, mut unjudged) = (Vec::new(), Vec::new());
    for one in comparisons {
        let told = |text: String| format!("{}: {text}", one.after.source);
        match one.verdict() {
            Ok(()) => {}
            Err(Failure::NoVerdict(text)) => unjudged.push(told(text)),
            Err(failure) => met.push(told(failure.to_string())),
        }
    }
    match (met.is_empty(), unjudged.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::NoVerdict(unjudged.join("; "))),
        (false, _) => Err(Failure::Regression(met.join("; "))),
    }
}

const SET_SCHEMA: &str = "spinperf-compare-set/1";
