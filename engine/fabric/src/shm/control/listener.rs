//! Accepting: from a socket that becomes readable to an endpoint in the hands of its core.

use super::super::super::{Acceptor, FabricError, Peer};
use super::super::budget::MemoryLease;
use super::super::connector::Environment;
use super::super::endpoint::Made;
use super::super::handshake::{self, HandshakeError, Kind, Own, Packet, Refusal, Theirs};
use super::super::layout::Side;
use super::super::socket;
use super::super::window::Window;
use super::{Control, State};
use crate::connector_common::{Guarded, PrivateData};
use crate::mem::Slab;
use crate::sync::next_number;
use crate::sys::credentials::Credentials;
use crate::sys::journal::event;
use crate::sys::peer_socket::{Accepted as Connection, PeerListener, PeerSocket};
use crate::sys::socket_file::SocketFile;
use rustix::event::epoll;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections taken from a listener before others are looked after again.
const ACCEPT_BATCH: usize = 64;

const PAUSE: Duration = Duration::from_millis(50);

pub(in super::super) struct Listener {
    pub(in super::super) socket: PeerListener,
    pub(in super::super) acceptor: Guarded,
    pub(in super::super) private_data: PrivateData,
    pub(in super::super) environment: Arc<Environment>,
    lent: Box<[Slab]>,
    pub(super) paused_until: Option<Instant>,
}

impl Listener {
    pub(in super::super) fn new(
        socket: PeerListener,
        acceptor: Guarded,
        private_data: PrivateData,
        lent: &[Slab],
        environment: Arc<Environment>,
    ) -> Self {
        let lent = lent.into();
        Self { socket, acceptor, private_data, environment, lent, paused_until: None }
    }
}

pub(super) struct Pending {
    socket: PeerSocket,
    peer: Credentials,
    listener: u64,
    pub(super) deadline: Instant,
}

#[derive(Default)]
pub(super) struct Strangers {
    refused: u64,
    told: Option<Instant>,
}

impl Strangers {
    /// Counts one, and logs the count once a second at most.
    fn refuse(&mut self) {
        const INTERVAL: Duration = Duration::from_secs(1);
        self.refused += 1;
        if self.told.is_none_or(|told| told.elapsed() >= INTERVAL) {
            self.told = Some(Instant::now());
            event!(INFO, refused = self.refused, "shm connections of other users were refused");
        }
    }
}

/// Has the control thread accept at the listener's socket until the result is dropped: then the address is free. `file`,
/// which goes before the socket, is its file, if it has one.
pub(in super::super) fn listen(
    control: &Arc<Control>,
    file: Option<SocketFile>,
    listener: Listener,
) -> Box<dyn Send> {
    let token = next_number();
    control.mailbox.leave(move |state| state.add_listener(token, listener));
    Box::new((file, control.guard(token, |state, token| drop(state.remove(token)))))
}

impl State {
    fn add_listener(&mut self, token: u64, listener: Listener) {
        if let Err(error) = self.add(token, listener.socket.as_fd()) {
            event!(ERROR, %error, "a listener cannot be waited for; it accepts nothing");
        }
        self.listeners.insert(token, listener);
    }

    pub(super) fn accept(&mut self, token: u64) {
        for _ in 0..ACCEPT_BATCH {
            let Some(listener) = self.listeners.get_mut(&token) else { return };
            match listener.socket.accept() {
                Ok(None) => return,
                Ok(Some(Connection::Stranger)) => self.strangers.refuse(),
                Ok(Some(Connection::Peer(_, Credentials { uid, pid, .. })))
                    if !listener.acceptor.admits(&Peer::Process { uid, pid }) =>
                {
                    self.strangers.refuse();
                }
                Ok(Some(Connection::Peer(socket, peer))) => {
                    let config = &listener.environment.config;
                    let deadline = Instant::now() + config.handshake_timeout;
                    let (max, ready) = (config.handshakes_max, listener.environment.ready());
                    let pending = Pending { socket, peer, listener: token, deadline };
                    self.begin_handshake(pending, max, &ready);
                }
                Err(error) => {
                    event!(WARN, %error, "a connection cannot be accepted; trying again soon");
                    // Out of descriptors: the socket stays readable, and would keep us busy.
                    listener.paused_until = Some(Instant::now() + PAUSE);
                    let _ = epoll::delete(&self.epoll, &listener.socket);
                    return;
                }
            }
        }
    }

