//! `spinperf top` watches real processes: a server under load, its client, and their exit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::{Ended, Server, command, cores, spinperf, text, wait_at_most};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far longer than any step takes, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Of an engine that does not answer in time.
const SILENT: &str = "does not answer; is it stopped?";

/// A process that is killed when it goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// A client that calls without pause.
    fn load(server: &Server, operation: &[&str]) -> Self {
        Self::start(server.client(&[&["--duration", "600s", "--op"], operation].concat()))
    }

    /// A `top` that has shown something, and the first line of that.
    fn top(arguments: &[&str]) -> (Self, String) {
        let began = Instant::now();
        loop {
            let mut top = Self::start(command(&[&["top"], arguments].concat()));
            let line = top.first_line();
            if !line.is_empty() {
                return (top, line);
            }
            assert!(began.elapsed() < LIMIT, "{:?}", top.end());
        }
    }

    fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// Exit code and standard error, without complaints about engines of which a thread is paused.
    fn end(&mut self) -> (Option<i32>, String) {
        let code = wait_at_most(&mut self.0, LIMIT);
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let is_told = |line: &&str| !line.contains(SILENT);
        (code, said.lines().filter(is_told).collect::<Vec<_>>().join("\n"))
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }
}

/// The lines of `top`, repeated until they are as expected: the load needs time to start, and an engine of which a thread is
/// paused does not answer in time.
#[track_caller]
fn watched(arguments: &[&str], are_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let output = spinperf(&[&["top", "--json", "--interval", "200ms"], arguments].concat());
        let said = text(&output.stdout);
        let lines: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if output.status.success() && are_expected(&lines) {
            return lines;
        }
        assert!(began.elapsed() < LIMIT, "{arguments:?}: {said}{}", text(&output.stderr));
    }
}

/// Two updates, the second of which is as expected.
#[track_caller]
fn watched_until(target: &str, is_expected: impl Fn(&Value) -> bool) -> Vec<Value> {
    let takes_time = |line: &Value| line["engines"][0]["interval_s"].as_f64() > Some(0.0);
    let are_expected = |lines: &[Value]| lines.iter().all(takes_time) && is_expected(&lines[1]);
    let lines = watched(&[target, "--count", "2"], are_expected);
    assert_eq!(lines.len(), 2);
    lines
}

fn rate(line: &Value, name: &str) -> f64 {
    line["engines"][0]["cores"][0]["per_second"][name].as_f64().unwrap_or_default()
}

