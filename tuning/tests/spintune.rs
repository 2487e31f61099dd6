//! spintune, run as a user does.
#![allow(clippy::unwrap_used)] // helpers of tests are not marked as tests

mod common;
#[path = "common/program.rs"]
mod program;

use common::Folder;
use program::{answer, problems, spintune};
use serde_json::Value;
use std::fs::File;

#[test]
fn list_names_the_shipped_profiles() {
    let text = answer(&["list"]);
    let names: Vec<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    let shipped: Vec<_> = spinrpc_tuning::shipped().iter().map(|profile| profile.name).collect();
    assert_eq!(names, shipped);
    assert!(
        text.lines().all(|line| line.len() > 40 && line.len() <= 100),
        "each with its description: {text}"
    );
}

#[test]
fn show_prints_value_unit_and_origin_of_every_key() {
    let text = answer(&["show", "latency", "--cpus", "0-3", "--set", "rpc.credits=9"]);
    let row = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("cores.list").starts_with("cores.list auto -> 1 shipped:base.toml:"));
    assert!(row("poll.mode").starts_with("poll.mode busy shipped:latency.toml:"));
    assert_eq!(row("rpc.credits"), "rpc.credits 9 calls override");
    for key in spinrpc::config::KEYS {
        row(key.name);
    }
}

#[test]
fn show_prints_json_for_programs() {
    let text = answer(&["show", "dev-vm", "--json", "--cpus", "0-3"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1);
    assert_eq!(document["profile"], "dev-vm");
    assert_eq!(document["cpus"], serde_json::json!([1]));
    assert_eq!(document["derived"]["recv_buffer_bytes"], 4096);
    let keys = document["keys"].as_array().unwrap();
    assert_eq!(keys.len(), spinrpc::config::KEYS.len());
    let cores = keys.iter().find(|key| key["key"] == "cores.list").unwrap();
    assert_eq!((&cores["value"], &cores["resolved"]), (&"auto".into(), &"1".into()));
    assert_eq!((&cores["source"], &cores["file"]), (&"file".into(), &"shipped:base.toml".into()));
}

#[test]
fn check_goes_through_all_and_fails_if_one_is_invalid() {
    let folder = Folder::new("check");
    folder.write("good.toml", "schema = 1\n");
    folder.write("bad.toml", "schema = 1\nrpc.credits = 0\n");
    let [good, bad] = ["good.toml", "bad.toml"].map(|name| folder.path(name));
    let output = spintune(&["check", &bad, &good, "latency"]);
    assert_eq!(output.status.code(), Some(1));
    let answer = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answer, format!("{good}: valid\nlatency: valid\n"));
    let problem = "rpc.credits = 0: expected an integer from 1 to 1024";
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!(problems, format!("spintune: {bad}:2:15: {problem}\n"));
}

#[test]
fn explain_without_a_key_prints_a_valid_profile_of_all() {
    let folder = Folder::new("explain_all");
    folder.write("all.toml", &answer(&["explain"]));
    answer(&["check", &folder.path("all.toml")]);
}

#[test]
fn a_wrong_command_line_gets_one_line_and_status_2() {
    let long = "long".repeat(1000);
    for (arguments, words) in [
        (&["show", &long][..], "no profile"),
        (&["show", "base", "--cpus", &long], "expected a list of CPUs"),
        (&["explain", "rpc.credit"], "did you mean \"rpc.credits\"?"),
        (&["shw"], "unrecognized subcommand 'shw'"),
        (&[], "requires a subcommand"),
        (&["check"], "<PROFILE>"),
        (&["show"], "<PROFILE>"),
        (&["show", "base", "--jsn"], "'--jsn'"),
        (&["show", "base", "--cpus", "x"], "expected a list of CPUs such as 0-7,9"),
    ] {
        let message = problems(arguments, 2);
        assert!(message.starts_with("spintune: ") && message.contains(words), "{message}");
        assert!(message.lines().count() == 1 && message.len() < 1000, "{message}");
        let unread = File::options().write(true).open("/dev/full").unwrap();
        let status = program::command(arguments).stderr(unread).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?} with standard error on a full disk");
    }
}

/// Arguments before a profile, for every command that takes one; but not apply, which loads it as plan does, and would change this host.
const LOADING: [&[&str]; 4] =
    [&["show"], &["check"], &["doctor", "--passive", "--profile"], &["plan", "--profile"]];

#[test]
fn what_is_wrong_with_the_command_line_ends_with_2_whatever_the_command() {
    for command in LOADING {
        for (wrong, words) in [
            (&["nope"][..], "no profile \"nope\""),
            (&["./nope.toml"], "./nope.toml: No such file"),
            (&["/proc"], "/proc: "),
            (&["/proc/self/exe"], "/proc/self/exe: "),
            (&["base", "--set", "rpc.credits=0"], "rpc.credits = 0: expected an integer"),
            (&["base", "--set", "rpc.credit=1"], "did you mean \"rpc.credits\"?"),
            (&["base", "--set", "rpc.credits"], "expected KEY=VALUE"),
        ] {
            let message = problems(&[command, wrong].concat(), 2);
            assert!(message.contains(words), "{command:?} {wrong:?}: {message}");
        }
    }
    for command in [&["doctor"][..], &["plan", "--profile", "base"]] {
        let message = problems(&[command, &["--root", "/nowhere"]].concat(), 2);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with("spintune: --root /nowhere: "), "{message}");
    }
}

#[test]
fn an_invalid_profile_ends_with_1_whatever_the_command() {
    let folder = Folder::new("invalid");
    folder.write("bad.toml", "schema = 1\nrpc.credits = 0\n");
    folder.write("lost.toml", "schema = 1\ninclude = [\"nope\"]\n");
    for command in LOADING {
        for (file, words) in [("bad.toml", ":2:15: rpc.credits = 0"), ("lost.toml", "no profile")] {
            let message = problems(&[command, &[folder.path(file).as_str()]].concat(), 1);
            assert!(message.contains(words), "{command:?}: {message}");
        }
    }
}

#[test]
fn a_profile_for_another_host_is_invalid_here_and_no_mistake_of_the_command_line() {
    let message = problems(&["show", "hosts/two-socket-mlx5", "--cpus", "0-1"], 1);
    assert!(message.contains("cores.list"), "{message}");
    problems(&["show", "base", "--cpus", "0-1", "--set", "cores.list=5"], 2);
}
