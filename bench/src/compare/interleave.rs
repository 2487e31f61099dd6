//! `spinperf compare --run A B`: runs commands by turns (A B B A), so that changes of the host meet all of them alike.
//!
//! A run counts as one repeat, because repeats within a process have its addresses and connections in common, and are more
//! alike than those of two processes.

use super::document::{self, Document, FILE_BYTES_MAX, Repeat, Row};
use super::validity::Criteria;
use super::{Condition, Judged, Matched, without_nulls};
use crate::failure::Failure;
use crate::floor::Placement;
use crate::interrupt;
use crate::progress::Progress;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;
use spinrpc_tuning::printable::printable;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Runs each command of a shell this many times, and returns the report of each. Blocks until they have exited; after
/// an error none runs on.
pub(super) fn run(
    commands: &[String],
    repeats: u32,
    conditions: &[Condition],
) -> Result<Vec<Document>, Failure> {
    interrupt::catch().map_err(no_verdict)?;
    let mut progress = Progress::start(commands.len() * repeats as usize);
    let mut runs: Vec<Vec<Document>> = vec![Vec::new(); commands.len()];
    let mut order: Vec<usize> = (0..commands.len()).collect();
    for turn in 0..repeats {
        for &index in &order {
            progress.step(&commands[index]);
            runs[index].push(report_of(&commands[index]).map_err(no_verdict)?);
        }
        if turn == 0 {
            conditions.iter().try_for_each(|condition| applies(condition, &runs))?;
        }
        order.reverse();
    }
    let of_command = runs.iter().map(|runs| runs.iter().flat_map(|run| &run.rows));
    let criteria = Criteria::common(of_command.map(|rows| rows.flat_map(|row| &row.repeats)));
    Ok(runs.into_iter().filter_map(|runs| together(runs, criteria)).collect())
}

/// Turns a failure of the comparison itself into one without a verdict: its exit code would look like a regression.
pub(super) fn no_verdict(failure: Failure) -> Failure {
    match failure {
        Failure::Regression(_) | Failure::Interrupted(_) => failure,
        other => Failure::NoVerdict(other.to_string()),
    }
}

fn applies(condition: &Condition, runs: &[Vec<Document>]) -> Result<(), Failure> {
    let itself = |run: &Document| Matched::of(&run.rows, &run.rows);
    let judged = runs.iter().flatten().map(|run| Judged::new(condition, &itself(run)).map(drop));
    judged.reduce(Result::or).unwrap_or(Ok(()))
}

fn together(runs: Vec<Document>, criteria: Criteria) -> Option<Document> {
    let is_like =
        |row: &Row, other: &&Row| without_nulls(&other.workload) == without_nulls(&row.workload);
    let of_run = |row: &Row, run: &Document| {
        run.rows.iter().find(|other| is_like(row, other)).and_then(|one| typical(one, criteria))
    };
    let mut rows = runs.first()?.rows.clone();
    for row in runs.iter().skip(1).flat_map(|run| &run.rows) {
        if !rows.iter().any(|other| is_like(row, &other)) {
            rows.push(row.clone());
        }
    }
    for row in &mut rows {
        row.repeats = runs.iter().filter_map(|run| of_run(row, run)).collect();
    }
    Some(Document { rows, runs: runs.len(), ..runs.first()?.clone() })
}

/// The repeat with the median rate, among those that are steady, if there are any, and of the placement that most of
/// these have; with the lost calls of all.
fn typical(row: &Row, criteria: Criteria) -> Option<Repeat> {
    let mut repeats: Vec<&Repeat> = row.repeats.iter().collect();
    if repeats.iter().any(|one| criteria.is_steady(one)) {
        repeats.retain(|one| criteria.is_steady(one));
    }
    let placements: Vec<_> = repeats.iter().map(|one| criteria.placement(one)).collect();
    let count = |at: &&Option<Placement>| placements.iter().filter(|other| other == at).count();
    let most = *placements.iter().max_by_key(count)?;
    repeats.retain(|one| criteria.placement(one) == most);
    let rate = |one: &Repeat| one.figure("rate").unwrap_or(0.0);
    repeats.sort_by(|one, other| rate(one).total_cmp(&rate(other)));
    let middle = repeats.get(repeats.len().checked_sub(1)? / 2)?;
    Some(Repeat { lost: row.lost(), ..(*middle).clone() })
}

