//! Answers scans on a second thread.
//!
//! A checksum reads the whole value, of up to a megabyte, and a scan may need a hundred of them: on
//! the polling thread, all other calls would wait. So the service selects the entries, which is
//! fast, and a thread computes the checksums and sends the reply.

use crate::kv::protocol::kv_v1::KvScan;
use crate::kv::protocol::{KvEntry, KvPage, KvScanResult, Status};
use crate::kv::store::Value;
use spinrpc_xdr::rpc::TypedDeferred;
use spinrpc_xdr::{Array, Opaque};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

/// Maximum number of waiting scans; further ones are answered [`Status::KvBusy`].
const JOBS_MAX: usize = 64;

/// One scan: its entries, and the call to answer.
pub(crate) struct Job {
    /// Keys and values of the page, in order.
    pub(crate) found: Vec<(Vec<u8>, Value)>,
    /// True if there are more keys.
    pub(crate) more: bool,
    /// The call.
    pub(crate) call: TypedDeferred<KvScan>,
}

/// The service's end of the thread. Dropping it waits for queued scans.
pub(crate) struct Scanner {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Scanner {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel(JOBS_MAX);
        let builder = thread::Builder::new().name("kv-scanner".to_owned());
        let thread = builder.spawn(move || answer_all(&queue))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a scan; never blocks.
    pub(crate) fn submit(&self, job: Job) {
        let Some(jobs) = &self.jobs else { return };
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) = jobs.try_send(job) {
            job.call.reply(&KvScanResult::Default(Status::KvBusy));
        }
    }
}

impl Drop for Scanner {
    fn drop(&mut self) {
        self.jobs = None; // the thread ends with its queue
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn answer_all(queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        let entries: Vec<KvEntry<'_>> = job.found.iter().filter_map(entry).collect();
        // The service selects at most a page of keys.
        let entries = Array::new(&entries).unwrap_or_default();
        job.call.reply(&KvScanResult::KvOk(KvPage { entries, more: job.more }));
    }
}

/// `None` for a key that is too long, which no call can have stored.
fn entry((key, value): &(Vec<u8>, Value)) -> Option<KvEntry<'_>> {
    let bytes = value.bytes();
    let key = Opaque::new(key).ok()?;
    Some(KvEntry { key, value_bytes: bytes.len() as u32, value_crc32: crc32fast::hash(bytes) })
}
