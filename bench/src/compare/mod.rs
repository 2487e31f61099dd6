//! Compares reports, and judges which differences exceed noise and which exceed a limit.
//!
//! `spinperf compare` reads both; `--baseline` reads one and takes the other from the run. Rows are
//! matched by their workload. A difference counts if the spread of the repeats does not explain it.
//! Other differences between the runs (another hour, another kernel) are listed, because no
//! arithmetic can separate them from a change of the program.

mod condition;
mod document;
mod metric;
mod statistics;
mod table;

pub(crate) use condition::Condition;
pub(crate) use document::{Document, FIGURE_MAX, checked, read_report};

use crate::console::say;
use crate::failure::Failure;
use crate::latency::{has_calls_beyond, is_supported, median, worse_median};
use clap::Args;
use document::Row;
use metric::Metric;
use serde::Serialize;
use serde_json::Value;
use spinrpc_tuning::text;
use statistics::{REPEATS_MIN, change_percent};
use std::path::PathBuf;

/// Options of `spinperf compare`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
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
    /// Print a document for programs instead, schema spinperf-compare/1; of several reports, schema
    /// spinperf-compare-set/1
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compares files with the first, and prints the result.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let read = |path: &PathBuf| {
        let document = Document::read(path).map_err(Failure::Usage)?;
        Ok::<_, Failure>((path.display().to_string(), document))
    };
    let (name, before) = read(&args.before)?;
    let compare = |path: &PathBuf| {
        let (other, after) = read(path)?;
        Comparison::new([name.clone(), other], [&before, &after], &args.fail_if)
    };
    let comparisons = args.after.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
    match (args.json, comparisons.as_slice()) {
        (true, [one]) => say(&text::json(&format!("{:#}\n", one.to_json()?)))?,
        (true, all) => say(&text::json(&format!("{:#}\n", set_to_json(all)?)))?,
        (false, all) => say(&table::render_all(all))?,
    }
    verdict_of_all(&comparisons)
}

fn set_to_json(comparisons: &[Comparison]) -> Result<Value, Failure> {
    let all = comparisons.iter().map(Comparison::to_json).collect::<Result<Vec<_>, _>>()?;
    Ok(serde_json::json!({ "schema": SET_SCHEMA, "comparisons": all }))
}

/// An error of one line if a condition is met by any of the reports.
fn verdict_of_all(comparisons: &[Comparison]) -> Result<(), Failure> {
    if let [one] = comparisons {
        return one.verdict();
    }
    let met = comparisons.iter().filter_map(|one| {
        one.verdict().err().map(|failure| format!("{}: {failure}", one.after.source))
    });
    let met: Vec<String> = met.collect();
    if met.is_empty() { Ok(()) } else { Err(Failure::Regression(met.join("; "))) }
}

/// Two reports, row by row.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: &'static str,
    before: Side,
    after: Side,
    /// Differences of the environment that affect speed.
    environment: Vec<Difference>,
    rows: Vec<RowChange>,
    /// Rows that exist on one side only.
    only_before: Vec<String>,
    only_after: Vec<String>,
    lost: Vec<Lost>,
    /// Rows of either side with calls that were never answered.
    unanswered: Vec<Unanswered>,
    conditions: Vec<Judged>,
}

/// Calls of a row that were never answered, on each side.
#[derive(Debug, Serialize)]
struct Unanswered {
    row: String,
    before: u64,
    after: u64,
}

/// Origin of one report.
#[derive(Debug, Serialize)]
struct Side {
    source: String,
    revision: Value,
    started_unix_s: Value,
    repeats: usize,
    /// A signal ended the run early.
    interrupted: bool,
}

/// A fact of the environment that differs between the sides.
#[derive(Debug, PartialEq, Serialize)]
struct Difference {
    key: &'static str,
    before: Value,
    after: Value,
}

/// A workload that both reports have.
#[derive(Debug, Serialize)]
struct RowChange {
    name: String,
    workload: Value,
    /// Median of the measured times of each side, in seconds; absent if a report does not have it.
    elapsed_s: [Option<f64>; 2],
    metrics: Vec<Change>,
}

