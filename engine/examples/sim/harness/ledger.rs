//! State of every call: that it ends once, and the allowed ways to end.

use super::kept::Kept;
use super::program::Waiting;
use super::scenario::{Answer, CallPlan};
use spinrpc::fabric::sim::World;
use spinrpc::{AcceptStatus, CallError, ConnectionId, DownCause, Resend};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the applications of a run; one thread, but factories of services may be sent to others.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) calls: Vec<Entry>,
    /// Virtual time at the last step.
    pub(crate) now_ns: u64,
    /// Has the time within a step: deadlines count by it.
    pub(crate) world: Option<World>,
    /// Calls that were deferred since the last look.
    pub(crate) deferred: Vec<Waiting>,
    /// Every connection that a client makes takes calls in reverse.
    pub(crate) takes_reverse: bool,
    /// Connections that servers may call back by since the last look, and the places of their cores.
    pub(crate) called: Vec<(usize, ConnectionId)>,
    /// Data that an application keeps since the last look.
    pub(crate) kept: Vec<Kept>,
    pub(crate) failures: Vec<String>,
    pub(crate) succeeded: u64,
    pub(crate) ended: u64,
    /// Connections that came up while others of their client were up.
    pub(crate) joined: u64,
    /// Not all go by the rules of the same document: they may misunderstand each other, and then
    /// calls time out, and connections end.
    pub(crate) is_mixed: bool,
}

pub(crate) struct Entry {
    pub(crate) plan: CallPlan,
    pub(crate) link: usize,
    honest: bool,
    started_ns: u64,
    pub(crate) cancelled: bool,
    executions: u32,
    ends: u32,
}

impl Ledger {
    pub(crate) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fail(&self, what: impl Into<String>) {
        self.entries().fail(what);
    }

    /// A connection between two that keep the rules ended. Faults of the network are expected, and clients that get no security
    /// context because of them, or of limits of the server.
    pub(crate) fn hear_end(&self, cause: &DownCause) {
        use DownCause::{Local, PeerDied, Remote, Security};
        let is_fault = matches!(cause, Local | Remote | PeerDied | Security(_));
        if !is_fault && !self.entries().is_mixed {
            self.fail(format!("an engine lost its connection: {cause}"));
        }
    }
}

impl Entries {
    fn time_ns(&self) -> u64 {
        self.world.as_ref().map_or(self.now_ns, World::now_ns)
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        let now_ns = self.now_ns;
        self.failures.push(format!("at {now_ns} ns: {}", what.into()));
    }

    pub(crate) fn open(&mut self, plan: CallPlan, link: usize, honest: bool) -> u64 {
        let started_ns = self.time_ns();
        self.calls.push(Entry {
            plan,
            link,
            honest,
            started_ns,
            cancelled: false,
            executions: 0,
            ends: 0,
        });
        self.calls.len() as u64 - 1
    }

    /// The call that was opened last was not started after all.
    pub(crate) fn withdraw(&mut self) -> Option<CallPlan> {
        self.calls.pop().map(|entry| entry.plan)
    }

    /// Calls of a link that have not ended.
    pub(crate) fn open_calls(&self, link: usize) -> usize {
        self.calls.iter().filter(|entry| entry.link == link && entry.ends == 0).count()
    }

    pub(crate) fn execute(&mut self, token: u64, arguments: &[usize], answer: Answer) {
        let Some(entry) = self.calls.get_mut(token as usize) else {
            return self.fail(format!("call {token} reached a server and was never made"));
        };
        entry.executions += 1;
        if entry.executions > 1 && entry.plan.resend != Resend::AtLeastOnce {
            return self.fail(format!("call {token} was executed twice"));
        }
        if entry.plan.arguments != arguments || entry.plan.answer != answer {
            self.fail(format!("call {token} reached the server with other arguments"));
        }
    }

    pub(crate) fn end(&mut self, token: u64, result: Result<(), CallError>) {
        let (now_ns, is_mixed) = (self.time_ns(), self.is_mixed);
        let Some(entry) = self.calls.get_mut(token as usize) else {
            return self.fail(format!("call {token} ended and was never made"));
        };
        entry.ends += 1;
        let problem = match &result {
            _ if entry.ends > 1 => Some("ended twice".to_owned()),
            Ok(()) => entry.wrong_success(),
            Err(_) if is_mixed => None,
            Err(error) => entry.wrong_error(error, now_ns),
        };
        self.succeeded += u64::from(result.is_ok());
        self.ended += 1;
        if let Some(problem) = problem {
            self.fail(format!("call {token} {problem}"));
        }
    }
}

impl Entry {
    fn wrong_success(&self) -> Option<String> {
        let answers = matches!(self.plan.answer, Answer::Now | Answer::Later(_));
        let is_wrong = self.honest && (self.executions == 0 || !answers);
        is_wrong.then(|| "succeeded, although it was not answered".to_owned())
    }

    fn wrong_error(&self, error: &CallError, now_ns: u64) -> Option<String> {
        let is_right = match error {
            CallError::TimedOut => return self.wrong_timeout(now_ns),
            CallError::Cancelled => self.cancelled,
            CallError::Disconnected(_) => true,
            CallError::NotExecuted(_) => !self.honest || self.executions == 0,
            // Of the server's memory, or of the client's for a private copy: there may be none.
            CallError::Accepted(AcceptStatus::SystemErr) | CallError::NoMemory => true,
            CallError::Rdma(_) => !self.honest || self.plan.is_cramped,
            _ => !self.honest,
        };
        (!is_right).then(|| format!("ended with `{error}`"))
    }

    fn wrong_timeout(&self, now_ns: u64) -> Option<String> {
        let deadline_ns = self.plan.deadline?.as_nanos() as u64;
        let early = now_ns < self.started_ns + deadline_ns;
        early.then(|| format!("timed out before its deadline of {deadline_ns} ns"))
    }
}
