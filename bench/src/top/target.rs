//! Selection of engines: those of a process, of an address, or all; explains in one line if there
//! are none.

use super::snapshot::{Core, Latencies, Snapshot};
use super::socket::{self, Allowance, Detail, Owner, Silence, Turn};
use crate::failure::Failure;
use crate::units::joined;
use rustix::process::geteuid;
use spinrpc::config::IdlePolicy;
use spinrpc::fabric::check_address;
use spinrpc_tuning::printable::to_stderr;
use spinrpc_tuning::slow_calls::EngineCalls;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Process(u32),
    /// The engines that listen there, and all others of their processes.
    Address(String),
}

impl Target {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("a process id is a number from 1".to_owned()),
            Ok(pid) => Ok(Self::Process(pid)),
            Err(_) => match check_address(text) {
                Ok(()) => Ok(Self::Address(text.to_owned())),
                Err(error) => Err(format!("neither a process id nor an address: {error}")),
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) owner: Owner,
    pub(crate) program: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) latencies: Option<Latencies>,
}

impl Found {
    /// `None` if a running core has not answered.
    fn buffers_in_use(&self) -> Option<u64> {
        let running = || self.snapshot.cores.iter().filter(|core| core.running);
        let blocks = |core: &Core| {
            total(core.memory.iter().map(|class| class.total.saturating_sub(class.free)))
        };
        let sends = |core: &Core| total(core.connections.iter().map(|one| one.sends.out()));
        let told = running().all(|core| core.answered);
        told.then(|| total(running().map(|core| blocks(core).saturating_add(sends(core)))))
    }
}

/// Saturating, because counters of another process need not be consistent.
pub(super) fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

pub(crate) struct Watched {
    /// The names of their control sockets without the engine's number.
    stems: Vec<String>,
    owners: Vec<Owner>,
}

impl Watched {
    /// All of this host that may be watched, without a target. Fails with the reason if there are none.
    pub(crate) fn find(target: Option<&Target>) -> Result<Self, Failure> {
        let mut names =
            socket::names().map_err(|error| Failure::system("reading /proc/net/unix", error))?;
        if let Some(Target::Process(pid)) = target {
            // Its own names come first: other users may have bound more names than there is time
            // for. Processes of another PID namespace have another number in their names.
            names.sort_by_key(|name| !name.contains(&format!("/{pid}/")));
        }
        let mut watched = Self { stems: Vec::new(), owners: Vec::new() };
        let mut allowance = Allowance::of_a_look();
        let silent = in_turns(names, Instant::now() + FIND_PATIENCE, |name, turn| {
            let (owner, snapshot) =
                socket::ask(name, turn, Detail::Cores, &mut allowance, |_| true)?;
            if is_meant(target, owner, &snapshot) {
                watched.add(name, owner);
            }
            Ok(())
        });
        if watched.owners.is_empty() {
            return Err(Failure::Measurement(why_none(target, &silent)));
        }
        Ok(watched)
    }

    fn add(&mut self, name: &str, owner: Owner) {
        let stem = name.rsplit_once('/').map_or(name, |(stem, _)| stem).to_owned();
        if !self.owners.contains(&owner) {
            self.owners.push(owner);
        }
        if !self.stems.contains(&stem) {
            self.stems.push(stem);
        }
    }

    /// Calls `ask` for the current sockets of their engines, as far as time allows: any user may bind such names, too.
    fn ask_each(&self, ask: impl FnMut(&str, Turn) -> Result<(), Silence>) -> Vec<Silence> {
        let is_watched = |name: &String| {
            let is_of = |(stem, _)| self.stems.iter().any(|watched| watched == stem);
            name.rsplit_once('/').is_some_and(is_of)
        };
        // Without the table, no engine is visible.
        let names = socket::names().unwrap_or_default().into_iter().filter(is_watched).collect();
        in_turns(names, Instant::now() + FIND_PATIENCE, ask)
    }

    fn is_watched(&self, owner: Owner) -> bool {
        self.owners.contains(&owner)
    }