/// One metric of a row: medians over the repeats, and the verdict on their difference.
#[derive(Debug, Serialize)]
struct Change {
    #[serde(serialize_with = "as_key")]
    metric: Metric,
    unit: &'static str,
    before: f64,
    after: f64,
    /// Change of the medians.
    change_percent: f64,
    /// Confidence interval of the change; absent with fewer than five repeats on a side.
    interval_percent: Option<[f64; 2]>,
    verdict: Verdict,
    /// True if at least ten samples lie beyond the percentile in every repeat.
    supported: bool,
}

/// A figure that the second report lacks, or has in a smaller part of its repeats than the first.
#[derive(Debug, Serialize)]
struct Lost {
    row: String,
    #[serde(serialize_with = "as_key")]
    metric: Metric,
    /// There are too few calls for the percentile now, which is not a change worth reporting.
    #[serde(skip)]
    is_short: bool,
}

/// Meaning of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Better,
    Worse,
    /// The repeats differ as much among themselves.
    Noise,
    /// Too few repeats to decide.
    Unknown,
}

/// A condition, and the rows that meet it.
#[derive(Debug, Serialize)]
struct Judged {
    condition: String,
    met_by: Vec<Met>,
}

/// A change that meets a condition.
#[derive(Debug, Serialize)]
struct Met {
    row: String,
    metric: String,
    /// Absent if the figure is lost.
    change_percent: Option<f64>,
}

impl Comparison {
    /// Compares the second report with the first.
    ///
    /// # Errors
    /// `Usage` if a condition applies to nothing in the first report: it could never be met.
    pub(crate) fn new(
        names: [String; 2],
        [before, after]: [&Document; 2],
        conditions: &[Condition],
    ) -> Result<Self, Failure> {
        let [before_name, after_name] = names;
        let matched = Matched::of(&before.rows, &after.rows);
        let judged = conditions.iter().map(|condition| Judged::new(condition, &matched));
        let conditions = judged.collect::<Result<_, _>>()?;
        let Matched { rows, lost, unanswered, only_before, only_after } = matched;
        Ok(Self {
            schema: SCHEMA,
            before: Side::new(before_name, before),
            after: Side::new(after_name, after),
            environment: differences(before, after),
            rows,
            only_before,
            only_after,
            lost,
            unanswered,
            conditions,
        })
    }

    /// The comparison as text.
    pub(crate) fn render(&self) -> String {
        table::render(self)
    }

    fn to_json(&self) -> Result<Value, Failure> {
        serde_json::to_value(self)
            .map_err(|error| Failure::Measurement(format!("not JSON: {error}")))
    }

    /// Returns an error of one line if a condition is met.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let met = |judged: &Judged| {
            let first = judged.met_by.first()?.describe();
            let others = match judged.met_by.len() - 1 {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            Some(format!("{}: {first}{others}", judged.condition))
        };
        let met: Vec<String> = self.conditions.iter().filter_map(met).collect();
        if met.is_empty() { Ok(()) } else { Err(Failure::Regression(met.join("; "))) }
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.rows.iter().flat_map(|row| &row.metrics)
    }
}

impl Side {
    fn new(source: String, document: &Document) -> Self {
        let fact = |key: &str| document.environment.get(key).cloned().unwrap_or_default();
        Self {
            source,
            revision: fact("revision"),
            started_unix_s: fact("started_unix_s"),
            repeats: document.repeats(),
            interrupted: document.interrupted,
        }
    }
}

/// The rows of two reports, matched.
#[derive(Default)]
struct Matched {
    rows: Vec<RowChange>,
    lost: Vec<Lost>,
    unanswered: Vec<Unanswered>,
    only_before: Vec<String>,
    only_after: Vec<String>,
}

impl Matched {
    /// Pairs rows of the same workload in order of appearance.
    fn of(before: &[Row], after: &[Row]) -> Self {
        let mut left: Vec<&Row> = after.iter().collect();
        let mut matched = Self::default();
        for row in before {
            let workload = without_nulls(&row.workload);
            let at = left.iter().position(|other| without_nulls(&other.workload) == workload);
            let partner = at.map(|at| left.remove(at));
            match partner {
                Some(partner) => matched.rows.push(RowChange::new(row, partner)),
                None => matched.only_before.push(row.name.clone()),
            }
            matched.lost.extend(lost(row, partner));
            let counts = [row.lost(), partner.map_or(0, Row::lost)];
            matched.unanswered.extend(Unanswered::of(partner.unwrap_or(row), counts));
        }
        let alone = left.iter().filter_map(|row| Unanswered::of(row, [0, row.lost()]));
        matched.unanswered.extend(alone);
        matched.only_after = left.iter().map(|row| row.name.clone()).collect();
        matched
    }
}

