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
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

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

/// The finding about the keytab, by a program that runs in this folder.
fn keytab_finding(folder: &Folder, arguments: &[&str], variable: &str) -> Value {
    let mut program = Command::new(env!("CARGO_BIN_EXE_spintune"));
    program.args(["doctor", "--json", "--passive"]).args(arguments);
    let output = program.env("KRB5_KTNAME", variable).current_dir(folder.path("")).output();
    finding(&parsed(&output.unwrap().stdout), "kerberos.keytab")
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

/// The files of a directory have modes and owners of their own, and are not read.
#[test]
fn the_keytab_of_a_copied_host_is_judged_by_its_mode() {
    let folder = Folder::new("keytab");
    std::fs::create_dir_all(folder.path("proc/self")).unwrap();
    std::fs::create_dir_all(folder.path("etc")).unwrap();
    let user = rustix::process::geteuid().as_raw();
    folder.write("proc/self/status", &format!("Uid:\t{user}\t{user}\t{user}\t{user}\n"));
    folder.write("etc/krb5.keytab", "\x05\x02secret");
    let judged = |mode| {
        let file = folder.path("etc/krb5.keytab");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
        let output = spintune(&["doctor", "--json", "--root", &folder.path("")]);
        let answer = text(output.stdout);
        assert!(!answer.contains("secret"), "{answer}");
        finding(&parsed(answer.as_bytes()), "kerberos.keytab")
    };
    let open = judged(0o644);
    assert_eq!(open["verdict"], "fail");
    assert_eq!(open["remedy"]["commands"][0], "chmod o= /etc/krb5.keytab");
    assert_eq!(open["evidence"][0]["value"], format!("mode 0644, owner {user}, readable"));
    assert_eq!(judged(0o600)["verdict"], "ok");
}

/// By --keytab, or KRB5_KTNAME as spin-nfsd understands it.
#[test]
fn the_keytab_that_is_named_is_judged() {
    let folder = Folder::new("named-keytab");
    folder.write("a keytab", "");
    let path = folder.path("a keytab");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let finding = |arguments: &[&str], variable: &str| keytab_finding(&folder, arguments, variable);
    let nowhere = folder.path("nowhere");
    let of_file = format!("FILE:{path}");
    for (arguments, variable) in
        [(&["--keytab", &*path][..], &*nowhere), (&[], &path), (&[], &of_file)]
    {
        let found = finding(arguments, variable);
        assert_eq!(found["verdict"], "fail", "{found}");
        assert_eq!(found["remedy"]["commands"][0], format!("chmod o= '{path}'"));
        assert_eq!(found["evidence"][0]["source"], *path, "{found}");
    }
    let missing = finding(&[], &nowhere);
    assert_eq!(missing["verdict"], "warn");
    assert_eq!(missing["says"], format!("there is no file {nowhere}"));
    // The variable is that of this host.
    let copy = Folder::new("copied-keytab");
    std::fs::create_dir_all(copy.path("proc")).unwrap();
    assert_eq!(finding(&["--root", &copy.path("")], &path)["verdict"], "ok");
}

/// A device or a directory has a mode, too, which must stay as it is.
#[test]
fn a_keytab_that_is_no_file_is_told_without_a_command() {
    let here = Folder::new("no-keytab");
    let folder = here.path("");
    let kind = "this kind of keytab is not supported, name a file";
    for (arguments, variable, expected) in [
        (&[][..], "/dev/null", "/dev/null: not a file".to_owned()),
        (&["--keytab", &*folder], "", format!("{folder}: not a file")),
        (&["--keytab", "/"], "", "/: not a file".to_owned()),
        (&[], "FILE:", "\"FILE:\": not a file, the path is empty".to_owned()),
        (&[], "MEMORY:x", format!("MEMORY:x: {kind}")),
        (&[], "KEYRING:x", format!("KEYRING:x: {kind}")),
    ] {
        let finding = keytab_finding(&here, arguments, variable);
        assert_eq!((&finding["verdict"], &finding["says"]), (&"warn".into(), &expected.into()));
        assert_eq!(finding["remedy"]["commands"], Value::Array(Vec::new()), "{finding}");
    }
}

#[test]
fn a_record_has_the_keytab_that_is_named_and_no_other() {
    let here = Folder::new("recorded-keytab");
    here.write("nfs.keytab", "");
    std::fs::set_permissions(here.path("nfs.keytab"), std::fs::Permissions::from_mode(0o604))
        .unwrap();
    let path = std::fs::canonicalize(here.path("nfs.keytab")).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let record = |arguments: &[&str], variable: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_spintune"));
        program.args(["record", "host.txt"]).args(arguments).env("KRB5_KTNAME", variable);
        let output = program.current_dir(here.path("")).output().unwrap();
        (output.status.code(), text(output.stderr))
    };
    let finding =
        |path: &str| keytab_finding(&here, &["--root=host.txt", &format!("--keytab={path}")], "");
    for (arguments, variable) in [(&["--keytab=nfs.keytab"][..], ""), (&[], "FILE:nfs.keytab")] {
        assert_eq!(record(arguments, variable), (Some(0), String::new()));
        let found = finding(&path);
        assert_eq!(
            (&found["verdict"], &found["evidence"][0]["source"]),
            (&"fail".into(), &(*path).into())
        );
    }
    assert_eq!(finding(&path.replacen('/', "//./", 2))["verdict"], "fail", "it is the same path");
    let unknown = finding("/nowhere");
    assert_eq!(unknown["verdict"], "unknown");
    assert!(unknown["says"].as_str().unwrap().starts_with("the record does not have /nowhere"));
    assert_eq!(record(&[], "/nowhere").0, Some(0), "the variable may be meant for others");
    assert_eq!(finding(&path)["verdict"], "unknown", "it is not in this record");
    let (status, problem) = record(&["--keytab=/nowhere"], "");
    assert_eq!(status, Some(1));
    assert!(problem.contains("there is no file /nowhere"), "{problem}");
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
