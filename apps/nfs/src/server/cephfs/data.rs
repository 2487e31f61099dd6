//! READ, WRITE and COMMIT: queued by cores, performed by threads.

use super::Gateway;
use super::node::Node;
use super::session::Session;
use crate::protocol::{Nfsstat3, Sattr3, StableHow, WccData};
use crate::server::caller::Caller;
use crate::server::catch_panic::contained;
use crate::server::file_system::{DataPath, Done, FileKey, Outcome, Request, Started, WriteData};
use crate::server::nodes::{Held, TICK};
use crate::server::rights::{ModeBits, Right};
use crate::server::threads::{Threads, Work};
use spinrpc::{Bulk, CoreContext, Progress};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Sessions that a COMMIT tries, of which all but the last were lost.
const COMMITS_MAX: u32 = 2;

/// Unbounded: each core has no more requests at a time than slots.
pub(super) type Workers = Threads<Job>;

pub(super) struct Job {
    /// The core's number, for its answer.
    number: u32,
    caller: Caller,
    key: FileKey,
    request: Request<Bulk>,
    /// Has room for answers to all requests that the core has at a time.
    answers: SyncSender<(u32, Done)>,
    core: CoreContext,
}

impl Work<Job> for Gateway {
    const TICK: Option<Duration> = Some(TICK);

    /// No caller waits for the answers, jobs hold memory of cores, and files that were written must
    /// still be synced and closed.
    const DRAINS: bool = true;

    fn perform(&self, _: usize, job: Job) {
        let Job { number, caller, key, request, answers, core } = job;
        let done = contained(|| Ok(self.answer(&caller, &key, request)));
        // A core that has stopped meanwhile needs no answer.
        let _ = answers.try_send((number, done.unwrap_or_else(failed)));
        core.wake();
    }

    fn tend(&self) {
        self.current().tend();
    }
}

impl Gateway {
    fn answer(&self, caller: &Caller, key: &FileKey, request: Request<Bulk>) -> Done {
        if let Request::Commit { .. } = request {
            return self.commit(caller, key);
        }
        let session = match self.session() {
            Ok(session) => session,
            Err(status) => return failed(status),
        };
        let done = session.transfer(caller, key, request);
        done.unwrap_or_else(|status| Done::Failed { status, attributes: session.known(key) })
    }

    /// Commits. When Ceph has evicted this client, the next session commits, which has nothing to sync: that
    /// changes the write verifier, so that the NFS client writes again what it has not committed. With
    /// NFS3ERR_IO it would drop these data. NFS3ERR_JUKEBOX as long as there is no other session.
    fn commit(&self, caller: &Caller, key: &FileKey) -> Done {
        for _ in 0..COMMITS_MAX {
            let Ok(session) = self.session() else { break };
            match session.commit(caller, key) {
                Ok(done) => return done,
                Err(_) if session.is_lost() => {}
                Err(status) => return Done::Failed { status, attributes: session.known(key) },
            }
        }
        failed(Nfsstat3::Nfs3errJukebox)
    }
}

impl Session {
    fn transfer(&self, caller: &Caller, key: &FileKey, request: Request<Bulk>) -> Outcome<Done> {
        let node = self.node(key)?;
        node.demand_regular()?;
        match request {
            Request::Read { offset, into } => self.read(caller, &node, offset, into),
            Request::Write { offset, data, stable } => {
                self.write(caller, &node, offset, &data, stable)
            }
            Request::Commit { .. } => self.commit(caller, key),
        }
    }

    fn commit(&self, caller: &Caller, key: &FileKey) -> Outcome<Done> {
        let node = self.node(key)?;
        node.demand_regular()?;
        let mut wcc = WccData::default();
        self.changing_by(0, &node, &mut wcc, |present| {
            present.demand_data(caller, Right::Write)?;
            self.syncing(&node, || Ok(()))
        })?;
        Ok(Done::Committed { wcc })
    }

    /// The attributes are those from before: to read changes but the time of access.
    fn read(&self, caller: &Caller, node: &Node, offset: u64, mut into: Bulk) -> Outcome<Done> {
        let present = self.live(&node.inode)?;
        present.demand_data(caller, Right::Read)?;
        let file = self.ok(node.open_to_read())?;
        let wanted = into.len();
        let mut bytes = 0;
        while let Some(left @ [_, ..]) = into.bytes_mut().get_mut(bytes..wanted) {
            match file.read(offset + bytes as u64, left) {
                Ok(0) => break,
                Ok(count) => bytes += count,
                Err(error) => return Err(self.status(error)),
            }
        }
        let size = present.attributes.size;
        let is_end = bytes < wanted || offset.saturating_add(bytes as u64) >= size;
        into.set_len(bytes);
        Ok(Done::Read { data: into, is_end, attributes: Some(present.attributes) })
    }

