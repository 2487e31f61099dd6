//! Client and server as two processes, with every byte verified at both ends.

#![allow(clippy::unwrap_used, reason = "a test ends here")]

mod common;

use common::{
    Ended, Folder, Server, command, cores, report_in, spinperf, text, two_cores, wait_at_most,
    wait_for_calls,
};
use rustix::process::Pid;
use serde_json::Value;
use spinrpc::config::Host;
use spinrpc::{AcceptStatus, Call, Engine, Procedure, Program, Service, Version};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

const CALLS: u64 = 300;

/// Runs a verified workload limited by its number of calls, and returns its row.
fn measured(server: &Server, name: &str, options: &[&str]) -> Value {
    rows(server, name, options)[0].clone()
}

/// All rows of such a run.
fn rows(server: &Server, name: &str, options: &[&str]) -> Value {
    report(&server.address, name, options)["rows"].clone()
}

/// The whole report of such a run, with any server.
fn report(address: &str, name: &str, options: &[&str]) -> Value {
    let (_folder, json) = Folder::with_file(name, "r.json");
    let calls = CALLS.to_string();
    let mut arguments = vec!["run", "--address", address, "--profile", "dev-vm"];
    arguments.extend(["--verify", "full", "--warmup", "0ms", "--duration", "20s"]);
    arguments.extend(["--calls", &calls, "--json", &json]);
    arguments.extend(options);
    spinperf(&arguments).with(0);
    report_in(&json)
}

/// Set keys at both ends, or at one. Expect the common version, and the report to name it and the
/// key.
#[test]
fn keys_that_are_set_decide_about_the_version() {
    let _cores = cores();
    for (serves, calls, expected) in [("1", "auto", 1), ("2", "auto", 2), ("auto", "2", 2)] {
        let name = format!("version-{serves}-{calls}");
        let [serves, calls] = [serves, calls].map(|version| format!("rpc.version={version}"));
        let server = Server::start_with(&name, &["--set", &serves]);
        let report = report(&server.address, "set", &["--op", "null", "--set", &calls]);
        let environment = &report["environment"];
        assert_eq!(environment["rpc_version"], expected, "{serves} {calls}");
        assert_eq!(environment["profile"], format!("dev-vm {calls}"));
    }
}

/// Any program has a procedure that does nothing (RFC 5531 section 12.1).
struct Nothing;

