//! Accepting: from a TCP connection to an endpoint in the hands of its core. One thread for each listener, which answers all
//! handshakes and waits for none of them.

use super::super::{Acceptor, LimitScope, Peer};
use super::config::IwarpConfig;
use super::connector::local;
use super::link::Link;
use super::socket;
use super::wire::{Answer, FRAME_BYTES_MAX, Frame, FrameKind, Parsed};
use crate::connector_common::{Guarded, HostPlace, Hosts, PrivateData, is_crowded, padded};
use crate::sys::journal::event;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::cmp::Reverse;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Connections taken before handshakes are looked after again: fewer than there is room for, so that a request that came with
/// a flood of others is read before they push it out.
const ACCEPT_BATCH: usize = 8;

/// Longest wait for the first byte of a request, which follows the connection at once: TCP has repeated it after a second.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(2);

/// Pause when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

const THREAD: &str = "spinrpc-iwarp";

pub(super) struct Listener {
    pub(super) socket: TcpListener,
    pub(super) private_data: PrivateData,
    pub(super) acceptor: Guarded,
    pub(super) config: IwarpConfig,
    pub(super) hosts: Hosts,
}

/// Keeps a listener; dropping it ends it, and waits for that.
pub(super) struct Listening {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    pub(super) fn start(listener: Listener) -> io::Result<Self> {
        listener.socket.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let accepting =
            Accepting { listener, pending: Vec::new(), stop: Arc::clone(&stop), paused: None };
        let thread = thread::Builder::new().name(THREAD.into()).spawn(|| accepting.run())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // An empty counter takes it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        // An acceptor may drop its own listener. A panic of the thread has been reported by the hook.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

struct Accepting {
    listener: Listener,
    pending: Vec<Pending>,
    /// Readable when the thread is to end.
    stop: Arc<OwnedFd>,
    paused: Option<Instant>,
}

/// A connection whose request has not come whole.
struct Pending {
    socket: TcpStream,
    peer: SocketAddr,
    place: HostPlace,
    since: Instant,
    bytes: Box<[u8; FRAME_BYTES_MAX]>,
    length: usize,
}

impl Accepting {
    fn run(mut self) {
        while self.wait() {
            let now = Instant::now();
            // First, as those that are over make room for others.
            for mut pending in std::mem::take(&mut self.pending) {
                match pending.go_on() {
                    Poll::Pending if now < self.deadline(&pending) => self.pending.push(pending),
                    Poll::Ready(true) => self.answer(pending),
                    Poll::Pending | Poll::Ready(false) => {}
                }
            }
            if self.paused.is_none_or(|until| until <= now) {
                self.paused = None;
                self.accept(now);
            }
        }
    }

    fn deadline(&self, pending: &Pending) -> Instant {
        let limit = self.listener.config.handshake_timeout;
        pending.since + if pending.length > 0 { limit } else { limit.min(FIRST_BYTE_WITHIN) }
    }

