//! Compares reports, and judges which differences exceed noise and which exceed a limit.
//!
//! `spinperf compare` reads both; `--baseline` reads one and takes the other from the run. Rows are matched by their workload. Repeats that were disturbed, or measured on cores of another placement,
//! are left out (`validity`). A difference counts if the spread of the others does not explain it.
//! Other differences between the runs (another hour, another kernel) are listed, because no
//! arithmetic can separate them from a change of the program.

mod command;
mod document;
mod metric;
mod statistics;
mod table;
mod validity;

pub(crate) use command::{CompareArgs, run};
pub(crate) use document::{Document, FIGURE_MAX, checked, read_report};
pub(crate) use metric::Condition;

use crate::failure::Failure;
use crate::latency::{is_supported, worse_median};
use crate::report::figures::{FIGURES, Figure};
use document::{Ratio, Row};
use serde::Serialize;
use serde_json::Value;
use statistics::{REPEATS_MIN, change_percent};
use std::collections::BTreeSet;
use validity::{Validity, comparable};

#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    schema: &'static str,
    before: Side,
    after: Side,
    environment: Vec<Difference>,
    #[serde(flatten)]
    matched: Matched,
    conditions: Vec<Judged>,
}

#[derive(Debug, Serialize)]
struct Unanswered {
    row: String,
    before: u64,
    after: u64,
}

#[derive(Debug, Serialize)]
struct Side {
    source: String,
    revision: Value,
    started_unix_s: Value,
    repeats: usize,
    interrupted: bool,
}

#[derive(Debug, PartialEq, Serialize)]
struct Difference {
    key: &'static str,
    before: Value,
    after: Value,
}

#[derive(Debug, Serialize)]
struct RowChange {
    name: String,
    workload: Value,
    elapsed_s: [Option<f64>; 2],
    metrics: Vec<Change>,
    validity: Validity,
}

#[derive(Debug, Serialize)]
struct Change {
    #[serde(serialize_with = "as_key")]
    metric: Figure,
    unit: &'static str,
    before: f64,
    after: f64,
    change_percent: f64,
    interval_percent: Option<[f64; 2]>,
    verdict: Verdict,
    supported: bool,
}

/// A figure that the second report lacks, in its median repeat too.
#[derive(Debug, Serialize)]
struct Lost {
    row: String,
    #[serde(serialize_with = "as_key")]
    metric: Figure,
    /// Verdict on the repeats that lack it, which rank behind all others.
    verdict: Verdict,
    #[serde(skip)]
    is_judged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Better,
    Worse,
    /// The repeats differ as much among themselves.
    Noise,
    /// Too few repeats to decide, or those of the sides cannot be compared.
    Unknown,
}

#[derive(Debug, Serialize)]
struct Judged {
    condition: String,
    met_by: Vec<Met>,
    not_judged: BTreeSet<String>,
}

#[derive(Debug, Serialize)]
struct Met {
    row: String,
    metric: String,
    change_percent: Option<f64>,
}

impl Comparison {
    /// Fails if a condition applies to nothing in the first report: it could never be met.
    pub(crate) fn new(
        names: [String; 2],
        [before, after]: [&Document; 2],
        conditions: &[Condition],
    ) -> Result<Self, Failure> {
        let [before_name, after_name] = names;
        let matched = Matched::of(&before.rows, &after.rows);
        let judged = conditions.iter().map(|condition| Judged::new(condition, &matched));
        let conditions = judged.collect::<Result<_, _>>()?;
        Ok(Self {
            schema: SCHEMA,
            before: Side::new(before_name, before),
            after: Side::new(after_name, after),
            environment: differences(before, after),
            matched,
            conditions,
        })
    }

    pub(crate) fn render(&self) -> String {
        table::render(self)
    }

    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let told = |condition: &str, rows: &mut dyn Iterator<Item = String>| {
            let first = rows.next()?;
            let others = match rows.count() {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            Some(format!("{condition}: {first}{others}"))
        };
        let conditions = self.conditions.iter();
        let met = |one: &Judged| told(&one.condition, &mut one.met_by.iter().map(Met::describe));
        let met: Vec<String> = conditions.clone().filter_map(met).collect();
        let unjudged = |one: &Judged| told(&one.condition, &mut one.not_judged.iter().cloned());
        let unjudged: Vec<String> = conditions.filter_map(unjudged).collect();
        match (met.as_slice(), unjudged.as_slice()) {
            ([], []) => Ok(()),
            ([], unjudged) => Err(Failure::NoVerdict(format!(
                "not judged, as too few repeats of both sides are undisturbed and known to be of one placement: {}",
                unjudged.join("; ")
            ))),
            (met, _) => Err(Failure::Regression(met.join("; "))),
        }
    }

