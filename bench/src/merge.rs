//! `spinperf merge`: adds up the reports of clients that measured at the same time, such as the
//! ranks of a job.
//!
//! A [`Part`] is a report as read; [`sum_of`] adds up the repeats of a workload. Histograms are added, and percentiles are
//! those of the sum: never means of percentiles.

use crate::compare::{FIGURE_MAX, checked, read_report};
use crate::env::{Environment, Interference};
use crate::failure::Failure;
use crate::latency::LatencySummary;
use crate::load::{CoreUse, CutShort, Measurement, Mode, OpenLoop, Workload, nanoseconds};
use crate::output::{OutputArgs, Outputs};
use crate::ranks::{RANKS_MAX, Rank};
use crate::report::{Repeat, Report, Row};
use crate::units::{grouped, joined, show_value};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(after_help = include_str!("help/merge.txt").trim_ascii_end())]
// With a file in any case: else the first report that follows --json would be taken for it.
#[command(mut_arg("json", |json| json.num_args(1).help("Also write all results to this file, schema spinperf/3")))]
pub(crate) struct MergeArgs {
    /// Reports written by `spinperf run --json`
    #[arg(required = true, value_name = "REPORT")]
    pub(crate) reports: Vec<PathBuf>,
    /// End with exit code 0 although the sum is doubtful: ranks are missing, reports are of several
    /// jobs, or measured at the same time for less than 95 %
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

pub(crate) fn run(args: &MergeArgs) -> Result<(), Failure> {
    let read = args.reports.iter().map(|path| Part::read(path));
    let parts = read.collect::<Result<Vec<_>, _>>().map_err(Failure::Usage)?;
    let outputs = Outputs::open(&args.output)?;
    let Merged { report, doubts } = merged(&parts)?;
    let verdict = report.verdict();
    outputs.deliver(report)?;
    verdict?;
    match doubts.is_empty() || args.force {
        true => Ok(()),
        false => {
            let doubts = doubts.join("; ");
            Err(Failure::Measurement(format!("{doubts} (--force accepts the sum)")))
        }
    }
}

#[derive(Debug)]
struct Merged {
    report: Report,
    doubts: Vec<String>,
}

/// The sum of all parts. The environment is that of the first, with notes on what differs.
fn merged(parts: &[Part]) -> Result<Merged, Failure> {
    let first = parts.first().ok_or_else(|| Failure::Usage("no report to merge".to_owned()))?;
    let mut report = Report::new(first.environment.clone());
    let ids: Vec<String> = parts.iter().flat_map(|part| part.ids.clone()).collect();
    report.ids = ids;
    report.mode = first.mode;
    report.interrupted = parts.iter().any(|part| part.interrupted);
    for part in parts {
        let (sum, one) = (&mut report.interference, part.interference);
        sum.steal_ms += one.steal_ms;
        sum.load_average_after = sum.load_average_after.max(one.load_average_after);
    }
    report.notes.push(format!("{MERGED}, of {} reports: {}", parts.len(), machines(parts)));
    let mut doubts = rank_doubts(parts)?;
    check_distinct(parts)?;
    let mut common_percent = 100.0_f64;
    for row in &first.rows {
        let matching: Vec<_> = parts.iter().map(|part| part.row_like(row)).collect();
        let lacking = parts.iter().zip(&matching).find(|(_, row)| row.is_none());
        if let Some((part, _)) = lacking {
            report.notes.push(format!("not merged: {}, which {} lacks", row.name, part.source));
            continue;
        }
        let rows: Vec<&PartRow> = matching.into_iter().flatten().collect();
        let counts = rows.iter().map(|row| row.repeats.len());
        if counts.clone().min() != counts.max() {
            report.notes.push(format!("{}: only the repeats that all reports have", row.name));
        }
        let (repeats, percent) = sum_of(parts, &rows)?;
        common_percent = common_percent.min(percent);
        report.rows.push(Row::new(row.workload, repeats));
    }
    if report.rows.is_empty() {
        return Err(Failure::Usage("no workload is in all of the reports".to_owned()));
    }
    let common = common_note(common_percent);
    if common_percent < COMMON_LEAST {
        doubts.push(common)
    } else {
        report.notes.push(common)
    }
    report.notes.extend(doubts.iter().cloned());
    report.notes.extend(differences(parts));
    let shared = first.notes.iter().filter(|note| parts.iter().all(|one| one.notes.contains(note)));
    report.notes.extend(shared.cloned());
    Ok(Merged { report, doubts })
}

fn check_distinct(parts: &[Part]) -> Result<(), Failure> {
    for (at, part) in parts.iter().enumerate() {
        if let Some(other) = parts.iter().take(at).find(|other| other.overlaps(part)) {
            return Err(Failure::Usage(format!(
                "{} and {} contain the same measurement, whose calls would count twice: name each report once",
                other.source, part.source
            )));
        }
    }
    Ok(())
}

/// Also returns the smallest part of a measured time, in percent, that is common to all. Fails if the reports are of
/// different times.
fn sum_of(parts: &[Part], rows: &[&PartRow]) -> Result<(Vec<Repeat>, f64), Failure> {
    let count = rows.iter().map(|row| row.repeats.len()).min().unwrap_or(0);
    let (mut repeats, mut common_percent) = (Vec::new(), 100.0_f64);
    for at in 0..count {
        let repeats_of = parts.iter().zip(rows);
        let summands: Vec<Summand<'_>> =
            repeats_of.map(|(part, row)| (&*part.source, &row.repeats[at])).collect();
        let never_sent = rows.iter().map(|row| row.never_sent[at]).sum();
        let starts = || summands.iter().map(|(_, one)| one.start_unix_s);
        let ends = || summands.iter().map(|(_, one)| one.start_unix_s + one.elapsed_s);
        let longest = summands.iter().map(|(_, one)| one.elapsed_s).fold(0.0, f64::max);
        let percent = common_s(&summands)? * 100.0 / longest.max(f64::MIN_POSITIVE);
        common_percent = common_percent.min(percent);
        let start_unix_s = starts().fold(f64::INFINITY, f64::min);
        let elapsed_s = ends().fold(0.0, f64::max) - start_unix_s;
        let measurement = measurement(&summands, never_sent, [start_unix_s, elapsed_s])?;
        repeats.push(Repeat::new(measurement, Vec::new()));
    }
    Ok((repeats, common_percent))
}

/// Fails if two reports are of the same rank.
fn rank_doubts(parts: &[Part]) -> Result<Vec<String>, Failure> {
    let known = || parts.iter().filter_map(|part| Some((part, part.rank.as_ref()?)));
    for (at, (part, rank)) in known().enumerate() {
        if let Some((other, _)) = known().take(at).find(|(_, other)| *other == rank) {
            let (one, two, rank) = (&other.source, &part.source, rank.rank);
            let message = format!("{one} and {two} are both of rank {rank}");
            return Err(Failure::Usage(message));
        }
    }
    let job = |part: &Part| match &part.rank {
        Some(Rank { ranks, job, .. }) => format!("{ranks} ranks of job {job}"),
        None => "no job".to_owned(),
    };
    let jobs = grouped(parts.iter().map(|part| (job(part), part.source.clone())));
    if jobs.len() > 1 {
        let shown = jobs.iter().map(|(job, of)| format!("{job} ({})", of.join(", ")));
        let shown = joined(shown, "; ");
        return Ok(vec![format!("MIXED: the reports are of several jobs: {shown}")]);
    }
    let Some((_, first)) = known().next() else { return Ok(Vec::new()) };
    let has = |rank: u32| known().any(|(_, one)| one.rank == rank);
    let missing = (0..first.ranks.min(RANKS_MAX)).filter(|rank| !has(*rank));
    Ok(match &*joined(missing, ", ") {
        "" => Vec::new(),
        missing => vec![format!("MISSING: the reports of ranks {missing} of {}", first.ranks)],
    })
}

fn common_note(percent: f64) -> String {
    match percent < COMMON_LEAST {
        true => format!(
            "ONLY {percent:.1} % of the measured time is common to all reports: the sum of the \
             rates is more than the server did at any time"
        ),
        false => format!(
            "at least {percent:.1} % of the measured time of each repeat is common to all reports, \
             by the clocks of their hosts; a rate is the sum of the rates of all clients"
        ),
    }
}

fn machines(parts: &[Part]) -> String {
    let name = |part: &Part| {
        part.environment.host.host_name.clone().unwrap_or_else(|| "an unknown host".to_owned())
    };
    let groups = grouped(parts.iter().map(|part| (name(part), part.source.clone())));
    let shown = groups.iter().map(|(host, sources)| match sources.len() {
        1 => format!("{host} (1 report)"),
        count => format!("{host} ({count} reports)"),
    });
    let plural = if groups.len() == 1 { "machine" } else { "machines" };
    format!("{} {plural}: {}", groups.len(), joined(shown, ", "))
}

fn differences(parts: &[Part]) -> Vec<String> {
    let environments: Vec<Value> = parts
        .iter()
        .map(|part| serde_json::to_value(&part.environment).unwrap_or_default())
        .collect();
    let keys =
        environments.first().and_then(Value::as_object).into_iter().flat_map(|map| map.keys());
    let differs = |key: &String| {
        if OF_EACH_PROCESS.contains(&format!(" {key} ")) {
            return None;
        }
        let values = environments.iter().zip(parts);
        let values =
            values.map(|(one, part)| (show_value(&one[key], "unknown"), part.source.clone()));
        let groups = grouped(values);
        let shown = groups.iter().map(|(value, of)| format!("{value} ({})", of.join(", ")));
        (groups.len() > 1).then(|| format!("DIFFERS: {key}: {}", joined(shown, "; ")))
    };
    keys.filter_map(differs).collect()
}

#[derive(Clone, Debug, Deserialize)]
struct Part {
    #[serde(skip)]
    source: String,
    ids: Vec<String>,
    environment: Environment,
    interference: Interference,
    mode: Option<Mode>,
    rows: Vec<PartRow>,
    notes: Vec<String>,
    interrupted: bool,
    rank: Option<Rank>,
}

#[derive(Clone, Debug, Deserialize)]
struct PartRow {
    name: String,
    workload: Workload,
    repeats: Vec<Measurement>,
    /// Calls of the open loop of each repeat, or of the mix it is a part of, that were never sent.
    #[serde(skip)]
    never_sent: Vec<u64>,
}

impl Part {
    fn read(path: &Path) -> Result<Self, String> {
        Self::of(&path.display().to_string(), read_report(path)?)
    }

