//! A byte stream to one peer whose connect, reads and writes share one limit.
//!
//! The limit holds for all of an exchange: a peer that sends byte by byte gains no time. Called by the
//! rpcbind client, and by programs that serve or call ONC RPC over TCP; [`record`](super::record) has
//! the messages on it.

use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time until an exchange ends that nothing waits for any more.
const CHECK: Duration = Duration::from_millis(100);

/// Limits of an exchange: its time, and whether something still waits for it.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    end: Instant,
    is_awaited: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Limits<'a> {
    /// Ends after `time`.
    #[must_use]
    pub fn within(time: Duration) -> Self {
        Self::until(Instant::now() + time)
    }

    pub(super) fn until(end: Instant) -> Self {
        Self { end, is_awaited: None }
    }

    /// Also ends, within 100 ms, when `is_awaited` returns `false`.
    #[must_use]
    pub fn while_awaited(self, is_awaited: &'a dyn Fn() -> bool) -> Self {
        Self { is_awaited: Some(is_awaited), ..self }
    }

    /// Gives the next system call on a socket the time until the next check.
    fn arm(&self, socket: BorrowedFd<'_>, which: Timeout) -> io::Result<()> {
        if self.is_awaited.is_some_and(|is_awaited| !is_awaited()) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "given up"));
        }
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let time = if self.is_awaited.is_some() { left.min(CHECK) } else { left };
        // Zero would mean forever: less than the kernel's resolution is rounded up.
        Ok(set_socket_timeout(socket, which, Some(time.max(Duration::from_millis(1))))?)
    }
}

/// A connected socket, for one exchange within its limits.
pub struct Stream<'a> {
    socket: BorrowedFd<'a>,
    limits: Limits<'a>,
}

impl<'a> Stream<'a> {
    /// For a socket whose system calls block.
    pub fn new(socket: &'a impl AsFd, limits: Limits<'a>) -> Self {
        Self { socket: socket.as_fd(), limits }
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.limits.arm(self.socket, Timeout::Recv)?;
            match recv(self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length)) => return Ok(length),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            self.limits.arm(self.socket, Timeout::Send)?;
            match send(self.socket, buffer, SendFlags::NOSIGNAL) {
                Ok(length) => return Ok(length),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to a TCP address within the limits, from this local port if one is given. Blocks.
///
/// # Errors
/// Those of bind(2) and connect(2); `TimedOut`, and `ConnectionAborted` if nothing waits for it.
pub fn connect(place: SocketAddr, from: Option<u16>, limits: Limits<'_>) -> io::Result<OwnedFd> {
    let (family, any): (_, IpAddr) = match place {
        SocketAddr::V4(_) => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(port) = from {
        bind(&socket, &SocketAddr::new(any, port))?;
    }
    connected(socket, &place, limits)
}

/// Connects to a Unix socket within the limits. Blocks.
pub(super) fn connect_unix(path: &Path, limits: Limits<'_>) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connected(socket, &SocketAddrUnix::new(path)?, limits)
}

/// Linux bounds a connect by the timeout for sending, also where the backlog of a Unix socket is full,
/// and a repeated one waits for the first.
fn connected(
    socket: OwnedFd,
    place: &impl SocketAddrArg,
    limits: Limits<'_>,
) -> io::Result<OwnedFd> {
    loop {
        limits.arm(socket.as_fd(), Timeout::Send)?;
        match rustix::net::connect(&socket, place) {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
