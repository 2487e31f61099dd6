//! Unix sockets of the handshake: one packet each way, with file descriptors.

use super::address::Address;
use crate::sys::credentials::{self, Credentials};
use crate::sys::peer_socket::{DESCRIPTORS_MAX, PeerListener, PeerSocket};
use crate::sys::socket_file::SocketFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const BACKLOG: i32 = 1024;
/// Longest wait for room in the queue of a listener that is only asked whose it is.
const QUEUE_PATIENCE: Duration = Duration::from_millis(2);

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

pub(super) fn listen(address: &Address) -> io::Result<(PeerListener, Option<SocketFile>)> {
    let socket = socket()?;
    if let Some(path) = address.path() {
        let (listener, file) = SocketFile::listen(socket, path, BACKLOG)?;
        return Ok((listener, Some(file)));
    }
    net::bind(&socket, &address.socket_address()?)?;
    Ok((PeerListener::listen(socket, BACKLOG)?, None))
}

/// Connects, waiting while the listener's queue is full, and asks for the listener's credentials.
pub(super) fn connect(
    address: &Address,
    deadline: Instant,
) -> io::Result<(PeerSocket, Credentials)> {
    PeerSocket::connect(socket()?, &address.socket_address()?, deadline)
}

/// Another user who has the address, or a listener of that name: by the kernel's word, for errors. Does
/// not wait for a listener whose queue is full, and does not know its user.
pub(super) fn other_owner(address: &Address) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let listener = |at: &SocketAddrUnix| {
        let deadline = Instant::now() + QUEUE_PATIENCE;
        Some(PeerSocket::connect(socket().ok()?, at, deadline).ok()?.1.uid)
    };
    let file = address.path().and_then(|path| Some(std::fs::metadata(path).ok()?.uid()));
    let own_name = address.socket_address().ok();
    let mut listeners = own_name.into_iter().chain(address.namesakes());
    file.into_iter().chain(listeners.by_ref().filter_map(|at| listener(&at))).find(|it| *it != own)
}

/// The packet fits the buffer of a fresh socket, so this does not wait.
pub(super) fn write(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn wait_readable(socket: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            result => return Ok(result.map(drop)?),
        }
    }
}

/// A descriptor that becomes readable when the peer's process ends: from the socket where the
/// kernel knows it (Linux 6.5), which cannot be another process that got the same id.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>, peer: Credentials) -> io::Result<OwnedFd> {
    if let Ok(pidfd) = credentials::peer_pidfd(socket) {
        return Ok(pidfd);
    }
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    Ok(pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?)
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&now)), Ok(1..))
}
