//! Outputs of a run: documents that conform to their schemas, tables, and the comparison with a baseline.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Folder, Server, command, report_in, schema, spinperf, text};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Output;

const COMPARISON: &str = include_str!("../schema/spinperf-compare-1.schema.json");

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn run(server: &Server, options: &[&str]) -> Output {
    let limits = ["--warmup", "0ms", "--duration", "20s", "--calls", "400"];
    server.client(&limits).args(options).output().unwrap()
}

#[track_caller]
fn assert_is_comparison(document: &Value) {
    assert_eq!(schema::violations(document, COMPARISON), [""; 0]);
}

#[test]
fn a_document_has_every_repeat_and_is_valid() {
    let (_cores, server) = Server::alone("output");
    let (_folder, json) = Folder::with_file("files", "r.json");
    run(&server, &["--repeats", "2", "--depth", "2", "--json", &json]).with(0);
    let report = report_in(&json);
    assert_eq!(report["rows"][0]["repeats"].as_array().unwrap().len(), 2);
}

/// No server listens at the address. Expect no new file, and an existing one unchanged.
#[test]
fn a_run_that_fails_leaves_no_empty_document() {
    let folder = Folder::new("failed");
    let (new, old) = (folder.file("new.json"), folder.file("old.json"));
    fs::write(&old, "kept").unwrap();
    let absent = format!("shm:spinperf-absent-{}", std::process::id());
    for file in [&new, &old] {
        spinperf(&["run", "--address", &absent, "--json", file]).with(1);
    }
    assert!(!Path::new(&new).exists());
    assert_eq!(read(&old), "kept");
}

/// Runs spinperf until it has figures: a machine that stands still during all of a measured time has none for that row.
/// Its heap does without huge pages, of which the kernel gives as many as it has at that moment.
#[track_caller]
fn measured(arguments: &[&str]) {
    let mut spinperf = command(arguments);
    spinperf.env("MIMALLOC_ALLOW_THP", "0");
    let mut said = String::new();
    let is_measured = (0..10).any(|_| {
        let output = spinperf.output().unwrap();
        said += &text(&output.stderr);
        output.status.success()
    });
    assert!(is_measured, "{said}");
}

/// Make many idle connections. Expect a note of their time and memory.
#[test]
fn idle_connections_have_a_time_and_memory() {
    let (_cores, server) = Server::alone("idle");
    let (_folder, json) = Folder::with_file("idle", "r.json");
    let [said, _] = run(&server, &["--idle-connections", "30", "--json", &json]).with(0);
    let note = said.lines().find(|line| line.contains("31 connections were made in")).unwrap();
    assert!(note.contains("KiB of this process"), "{note}");
    assert!(report_in(&json)["rows"][0]["name"].as_str().unwrap().contains("30 idle"), "{said}");
}

/// Leave room for few idle connections. Expect the job to measure with as many.
#[test]
fn a_job_with_little_room_has_fewer_idle_connections() {
    let _cores = common::two_cores();
    let (_folder, json) = Folder::with_file("no-room", "r.json");
    let how = ["--profile", "dev-vm", "--repeats", "1", "--duration", "50ms"];
    measured(&[&how[..], &["--set", "limits.conns=40", "--json", &json]].concat());
    let report = report_in(&json);
    let mut rows = report["rows"].as_array().unwrap().iter();
    assert!(rows.any(|row| row["name"].as_str().unwrap().contains("38 idle")), "{report}");
}

/// A validator that finds no errors must be able to find some.
#[test]
fn a_document_that_is_not_as_described_is_found_out() {
    let schema = json!({
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"$ref": "#/$defs/list"}, "b": {"enum": ["x"]}},
        "$defs": {"list": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2}},
    })
    .to_string();
    let valid = json!({"a": [1, 2], "b": "x"});
    assert!(schema::violations(&valid, &schema).is_empty());
    for wrong in [
        json!({}),
        json!([]),
        json!({"a": 1}),
        json!({"a": [1, 2, 3]}),
        json!({"a": [-1]}),
        json!({"a": [0.5]}),
        json!({"a": [], "b": "y"}),
        json!({"a": [], "c": 1}),
    ] {
        assert!(!schema::violations(&wrong, &schema).is_empty(), "{wrong}");
    }
}

/// Five repeats of a row with these latencies, as a valid report of this program.
fn synthetic(folder: &Folder, name: &str, p99_ns: [f64; 5]) -> String {
    let repeat = |ns: f64| {
        json!({
            "calls_per_second": 1e9 / ns, "bytes_per_second": 0.0,
            "latency": {"samples": 5000, "p50_ns": ns, "p90_ns": ns, "p99_ns": ns, "p99_9_ns": ns},
            "ratios": [],
        })
    };
    let report = json!({
        "schema": "spinperf/3",
        "environment": {"revision": name, "started_unix_s": 1_000_000_000, "kernel": name},
        "rows": [{"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": p99_ns.map(repeat)}],
    });
    let path = folder.file(name);
    fs::write(&path, report.to_string()).unwrap();
    path
}

