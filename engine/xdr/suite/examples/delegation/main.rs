//! delegation: the Linux server recalls delegations of NFSv4.1 by calls in reverse (RFC 8167), over the connection that the client
//! calls by.
//!
//! In each case client A, whose session has its back channel on its only connection, opens a file and gets a read delegation. Client B,
//! with a connection and session of its own, opens the file for writing, and is told to wait (NFS4ERR_DELAY) until A has returned the
//! delegation or the server has revoked it. The cases differ in A's answer to the recall, and in the calls that A has in flight.

mod load;
mod recalls;
mod session;

use load::Turns;
use recalls::{Answer, Recall, Recalls, SharedRecalls};
use session::{Failure, Opened, Session};
use spinrpc::{Engine, RawConfig, driver_of};
use spinrpc_xdr_suite::nfs41::{self, Nfsstat4, Stateid4, nfs_cb};
use std::process::ExitCode;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Calls of A in flight, as many as the server grants credits less two.
const CALLS: usize = 64;
const PAUSE: Duration = Duration::from_millis(50);
/// Time of a case without the leases that it waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The server has not heard an answer, or one that it does not understand.
const FAULTS: u32 = nfs41::SEQ4_STATUS_CB_PATH_DOWN
    | nfs41::SEQ4_STATUS_CB_PATH_DOWN_SESSION
    | nfs41::SEQ4_STATUS_BACKCHANNEL_FAULT;

struct Case {
    name: &'static str,
    answer: Answer,
    calls: usize,
    /// Calls in reverse that the server makes.
    recalls: usize,
    /// The server tells A that its back channel does not work.
    faults: bool,
}

const fn case(name: &'static str, answer: Answer, recalls: usize, faults: bool) -> Case {
    Case { name, answer, calls: CALLS, recalls, faults }
}

