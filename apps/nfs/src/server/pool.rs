//! Calls of blocking back ends: threads take them from a bounded queue, perform them, and answer. Called
//! by `service`.

use super::answer::Answer;
use super::exports::{Caller, Exports};
use super::file_system::FileKey;
use super::procedures::Arguments;
use super::site::{RequestContext, Site, Visit};
use super::stats::{Counters, ServerStats};
use super::threads::{Threads, Work};
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::{AcceptStatus, CoreContext, Decoder, Deferred};
use std::io;
use std::sync::Arc;

/// A queued call.
pub(super) struct Job {
    pub(super) call: Deferred,
    pub(super) operation: ProcedureId,
    /// As received.
    pub(super) arguments: Vec<u8>,
    /// Those that admitted the call.
    pub(super) exports: Arc<Exports>,
    /// Number of the export.
    pub(super) export: u32,
    pub(super) file: FileKey,
    pub(super) caller: Caller,
    /// Core that received the call.
    pub(super) core: CoreContext,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    threads: Threads<Job>,
    calls: Arc<Calls>,
}

/// State shared by the threads.
#[derive(Debug)]
struct Calls {
    site: Arc<Site>,
    /// Of each thread.
    counters: Box<[Counters]>,
}

impl Pool {
    /// Starts as many threads as the options say, at least one.
    pub(super) fn start(site: &Arc<Site>) -> io::Result<Self> {
        let count = site.options.threads.max(1);
        let counters = (0..count).map(|_| Counters::default()).collect();
        let calls = Arc::new(Calls { site: Arc::clone(site), counters });
        let queue_max = Some(site.options.queue_max);
        Ok(Self { threads: Threads::start(&calls, "spin-nfs-", count, queue_max)?, calls })
    }

    /// Starts no further jobs. Jobs that have not started are dropped with the pool, not earlier:
    /// dropping one answers it, which its client must not see while its connection exists.
    pub(super) fn stop(&self) {
        self.threads.stop();
    }

    /// Queues a job; returns it if the queue is full. Never blocks.
    #[expect(clippy::result_large_err, reason = "the job itself comes back")]
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        self.threads.submit(job)
    }

    pub(super) fn add_to(&self, sum: &mut ServerStats) {
        self.calls.counters.iter().for_each(|thread| thread.add_to(sum));
    }
}

impl Work<Job> for Calls {
    /// See [`Pool::stop`].
    const DRAINS: bool = false;

    /// A panic outside of the back end drops the call, which answers it SYSTEM_ERR.
    fn perform(&self, thread: usize, job: Job) {
        if let Some(counters) = self.counters.get(thread) {
            run(&self.site, job, counters);
        }
    }
}

fn run(site: &Site, job: Job, counters: &Counters) {
    let Job { call, operation, arguments, exports, export, file, caller, core } = job;
    let decoded = Arguments::decode(operation, &mut Decoder::plain(&arguments));
    let Ok(Some(arguments)) = decoded else {
        // Cannot happen: the core has decoded the same bytes.
        return call.reject(AcceptStatus::SystemErr);
    };
    // Its client, its user and its handle were checked against the exports of that time: a retry is checked again.
    let is_current = Arc::ptr_eq(&exports, &site.table.current());
    let Some(export) = is_current.then(|| exports.by_id(export)).flatten() else {
        let answer = Answer::later(call, operation, counters);
        return arguments.refuse(Nfsstat3::Nfs3errJukebox, answer);
    };
    let context = RequestContext { site, visit: Visit { export, file, caller }, core: &core };
    arguments.answer(&context, Answer::later(call, operation, counters));
}
