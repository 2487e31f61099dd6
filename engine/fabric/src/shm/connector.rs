//! The control plane: makes data planes, connects and listens.

use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest,
};
use super::address::Address;
use super::budget::{MemoryBudget, MemoryLease};
use super::config::{ARENA_BYTES_MAX, ShmConfig};
use super::control::{self, Control, Listener};
use super::core::CoreShared;
use super::driver::ShmFabric;
use super::endpoint::Made;
use super::handshake::{self, HandshakeError, Kind, Own, Packet, Refusal, Theirs};
use super::layout::{Layout, Side};
use super::socket;
use super::window::Window;
use crate::connector_common::{Attempt, Cores, Guarded, take_core};
use crate::mem::{BulkPool, Slab};
use crate::sys::credentials::{self, Credentials};
use crate::sys::mmap::{BorrowedMemory, SharedMemory};
use crate::sys::peer_socket::{PeerFd, PeerSocket};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Makes and accepts shared-memory connections for all cores of a process. It has one thread, which
/// ends when the connector and all its data planes and listeners are gone.
#[derive(Debug)]
pub struct ShmConnector {
    environment: Arc<Environment>,
    control: Arc<Control>,
}

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) config: ShmConfig,
    pub(super) layout: Layout,
    memory: Arc<MemoryBudget>,
    cores: Cores<CoreShared>,
}

impl ShmConnector {
    /// Starts the control plane. Each connection takes a descriptor, so the process's soft limit of
    /// them (`RLIMIT_NOFILE`) is raised towards the hard one where it would not do for `conns_max`.
    ///
    /// # Errors
    /// Rings of a size that they cannot have, or too few threads or descriptors.
    pub fn new(config: ShmConfig) -> Result<Self, FabricError> {
        let attempt = Attempt { op: "start the shm fabric".into() };
        let layout = Layout::new(config.ring_slots);
        let layout = layout.ok_or_else(|| attempt.cannot("ring_slots", None))?;
        raise_descriptor_limit(config.conns_max.into());
        let control = control::run()
            .map_err(|error| attempt.cannot("its control thread cannot start", Some(error)))?;
        let memory = MemoryBudget::new(config.core_memory_bytes_max, config.peer_memory_bytes_max);
        let (memory, cores) = (Arc::new(memory), Cores::default());
        let environment = Environment { config, layout, memory, cores };
        Ok(Self { environment: Arc::new(environment), control })
    }
}

#[cfg(test)]
impl ShmConnector {
    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }
}

