//! Starts spinperf and reads its output.
#![allow(dead_code, reason = "not every test binary uses all of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends here")]

pub(crate) mod schema;

use rustix::process::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const REPORT: &str = include_str!("../../schema/spinperf-3.schema.json");

/// Checks that a report is as its schema says.
#[track_caller]
pub(crate) fn assert_is_report(report: &Value) {
    assert_eq!(schema::violations(report, REPORT), [""; 0]);
}

/// The valid report in a file.
#[track_caller]
pub(crate) fn report_in(path: &str) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_is_report(&report);
    report
}

#[track_caller]
pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Runs spinperf to completion.
pub(crate) fn spinperf(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// A spinperf command that has not started yet.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinperf"));
    command.args(arguments);
    command
}

/// A folder for the files of one test, which goes with it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// No other test of the program has this name.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spinperf-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path); // of a killed run with the same process id
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A new one, and the path of a file in it.
    pub(crate) fn with_file(name: &str, file: &str) -> (Self, String) {
        let folder = Self::new(name);
        let path = folder.file(file);
        (folder, path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One polling pair at a time: more would compete for cores.
pub(crate) fn cores() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// [`cores`], for a test in which client and server need a core each.
#[track_caller]
pub(crate) fn two_cores() -> MutexGuard<'static, ()> {
    let here = std::thread::available_parallelism().unwrap().get();
    assert!(here >= 2, "this test takes two CPUs, and this process may run on {here}");
    cores()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) trait Ended {
    /// Standard output and standard error of a command that ended with this status.
    fn with(self, code: i32) -> [String; 2];
}

impl Ended for Output {
    #[track_caller]
    fn with(self, code: i32) -> [String; 2] {
        let [said, error] = [self.stdout, self.stderr].map(|bytes| text(&bytes));
        assert_eq!(self.status.code(), Some(code), "{said}{error}");
        [said, error]
    }
}

/// A listening server; killed on drop, and ended with this process: it would keep a CPU from all later tests.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// One that has the cores for itself and its client.
    pub(crate) fn alone(name: &str) -> (MutexGuard<'static, ()>, Self) {
        let cores = cores();
        (cores, Self::start(name))
    }

    pub(crate) fn start_with(name: &str, options: &[&str]) -> Self {
        let address = format!("shm:spinperf-test-{name}-{}", std::process::id());
        let profile: &[&str] =
            if options.contains(&"--profile") { &[] } else { &["--profile", "dev-vm"] };
        let mut child = command(&["serve", "--attached", "--address", &address])
            .args(profile)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = Self { child, address };
        assert!(line.contains("listening"), "{line:?}");
        server
    }

    /// A client of it that has not started yet.
    pub(crate) fn client(&self, options: &[&str]) -> Command {
        command(&[&["run", "--address", &self.address, "--profile", "dev-vm"], options].concat())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to exit; kills it and fails on timeout.
pub(crate) fn wait_at_most(child: &mut Child, limit: Duration) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::yield_now();
    }
    let _ = child.kill();
    panic!("still running after {limit:?}");
}

/// Waits until a server answers more calls than precede a measurement; false if that has ended meanwhile.
pub(crate) fn wait_for_calls(server: Pid, run: &mut Child) -> bool {
    let pid = server.as_raw_nonzero().to_string();
    let deadline = Instant::now() + Duration::from_secs(60);
    while run.try_wait().unwrap().is_none() {
        let output = spinperf(&["top", &pid, "--json", "--count", "1", "--interval", "100ms"]);
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let per_second = &seen["engines"][0]["cores"][0]["per_second"];
        if per_second["calls_received"].as_f64().is_some_and(|rate| rate > 150.0) {
            return true;
        }
        assert!(Instant::now() < deadline, "no calls: {}", text(&output.stderr));
    }
    false
}
