//! Tokens of clients, for each of which a mechanism may ask name services that block for long.

use super::threads::{Busy, GssShared, Job};
use super::workers::{Entry, Kind, Shared, Workers};
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
        let workers = Workers::new("spin-gss-accept", THREADS_MAX);
        Self { workers, is_swept: AtomicBool::new(false) }
    }
}

impl Accepting {
    /// Has a thread take a token of this host.
    pub(super) fn run(&self, host: u64, job: Job, shared: Weak<GssShared>) -> Result<(), Busy> {
        let (workers, kind) = (self.workers.shared(), Kind::Of(host));
        workers.add([Entry { kind, due: Instant::now(), wanted: None, job }], |state| {
            let is_token = |kind| matches!(kind, Kind::Of(_));
            let own = state.waiting(|other| other == kind);
            state.waiting(is_token) < TOKENS_MAX && own < HOST_TOKENS_MAX
        })?;
        match self.is_swept.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => sweep_later(workers, shared),
        }
    }
}

fn sweep_later(workers: &Arc<Shared>, shared: Weak<GssShared>) -> Result<(), Busy> {
    let again = Arc::downgrade(workers);
    let job = Box::new(move || {
        if let Some(acceptor) = shared.upgrade().as_ref().and_then(|shared| shared.acceptor.get()) {
            acceptor.table.sweep(now());
        }
        drop(again.upgrade().map(|workers| sweep_later(&workers, shared)));
    });
    let due = Instant::now() + SWEEP_PAUSE;
    workers.add([Entry { kind: Kind::Quick, due, wanted: None, job }], |_| true)
}
