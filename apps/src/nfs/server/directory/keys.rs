//! Keys of files: each leads to its file again after a restart of the server, under whatever
//! name, and never to another file.
//!
//! Either the kernel's file handle, or what a search can find again. Neither kind is taken for the
//! other, so that keys of an earlier run of the other kind are stale, not wrong.

mod kernel;
mod walk;

use super::files::find;
use crate::nfs::server::file_system::{FileKey, Outcome, Place};
use kernel::KernelKeys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Statx;
use std::io;
use walk::WalkKeys;

/// Kind of keys that a [`Directory`](super::Directory) gives its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyMode {
    /// The kernel's if it gives them and lets this process open them, else the other ones.
    #[default]
    Auto,
    /// The kernel's file handles (name_to_handle_at(2)): found at once, also behind a restart. Needs
    /// CAP_DAC_READ_SEARCH and a file system with handles of at most 39 bytes: ext4, xfs, btrfs, tmpfs
    /// and most others, but not overlayfs.
    Kernel,
    /// Number and time of birth of the file. A file that was not seen since the start of the server is
    /// searched for in the whole tree, of which at most a million files are looked at; meant for small
    /// trees and servers without privileges. Needs a file system that keeps times of birth.
    Walk,
}

/// The root of an export, by which keys are opened.
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
    /// Keys of this kind for what is below `root`.
    ///
    /// # Errors
    /// Why keys of the kind asked for cannot be had; for [`KeyMode::Auto`], why none can.
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

    /// Finds the file of a key. NFS3ERR_STALE if there is none any more.
    pub(super) fn find(&self, root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
        match self {
            Self::Kernel(keys) => keys.find(root, key),
            Self::Walk(keys) => keys.find(root, key),
        }
    }

    /// Takes note of where a file was seen.
    pub(super) fn note(&self, key: &FileKey, at: Place<'_>) {
        if let Self::Walk(keys) = self {
            keys.note(key, at);
        }
    }

    /// Keeps the number of a file that was removed from being used for a new one with the same key.
    pub(super) fn outlive(&self, removed: &Statx) {
        if let Self::Walk(keys) = self {
            keys.outlive(removed);
        }
    }
}
