//! Keys that are the kernel's file handles, after a byte for their kind.

use super::Root;
use crate::protocol::Nfsstat3;
use crate::server::errors::io_status;
use crate::server::file_system::{FileKey, Outcome};
use crate::sys::file_handle::FileHandle;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::OFlags;
use std::time::Duration;
use std::{io, thread};

/// First and last pause before a handle is opened again that fails with ENOMEM; each pause is twice the last one, so that all
/// take 100 ms. It fails so, too, while a new file gets the inode number of the handle (Linux, `iget_locked` of a number that is
/// `I_CREATING`), and clients retry only after seconds.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Checks with the root that handles are available, fit, and can be opened.
pub(super) fn check(root: &OwnedFd) -> io::Result<()> {
    let handle = FileHandle::of(root.as_fd())?;
    key_of(handle).ok_or(io::ErrorKind::Unsupported)?;
    handle.open(root.as_fd(), OFlags::PATH).map(drop)
}

pub(super) fn of(found: impl AsFd) -> Outcome<FileKey> {
    let handle = FileHandle::of(found.as_fd()).map_err(|error| io_status(&error))?;
    key_of(handle).ok_or(Nfsstat3::Nfs3errServerfault)
}

/// A generation in the handle tells the kernel that an inode number has been reused.
///
/// It finds every file of the file system, also outside of the root: no such key is ever given
/// out, and a client cannot forge one, because handles are authenticated. A file that is moved
/// out of the export remains reachable for clients that know its key, as in the kernel's server
/// without `subtree_check`.
pub(super) fn find(root: Root<'_>, key: &FileKey) -> Outcome<OwnedFd> {
    let handle = is_kernel(key).then(|| FileHandle::from_bytes(key.as_bytes())).flatten();
    open_patiently(handle.ok_or(Nfsstat3::Nfs3errStale)?, root).map_err(|error| {
        match io_status(&error) {
            // Not a handle of this file system: made by a server of another kind.
            Nfsstat3::Nfs3errInval | Nfsstat3::Nfs3errNoent => Nfsstat3::Nfs3errStale,
            status => status,
        }
    })
}

/// Called by threads that may block.
fn open_patiently(handle: FileHandle, root: Root<'_>) -> io::Result<OwnedFd> {
    let mut pause = PAUSE_MIN;
    loop {
        match handle.open(root.directory, OFlags::PATH) {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory && pause <= PAUSE_MAX => {}
            opened => return opened,
        }
        thread::sleep(pause);
        pause *= 2;
    }
}

fn key_of(handle: FileHandle) -> Option<FileKey> {
    FileKey::new(&handle.to_bytes()?).filter(is_kernel)
}

fn is_kernel(key: &FileKey) -> bool {
    key.as_bytes().first() != Some(&super::walk::MARK)
}
