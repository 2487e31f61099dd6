//! The server process of the main job: this program again, on another core.
//!
//! It exits when its handle is dropped, and also if this process dies for any reason.

use crate::cores::CoreList;
use crate::env::ThreadTimes;
use crate::failure::Failure;
use crate::profile_args::ProfileArgs;
use rustix::process::{Pid, Signal, kill_process};
use spinrpc::sys::random::Random;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running `spinperf serve`; dropping it kills it.
pub(crate) struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Starts a server, which lends what it serves if `lends`, and waits until it listens at `address`.
    pub(crate) fn start(
        address: &str,
        core: usize,
        profile: &ProfileArgs,
        lends: bool,
    ) -> Result<Self, Failure> {
        let program =
            env::current_exe().map_err(|error| Failure::system("finding this program", error))?;
        let child = Command::new(program)
            .args(["serve", "--attached", "--no-reverse"])
            .args(["--address", address, "--profile", &profile.name])
            .args(["--cores", &CoreList::from(core).show()])
            .args(lends.then_some("--slabs"))
            .args(profile.set.iter().flat_map(|one| ["--set", one.as_str()]))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::system("starting the server process", error))?;
        let mut server = Self { child };
        server.wait_until_listening()?;
        Ok(server)
    }

    /// Time that its core has waited for a CPU, in nanoseconds.
    pub(crate) fn waited_ns(&self) -> Option<u64> {
        ThreadTimes::of_core_in(self.child.id(), 0)?.waited_ns
    }

    /// Suspends the server until [`ServerProcess::resume`], so that its core is free for the floor.
    pub(crate) fn pause(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)
    }

    pub(crate) fn resume(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    fn wait_until_listening(&mut self) -> Result<(), Failure> {
        let output = self.child.stdout.take().map(BufReader::new);
        let line = output.and_then(|output| output.lines().next()?.ok());
        match line {
            Some(line) if line.contains(LISTENING) => Ok(()),
            _ => Err(Failure::Measurement("the server process exited early".to_owned())),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|error| Failure::system("signalling the server process", error))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have exited already; either way there is nothing to wait for afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Other processes cannot guess it: the kernel gives a name to the first process that binds it.
pub(crate) fn own_address() -> Result<String, Failure> {
    let random = Random::from_system().map(|mut random| random.next_u64());
    let number = random.map_err(|error| Failure::system("getting a random number", error))?;
    Ok(format!("shm:spinperf-{number:016x}"))
}

pub(crate) const LISTENING: &str = "listening on";