    fn begin_handshake(&mut self, mut pending: Pending, max: usize, ready: &Packet) {
        if pending.socket.is_peer_full() {
            event!(
                INFO,
                peer = pending.peer.pid,
                "refused: too many descriptors of peers cannot be closed"
            );
            return;
        }
        self.make_room(pending.peer, max);
        pending.socket.accept_descriptors();
        // A peer that has gone meanwhile does not care.
        let _ = socket::write(pending.socket.as_fd(), &ready.encode(), &[]);
        let token = next_number();
        if self.add(token, pending.socket.as_fd()).is_ok() {
            self.pending.insert(token, pending);
        }
    }

    /// Ends handshakes until there is room for one of `newcomer`: those of the process that has most of
    /// them, oldest first. One that has sent its part is answered instead.
    fn make_room(&mut self, newcomer: Credentials, max: usize) {
        while self.pending.len() >= max {
            let mut by_process = HashMap::from([(newcomer.process, 1_usize)]);
            for pending in self.pending.values() {
                *by_process.entry(pending.peer.process).or_default() += 1;
            }
            let share = |pending: &Pending| by_process.get(&pending.peer.process).copied();
            let last = self
                .pending
                .iter()
                .max_by_key(|(_, pending)| (share(pending), Reverse(pending.deadline)));
            let Some((&token, pending)) = last else { return };
            match socket::is_readable(pending.socket.as_fd()) {
                true => self.answer(token),
                false => drop(self.end_handshake(token)),
            }
        }
    }

    fn end_handshake(&mut self, token: u64) -> Option<Pending> {
        let pending = self.pending.remove(&token)?;
        self.forget(&pending.socket);
        Some(pending)
    }

    pub(super) fn answer(&mut self, token: u64) {
        // It will be watched under another token.
        let Some(pending) = self.end_handshake(token) else { return };
        let at = pending.listener;
        let Some(mut listener) = self.listeners.remove(&at) else { return };
        if let Err(error) = self.welcome(pending, &mut listener) {
            event!(INFO, %error, "a shm connection was refused");
        }
        self.listeners.insert(at, listener);
    }

    fn welcome(&mut self, pending: Pending, listener: &mut Listener) -> Result<(), HandshakeError> {
        let Pending { mut socket, peer: credentials, .. } = pending;
        let accepted = accept_hello(&socket, credentials, listener);
        let (hello, window, theirs, seat) = accepted.inspect_err(|error| {
            // A peer that has gone meanwhile does not care.
            let reject = Packet::reject(error.refusal()).encode();
            let _ = socket::write(socket.as_fd(), &reject, &[]);
        })?;
        handshake::take(&socket)?;
        socket.refuse_descriptors();
        let Seat { core_index, own, memory } = seat;
        let lent: Box<[Slab]> = if hello.accepts(&listener.lent) {
            listener.lent.clone()
        } else {
            event!(INFO, peer = credentials.pid, "it accepts fewer slabs, and is lent none");
            Box::default()
        };
        let (side, layout) = (Side::Listener, listener.environment.layout);
        let answer = own.packet(Kind::Accept, layout, &lent, listener.private_data);
        let own_fds = [own.arena.as_fd(), own.place.core().bell_fd.as_fd()];
        let fds: Vec<_> = own_fds.into_iter().chain(lent.iter().map(Slab::fd)).collect();
        socket::write(socket.as_fd(), &answer.encode(), &fds)?;
        let made = Made { side, layout, window, own, theirs, lent, memory, socket, credentials };
        listener.acceptor.accepted(core_index, made.watched(&self.mailbox, &hello));
        Ok(())
    }

    pub(super) fn expire(&mut self, now: Instant) {
        let late = self.pending.iter().filter(|(_, pending)| pending.deadline <= now);
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            self.end_handshake(token);
        }
        let rested = self.listeners.iter_mut().filter_map(|(token, listener)| {
            listener.paused_until.take_if(|until| *until <= now).map(|_| *token)
        });
        for token in rested.collect::<Vec<_>>() {
            if let Some(listener) = self.listeners.get(&token)
                && let Err(error) = self.add(token, listener.socket.as_fd())
                && let Some(listener) = self.listeners.get_mut(&token)
            {
                event!(WARN, %error, "a listener cannot be watched; trying again soon");
                listener.paused_until = Some(now + PAUSE);
            }
        }
    }
}