    fn changes(&self) -> impl Iterator<Item = &Change> {
        self.matched.rows.iter().flat_map(|row| &row.metrics)
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

#[derive(Debug, Default, Serialize)]
struct Matched {
    rows: Vec<RowChange>,
    lost: Vec<Lost>,
    unanswered: Vec<Unanswered>,
    only_before: Vec<String>,
    only_after: Vec<String>,
}

impl Matched {
    fn of(before: &[Row], after: &[Row]) -> Self {
        let mut left: Vec<&Row> = after.iter().collect();
        let mut matched = Self::default();
        for row in before {
            let workload = without_nulls(&row.workload);
            let at = left.iter().position(|other| without_nulls(&other.workload) == workload);
            let partner = at.map(|at| left.remove(at));
            match partner {
                Some(partner) => {
                    let (sides, validity) = comparable([row, partner]);
                    matched.lost.extend(lost(&sides[0], Some(&sides[1]), validity.is_judged));
                    matched.rows.push(RowChange::new(&sides, validity));
                }
                None => {
                    matched.lost.extend(lost(row, None, true));
                    matched.only_before.push(row.name.clone());
                }
            }
            let counts = [row.lost(), partner.map_or(0, Row::lost)];
            matched.unanswered.extend(Unanswered::of(partner.unwrap_or(row), counts));
        }
        let alone = left.iter().filter_map(|row| Unanswered::of(row, [0, row.lost()]));
        matched.unanswered.extend(alone);
        matched.only_after = left.iter().map(|row| row.name.clone()).collect();
        matched
    }
}

fn lost<'a>(
    before: &'a Row,
    after: Option<&'a Row>,
    is_judged: bool,
) -> impl Iterator<Item = Lost> {
    let name = &after.unwrap_or(before).name;
    metrics_of(before).filter_map(move |metric| {
        let old = metric.values(before);
        let new = after.map(|row| metric.values(row)).unwrap_or_default();
        let [is_old, is_new] = [&old, &new].map(|side| is_figure(typical(side, &metric)));
        let is_lost = metric.is_in(before) && is_old && !is_new;
        let verdict = Verdict::of(change_percent(&old, &new), &metric);
        is_lost.then(|| Lost { row: name.clone(), metric, verdict, is_judged })
    })
}

fn typical(values: &[f64], metric: &Figure) -> f64 {
    worse_median(values.iter().copied(), metric.unit.lower_is_better())
}

fn is_figure(value: f64) -> bool {
    value > 0.0 && value.is_finite()
}

fn metrics_of(row: &Row) -> impl Iterator<Item = Figure> {
    let ratios = row.repeats.first().into_iter().flat_map(|repeat| &repeat.ratios);
    FIGURES.iter().cloned().chain(ratios.map(Ratio::figure))
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
    fn new([before, after]: &[Row; 2], validity: Validity) -> Self {
        let change = |metric| Change::new(metric, before, after, validity.is_judged);
        let changes = metrics_of(before).filter_map(change);
        Self {
            name: after.name.clone(),
            workload: after.workload.clone(),
            elapsed_s: [before, after].map(|row| Some(row.elapsed_s()).filter(|s| is_figure(*s))),
            metrics: changes.collect(),
            validity,
        }
    }
}

impl Change {
    fn new(metric: Figure, before: &Row, after: &Row, is_judged: bool) -> Option<Self> {
        let [old, new] = [before, after].map(|row| metric.values(row));
        let [old_median, new_median] = [&old, &new].map(|side| typical(side, &metric));
        if !(metric.is_in(before) && is_figure(old_median) && is_figure(new_median)) {
            return None;
        }
        let interval_percent = change_percent(&old, &new).filter(|_| is_judged);
        Some(Self {
            unit: metric.unit.name(),
            before: old_median,
            after: new_median,
            change_percent: (new_median / old_median - 1.0) * 100.0,
            interval_percent,
            verdict: Verdict::of(interval_percent, &metric),
            supported: [before, after].iter().all(|row| supports(row, &metric)),
            metric,
        })
    }
}

impl Verdict {
    fn of(interval_percent: Option<[f64; 2]>, metric: &Figure) -> Self {
        let Some([low, high]) = interval_percent else { return Self::Unknown };
        match (low > 0.0, high < 0.0) {
            (false, false) => Self::Noise,
            (grown, _) if grown == metric.unit.lower_is_better() => Self::Worse,
            _ => Self::Better,
        }
    }
}

fn supports(row: &Row, metric: &Figure) -> bool {
    let Some(percent) = metric.percent else { return true };
    let samples = row.repeats.iter().map(|repeat| repeat.samples);
    samples.min().is_some_and(|least| is_supported(percent, least))
}

impl Judged {
    /// A lost figure meets every condition about it, because it cannot be shown to be as good as before, unless
    /// chance explains the repeats that lack it. So do rows with lost calls in the second report only.
    fn new(condition: &Condition, matched: &Matched) -> Result<Self, Failure> {
        let of_lost = matched.lost.iter().map(|one| {
            let Lost { row, metric, verdict, is_judged } = one;
            About { row, metric, change_percent: None, verdict: *verdict, is_judged: *is_judged }
        });
        let of_changes = matched.rows.iter().flat_map(|row| {
            row.metrics.iter().map(|one| About {
                row: &row.name,
                metric: &one.metric,
                change_percent: Some(one.change_percent),
                verdict: one.verdict,
                is_judged: row.validity.is_judged,
            })
        });
        let is_covered =
            |one: &About<'_>| condition.is_about(one.row) && condition.covers(one.metric);
        let about: Vec<_> = of_lost.chain(of_changes).filter(is_covered).collect();
        if about.is_empty() {
            return Err(Failure::Usage(format!(
                "--fail-if \"{condition}\" applies to nothing in the earlier report"
            )));
        }
        let not_judged = about.iter().filter(|one| !one.is_judged).map(|one| one.row.to_owned());
        let not_judged: BTreeSet<String> = not_judged.collect();
        let met = about.iter().filter(|one| {
            let is_met = one.change_percent.is_none_or(|change| condition.is_met(change));
            one.is_judged && one.verdict != Verdict::Noise && is_met
        });
        let met = met.map(|one| Met {
            row: one.row.to_owned(),
            metric: one.metric.key.to_string(),
            change_percent: one.change_percent,
        });
        let (mut met_by, changed): (Vec<_>, Vec<_>) =
            met.partition(|one| one.change_percent.is_none());
        let unanswered = matched.unanswered.iter().filter(|one| one.after > 0);
        let unanswered = unanswered.filter(|one| condition.is_about(&one.row));
        met_by.extend(unanswered.map(|one| Met {
            row: one.row.clone(),
            metric: UNANSWERED.to_owned(),
            change_percent: None,
        }));
        met_by.extend(changed);
        Ok(Self { condition: condition.to_string(), met_by, not_judged })
    }
}

struct About<'a> {
    row: &'a str,
    metric: &'a Figure,
    change_percent: Option<f64>,
    verdict: Verdict,
    is_judged: bool,
}