fn report_of(command: &str) -> Result<Document, Failure> {
    let asks = if command.contains("--json") { "" } else { " --json -" };
    let child = Command::new("sh")
        .args(["-c", &format!("{command}{asks}")])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::system("starting sh", error))?;
    let (status, report, said) = Running(child).finish()?;
    let failed = format!("the command '{command}' failed ({status}): {said}");
    let report = report.and_then(Document::of_stranger);
    match (status.code(), report) {
        (Some(0), Ok(report)) => Ok(report),
        // It measured that calls were lost or late, or that none completed: the report has these figures.
        (Some(1), Ok(report)) => {
            eprintln!("spinperf: {}; its report counts", printable(&failed));
            Ok(report)
        }
        (Some(0), Err(error)) => Err(Failure::NoVerdict(format!(
            "the command '{command}' printed no report, as spinperf does with --json -: {error}"
        ))),
        _ => Err(Failure::NoVerdict(failed)),
    }
}

/// A command, and all that it has started in its group of processes; dropping it kills them.
struct Running(Child);

impl Running {
    fn finish(mut self) -> Result<(ExitStatus, Result<Value, String>, String), Failure> {
        let (output, messages) = (self.0.stdout.take(), self.0.stderr.take());
        let lost = || Failure::Measurement("a thread that reads an output panicked".to_owned());
        let (report, said) = thread::scope(|scope| {
            let report = scope.spawn(|| output.map(|from| document::parse(from, FILE_BYTES_MAX)));
            let said = scope.spawn(|| messages.map(last_line));
            let waited = self.wait();
            // What it leaves behind would keep the pipes open.
            self.kill();
            waited.and_then(|()| {
                let report = report.join().ok().flatten().ok_or_else(lost)?;
                Ok((report, said.join().ok().flatten().ok_or_else(lost)?))
            })
        })?;
        let status = self.0.wait().map_err(|error| Failure::system("waiting for sh", error))?;
        Ok((status, report, said))
    }

    /// Waits until it has exited, but does not reap it: until then nothing else can have its number. A signal to this
    /// process is passed on, and it has a few seconds to obey.
    fn wait(&self) -> Result<(), Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let has_exited = || waitid(WaitId::Pid(self.group()), options).map(|end| end.is_some());
        let mut obeys_until = None;
        while !has_exited().map_err(|error| Failure::system("waiting for a command", error))? {
            if let (Some(number), None) = (interrupt::signal(), obeys_until) {
                let signal = Signal::from_named_raw(number).unwrap_or(Signal::TERM);
                let _ = kill_process_group(self.group(), signal);
                obeys_until = Some(Instant::now() + OBEY);
            }
            if obeys_until.is_some_and(|end| Instant::now() > end) {
                break;
            }
            thread::sleep(LOOK);
        }
        interrupt::signal().map_or(Ok(()), |number| Err(Failure::Interrupted(number)))
    }

    fn kill(&self) {
        // It may have exited already.
        let _ = kill_process_group(self.group(), Signal::KILL);
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.kill();
            let _ = self.0.wait();
        }
    }
}

/// The last line, of which a part beyond some KiB may be missing.
fn last_line(mut from: impl Read) -> String {
    let (mut end, mut chunk) = (Vec::new(), [0; 4096]);
    while let Ok(length) = from.read(&mut chunk) {
        if length == 0 {
            break;
        }
        end.extend_from_slice(&chunk[..length]);
        end.drain(..end.len().saturating_sub(MESSAGE_BYTES));
    }
    let text = String::from_utf8_lossy(&end);
    text.trim_end().lines().last().unwrap_or("it said nothing").to_owned()
}

