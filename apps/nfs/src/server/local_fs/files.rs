//! System calls on files that are known by an open descriptor, or by a name in an open directory:
//! only single names are resolved, never paths, and symbolic links are not followed.

use crate::server::errors::OrStatus;
use crate::server::file_system::Outcome;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, accessat, fcntl_getfl, fcntl_setfl,
    openat,
};
use rustix::io;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Bytes of names that are requested from the kernel at a time.
const LIST_BYTES: usize = 32 << 10;

pub(super) struct Entry<'a> {
    pub(super) name: &'a CStr,
    pub(super) fileid: u64,
    /// Cookie with which the listing continues.
    pub(super) cookie: u64,
}

/// Without opening it: devices and FIFOs do not notice. Finds a symbolic link itself.
pub(super) fn find(directory: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a file that was found. Only for regular files and directories: others may block, or have
/// side effects when opened.
///
/// A lease of another process on the file is broken, but not waited for (`lease-break-time` of
/// proc(5), 45 seconds): EAGAIN. The opened file is in blocking mode again, because reads and
/// writes would fail otherwise where they would have to wait.
pub(super) fn open(found: impl AsFd, how: OFlags) -> io::Result<OwnedFd> {
    let file = open_at(found, how | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

pub(super) fn find_again(file: impl AsFd) -> io::Result<OwnedFd> {
    open_at(file, OFlags::PATH)
}

fn open_at(file: impl AsFd, how: OFlags) -> io::Result<OwnedFd> {
    openat(CWD, path_of(file), how | OFlags::CLOEXEC, Mode::empty())
}

/// For system calls that take no descriptor of a file that was only found.
pub(super) fn path_of(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

pub(super) fn may(found: impl AsFd, right: Access) -> io::Result<()> {
    accessat(CWD, path_of(found), right, AtFlags::EACCESS)
}

/// Returns whether the name is a single one, which can only lead to an entry of its directory.
pub(super) fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

/// Begins at the descriptor's position; `take` returns `false` to stop. Returns whether the end was reached.
pub(super) fn entries(
    directory: &OwnedFd,
    take: &mut dyn FnMut(&Entry<'_>) -> Outcome<bool>,
) -> Outcome<bool> {
    let mut memory = vec![MaybeUninit::uninit(); LIST_BYTES];
    let mut listing = RawDir::new(directory, &mut memory);
    while let Some(entry) = listing.next() {
        let entry = entry.or_status()?;
        let (fileid, cookie) = (entry.ino(), entry.next_entry_cookie());
        if !take(&Entry { name: entry.file_name(), fileid, cookie })? {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn can_be_opened(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::Directory)
}
