//! `spinperf compare --run`: commands by turns, what was disturbed, and the exit codes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{
    Ended, Folder, Server, command, cores, report_in, schema, spinperf, text, wait_at_most,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const COMPARISON: &str = include_str!("../schema/spinperf-compare-1.schema.json");

/// A command that prints a report of one repeat with this latency, whose server waited for this part of the time, and
/// adds its name to a log.
fn print(folder: &Folder, name: &str, p99_ns: f64, waited_percent: f64) -> String {
    let repeat = json!({
        "calls_per_second": 1e9 / p99_ns, "bytes_per_second": 0.0,
        "latency": {"samples": 5000, "p50_ns": p99_ns, "p99_ns": p99_ns},
        "server": {"waited_percent": waited_percent}, "placement": "near", "ratios": [],
    });
    let report = json!({
        "schema": "spinperf/3", "environment": {},
        "rows": [{"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": [repeat]}],
    });
    let (file, log) = (folder.file(name), folder.file("log"));
    fs::write(&file, report.to_string()).unwrap();
    format!("printf {name} >> {log}; cat {file} # --json")
}

#[test]
fn commands_run_by_turns_and_each_run_is_a_repeat() {
    let folder = Folder::new("turns");
    let [a, b, c] = [("a", 300.0, 0.0), ("b", 360.0, 0.4), ("c", 360.0, 34.0)]
        .map(|(name, p99_ns, waited)| print(&folder, name, p99_ns, waited));
    for (other, code, told) in [(&a, 0, "noise"), (&b, 1, "WORSE"), (&c, 125, "DISTURBED")] {
        let run = ["compare", "--run", &a, other, "--repeats", "5", "--fail-if", "p99>+10%"];
        let [table, error] = spinperf(&run).with(code);
        assert!(table.contains(told) && table.contains("5 repeats"), "{table}");
        let last = error.lines().last().unwrap_or_default();
        assert!(
            code == 0 || last.starts_with("spinperf: ") && last.contains("p99>+10%"),
            "{error}"
        );
    }
    assert_eq!(
        fs::read_to_string(folder.file("log")).unwrap(),
        "aaaaaaaaaa".to_owned() + "abbaabbaab" + "accaaccaac"
    );
    // Without a condition there is nothing to judge.
    let [said, _] = spinperf(&["compare", "--run", &a, &c, &b, "--runs", "1", "--json"]).with(0);
    let document: Value = serde_json::from_str(&said).unwrap();
    for one in document["comparisons"].as_array().unwrap() {
        assert_eq!(schema::violations(one, COMPARISON), [""; 0]);
    }
    assert_eq!(document["comparisons"][0]["rows"][0]["validity"]["judged"], false);
}

/// Compare a server with itself. Expect a repeat for each run on both sides, with the time that the threads waited.
#[test]
fn two_processes_are_compared_with_themselves() {
    let _cores = cores();
    let server = Server::start("by-turns");
    let folder = Folder::new("by-turns");
    let (program, address) = (env!("CARGO_BIN_EXE_spinperf"), &server.address);
    let run = format!(
        "{program} run --address {address} --profile dev-vm --warmup 0ms --calls 200 --duration 20s"
    );
    let [said, _] = spinperf(&["compare", "--run", &run, &run, "--repeats", "2", "--json"]).with(0);
    let document: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(schema::violations(&document, COMPARISON), [""; 0]);
    assert_eq!([&document["before"]["repeats"], &document["after"]["repeats"]], [2, 2]);
    assert!(!document["rows"][0]["metrics"].as_array().unwrap().is_empty(), "{document}");
    let json = folder.file("one.json");
    server.client(&["--calls", "200", "--json", &json]).output().unwrap().with(0);
    let report = report_in(&json);
    let repeat = &report["rows"][0]["repeats"][0];
    if Path::new("/proc/self/schedstat").exists() {
        for side in ["client", "server"] {
            assert!(repeat[side]["waited_percent"].as_f64().is_some(), "{side}: {repeat}");
        }
    }
    // Both ends may be on one CPU, where no placement is known.
    if repeat["client"]["cpu"] != repeat["server"]["cpu"] {
        assert!(repeat["placement"].is_string(), "{repeat}");
    }
}

