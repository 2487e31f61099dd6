//! spinperf for people and scripts: one-line errors, exit codes, help.

mod common;

use common::{Ended, command, spinperf, text};
use std::fs::File;

#[test]
fn a_wrong_command_line_is_one_line_and_exit_code_2() {
    for (arguments, allowed) in [
        (vec!["run", "--address", "shm:x", "--op", "nil"], "null, echo, read or write"),
        (vec!["run", "--address", "shm:x", "--size", "32MiB"], "rpc.max_write_bytes"),
        (vec!["run", "--address", "shm:x", "--profile", "latencie"], "latency"),
        (vec!["run", "--address", "shm:x", "--set", "rpc.version=3"], "auto"),
        (vec!["serve", "--address", "shm:x", "--set", "rpc.versoin=2"], "rpc.version"),
        (vec!["--set", "rpc.version"], "KEY=VALUE"),
        (vec!["floor", "--cores", "0,4000"], "allowed to run"),
    ] {
        let output = spinperf(&arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{arguments:?}: {error}");
        assert!(error.starts_with("spinperf: "), "{arguments:?}: {error}");
        assert!(error.contains(allowed), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let unread = File::options().write(true).open("/dev/full").unwrap();
        let status = command(&arguments).stderr(unread).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?} with standard error on a full disk");
    }
}

#[test]
fn a_server_that_is_not_there_is_one_line_and_exit_code_1() {
    let arguments = ["run", "--address", "shm:spinperf-test-absent", "--profile", "dev-vm"];
    let [_, error] = spinperf(&arguments).with(1);
    assert!(error.trim_end().lines().count() == 1 && error.contains(arguments[2]), "{error}");
}

/// There is no listener; a program built without RDMA, or a host without a device, reports that
/// first.
#[test]
fn an_address_of_a_device_is_refused_in_one_line_where_there_is_no_way_to_it() {
    let told =
        if cfg!(feature = "verbs") { "127.0.0.1|no RDMA device" } else { "--features verbs" };
    for arguments in [
        &["run", "--address", "rdma://127.0.0.1", "--profile", "dev-vm"][..],
        &["serve", "--address", "rdma://127.0.0.1", "--profile", "dev-vm"],
        &["--address", "rdma://127.0.0.1", "--profile", "dev-vm"],
    ] {
        let [_, error] = spinperf(arguments).with(1);
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
        assert!(told.split('|').any(|one| error.contains(one)), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_found_before_anything_is_measured() {
    let arguments = ["floor", "--duration", "60s", "--json", "/nonexistent/report.json"];
    let [_, error] = spinperf(&arguments).with(1);
    assert!(error.trim_end().lines().count() == 1 && error.contains("report.json"), "{error}");
}

#[test]
fn help_and_version_are_answers_not_errors() {
    let [help, _] = spinperf(&["--help"]).with(0);
    assert!(["serve", "run", "floor"].iter().all(|command| help.contains(command)), "{help}");
    let version = spinperf(&["--version"]);
    assert!(text(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
}
