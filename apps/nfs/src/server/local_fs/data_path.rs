//! Data path of one core. Threads open files; the ring reads, writes and syncs them. Without a ring,
//! threads do everything.
//!
//! On the core itself, only system calls that are answered from memory are made: attributes of an
//! open file on a local file system, and reads of a file system that is in memory, which may have to wait for a lock
//! of a page that is being written.

use super::Directory;
use super::node::{Node, Right};
use super::transfer::{Ended, PartialRead, Running, Task, Unclear, durability, failed};
use super::tree::Tree;
use super::workers::{Answered, How, Job};
use crate::protocol::Nfsstat3;
use crate::server::caller::Caller;
use crate::server::errors::{io_status, status};
use crate::server::file_system::{DataPath, Done, FileKey, Outcome, Request, Started, WriteData};
use crate::sys::file_ring::{self, Durability, FileRing, Work};
use slab::Slab;
use spinrpc::{Bulk, CoreContext, Progress};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

type Ring = FileRing<Bulk, u32>;

/// Answers of threads that a poll takes: each may be followed by a read on the core, of up to [`PART_BYTES`].
const ANSWERS_PER_POLL: usize = 8;

/// Most bytes that the core reads at a time, in 8 us if the file is in the processor's cache, in 50 if it is not. Longer
/// reads are done in parts of this length.
pub(super) const PART_BYTES: usize = 256 << 10;

/// The drop order matters: the ring, the slots, the directory. A slot is dropped when the kernel has
/// finished with its request. Dropping it ends its sync, for which threads may wait, and threads
/// exit with the directory.
pub(super) struct DirectoryPath {
    /// `None` if io_uring is denied or not wanted, or has failed.
    ring: Option<Ring>,
    slots: Slots,
    /// Number of the request that is [`Slot::ByCore`], if there is one.
    by_core: Option<u32>,
    directory: Arc<Directory>,
    /// Buffers for bytes that arrived in the message, until they are written.
    memory: CoreContext,
    answers: SyncSender<(u32, Answered)>,
    answered: Receiver<(u32, Answered)>,
}

struct Slots {
    slots: Slab<Slot>,
    depth: usize,
    unclear: VecDeque<u32>,
}

enum Slot {
    /// For a request that is with none of the others.
    Taken,
    WithThread,
    InRing(Running),
    ByCore(Running, PartialRead),
    Unclear(Unclear),
}

impl DirectoryPath {
    /// For up to `depth` requests at a time. Allocates, and creates the ring.
    pub(super) fn new(directory: Arc<Directory>, memory: &CoreContext, depth: u32) -> Self {
        let depth = depth.max(1);
        let (answers, answered) = sync_channel(depth as usize);
        Self {
            // Writes for users other than root run as `nobody`, who can neither use the blocks reserved for root nor keep
            // set-user-ID bits.
            ring: directory.uses_ring().then(|| Ring::with_nobody(depth).ok()).flatten(),
            directory,
            memory: memory.clone(),
            slots: Slots::new(depth),
            by_core: None,
            answers,
            answered,
        }
    }

    fn tree(&self) -> &Tree {
        &self.directory.tree
    }

    fn task(
        &self,
        caller: &Caller,
        key: &FileKey,
        request: Request<WriteData<'_>>,
    ) -> Outcome<Task> {
        let request = request.keep_data(|data| data.stay(&self.memory))?;
        Ok(Task { caller: *caller, key: *key, request })
    }

    /// Only if the file is open for it, and the caller is known to have the right.
    fn begin_at_once(&self, task: &Task) -> Option<Running> {
        let ring = self.ring.as_ref()?;
        let (tree, right) = (self.tree(), task.request.right());
        let node = tree.peek(&task.key)?;
        node.opened(right)?;
        let (running, present) = Running::begin(node, &task.request).ok()?;
        let is_allowed = tree.identity.owns(&task.caller, &present)
            || running.node.is_granted(&task.caller, right, &present, tree.nodes.tick());
        let needs_thread = !ring.has_nobody() && tree.takes_privileges(task, &present);
        if !is_allowed || needs_thread {
            running.abandon();
            return None;
        }
        Some(running)
    }