    fn of(source: &str, report: Value) -> Result<Self, String> {
        let report = checked(report).map_err(|error| format!("{source}: {error}"))?;
        let mut part: Self =
            serde_json::from_value(report).map_err(|error| format!("{source}: {error}"))?;
        source.clone_into(&mut part.source);
        // Whether percentiles were refused, and how many calls were never sent, in each repeat of the
        // last mix: the rows of its operations follow it, and do not tell.
        let mut of_mix: Vec<(bool, u64)> = Vec::new();
        for row in &mut part.rows {
            let own: Vec<(bool, u64)> = row.repeats.iter().map(schedule).collect();
            let schedule = if row.workload.of_mix { of_mix.clone() } else { own };
            for (number, repeat) in row.repeats.iter().enumerate() {
                let (is_refused, never_sent) = schedule.get(number).copied().unwrap_or_default();
                let samples = repeat.samples.len();
                let problem = match is_credible(repeat) {
                    false => "it has a figure below 0 or above 1e18",
                    true if samples == repeat.calls || (is_refused && samples == 0) => "",
                    true => "its histogram lacks calls",
                };
                if !problem.is_empty() {
                    return Err(format!("{source}: {}: {problem}", row.name));
                }
                row.never_sent.push(never_sent);
            }
            if !row.workload.mix.is_empty() {
                of_mix = schedule;
            }
        }
        Ok(part)
    }

