//! A connection to a daemon, by Unix socket or TCP, on which everything ends by a deadline.
//!
//! The deadline is one for all that is read and written until the next is set: a daemon that
//! answers byte by byte gains no time. Called by the rpcbind client.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Address of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub(super) struct Stream {
    socket: OwnedFd,
    deadline: Instant,
}

impl Stream {
    /// Connects until `deadline`, which also holds for the first reads and writes.
    pub(super) fn connect(place: &Place, deadline: Instant) -> io::Result<Self> {
        let family = match place {
            Place::Unix(_) => AddressFamily::UNIX,
            Place::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Place::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let stream = Self { socket, deadline };
        // Linux bounds a connect by the timeout for sending, also where the backlog of a Unix
        // socket is full.
        stream.arm(Timeout::Send)?;
        let connected = match place {
            Place::Unix(path) => connect(&stream.socket, &SocketAddrUnix::new(path)?),
            Place::Tcp(address) => connect(&stream.socket, address),
        };
        connected.map_err(timed_out)?;
        Ok(stream)
    }

    /// Sets the deadline of later reads and writes.
    pub(super) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Gives the next system call the time that is left.
    fn arm(&self, which: Timeout) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Zero would mean forever: less than the kernel's resolution is rounded up.
        Ok(set_socket_timeout(&self.socket, which, Some(left.max(Duration::from_millis(1))))?)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.arm(Timeout::Recv)?;
        let received = recv(&self.socket, buffer, RecvFlags::empty());
        received.map(|(_, length)| length).map_err(timed_out)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.arm(Timeout::Send)?;
        send(&self.socket, buffer, SendFlags::NOSIGNAL).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns the kernel's error for an expired socket timeout into one kind.
fn timed_out(error: rustix::io::Errno) -> io::Error {
    match error {
        rustix::io::Errno::AGAIN | rustix::io::Errno::INPROGRESS => io::ErrorKind::TimedOut.into(),
        other => other.into(),
    }
}
