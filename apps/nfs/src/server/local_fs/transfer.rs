//! READ, WRITE and COMMIT: their preparation, and their results, whether a ring or a thread
//! performed them.

use super::attributes::{before, lends_identity};
use super::node::{Change, Node, Right};
use super::tree::{Tree, live};
use crate::protocol::{Nfsstat3, PostOpAttr, StableHow, WccAttr, WccData};
use crate::server::caller::Caller;
use crate::server::errors::{OrStatus, status};
use crate::server::file_system::{Done, FileKey, Outcome, Request};
use crate::server::nodes::Held;
use crate::server::open_syncs::{Overlap, Syncing};
use crate::sys::file_ring::Durability;
use rustix::fd::OwnedFd;
use rustix::fs::{Access, FileType, Statx};
use rustix::io::{self, Errno, IoSlice, ReadWriteFlags, pread, pwritev2};
use spinrpc::Bulk;
use std::sync::Arc;

/// A request with everything needed to perform it later or elsewhere.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) caller: Caller,
    pub(super) key: FileKey,
    pub(super) request: Request<Bulk>,
}

/// A request in progress; the ring, the thread that performs it, or a [`PartialRead`] has its buffer.
pub(super) struct Running {
    pub(super) node: Arc<Node>,
    before: WccAttr,
    what: What,
    sync: Option<Syncing>,
}

enum What {
    Read { offset: u64 },
    Write { stable: StableHow, change: Change },
    Commit,
}

/// A completed request with a sync, whose outcome depends on overlapping syncs.
pub(super) struct Unclear {
    running: Running,
    ended: Ended,
    overlap: Overlap,
}

/// A read by system calls of the calling thread, in one part or several. Writes may come between two parts.
pub(super) struct PartialRead {
    offset: u64,
    into: Bulk,
    bytes: usize,
}

pub(super) struct Ended {
    pub(super) buffer: Option<Bulk>,
    pub(super) bytes: usize,
    pub(super) result: Outcome<()>,
}

impl Request<Bulk> {
    pub(super) fn right(&self) -> Right {
        match self {
            Self::Read { .. } => Right::Read,
            Self::Write { .. } | Self::Commit { .. } => Right::Write,
        }
    }
}

impl What {
    fn begin(request: &Request<Bulk>, node: &Node) -> Self {
        match request {
            Request::Read { offset, .. } => Self::Read { offset: *offset },
            Request::Write { stable, .. } => {
                Self::Write { stable: *stable, change: node.begin_change() }
            }
            Request::Commit { .. } => Self::Commit,
        }
    }

    fn is_unstable_write(&self) -> bool {
        matches!(self, Self::Write { stable: StableHow::Unstable, .. })
    }

    fn syncs(&self) -> bool {
        match self {
            Self::Read { .. } => false,
            Self::Write { stable, .. } => *stable != StableHow::Unstable,
            Self::Commit => true,
        }
    }

    /// Returns whether no other change of the file overlapped ([`Node::end_change`]). That is not known of a COMMIT, which
    /// does not count as a change.
    fn end(&self, node: &Node) -> bool {
        match self {
            Self::Write { change, .. } => node.end_change(change),
            Self::Read { .. } | Self::Commit => false,
        }
    }
}

impl Running {
    pub(super) fn begin(node: Arc<Node>, request: &Request<Bulk>) -> Outcome<(Self, Statx)> {
        let what = What::begin(request, &node);
        match live(&node.path) {
            Ok(present) => Ok((Self { before: before(&present), node, what, sync: None }, present)),
            Err(status) => {
                what.end(&node);
                Err(status)
            }
        }
    }

    /// Marks the start: that the file will need a sync, or is being synced. A sync clears the mark
    /// first, because it may miss concurrent writes; a write sets it again at its end.
    pub(super) fn mark(&mut self) {
        match self.what {
            What::Read { .. } => {}
            What::Write { stable: StableHow::Unstable, .. } => self.node.set_dirty(true),
            What::Write { .. } => self.node.note_write(),
            What::Commit => self.node.set_dirty(false),
        }
        self.sync = self.what.syncs().then(|| self.node.syncs.begin());
    }

    pub(super) fn abandon(self) {
        self.what.end(&self.node);
    }

    #[expect(clippy::result_large_err, reason = "the request itself comes back")]
    pub(super) fn end(mut self, tree: &Tree, ended: Ended) -> Result<Done, Unclear> {
        let is_loss = ended.is_loss(&self.what);
        if is_loss {
            tree.lost(Nfsstat3::Nfs3errIo);
        }
        if self.what.is_unstable_write() && ended.bytes > 0 {
            self.node.set_dirty(true);
        }
        match self.sync.take() {
            None => Ok(self.answer(tree, ended)),
            Some(sync) => Unclear { running: self, ended, overlap: sync.end(is_loss) }.answer(tree),
        }
    }

    /// Ends it, and waits for overlapping syncs, of which a read has none.
    pub(super) fn end_now(self, tree: &Tree, ended: Ended) -> Done {
        self.end(tree, ended).unwrap_or_else(|unclear| unclear.wait(tree))
    }