impl Service for Nothing {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            Procedure(0) => call.reply(|_| {}),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

/// Expect calls of NULL and no other procedure, and no figures of a server that cannot be asked.
#[test]
fn null_calls_go_to_any_program() {
    let _cores = cores();
    let config = spinrpc_tuning::load("dev-vm", &Host::current()).unwrap().config().clone();
    let engine = Engine::new(config).unwrap();
    engine.serve(Program(100_003), Version(3), |_| Nothing).unwrap();
    let address = format!("shm:spinperf-test-other-{}", std::process::id());
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    let other = ["--op", "null", "--depth", "4", "--program", "100003", "--version", "3"];
    let report = report(&address, "other", &other);
    engine.shutdown();
    running.join().unwrap();
    let row = &report["rows"][0];
    assert_eq!(row["median"]["calls"], CALLS, "{row}");
    assert!(row["repeats"][0]["server"].is_null(), "{row}");
    assert!(!row["bounded_by"]["evidence"].to_string().contains("server"), "{row}");
    assert!(report["notes"].to_string().contains("program 100003 version 3"), "{report}");
}

/// Expect a row for each direction, with every byte of both verified at both ends.
#[test]
fn both_directions_of_a_connection_are_measured_at_once() {
    let (_cores, server) = Server::alone("bidir");
    for (name, options) in [
        ("null", &["--op", "null", "--depth", "32"][..]),
        ("echo", &["--op", "echo", "--size", "61", "--reply-size", "7", "--depth", "8"]),
        ("read", &["--op", "read", "--size", "256k"]),
        ("write", &["--op", "write", "--size", "256k", "--depth", "2", "--repeats", "2"]),
    ] {
        let rows = rows(&server, name, &[&["--bidir"], options].concat());
        assert_eq!(rows.as_array().unwrap().len(), 2, "{name}: {rows}");
        for (row, reverse) in rows.as_array().unwrap().iter().zip([false, true]) {
            assert_eq!(row["workload"]["reverse"], reverse, "{name}: {row}");
            let repeats = row["repeats"].as_array().unwrap().len() as u64;
            assert_eq!(row["median"]["calls"], repeats * CALLS, "{name}: {row}");
            assert!(row["median"]["calls_per_second"].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
    }
}

/// Expect one line with the reason of the server.
#[test]
fn a_server_without_calls_in_reverse_is_an_error() {
    let _cores = cores();
    let server = Server::start_with("forward-only", &["--no-reverse"]);
    let output = server.client(&["--bidir"]).output().unwrap();
    let said = text(&output.stderr);
    let told = "the server rejects it: its profile reserves no memory for calls in reverse";
    assert!(!output.status.success() && said.contains(told), "{said}");
}

#[test]
fn every_operation_brings_every_byte_back() {
    let (_cores, server) = Server::alone("ops");
    for (name, options) in [
        ("null", &["--op", "null"][..]),
        ("echo", &["--op", "echo", "--size", "64"]),
        ("odd", &["--op", "echo", "--size", "61", "--reply-size", "7"]),
        ("grow", &["--op", "echo", "--size", "8", "--reply-size", "20000"]),
        ("long", &["--op", "echo", "--size", "64k"]),
        ("read", &["--op", "read", "--size", "1MiB"]),
        ("small-read", &["--op", "read", "--size", "100"]),
        ("write", &["--op", "write", "--size", "1MiB"]),
        ("small-write", &["--op", "write", "--size", "101"]),
        ("deep", &["--op", "echo", "--size", "512", "--depth", "32", "--connections", "3"]),
        ("stalled", &["--op", "null", "--depth", "500"]),
        ("idle", &["--op", "echo", "--idle-connections", "20"]),
        ("lent-read", &["--op", "read", "--size", "1MiB", "--slabs"]),
    ] {
        assert_measured(&server, name, options);
    }
    drop(server);
    let server = Server::start_with("lends", &["--slabs"]);
    for (name, op) in [("slabs-read", "read"), ("slabs-write", "write")] {
        assert_measured(&server, name, &["--op", op, "--size", "1MiB", "--depth", "2", "--slabs"]);
    }
}

fn assert_measured(server: &Server, name: &str, options: &[&str]) {
    let row = measured(server, name, options);
    assert_eq!(row["median"]["calls"], CALLS, "{name}: {row}");
    assert_eq!(row["median"]["latency"]["samples"], CALLS, "{name}: {row}");
    assert!(row["median"]["latency"]["p50_ns"].as_f64().unwrap() > 0.0, "{name}: {row}");
}

/// Two threads of the client call through a handle. Expect an answer to every call.
#[test]
fn calls_from_other_threads_are_answered() {
    let (_cores, server) = Server::alone("threads");
    let calls = ["--op", "null", "--threads", "2", "--depth", "4", "--duration", "300ms"];
    let [said, _] = server.client(&calls).args(["--json", "-"]).output().unwrap().with(0);
    let report: Value = serde_json::from_str(&said).unwrap();
    let median = &report["rows"][0]["median"];
    assert!(median["calls"].as_u64().unwrap() > 0, "{median}");
    assert_eq!(median["lost"], 0, "{median}");
}

/// Request an echo that needs more memory than its connection will ever have. Expect an error that
/// names the key to raise, and no endless wait.
#[test]
fn a_call_for_which_there_is_never_memory_is_an_error() {
    let (_cores, server) = Server::alone("starved");
    let (_folder, profile) = Folder::with_file("starved", "small.toml");
    let small =
        "schema = 1\ninclude = [\"dev-vm\"]\ndescription = \"small\"\n[mem]\nconn_arena_mib = 2\n";
    fs::write(&profile, small).unwrap();
    let size = ["--op", "echo", "--size", "1MiB"];
    let address = ["run", "--address", &server.address, "--profile", &profile];
    let output = spinperf(&[&address[..], &size[..]].concat());
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("raise mem.conn_arena_mib"), "{said}");
}

/// Expect a capture of each end that begins with pcapng's section header, and its summary in the
/// report.
#[test]
fn both_ends_can_be_captured() {
    let _cores = cores();
    let folder = Folder::new("captured");
    let paths = ["server", "client"].map(|end| folder.file(end));
    let [served, run] = paths.each_ref().map(String::as_str);
    let address = format!("shm:spinperf-test-captured-{}", std::process::id());
    let both = ["--address", &address, "--profile", "dev-vm", "--capture"];
    let mut server = command(&[&["serve", "--attached"], &both[..], &[served]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let calls = ["--calls", "10", "--warmup", "0ms"];
    let output = spinperf(&[&["run"], &both[..], &[run], &calls].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    drop(server.stdin.take());
    let server = server.wait_with_output().unwrap();
    for (said, path) in [server.stderr, output.stdout].iter().map(|said| text(said)).zip(paths) {
        assert!(said.contains("captured ") && said.contains(", 0 dropped"), "{said}");
        let capture = fs::read(&path).unwrap();
        assert!(capture.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && capture.len() > 2000, "{path:?}");
    }
}

#[test]
fn a_capture_that_cannot_be_written_is_an_error() {
    let [_, error] =
        spinperf(&["run", "--address", "shm:absent", "--capture", "/nowhere/x.pcapng"]).with(1);
    assert!(error.contains("opening /nowhere/x.pcapng"), "{error}");
}

/// The client detects a killed server long before the end of the measured time, and reports it.
#[test]
fn a_killed_server_ends_the_run_with_exit_code_1() {
    let (_cores, mut server) = Server::alone("killed");
    let mut client = server
        .client(&["--op", "echo", "--depth", "4", "--warmup", "0ms", "--duration", "600s"])
        .spawn()
        .unwrap();
    assert!(wait_for_calls(Pid::from_child(&server.child), &mut client));
    server.child.kill().unwrap();
    assert_eq!(wait_at_most(&mut client, Duration::from_secs(60)), Some(1));
}

#[test]
fn an_attached_server_ends_with_its_standard_input() {
    let (_cores, mut server) = Server::alone("attached");
    drop(server.child.stdin.take());
    assert_eq!(wait_at_most(&mut server.child, Duration::from_secs(60)), Some(0));
}

#[test]
fn the_whole_job_verifies_measures_and_judges() {
    let _cores = two_cores();
    let short = ["--profile", "dev-vm", "--repeats", "1", "--duration", "300ms"];
    let [table, _] = spinperf(&[&short[..], &["--goals"]].concat()).with(0);
    for part in [
        "limits of this machine",
        "echo 64 B",
        "null, depth 32",
        "read 1 MiB",
        "write 1 MiB",
        "x cache-line RTT",
        "x memcpy",
        "read 1 MiB, depth 2, slabs",
        "write 1 MiB, depth 2, slabs",
        "null, by a handle, cores sleep",
        "null, depth 32, by handles of 4 threads, ends on one CPU",
        "x cache-line RTT, added",
        "targets",
        "every byte was verified at both ends",
    ] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
}