/// A wish: a connection for which there is no descriptor in the end is an error of its own.
fn raise_descriptor_limit(conns_max: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // Those that peers keep from closing, those of handshakes, and the program's own.
    const OTHERS: u64 = 2048;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = conns_max + OTHERS;
    if current.is_some_and(|current| current < needed) {
        let current = Some(maximum.map_or(needed, |maximum| needed.min(maximum)));
        // Lowering it, when the hard limit is below the soft one, is refused by the kernel.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}

/// Arena of a listener that a connector leaves room for before it is told its size: the largest of a shipped profile.
const USUAL_ARENA_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
pub(super) struct SlabLimits {
    count: u32,
    /// All together.
    bytes: u64,
}

impl SlabLimits {
    pub(super) fn accept(self, packet: &Packet) -> bool {
        match packet.slabs {
            0 => packet.slab_bytes == 0,
            count => count <= self.count && packet.slab_bytes <= self.bytes,
        }
    }
}

impl Environment {
    pub(super) fn core(&self, index: usize) -> Result<Arc<CoreShared>, FabricError> {
        self.cores.get(index, || {
            let attempt = Attempt { op: format!("make the bell of core {index}") };
            CoreShared::new(self.config.conns_max, self.layout)
                .map_err(|error| attempt.cannot("no shared memory", Some(error)))
        })
    }

    /// Largest arena of a peer that is accepted, as far as other connections leave room for it.
    pub(super) fn arena_bytes_max(&self) -> usize {
        let needed = self.layout.bytes() + self.own_arena_bytes();
        self.config.peer_memory_bytes_max.saturating_sub(needed).min(ARENA_BYTES_MAX)
    }

    fn own_arena_bytes(&self) -> usize {
        let page = rustix::param::page_size();
        // The configuration has been checked.
        BulkPool::region_bytes(&self.config.arena).unwrap_or(0).next_multiple_of(page)
    }

    pub(super) fn ready(&self) -> Packet {
        Packet {
            kind: Kind::Ready,
            slots: self.config.ring_slots,
            arena_bytes: self.arena_bytes_max() as u64,
            slabs_max: self.config.peer_slabs_max as u32,
            slab_bytes_max: self.config.peer_slab_bytes_max as u64,
            ..Packet::EMPTY
        }
    }

    pub(super) fn slab_limits(&self) -> SlabLimits {
        let ShmConfig { peer_slabs_max, peer_slab_bytes_max, .. } = self.config;
        SlabLimits { count: peer_slabs_max as u32, bytes: peer_slab_bytes_max as u64 }
    }

    /// The same, for a connection of `core` with a listener: no more than there is room for in addition to what
    /// connections need. A listener that has larger ones lends none.
    fn slab_limits_now(&self, core: usize, peer: Credentials, layout: Layout) -> SlabLimits {
        let own = self.own_arena_bytes();
        let needed = layout.bytes() + own + own.max(USUAL_ARENA_BYTES);
        let left = self.memory.left(core, peer).saturating_sub(needed) as u64;
        let configured = self.slab_limits();
        SlabLimits { bytes: configured.bytes.min(left), ..configured }
    }

    pub(super) fn take_memory(
        &self,
        core: usize,
        peer: Credentials,
        layout: Layout,
        peer_bytes: usize,
    ) -> Option<MemoryLease> {
        let bytes = layout.bytes().checked_add(self.own_arena_bytes())?.checked_add(peer_bytes)?;
        self.memory.take(core, peer, bytes)
    }
}

impl Connector for ShmConnector {
    type Fabric = ShmFabric;

    fn remote_invalidate(&self) -> bool {
        true
    }

    fn fabric(&self, core: usize) -> Result<ShmFabric, FabricError> {
        let shared = self.environment.core(core)?;
        take_core(core, &shared.taken)?;
        let Environment { ref config, layout, .. } = *self.environment;
        if config.near_cores {
            shared.stay_near();
        }
        Ok(ShmFabric::new(shared, Arc::clone(&self.control), config.clone(), layout))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        self.fabric(core).map(AnyFabric::Shm)
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let ConnectRequest { address, core, private_data, timeout, lent } = *request;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        let address = Address::parse(address);
        let address = address.map_err(|error| FabricError::of_address(&attempt.op, error))?;
        let private_data = attempt.padded(private_data)?;
        attempt.check_own_user()?;
        let environment = &self.environment;
        let (config, core_index, core) = (&environment.config, core, environment.core(core)?);
        let (mut socket, credentials) = attempt.connect(&address, deadline)?;
        let layout = attempt.await_ready(&mut socket, environment, lent, deadline)?;
        let own = Own::new(&core, &config.arena).map_err(|error| attempt.no_memory(error))?;
        let (window, connection) = attempt.make_rings(layout, &core)?;
        let slab_limits = environment.slab_limits_now(core_index, credentials, layout);
        let hello = Packet {
            slabs_max: slab_limits.count,
            slab_bytes_max: slab_limits.bytes,
            ..own.packet(Kind::Hello, layout, lent, private_data)
        };
        let fds = [connection.as_fd(), own.arena.as_fd(), core.bell_fd.as_fd()];
        attempt.send(&socket, &hello, fds.into_iter().chain(lent.iter().map(Slab::fd)))?;
        let (accept, fds, slabs) = attempt.receive(&socket, Kind::Accept, deadline)?;
        let refused = |error| attempt.refused(error);
        if !slab_limits.accept(&accept) {
            return Err(refused(Refusal::Malformed.into()));
        }
        if accept.arena_bytes > environment.arena_bytes_max() as u64 {
            return Err(attempt.cannot(ARENA_LIMIT, None));
        }
        let bytes = (accept.arena_bytes as usize).saturating_add(accept.slab_bytes as usize);
        let memory = environment
            .take_memory(core_index, credentials, layout, bytes)
            .ok_or_else(|| attempt.cannot(MEMORY_LIMIT, None))?;
        let theirs = Theirs::map(&accept, fds, slabs).map_err(refused)?;
        theirs.slabs.iter().for_each(BorrowedMemory::prefault);
        handshake::take(&socket).map_err(|error| refused(error.into()))?;
        socket.refuse_descriptors();
        let (side, lent) = (Side::Connector, lent.into());
        let made = Made { side, layout, window, own, theirs, lent, memory, socket, credentials };
        Ok(made.watched(&self.control.mailbox, &accept))
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, lent } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        let address = Address::parse(address).map_err(|error| attempt.cannot(error, None))?;
        let private_data = attempt.padded(private_data)?;
        attempt.check_own_user()?;
        let (socket, file) = socket::listen(&address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => match socket::other_owner(&address) {
                Some(owner) => attempt.cannot(
                    format_args!(
                        "user {owner} listens there already; choose another name, or a socket file \
                         in a folder of your own (shm:/path)"
                    ),
                    Some(error),
                ),
                None => attempt.cannot("another server listens there already", Some(error)),
            },
            _ => attempt.cannot("the address cannot be bound", Some(error)),
        })?;
        let environment = Arc::clone(&self.environment);
        let listener = Listener::new(
            socket,
            Guarded::new(&attempt.op, accept),
            private_data,
            lent,
            environment,
        );
        Ok(control::listen(&self.control, file, listener))
    }
}

