//! Calls of blocking back ends: threads take them from a bounded queue, perform them, and answer.

use super::answer::Answer;
use super::exports::{Caller, Exports};
use super::file_system::FileKey;
use super::procedures::Arguments;
use super::site::{RequestContext, Site, Visit};
use super::stats::{Counters, Ticket};
use super::threads::{Threads, Work};
use crate::protocol::Nfsstat3;
use spinrpc::{AcceptStatus, CoreContext, Decoder, Deferred};
use std::io;
use std::sync::Arc;

pub(super) struct Job {
    pub(super) call: Deferred,
    pub(super) ticket: Ticket,
    /// As received.
    pub(super) arguments: Vec<u8>,
    /// Those that admitted the call.
    pub(super) exports: Arc<Exports>,
    pub(super) export: u32,
    pub(super) file: FileKey,
    pub(super) caller: Caller,
    /// Core that received the call.
    pub(super) core: CoreContext,
}

#[derive(Debug)]
pub(super) struct Pool {
    /// Jobs that have not started when it is stopped are dropped with the pool, not earlier: dropping
    /// one answers it, which its client must not see while its connection exists.
    pub(super) threads: Threads<Job>,
    calls: Arc<Calls>,
}

#[derive(Debug)]
struct Calls {
    site: Arc<Site>,
    /// Of each thread.
    counters: Box<[Counters]>,
}

impl Pool {
    pub(super) fn start(site: &Arc<Site>) -> io::Result<Self> {
        let count = site.options.threads.max(1);
        let counters = (0..count).map(|_| Counters::default()).collect();
        let calls = Arc::new(Calls { site: Arc::clone(site), counters });
        let queue_max = Some(site.options.queue_max);
        Ok(Self { threads: Threads::start(&calls, "spin-nfs-", count, queue_max)?, calls })
    }

    pub(super) fn counters(&self) -> &[Counters] {
        &self.calls.counters
    }
}

impl Work<Job> for Calls {
    const DRAINS: bool = false;

    /// A panic outside of the back end drops the call, which answers it SYSTEM_ERR.
    fn perform(&self, thread: usize, job: Job) {
        if let Some(counters) = self.counters.get(thread) {
            run(&self.site, job, counters);
        }
    }
}

fn run(site: &Site, job: Job, counters: &Counters) {
    let Job { call, ticket, arguments, exports, export, file, caller, core } = job;
    let decoded = Arguments::decode(ticket.operation, &mut Decoder::plain(&arguments));
    let Ok(Some(arguments)) = decoded else {
        // Cannot happen: the core has decoded the same bytes.
        return call.reject(AcceptStatus::SystemErr);
    };
    // Its client, its user and its handle were checked against the exports of that time: a retry is checked again.
    let is_current = Arc::ptr_eq(&exports, &site.table.current());
    let Some(export) = is_current.then(|| exports.by_id(export)).flatten() else {
        let answer = Answer::later(call, ticket, counters);
        return arguments.refuse(Nfsstat3::Nfs3errJukebox, answer);
    };
    let context = RequestContext { site, visit: Visit { export, file, caller }, core: &core };
    arguments.answer(&context, Answer::later(call, ticket, counters));
}
