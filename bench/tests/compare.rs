//! `spinperf compare`: what was disturbed, lost calls, and the exit codes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Folder, Server, report_in, schema, spinperf};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const COMPARISON: &str = include_str!("../schema/spinperf-compare-1.schema.json");

/// A file with a report of five repeats with this latency, whose server waited for this part of the time, and which lost
/// so many calls each.
fn report(folder: &Folder, name: &str, p99_ns: f64, waited_percent: f64, lost: u64) -> String {
    let repeat = json!({
        "calls_per_second": 1e9 / p99_ns, "bytes_per_second": 0.0,
        "latency": {"samples": 5000, "p50_ns": p99_ns, "p99_ns": p99_ns}, "lost": lost,
        "server": {"waited_percent": waited_percent}, "placement": "near", "ratios": [],
    });
    let report = json!({
        "schema": "spinperf/3", "environment": {},
        "rows": [{"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": vec![repeat; 5]}],
    });
    let file = folder.file(name);
    fs::write(&file, report.to_string()).unwrap();
    file
}

/// Expect lost calls to be a regression, not a commit that a bisection skips.
#[test]
fn exit_codes_tell_a_regression_from_disturbed_repeats() {
    let folder = Folder::new("exit-codes");
    let a = report(&folder, "a", 300.0, 0.0, 0);
    let b = report(&folder, "b", 360.0, 0.4, 0);
    let c = report(&folder, "c", 360.0, 34.0, 0);
    let lossy = report(&folder, "lossy", 300.0, 0.0, 3);
    let told = [(&a, 0, "noise"), (&b, 1, "WORSE"), (&c, 125, "DISTURBED"), (&lossy, 1, "never")];
    for (other, code, told) in told {
        let run = ["compare", &a, other, "--fail-if", "p99>+10%"];
        let [table, error] = spinperf(&run).with(code);
        assert!(table.contains(told) && table.contains("5 repeats"), "{table}");
        let last = error.lines().last().unwrap_or_default();
        let is_told = last.starts_with("spinperf: ") && last.contains("p99>+10%");
        assert!(code == 0 || is_told, "{error}");
    }
    // Without a condition there is nothing to judge.
    let [said, _] = spinperf(&["compare", &a, &c, &b, "--json"]).with(0);
    let document: Value = serde_json::from_str(&said).unwrap();
    for one in document["comparisons"].as_array().unwrap() {
        assert_eq!(schema::violations(one, COMPARISON), [""; 0]);
    }
    assert_eq!(document["comparisons"][0]["rows"][0]["validity"]["judged"], false);
}

/// Compare a run with itself. Expect the time that the threads of both ends waited, and the placement.
#[test]
fn a_report_of_two_processes_is_compared_with_itself() {
    let (_cores, server) = Server::alone("compared");
    let (_folder, json) = Folder::with_file("compared", "one.json");
    server.client(&["--calls", "200", "--repeats", "2", "--json", &json]).output().unwrap().with(0);
    let [said, _] = spinperf(&["compare", &json, &json, "--json"]).with(0);
    let document: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(schema::violations(&document, COMPARISON), [""; 0]);
    assert_eq!([&document["before"]["repeats"], &document["after"]["repeats"]], [2, 2]);
    assert!(!document["rows"][0]["metrics"].as_array().unwrap().is_empty(), "{document}");
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
