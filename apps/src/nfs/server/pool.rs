//! Threads for blocking operations of back ends. They take calls from a bounded queue, perform
//! them, and answer. Called by `service`.

use super::answer::Answer;
use super::containment::contained;
use super::exports::Caller;
use super::file_system::FileKey;
use super::procedures::Arguments;
use super::site::{Scene, Site, Visit};
use super::stats::{Counters, ServerStats};
use crate::nfs::protocol::ProcedureId;
use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use spinrpc::{AcceptStatus, CoreContext, Decoder, Deferred};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A queued call.
pub(super) struct Job {
    pub(super) call: Deferred,
    pub(super) operation: ProcedureId,
    /// As received.
    pub(super) arguments: Vec<u8>,
    /// Number of the export.
    pub(super) export: u32,
    pub(super) file: FileKey,
    pub(super) caller: Caller,
    /// Core that received the call.
    pub(super) core: CoreContext,
}

/// See the module. Dropping it waits for calls in progress; queued ones are dropped.
#[derive(Debug)]
pub(super) struct Pool {
    /// `None` only while it is dropped.
    queue: Option<Sender<Job>>,
    /// The other end, so that jobs left when the threads have stopped are kept until this is
    /// dropped.
    _jobs: Receiver<Job>,
    is_stopped: Arc<AtomicBool>,
    /// Each ends with the job, if any, that it had taken but not started when it was stopped.
    threads: Vec<JoinHandle<Option<Job>>>,
    counters: Vec<Arc<Counters>>,
}

impl Pool {
    /// Starts as many threads as the options say, at least one.
    pub(super) fn start(site: &Arc<Site>) -> io::Result<Self> {
        let (queue, jobs) = bounded(site.options.queue_max);
        let is_stopped = Arc::default();
        let mut pool = Self {
            queue: Some(queue),
            _jobs: jobs.clone(),
            is_stopped: Arc::clone(&is_stopped),
            threads: Vec::new(),
            counters: Vec::new(),
        };
        for number in 0..site.options.threads.max(1) {
            let counters = Arc::<Counters>::default();
            pool.counters.push(Arc::clone(&counters));
            let (site, jobs, is_stopped) =
                (Arc::clone(site), jobs.clone(), Arc::clone(&is_stopped));
            let thread = thread::Builder::new().name(format!("spin-nfs-{number}"));
            pool.threads.push(thread.spawn(move || work(&site, &jobs, &is_stopped, &counters))?);
        }
        Ok(pool)
    }

    /// Starts no further jobs. Jobs that have not started are dropped with the pool, not earlier:
    /// dropping one answers it, which its client must not see while its connection exists.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Queues a job; returns it if the queue is full. Never blocks.
    #[expect(clippy::result_large_err, reason = "the job itself comes back")]
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        let Some(queue) = &self.queue else { return Err(job) };
        queue.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    pub(super) fn add_to(&self, sum: &mut ServerStats) {
        self.counters.iter().for_each(|thread| thread.add_to(sum));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Runs jobs until the pool is stopped.
fn work(
    site: &Site,
    jobs: &Receiver<Job>,
    is_stopped: &AtomicBool,
    counters: &Counters,
) -> Option<Job> {
    for job in jobs {
        if is_stopped.load(Ordering::Acquire) {
            return Some(job);
        }
        // Also contains a panic outside of the back end: its call is dropped, and so answered
        // SYSTEM_ERR.
        let _ = contained(|| {
            run(site, job, counters);
            Ok(())
        });
    }
    None
}

fn run(site: &Site, job: Job, counters: &Counters) {
    let Job { call, operation, arguments, export, file, caller, core } = job;
    let decoded = Arguments::decode(operation, &mut Decoder::plain(&arguments));
    let (Ok(Some(arguments)), Some(export)) = (decoded, site.exports.by_id(export)) else {
        // Cannot happen: the core has decoded the same bytes, and found the export.
        return call.reject(AcceptStatus::SystemErr);
    };
    let scene = Scene { site, visit: Visit { export, file, caller }, core: &core };
    arguments.answer(&scene, Answer::later(call, operation, counters));
}
