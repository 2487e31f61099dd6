//! Accepting: from a socket that becomes readable to an endpoint in the hands of its core.

use super::super::super::{Acceptor, FabricError};
use super::super::connector::Environment;
use super::super::core::CoreShared;
use super::super::endpoint::{Link, PRIVATE_DATA_BYTES, PeerState, ShmEndpoint};
use super::super::handshake::{self, Kind, Own, OwnError, Packet, Refusal};
use super::super::layout::{Layout, Side};
use super::super::socket::{self, Credentials};
use super::mailbox::Command;
use super::{Control, Entry, State, Watch};
use rustix::event::epoll;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How long a listener rests when the process is out of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A listening socket and who wants its connections.
pub(in super::super) struct Listener {
    pub(in super::super) socket: OwnedFd,
    pub(in super::super) acceptor: Box<dyn Acceptor<ShmEndpoint>>,
    pub(in super::super) private_data: [u8; PRIVATE_DATA_BYTES],
    pub(in super::super) environment: Arc<Environment>,
    pub(super) paused_until: Option<Instant>,
}

/// A connection whose handshake is not over.
pub(super) struct Pending {
    socket: OwnedFd,
    listener: u64,
    pub(super) deadline: Instant,
}

/// Ends a listener when dropped: then the address is free, and the socket file is gone.
struct ListenGuard {
    token: u64,
    path: Option<PathBuf>,
    control: Arc<Control>,
}

/// Has the control thread accept at `socket`; `path` is its file, if it has one.
pub(in super::super) fn listen(
    control: &Arc<Control>,
    environment: Arc<Environment>,
    socket: OwnedFd,
    path: Option<PathBuf>,
    private_data: [u8; PRIVATE_DATA_BYTES],
    acceptor: Box<dyn Acceptor<ShmEndpoint>>,
) -> Box<dyn Send> {
    let token = control.mailbox.next_token();
    let listener = Listener { socket, acceptor, private_data, environment, paused_until: None };
    control.mailbox.post(Command::Listen(token, Box::new(listener)));
    Box::new(ListenGuard { token, path, control: Arc::clone(control) })
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Somebody else may have removed it.
            let _ = std::fs::remove_file(path);
        }
        let (done, wait) = mpsc::channel();
        self.control.mailbox.post(Command::Remove(self.token, Some(done)));
        if thread::current().name() != Some(Control::THREAD_NAME) {
            // An error means that the thread is gone, and the socket with it.
            let _ = wait.recv();
        }
    }
}

impl State {
    pub(super) fn start_listener(&mut self, token: u64, listener: Listener) {
        if let Err(error) = self.add(token, listener.socket.as_fd()) {
            tracing::error!(%error, "a listener cannot be waited for; it accepts nothing");
        }
        self.entries.insert(token, Entry::Listener(listener));
    }

    /// Takes what waits at a listener.
    pub(super) fn accept(&mut self, token: u64) {
        loop {
            let Some(Entry::Listener(listener)) = self.entries.get_mut(&token) else { return };
            let config = &listener.environment.config;
            let (deadline, max) =
                (Instant::now() + config.handshake_timeout, config.handshakes_max);
            match socket::accept(listener.socket.as_fd()) {
                Ok(None) => return,
                Ok(Some(socket)) => {
                    self.start_handshake(Pending { socket, listener: token, deadline }, max);
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted; trying again soon");
                    // Out of descriptors: the socket stays readable, and would keep us busy.
                    listener.paused_until = Some(Instant::now() + PAUSE);
                    let _ = epoll::delete(&self.epoll, &listener.socket);
                    return;
                }
            }
        }
    }

    fn start_handshake(&mut self, pending: Pending, handshakes_max: usize) {
        let open = self.entries.iter().filter_map(|(token, entry)| match entry {
            Entry::Pending(pending) => Some((pending.deadline, *token)),
            _ => None,
        });
        let (count, oldest) = open.fold((0, None), |(count, oldest), one| {
            (count + 1, Some(oldest.map_or(one, |oldest| one.min(oldest))))
        });
        if let Some((_, oldest)) = oldest.filter(|_| count >= handshakes_max) {
            self.remove(oldest);
        }
        let token = self.mailbox.next_token();
        if self.add(token, pending.socket.as_fd()).is_ok() {
            self.entries.insert(token, Entry::Pending(pending));
        }
    }