const ARENA_LIMIT: &str = "the arena of the listener is larger than limits.peer_mib leaves here";
const MEMORY_LIMIT: &str = "the shared memory of this core, or of the connections with that process, \
                            would exceed limits.core_mib or limits.peer_mib";

impl Attempt {
    fn cannot(&self, reason: impl fmt::Display, source: Option<io::Error>) -> FabricError {
        let remedy = source.as_ref().and_then(remedy);
        let mut failed = self.failed(reason, source);
        failed.reason.extend(remedy);
        failed
    }

    fn no_memory(&self, error: HandshakeError) -> FabricError {
        match error {
            HandshakeError::Refused(_) => {
                self.cannot("the core has limits.conns connections already", None)
            }
            HandshakeError::System(error) => self.cannot("no shared memory", Some(error)),
        }
    }

    fn refused(&self, error: HandshakeError) -> FabricError {
        match error {
            HandshakeError::Refused(refusal) => self.cannot(refusal, None),
            HandshakeError::System(error) => self.cannot("the handshake failed", Some(error)),
        }
    }

    fn check_own_user(&self) -> Result<(), FabricError> {
        credentials::check_own_user()
            .map_err(|error| self.cannot("the peer's user cannot be checked", Some(error)))
    }

    fn connect(
        &self,
        address: &Address,
        deadline: Instant,
    ) -> Result<(PeerSocket, Credentials), FabricError> {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, TimedOut};
        let (socket, peer) = socket::connect(address, deadline).map_err(|error| {
            let is_refused = matches!(error.kind(), ConnectionRefused | NotFound);
            let is_full = error.kind() == TimedOut;
            let other = is_refused || is_full || error.kind() == PermissionDenied;
            match other.then(|| socket::other_owner(address)).flatten() {
                Some(owner) => self.belongs_to(owner, Some(error)),
                None if is_refused => self.cannot("no server listens there", Some(error)),
                None => self.cannot("no connection", Some(error)),
            }
        })?;
        if !peer.is_trusted() {
            return Err(self.belongs_to(peer.uid, None));
        }
        if socket.is_peer_full() {
            let (process, count) = (peer.pid, socket.descriptors_closing());
            let reason = format!(
                "too many descriptors that peers have sent cannot be closed, {count} of them sent by \
                 process {process}"
            );
            return Err(self.cannot(reason, None));
        }
        Ok((socket, peer))
    }

    fn belongs_to(&self, owner: u32, source: Option<io::Error>) -> FabricError {
        let own = rustix::process::geteuid().as_raw();
        let reason = format!(
            "it belongs to user {owner}, and this process runs as user {own}; run as that user"
        );
        FabricError { op: self.op.clone(), reason, source }
    }

    /// Waits until the listener lets this side send, and returns the layout that it asks for.
    fn await_ready(
        &self,
        socket: &mut PeerSocket,
        environment: &Environment,
        lent: &[Slab],
        deadline: Instant,
    ) -> Result<Layout, FabricError> {
        socket.accept_descriptors();
        let (ready, [], _) = self.receive(socket, Kind::Ready, deadline)?;
        handshake::take(socket).map_err(|error| self.refused(error.into()))?;
        let own = environment.own_arena_bytes() as u64;
        if own > ready.arena_bytes {
            return Err(self.cannot(
                format_args!(
                    "the listener accepts arenas of {} bytes, and mem.conn_arena_mib makes {own}; \
                     lower it, or raise limits.peer_mib there",
                    ready.arena_bytes
                ),
                None,
            ));
        }
        self.check_lent(lent, &ready)?;
        let layout =
            Layout::new(ready.slots).filter(|_| ready.slots <= environment.config.ring_slots);
        layout.ok_or_else(|| {
            self.cannot(
                format_args!(
                    "the listener's rings have {} slots, and shm.ring_slots is {}; raise it",
                    ready.slots, environment.config.ring_slots
                ),
                None,
            )
        })
    }

    /// The listener would refuse more without a number.
    fn check_lent(&self, lent: &[Slab], ready: &Packet) -> Result<(), FabricError> {
        if ready.accepts(lent) {
            return Ok(());
        }
        let (count, bytes) = (lent.len(), handshake::bytes_of(lent));
        Err(self.cannot(
            format_args!(
                "the listener accepts {} slabs of {} bytes together, and {count} of {bytes} bytes are lent; lend \
                 less, or raise limits.peer_slab_mib there",
                ready.slabs_max, ready.slab_bytes_max
            ),
            None,
        ))
    }

    fn send<'a>(
        &self,
        socket: &PeerSocket,
        packet: &Packet,
        fds: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> Result<(), FabricError> {
        let fds: Vec<_> = fds.collect();
        socket::write(socket.as_fd(), &packet.encode(), &fds)
            .map_err(|error| self.cannot("the handshake cannot be sent", Some(error)))
    }

    fn make_rings(
        &self,
        layout: Layout,
        core: &CoreShared,
    ) -> Result<(Window, OwnedFd), FabricError> {
        let name = "spinrpc-connection";
        let (memory, fd) = SharedMemory::create_in(Some(&core.rings), name, layout.bytes())
            .map_err(|error| self.cannot("no shared memory", Some(error)))?;
        let rings = Window::new(Arc::new(memory));
        handshake::place_near(&rings, layout, Side::Connector, core.node());
        handshake::prefault_idle(&rings, layout, Side::Connector);
        Ok((rings, fd))
    }

    fn receive<const N: usize>(
        &self,
        socket: &PeerSocket,
        kind: Kind,
        deadline: Instant,
    ) -> Result<(Packet, [PeerFd; N], Vec<PeerFd>), FabricError> {
        socket::wait_readable(socket.as_fd(), deadline)
            .map_err(|error| self.cannot("the listener does not answer", Some(error)))?;
        handshake::peek(socket, kind).map_err(|error| self.refused(error))
    }
}

fn remedy(error: &io::Error) -> Option<String> {
    use rustix::process::{Resource, getrlimit};
    match error.raw_os_error()? {
        libc::EMFILE => {
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            Some(format!(
                "; this process may open {limit} files at a time: raise that limit (ulimit -n)"
            ))
        }
        // What a process gets that has too many mappings already, long before memory is short.
        libc::ENOMEM => Some(
            "; a connection takes five or six memory mappings, of which a process has as many as sysctl \
             vm.max_map_count allows"
                .to_owned(),
        ),
        _ => None,
    }
}
