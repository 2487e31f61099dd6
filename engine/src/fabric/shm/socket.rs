//! Unix sockets of the handshake: one packet each way, with file descriptors.

use super::address::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// File descriptors one packet may carry; one more than any packet does, so that too many show.
const FDS_MAX: usize = 4;

const BACKLOG: i32 = 1024;

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens at `address`. A socket file that nobody listens at any more is replaced.
pub(super) fn listen(address: &Address) -> io::Result<OwnedFd> {
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
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket file whose owner is dead refuses connections. A file that is no socket is never stale.
fn is_stale(address: &Address) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    let Some(path) = address.path() else { return Ok(false) };
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    let refused = net::connect(&socket()?, &address.socket_address()?) == Err(Errno::CONNREFUSED);
    Ok(is_socket && refused)
}

/// Takes the next connection of a listener, if there is one.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects, trying again while the listener's backlog is full.
pub(super) fn connect(address: &Address, deadline: Instant) -> io::Result<OwnedFd> {
    const RETRY: Duration = Duration::from_millis(1);
    let socket = socket()?;
    let name = address.socket_address()?;
    loop {
        match net::connect(&socket, &name) {
            Ok(()) => return Ok(socket),
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends one packet with `fds`; it fits the buffer of a fresh socket, so this does not wait.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One packet and what came with it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) length: usize,
    pub(super) fds: Vec<OwnedFd>,
}

/// Takes one packet that has arrived. A packet cut short, or with more descriptors than any has,
/// is an error; descriptors are closed with it.
pub(super) fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(packet)];
    let got = net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the packet is too long"));
    }
    Ok(Received { length: got.bytes, fds })
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

/// Who is at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Credentials {
    /// As the kernel recorded them.
    pub(super) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let peer = net::sockopt::socket_peercred(socket)?;
        Ok(Self { pid: peer.pid.as_raw_nonzero().get().unsigned_abs(), uid: peer.uid.as_raw() })
    }

    /// The same user as ours, whose processes can do each other harm anyway.
    pub(super) fn is_trusted(self) -> bool {
        self.uid == geteuid().as_raw()
    }
}

/// A descriptor that becomes readable when the peer's process ends: from the socket where the
/// kernel knows it (Linux 6.5), which cannot be another process that got the same id.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>, peer: Credentials) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `len` are valid for writes of their sizes, and `len` says that of `fd`.
    let result = unsafe {
        let value = (&raw mut fd).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut len)
    };
    if result == 0 && fd >= 0 {
        // SAFETY: the kernel has just made this descriptor for us.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let pid = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    Ok(pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?)
}

/// Whether a descriptor is readable now.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&now)), Ok(1..))
}
