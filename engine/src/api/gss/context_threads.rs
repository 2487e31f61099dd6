//! The threads on which contexts are established, a few for those of clients (`initiator_threads`) and a few for those of
//! servers: mechanisms may block for half a minute (a key distribution center that does not answer), so they never run
//! on a core, and the contexts that a process asks for do not wait for those that others ask of it. Jobs come from all
//! cores. Those of clients are as many as there are clients; those of servers are bounded, and for each host.

use super::acceptor::{Acceptor, GssAcceptor};
use super::client_context::Outcome;
use super::initiator_threads::Initiating;
use super::keys::clear_stack;
use super::stats::{GssCounts, GssStats};
use crate::api::blocking_threads::{Entry, Job, Kind, Shared, Workers};
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
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Tokens that wait for a thread at most, and those of one host.
const TOKENS_MAX: usize = 256;
const HOST_TOKENS_MAX: usize = 64;

/// Tokens that threads work on at a time.
const THREADS_MAX: usize = 8;

/// So often contexts that have ended are forgotten, with their keys, also when no other comes.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);

pub(in crate::api) struct GssShared {
    pub(super) acceptor: OnceLock<Arc<Acceptor>>,
    initiating: Initiating,
    /// Tokens of clients, for each of which a mechanism may ask name services that block for long. One host has at most half of
    /// the threads that the others leave, so that a name service that does not answer for the users of a few hosts does not
    /// hold up the next one.
    accepting: Workers,
    /// Contexts that have ended are forgotten from time to time.
    is_swept: AtomicBool,
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

impl GssShared {
    pub(in crate::api) fn new(runs_at_once: bool, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            acceptor: OnceLock::new(),
            initiating: Initiating::default(),
            // 4, 2, 1 and 1 of 8 for hosts whose tokens all block.
            accepting: Workers::new("spin-gss-accept", run_job, |running, own| {
                own + running < THREADS_MAX
            }),
            is_swept: AtomicBool::new(false),
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
    /// the time that mechanisms have, `late` is run. Nothing is done, or kept, once it is not `wanted`. Returns false if as many
    /// jobs wait as may, or there is no thread.
    pub(super) fn initiate(
        &self,
        after: Duration,
        wanted: &Arc<AtomicBool>,
        job: impl FnOnce() + Send + 'static,
        late: impl FnOnce() + Send + 'static,
    ) -> bool {
        if self.runs_at_once {
            job();
            return true;
        }
        let due = Instant::now() + after;
        let (times, jobs) =
            ((due, due + self.patience), (Box::new(job) as Job, Box::new(late) as Job));
        self.initiating.run(times, Arc::clone(wanted), jobs)
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

    /// Has a thread of servers take a token of this host, unless as many wait as may, or there is no thread.
    pub(super) fn take_token(self: &Arc<Self>, host: u64, job: impl FnOnce() + Send + 'static) {
        if self.runs_at_once {
            return job();
        }
        let (workers, kind) = (self.accepting.shared(), Kind::Of(host));
        let token = Entry { kind, due: Instant::now(), wanted: None, job: Box::new(job) };
        let is_accepted = workers.add([token], |state| {
            let is_token = |kind| matches!(kind, Kind::Of(_));
            let own = state.waiting(|other| other == kind);
            state.waiting(is_token) < TOKENS_MAX && own < HOST_TOKENS_MAX
        });
        if is_accepted && !self.is_swept.swap(true, Ordering::Relaxed) {
            sweep_later(workers, Arc::downgrade(self));
        }
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
        let mut mail = Mail::GssResult;
        while let Err(back) = self.inbox.post(mail) {
            mail = back;
            std::thread::yield_now();
        }
    }
}