    /// Fails with the first engine that fails, or if all have exited.
    pub(crate) fn set_idle(&self, policy: IdlePolicy) -> Result<(), Failure> {
        let mut told = 0;
        let silent = self.ask_each(|name, turn| {
            socket::set_idle(name, turn, policy, |owner| self.is_watched(owner))?;
            told += 1;
            Ok(())
        });
        match (silent.iter().find_map(Silence::broken), told) {
            (Some((pid, what)), _) => Err(Failure::Measurement(format!(
                "process {pid} did not set its idle policy: {what}"
            ))),
            (None, 0) => Err(Failure::Measurement(format!("{} has exited", self.who()))),
            (None, _) => Ok(()),
        }
    }

    /// `None` when all have exited. Latencies are those that engines measure from now on.
    pub(crate) fn look(&self, detail: Detail, with_latencies: bool) -> Option<Vec<Found>> {
        self.told(|name, turn, allowance| {
            let is_meant = |owner| self.is_watched(owner);
            let (owner, snapshot) = socket::ask(name, turn, detail, allowance, is_meant)?;
            let measured = || socket::ask_latencies(name, allowance, |other| other == owner);
            let latencies = with_latencies.then(measured).transpose();
            let latencies = latencies.map_err(|silence| silence.say()).ok().flatten();
            Ok(Found { owner, program: program(owner.pid), snapshot, latencies })
        })
    }

    /// `None` when all have exited.
    pub(super) fn slow_calls(&self) -> Option<Vec<EngineCalls>> {
        self.told(|name, turn, allowance| {
            let is_meant = |owner| self.is_watched(owner);
            let (Owner { pid, .. }, calls) = socket::ask_slow(name, turn, allowance, is_meant)?;
            Ok(EngineCalls { pid, program: program(pid), calls })
        })
    }

    /// Answers of all; `None` when all have exited.
    fn told<T>(
        &self,
        mut ask: impl FnMut(&str, Turn, &mut Allowance) -> Result<T, Silence>,
    ) -> Option<Vec<T>> {
        let (mut found, mut allowance) = (Vec::new(), Allowance::of_a_look());
        let silent = self.ask_each(|name, turn| {
            found.push(ask(name, turn, &mut allowance)?);
            Ok(())
        });
        let complaints = silent.iter().filter(|silence| silence.say()).count();
        (complaints > 0 || !found.is_empty()).then_some(found)
    }

    pub(crate) fn buffers_in_use(&self) -> Option<u64> {
        let found = self.look(Detail::Connections, false)?;
        let sum: Option<u64> = found.iter().map(Found::buffers_in_use).sum();
        sum.filter(|_| !found.is_empty())
    }

    pub(crate) fn who(&self) -> String {
        let pids = joined(self.owners.iter().map(|owner| owner.pid), ", ");
        match self.owners.len() {
            1 => format!("the engine of process {pids}"),
            _ => format!("the last engine of processes {pids}"),
        }
    }
}

/// Calls `ask` for each name, and in the next turns for those that it put off; returns why others were silent, except
/// those that have gone. Reports those that are left at `end` or after the last turn, because any process of this host may
/// listen without ever answering.
fn in_turns(
    mut names: Vec<String>,
    end: Instant,
    mut ask: impl FnMut(&str, Turn) -> Result<(), Silence>,
) -> Vec<Silence> {
    let mut silent = Vec::new();
    for turn in Turn::ALL {
        names.retain(|name| {
            let is_over = Instant::now() >= end;
            match if is_over { Err(Silence::Later) } else { ask(name, turn) } {
                Err(Silence::Later) => return true,
                Ok(()) | Err(Silence::Gone) => {}
                Err(silence) => silent.push(silence),
            }
            false
        });
    }
    if !names.is_empty() {
        let left = names.len();
        to_stderr(format_args!(
            "spinperf: {left} control sockets were not queried: others took too long"
        ));
    }
    silent
}

fn is_meant(target: Option<&Target>, owner: Owner, snapshot: &Snapshot) -> bool {
    match target {
        None => true,
        Some(Target::Process(pid)) => owner.pid == *pid,
        Some(Target::Address(address)) => {
            snapshot.listens.contains(address) && may_listen(owner.user, address)
        }
    }
}

/// An engine may claim any address.
fn may_listen(user: u32, address: &str) -> bool {
    match address.strip_prefix("shm:") {
        None => true,
        Some(path) if path.starts_with('/') => {
            fs::metadata(path).is_ok_and(|file| file.uid() == user)
        }
        Some(_) => user == geteuid().as_raw(),
    }
}

