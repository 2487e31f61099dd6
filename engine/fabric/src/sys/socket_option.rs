//! Options of sockets that rustix does not ask for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Longest segment of TCP on the way to the peer, in bytes, as far as the kernel knows it now.
pub(crate) fn segment_bytes(socket: impl AsFd) -> io::Result<usize> {
    let [bytes] = option(socket.as_fd(), (libc::IPPROTO_TCP, libc::TCP_MAXSEG))?;
    Ok(bytes as usize)
}

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
