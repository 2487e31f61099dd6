//! The exported tree: maps keys to files and back, and has the common parts of all operations.

use super::attributes::{attributes, before, stat};
use super::files::{can_be_opened, find};
use super::identity::Identity;
use super::keys::{Keys, Root};
use super::node::{Node, Right};
use crate::protocol::{Nfsstat3, PostOpAttr, WccData};
use crate::server::caller::Caller;
use crate::server::errors::{OrStatus, status};
use crate::server::file_system::{FileKey, Found, Outcome, Place};
use crate::server::nodes::{Held, Nodes};
use crate::sys::file_ring::Durability;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Statx, fsync, syncfs};
use rustix::io::{self, Errno};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of syncs to stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syncs {
    /// The data of a file and the metadata needed to read them: for DATA_SYNC writes.
    pub data: u64,
    /// A whole file or directory: for FILE_SYNC writes, COMMIT, and changes of names and
    /// attributes.
    pub file: u64,
}

pub(super) struct Tree {
    /// Never released.
    pub(super) root: Arc<Node>,
    pub(super) root_directory: OwnedFd,
    pub(super) mount_id: u64,
    pub(super) fsid: u64,
    pub(super) keys: Keys,
    pub(super) identity: Identity,
    pub(super) nodes: Nodes<Node>,
    /// See [`FileSystem::losses`](crate::server::file_system::FileSystem::losses).
    pub(super) losses: AtomicU64,
    pub(super) data_syncs: AtomicU64,
    pub(super) file_syncs: AtomicU64,
}

impl Tree {
    /// The file of a key. May block.
    pub(super) fn node(&self, key: &FileKey) -> Outcome<Arc<Node>> {
        if *key == self.root.key {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(node) = self.nodes.find(key) {
            return Ok(node);
        }
        let root = Root { directory: self.root_directory.as_fd(), key: &self.root.key };
        let path = self.keys.find(root, key)?;
        let stat = live(&path)?;
        Ok(self.hold(*key, path, &stat))
    }

    /// The file of a key, if it is held open and the lock is free.
    pub(super) fn peek(&self, key: &FileKey) -> Option<Arc<Node>> {
        if *key == self.root.key {
            return Some(Arc::clone(&self.root));
        }
        self.nodes.peek(key)
    }

    /// The directory of a place. NFS3ERR_NOTDIR if it is not a directory.
    pub(super) fn directory(&self, key: &FileKey) -> Outcome<Arc<Node>> {
        let node = self.node(key)?;
        match node.kind {
            FileType::Directory => Ok(node),
            _ => Err(Nfsstat3::Nfs3errNotdir),
        }
    }

    /// Key and attributes of a file found at a place; held open with `hold`, because it is likely
    /// to be used next.
    ///
    /// File systems mounted in the tree are not exported: NFS3ERR_ACCES, the closest status.
    pub(super) fn found(&self, at: Place<'_>, path: OwnedFd, hold: bool) -> Outcome<Found> {
        let stat = stat(&path).or_status()?;
        if stat.stx_mnt_id != self.mount_id || self.keys.exclude(&stat) {
            return Err(Nfsstat3::Nfs3errAcces);
        }
        let key = self.keys.of(&path, &stat)?;
        self.keys.note(&key, at);
        if hold {
            self.hold(key, path, &stat);
        }
        Ok(Found { key, attributes: attributes(&stat, self.fsid) })
    }

    fn hold(&self, key: FileKey, path: OwnedFd, stat: &Statx) -> Arc<Node> {
        self.nodes.hold(Node::new(key, path, stat), |node| self.close(node))
    }

    /// Runs `work`, a change of `node`, and returns the attributes from before and after.
    pub(super) fn changing<T>(
        &self,
        node: &Node,
        wcc: &mut WccData,
        work: impl FnOnce(&Statx) -> Outcome<T>,
    ) -> Outcome<T> {
        let change = node.begin_change();
        let earlier = live(&node.path);
        let outcome = earlier.as_ref().map_err(|error| *error).and_then(work);
        wcc.after = self.attributes_after(node);
        if let (true, Ok(earlier)) = (node.end_change(&change), &earlier) {
            wcc.before = Some(before(earlier));
        }
        outcome
    }

    pub(super) fn attributes_after(&self, node: &Node) -> PostOpAttr {
        node.stat().ok().map(|stat| attributes(&stat, self.fsid))
    }

    pub(super) fn acting<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> io::Result<T>,
    ) -> Outcome<T> {
        self.identity.acting(caller, || work().or_status())
    }

