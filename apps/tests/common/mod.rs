//! Two processes for a test: a server that stops with it, and clients with a timeout.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader};
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
    pub(crate) fn start(program: &'static str, name: &str) -> io::Result<Self> {
        Self::start_with(program, name, &[])
    }

    /// Starts `program serve OPTIONS…` and waits until it listens.
    pub(crate) fn start_with(
        program: &'static str,
        name: &str,
        options: &[&str],
    ) -> io::Result<Self> {
        let address = format!("shm:{name}-{}", std::process::id());
        let mut command = Command::new(program);
        command.args(["serve", &address]).args(options);
        let process = command.stdout(Stdio::piped()).spawn()?;
        let mut server = Self { program, address, process };
        let line = server.first_line()?;
        let listening = format!("listening on {}", server.address);
        if line == listening { Ok(server) } else { Err(io::Error::other(line)) }
    }

    /// Address of the listener.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a signal, and waits for the exit; returns the exit code, if it was not killed.
    pub(crate) fn end_by(mut self, signal: Signal) -> io::Result<Option<i32>> {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal)?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status.code());
            }
            thread::yield_now();
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    fn first_line(&mut self) -> io::Result<String> {
        let stdout = self.process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        in_time(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            Ok(line.trim_end().to_owned())
        })
    }

    /// The client process `program VERB ADDRESS ARGUMENTS…`, after its exit.
    pub(crate) fn client(&self, verb: &str, arguments: &[&str]) -> io::Result<Output> {
        run(self.program, &[&[verb, &self.address][..], arguments].concat())
    }

    /// Standard output of a client that must succeed.
    pub(crate) fn answer(&self, verb: &str, arguments: &[&str]) -> io::Result<Vec<u8>> {
        let output = self.client(verb, arguments)?;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(output.stdout) } else { Err(io::Error::other(complaint)) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The process `program ARGUMENTS…`, after its exit.
pub(crate) fn run(program: &str, arguments: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments);
    in_time(move || command.output())
}

/// Runs `work` on another thread, with a timeout.
fn in_time<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || drop(done.send(work())));
    result.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

pub(crate) const SPIN_NFS: &str = env!("CARGO_BIN_EXE_spin-nfs");

/// spin-nfs, after its exit.
pub(crate) fn spin_nfs(arguments: &[&str]) -> io::Result<Output> {
    run(SPIN_NFS, arguments)
}

/// Standard output of a spin-nfs that must succeed.
pub(crate) fn answer(arguments: &[&str]) -> io::Result<Vec<u8>> {
    let output = spin_nfs(arguments)?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(io::Error::other(complaint)) }
}

pub(crate) fn text(arguments: &[&str]) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&answer(arguments)?).into_owned())
}

/// Exit code and error of a spin-nfs that must fail.
pub(crate) fn refused(arguments: &[&str]) -> io::Result<(Option<i32>, String)> {
    let (code, line) = refusal(&spin_nfs(arguments)?);
    assert_ne!(code, Some(0), "{arguments:?}");
    Ok((code, line))
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