fn program(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn why_none(target: Option<&Target>, silent: &[Silence]) -> String {
    match target {
        Some(Target::Process(pid)) => why_not_process(*pid, silent),
        Some(Target::Address(address)) => format!(
            "no process that may be inspected listens at {address}; spinperf top without an \
             address shows those that may: engines of this user (or, for root, all) with \
             stats.export = socket"
        ),
        None => format!(
            "no engine that may be inspected runs here: of this user (or, for root, of any), with \
             stats.export = socket{}",
            if silent.is_empty() { "" } else { "; others do not answer this user" }
        ),
    }
}

fn why_not_process(pid: u32, silent: &[Silence]) -> String {
    for silence in silent {
        match silence {
            Silence::Refused(owner) if owner.pid == pid => {
                let user = owner.user;
                return format!(
                    "process {pid} belongs to user {user}: only that user and root may inspect it"
                );
            }
            Silence::Broken(owner, what) if owner.pid == pid => {
                return format!("process {pid}: {what}");
            }
            _ => {}
        }
    }
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return format!("no such process: {pid}");
    }
    if is_elsewhere(pid) {
        return format!(
            "process {pid} is in another network namespace: nsenter -t {pid} -n spinperf top {pid}"
        );
    }
    let name = program(pid);
    format!("process {pid} ({name}) has no engine, or one with stats.export = none")
}

/// Control sockets are visible within one network namespace.
fn is_elsewhere(pid: u32) -> bool {
    let space = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    let (own, other) = (space("self"), space(&pid.to_string()));
    own.is_some() && other.is_some() && own != other
}

/// Maximum time to search for all engines of this host.
const FIND_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_engine_is_queried_when_the_time_is_over() {
        let names = || vec!["a".to_owned(), "b".to_owned()];
        let now = Instant::now();
        let asked = |end, answer: fn(&str, Turn) -> Result<(), Silence>| {
            let mut asked = Vec::new();
            in_turns(names(), end, |name, turn| {
                asked.push((name.to_owned(), turn));
                answer(name, turn)
            });
            asked
        };
        assert!(asked(now, |_, _| Ok(())).is_empty());
        let put_off = |name: &str, turn| match (name, turn) {
            ("a", Turn::Trusted) => Err(Silence::Later),
            _ => Ok(()),
        };
        let order = [("a", Turn::Trusted), ("b", Turn::Trusted), ("a", Turn::Others)];
        let asked = asked(now + Duration::from_secs(3600), put_off);
        assert_eq!(asked, order.map(|(name, turn)| (name.to_owned(), turn)));
    }

    #[test]
    fn an_address_is_that_of_its_own_user() {
        let own = geteuid().as_raw();
        assert!(may_listen(own, "shm:echo"));
        assert!(!may_listen(own + 1, "shm:echo"));
        let file = std::env::current_exe().unwrap();
        let (path, user) = (format!("shm:{}", file.display()), file.metadata().unwrap().uid());
        assert!(may_listen(user, &path));
        assert!(!may_listen(user + 1, &path));
        assert!(may_listen(own + 1, "rdma://192.0.2.1:20049"));
    }

    #[test]
    fn counts_of_another_process_that_do_not_add_up_do_not_end_this_one() {
        assert_eq!(total([u64::MAX, 2].into_iter()), u64::MAX);
    }

    #[test]
    fn a_target_is_a_process_or_an_address() {
        assert_eq!(Target::parse("4711"), Ok(Target::Process(4711)));
        assert_eq!(Target::parse("shm:echo"), Ok(Target::Address("shm:echo".to_owned())));
        for wrong in ["0", "-1", "echo", "tcp:x", ""] {
            let message = Target::parse(wrong).unwrap_err();
            assert!(message.contains("process id"), "{wrong}: {message}");
        }
    }

    #[test]
    fn a_process_without_an_engine_is_told_from_none() {
        let own = std::process::id();
        assert!(why_not_process(own, &[]).contains("has no engine"));
        assert_eq!(why_not_process(u32::MAX, &[]), format!("no such process: {}", u32::MAX));
        let owner = Owner { pid: own, user: 77 };
        assert!(why_not_process(own, &[Silence::Refused(owner)]).contains("to user 77"));
        let broken = Silence::Broken(owner, "it does not answer".to_owned());
        assert!(why_not_process(own, &[broken]).contains("does not answer"));
    }
}