fn accept_hello(
    socket: &PeerSocket,
    peer: Credentials,
    listener: &mut Listener,
) -> Result<(Packet, Window, Theirs, Seat), HandshakeError> {
    let (hello, [connection, arena, bell], slabs) = handshake::peek(socket, Kind::Hello)?;
    let environment = &listener.environment;
    // Smaller rings would not take the messages that our `Caps` promise, and larger ones are memory
    // that this side has not configured.
    let layout = environment.layout;
    let arena_max = environment.arena_bytes_max() as u64;
    let (slots, accepts) =
        (environment.config.ring_slots, environment.slab_limits().accept(&hello));
    if hello.slots != slots || hello.arena_bytes > arena_max || !accepts {
        return Err(Refusal::Limits.into());
    }
    // Both are within limits of this side, which are of its own size type.
    let bytes = hello.arena_bytes.saturating_add(hello.slab_bytes) as usize;
    let seat = take_seat(environment, &mut listener.acceptor, peer, bytes)?;
    let core = seat.own.place.core();
    let window = handshake::map_connection(connection, layout, core)?;
    let theirs = Theirs::map(&hello, [arena, bell], slabs)?;
    handshake::place_near(&window, layout, Side::Listener, core.node());
    // Those of the connector exist, if it does as it should.
    handshake::prefault_idle(&window, layout, Side::Connector);
    handshake::prefault_idle(&window, layout, Side::Listener);
    Ok((hello, window, theirs, seat))
}

struct Seat {
    core_index: usize,
    own: Own,
    memory: MemoryLease,
}

/// A seat at the next core that has one: connections end at different times, so that one core may be
/// full while others are not.
fn take_seat(
    environment: &Environment,
    acceptor: &mut impl Acceptor,
    peer: Credentials,
    peer_bytes: usize,
) -> Result<Seat, HandshakeError> {
    let mut tried = Vec::new();
    let mut refused = HandshakeError::from(Refusal::Full);
    while let Some(core) = acceptor.pick_core(&tried) {
        match try_seat(environment, core, peer, peer_bytes) {
            Err(full @ HandshakeError::Refused(Refusal::Full | Refusal::Memory)) => refused = full,
            other => return other,
        }
        tried.push(core);
    }
    Err(refused)
}

fn try_seat(
    environment: &Environment,
    core_index: usize,
    peer: Credentials,
    peer_bytes: usize,
) -> Result<Seat, HandshakeError> {
    let memory = environment.take_memory(core_index, peer, environment.layout, peer_bytes);
    let memory = memory.ok_or(Refusal::Memory)?;
    let core = environment.core(core_index).map_err(|_: FabricError| Refusal::Resources)?;
    let own = Own::new(&core, &environment.config.arena)?;
    Ok(Seat { core_index, own, memory })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::config::ShmConfig;
    use super::super::super::connector::ShmConnector;
    use super::*;
    use crate::Endpoint;

    /// Cores 0 and 1, by turns.
    #[derive(Default)]
    struct Two(usize);

    impl Acceptor for Two {
        fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
            let picked =
                (self.0..self.0 + 2).map(|core| core % 2).find(|core| !full.contains(core))?;
            self.0 = picked + 1;
            Some(picked)
        }

        fn accepted(&mut self, _: usize, _: Endpoint) {}
    }

    #[test]
    fn a_core_that_is_full_leaves_connections_to_one_that_is_not() {
        let config = ShmConfig { conns_max: 1, ..ShmConfig::default() };
        let connector = ShmConnector::new(config).unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Credentials::of_peer(&socket).unwrap();
        let mut cores = Two::default();
        let mut take = || take_seat(connector.environment(), &mut cores, peer, 4096);
        let (first, second) = (take().unwrap(), take().unwrap());
        assert_eq!((first.core_index, second.core_index), (0, 1));
        let full = HandshakeError::Refused(Refusal::Full);
        assert_eq!(take().err().map(|error| error.to_string()), Some(full.to_string()));
        drop(second);
        // Whichever of them is next.
        for _ in 0..4 {
            assert_eq!(take().unwrap().core_index, 1);
        }
    }
}
