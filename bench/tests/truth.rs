//! Figures of runs with faults: a server that is stopped temporarily or permanently, an interrupt,
//! a time too short for a call. Asserts counts, relations and exit codes, never speeds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{
    Ended, Folder, Server, assert_is_report, cores, number, report_in, text, wait_at_most,
    wait_for_calls,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

const TIMES: [&str; 4] = ["--warmup", "0ms", "--duration", "2s"];
/// Longer than the measured time: it ends after the measurement, whenever it starts.
const STALL: Duration = Duration::from_millis(2500);

/// The document of a run.
struct Files(Folder);

impl Files {
    fn new(name: &str) -> Self {
        Self(Folder::new(name))
    }

    fn report(&self) -> Value {
        report_in(&self.0.file("json"))
    }
}

/// A run that has started.
fn start(server: &Server, files: &Files, options: &[&str]) -> Child {
    server
        .client(&["--json", &files.0.file("json")])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run(server: &Server, files: &Files, options: &[&str]) -> Output {
    start(server, files, options).wait_with_output().unwrap()
}

/// A run, and how it ended. While it calls the server, a child of this test, the server is stopped, and resumed after this
/// time, or never.
fn run_with_stop(
    server: &Server,
    files: &Files,
    options: &[&str],
    time: Option<Duration>,
) -> Output {
    let pid = Pid::from_child(&server.child);
    let mut run = start(server, files, options);
    if wait_for_calls(pid, &mut run) {
        kill_process(pid, Signal::STOP).unwrap();
        if let Some(time) = time {
            sleep(time);
            kill_process(pid, Signal::CONT).unwrap();
        }
    }
    wait_at_most(&mut run, Duration::from_secs(60));
    run.wait_with_output().unwrap()
}

/// The first of several values that is as expected, or the last: a machine that pauses this test for as long as a run
/// measures lets the stop of a server come too late.
fn settled<T>(make: impl FnMut(u32) -> T, is_expected: impl Fn(&T) -> bool) -> T {
    let mut last = None;
    for one in (0..5).map(make) {
        let is_it = is_expected(&one);
        last = Some(one);
        if is_it {
            break;
        }
    }
    last.unwrap()
}

/// Expect calls, time and rate to agree in a row with one repeat.
fn assert_agreement(row: &Value) {
    for one in [&row["repeats"][0], &row["median"]] {
        let (calls, elapsed_s) = (number(&one["calls"]), number(&one["elapsed_s"]));
        let rate = number(&one["calls_per_second"]);
        assert!((calls / elapsed_s / rate - 1.0).abs() < 1e-6, "{calls} / {elapsed_s}: {rate}");
    }
    let open = &row["repeats"][0]["open"];
    if !open.is_null() {
        let (achieved, target) =
            (number(&open["achieved_per_second"]), number(&open["target_per_second"]));
        assert_eq!(achieved, number(&row["repeats"][0]["calls_per_second"]));
        assert!(achieved <= target, "{achieved} of {target}");
    }
}

/// Stop the server within the measured time, and resume it afterwards: in a closed loop of a mix,
/// on several connections, in an open loop, and in both directions, where one
/// of the loops is the stopped server's own. Expect the stall in every known maximum, its time in
/// the rate, and success.
#[test]
fn a_stall_at_the_end_of_the_measured_time_is_in_the_figures() {
    let _cores = cores();
    let mix = ["--op", "echo:1,null:1", "--size", "echo=64", "--depth", "4", "--connections", "2"];
    for (name, options) in [
        ("mix", &mix[..]),
        ("open", &["--rate", "2000", "--force", "--in-flight-max", "64"]),
        ("bidir", &["--bidir", "--depth", "2"]),
    ] {
        let server = Server::start(&format!("stall-{name}"));
        let files = Files::new(&format!("stall-{name}"));
        let stall_s = STALL.as_secs_f64();
        let has_stall = |report: &Value| {
            let lasts = |row: &Value| number(&row["repeats"][0]["elapsed_s"]) > stall_s * 0.9;
            report["rows"].as_array().unwrap().iter().all(lasts)
        };
        let measure = |_| {
            let options = [&TIMES, options].concat();
            run_with_stop(&server, &files, &options, Some(STALL)).with(0);
            files.report()
        };
        let report = settled(measure, has_stall);
        for row in report["rows"].as_array().unwrap() {
            let repeat = &row["repeats"][0];
            // Calls that should have been sent meanwhile, but were not, are even slower, by an
            // unknown time.
            let never_sent = &repeat["open"]["never_sent"];
            let of = if never_sent.as_u64() > Some(0) { "service" } else { "latency" };
            assert!(number(&repeat[of]["max_ns"]) > stall_s * 0.9e9, "{name}: {row}");
            assert_eq!(repeat["latency"]["max_ns"].is_null(), of == "service", "{name}: {row}");
            assert!(number(&repeat["elapsed_s"]) > stall_s * 0.9, "{name}: {row}");
            assert_eq!(repeat["lost"], 0, "{name}: {row}");
            assert_agreement(row);
        }
    }
}

/// Stop the server for longer than calls are waited for. Expect a bounded wait, exit code 1, a
/// table that names the unanswered calls, and no maximum.
#[test]
fn calls_that_are_never_answered_are_a_row_of_their_own_and_exit_code_1() {
    let _cores = cores();
    for (name, options, lost) in [
        ("closed", &["--depth", "3"][..], 3),
        ("open", &["--rate", "1000", "--force", "--in-flight-max", "5"], 5),
    ] {
        let files = Files::new(&format!("lost-{name}"));
        let measure = |attempt: u32| {
            let server = Server::start(&format!("lost-{name}-{attempt}"));
            let times = [&TIMES[..], &["--grace", "300ms", "--repeats", "2"]].concat();
            run_with_stop(&server, &files, &[&times, options].concat(), None)
        };
        let is_first = |output: &Output| {
            let repeats = files.report()["rows"][0]["repeats"].as_array().unwrap().len();
            output.status.code() == Some(1) && repeats == 1
        };
        let output = settled(measure, is_first);
        let code = output.status.code();
        let (said, error) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(code, Some(1), "{name}: {error}");
        assert!(
            error.contains("spinperf: ") && error.contains("never answered"),
            "{name}: {error}"
        );
        assert!(said.contains("calls never answered"), "{name}: {said}");
        let report = files.report();
        let row = &report["rows"][0];
        // No second repeat with a server that does not answer.
        assert_eq!(row["repeats"].as_array().unwrap().len(), 1, "{name}: {row}");
        assert_eq!(row["median"]["lost"], lost, "{name}: {row}");
        assert_eq!(row["repeats"][0]["lost"], lost, "{name}: {row}");
        assert!(row["repeats"][0]["latency"]["max_ns"].is_null(), "{name}: {row}");
        assert!(row["bounded_by"].is_null(), "{name}: {row}");
        let never_sent = row["repeats"][0]["open"]["never_sent"].as_u64().unwrap_or(0);
        assert_eq!(row["repeats"][0]["latency"]["missing"], lost + never_sent, "{name}: {row}");
        assert_agreement(row);
    }
}

/// Measure for a time without a call. Expect empty figures instead of zeroes, and exit code 1 with
/// a remedy.
#[test]
fn a_run_too_short_for_a_call_has_no_figures_and_fails() {
    let (_cores, server) = Server::alone("short");
    let files = Files::new("short");
    let options = ["--warmup", "0ms", "--rate", "10", "--duration", "20ms"];
    let output = run(&server, &files, &options);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("no call completed") && error.contains("increase --rate or --duration"),
        "{error}"
    );
    let report = files.report();
    for one in [&report["rows"][0]["repeats"][0], &report["rows"][0]["median"]] {
        assert_eq!(one["calls"], 0, "{one}");
        for key in ["p50_ns", "p99_ns", "max_ns", "mean_ns"] {
            assert!(one["latency"][key].is_null(), "{key}: {one}");
        }
        assert!(one["calls_per_second"].is_null(), "{one}");
    }
    let table = text(&output.stdout);
    let line = table.lines().find(|line| line.trim_start().starts_with("echo 64 B, 10/s")).unwrap();
    let cells: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).collect();
    assert!(cells[3..].iter().all(|cell| cell.trim() == "-"), "{table}");
}

