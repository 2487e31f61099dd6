//! The threads on which contexts are established, a few for those of clients (`initiator_threads`) and a few for those of servers
//! (`acceptor_threads`): mechanisms may block for half a minute (a key distribution center that does not answer), so they never run
//! on a core, and the contexts that a process asks for do not wait for those that others ask of it. Jobs come from all
//! cores. Those of clients are as many as there are clients; those of servers are bounded, and for each host.

use super::acceptor::{Acceptor, GssAcceptor};
use super::acceptor_threads::Accepting;
use super::client_context::Outcome;
use super::initiator_threads::{Initiating, Task};
use super::keys::clear_stack;
use super::stats::{GssCounts, GssStats};
use crate::api::errors::EngineError;
use crate::api::helper_thread::spawn_helper;
use crate::config::Config;
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::reactor::types::protection::now;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use crate::sys::journal::event;
use crossbeam::queue::SegQueue;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Something that may block.
pub(super) type Job = Box<dyn FnOnce() + Send>;

pub(in crate::api) struct GssShared {
    pub(super) acceptor: OnceLock<Arc<Acceptor>>,
    initiating: Initiating,
    accepting: Accepting,
    /// There are no threads: a simulation, whose mechanism does not block.
    runs_at_once: bool,
    unused: Duration,
    pub(super) patience: Duration,
    /// Those of threads that are no core.
    pub(super) counts: Arc<GssCounts>,
    cores: Mutex<Vec<(Arc<GssCounts>, Arc<CryptoCounts>)>>,
}

pub(in crate::api) struct GssCore {
    pub(super) shared: Arc<GssShared>,
    pub(super) outcomes: SegQueue<Outcome>,
    pub(super) counts: Arc<GssCounts>,
    pub(super) crypto: Arc<CryptoCounts>,
    inbox: Arc<Inbox>,
}

/// As many jobs wait as may, or there is no thread.
pub(super) struct Busy;

impl GssShared {
    pub(in crate::api) fn new(runs_at_once: bool, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            acceptor: OnceLock::new(),
            initiating: Initiating::default(),
            accepting: Accepting::default(),
            runs_at_once,
            unused: config.gss_unused(),
            patience: config.gss_mechanism_time(),
            counts: Arc::default(),
            cores: Mutex::default(),
        })
    }

    pub(in crate::api) fn stats(&self) -> GssStats {
        let mut stats = GssStats::default();
        stats.add(&self.counts);
        for (counts, crypto) in &*lock(&self.cores) {
            stats.add(counts);
            stats.add_crypto(crypto);
        }
        if let Some(acceptor) = self.acceptor.get() {
            let table = &acceptor.table;
            table.sweep(now());
            stats.contexts = table.len() as u64;
            (stats.contexts_expired, stats.contexts_evicted) = (table.expired(), table.evicted());
        }
        stats
    }

    pub(in crate::api) fn accept(&self, with: GssAcceptor) -> Result<(), EngineError> {
        let no_random = || EngineError::Host("the system gives no random numbers".into());
        let acceptor = Acceptor::new(with, self.unused, &self.counts).map_err(|_| no_random())?;
        let set = self.acceptor.set(Arc::new(acceptor));
        set.map_err(|_| EngineError::ApiMisuse("contexts are accepted already".into()))
    }

    /// Has a thread of clients do something after this time, or does it now where there is none. If it has not returned in
    /// the time that mechanisms have, `late` is run. Nothing is done, or kept, once it is not `wanted`.
    pub(super) fn initiate(
        &self,
        after: Duration,
        wanted: &Arc<AtomicBool>,
        job: impl FnOnce() + Send + 'static,
        late: impl FnOnce() + Send + 'static,
    ) -> Result<(), Busy> {
        if self.runs_at_once {
            job();
            return Ok(());
        }
        let due = Instant::now() + after;
        let (job, late) = (Box::new(job), Box::new(late));
        let (deadline, wanted) = (due + self.patience, Arc::clone(wanted));
        self.initiating.run(Task { due, deadline, wanted, job, late })
    }

    /// The connection of a client has gone: its next step is not kept until it is due.
    pub(super) fn forget(&self, wanted: &AtomicBool) {
        if wanted.swap(false, Ordering::Relaxed) {
            self.initiating.forget_unwanted();
        }
    }

    /// Work can be left to a thread.
    pub(super) fn has_threads(&self) -> bool {
        !self.runs_at_once
    }

    /// Has a thread of servers take a token of this host.
    pub(super) fn take_token(
        self: &Arc<Self>,
        host: u64,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<(), Busy> {
        if self.runs_at_once {
            job();
            return Ok(());
        }
        self.accepting.run(host, Box::new(job), Arc::downgrade(self))
    }
}

pub(super) fn run_job(job: Job) {
    // What a job holds is dropped: its call is answered SYSTEM_ERR.
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        event!(ERROR, "a security mechanism panicked");
    }
    clear_stack();
}

impl GssCore {
    pub(in crate::api) fn new(
        shared: &Arc<GssShared>,
        inbox: &Arc<Inbox>,
        ops: &CoreCell,
    ) -> Arc<Self> {
        if shared.has_threads() {
            ops.start_threads_by(|run| spawn_helper("spin-gss-body", run).is_ok());
        }
        let (shared, inbox, crypto) =
            (Arc::clone(shared), Arc::clone(inbox), Arc::clone(&ops.crypto));
        let counts = Arc::<GssCounts>::default();
        lock(&shared.cores).push((Arc::clone(&counts), Arc::clone(&crypto)));
        Arc::new(Self { shared, outcomes: SegQueue::new(), counts, crypto, inbox })
    }

    pub(super) fn tell(&self, outcome: Outcome) {
        self.outcomes.push(outcome);
        let mut mail = Mail::Context;
        while let Err(back) = self.inbox.post(mail) {
            mail = back;
            std::thread::yield_now();
        }
    }
}