    /// Answers a HELLO that has arrived.
    pub(super) fn answer(&mut self, token: u64) {
        let Some(Entry::Pending(Pending { socket, listener, .. })) = self.remove(token) else {
            return;
        };
        // It will be watched under another token.
        let _ = epoll::delete(&self.epoll, &socket);
        let Some(Entry::Listener(mut accepting)) = self.entries.remove(&listener) else { return };
        if let Err(refusal) = self.welcome(socket, &mut accepting) {
            tracing::info!(%refusal, "a shm connection was refused");
        }
        self.entries.insert(listener, Entry::Listener(accepting));
    }

    fn welcome(&mut self, socket: OwnedFd, listener: &mut Listener) -> Result<(), Refusal> {
        let accepted = accept_hello(&socket, listener).inspect_err(|refusal| {
            // A peer that has gone meanwhile does not care.
            let _ = socket::send(socket.as_fd(), &Packet::reject(*refusal).encode(), &[]);
        })?;
        let Accepted { core_index, core, own, parts, hello, credentials } = accepted;
        let peer = Arc::new(PeerState::default());
        let answer = Packet {
            kind: Kind::Accept,
            slots: hello.slots,
            place: own.place.index(),
            arena_bytes: own.arena_bytes as u64,
            private_data: listener.private_data,
        };
        let fds = [own.arena.as_fd(), core.bell_fd.as_fd()];
        socket::send(socket.as_fd(), &answer.encode(), &fds).map_err(|_| Refusal::Resources)?;
        let watch = Watch {
            socket,
            peer: Arc::clone(&peer),
            core: Arc::clone(&core),
            place: own.place.index(),
            credentials,
        };
        let link = Link {
            side: Side::Listener,
            layout: parts.layout,
            window: parts.window,
            bulk: own.bulk,
            peer_arena: parts.arena,
            peer_bell: parts.bell,
            peer_place: hello.place,
            peer,
            closed: false,
            watch: self.mailbox.watch(watch),
            place: own.place,
        };
        let endpoint = ShmEndpoint { link, private_data: hello.private_data, peer: credentials };
        listener.acceptor.accepted(core_index, endpoint);
        Ok(())
    }

    /// Ends handshakes that took too long, and rests that took long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        let late = |(token, entry): (&u64, &Entry)| match entry {
            Entry::Pending(pending) if pending.deadline <= now => Some(*token),
            _ => None,
        };
        let late: Vec<u64> = self.entries.iter().filter_map(late).collect();
        for token in late {
            self.remove(token);
        }
        let mut rested = Vec::new();
        for (token, entry) in &mut self.entries {
            if let Entry::Listener(listener) = entry
                && listener.paused_until.take_if(|until| *until <= now).is_some()
            {
                rested.push(*token);
            }
        }
        for token in rested {
            if let Some(Entry::Listener(listener)) = self.entries.get(&token) {
                let _ = self.add(token, listener.socket.as_fd());
            }
        }
    }
}

/// A checked HELLO, and our side of the connection.
struct Accepted {
    core_index: usize,
    core: Arc<CoreShared>,
    own: Own,
    parts: Parts,
    hello: Packet,
    credentials: Credentials,
}

/// What the peer has sent, mapped.
struct Parts {
    layout: Layout,
    window: super::super::window::Window,
    arena: super::super::window::Window,
    bell: super::super::core::PeerBell,
}

fn accept_hello(socket: &OwnedFd, listener: &mut Listener) -> Result<Accepted, Refusal> {
    let credentials = Credentials::of_peer(socket.as_fd()).map_err(|_| Refusal::Credentials)?;
    if !credentials.is_trusted() {
        return Err(Refusal::Credentials);
    }
    let (hello, [connection, arena, bell]) = handshake::receive(socket.as_fd(), Kind::Hello)?;
    let environment = &listener.environment;
    // Rings smaller than our own would not take the messages that our `Caps` promise.
    let layout = Layout::new(hello.slots).filter(|_| hello.slots >= environment.config.ring_slots);
    let layout = layout.ok_or(Refusal::Limits)?;
    let window = handshake::map_connection(connection, layout)?;
    let arena_max = environment.config.peer_arena_bytes_max;
    let arena = handshake::map_arena(arena, hello.arena_bytes, arena_max)?;
    let bell = handshake::map_bell(bell)?;
    let core_index = listener.acceptor.pick_core().ok_or(Refusal::Full)?;
    let core = environment.core(core_index).map_err(|_: FabricError| Refusal::Resources)?;
    let own = Own::new(&core, &environment.config.arena).map_err(|error| match error {
        OwnError::Full => Refusal::Full,
        OwnError::Resources(_) => Refusal::Resources,
    })?;
    let parts = Parts { layout, window, arena, bell };
    Ok(Accepted { core_index, core, own, parts, hello, credentials })
}