/// Figures that a row has, and its partner, if there is one, lacks.
fn lost<'a>(before: &'a Row, after: Option<&'a Row>) -> impl Iterator<Item = Lost> {
    let name = &after.unwrap_or(before).name;
    let metrics = metrics_of(before).filter(move |metric| is_lost(metric, before, after));
    let samples = after.map(|row| row.repeats.iter().map(|repeat| repeat.latency.samples).min());
    let samples = samples.flatten().unwrap_or(0);
    metrics.map(move |metric| {
        let is_short = metric.percent().is_some_and(|at| !has_calls_beyond(at, samples));
        Lost { row: name.clone(), is_short: is_short && metric.is_far_out(), metric }
    })
}

fn is_lost(metric: &Metric, before: &Row, after: Option<&Row>) -> bool {
    let old = metric.values(before);
    if !is_figure(median(old.iter().copied())) {
        return false;
    }
    let Some(after) = after else { return true };
    let new = metric.values(after);
    let fewer = new.len() * before.repeats.len() < old.len() * after.repeats.len();
    fewer || !is_figure(median(new))
}

/// Returns whether the value was measured and is positive.
fn is_figure(value: f64) -> bool {
    value > 0.0
}

fn metrics_of(row: &Row) -> impl Iterator<Item = Metric> {
    let ratios = row.repeats.first().into_iter().flat_map(|repeat| &repeat.ratios);
    Metric::FIXED.into_iter().chain(ratios.map(|ratio| Metric::Ratio(ratio.to.clone())))
}

/// Removes nulls: absent and null mean the same.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, inner)| !inner.is_null());
            kept.map(|(key, inner)| (key.clone(), without_nulls(inner))).collect()
        }
        other => other.clone(),
    }
}

impl RowChange {
    fn new(before: &Row, after: &Row) -> Self {
        let changes = metrics_of(before).filter_map(|metric| Change::new(metric, before, after));
        Self {
            name: after.name.clone(),
            workload: after.workload.clone(),
            elapsed_s: [before, after].map(|row| Some(row.elapsed_s()).filter(|s| is_figure(*s))),
            metrics: changes.collect(),
        }
    }
}

impl Change {
    /// `None` if a side lacks the figure, or has a zero.
    fn new(metric: Metric, before: &Row, after: &Row) -> Option<Self> {
        let [old, new] = [before, after].map(|row| metric.values(row));
        let lower_is_better = is_lower_better(&metric, before);
        let [old_median, new_median] =
            [&old, &new].map(|side| worse_median(side.iter().copied(), lower_is_better));
        if !(is_figure(old_median) && is_figure(new_median)) {
            return None;
        }
        let interval_percent = change_percent(&old, &new);
        Some(Self {
            unit: metric.unit(),
            before: old_median,
            after: new_median,
            change_percent: (new_median / old_median - 1.0) * 100.0,
            interval_percent,
            verdict: Verdict::of(interval_percent, lower_is_better),
            supported: [before, after].iter().all(|row| supports(row, &metric)),
            metric,
        })
    }
}

impl Verdict {
    fn of(interval_percent: Option<[f64; 2]>, lower_is_better: bool) -> Self {
        let Some([low, high]) = interval_percent else { return Self::Unknown };
        match (low > 0.0, high < 0.0) {
            (false, false) => Self::Noise,
            (grown, _) if grown == lower_is_better => Self::Worse,
            _ => Self::Better,
        }
    }
}

fn is_lower_better(metric: &Metric, row: &Row) -> bool {
    let Metric::Ratio(to) = metric else { return metric.is_cost() };
    let mut ratios = row.repeats.iter().flat_map(|repeat| &repeat.ratios);
    ratios.find(|ratio| ratio.to == *to).is_some_and(|ratio| ratio.lower_is_better)
}

fn supports(row: &Row, metric: &Metric) -> bool {
    let Some(percent) = metric.percent() else { return true };
    let samples = row.repeats.iter().map(|repeat| repeat.latency.samples);
    samples.min().is_some_and(|least| is_supported(percent, least))
}

