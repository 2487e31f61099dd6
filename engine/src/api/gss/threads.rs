//! The thread on which contexts are established: mechanisms may block for half a minute (a key distribution center that
//! does not answer), so they never run on a core. Jobs come from all cores, by a bounded queue.

use super::accept::{Acceptor, GssAcceptor};
use super::securing::Outcome;
use crate::api::errors::EngineError;
use crate::api::helper::spawn_helper;
use crate::reactor::pending::mailbox::{Inbox, Mail};
use crate::sync::lock;
use crossbeam::queue::SegQueue;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};

/// Jobs that wait for the thread at most.
const JOBS_MAX: usize = 256;

/// Something that may block.
type Job = Box<dyn FnOnce() + Send>;

/// What the cores of an engine share.
pub(in crate::api) struct GssShared {
    pub(super) acceptor: OnceLock<Arc<Acceptor>>,
    jobs: Mutex<Option<SyncSender<Job>>>,
    /// There is no thread: a simulation, whose mechanism does not block.
    runs_at_once: bool,
}

/// What one core has of it.
pub(in crate::api) struct GssCore {
    pub(super) shared: Arc<GssShared>,
    /// What the thread has done for this core.
    pub(super) outcomes: SegQueue<Outcome>,
    inbox: Arc<Inbox>,
}

/// As many jobs wait as may, or there is no thread.
pub(super) struct Busy;

impl GssShared {
    pub(in crate::api) fn new(runs_at_once: bool) -> Arc<Self> {
        Arc::new(Self { acceptor: OnceLock::new(), jobs: Mutex::default(), runs_at_once })
    }

    /// Accepts contexts from now on.
    pub(in crate::api) fn accept(&self, with: GssAcceptor) -> Result<(), EngineError> {
        let no_random = || EngineError::Host("the system gives no random numbers".into());
        let acceptor = Acceptor::new(with).map_err(|_| no_random())?;
        let set = self.acceptor.set(Arc::new(acceptor));
        set.map_err(|_| EngineError::ApiMisuse("contexts are accepted already".into()))
    }

    /// Has the thread do something, or does it where there is none.
    pub(super) fn run(&self, job: Job) -> Result<(), Busy> {
        if self.runs_at_once {
            job();
            return Ok(());
        }
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = sync_channel(JOBS_MAX);
            spawn_helper("spin-gss", move || run_jobs(&receiver)).map_err(|_| Busy)?;
            *jobs = Some(sender);
        }
        match &*jobs {
            Some(sender) => sender.try_send(job).map_err(|_| Busy),
            None => Err(Busy),
        }
    }
}

/// Until the engine is gone.
fn run_jobs(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        // What a job holds is dropped: its call is answered SYSTEM_ERR.
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("a security mechanism panicked");
        }
    }
}

impl GssCore {
    pub(in crate::api) fn new(shared: &Arc<GssShared>, inbox: &Arc<Inbox>) -> Arc<Self> {
        let (shared, inbox) = (Arc::clone(shared), Arc::clone(inbox));
        Arc::new(Self { shared, outcomes: SegQueue::new(), inbox })
    }

    /// Tells the core what came of a job.
    pub(super) fn tell(&self, outcome: Outcome) {
        self.outcomes.push(outcome);
        let mut mail = Mail::Context;
        while let Err(back) = self.inbox.post(mail) {
            mail = back;
            std::thread::yield_now();
        }
    }
}
