//! Options of sockets that rustix does not know.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Longest segment of TCP on the way to the peer, in bytes, as far as the kernel knows it now.
pub(crate) fn segment_bytes(socket: impl AsFd) -> io::Result<usize> {
    let [bytes] = option(socket.as_fd(), (libc::IPPROTO_TCP, libc::TCP_MAXSEG))?;
    Ok(bytes as usize)
}

/// Has the kernel take no more bytes than this before it can send them (`TCP_NOTSENT_LOWAT`).
pub(crate) fn limit_unsent_bytes(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), bytes)
}

pub(crate) fn set(
    socket: impl AsFd,
    (level, name): (libc::c_int, libc::c_int),
    value: u32,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    let (socket, at) = (socket.as_fd().as_raw_fd(), (&raw const value).cast());
    // SAFETY: the value has a place, and `len` says its size.
    let result = unsafe { libc::setsockopt(socket, level, name, at, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the kernel for an option of a socket that is an array of words.
pub(crate) fn option<const WORDS: usize>(
    socket: BorrowedFd<'_>,
    (level, name): (libc::c_int, libc::c_int),
) -> io::Result<[u32; WORDS]> {
    let mut value = [0; WORDS];
    let mut len = size_of_val(&value) as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: both results have places, and `len` says the size of the value.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at, &raw mut len) };
    match result == 0 && len as usize == size_of_val(&value) {
        true => Ok(value),
        false => Err(io::Error::last_os_error()),
    }
}

/// Announces an MSS to a peer that is connected to later.
#[cfg(all(test, not(loom)))]
pub(crate) fn limit_segment_bytes(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, (libc::IPPROTO_TCP, libc::TCP_MAXSEG), bytes)
}