impl Judged {
    /// A lost figure meets every condition about it, because it cannot be shown to be as good as
    /// before. So do rows with lost calls in the second report only.
    fn new(condition: &Condition, matched: &Matched) -> Result<Self, Failure> {
        let Matched { rows, lost, unanswered, .. } = matched;
        let about = rows.iter().filter(|row| condition.is_about(&row.name)).flat_map(|row| {
            let covered = row.metrics.iter().filter(|one| condition.metric.covers(&one.metric));
            covered.map(|change| (&row.name, change))
        });
        let changes: Vec<_> = about.collect();
        let mut met_by: Vec<Met> =
            lost.iter().filter(|lost| lost.is_covered_by(condition)).map(Met::by_loss).collect();
        if changes.is_empty() && met_by.is_empty() {
            return Err(Failure::Usage(format!(
                "--fail-if \"{condition}\" applies to nothing in the earlier report"
            )));
        }
        let is_met = |change: &Change| {
            change.verdict != Verdict::Noise && condition.is_met(change.change_percent)
        };
        let met = changes.into_iter().filter(|(_, change)| is_met(change));
        let unanswered = unanswered.iter().filter(|one| one.after > 0);
        let unanswered = unanswered.filter(|one| condition.is_about(&one.row));
        met_by.extend(unanswered.map(|one| Met {
            row: one.row.clone(),
            metric: UNANSWERED.to_owned(),
            change_percent: None,
        }));
        met_by.extend(met.map(|(row, change)| Met {
            row: row.clone(),
            metric: change.metric.key(),
            change_percent: Some(change.change_percent),
        }));
        Ok(Self { condition: condition.to_string(), met_by })
    }
}

impl Unanswered {
    fn of(row: &Row, [before, after]: [u64; 2]) -> Option<Self> {
        (before + after > 0).then(|| Self { row: row.name.clone(), before, after })
    }
}

impl Lost {
    fn is_covered_by(&self, condition: &Condition) -> bool {
        condition.is_about(&self.row) && condition.metric.covers(&self.metric)
    }
}

impl Met {
    fn by_loss(lost: &Lost) -> Self {
        Self { row: lost.row.clone(), metric: lost.metric.key(), change_percent: None }
    }

    fn describe(&self) -> String {
        let Self { row, metric, change_percent } = self;
        match change_percent {
            None if metric == UNANSWERED => format!("{row} has calls that were never answered"),
            Some(change) => format!("{row} {metric} {change:+.1} %"),
            None => format!("{row} {metric} no longer available"),
        }
    }
}

fn differences(before: &Document, after: &Document) -> Vec<Difference> {
    let differs = |key: &&'static str| {
        let [old, new] = [before, after].map(|side| side.environment.get(*key).cloned());
        let (before, after) = (old.unwrap_or_default(), new.unwrap_or_default());
        (before != after).then_some(Difference { key, before, after })
    };
    FACTS_THAT_MATTER.iter().filter_map(differs).collect()
}

fn as_key<S: serde::Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&metric.key())
}

/// Metric of a condition that is met by calls without a reply.
const UNANSWERED: &str = "calls never answered";
/// Name and version of the document.
const SCHEMA: &str = "spinperf-compare/1";
const SET_SCHEMA: &str = "spinperf-compare-set/1";
/// Facts of an environment that affect speed. Revisions are expected to differ.
const FACTS_THAT_MATTER: &[&str] = &[
    "build",
    "features",
    "profile",
    "profile_hash",
    "fabric",
    "rpc_version",
    "cores",
    "cpu",
    "microcode",
    "cpus_online",
    "kernel",
    "kernel_parameters",
    "governor",
    "idle_driver",
    "smt",
    "clock_source",
    "thp",
    "huge_pages",
    "device_firmware",
];
const EXAMPLES: &str = "\
Examples:
  spinperf compare monday.json tuesday.json
  spinperf compare a.json b.json --fail-if \"p99>+10%\" --fail-if \"rate<-5%\"
  spinperf compare monday.json tuesday.json wednesday.json    # each with monday
  spinperf compare a.json b.json --fail-if \"p99.99>+20%\" --fail-if \"max>+50%\"
  spinperf compare a.json b.json --fail-if \"p50>+3% in echo\" --fail-if \"ratio:memcpy<-5%\" --json

At least five repeats on each side tell noise from a difference: spinperf run --repeats 10 --json a.json