/// Keep sixteen times as many calls in flight as there are credits. Expect latencies that belong to this
/// number (Little's law), in each direction and on each connection: no call waits uncounted.
#[test]
fn calls_that_wait_for_credits_are_in_the_latency() {
    let (_cores, server) = Server::alone("little");
    for (name, options) in [
        ("deep", &["--op", "null"][..]),
        ("connections", &["--op", "null", "--connections", "3"]),
        ("bidir", &["--op", "echo", "--bidir"]),
    ] {
        let files = Files::new(&format!("little-{name}"));
        // Calls that start in the warm-up do not count, however long they wait.
        let times = ["--warmup", "100ms", "--duration", "300ms", "--depth", "512"];
        run(&server, &files, &[&times, options].concat()).with(0);
        for row in files.report()["rows"].as_array().unwrap() {
            let calls = ["depth", "connections"].map(|key| number(&row["workload"][key]));
            let median = &row["median"];
            let mean_s = number(&median["latency"]["mean_ns"]) / 1e9;
            let in_flight = mean_s * number(&median["calls_per_second"]);
            let share = in_flight / (calls[0] * calls[1]);
            // The last calls end after the others, as those of the warm-up do, and histograms round by a thousandth. A
            // sixteenth of the calls would have the credits.
            assert!((0.2..1.01).contains(&share), "{name}: {in_flight} in flight: {median}");
        }
    }
}