    /// Returns whether both reports have a measurement in common, which a sum would count twice.
    fn overlaps(&self, other: &Self) -> bool {
        self.ids.iter().any(|id| other.ids.contains(id))
    }

    /// The row of the same workload. Ranks may have seeds of their own.
    fn row_like(&self, row: &PartRow) -> Option<&PartRow> {
        let without_seed = |row: &PartRow| Workload { seed: 0, ..row.workload };
        self.rows.iter().find(|other| without_seed(other) == without_seed(row))
    }
}

fn schedule(repeat: &Measurement) -> (bool, u64) {
    repeat.open.map_or((false, 0), |open| (open.refused.is_some(), open.never_sent))
}

fn is_credible(repeat: &Measurement) -> bool {
    let open = || repeat.open.iter();
    let counts = [repeat.calls, repeat.lost]
        .into_iter()
        .chain(open().flat_map(|o| [o.intended, o.late, o.overran, o.never_sent]));
    let rates = [repeat.calls_per_second, repeat.bytes_per_second, repeat.start_unix_s];
    let of_open =
        open().flat_map(|o| [o.target_per_second, o.achieved_per_second, o.adherence_percent]);
    let times = [repeat.elapsed_s, repeat.carried_in_ns];
    let mut figures = rates.into_iter().chain(of_open).chain(times);
    let cores = || repeat.client_cores.iter().chain(&repeat.server_cores).chain(&repeat.server);
    counts.into_iter().all(|count| count <= COUNT_MAX)
        && figures.all(|figure| figure.is_nan() || (0.0..=FIGURE_MAX).contains(&figure))
        && cores().all(|core| core.counts().iter().all(|count| *count <= COUNT_MAX))
}

type Summand<'a> = (&'a str, &'a Measurement);

fn common_s(summands: &[Summand<'_>]) -> Result<f64, Failure> {
    let ended = |one: &Measurement| one.start_unix_s + one.elapsed_s;
    let last = summands.iter().max_by(|a, b| a.1.start_unix_s.total_cmp(&b.1.start_unix_s));
    let first = summands.iter().min_by(|a, b| ended(a.1).total_cmp(&ended(b.1)));
    let (Some(last), Some(first)) = (last, first) else { return Ok(0.0) };
    let common_s = ended(first.1) - last.1.start_unix_s;
    if common_s <= 0.0 {
        let (gap_s, last, first) = (-common_s, last.0, first.0);
        return Err(Failure::Measurement(format!(
            "the reports are not of the same time: {last} began {gap_s:.3} s after {first} ended; \
             start all clients together (--ranks)"
        )));
    }
    Ok(common_s)
}

/// The calls that were `never_sent` rank as slower than all others.
fn measurement(
    summands: &[Summand<'_>],
    never_sent: u64,
    [start_unix_s, elapsed_s]: [f64; 2],
) -> Result<Measurement, Failure> {
    let repeats = || summands.iter().map(|(_, repeat)| *repeat);
    let (calls, lost) = (repeats().map(|r| r.calls).sum(), repeats().map(|r| r.lost).sum());
    let mut latency = nanoseconds()?;
    for repeat in repeats() {
        let added = latency.add(&repeat.samples);
        added.map_err(|error| Failure::Measurement(format!("adding histograms: {error}")))?;
    }
    let is_refused = repeats().any(|one| one.samples.is_empty() && one.calls > 0);
    if is_refused {
        latency.reset();
    }
    // The server counts the calls of all clients; the report that saw most of them has its figures.
    let seen = repeats().max_by_key(|one| one.server.map_or(0, |server| server.calls));
    let client_cores: Vec<CoreUse> = repeats().flat_map(|one| one.client_cores.clone()).collect();
    let loops: Vec<OpenLoop> = repeats().filter_map(|one| one.open).collect();
    let target = loops.iter().map(|one| one.target_per_second).sum();
    let achieved = total(loops.iter().map(|one| one.achieved_per_second));
    Ok(Measurement {
        calls,
        lost,
        elapsed_s,
        calls_per_second: total(repeats().map(|one| one.calls_per_second)),
        bytes_per_second: total(repeats().map(|one| one.bytes_per_second)),
        start_unix_s,
        carried_in_ns: repeats().map(|one| one.carried_in_ns).fold(0.0, f64::max),
        latency: match is_refused {
            true => LatencySummary { missing: lost + never_sent, ..LatencySummary::refused(calls) },
            false => LatencySummary::of(&latency, 1.0, lost + never_sent),
        },
        service: None,
        open: OpenLoop::sum(&loops, [target, achieved]),
        client: CoreUse::sum(&client_cores),
        client_cores,
        server: seen.and_then(|one| one.server),
        server_cores: seen.map(|one| one.server_cores.clone()).unwrap_or_default(),
        samples: latency,
        cut_short: CutShort {
            is_stuck: repeats().any(|one| one.cut_short.is_stuck),
            ..CutShort::default()
        },
    })
}

fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|value| !value.is_nan()).reduce(|sum, value| sum + value).unwrap_or(f64::NAN)
}

const MERGED: &str = "MERGED: histograms and calls are added up, never percentiles averaged";
/// Minimum common part of the measured time for rates to add up.
const COMMON_LEAST: f64 = 95.0;
/// Facts that differ between any two processes. Machines have a note of their own.
const OF_EACH_PROCESS: &str =
    " host_name started_unix_s cores core_nodes load_average steal_ms_before doctor ";
/// Far more than any run has, and too little for a sum of reports to overflow.
const COUNT_MAX: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Mix, Operation, Share};
    use crate::report::tests::{empty, sampled_at};

    /// A report of one repeat of these latencies in nanoseconds, starting at this time.
    fn part(source: &str, kernel: &str, start_unix_s: f64, latencies: &[u64]) -> Part {
        let mut report = empty();
        report.environment.host.kernel = Some(kernel.to_owned());
        let echo = Workload::ping_pong(Operation::Echo, 64);
        report.rows.push(Row::new(echo, vec![sampled_at(start_unix_s, latencies)]));
        Part::of(source, serde_json::to_value(&report).unwrap()).unwrap()
    }

    #[test]
    fn percentiles_are_those_of_all_samples_and_rates_add_up() {
        let fast: Vec<u64> = vec![100; 990];
        let slow: Vec<u64> = vec![10_000; 1010];
        let parts = [part("a", "6.1", 5.0, &fast), part("b", "6.1", 5.01, &slow)];
        let report = merged(&parts).unwrap().report;
        let one = &report.rows[0].repeats[0].measurement;
        assert_eq!((one.calls, one.calls_per_second), (2000, 2000.0));
        // The mean of both medians would be 5050.
        assert!((9_990.0..10_010.0).contains(&one.latency.p50_ns), "{:?}", one.latency);
        assert!((1.009..1.011).contains(&one.elapsed_s), "{}", one.elapsed_s);
        assert!(report.notes.iter().any(|note| note.contains("at least 99.0 %")), "{report:?}");
        assert!(!report.notes.iter().any(|note| note.contains("DIFFERS")));
    }

    #[test]
    fn a_server_that_stopped_answering_one_client_fails_the_sum() {
        let one = part("a", "6.1", 5.0, &[100]);
        let mut report = empty();
        let echo = Workload::ping_pong(Operation::Echo, 64);
        report.rows.push(Row::new(echo, vec![sampled_at(5.0, &[100])]));
        report.rows[0].repeats[0].measurement.cut_short.is_stuck = true;
        let stuck = Part::of("b", serde_json::to_value(&report).unwrap()).unwrap();
        assert!(
            merged(&[one.clone(), part("c", "6.1", 5.0, &[100])]).unwrap().report.verdict().is_ok()
        );
        let failure = merged(&[one, stuck]).unwrap().report.verdict().unwrap_err().to_string();
        assert!(failure.contains("stopped answering"), "{failure}");
    }

    #[test]
    fn reports_of_other_times_are_refused_and_a_small_overlap_is_told() {
        let of = |start| merged(&[part("a", "6.1", 5.0, &[100]), part("b", "6.1", start, &[100])]);
        let error = of(7.0).unwrap_err().to_string();
        assert!(error.contains("b began") && error.contains("a ended"), "{error}");
        let Merged { report, doubts } = of(5.5).unwrap();
        assert!(doubts.len() == 1 && doubts[0].contains("ONLY 50.0 %"), "{doubts:?}");
        let notes = report.notes;
        assert!(notes.iter().any(|note| note.contains("ONLY 50.0 %")), "{notes:?}");
    }

    #[test]
    fn what_differs_is_told_with_the_reports_that_have_it() {
        let parts = ["6.1", "6.8", "6.1"].map(|kernel| part(kernel, kernel, 5.0, &[100]));
        let notes = merged(&parts).unwrap().report.notes;
        let differs: Vec<&String> = notes.iter().filter(|note| note.contains("DIFFERS")).collect();
        assert_eq!(differs, ["DIFFERS: kernel: 6.1 (6.1, 6.1); 6.8 (6.8)"]);
        assert!(notes[0].contains("3 reports: 1 machine: "), "{notes:?}");
    }

    #[test]
    fn ranks_that_are_missing_are_told_and_one_that_is_there_twice_is_refused() {
        let of = |source, rank| {
            let rank = Some(Rank { rank, ranks: 4, job: "j".to_owned() });
            Part { rank, ..part(source, "6.1", 5.0, &[100]) }
        };
        let doubts = merged(&[of("a", 0), of("b", 2)]).unwrap().doubts;
        assert_eq!(doubts, ["MISSING: the reports of ranks 1, 3 of 4"]);
        let mut other = of("b", 2);
        other.rank.as_mut().unwrap().job = "k".to_owned();
        let doubts = merged(&[of("a", 0), other]).unwrap().doubts;
        let told =
            "MIXED: the reports are of several jobs: 4 ranks of job j (a); 4 ranks of job k (b)";
        assert_eq!(doubts, [told]);
        let notes = merged(&[of("a", 0), of("b", 2)]).unwrap().report.notes;
        assert!(notes.iter().any(|note| note.contains("ranks 1, 3 of 4")), "{notes:?}");
        let error = merged(&[of("a", 1), of("b", 1)]).unwrap_err().to_string();
        assert_eq!(error, "a and b are both of rank 1");
    }

    /// Merge a report with itself, and with a sum that contains it. Expect refusals.
    #[test]
    fn a_measurement_counts_once() {
        let [a, b] =
            [("a", 5.0), ("b", 5.01)].map(|(name, start)| part(name, "6.1", start, &[100]));
        let sum = merged(&[a.clone(), b.clone()]).unwrap().report;
        assert_eq!(sum.ids, [a.ids.clone(), b.ids.clone()].concat());
        let sum = Part::of("sum", serde_json::to_value(&sum).unwrap()).unwrap();
        for twice in [[&a, &a], [&a, &sum]] {
            let refused = merged(&twice.map(Part::clone)).unwrap_err();
            assert!(matches!(refused, Failure::Usage(_)), "{refused}");
        }
    }

    /// Two mixes, of which the second fell behind. Expect a sum, and the calls that were never sent
    /// only where they belong.
    #[test]
    fn operations_of_a_mix_follow_the_schedule_of_their_mix() {
        let share = |op| Share { op, weight: 1, call_bytes: 64, reply_bytes: 64 };
        let shares = [share(Operation::Echo), share(Operation::Read)];
        let of = |start| {
            let mut report = empty();
            for depth in [1, 2] {
                let echo = Workload::ping_pong(Operation::Echo, 64).at_depth(depth);
                let mix = Workload { mix: Mix::new(&shares), ..echo };
                let of_row = |workload| Row::new(workload, vec![sampled_at(start, &[100])]);
                report.rows.extend([of_row(mix), of_row(mix.part(shares[0]))]);
            }
            let mut report = serde_json::to_value(&report).unwrap();
            let open = serde_json::json!({
                "target_per_second": 10.0, "achieved_per_second": 1.0, "intended": 10,
                "adherence_percent": 10.0, "late": 0, "overran": 0, "never_sent": 9,
                "arrivals": "fixed", "refused": "it fell behind"
            });
            report["rows"][2]["repeats"][0]["open"] = open;
            for row in [2, 3] {
                report["rows"][row]["repeats"][0]["histogram"] = Value::Null;
            }
            Part::of("a", report).unwrap()
        };
        let parts = [of(5.0), of(5.01)];
        let never_sent = |row: &PartRow| row.never_sent[0];
        assert_eq!(parts[0].rows.iter().map(never_sent).collect::<Vec<_>>(), [0, 0, 9, 9]);
        let rows = merged(&parts).unwrap().report.rows;
        let known: Vec<bool> =
            rows.iter().map(|row| row.repeats[0].measurement.latency.p50_ns > 0.0).collect();
        assert_eq!(known, [true, true, false, false]);
    }

    #[test]
    fn workloads_that_a_report_lacks_are_not_merged() {
        let mut parts = ["a", "b"].map(|source| part(source, "6.1", 5.0, &[100]));
        parts[1].rows[0].workload.depth = 9;
        assert!(matches!(merged(&parts), Err(Failure::Usage(_))));
        parts[1].rows[0].workload.depth = 1;
        parts[1].rows[0].workload.seed = 77;
        assert!(merged(&parts).is_ok(), "ranks have seeds of their own");
    }
}