    /// Performs a short read at once. Queues any other request, or leaves it to polls; one that cannot be queued ends here.
    fn launch(&mut self, number: u32, mut running: Running, task: Task) -> Option<Done> {
        let Task { caller, request, .. } = task;
        if self.reads_now(&request) {
            let ended = self.tree().transfer(&caller, &running.node, request);
            return Some(running.end_now(self.tree(), ended));
        }
        let request = match request {
            Request::Read { offset, into } if self.reads_in_parts() => {
                self.keep(number, running, PartialRead::new(offset, into));
                return None;
            }
            request => request,
        };
        let file = running.node.opened(request.right()).map(Arc::clone);
        let (Some(ring), Some(file)) = (&mut self.ring, file) else {
            return Some(refuse(&self.directory.tree, running));
        };
        let syncs = request.durability();
        let (work, offset, buffer) = match request {
            Request::Read { offset, into } => (Work::Read, offset, Some(into)),
            Request::Write { offset, data, .. } => {
                let is_root = self.directory.tree.identity.is_root(&caller);
                let as_nobody = ring.has_nobody() && !is_root;
                let work = if as_nobody { Work::WriteAsNobody } else { Work::Write };
                (work(syncs), offset, Some(data))
            }
            // The whole file, whatever the range is (RFC 1813 section 3.3.21 allows more).
            Request::Commit { .. } => (Work::Sync(Durability::File), 0, None),
        };
        if ring.queue(work, file, offset, buffer, number).is_err() {
            return Some(refuse(&self.directory.tree, running));
        }
        // Nothing of it starts before the ring is polled.
        running.mark();
        syncs.into_iter().for_each(|durability| self.directory.tree.count_sync(durability));
        self.slots.replace(number, Slot::InRing(running));
        None
    }

    /// True for a read that the core itself does. The kernel would pass each read from these file systems to a thread of its
    /// own, which takes longer than copying the bytes, and needs a CPU that no core polls on.
    fn reads_now(&self, request: &Request<Bulk>) -> bool {
        match request {
            Request::Read { into, .. } => {
                self.directory.kind.is_in_memory && into.len() <= PART_BYTES
            }
            Request::Write { .. } | Request::Commit { .. } => false,
        }
    }

    /// Of several long reads, threads of the kernel do all but one, as they may have other CPUs.
    fn reads_in_parts(&self) -> bool {
        self.directory.kind.is_in_memory && self.by_core.is_none()
    }

    fn keep(&mut self, number: u32, running: Running, read: PartialRead) {
        self.slots.replace(number, Slot::ByCore(running, read));
        self.by_core = Some(number);
    }

    /// Other calls have their turn between two parts. Returns whether it read.
    fn read_part(&mut self, done: &mut dyn FnMut(u32, Done)) -> bool {
        let Some(number) = self.by_core.take() else { return false };
        let Slot::ByCore(running, mut read) = self.slots.replace(number, Slot::Taken) else {
            return false;
        };
        let result = match running.node.open(Right::Read) {
            Ok(file) => read.read_some(file, PART_BYTES),
            Err(error) => Some(Err(status(error))),
        };
        match result {
            Some(result) => {
                let ended = running.end(&self.directory.tree, read.end(result));
                self.slots.finish(number, ended, done);
            }
            None => self.keep(number, running, read),
        }
        true
    }

    /// Passes a request to the threads. If they are too busy, it ends here.
    fn hand_over(&mut self, number: u32, task: Task) -> Option<Done> {
        let how = match &self.ring {
            Some(ring) if ring.has_nobody() => How::Prepare,
            Some(_) => How::PrepareOrTakePrivileges,
            None => How::Perform,
        };
        let (key, answers) = (task.key, self.answers.clone());
        self.slots.replace(number, Slot::WithThread);
        let queued = self.directory.workers.submit(Job { number, task, how, answers });
        if queued.is_ok() { None } else { Some(self.too_much(&key)) }
    }

    fn too_much(&self, key: &FileKey) -> Done {
        failed(Nfsstat3::Nfs3errJukebox, self.tree().attributes_if_held(key))
    }

    fn take_answers(&mut self, done: &mut dyn FnMut(u32, Done)) {
        for _ in 0..ANSWERS_PER_POLL {
            let Ok((number, outcome)) = self.answered.try_recv() else { return };
            let ended = match outcome {
                Answered::Done(outcome) => Some(outcome),
                Answered::Ready(node, task) => self.go_on(number, node, task),
            };
            if let Some(outcome) = ended {
                self.slots.release(number);
                done(number, outcome);
            }
        }
    }

    fn go_on(&mut self, number: u32, node: Arc<Node>, task: Task) -> Option<Done> {
        if self.ring.is_none() {
            return self.hand_over(number, task);
        }
        match Running::begin(node, &task.request) {
            Ok((running, _)) => self.launch(number, running, task),
            Err(status) => Some(failed(status, self.tree().attributes_if_held(&task.key))),
        }
    }

