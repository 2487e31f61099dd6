//! Keys of files: each leads to its file after a restart of the server, whatever its name, and
//! never to another file.
//!
//! A key is either the kernel's file handle, or data for a search. The two kinds are distinct, so
//! that keys of the other kind from an earlier run are stale, not wrong.

mod kernel;
mod walk;

use super::files::find;
use crate::server::file_system::{FileKey, Outcome, Place};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Statx;
use std::io;
use walk::WalkKeys;

/// Kind of the keys that a [`Directory`](super::Directory) assigns to its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyMode {
    /// The kernel's if it provides them and lets this process open them, else those for a search.
    #[default]
    Auto,
    /// The kernel's file handles (name_to_handle_at(2)): found at once, also after a restart. Needs
    /// CAP_DAC_READ_SEARCH and a file system with handles of at most 39 bytes: ext4, xfs, btrfs,
    /// tmpfs and most others, and overlayfs if it is mounted with `index=on,nfs_export=on`.
    Kernel,
    /// Inode number and birth time of the file. A file not seen since the start of the server is
    /// searched for in the whole tree, up to a million files: beyond them, the handle of a file is
    /// stale (NFS3ERR_STALE) until its name is looked up. Meant for small trees and servers without
    /// privileges: the places of 262,144 files are remembered, and in larger trees more searches
    /// follow. Either limit is logged once. A search in vain through a tree of up to 262,144 files answers for all
    /// stale keys; for ten seconds there is no other one, so that a file which a local process has
    /// moved meanwhile is found later (NFS3ERR_JUKEBOX). Needs a file system with birth times, and not overlayfs, where a file gets another one when it
    /// is first written.
    Walk,
}

#[derive(Clone, Copy)]
pub(super) struct Root<'a> {
    /// Open for reading.
    pub(super) directory: BorrowedFd<'a>,
    pub(super) key: &'a FileKey,
}

pub(super) enum Keys {
    Kernel,
    Walk(WalkKeys),
}

impl Keys {
    /// Fails with the reason why keys of this kind are not available; for [`KeyMode::Auto`], why none are.
    pub(super) fn new(mode: KeyMode, root: &OwnedFd, stat: &Statx) -> io::Result<Self> {
        let kernel = || kernel::check(root).map(|()| Self::Kernel);
        let walk = || WalkKeys::new(root, stat).map(Self::Walk);
        match mode {
            KeyMode::Kernel => kernel(),
            KeyMode::Walk => walk(),
            KeyMode::Auto => kernel().or_else(|_| walk()),
        }
    }

    pub(super) fn mode(&self) -> KeyMode {
        match self {
            Self::Kernel => KeyMode::Kernel,
            Self::Walk(_) => KeyMode::Walk,
        }
    }

    /// Returns whether a file of the root's mount is in another file system nevertheless.
    pub(super) fn exclude(&self, stat: &Statx) -> bool {
        match self {
            Self::Kernel => false,
            Self::Walk(keys) => !keys.includes(stat),
        }
    }

    pub(super) fn of(&self, found: impl AsFd, stat: &Statx) -> Outcome<FileKey> {
        match self {
            Self::Kernel => kernel::of(found),
            Self::Walk(keys) => keys.of(stat),
        }
    }

    /// Finds the file of a key. NFS3ERR_STALE if it no longer exists.
    pub(super) fn find(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        match self {
            Self::Kernel => kernel::find(root, key),
            Self::Walk(keys) => keys.find(root, key),
        }
    }

    pub(super) fn note(&self, key: &FileKey, at: Place<'_>) {
        if let Self::Walk(keys) = self {
            keys.note(key, at);
        }
    }

    #[cfg(test)]
    pub(super) fn search_now(&self) {
        if let Self::Walk(keys) = self {
            keys.search_now();
        }
    }

    /// Prevents the inode number of a removed file from being reused for a new one with the same
    /// key.
    pub(super) fn outlive(&self, removed: &Statx) {
        if let Self::Walk(keys) = self {
            keys.outlive(removed);
        }
    }
}