Exit codes: 0 no condition is met, 1 a condition is met, 2 usage error or invalid file";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A report with one row of these median latencies in nanoseconds, one per repeat.
    fn document(kernel: &str, p99_ns: &[f64]) -> Document {
        let repeat = |ns: &f64| {
            json!({
                "calls_per_second": 1e9 / ns, "bytes_per_second": 0.0,
                "latency": {"samples": 5000, "p50_ns": ns, "p90_ns": ns, "p99_ns": ns, "p99_9_ns": ns},
                "ratios": [{"to": "cache-line RTT", "ratio": ns / 100.0, "lower_is_better": true}],
            })
        };
        let repeats: Vec<Value> = p99_ns.iter().map(repeat).collect();
        serde_json::from_value(json!({
            "environment": {"kernel": kernel},
            "rows": [{"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": repeats}],
        }))
        .unwrap()
    }

    fn compare(before: &Document, after: &Document, conditions: &[&str]) -> Comparison {
        let conditions: Vec<Condition> = conditions.iter().map(|c| c.parse().unwrap()).collect();
        let names = ["a".to_owned(), "b".to_owned()];
        Comparison::new(names, [before, after], &conditions).unwrap()
    }

    fn change<'a>(comparison: &'a Comparison, key: &str) -> &'a Change {
        comparison.changes().find(|change| change.metric.key() == key).unwrap()
    }

    const STEADY: [f64; 5] = [300.0, 301.0, 302.0, 303.0, 304.0];

    #[test]
    fn slower_is_worse_for_latencies_rates_and_ratios_to_round_trips() {
        let slower = document("6.1", &STEADY.map(|ns| ns * 1.2));
        let comparison = compare(&document("6.1", &STEADY), &slower, &[]);
        for key in ["rate", "p50", "p99", "ratio:cache-line RTT"] {
            assert_eq!(change(&comparison, key).verdict, Verdict::Worse, "{key}");
        }
        assert!((change(&comparison, "p99").change_percent - 20.0).abs() < 1e-9);
        let back = compare(&slower, &document("6.1", &STEADY), &[]);
        assert_eq!(change(&back, "rate").verdict, Verdict::Better);
        assert_eq!(change(&back, "p50").verdict, Verdict::Better);
    }

    #[test]
    fn a_difference_that_the_repeats_explain_meets_no_condition() {
        let noisy = [250.0, 290.0, 340.0, 420.0, 500.0];
        let comparison = compare(&document("6.1", &STEADY), &document("6.1", &noisy), &["p99>+5%"]);
        assert!(change(&comparison, "p99").change_percent > 5.0);
        assert_eq!(change(&comparison, "p99").verdict, Verdict::Noise);
        assert!(comparison.verdict().is_ok());
    }

    #[test]
    fn with_four_repeats_it_cannot_tell_and_the_bare_difference_decides() {
        let [before, after] = [300.0, 360.0].map(|ns| document("6.1", &[ns; 4]));
        let comparison = compare(&before, &after, &["p99>+10%"]);
        assert_eq!(change(&comparison, "p99").verdict, Verdict::Unknown);
        let Err(Failure::Regression(told)) = comparison.verdict() else { panic!("not met") };
        assert_eq!(told, "p99>+10%: echo 64 B p99 +20.0 %");
    }

    #[test]
    fn a_condition_about_nothing_is_refused() {
        let one = document("6.1", &STEADY);
        for condition in ["bytes<-1%", "p99>+1% in read", "ratio:memcpy<-1%"] {
            let conditions = [condition.parse().unwrap()];
            let names = ["a".to_owned(), "b".to_owned()];
            let error = Comparison::new(names, [&one, &one], &conditions).unwrap_err();
            assert!(matches!(&error, Failure::Usage(text) if text.contains(condition)), "{error}");
        }
    }

    fn verdict_of(after: &Document, condition: &str) -> String {
        let comparison = compare(&document("6.1", &STEADY), after, &[condition]);
        let Err(Failure::Regression(told)) = comparison.verdict() else { panic!("not met") };
        assert!(comparison.render().contains("no longer available"));
        told
    }

    #[test]
    fn far_percentiles_and_the_maximum_can_be_conditions() {
        let with = |factor: f64| {
            let mut one = document("6.1", &STEADY);
            for repeat in &mut one.rows[0].repeats {
                let far = repeat.latency.p99_ns.map(|ns| ns * factor);
                (repeat.latency.p99_99_ns, repeat.latency.max_ns) = (far, far);
                repeat.client.busy_ticks_per_call = Some(100.0 * factor);
            }
            one
        };
        let (before, after) = (with(1.0), with(2.0));
        for condition in ["max>+50%", "p99.99>+50%", "client-ticks>+50%"] {
            assert!(compare(&before, &after, &[condition]).verdict().is_err(), "{condition}");
            assert!(compare(&after, &before, &[condition]).verdict().is_ok(), "{condition}");
        }
        // With as few calls, nothing can be said of it.
        let lost = compare(&before, &document("6.1", &STEADY), &["p99.99>+50%"]);
        assert!(lost.verdict().is_err());
        assert!(!lost.render().contains("no longer available: echo 64 B p99.99"));
    }

    #[test]
    fn several_reports_are_each_compared_with_the_first() {
        let names = ["a", "b", "c"];
        let all = [1.0, 1.2, 1.0].map(|factor| document("6.1", &STEADY.map(|ns| ns * factor)));
        let conditions = ["p99>+10%".parse().unwrap()];
        let with_first = |at: usize| {
            let names = [names[0], names[at]].map(str::to_owned);
            Comparison::new(names, [&all[0], &all[at]], &conditions).unwrap()
        };
        let set = [with_first(1), with_first(2)];
        let told = verdict_of_all(&set).unwrap_err().to_string();
        assert_eq!(told, "b: p99>+10%: echo 64 B p99 +20.0 %");
        assert!(verdict_of_all(&set[1..]).is_ok());
        let text = table::render_all(&set);
        assert!(text.starts_with("1  a ") && text.contains("3  c "), "{text}");
        assert!(text.contains("+20.0% (+18.4..+21.6%) WORSE"), "{text}");
        assert_eq!(set_to_json(&set).unwrap()["comparisons"][1]["after"]["source"], "c");
    }

    #[test]
    fn percentiles_that_are_refused_now_meet_every_condition_about_them() {
        for refused in [0..5, 1..2] {
            let mut after = document("6.1", &STEADY);
            after.rows[0].repeats[refused].iter_mut().for_each(|r| r.latency.p99_ns = None);
            let told = verdict_of(&after, "p99>+10%");
            assert_eq!(told, "p99>+10%: echo 64 B p99 no longer available");
            let others = compare(&document("6.1", &STEADY), &after, &["p50>+10%", "rate<-5%"]);
            assert!(others.verdict().is_ok());
        }
    }

    #[test]
    fn rows_and_rates_that_are_gone_meet_every_condition_about_them() {
        let mut gone = document("6.1", &STEADY);
        gone.rows.clear();
        assert_eq!(verdict_of(&gone, "rate<-5%"), "rate<-5%: echo 64 B rate no longer available");
        let mut stopped = document("6.1", &STEADY);
        stopped.rows[0].repeats.iter_mut().for_each(|r| r.calls_per_second = Some(0.0));
        verdict_of(&stopped, "rate<-5% in echo");
    }

    #[test]
    fn what_the_baseline_lacks_as_often_is_not_lost() {
        let mut one = document("6.1", &STEADY);
        one.rows[0].repeats[0].latency.p99_ns = None;
        assert!(compare(&one, &one, &["p99>+10%"]).verdict().is_ok());
    }

    #[test]
    fn a_percentile_with_few_samples_beyond_is_marked() {
        let one = document("6.1", &STEADY);
        let comparison = compare(&one, &one, &[]);
        assert!(change(&comparison, "p99").supported);
        assert!(!change(&comparison, "p99.9").supported);
    }

    #[test]
    fn what_differs_around_the_program_and_rows_without_a_partner_are_listed() {
        let before = document("6.1", &STEADY);
        let mut after = document("6.18", &STEADY);
        after.rows[0].workload = json!({"op": "null"});
        let comparison = compare(&before, &after, &[]);
        assert_eq!(comparison.environment.len(), 1);
        assert_eq!(comparison.environment[0].key, "kernel");
        assert_eq!(comparison.only_before, ["echo 64 B"]);
        assert_eq!(comparison.only_after, ["echo 64 B"]);
    }

    #[test]
    fn an_absent_key_of_a_workload_is_the_same_as_null() {
        let before = document("6.1", &STEADY);
        let mut after = document("6.1", &STEADY);
        after.rows[0].workload = json!({"op": "echo", "rate": null});
        assert_eq!(compare(&before, &after, &[]).rows.len(), 1);
    }
}
