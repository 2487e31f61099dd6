//! Unix sockets of the handshake: one packet each way, with file descriptors.

use super::address::Address;
use crate::sys::credentials::{self, Credentials};
use crate::sys::peer_socket::{DESCRIPTORS_MAX, PeerListener, PeerSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

const BACKLOG: i32 = 1024;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens at `address`. A socket file that nobody listens at any more is replaced.
pub(super) fn listen(address: &Address) -> io::Result<PeerListener> {
    let socket = socket()?;
    // The file gets the mode that the socket has when it is bound: no moment with another one.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let name = address.socket_address()?;
    match net::bind(&socket, &name) {
        Err(Errno::ADDRINUSE) if is_stale(address)? => {
            if let Some(path) = address.path() {
                std::fs::remove_file(path)?;
            }
            net::bind(&socket, &name)?;
        }
        other => other?,
    }
    PeerListener::listen(socket, BACKLOG)
}

/// A socket file whose owner is dead refuses connections. A file that is no socket is never stale.
fn is_stale(address: &Address) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    let Some(path) = address.path() else { return Ok(false) };
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    let refused = net::connect(&socket()?, &address.socket_address()?) == Err(Errno::CONNREFUSED);
    Ok(is_socket && refused)
}

/// Connects, waiting while the listener's queue is full, and asks for the listener's credentials.
pub(super) fn connect(
    address: &Address,
    deadline: Instant,
) -> io::Result<(PeerSocket, Credentials)> {
    PeerSocket::connect(socket()?, &address.socket_address()?, deadline)
}

/// Sends one packet with `fds`; it fits the buffer of a fresh socket, so this does not wait.
pub(super) fn send(
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

/// Waits for a packet until `deadline`.
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

/// Whether a descriptor is readable now.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&now)), Ok(1..))
}
