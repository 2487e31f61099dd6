//! Tokens of clients, for each of which a mechanism may ask name services that block for long. One host has at most half of
//! the threads that the others leave, so that a name service that does not answer for the users of a few hosts does not hold
//! up the next one.

use super::threads::{Busy, GssShared, Job, run_job};
use crate::api::workers::{Entry, Kind, Shared, Workers};
use crate::reactor::types::protection::now;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Tokens that wait for a thread at most, and those of one host.
const TOKENS_MAX: usize = 256;
const HOST_TOKENS_MAX: usize = 64;

/// Tokens that threads work on at a time.
const THREADS_MAX: usize = 8;

/// So often contexts that have ended are forgotten, with their keys, also when no other comes.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Accepting {
    workers: Workers,
    is_swept: AtomicBool,
}

impl Default for Accepting {
    fn default() -> Self {
        // 4, 2, 1 and 1 of 8 for hosts whose tokens all block.
        let may_begin = |running, own| own + running < THREADS_MAX;
        let workers = Workers::new("spin-gss-accept", run_job, may_begin);
        Self { workers, is_swept: AtomicBool::new(false) }
    }
}

impl Accepting {
    /// Has a thread take a token of this host.
    pub(super) fn run(&self, host: u64, job: Job, shared: Weak<GssShared>) -> Result<(), Busy> {
        let (workers, kind) = (self.workers.shared(), Kind::Of(host));
        let token = Entry { kind, due: Instant::now(), wanted: None, job };
        let is_accepted = workers.add([token], |state| {
            let is_token = |kind| matches!(kind, Kind::Of(_));
            let own = state.waiting(|other| other == kind);
            state.waiting(is_token) < TOKENS_MAX && own < HOST_TOKENS_MAX
        });
        if is_accepted && !self.is_swept.swap(true, Ordering::Relaxed) {
            sweep_later(workers, shared);
        }
        is_accepted.then_some(()).ok_or(Busy)
    }
}

fn sweep_later(workers: &Arc<Shared>, shared: Weak<GssShared>) {
    let again = Arc::downgrade(workers);
    let job = Box::new(move || {
        if let Some(acceptor) = shared.upgrade().as_ref().and_then(|shared| shared.acceptor.get()) {
            acceptor.table.sweep(now());
        }
        if let Some(workers) = again.upgrade() {
            sweep_later(&workers, shared);
        }
    });
    let due = Instant::now() + SWEEP_PAUSE;
    workers.add([Entry { kind: Kind::Quick, due, wanted: None, job }], |_| true);
}