/// The second command reports lost calls, and ends with the status that spinperf has then. Expect a regression, not a
/// commit that a bisection skips.
#[test]
fn a_report_of_a_run_that_failed_counts() {
    let folder = Folder::new("turns-lost");
    let [good, lossy] = ["good", "lossy"].map(|name| print(&folder, name, 300.0, 0.0));
    let file = folder.file("lossy");
    let mut report: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    report["rows"][0]["repeats"][0]["lost"] = json!(3);
    fs::write(&file, report.to_string()).unwrap();
    for (status, code) in [("exit 1", 1), ("exit 3", 125)] {
        let fails = format!("{}; {status} # --json", lossy.trim_end_matches(" # --json"));
        let run = ["compare", "--run", &good, &fails, "--repeats", "2", "--fail-if", "p99>+10%"];
        let [_, error] = spinperf(&run).with(code);
        assert!(error.contains("exit status"), "{error}");
    }
}

/// Expect it after the first turn.
#[test]
fn a_condition_about_nothing_ends_the_runs_early() {
    let folder = Folder::new("turns-nothing");
    let [a, b] = ["a", "b"].map(|name| print(&folder, name, 300.0, 0.0));
    spinperf(&["compare", "--run", &a, &b, "--fail-if", "p99>+10% in read"]).with(2);
    assert_eq!(fs::read_to_string(folder.file("log")).unwrap(), "ab");
}

fn is_gone(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.rsplit_once(") ").unwrap().1.starts_with('Z'))
}

fn assert_gone(process: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_gone(process) {
        assert!(Instant::now() < deadline, "{process} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_command_that_fails_or_prints_no_report_is_an_error_and_leaves_nothing_behind() {
    let folder = Folder::new("turns-fail");
    let good = print(&folder, "good", 300.0, 0.0);
    let child = folder.file("child");
    let fails = format!("sleep 1000 & echo $! > {child}; echo out of paper >&2; exit 7 # --json");
    for (wrong, code, told) in [
        (&*fails, 125, "exit status: 7): out of paper"),
        ("kill -9 $$ # --json", 125, "signal: 9"),
        ("echo hello # --json", 125, "--json -"),
        ("true", 125, "printed no report"),
        ("echo '{\"schema\": \"spinperf/1\"}' # --json", 125, "spinperf/3"),
        ("nonexistent-program", 125, "nonexistent-program"),
    ] {
        let output = spinperf(&["compare", "--run", &good, wrong]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{wrong}: {error}");
        let last = error.lines().last().unwrap_or_default();
        assert!(last.starts_with("spinperf: ") && last.contains(told), "{wrong}: {error}");
        assert!(output.stdout.is_empty(), "{wrong}");
    }
    assert_gone(fs::read_to_string(&child).unwrap().trim());
    for (arguments, told) in [
        (&["compare", "--run", &good][..], "--run"),
        (&["compare", "a.json", "b.json", "--repeats", "5"], "--repeats"),
        (&["compare"], "<BEFORE>"),
    ] {
        let [_, error] = spinperf(arguments).with(2);
        assert!(error.contains(told) && error.lines().count() == 1, "{arguments:?}: {error}");
    }
}

#[test]
fn a_signal_ends_the_commands_too() {
    let folder = Folder::new("turns-signal");
    let file = folder.file("child");
    let sleeps = format!("sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait # --json");
    let mut running = command(&["compare", "--run", &sleeps, &sleeps])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !Path::new(&file).exists() {
        assert!(Instant::now() < deadline, "the command has not started");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(wait_at_most(&mut running, Duration::from_secs(60)), Some(130));
    assert_gone(fs::read_to_string(&file).unwrap().trim());
}