    fn answer(self, tree: &Tree, ended: Ended) -> Done {
        let after = tree.attributes_after(&self.node);
        let before = self.what.end(&self.node).then_some(self.before);
        match (self.what, ended) {
            (What::Read { offset }, Ended { buffer: Some(data), bytes, result }) => {
                read(offset, data, bytes, result, after)
            }
            (What::Write { stable, .. }, Ended { bytes, result, .. }) => match result {
                Err(status) if bytes == 0 => failed(status, after),
                _ => {
                    let wcc = WccData { before, after };
                    let count = u32::try_from(bytes).unwrap_or(u32::MAX);
                    Done::Written { count, committed: stable, wcc }
                }
            },
            (_, Ended { result: Ok(()), .. }) => Done::Committed { wcc: WccData { before, after } },
            (_, Ended { result: Err(status), .. }) => failed(status, after),
        }
    }
}

impl Unclear {
    /// The answer, if it is known: the request failed, or all overlapping syncs have ended.
    #[expect(clippy::result_large_err, reason = "the request itself comes back")]
    pub(super) fn answer(self, tree: &Tree) -> Result<Done, Self> {
        let is_known = self.ended.result.is_err() || self.overlap.is_over();
        if is_known { Ok(self.conclude(tree)) } else { Err(self) }
    }

    pub(super) fn wait(self, tree: &Tree) -> Done {
        self.overlap.wait();
        self.conclude(tree)
    }

    fn conclude(self, tree: &Tree) -> Done {
        let Self { running, mut ended, overlap } = self;
        if let (Ok(()), Err(status)) = (ended.result, overlap.outcome()) {
            (ended.bytes, ended.result) = (0, Err(status));
        }
        running.answer(tree, ended)
    }
}

impl Ended {
    /// An error of a sync may concern any client's data. That of a durable write may be of the write alone.
    fn is_loss(&self, what: &What) -> bool {
        match (what, self.result) {
            (_, Ok(())) => false,
            (What::Write { .. }, Err(status)) => {
                what.syncs() && !is_refusal(status) && (self.bytes > 0 || !is_full(status))
            }
            (_, Err(_)) => what.syncs(),
        }
    }
}

/// Statuses that reject a write before anything is written, so that there is nothing to sync. Any
/// client can cause some of them, and would make all others resend their data if they counted.
fn is_refusal(status: Nfsstat3) -> bool {
    use Nfsstat3::*;
    matches!(
        status,
        Nfs3errPerm
            | Nfs3errNxio
            | Nfs3errAcces
            | Nfs3errIsdir
            | Nfs3errInval
            | Nfs3errFbig
            | Nfs3errRofs
            | Nfs3errStale
            | Nfs3errJukebox
    )
}

/// There is no space. Write-back can find that out, too, but rarely: a file system with delayed
/// allocation has reserved blocks when the write returns, so a write without space fails itself,
/// before any sync.
fn is_full(status: Nfsstat3) -> bool {
    matches!(status, Nfsstat3::Nfs3errNospc | Nfsstat3::Nfs3errDquot)
}

impl Tree {
    /// The kernel clears mode bits if the caller writes, and not if the server does.
    pub(super) fn takes_privileges(&self, task: &Task, present: &Statx) -> bool {
        matches!(task.request, Request::Write { .. })
            && !self.identity.is_root(&task.caller)
            && lends_identity(present)
    }

    /// Finds the file of a request, checks the caller's rights, and opens it. May block.
    pub(super) fn prepare(&self, task: &Task) -> Outcome<Arc<Node>> {
        let node = self.node(&task.key)?;
        match node.kind {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Nfsstat3::Nfs3errIsdir),
            _ => return Err(Nfsstat3::Nfs3errInval),
        }
        let (present, right) = (live(&node.path)?, task.request.right());
        if !self.identity.owns(&task.caller, &present) {
            self.acting(&task.caller, || may_transfer(&node, right))?;
            node.grant(&task.caller, right, &present, self.nodes.tick());
        }
        node.open(right).or_status()?;
        Ok(node)
    }

    /// Performs a request whose file is open. Blocks.
    pub(super) fn perform(&self, node: Arc<Node>, task: Task) -> Done {
        match Running::begin(node, &task.request) {
            Ok((mut running, _)) => {
                running.mark();
                let ended = self.transfer(&task.caller, &running.node, task.request);
                running.end_now(self, ended)
            }
            Err(status) => failed(status, self.attributes_if_held(&task.key)),
        }
    }

    /// The attributes of a file, if no search is needed.
    pub(super) fn attributes_if_held(&self, key: &FileKey) -> PostOpAttr {
        self.peek(key).and_then(|node| self.attributes_after(&node))
    }

    /// The caller may neither use the blocks reserved for root nor keep set-user-ID bits.
    pub(super) fn transfer(&self, caller: &Caller, node: &Node, request: Request<Bulk>) -> Ended {
        let nothing = |status| Ended { buffer: None, bytes: 0, result: Err(status) };
        let file = match node.open(request.right()) {
            Ok(file) => file,
            Err(error) => return nothing(status(error)),
        };
        match request {
            Request::Read { offset, into } => fill(file, offset, into),
            Request::Write { offset, data, stable } => {
                let durability = durability(stable);
                durability.into_iter().for_each(|durability| self.count_sync(durability));
                let written = self.acting(caller, || Ok(empty(file, offset, data, durability)));
                written.unwrap_or_else(nothing)
            }
            Request::Commit { .. } => {
                self.count_sync(Durability::File);
                let result = rustix::fs::fsync(file).or_status();
                Ended { buffer: None, bytes: 0, result }
            }
        }
    }
}

