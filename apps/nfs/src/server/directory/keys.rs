//! Keys of files: each leads to its file after a restart of the server, whatever its name, and
//! never to another file.
//!
//! A key is either the kernel's file handle, or data for a search. The two kinds are distinct, so
//! that keys of the other kind from an earlier run are stale, not wrong.

mod kernel;
mod walk;

use super::files::find;
use crate::server::file_system::{FileKey, Outcome, Place};
use kernel::KernelKeys;
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
    /// tmpfs and most others, but not overlayfs.
    Kernel,
    /// Inode number and birth time of the file. A file not seen since the start of the server is
    /// searched for in the whole tree, up to a million files; meant for small trees and servers
    /// without privileges. Needs a file system with birth times.
    Walk,
}

/// The root of an export, used to open keys.
#[derive(Clone, Copy)]
pub(super) struct Root<'a> {
    /// Open for reading.
    pub(super) directory: BorrowedFd<'a>,
    pub(super) key: &'a FileKey,
    pub(super) mount_id: u64,
}

pub(super) enum Keys {
    Kernel(KernelKeys),
    Walk(WalkKeys),
}

impl Keys {
    /// Keys of this kind for files below `root`.
    ///
    /// # Errors
    /// The reason why keys of the requested kind are not available; for [`KeyMode::Auto`], why none
    /// are.
    pub(super) fn new(mode: KeyMode, root: &OwnedFd, stat: &Statx) -> io::Result<Self> {
        let kernel = || KernelKeys::new(root).map(Self::Kernel);
        let walk = || WalkKeys::new(stat).map(Self::Walk);
        match mode {
            KeyMode::Kernel => kernel(),
            KeyMode::Walk => walk(),
            KeyMode::Auto => kernel().or_else(|_| walk()),
        }
    }

    /// Kind of the keys.
    pub(super) fn mode(&self) -> KeyMode {
        match self {
            Self::Kernel(_) => KeyMode::Kernel,
            Self::Walk(_) => KeyMode::Walk,
        }
    }

    /// The key of a file that was found.
    pub(super) fn of(&self, found: impl AsFd, stat: &Statx) -> Outcome<FileKey> {
        match self {
            Self::Kernel(keys) => keys.of(found),
            Self::Walk(keys) => keys.of(stat),
        }
    }

    /// Finds the file of a key. NFS3ERR_STALE if it no longer exists.
    pub(super) fn find(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        match self {
            Self::Kernel(keys) => keys.find(root, key),
            Self::Walk(keys) => keys.find(root, key),
        }
    }

    /// Remembers where a file was seen.
    pub(super) fn note(&self, key: &FileKey, at: Place<'_>) {
        if let Self::Walk(keys) = self {
            keys.note(key, at);
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
