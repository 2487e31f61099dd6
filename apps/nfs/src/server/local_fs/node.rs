//! A file held open: found once, then queried, read and written without another lookup.

use super::attributes::{kind, mode, rights, stat};
use super::files::{open, path_of};
use crate::server::caller::Caller;
use crate::server::file_system::FileKey;
use crate::server::nodes::{Held, HeldState};
use crate::server::open_syncs::OpenSyncs;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, chmodat};
use rustix::io::{self, Errno};
use rustix::process::geteuid;
use spinrpc::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Number of callers whose rights to the data of one file are remembered.
const GRANTS: usize = 4;
/// Number of cache ticks, after the one in which it was granted, for which a right is remembered. A
/// change of an access control list, which shows in no attribute, takes effect after that.
const GRANT_TICKS: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Read,
    Write,
}

/// A file, its descriptors and cached facts. Holding it keeps its inode number from being reused.
pub(super) struct Node {
    pub(super) key: FileKey,
    pub(super) kind: FileType,
    /// Found, not opened: sufficient for everything but its data.
    pub(super) path: OwnedFd,
    reader: OnceLock<Arc<OwnedFd>>,
    writer: OnceLock<Arc<OwnedFd>>,
    pub(super) syncs: Arc<OpenSyncs>,
    changes: Changes,
    grants: Mutex<[Option<Grant>; GRANTS]>,
    /// Held while this server changes the mode.
    pub(super) mode: Mutex<()>,
    state: HeldState,
}

/// Numbers of this server's started and finished changes of a file.
#[derive(Default)]
struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Change {
    number: u64,
    is_alone: bool,
}

/// A caller was found to have a right to a file with this owner and mode.
struct Grant {
    caller: Caller,
    right: Right,
    file: (u32, u32, u32),
    tick: u32,
}

impl Node {
    pub(super) fn new(key: FileKey, path: OwnedFd, stat: &Statx) -> Self {
        Self {
            key,
            kind: kind(stat),
            path,
            reader: OnceLock::new(),
            writer: OnceLock::new(),
            syncs: Arc::default(),
            changes: Changes::default(),
            grants: Mutex::default(),
            mode: Mutex::default(),
            state: HeldState::default(),
        }
    }

    pub(super) fn stat(&self) -> io::Result<Statx> {
        stat(&self.path)
    }

    pub(super) fn opened(&self, right: Right) -> Option<&Arc<OwnedFd>> {
        self.slot(right).get()
    }

    /// The descriptor for its data, opened with the thread's identity. May block.
    pub(super) fn open(&self, right: Right) -> io::Result<&Arc<OwnedFd>> {
        if let Some(file) = self.opened(right) {
            return Ok(file);
        }
        let how = if right == Right::Read { OFlags::RDONLY } else { OFlags::WRONLY };
        let file = match open(&self.path, how) {
            Err(Errno::ACCESS) if self.kind == FileType::RegularFile => {
                self.open_own(right, how)?
            }
            opened => opened?,
        };
        let file = Arc::new(file);
        Ok(self.slot(right).get_or_init(|| file))
    }

    /// Opens a file whose mode denies that to its owner, as which a server acts that is not root: an NFS client checks the
    /// mode when a program opens the file, which may have been before the mode was changed, or as it was created (RFC 1813
    /// section 4.4). The owner has the right in the mode meanwhile. Other processes may see that, a mode that they set
    /// meanwhile is lost, and if the server is killed, the right stays.
    fn open_own(&self, right: Right, how: OFlags) -> io::Result<OwnedFd> {
        let _changing = lock(&self.mode);
        let present = self.stat()?;
        if present.stx_uid != geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let added = if right == Right::Read { Mode::RUSR } else { Mode::WUSR };
        let set = |mode| chmodat(CWD, path_of(&self.path), mode, AtFlags::empty());
        set(mode(rights(&present)) | added)?;
        let opened = open(&self.path, how);
        set(mode(rights(&present)))?;
        opened
    }

    /// Any descriptor that can sync it. May block.
    pub(super) fn open_any(&self) -> io::Result<&Arc<OwnedFd>> {
        match self.opened(Right::Write) {
            Some(file) => Ok(file),
            None => self.open(Right::Read),
        }
    }

    fn slot(&self, right: Right) -> &OnceLock<Arc<OwnedFd>> {
        match right {
            Right::Read => &self.reader,
            Right::Write => &self.writer,
        }
    }

    /// Starts a change; query the attributes from before only afterwards.
    pub(super) fn begin_change(&self) -> Change {
        let number = self.changes.begun.fetch_add(1, Ordering::SeqCst) + 1;
        Change { number, is_alone: self.changes.ended.load(Ordering::SeqCst) == number - 1 }
    }

    /// Ends a change, after the later attributes were queried. Returns whether no other change of
    /// this server overlapped: only then does the difference between before and after show the
    /// effect of this one (RFC 1813 section 2.6).
    pub(super) fn end_change(&self, change: &Change) -> bool {
        self.changes.ended.fetch_add(1, Ordering::SeqCst);
        change.is_alone && self.changes.begun.load(Ordering::SeqCst) == change.number
    }

    /// Does not block: unknown while another thread has the lock.
    pub(super) fn is_granted(&self, caller: &Caller, right: Right, now: &Statx, tick: u32) -> bool {
        let Ok(grants) = self.grants.try_lock() else { return false };
        grants.iter().flatten().any(|grant| grant.holds(caller, right, now, tick))
    }

    /// Remembers that the caller has a right, replacing the oldest entry.
    pub(super) fn grant(&self, caller: &Caller, right: Right, now: &Statx, tick: u32) {
        let mut grants = lock(&self.grants);
        grants.rotate_right(1);
        if let Some(first) = grants.first_mut() {
            *first = Some(Grant { caller: *caller, right, file: ownership(now), tick });
        }
    }
}

impl Held for Node {
    fn key(&self) -> &FileKey {
        &self.key
    }

    fn state(&self) -> &HeldState {
        &self.state
    }

    fn is_open_to_write(&self) -> bool {
        self.writer.get().is_some()
    }
}

impl Grant {
    fn holds(&self, caller: &Caller, right: Right, now: &Statx, tick: u32) -> bool {
        tick.saturating_sub(self.tick) <= GRANT_TICKS
            && self.right == right
            && self.file == ownership(now)
            && self.caller == *caller
    }
}

fn ownership(stat: &Statx) -> (u32, u32, u32) {
    (stat.stx_uid, stat.stx_gid, rights(stat))
}
