//! `spinperf merge`: adds up the reports of clients that measured at the same time, such as the
//! ranks of a job.
//!
//! `part` reads a report, `sum` adds up the repeats of a workload. Histograms are added, and
//! percentiles are those of the sum: never means of percentiles.

mod part;
mod sum;

use crate::failure::Failure;
use crate::output::{OutputArgs, Outputs};
use crate::ranks::{RANKS_MAX, Rank};
use crate::report::{Report, Row};
use crate::units::{grouped, joined, show_value};
use clap::Args;
use part::{Part, PartRow};
use serde_json::Value;
use std::path::PathBuf;
use sum::{Sum, Summand};

#[derive(Args, Debug)]
#[command(after_help = include_str!("../help/merge.txt").trim_ascii_end())]
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
    args.output.check_files(None)?;
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

/// A sum, and reasons why it may not be that of one job.
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
        let sum = sum_of(parts, &rows)?;
        common_percent = common_percent.min(sum.common_percent);
        report.rows.push(Row::new(row.workload, sum.repeats));
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

/// Rejects two reports of which one has a measurement of the other.
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

fn sum_of<'a>(parts: &'a [Part], rows: &[&'a PartRow]) -> Result<Sum, Failure> {
    let repeats = rows.iter().map(|row| row.repeats.len()).min().unwrap_or(0);
    let mut sum = Sum { repeats: Vec::new(), common_percent: 100.0 };
    for repeat in 0..repeats {
        let of = |(part, row): (&'a Part, &&'a PartRow)| Summand {
            source: &part.source,
            repeat: &row.repeats[repeat],
            never_sent: row.never_sent[repeat],
        };
        let summands: Vec<Summand<'_>> = parts.iter().zip(rows).map(of).collect();
        sum.add(&summands)?;
    }
    Ok(sum)
}

/// Tells which ranks are missing, and whether the reports are of several jobs.
///
/// # Errors
/// Two reports are of the same rank.
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

/// `2 machines: a (3 reports), b (1 report)`.
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

const MERGED: &str = "MERGED: histograms and calls are added up, never percentiles averaged";
/// Minimum common part of the measured time for rates to add up.
const COMMON_LEAST: f64 = 95.0;
/// Facts that differ between any two processes. Machines have a note of their own.
const OF_EACH_PROCESS: &str =
    " host_name started_unix_s cores core_nodes load_average steal_ms_before doctor ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Mix, Operation, Share, Workload};
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
