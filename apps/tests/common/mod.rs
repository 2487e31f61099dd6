//! Two processes for a test: a server that stops with it, and clients with a timeout.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test ends here")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far longer than any step of a test takes, even on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A server process at its own address.
pub(crate) struct Server {
    program: &'static str,
    address: String,
    process: Child,
}

impl Server {
    /// Starts `program serve` and waits until it listens.
    pub(crate) fn start(program: &'static str, name: &str) -> Self {
        Self::start_with(program, name, &[])
    }

    /// Starts `program serve OPTIONS…` and waits until it listens.
    pub(crate) fn start_with(program: &'static str, name: &str, options: &[&str]) -> Self {
        let address = format!("shm:{name}-{}", std::process::id());
        let mut command = Command::new(program);
        command.args(["serve", &address]).args(options);
        let process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut server = Self { program, address, process };
        let line = server.first_line();
        let listening = format!("listening on {}", server.address);
        assert_eq!(line, listening);
        server
    }

    /// Address of the listener.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a signal, and waits for the exit; returns the exit code, if it was not killed.
    pub(crate) fn end_by(mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal).unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "{} goes on", self.program);
            thread::yield_now();
        }
    }

    fn first_line(&mut self) -> String {
        let stdout = self.process.stdout.take().unwrap();
        in_time(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        })
    }

    /// The client process `program VERB ADDRESS ARGUMENTS…`, after its exit.
    pub(crate) fn client(&self, verb: &str, arguments: &[&str]) -> Output {
        run(self.program, &[&[verb, &self.address][..], arguments].concat())
    }

    /// Standard output of a client that must succeed.
    pub(crate) fn answer(&self, verb: &str, arguments: &[&str]) -> Vec<u8> {
        answer_of(self.client(verb, arguments))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The process `program ARGUMENTS…`, after its exit.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments);
    in_time(move || command.output().unwrap())
}

/// Runs `work` on another thread, with a timeout.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || drop(done.send(work())));
    result.recv_timeout(PATIENCE).unwrap()
}

pub(crate) const SPIN_NFS: &str = env!("CARGO_BIN_EXE_spin-nfs");

/// spin-nfs, after its exit.
pub(crate) fn spin_nfs(arguments: &[&str]) -> Output {
    run(SPIN_NFS, arguments)
}

/// Standard output of a spin-nfs that must succeed.
pub(crate) fn answer(arguments: &[&str]) -> Vec<u8> {
    answer_of(spin_nfs(arguments))
}

fn answer_of(output: Output) -> Vec<u8> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn text(arguments: &[&str]) -> String {
    String::from_utf8_lossy(&answer(arguments)).into_owned()
}

/// Exit code and error of a spin-nfs that must fail.
pub(crate) fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let (code, line) = refusal(&spin_nfs(arguments));
    assert_ne!(code, Some(0), "{arguments:?}");
    (code, line)
}

/// A program has failed with this code, and one line that has these words.
#[track_caller]
pub(crate) fn fails(output: &Output, code: i32, words: &[&str]) {
    let (found, line) = refusal(output);
    assert_eq!((found, line.lines().count()), (Some(code), 1), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
}

/// Bytes whose words are all different.
pub(crate) fn content(bytes: usize) -> Vec<u8> {
    let mut content: Vec<u8> = (0..=bytes as u32 / 4).flat_map(u32::to_le_bytes).collect();
    content.truncate(bytes);
    content
}

/// Exit code and the error line, which begins with the name of the program.
pub(crate) fn refusal(output: &Output) -> (Option<i32>, String) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    let named =
        ["spin-echo: ", "spin-nfs: ", "spin-nfsd: "].iter().any(|name| line.starts_with(name));
    assert!(named, "{line}");
    (output.status.code(), line)
}