pub(super) fn durability(stable: StableHow) -> Option<Durability> {
    match stable {
        StableHow::Unstable => None,
        StableHow::DataSync => Some(Durability::Data),
        StableHow::FileSync => Some(Durability::File),
    }
}

pub(super) fn failed(status: Nfsstat3, attributes: PostOpAttr) -> Done {
    Done::Failed { status, attributes }
}

/// A caller who may execute a file may read it: a client reads what it executes (RFC 1813 section
/// 4.4).
fn may_transfer(node: &Node, right: Right) -> io::Result<()> {
    use super::files::may;
    match right {
        Right::Write => may(&node.path, Access::WRITE_OK),
        Right::Read => {
            may(&node.path, Access::READ_OK).or_else(|_| may(&node.path, Access::EXEC_OK))
        }
    }
}

fn read(offset: u64, mut data: Bulk, bytes: usize, result: Outcome<()>, after: PostOpAttr) -> Done {
    let is_short = bytes < data.len();
    data.set_len(bytes.min(data.len()));
    match (result, after) {
        (Err(status), after) if bytes == 0 => failed(status, after),
        (_, Some(after)) => {
            // The file may have become longer since there was nothing to read. Linux takes no data before the end for EIO.
            let is_nothing = bytes == 0 && is_short;
            let is_end = is_nothing || offset.saturating_add(bytes as u64) >= after.size;
            Done::Read { data, is_end, attributes: Some(after) }
        }
        (result, _) => Done::Read { data, is_end: is_short && result.is_ok(), attributes: None },
    }
}

impl PartialRead {
    pub(super) fn new(offset: u64, into: Bulk) -> Self {
        Self { offset, into, bytes: 0 }
    }

    /// Reads the next `at_most` bytes. Returns the result when the read has come to its end.
    pub(super) fn read_some(&mut self, file: &OwnedFd, at_most: usize) -> Option<Outcome<()>> {
        let end = self.bytes.saturating_add(at_most).min(self.into.len());
        while let Some(left @ [_, ..]) = self.into.bytes_mut().get_mut(self.bytes..end) {
            match pread(file, left, self.offset + self.bytes as u64) {
                Ok(0) => return Some(Ok(())),
                Ok(read) => self.bytes += read,
                Err(Errno::INTR) => {}
                Err(error) => return Some(Err(status(error))),
            }
        }
        (self.bytes == self.into.len()).then_some(Ok(()))
    }

    pub(super) fn end(self, result: Outcome<()>) -> Ended {
        Ended { buffer: Some(self.into), bytes: self.bytes, result }
    }
}

fn fill(file: &OwnedFd, offset: u64, into: Bulk) -> Ended {
    let mut read = PartialRead::new(offset, into);
    let result = read.read_some(file, usize::MAX).unwrap_or(Ok(()));
    read.end(result)
}

fn empty(file: &OwnedFd, offset: u64, data: Bulk, durability: Option<Durability>) -> Ended {
    let flags = match durability {
        None => ReadWriteFlags::empty(),
        Some(Durability::Data) => ReadWriteFlags::DSYNC,
        Some(Durability::File) => ReadWriteFlags::SYNC,
    };
    let mut bytes = 0;
    let result = loop {
        let left = data.bytes().get(bytes..).unwrap_or_default();
        if left.is_empty() {
            break Ok(());
        }
        match pwritev2(file, &[IoSlice::new(left)], offset + bytes as u64, flags) {
            Ok(0) => break Err(Nfsstat3::Nfs3errIo),
            Ok(written) => bytes += written,
            Err(Errno::INTR) => {}
            Err(error) => break Err(status(error)),
        }
    };
    Ended { buffer: Some(data), bytes, result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Fattr3;
    use spinrpc::Decoder;
    use spinrpc_xdr::Decode;

    #[test]
    fn nothing_read_is_the_end_of_a_file_that_has_become_longer_since() {
        let zeros_and_type = [[0, 0, 0, 1]; 21].concat();
        let after = Fattr3::decode(&mut Decoder::plain(&zeros_and_type)).unwrap();
        let after = Fattr3 { size: 100, ..after };
        let is_end = |bytes, asked| {
            let into = Bulk::from_vec(vec![0; asked]);
            let done = read(50, into, bytes, Ok(()), Some(after));
            let Done::Read { is_end, .. } = done else { panic!("{done:?}") };
            is_end
        };
        assert!(is_end(0, 10));
        assert!(!is_end(5, 10) && !is_end(0, 0));
        assert!(is_end(50, 60));
    }
}