    /// Syncs a directory, or the attributes of a file. For files that cannot be opened without side
    /// effects, and unreadable directories, syncs the whole file system.
    pub(super) fn settle(&self, node: &Node) -> Outcome<()> {
        self.count_sync(Durability::File);
        let opened = if can_be_opened(node.kind) { node.open_any() } else { Err(Errno::ACCESS) };
        match opened {
            Ok(file) => self.syncing(node, || fsync(file)),
            Err(_) => self.syncing(&self.root, || syncfs(&self.root_directory)),
        }
    }

    /// A file that cannot be opened is only an inode, which file systems write with its first name.
    pub(super) fn settle_named(&self, file: &Node, directory: &Node) -> Outcome<()> {
        if can_be_opened(file.kind) {
            self.settle(file)?;
        }
        self.settle(directory)
    }

    /// Performs a sync through a descriptor of `node`. Blocks.
    fn syncing(&self, node: &Node, sync: impl FnOnce() -> io::Result<()>) -> Outcome<()> {
        let started = node.syncs.begin();
        let synced = sync().map_err(|error| self.lost(status(error)));
        let overlap = started.end(synced.is_err());
        synced?;
        overlap.wait();
        overlap.outcome()
    }

    /// The kernel reports an error of write-back only once, whosever data it was.
    pub(super) fn lost(&self, status: Nfsstat3) -> Nfsstat3 {
        self.losses.fetch_add(1, Ordering::Relaxed);
        status
    }

    pub(super) fn count_sync(&self, durability: Durability) {
        let count = match durability {
            Durability::Data => &self.data_syncs,
            Durability::File => &self.file_syncs,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Finds the file that a change of names may delete; `None` if there is none.
    pub(super) fn victim(&self, directory: &Node, name: &[u8]) -> Option<OwnedFd> {
        find(&directory.path, name).ok()
    }

    /// Releases a file if its last name was removed, so that its blocks are freed.
    pub(super) fn forget_if_gone(&self, victim: Option<OwnedFd>) {
        let Some(victim) = victim else { return };
        let Ok(stat) = stat(&victim) else { return };
        if stat.stx_nlink == 0 {
            if let Ok(key) = self.keys.of(&victim, &stat) {
                self.nodes.forget(&key);
            }
            self.keys.outlive(&stat);
        }
    }

    /// Closes unused and deleted files, and those that are open for writing without need, as no program of this host can
    /// execute these (ETXTBSY), once per tick. May block.
    pub(super) fn tend(&self) {
        let is_gone = |node: &Node| node.stat().is_ok_and(|stat| stat.stx_nlink == 0);
        self.nodes.tend(is_gone, |node| self.close(node));
    }

    /// Checks first that its writes have reached the disk: an error can no longer be reported later.
    fn close(&self, node: Arc<Node>) {
        if let (true, Some(file)) = (node.is_dirty(), node.opened(Right::Write)) {
            self.count_sync(Durability::File);
            let _ = self.syncing(&node, || fsync(file));
        }
        self.nodes.leave(node);
    }

    pub(super) fn syncs(&self) -> Syncs {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Syncs { data: read(&self.data_syncs), file: read(&self.file_syncs) }
    }

    #[cfg(test)]
    pub(super) fn tick_now(&self) {
        self.nodes.end_tick();
        self.tend();
    }
}

/// Attributes of a file that was found. NFS3ERR_STALE if it was removed meanwhile.
pub(super) fn live(path: impl AsFd) -> Outcome<Statx> {
    match stat(path).or_status()? {
        stat if stat.stx_nlink == 0 => Err(Nfsstat3::Nfs3errStale),
        stat => Ok(stat),
    }
}