/// Watch a server under load, and its client. Expect the same calls at both ends.
#[test]
fn both_ends_of_a_connection_are_seen_with_their_rates() {
    let (_cores, server) = Server::alone("top-both");
    let client = Running::load(&server, &["echo"]);
    let pid = server.child.id();
    for line in watched_until(&pid.to_string(), |line| rate(line, "calls_received") > 0.0) {
        assert_eq!(line["schema"], "spinperf-top/1");
        let engine = &line["engines"][0];
        assert_eq!((&engine["pid"], &engine["program"]), (&pid.into(), &"spinperf".into()));
        assert_eq!(engine["listens"][0], server.address.as_str());
    }
    let peer = format!("process {}", client.id());
    watched_until(&server.address, |line| {
        let connections = &line["engines"][0]["cores"][0]["connections"];
        let busiest = &connections[0];
        busiest["peer"].as_str().is_some_and(|text| text.ends_with(&peer))
            && busiest["served_per_second"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    watched_until(&client.id(), |line| rate(line, "replies_received") > 0.0);
}

/// Read and write through chunks. Expect the bytes at the core and at the connection, and at the
/// client the memory held by calls in flight.
#[test]
fn bulk_data_and_who_holds_memory_are_seen() {
    let (_cores, server) = Server::alone("top-bulk");
    for (operation, at_core, at_connection) in [
        ("read", "bytes_written", "written_bytes_per_second"),
        ("write", "bytes_read", "read_bytes_per_second"),
    ] {
        let client = Running::load(&server, &[operation, "--size", "256k", "--depth", "2"]);
        watched_until(&server.address, |line| {
            let busiest = &line["engines"][0]["cores"][0]["connections"][0];
            rate(line, at_core) > 0.0 && busiest[at_connection].as_f64().is_some_and(|b| b > 0.0)
        });
        watched_until(&client.id(), |line| {
            let busiest = &line["engines"][0]["cores"][0]["connections"][0];
            busiest["blocks"]["calls"].as_u64().is_some_and(|blocks| blocks > 0)
                && busiest["memory_used_bytes"].as_u64().is_some_and(|bytes| bytes >= 256 << 10)
        });
    }
}

#[test]
fn text_has_a_block_for_each_interval_with_no_control_characters() {
    let (_cores, server) = Server::alone("top-text");
    let arguments = ["top", &server.address, "--count", "3", "--interval", "100ms"];
    let end = Instant::now() + Duration::from_secs(60);
    // A core that is paused for 100 ms does not answer, and its line is left out; so is an engine after 2 s.
    let said = loop {
        let output = spinperf(&arguments);
        let said = text(&output.stdout);
        if said.matches("core 0 blocks used: ").count() == 3 || Instant::now() > end {
            break said;
        }
    };
    assert_eq!(said.matches("listens at").count(), 3, "{said}");
    for expected in ["served/s", "no credit", "queue full", "no buffer", "core 0 blocks used: "] {
        assert_eq!(said.matches(expected).count(), 3, "{expected}: {said}");
    }
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
}

/// Expect each server in an update without a target.
#[test]
fn without_a_target_every_engine_is_watched() {
    let _cores = cores();
    let servers = [Server::start("top-all-1"), Server::start("top-all-2")];
    let shown = |server: &Server, lines: &[Value]| {
        let is_it = |engine: &&Value| engine["pid"] == server.child.id();
        lines[0]["engines"].as_array().unwrap().iter().filter(is_it).count()
    };
    let are_all = |lines: &[Value]| servers.iter().all(|server| shown(server, lines) > 0);
    let lines = watched(&["--count", "1"], are_all);
    assert!(servers.iter().all(|server| shown(server, &lines) == 1), "{}", lines[0]);
}

#[test]
fn cores_idle_as_they_are_told() {
    let (_cores, server) = Server::alone("top-idle");
    for policy in ["sleep", "busy", "adaptive"] {
        let arguments = [&server.address, "--count", "1", "--idle", policy];
        watched(&arguments, |lines| lines[0]["engines"][0]["cores"][0]["idle"] == policy);
    }
}

#[test]
fn the_end_of_the_process_is_a_good_end_unless_more_was_asked_for() {
    let _cores = cores();
    for (options, code, expected) in
        [(&[][..], 0, "has exited"), (&["--count", "1000"][..], 1, "of 1000 intervals")]
    {
        let server = Server::start("top-end");
        let pid = server.child.id().to_string();
        let (mut top, line) = Running::top(&[&[&pid, "--interval", "100ms"], options].concat());
        assert!(line.contains(&server.address));
        drop(server);
        // Its output so far fits the pipe.
        let (ended, said) = top.end();
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(expected) && said.contains(&pid), "{said}");
    }
}

#[test]
fn an_interrupt_is_a_good_end() {
    let (_cores, server) = Server::alone("top-interrupt");
    for signal in [Signal::INT, Signal::TERM] {
        let (mut top, line) = Running::top(&[&server.address, "--interval", "100ms"]);
        assert!(line.contains(&server.address));
        kill_process(Pid::from_child(&top.0), signal).unwrap();
        assert_eq!(top.end(), (Some(0), String::new()));
    }
}

/// Stop the process for a while. Expect a message, and that watching continues afterwards.
#[test]
fn a_process_that_is_stopped_has_not_ended() {
    let (_cores, server) = Server::alone("top-stopped");
    let pid = Pid::from_child(&server.child);
    let options = ["--interval", "100ms", "--count", "1000", "--json"];
    let (mut top, line) = Running::top(&[&[&server.address[..]], &options[..]].concat());
    assert!(line.starts_with('{'));
    kill_process(pid, Signal::STOP).unwrap();
    let mut said = String::new();
    BufReader::new(top.0.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    assert!(said.contains(SILENT), "{said}");
    // The first of a later look tells of all the time since the last one before.
    let mut lines = BufReader::new(top.0.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        line["engines"][0]["interval_s"].as_f64() > Some(1.0)
    }));
    kill_process(Pid::from_child(&top.0), Signal::INT).unwrap();
    assert_eq!(top.end().0, Some(0));
}

/// Expect a successful exit when the reader closes the pipe.
#[test]
fn a_reader_that_goes_is_a_good_end() {
    let (_cores, server) = Server::alone("top-pipe");
    let (mut top, line) = Running::top(&[&server.address, "--json", "--interval", "100ms"]);
    assert!(line.starts_with('{'));
    drop(top.0.stdout.take());
    assert_eq!(top.end(), (Some(0), String::new()));
}

#[test]
fn what_cannot_be_watched_is_said_in_one_line() {
    let own = std::process::id().to_string();
    for (target, code, expected) in [
        ("4000000000", 1, "no such process: 4000000000"),
        (&own, 1, "has no engine, or one with stats.export = none"),
        ("shm:no-listener-here", 1, "no process that may be inspected listens at"),
        ("0", 2, "a process id is a number from 1"),
        ("tcp:x", 2, "neither a process id nor an address"),
    ] {
        let [_, said] = spinperf(&["top", target, "--count", "1"]).with(code);
        assert!(said.contains(expected) && said.lines().count() == 1, "{target}: {said}");
    }
}