const LOOK: Duration = Duration::from_millis(20);
const OBEY: Duration = Duration::from_secs(5);
const MESSAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::super::tests::{compared, placed};
    use super::*;
    use serde_json::json;

    /// A report with a row of repeats at these rates, which lost a call each, and of which the fast ones were disturbed.
    fn run_of(rates: &[f64], waited: f64) -> Document {
        let waited = |rate: f64| if rate > 50.0 { waited } else { 0.0 };
        let repeats: Vec<_> =
            rates.iter().map(|rate| (1e9 / rate, "near", waited(*rate))).collect();
        let mut run = placed(&repeats);
        run.rows[0].repeats.iter_mut().for_each(|one| one.lost = 1);
        run
    }

    fn joined(runs: Vec<Document>) -> Row {
        let repeats = runs.iter().flat_map(|run| &run.rows).flat_map(|row| &row.repeats);
        let criteria = Criteria::common(std::iter::once(repeats));
        together(runs, criteria).unwrap().rows.remove(0)
    }

    fn rates(row: &Row) -> Vec<Option<f64>> {
        row.repeats.iter().map(|one| one.figure("rate").map(f64::round)).collect()
    }

    /// Repeats of a process are alike, and would make any difference between processes look significant.
    #[test]
    fn a_run_counts_once_however_many_repeats_it_has() {
        let runs = vec![run_of(&[10.0, 30.0, 20.0], 0.0), run_of(&[40.0, 90.0, 80.0], 5.0)];
        let row = joined(runs);
        assert_eq!(rates(&row), [Some(20.0), Some(40.0)]);
        assert_eq!(row.lost(), 6);
        assert_eq!(rates(&joined(vec![run_of(&[90.0, 80.0, 70.0], 5.0)])), [Some(80.0)]);
    }

    /// A command that does not know what was disturbed has the median of all, so the other one must have it too.
    #[test]
    fn repeats_are_selected_only_by_facts_of_all_commands() {
        let mut older = run_of(&[40.0, 90.0, 80.0], 5.0);
        older.rows[0].repeats.iter_mut().for_each(|one| one.waited_percent[1] = None);
        let newer = run_of(&[40.0, 90.0, 80.0], 5.0);
        let of = |run: &Document| run.rows[0].repeats.clone();
        let sides = [of(&older), of(&newer)];
        let criteria = Criteria::common(sides.iter().map(|side| side.iter()));
        let row = together(vec![newer], criteria).unwrap().rows.remove(0);
        assert_eq!(rates(&row), [Some(80.0)]);
    }

    #[test]
    fn the_repeat_of_a_run_is_of_the_placement_that_most_have() {
        let mut run = run_of(&[10.0, 20.0, 30.0, 40.0, 50.0], 0.0);
        for (repeat, at) in
            run.rows[0].repeats.iter_mut().zip(["near", "near", "near", "far", "moved"])
        {
            repeat.placement = serde_json::from_value(json!(at)).unwrap();
        }
        assert_eq!(rates(&joined(vec![run])), [Some(20.0)]);
    }

    /// The first run lacks a row, and a later one another. Expect both, and a note about each.
    #[test]
    fn rows_that_some_runs_lack_are_kept_and_told() {
        let [one, mut other, mut both] = [(); 3].map(|()| run_of(&[10.0], 0.0));
        other.rows[0].workload = json!({"op": "read"});
        both.rows.extend(other.rows.clone());
        let all = || Criteria::common(std::iter::empty::<std::slice::Iter<'_, Repeat>>());
        let before = together(vec![one, other, both.clone()], all()).unwrap();
        let after = together(vec![both.clone(), both.clone(), both], all()).unwrap();
        assert_eq!(before.rows.len(), 2);
        let shown = compared([&before, &after], &[]).unwrap().render();
        assert_eq!(shown.matches("2 of 3 repeats before and 3 of 3 after").count(), 2, "{shown}");
    }

    #[test]
    fn the_last_line_of_a_long_output_is_found() {
        let text = "x".repeat(10_000) + "\nfirst\nspinperf: why\n\n";
        assert_eq!(last_line(text.as_bytes()), "spinperf: why");
        assert_eq!(last_line(&b""[..]), "it said nothing");
    }
}