    /// Waits for a connection, a part of a request, or a deadline. False if the thread is to end.
    fn wait(&self) -> bool {
        let deadlines = self.pending.iter().map(|it| self.deadline(it)).chain(self.paused);
        let timeout = deadlines.min().and_then(|deadline| {
            Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
        });
        let accepts = if self.paused.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let own =
            [PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener.socket, accepts)];
        let pending = self.pending.iter().map(|it| PollFd::new(&it.socket, PollFlags::IN));
        let mut polled: Vec<_> = own.into_iter().chain(pending).collect();
        // However it ends, everything is looked at.
        let _ = poll(&mut polled, timeout.as_ref());
        polled[0].revents().is_empty()
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_BATCH {
            match self.listener.socket.accept() {
                Ok((socket, peer)) => self.welcome(socket, peer, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    event!(WARN, %error, "a connection cannot be accepted; trying again soon");
                    self.paused = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes a connection in, unless its host may not connect or has too many.
    fn welcome(&mut self, socket: TcpStream, peer: SocketAddr, now: Instant) {
        let Listener { acceptor, config, hosts, .. } = &mut self.listener;
        if !acceptor.admits(&Peer::Socket(peer)) {
            event!(DEBUG, %peer, "a connection of a stranger is reset");
            return socket::reset(socket);
        }
        let host = LimitScope::of(peer.ip());
        let Some(place) = hosts.take(host, config.host_conns_max) else {
            event!(WARN, %peer, "no room for more connections of one host: a connection is reset");
            return socket::reset(socket);
        };
        if let Err(error) = socket::prepare(&socket) {
            return event!(WARN, %peer, %error, "a socket cannot be used");
        }
        self.make_room(host);
        let bytes = Box::new([0; FRAME_BYTES_MAX]);
        self.pending.push(Pending { socket, peer, place, since: now, bytes, length: 0 });
    }

    /// Resets the oldest handshake if there is no room for one more with `host`: of that host if it has its share, else of the
    /// host that has the most. Requests come whole, and at once: what waits is silent, slow, or on its way from afar.
    fn make_room(&mut self, host: LimitScope) {
        let hosts: Vec<LimitScope> = self.pending.iter().map(|it| *it.place).collect();
        let most = self.listener.config.handshakes_max;
        if !is_crowded(hosts.iter().copied(), host, most) {
            return;
        }
        let has_its_share = hosts.len() < most;
        let count = |of: LimitScope| hosts.iter().filter(|other| **other == of).count();
        let oldest = (0..hosts.len())
            .filter(|at| !has_its_share || hosts[*at] == host)
            .min_by_key(|at| Reverse(count(hosts[*at])));
        if let Some(at) = oldest {
            let Pending { socket, peer, .. } = self.pending.remove(at);
            event!(WARN, %peer, "too many handshakes at once: one that is not over is reset");
            socket::reset(socket);
        }
    }

    fn answer(&mut self, pending: Pending) {
        let Pending { socket, peer, place, bytes, length, .. } = pending;
        let Ok(Parsed::Done((request, _))) = Frame::parse(FrameKind::Request, &bytes[..length])
        else {
            return;
        };
        let Listener { acceptor, config, private_data, .. } = &mut self.listener;
        let local = local(config, request.revision);
        let (reply, agreed) = match local.answer(&request, private_data.as_slice()) {
            Answer::Accept(reply, agreed) => (reply, agreed),
            // The peer is told, or gone.
            Answer::Refuse(refusal) => return drop(write(&socket, &refusal)),
        };
        let Some(core) = acceptor.pick_core(&[]) else {
            return drop(write(&socket, &local.refuse(&request, &[])));
        };
        if let Err(error) = write(&socket, &reply) {
            return event!(DEBUG, %peer, %error, "a connection is lost in its handshake");
        }
        let (lent, place) = (Box::default(), Some(place));
        let link = Link { socket, agreed, is_connecting: false, lent, place };
        let endpoint = link.into_endpoint(peer, padded(request.private_data));
        acceptor.accepted(core, endpoint);
    }
}

impl Pending {
    /// Reads what has come of the request. True if it is whole, and false if it never will be.
    fn go_on(&mut self) -> Poll<bool> {
        loop {
            match Frame::parse(FrameKind::Request, &self.bytes[..self.length]) {
                Err(error) => {
                    let peer = self.peer;
                    event!(DEBUG, %peer, %error, "a connection is closed");
                    return Poll::Ready(false);
                }
                Ok(Parsed::Done(_)) => return Poll::Ready(true),
                // Not a byte of what follows the frame.
                Ok(Parsed::Need(needed)) => {
                    match self.socket.read(&mut self.bytes[self.length..needed]) {
                        Ok(0) => return Poll::Ready(false),
                        Ok(count) => self.length += count,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            return Poll::Pending;
                        }
                        Err(_) => return Poll::Ready(false),
                    }
                }
            }
        }
    }
}

/// A new socket has room for a frame.
fn write(mut socket: &TcpStream, frame: &Frame<'_>) -> io::Result<()> {
    let mut bytes = [0; FRAME_BYTES_MAX];
    let length = frame.emit(&mut bytes).ok_or(io::ErrorKind::InvalidInput)?;
    socket.write_all(&bytes[..length])
}