/// The server waits for an answer for a tenth of a lease, and asks a client that is not ready again after two seconds.
fn cases(lease: Duration) -> [Case; 7] {
    let at_once = case("answered at once", Answer::AtOnce, 1, false);
    [
        Case { name: "answered at once, no other call", calls: 0, ..at_once },
        at_once,
        case("answered late", Answer::After(lease / 20), 1, false),
        case("answered too late", Answer::After(lease * 3 / 20), 2, true),
        case("refused, NFS4ERR_DELAY", Answer::NotYet, 2, false),
        case("rejected, SYSTEM_ERR", Answer::Reject, 2, false),
        case("lost with the connection", Answer::Never, 1, false),
    ]
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, lease, files @ ..] = &words[..] else {
        eprintln!("usage: delegation ADDRESS LEASE_SECONDS FILE...");
        return ExitCode::from(2);
    };
    match run(address, lease, files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("delegation: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The server does not delegate a file again soon after a recall, so that each case has its own.
fn run(address: &str, lease: &str, files: &[String]) -> Result<(), Failure> {
    let lease = Duration::from_secs(lease.parse()?);
    let cases = cases(lease);
    if files.len() < cases.len() {
        return Err(format!("{} files are needed, in the root of the server", cases.len()).into());
    }
    for (case, file) in cases.iter().zip(files) {
        let seen = run_case(address, case, file, lease);
        let seen = seen.map_err(|error| format!("{}: {error}", case.name))?;
        println!("{}: {seen}", case.name);
    }
    Ok(())
}

fn run_case(address: &str, case: &Case, file: &str, lease: Duration) -> Result<String, Failure> {
    let mut scene = Scene::new(address, case, file)?;
    if case.calls > 0 {
        scene.turns.load = Some(scene.a.load(case.calls));
    }
    let begun = Instant::now();
    let written = scene.open_for_writing(PATIENCE + 2 * lease)?;
    let took = begun.elapsed();
    scene.check_recalls()?;
    scene.close(&written)?;
    scene.report(took)
}

struct Scene<'c> {
    case: &'c Case,
    file: &'c str,
    turns: Turns,
    a: Session,
    b: Session,
    opened: Opened,
    delegation: Stateid4,
    has_returned: bool,
    is_lost: bool,
    /// Calls of B that were answered with NFS4ERR_DELAY.
    delays: u32,
}

impl<'c> Scene<'c> {
    fn new(address: &str, case: &'c Case, file: &'c str) -> Result<Self, Failure> {
        let mut raw = RawConfig::default();
        // Those of the calls, and those that are left for answers.
        (raw.rpc.credits, raw.rpc.reverse_calls) = (CALLS as u64 + 2, 2);
        let engine = Engine::new(raw.validate()?.with_driver(driver_of(address)?)?)?;
        let recalls = SharedRecalls::new(Recalls::new(case.answer).into());
        let served = SharedRecalls::clone(&recalls);
        engine.serve(nfs_cb::PROGRAM, nfs_cb::VERSION, move |_core| {
            nfs_cb::Server(recalls::Service(SharedRecalls::clone(&served)))
        })?;
        let mut turns = Turns { core: engine.core(0)?, load: None, recalls };
        let mut a = Session::open(&mut turns, address, &format!("spinrpc {file} A"), true)?;
        let b = Session::open(&mut turns, address, &format!("spinrpc {file} B"), false)?;
        let read = nfs41::OPEN4_SHARE_ACCESS_READ | nfs41::OPEN4_SHARE_ACCESS_WANT_READ_DELEG;
        let opened = a.open_file(&mut turns, file, read)??;
        let delegation = opened.delegation.ok_or("the server gave no read delegation")?;
        let (has_returned, is_lost, delays) = (false, false, 0);
        Ok(Self { case, file, turns, a, b, opened, delegation, has_returned, is_lost, delays })
    }

    fn recalls(&self) -> MutexGuard<'_, Recalls> {
        self.turns.recalls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// B asks until the server lets it write. Meanwhile A does what it was asked for.
    fn open_for_writing(&mut self, at_most: Duration) -> Result<Opened, Failure> {
        let write = nfs41::OPEN4_SHARE_ACCESS_WRITE | nfs41::OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
        let end = Instant::now() + at_most;
        while Instant::now() < end {
            match self.b.open_file(&mut self.turns, self.file, write)? {
                Ok(opened) => return Ok(opened),
                Err(refusal) if refusal.0 == Nfsstat4::Nfs4errDelay => self.delays += 1,
                Err(refusal) => return Err(refusal.into()),
            }
            let next = Instant::now() + PAUSE;
            let is_over = || (Instant::now() >= next).then_some(());
            self.turns.until("the next call", PATIENCE, is_over)?;
            self.act()?;
        }
        Err(format!("B waited {at_most:?}: {:?}", self.recalls()).into())
    }

    /// Returns the delegation, or ends the connection, as soon as all recalls have come and are answered.
    fn act(&mut self) -> Result<(), Failure> {
        let seen = self.recalls().seen.len();
        if seen < self.case.recalls || self.is_lost || self.has_returned {
            return Ok(());
        }
        if self.case.answer == Answer::Never {
            self.is_lost = true;
            self.turns.load = None;
            self.a.client.0.close();
        } else if self.recalls().unanswered() == 0 {
            self.a.return_delegation(&mut self.turns, &self.opened, self.delegation)?;
            self.has_returned = true;
        }
        Ok(())
    }

    /// The server recalled this delegation, as often as expected, and B had to wait for it.
    fn check_recalls(&self) -> Result<(), Failure> {
        let recalls = self.recalls();
        let is_other = |recall: &&Recall| recall.stateid.other != self.delegation.other;
        if let Some(other) = recalls.seen.iter().find(is_other) {
            return Err(format!("{other:?} is not of {:?}", self.delegation).into());
        }
        if recalls.seen.len() != self.case.recalls || self.delays == 0 {
            let (delays, recalls_expected) = (self.delays, self.case.recalls);
            return Err(format!("{delays} delays; expected {recalls_expected}: {recalls:?}").into());
        }
        if self.has_returned || self.is_lost {
            return Ok(());
        }
        Err("B may write, and A has not returned the delegation".into())
    }

    /// Ends all calls, closes the files, and ends the sessions. What A has left after the loss of its connection ends with its lease.
    fn close(&mut self, written: &Opened) -> Result<(), Failure> {
        self.b.close_file(&mut self.turns, written)?;
        self.b.end(&mut self.turns)?;
        if !self.is_lost {
            self.turns.unload(PATIENCE)?;
            self.a.close_file(&mut self.turns, &self.opened)?;
            self.check_faults()?;
            self.a.end(&mut self.turns)?;
        }
        let (a, b) = (self.a.client.0.clone(), self.b.client.0.clone());
        let are_down = || (!a.is_up() && !b.is_up()).then_some(());
        self.turns.until("the end of the connections", PATIENCE, are_down)
    }

    fn check_faults(&self) -> Result<(), Failure> {
        let flags = self.a.flags;
        if (flags & FAULTS != 0) == self.case.faults {
            return Ok(());
        }
        Err(format!("the last SEQUENCE had status flags {flags:#x}").into())
    }

    fn report(&self, took: Duration) -> Result<String, Failure> {
        let (recalls, calls) = (self.recalls(), self.a.answered());
        let (most, delays) = (recalls.most_in_flight, self.delays);
        if most != self.case.calls {
            return Err(format!("{most} calls in flight, not {}", self.case.calls).into());
        }
        let seen = recalls.seen.iter();
        let seen: Vec<_> = seen.map(|recall| (recall.sequence, recall.in_flight)).collect();
        Ok(format!(
            "recalls (number, calls in flight) {seen:?}; of {calls} calls {most} in flight at most; B waited {took:.1?}, {delays} delays"
        ))
    }
}