#[test]
fn a_comparison_tells_noise_from_a_difference_and_says_so_by_its_exit_code() {
    let folder = Folder::new("compare");
    let steady = synthetic(&folder, "a.json", [300.0, 301.0, 302.0, 303.0, 304.0]);
    let noisy = synthetic(&folder, "b.json", [260.0, 280.0, 345.0, 400.0, 500.0]);
    let slower = synthetic(&folder, "c.json", [350.0, 351.0, 352.0, 353.0, 354.0]);
    for (after, code, verdict) in [(&noisy, 0, "noise"), (&slower, 1, "WORSE")] {
        let [table, _] = spinperf(&["compare", &steady, after, "--fail-if", "p99>+10%"]).with(code);
        assert!(table.contains(verdict) && table.contains("kernel"), "{table}");
    }
    let output = spinperf(&["compare", &steady, &slower, "--fail-if", "p99>+10% in echo"]);
    let error = text(&output.stderr);
    assert_eq!(error, "spinperf: p99>+10% in echo: echo 64 B p99 +16.6 %\n");
}

#[test]
fn a_comparison_and_several_of_them_are_valid_documents_too() {
    let folder = Folder::new("compare-set");
    let one = synthetic(&folder, "a.json", [300.0, 301.0, 302.0, 303.0, 304.0]);
    let two = synthetic(&folder, "b.json", [350.0, 351.0, 352.0, 353.0, 354.0]);
    let file = folder.file("compared.json");
    let json = format!("--json={file}");
    let output = spinperf(&["compare", &one, &one, &json, "--fail-if", "p99>+1%"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("99% interval"), "{}", text(&output.stdout));
    let comparison: Value = serde_json::from_str(&read(&file)).unwrap();
    assert_is_comparison(&comparison);
    assert_eq!(comparison["rows"][0]["metrics"][0]["verdict"], "noise");
    assert_eq!(comparison["conditions"][0]["met_by"], json!([]));
    let output = spinperf(&["compare", &one, &one, &two, "--json", "--fail-if", "p99>+10%"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "spinperf-compare-set/1");
    let comparisons = document["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2);
    comparisons.iter().for_each(assert_is_comparison);
    assert!(text(&output.stderr).contains("b.json: p99>+10%: echo 64 B p99 +16.6 %"));
    let table = text(&output.stderr);
    assert!(table.contains("== 3 compared with 1") && table.contains("WORSE"), "{table}");
}

#[test]
fn what_cannot_be_compared_is_one_line_and_exit_code_2() {
    let folder = Folder::new("compare-wrong");
    let good = synthetic(&folder, "a.json", [1.0; 5]);
    let (other, broken, none) = (folder.file("b"), folder.file("c"), folder.file("d"));
    let wrong = folder.file("e");
    fs::write(&wrong, read(&good).replace("\"latency\"", "\"lost\": \"3\", \"latency\"")).unwrap();
    fs::write(&other, r#"{"schema": "spinperf/1"}"#).unwrap();
    fs::write(&broken, "not JSON").unwrap();
    for (arguments, told) in [
        (vec!["compare", &good], "<AFTER>..."),
        (vec!["compare", &good, &none], "No such file"),
        (vec!["compare", &good, &broken], "not JSON"),
        (vec!["compare", &good, &other], "spinperf/3"),
        (vec!["compare", &good, &wrong], "/lost: invalid type"),
        (vec!["compare", &good, &good, "--fail-if", "p98>+1%"], "p99.9"),
        (vec!["compare", &good, &good, "--fail-if", "rate<5%"], "a signed change"),
        (vec!["compare", &good, &good, "--fail-if", "p99>+1% in read"], "applies to nothing"),
        (vec!["--fail-if", "p99>+1%"], "--baseline"),
        (vec!["--baseline", &none], "No such file"),
    ] {
        let [_, error] = spinperf(&arguments).with(2);
        assert_eq!(error.trim_end().lines().count(), 1, "{arguments:?}: {error}");
        assert!(error.contains(told), "{arguments:?}: {error}");
    }
}

/// The second run is compared with the first. Every result has a rate less than a hundred times as
/// high, unless the difference is noise: so the condition is about something impossible. Expect no verdict where other
/// programs have disturbed a repeat.
#[test]
fn a_run_is_judged_by_its_baseline() {
    let (_cores, server) = Server::alone("baseline");
    let (_folder, json) = Folder::with_file("baseline", "r.json");
    run(&server, &["--repeats", "2", "--json", &json]).with(0);
    let repeats = ["--repeats", "2", "--baseline", &json, "--fail-if"];
    let good = run(&server, &[&repeats[..], &["rate<-100%"]].concat());
    let is_judged = |output: &Output| !text(&output.stdout).contains("DISTURBED");
    let code = if is_judged(&good) { 0 } else { 125 };
    let [table, _] = good.with(code);
    assert!(code == 125 || table.contains("cannot tell"), "{table}");
    let bad = run(&server, &[&repeats[..], &["rate<+10000%"]].concat());
    let code = if is_judged(&bad) { 1 } else { 125 };
    let [_, error] = bad.with(code);
    assert!(error.contains("rate<+10000%"), "{error}");
}
