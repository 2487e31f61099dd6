//! `spintune doctor` and `spintune record`, run as a user does.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;
#[path = "common/program.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod program;
#[path = "../../bench/tests/common/schema.rs"]
mod schema;

use common::{Folder, record_path};
use program::spintune;
use serde_json::Value;

const REPORT: &str = include_str!("../schema/spintune-doctor-1.schema.json");

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Runs doctor on a record; returns its status and output.
fn doctor(record: &str, arguments: &[&str]) -> (i32, String) {
    let root = record_path(record);
    let output = spintune(&[&["doctor", "--root", &root], arguments].concat());
    assert!(output.stderr.is_empty(), "{}", text(output.stderr));
    (output.status.code().unwrap(), text(output.stdout))
}

/// A report that is as its schema says.
fn parsed(answer: &[u8]) -> Value {
    let report: Value = serde_json::from_slice(answer).unwrap();
    assert_eq!(schema::violations(&report, REPORT), [""; 0]);
    report
}

fn finding(report: &Value, id: &str) -> Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap().clone()
}

#[test]
fn the_status_says_whether_something_fails() {
    let status = |record, arguments: &[&str]| doctor(record, arguments).0;
    assert_eq!(status("container-quota", &["--profile", "latency"]), 1);
    assert_eq!(status("laptop-8-smt", &["--profile", "latency"]), 0, "warnings only");
    assert_eq!(status("laptop-8-smt", &["--profile", "latency", "--strict"]), 1);
    assert_eq!(status("server-2s-mlx5-right", &["--profile", "verbs-mlx5", "--strict"]), 0);
    let sets = ["--set", "mem.lock=require"];
    assert_eq!(status("laptop-8-smt", &sets), 1, "values are laid over the profile");
}

#[test]
fn programs_get_json() {
    let (status, answer) = doctor("server-2s-mlx5-wrong", &["--profile", "verbs-mlx5", "--json"]);
    let report = parsed(answer.as_bytes());
    assert_eq!((status, &report["schema"], &report["verdict"]), (1, &1.into(), &"fail".into()));
    assert_eq!((&report["host"], &report["tried"]), (&"node7".into(), &false.into()));
    let checks = report["checks"].as_array().unwrap();
    let counts = report["counts"].as_object().unwrap();
    let counted: u64 = counts.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(counted, checks.len() as u64);
    let pcie = finding(&report, "rdma.pcie");
    assert_eq!((&pcie["verdict"], &pcie["group"]), (&"warn".into(), &"RDMA".into()));
    assert_eq!(pcie["remedy"]["commands"][0], "lspci -vv -s 0000:98:00.0 | grep Lnk");
    assert!(checks.iter().all(|check| check["evidence"].is_array() && check["title"].is_string()));
}

#[test]
fn this_host_is_tried_out() {
    let output = spintune(&["doctor", "--json", "--profile", "dev-vm"]);
    let report = parsed(&output.stdout);
    let fails = report["counts"]["fail"].as_u64().unwrap() > 0;
    assert_eq!(output.status.code(), Some(i32::from(fails)));
    assert_eq!(report["tried"], true);
    let check = |id| finding(&report, id);
    for id in ["process.memfd", "process.pidfd", "process.descriptors"] {
        assert_eq!(check(id)["verdict"], "ok", "{id}");
    }
    let jitter = check("probe.jitter");
    assert_ne!(jitter["verdict"], "unknown");
    assert!(jitter["evidence"][0]["value"].as_str().unwrap().contains(" lost in total"));
    assert!(check("build.release")["says"].as_str().unwrap().contains("allocator mimalloc"));
    let progress = text(output.stderr);
    assert!(progress.lines().all(|line| line.starts_with("spintune: ")), "{progress}");
}

#[test]
fn passively_it_is_read_only() {
    let output = spintune(&["doctor", "--passive", "--json"]);
    assert_eq!(parsed(&output.stdout)["tried"], false);
    assert!(output.stderr.is_empty());
}