impl Unanswered {
    fn of(row: &Row, [before, after]: [u64; 2]) -> Option<Self> {
        (before + after > 0).then(|| Self { row: row.name.clone(), before, after })
    }
}

impl Met {
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
    let differs = |key: &'static str| {
        let [old, new] = [before, after].map(|side| side.environment.get(key).cloned());
        let (before, after) = (old.unwrap_or_default(), new.unwrap_or_default());
        (before != after).then_some(Difference { key, before, after })
    };
    FACTS_THAT_MATTER.split(' ').filter_map(differs).collect()
}

fn as_key<S: serde::Serializer>(metric: &Figure, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&metric.key)
}

const UNANSWERED: &str = "calls never answered";
const SCHEMA: &str = "spinperf-compare/1";
/// Facts of an environment that affect speed. Revisions are expected to differ.
const FACTS_THAT_MATTER: &str = "build features profile profile_hash fabric rpc_version cores cpu microcode cpus_online \
     kernel kernel_parameters governor idle_driver smt clock_source thp huge_pages device_firmware";

#[cfg(test)]
mod tests {
    use super::command::{set_to_json, verdict_of_all};
    use super::document::Repeat;
    use super::*;
    use serde_json::json;

    /// A report with one row of repeats of these latencies in nanoseconds, on cores of these placements, of which the
    /// server's waited for this part of the time, as recorded.
    pub(super) fn placed(repeats: &[(f64, &str, f64)]) -> Document {
        let repeat = |(ns, placement, waited): &(f64, &str, f64)| {
            json!({
                "calls_per_second": 1e9 / ns, "bytes_per_second": 0.0,
                "latency": {"samples": 5000, "p50_ns": ns, "p90_ns": ns, "p99_ns": ns, "p99_9_ns": ns},
                "client": {"waited_percent": 0.1}, "server": {"waited_percent": waited},
                "placement": Some(placement).filter(|one| !one.is_empty()),
                "ratios": [{"to": "cache-line RTT", "ratio": ns / 100.0, "lower_is_better": true}],
            })
        };
        let repeats: Vec<Value> = repeats.iter().map(repeat).collect();
        serde_json::from_value(json!({
            "environment": {"kernel": "6.1"},
            "rows": [{"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": repeats}],
        }))
        .unwrap()
    }

