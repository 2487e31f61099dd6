//! Round-trip times of NULL, and their output.

use crate::*;
use std::io::{BufRead, BufReader, Read};

#[test]
fn a_count_of_calls_is_made_and_summed_up() {
    let server = Server::start("ping");
    let shown = text(&["ping", server.address(), "--count", "500", "--interval", "0"]);
    assert!(shown.contains("500 calls, 500 replies, 0 without"), "{shown}");
    for name in ["min", "mean", "p50", "p99.9", "max"] {
        assert!(shown.contains(&format!("{name} ")), "{shown}");
    }
    assert_eq!(shown.lines().count(), 2);
    assert_eq!(server.calls(NFS_PROGRAM::NFSPROC3_NULL), 501);
}

#[test]
fn replies_that_come_slowly_have_a_line_each() {
    let server = Server::start("ping-lines");
    let options = ["--count", "2", "--interval", "0.2"];
    let shown = text(&[&["ping", server.address()][..], &options].concat());
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.starts_with("NULL 1 to shm:"), "{shown}");
    let shown = text(&[&["ping", "-q", server.address()][..], &options].concat());
    assert_eq!(shown.lines().count(), 2, "{shown}");
}

#[test]
fn it_ends_after_its_duration() {
    let server = Server::start("ping-duration");
    let shown = text(&["ping", server.address(), "-w", "0.1", "-i", "0"]);
    let seconds = shown.split(" 0 without, ").nth(1).and_then(|rest| rest.split(' ').next());
    let seconds: f64 = seconds.and_then(|seconds| seconds.parse().ok()).unwrap();
    assert!((0.1..30.0).contains(&seconds), "{shown}");
}

#[test]
fn ctrl_c_ends_it_with_the_summary() {
    let server = Server::start("ping-signal");
    let mut command = Command::new(PROGRAM);
    command.args(["ping", server.address(), "-i", "0.2"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("NULL 1 "), "{line}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(rest.contains(" 0 without") && rest.contains("p50"), "{rest}");
}

#[test]
fn calls_without_reply_are_counted() {
    let server = Server::start("ping-mute");
    // The first one is the engine's, when it connects.
    let mute = Some((NFS_PROGRAM::NFSPROC3_NULL as u32, 2));
    server.state().faults = Faults { mute, ..Faults::default() };
    let output = spin_nfs(&["ping", server.address(), "-c", "2", "-i", "0", "--timeout", "2"]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("2 calls, 1 replies, 1 without"), "{shown}");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*complaint), (Some(0), ""));
}

/// While no call is in flight.
#[test]
fn a_connection_that_is_lost_between_two_calls_ends_it() {
    let server = Server::start("ping-lost");
    let mut command = Command::new(PROGRAM);
    command.args(["ping", server.address(), "-i", "0.2"]).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(server);
    fails(&child.wait_with_output().unwrap(), 5, &[]);
}
