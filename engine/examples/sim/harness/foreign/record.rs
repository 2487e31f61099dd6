//! What became of each call, and whether its reply must still be there.
//!
//! A reply is kept while the server has free places. Then it makes room when it is the oldest of its host, and that has at
//! least its part of the places, or when it is the oldest of all. Replies that are asked for again become newer. Hosts whose
//! hashes fall together have one part for all of them, and which those are is not seen here: so it is demanded that a reply
//! is kept as long as the places that all hosts have taken or asked for since are at most one part. Calls that were in progress when it was made count: their replies are newer. So does each call that
//! arrives again, with as many places as a reply may have.

use spinrpc::Deferred;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places of a cache of 1 MiB, and the part of one host.
const PLACES: u64 = 1024;
const PART: u64 = PLACES / 4;
/// In the place of a stamp: SYSTEM_ERR.
pub(super) const REFUSED: u32 = 0;
/// Bytes of results in one place.
const PLACE_BYTES: u64 = 512;

pub(super) type Shared = Arc<Mutex<Record>>;

pub(super) fn lock(record: &Shared) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Record {
    /// By token.
    calls: Vec<Call>,
    all: Places,
    /// Bytes of the results of a call at most, and the places for them.
    pub(super) result_bytes_max: u64,
    most: u64,
    /// Calls that were deferred since the last look: for how long.
    pub(super) deferred: Vec<(u64, Deferred, u32)>,
    pub(super) failures: Vec<String>,
    pub(super) sent_again: u64,
    /// Of those that were answered before, the ones that had the same answer.
    pub(super) known_again: u64,
    stamps: u32,
}

#[derive(Default)]
struct Places {
    /// Taken by calls so far.
    begun: u64,
    /// The same, and those of replies that were asked for again.
    renewed: u64,
    running: u64,
}

struct Call {
    host: usize,
    result_bytes: u32,
    execution: Option<Execution>,
}

#[derive(Clone, Copy)]
struct Execution {
    stamp: u32,
    /// Places that are not newer; `None` while it is in progress.
    made: Option<u64>,
}

impl Call {
    fn places(&self) -> u64 {
        // Stamp and length of the results.
        (u64::from(self.result_bytes) + 8).div_ceil(PLACE_BYTES)
    }
}

impl Record {
    pub(super) fn shared(result_bytes_max: u64) -> Shared {
        Arc::new(Mutex::new(Self {
            calls: Vec::new(),
            all: Places::default(),
            result_bytes_max,
            most: (result_bytes_max + 8).div_ceil(PLACE_BYTES),
            deferred: Vec::new(),
            failures: Vec::new(),
            sent_again: 0,
            known_again: 0,
            stamps: 0,
        }))
    }

    pub(super) fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    pub(super) fn open(&mut self, host: usize, result_bytes: u32) -> u32 {
        self.calls.push(Call { host, result_bytes, execution: None });
        self.calls.len() as u32 - 1
    }

    /// A call arrives: the reply of an earlier one becomes newer, unless it is executed.
    pub(super) fn arrive(&mut self) {
        self.all.renewed += self.most;
    }

    /// The call that has arrived is executed; returns the answer that it gets.
    pub(super) fn execute(&mut self, token: u32) -> (u32, u32) {
        let most = self.most;
        let Some(call) = self.calls.get(token as usize) else { return (0, 0) };
        let (host, places) = (call.host, call.places());
        if call.execution.is_some_and(|execution| self.is_kept(&execution)) {
            self.fail(format!("call {token} of host {host} was executed twice"));
        }
        self.all.renewed = self.all.renewed + places - most;
        self.all.begun += places;
        self.all.running += places;
        self.stamps += 1;
        let execution = Execution { stamp: self.stamps, made: None };
        self.calls[token as usize].execution = Some(execution);
        (self.stamps, self.calls[token as usize].result_bytes)
    }

    pub(super) fn reply(&mut self, token: u32) -> (u32, u32) {
        let Some(call) = self.calls.get(token as usize) else { return (0, 0) };
        let (places, bytes) = (call.places(), call.result_bytes);
        self.all.running -= places;
        let made = self.all.renewed - self.all.running - places;
        let execution = self.calls[token as usize].execution.as_mut();
        let stamp = execution.map_or(0, |execution| {
            execution.made = Some(made);
            execution.stamp
        });
        (stamp, bytes)
    }

    /// The call that has been executed cannot be deferred: SYSTEM_ERR is its answer, like any other.
    pub(super) fn refuse(&mut self, token: u32) {
        self.reply(token);
        if let Some(call) = self.calls.get_mut(token as usize) {
            call.result_bytes = 0;
            call.execution.iter_mut().for_each(|execution| execution.stamp = REFUSED);
        }
    }

    /// The reply of this execution, or its place, must be there.
    fn is_kept(&self, execution: &Execution) -> bool {
        let Some(made) = execution.made else { return true };
        self.all.begun <= PLACES || self.all.renewed - made <= PART
    }

    /// A host gets an answer to a call, which it has had before or not: always that of its last execution.
    pub(super) fn hear(&mut self, token: u32, stamp: u32, bytes: usize, before: Option<u32>) {
        let call = &self.calls[token as usize];
        let expected = call.execution.map(|execution| execution.stamp);
        let is_whole = bytes == call.result_bytes as usize;
        self.known_again += u64::from(before == Some(stamp));
        if expected != Some(stamp) || !is_whole {
            self.fail(format!(
                "call {token} got answer {stamp} of {bytes} bytes, was executed as {expected:?}"
            ));
        }
    }
}