/// Request rates that do not divide the time evenly, with both kinds of arrivals. Expect an
/// achieved rate that does not exceed the target, and the number of calls that the rate yields.
#[test]
fn an_open_loop_never_achieves_more_than_its_target() {
    let (_cores, server) = Server::alone("target");
    for (rate, options) in [
        (7.0, &["--duration", "500ms"][..]),
        (333.0, &["--duration", "301ms"]),
        (2000.0, &["--duration", "250ms", "--arrivals", "poisson"]),
        (2000.0, &["--duration", "60s", "--calls", "100", "--arrivals", "poisson"]),
        (100.0, &["--duration", "60s", "--calls", "20"]),
    ] {
        let files = Files::new("target");
        let asked = rate.to_string();
        let asked = ["--rate", &asked, "--force", "--warmup", "33ms"];
        run(&server, &files, &[&asked, options].concat()).with(0);
        let report = files.report();
        let row = &report["rows"][0];
        assert_eq!(row["repeats"][0]["open"]["target_per_second"], rate);
        assert_agreement(row);
    }
}

/// Interrupt runs of one workload and of many. Expect the figures so far, marked as interrupted,
/// and the exit code of an interrupted program.
#[test]
fn an_interrupted_run_prints_what_was_measured() {
    let _cores = cores();
    for (name, options, signal, code) in [
        ("closed", &["--depth", "4"][..], Signal::INT, 130),
        ("open", &["--rate", "500"], Signal::TERM, 143),
        ("bidir", &["--bidir", "--depth", "2"], Signal::INT, 130),
        ("sweep", &["--depth", "1,2", "--repeats", "9"], Signal::INT, 130),
    ] {
        let server = Server::start(&format!("interrupt-{name}"));
        let files = Files::new(&format!("interrupt-{name}"));
        let times = ["--warmup", "0ms", "--duration", "600s"];
        let mut child = start(&server, &files, &[&times, options].concat());
        assert!(wait_for_calls(Pid::from_child(&server.child), &mut child), "{name} has ended");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ended = wait_at_most(&mut child, Duration::from_secs(60));
        let output = child.wait_with_output().unwrap();
        assert_eq!(ended, Some(code), "{name}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("spinperf: interrupted by SIG"), "{name}");
        assert!(text(&output.stdout).contains("INTERRUPTED"), "{name}: {}", text(&output.stdout));
        let report = files.report();
        assert_eq!(report["interrupted"], true, "{name}");
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), if name == "bidir" { 2 } else { 1 }, "{name}: {rows:?}");
        for row in rows {
            assert!(number(&row["median"]["calls"]) > 0.0, "{name}: {row}");
            assert!(number(&row["median"]["elapsed_s"]) < 500.0, "{name}: {row}");
            assert_agreement(row);
        }
    }
}

/// Send the document to standard output. Expect nothing else there, and the table on standard error. Name one file for
/// it and a capture: expect an error.
#[test]
fn a_minus_is_standard_output_for_the_document() {
    let (_cores, server) = Server::alone("minus");
    let plain = ["--calls", "300", "--warmup", "0ms"];
    let run = |options: &[&str]| server.client(&plain).args(options).output().unwrap();
    let json = run(&["--json", "-"]);
    assert!(json.status.success(), "{}", text(&json.stderr));
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_is_report(&report);
    assert!(text(&json.stderr).contains("calls/s"), "{}", text(&json.stderr));
    assert!(!std::path::Path::new("-").exists());
    let file = std::env::temp_dir().join(format!("spinperf-one-file-{}", std::process::id()));
    let (name, other_name) = (file.to_str().unwrap(), format!("/tmp/../{}", file.display()));
    let [_, error] = run(&["--json", name, "--capture", &other_name]).with(2);
    assert!(error.contains("are the same file"), "{error}");
    assert!(!file.exists(), "nothing is written");
}