    fn document(p99_ns: &[f64]) -> Document {
        placed(&p99_ns.iter().map(|ns| (*ns, "near", 0.0)).collect::<Vec<_>>())
    }

    /// Five repeats that are nearly alike, each of which is changed.
    fn steady(mut change: impl FnMut(&mut Repeat)) -> Document {
        let mut one = document(&STEADY);
        one.rows[0].repeats.iter_mut().for_each(&mut change);
        one
    }

    fn same() -> Document {
        steady(|_| {})
    }

    fn lacks(repeat: &mut Repeat, keys: &[&str]) {
        repeat.figures.retain(|key, _| !keys.contains(&&**key));
    }

    pub(super) fn compared(
        [before, after]: [&Document; 2],
        conditions: &[&str],
    ) -> Result<Comparison, Failure> {
        let conditions: Vec<Condition> = conditions.iter().map(|c| c.parse().unwrap()).collect();
        Comparison::new(["a", "b"].map(str::to_owned), [before, after], &conditions)
    }

    fn compare(before: &Document, after: &Document, conditions: &[&str]) -> Comparison {
        compared([before, after], conditions).unwrap()
    }

    fn change<'a>(comparison: &'a Comparison, key: &str) -> &'a Change {
        comparison.changes().find(|change| change.metric.key == key).unwrap()
    }

    const STEADY: [f64; 5] = [300.0, 301.0, 302.0, 303.0, 304.0];

    #[test]
    fn slower_is_worse_for_latencies_rates_and_ratios_to_round_trips() {
        let slower = document(&STEADY.map(|ns| ns * 1.2));
        let comparison = compare(&same(), &slower, &[]);
        for key in ["rate", "p50", "p99", "ratio:cache-line RTT"] {
            assert_eq!(change(&comparison, key).verdict, Verdict::Worse, "{key}");
        }
        assert!((change(&comparison, "p99").change_percent - 20.0).abs() < 1e-9);
        let back = compare(&slower, &same(), &[]);
        assert_eq!(["rate", "p50"].map(|key| change(&back, key).verdict), [Verdict::Better; 2]);
    }

    #[test]
    fn a_difference_that_the_repeats_explain_meets_no_condition() {
        let noisy = document(&[250.0, 290.0, 340.0, 420.0, 500.0]);
        let comparison = compare(&same(), &noisy, &["p99>+5%"]);
        assert!(change(&comparison, "p99").change_percent > 5.0);
        assert_eq!(change(&comparison, "p99").verdict, Verdict::Noise);
        assert!(comparison.verdict().is_ok());
    }

    #[test]
    fn with_four_repeats_it_cannot_tell_and_the_bare_difference_decides() {
        let [before, after] = [300.0, 360.0].map(|ns| document(&[ns; 4]));
        let comparison = compare(&before, &after, &["p99>+10%"]);
        assert_eq!(change(&comparison, "p99").verdict, Verdict::Unknown);
        let Err(Failure::Regression(told)) = comparison.verdict() else { panic!("not met") };
        assert_eq!(told, "p99>+10%: echo 64 B p99 +20.0 %");
    }

    #[test]
    fn a_condition_about_nothing_is_refused() {
        for condition in ["bytes<-1%", "p99>+1% in read", "ratio:memcpy<-1%"] {
            let error = compared([&same(), &same()], &[condition]).unwrap_err();
            assert!(matches!(&error, Failure::Usage(text) if text.contains(condition)), "{error}");
        }
    }

    fn verdict_of(after: &Document, condition: &str) -> String {
        let comparison = compare(&same(), after, &[condition]);
        let Err(Failure::Regression(told)) = comparison.verdict() else { panic!("not met") };
        assert!(comparison.render().contains("no longer available"));
        told
    }

    #[test]
    fn far_percentiles_and_the_maximum_can_be_conditions() {
        let [before, after] = [1.0, 2.0].map(|factor: f64| {
            steady(|repeat| {
                let far = repeat.figures["p99"] * factor;
                let ticks = 100.0 * factor;
                let changed = [("p99.99", far), ("max", far), ("client-ticks", ticks)];
                repeat.figures.extend(changed.map(|(key, value)| (key.into(), value)));
            })
        });
        for condition in ["max>+50%", "p99.99>+50%", "client-ticks>+50%"] {
            assert!(compare(&before, &after, &[condition]).verdict().is_err(), "{condition}");
            assert!(compare(&after, &before, &[condition]).verdict().is_ok(), "{condition}");
        }
    }

    /// With too few calls for the percentile, the maximum stands for it.
    #[test]
    fn a_percentile_that_takes_more_calls_than_there_are_is_judged_by_the_maximum() {
        let with = |p99_99: Option<f64>, max: f64| {
            steady(|repeat| {
                repeat.figures.extend(p99_99.map(|ns| ("p99.99".into(), ns)));
                repeat.figures.insert("max".into(), max);
            })
        };
        let before = with(Some(400.0), 500.0);
        for (max, is_met) in [(420.0, false), (5000.0, true)] {
            let comparison = compare(&before, &with(None, max), &["p99.99>+50%"]);
            assert_eq!(comparison.verdict().is_err(), is_met, "{max}");
            assert!(!comparison.render().contains("no longer available"));
        }
    }

    /// Two of five repeats lost calls; theirs were the slowest medians.
    #[test]
    fn percentiles_of_a_row_are_of_the_same_repeats() {
        let mut one = document(&[300.0, 310.0, 320.0, 900.0, 950.0]);
        one.rows[0].repeats[3..].iter_mut().for_each(|repeat| lacks(repeat, &["p90", "p99"]));
        let comparison = compare(&one, &one, &[]);
        let p50 = change(&comparison, "p50").after;
        for key in ["p90", "p99"] {
            assert!(change(&comparison, key).after >= p50, "{comparison:?}");
        }
    }

    /// Each repeat lacks its far percentiles with a chance of one third, on both sides.
    #[test]
    fn percentiles_that_are_missing_by_chance_meet_no_condition() {
        let mut random = spinrpc::sys::random::Random::seeded(7);
        let mut side = || {
            let mut one = document(&[300.0, 302.0, 301.0, 304.0, 303.0, 300.5]);
            let repeats = one.rows[0].repeats.iter_mut();
            let missing = repeats.filter(|_| random.at_most(2) == 0);
            missing.for_each(|repeat| lacks(repeat, &["p99", "p99.9"]));
            one
        };
        let is_met = |_: &usize| {
            // Refused if the first side lacks the figure.
            let comparison = compared([&side(), &side()], &["p99>+10%"]);
            comparison.is_ok_and(|comparison| comparison.verdict().is_err())
        };
        let met = (0..200).filter(is_met).count();
        assert!(met <= 4, "{met} of 200");
    }

    #[test]
    fn several_reports_are_each_compared_with_the_first() {
        let slower = document(&STEADY.map(|ns| ns * 1.2));
        let set = [&slower, &same()].map(|after| compare(&same(), after, &["p99>+10%"]));
        let told = verdict_of_all(&set).unwrap_err().to_string();
        assert_eq!(told, "b: p99>+10%: echo 64 B p99 +20.0 %");
        assert!(verdict_of_all(&set[1..]).is_ok());
        let text = table::render_all(&set);
        assert!(text.starts_with("1  a ") && text.contains("3  b "), "{text}");
        assert!(text.contains("+20.0% (+18.4..+21.6%) WORSE"), "{text}");
        assert_eq!(set_to_json(&set).unwrap()["comparisons"][1]["after"]["source"], "b");
    }

    #[test]
    fn figures_rows_and_rates_that_are_gone_meet_every_condition_about_them() {
        let mut after = steady(|repeat| lacks(repeat, &["p99"]));
        let told = verdict_of(&after, "p99>+10%");
        assert_eq!(told, "p99>+10%: echo 64 B p99 no longer available");
        assert!(compare(&same(), &after, &["p50>+10%", "rate<-5%"]).verdict().is_ok());
        after.rows[0].repeats.truncate(1);
        verdict_of(&after, "p99>+10%");
        after.rows.clear();
        assert_eq!(verdict_of(&after, "rate<-5%"), "rate<-5%: echo 64 B rate no longer available");
        let stopped = steady(|repeat| repeat.figures.extend([("rate".into(), 0.0)]));
        verdict_of(&stopped, "rate<-5% in echo");
    }

    /// All measured calls were answered, and then the server stopped.
    #[test]
    fn a_server_that_stops_answering_meets_every_condition() {
        let measured = crate::report::tests::repeat(1000, 300.0, &[]).measurement;
        let cut_short = crate::load::CutShort { is_stuck: true, is_interrupted: false };
        let repeat = |cut_short| {
            let measured = crate::load::Measurement { cut_short, ..measured.clone() };
            serde_json::to_value(crate::report::Repeat::new(measured, Vec::new())).unwrap()
        };
        assert!(repeat(Default::default()).get("stuck").is_none());
        let mut after = same();
        after.rows[0].repeats[2].stuck = repeat(cut_short)["stuck"].as_bool().unwrap();
        after.rows[0].repeats.iter_mut().for_each(|one| one.elapsed_s = Some(2.0));
        let before = steady(|repeat| repeat.elapsed_s = Some(1.0));
        let comparison = compare(&before, &after, &["rate<-5%"]);
        let told = comparison.verdict().unwrap_err().to_string();
        assert_eq!(told, "rate<-5%: echo 64 B has calls that were never answered");
        let shown = comparison.render();
        assert!(shown.contains("echo 64 B: 0 before, 1 after"), "{shown}");
        assert!(shown.contains("longer tail"), "{shown}");
        assert!(compare(&after, &before, &["rate<-5%"]).verdict().is_ok());
    }

    #[test]
    fn what_few_repeats_lack_is_not_lost() {
        let mut after = same();
        lacks(&mut after.rows[0].repeats[0], &["p99"]);
        assert!(compare(&after, &after, &["p99>+10%"]).verdict().is_ok());
        assert!(compare(&same(), &after, &["p99>+10%"]).verdict().is_ok());
    }

    /// The report of a run that was interrupted before the last row was measured as often as the others.
    #[test]
    fn rows_with_fewer_repeats_than_others_are_told() {
        let mut both = same();
        let short = document(&STEADY[..3]).rows.remove(0);
        both.rows.push(Row { workload: json!({"op": "read"}), ..short });
        let shown = compare(&both, &both, &[]).render();
        assert_eq!(shown.matches("3 of 5 repeats before and 3 of 5 after").count(), 1, "{shown}");
    }

    #[test]
    fn a_percentile_with_few_samples_beyond_is_marked() {
        let comparison = compare(&same(), &same(), &[]);
        let supported = ["p99", "p99.9"].map(|key| change(&comparison, key).supported);
        assert_eq!(supported, [true, false]);
    }

    #[test]
    fn what_differs_around_the_program_and_rows_without_a_partner_are_listed() {
        let mut after = same();
        after.environment.insert("kernel".to_owned(), json!("6.18"));
        // Absent and null are the same.
        after.rows[0].workload = json!({"op": "echo", "rate": null});
        assert_eq!(compare(&same(), &after, &[]).matched.rows.len(), 1);
        after.rows[0].workload = json!({"op": "null"});
        let comparison = compare(&same(), &after, &[]);
        let keys: Vec<_> = comparison.environment.iter().map(|one| one.key).collect();
        assert_eq!(keys, ["kernel"]);
        let Matched { only_before, only_after, .. } = comparison.matched;
        assert_eq!([only_before, only_after].concat(), ["echo 64 B"; 2]);
    }
}