    fn poll_ring(&mut self, done: &mut dyn FnMut(u32, Done)) {
        let Some(ring) = &mut self.ring else { return };
        let (tree, slots) = (&self.directory.tree, &mut self.slots);
        let polled = ring.poll(|ended| {
            let number = ended.token;
            if let Slot::InRing(running) = slots.replace(number, Slot::Taken) {
                slots.finish(number, running.end(tree, ended_by_ring(ended)), done);
            }
        });
        if polled.is_err() {
            self.lose_ring(done);
        }
    }

    /// Continues with threads. Waits for the kernel to finish with the memory.
    fn lose_ring(&mut self, done: &mut dyn FnMut(u32, Done)) {
        self.ring = None;
        for number in self.slots.in_ring() {
            if let Slot::InRing(running) = self.slots.replace(number, Slot::Taken) {
                let ended = Ended { buffer: None, bytes: 0, result: Err(Nfsstat3::Nfs3errIo) };
                self.slots.finish(number, running.end(&self.directory.tree, ended), done);
            }
        }
        self.directory.tree.lost(Nfsstat3::Nfs3errIo);
    }
}

impl DataPath for DirectoryPath {
    fn start(&mut self, caller: &Caller, file: &FileKey, asked: Request<WriteData<'_>>) -> Started {
        let task = match self.task(caller, file, asked) {
            Ok(task) => task,
            Err(status) => {
                return Started::Done(failed(status, self.tree().attributes_if_held(file)));
            }
        };
        let Some(number) = self.slots.take() else {
            return Started::Done(self.too_much(file));
        };
        let ended = match self.begin_at_once(&task) {
            Some(running) => self.launch(number, running, task),
            None => self.hand_over(number, task),
        };
        match ended {
            None => Started::Later(number),
            Some(outcome) => {
                self.slots.release(number);
                Started::Done(outcome)
            }
        }
    }

    fn poll(&mut self, may_perform: bool, done: &mut dyn FnMut(u32, Done)) -> Progress {
        self.take_answers(done);
        self.poll_ring(done);
        let has_read = may_perform && self.read_part(done);
        self.slots.finish_unclear(&self.directory.tree, done);
        Progress { events: has_read.into(), is_waiting: !self.slots.slots.is_empty() }
    }
}

impl Request<Bulk> {
    fn durability(&self) -> Option<Durability> {
        match self {
            Self::Read { .. } => None,
            Self::Write { stable, .. } => durability(*stable),
            Self::Commit { .. } => Some(Durability::File),
        }
    }
}

impl Slots {
    fn new(depth: u32) -> Self {
        let depth = depth as usize;
        let (slots, unclear) = (Slab::with_capacity(depth), VecDeque::with_capacity(depth));
        Self { slots, depth, unclear }
    }

    fn take(&mut self) -> Option<u32> {
        (self.slots.len() < self.depth).then(|| self.slots.insert(Slot::Taken) as u32)
    }

    fn replace(&mut self, number: u32, slot: Slot) -> Slot {
        let place = self.slots.get_mut(number as usize);
        place.map_or(Slot::Taken, |place| mem::replace(place, slot))
    }

    fn release(&mut self, number: u32) {
        drop(self.slots.try_remove(number as usize));
    }

    fn finish(
        &mut self,
        number: u32,
        ended: Result<Done, Unclear>,
        done: &mut dyn FnMut(u32, Done),
    ) {
        match ended {
            Ok(outcome) => {
                self.release(number);
                done(number, outcome);
            }
            Err(unclear) => {
                self.replace(number, Slot::Unclear(unclear));
                self.unclear.push_back(number);
            }
        }
    }

    fn finish_unclear(&mut self, tree: &Tree, done: &mut dyn FnMut(u32, Done)) {
        for _ in 0..self.unclear.len() {
            let Some(number) = self.unclear.pop_front() else { return };
            if let Slot::Unclear(unclear) = self.replace(number, Slot::Taken) {
                self.finish(number, unclear.answer(tree), done);
            }
        }
    }

    fn in_ring(&self) -> Vec<u32> {
        let in_ring = self.slots.iter().filter(|(_, slot)| matches!(slot, Slot::InRing(_)));
        in_ring.map(|(number, _)| number as u32).collect()
    }
}

fn refuse(tree: &Tree, running: Running) -> Done {
    let attributes = tree.attributes_after(&running.node);
    running.abandon();
    failed(Nfsstat3::Nfs3errJukebox, attributes)
}

fn ended_by_ring(ended: file_ring::Done<Bulk, u32>) -> Ended {
    let result = ended.result.map_err(|error| io_status(&error));
    Ended { buffer: ended.buffer, bytes: ended.bytes, result }
}