#[test]
fn a_record_of_this_host_can_be_looked_at() {
    let folder = Folder::new("record_this");
    let file = folder.path("host.txt");
    let output = spintune(&["record", &file]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let record = std::fs::read_to_string(&file).unwrap();
    assert!(record.contains("\nsys/devices/system/cpu/online = 0"), "{record}");
    assert!(text(spintune(&["record", "-"]).stdout).starts_with("# spintune record 1\n"));
    let verdicts = |arguments: &[&str]| {
        let output = spintune(arguments);
        let checks = parsed(&output.stdout)["checks"].as_array().unwrap().clone();
        let settled = |check: &Value| !check["id"].as_str().unwrap().starts_with("load.");
        checks.into_iter().filter(settled).map(|check| check["verdict"].clone()).collect::<Vec<_>>()
    };
    // A verdict about something that changes by itself, as free memory does, may differ at once.
    let looks = || {
        assert!(spintune(&["record", &file]).status.success());
        (
            verdicts(&["doctor", "--root", &file, "--json"]),
            verdicts(&["doctor", "--passive", "--json"]),
        )
    };
    let agreed = (0..5).map(|_| looks()).find(|(by_record, by_host)| by_record == by_host);
    let (by_record, by_host) = agreed.unwrap_or_else(looks);
    assert_eq!(by_record, by_host);
}

#[test]
fn what_is_wrong_gets_one_line_and_status_2() {
    let folder = Folder::new("wrong");
    folder.write("no_record", "x\n");
    let record = folder.path("no_record");
    let empty = folder.path("");
    for (arguments, words) in [
        (&["--profile", "latancy"][..], "did you mean \"latency\"?"),
        (&["--set", "poll.mode=fast"], "poll.mode = fast: expected one of"),
        (&["--set", "poll.mode"], "expected KEY=VALUE"),
        (&["--root", "/nowhere/host.txt"], "/nowhere/host.txt: No such file"),
        (&["--root", &record], "not a record of a host: a record begins with"),
        (&["--root", &empty], "neither proc nor sys is in this directory"),
        (&["--jsn"], "unexpected argument '--jsn'"),
        (&["--all", "--json"], "cannot be used with"),
        (&["latency"], "unexpected argument 'latency'"),
    ] {
        let output = spintune(&[&["doctor"], arguments].concat());
        let problem = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {problem}");
        assert!(problem.starts_with("spintune: ") && problem.contains(words), "{problem}");
        assert_eq!((problem.lines().count(), output.stdout.len()), (1, 0), "{problem}");
    }
    let output = spintune(&["record"]);
    assert_eq!(output.status.code(), Some(2));
    let output = spintune(&["record", "/nowhere/host.txt"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(output.stderr).contains("/nowhere/host.txt: No such file"));
}

#[test]
fn cores_that_the_host_does_not_have_are_a_finding_and_no_mistake() {
    let (status, answer) = doctor("vm-2", &["--set", "cores.list=1,7"]);
    assert_eq!(status, 1);
    assert!(answer.contains("not allowed to run on poll core 7"), "{answer}");
}

/// Link targets and texts of a record with terminal control characters, in all places where they
/// are printed.
#[test]
fn nothing_of_a_record_commands_a_terminal() {
    let record = std::fs::read_to_string(record_path("server-2s-mlx5-right")).unwrap();
    let hostile = record
        .replace("-> ../../../0000:98:00.0", "-> ../\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}")
        .replace("drivers/mlx5_core", "drivers/mlx5_core\u{1b}[2J")
        .replace("node7", "node7\u{1b}[2J\u{202e}");
    assert!(hostile.matches('\u{1b}').count() >= 3, "something was replaced");
    let folder = Folder::new("hostile-record");
    folder.write("host.txt", &hostile);
    let root = folder.path("host.txt");
    for command in [
        &["doctor", "--all", "--profile", "verbs-mlx5"][..],
        &["doctor", "--json", "--profile", "verbs-mlx5"],
        &["plan", "--profile", "verbs-mlx5"],
    ] {
        let output = spintune(&[command, &["--root", &root]].concat());
        for said in [text(output.stdout), text(output.stderr)] {
            let obeyed = said
                .chars()
                .find(|&letter| letter != '\n' && !spinrpc_tuning::printable::is_harmless(letter));
            assert_eq!(obeyed, None, "{command:?}: {said:?}");
        }
    }
}