    fn write(
        &self,
        caller: &Caller,
        node: &Node,
        offset: u64,
        data: &Bulk,
        stable: StableHow,
    ) -> Outcome<Done> {
        let (mut wcc, mut bytes) = (WccData::default(), 0);
        let written = self.changing(node, &mut wcc, |present| {
            present.demand_data(caller, Right::Write)?;
            let mode = present.mode_written(caller);
            if mode != present.attributes.mode && !data.bytes().is_empty() {
                let mode = Sattr3 { mode: Some(mode), ..Sattr3::default() };
                self.set(&node.inode, caller, present, &mode)?;
            }
            let mut put = || self.put(node, offset, data.bytes(), &mut bytes);
            if stable == StableHow::Unstable { put() } else { self.syncing(node, put) }
        });
        let committed = match stable {
            StableHow::Unstable => StableHow::Unstable,
            _ => StableHow::FileSync,
        };
        match written {
            Ok(()) => {}
            // What was written before the error counts, unless it was to be synced.
            Err(_) if bytes > 0 && stable == StableHow::Unstable && !self.is_lost() => {}
            Err(status) => return Err(status),
        }
        Ok(Done::Written { count: u32::try_from(bytes).unwrap_or(u32::MAX), committed, wcc })
    }

    /// Writes; `bytes` is the number of those written, also after an error.
    fn put(&self, node: &Node, offset: u64, data: &[u8], bytes: &mut usize) -> Outcome<()> {
        let file = self.ok(node.open_to_write())?;
        while let Some(left @ [_, ..]) = data.get(*bytes..) {
            // Before it, so that no thread closes the file without a sync meanwhile, and after it, because a
            // sync may have missed it.
            node.set_dirty(true);
            let count = self.ok(file.write(offset + *bytes as u64, left))?;
            node.set_dirty(true);
            if count == 0 {
                return Err(Nfsstat3::Nfs3errIo);
            }
            *bytes += count;
        }
        Ok(())
    }

    /// Attributes of a file after a failure, as far as the cluster still gives them.
    fn known(&self, key: &FileKey) -> Option<crate::protocol::Fattr3> {
        if self.is_lost() { None } else { self.attributes(key).ok() }
    }
}

pub(super) struct CephPath {
    gateway: Arc<super::Cephfs>,
    /// Has buffers for bytes that arrived in the message, until they are written.
    core: CoreContext,
    free: Vec<u32>,
    answers: SyncSender<(u32, Done)>,
    answered: Receiver<(u32, Done)>,
}

impl CephPath {
    /// For up to `depth` requests at a time. Allocates.
    pub(super) fn new(gateway: Arc<super::Cephfs>, core: &CoreContext, depth: u32) -> Self {
        let depth = depth.max(1);
        let (answers, answered) = sync_channel(depth as usize);
        Self { gateway, core: core.clone(), free: (0..depth).rev().collect(), answers, answered }
    }
}

impl DataPath for CephPath {
    fn start(&mut self, caller: &Caller, file: &FileKey, asked: Request<WriteData<'_>>) -> Started {
        let request = match asked.keep_data(|data| data.stay(&self.core)) {
            Ok(request) => request,
            Err(status) => return Started::Done(failed(status)),
        };
        let Some(number) = self.free.pop() else {
            return Started::Done(failed(Nfsstat3::Nfs3errJukebox));
        };
        let (answers, core) = (self.answers.clone(), self.core.clone());
        let job = Job { number, caller: *caller, key: *file, request, answers, core };
        if self.gateway.workers.submit(job).is_err() {
            self.free.push(number);
            return Started::Done(failed(Nfsstat3::Nfs3errJukebox));
        }
        Started::Later(number)
    }

    fn poll(&mut self, _: bool, done: &mut dyn FnMut(u32, Done)) -> Progress {
        while let Ok((number, outcome)) = self.answered.try_recv() {
            self.free.push(number);
            done(number, outcome);
        }
        // The core may sleep: a thread wakes it with each answer.
        Progress::default()
    }
}

fn failed(status: Nfsstat3) -> Done {
    Done::Failed { status, attributes: None }
}
