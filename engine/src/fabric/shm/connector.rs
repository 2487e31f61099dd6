//! The control plane: makes data planes, connects and listens.

use super::super::{Acceptor, Connector, FabricError};
use super::address::Address;
use super::config::ShmConfig;
use super::control::{self, Control, Watch};
use super::core::CoreShared;
use super::driver::ShmFabric;
use super::endpoint::{Link, PRIVATE_DATA_BYTES, PeerState, ShmEndpoint};
use super::handshake::{self, Kind, Own, OwnError, Packet};
use super::layout::{Layout, Side};
use super::socket::{self, Credentials};
use super::window::Window;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use crate::sys::mmap::SharedMemory;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Makes and accepts shared-memory connections for all cores of a process. It has one thread, which
/// ends when the connector and all its data planes and listeners are gone.
#[derive(Debug)]
pub struct ShmConnector {
    environment: Arc<Environment>,
    control: Arc<Control>,
}

/// What connecting and accepting have in common.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) config: ShmConfig,
    layout: Layout,
    cores: Mutex<HashMap<usize, Arc<CoreShared>>>,
}

impl ShmConnector {
    /// Starts the control plane. Each connection takes a descriptor, so the process's soft limit of
    /// them (`RLIMIT_NOFILE`) is raised towards the hard one where it would not do for `conns_max`.
    ///
    /// # Errors
    /// A setting out of its limits, or no thread or descriptors to be had.
    pub fn new(config: ShmConfig) -> Result<Self, FabricError> {
        let failed = |reason: String, source| FabricError {
            op: "start the shm fabric".into(),
            reason,
            source,
        };
        config.validate().map_err(|error| failed(error.to_string(), None))?;
        let layout =
            Layout::new(config.ring_slots).ok_or_else(|| failed("ring_slots".into(), None))?;
        raise_descriptor_limit(config.conns_max.into());
        let control = Control::start()
            .map_err(|error| failed("its control thread cannot start".into(), Some(error)))?;
        let environment = Environment { config, layout, cores: Mutex::new(HashMap::new()) };
        Ok(Self { environment: Arc::new(environment), control })
    }
}

/// A wish: a connection for which there is no descriptor in the end is an error of its own.
fn raise_descriptor_limit(conns_max: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = conns_max + OTHERS;
    if current.is_some_and(|current| current < needed) {
        let current = Some(maximum.map_or(needed, |maximum| needed.min(maximum)));
        // Lowering it, when the hard limit is below the soft one, is refused by the kernel.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}

impl Environment {
    /// Core number `index` as others see it; made when it is first asked for.
    pub(super) fn core(&self, index: usize) -> Result<Arc<CoreShared>, FabricError> {
        let mut cores = lock(&self.cores);
        if let Some(core) = cores.get(&index) {
            return Ok(Arc::clone(core));
        }
        let core = CoreShared::new(self.config.conns_max).map_err(|error| FabricError {
            op: format!("make the bell of core {index}"),
            reason: "no shared memory".into(),
            source: Some(error),
        })?;
        let core = Arc::new(core);
        cores.insert(index, Arc::clone(&core));
        Ok(core)
    }
}

impl Connector for ShmConnector {
    type Fabric = ShmFabric;

    fn remote_invalidate(&self) -> bool {
        true
    }

    fn fabric(&self, core: usize) -> Result<ShmFabric, FabricError> {
        let shared = self.environment.core(core)?;
        // Acquire pairs with the Release of the previous fabric's end.
        if shared.taken.swap(true, Ordering::Acquire) {
            return Err(FabricError {
                op: format!("start core {core}"),
                reason: "it runs already".into(),
                source: None,
            });
        }
        let Environment { ref config, layout, .. } = *self.environment;
        Ok(ShmFabric::new(shared, Arc::clone(&self.control), config.clone(), layout))
    }

    fn connect(
        &self,
        address: &str,
        core: usize,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<ShmEndpoint, FabricError> {
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        let address = Address::parse(address).map_err(|error| attempt.failed(error, None))?;
        let private_data = attempt.padded(private_data)?;
        let core = self.environment.core(core)?;
        let config = &self.environment.config;
        let own = Own::new(&core, &config.arena).map_err(|error| attempt.no_memory(error))?;
        let layout = self.environment.layout;
        let (memory, connection) = SharedMemory::create("spinrpc-connection", layout.bytes())
            .map_err(|error| attempt.failed("no shared memory", Some(error)))?;
        let socket = attempt.connect(&address, deadline)?;
        let credentials = attempt.check_peer(&socket)?;
        let hello = Packet {
            kind: Kind::Hello,
            slots: config.ring_slots,
            place: own.place.index(),
            arena_bytes: own.arena_bytes as u64,
            private_data,
        };
        let fds = [connection.as_fd(), own.arena.as_fd(), core.bell_fd.as_fd()];
        socket::send(socket.as_fd(), &hello.encode(), &fds)
            .and_then(|()| socket::wait_readable(socket.as_fd(), deadline))
            .map_err(|error| attempt.failed("the listener does not answer", Some(error)))?;
        let refused = |refusal| attempt.failed(refusal, None);
        let (accept, [arena, bell]) =
            handshake::receive(socket.as_fd(), Kind::Accept).map_err(refused)?;
        let arena_max = config.peer_arena_bytes_max;
        let peer_arena =
            handshake::map_arena(arena, accept.arena_bytes, arena_max).map_err(refused)?;
        let peer_bell = handshake::map_bell(bell).map_err(refused)?;
        let peer = Arc::new(PeerState::default());
        let place = own.place.index();
        let watch = Watch { socket, peer: Arc::clone(&peer), core, place, credentials };
        let link = Link {
            side: Side::Connector,
            layout,
            window: Window::new(Arc::new(memory)),
            bulk: own.bulk,
            peer_arena,
            peer_bell,
            peer_place: accept.place,
            peer,
            closed: false,
            watch: self.control.mailbox().watch(watch),
            place: own.place,
        };
        Ok(ShmEndpoint { link, private_data: accept.private_data, peer: credentials })
    }

    fn listen(
        &self,
        address: &str,
        private_data: &[u8],
        accept: Box<dyn Acceptor<ShmEndpoint>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let attempt = Attempt { op: format!("listen {address}") };
        let address = Address::parse(address).map_err(|error| attempt.failed(error, None))?;
        let private_data = attempt.padded(private_data)?;
        let socket = socket::listen(&address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => attempt.failed("somebody listens there already", None),
            _ => attempt.failed("the address cannot be bound", Some(error)),
        })?;
        let path = address.path().map(Into::into);
        let environment = Arc::clone(&self.environment);
        Ok(control::listen(&self.control, environment, socket, path, private_data, accept))
    }
}

/// What is being attempted, for errors.
struct Attempt {
    op: String,
}

impl Attempt {
    fn failed(&self, reason: impl fmt::Display, source: Option<io::Error>) -> FabricError {
        FabricError::because(&self.op, reason, source)
    }

    fn no_memory(&self, error: OwnError) -> FabricError {
        match error {
            OwnError::Full => self.failed("the core has conns_max connections already", None),
            OwnError::Resources(error) => self.failed("no shared memory", Some(error)),
        }
    }

    fn padded(&self, private_data: &[u8]) -> Result<[u8; PRIVATE_DATA_BYTES], FabricError> {
        let mut padded = [0; PRIVATE_DATA_BYTES];
        let start = padded.get_mut(..private_data.len());
        let start = start.ok_or_else(|| self.failed("private data beyond 56 bytes", None))?;
        start.copy_from_slice(private_data);
        Ok(padded)
    }

    fn connect(&self, address: &Address, deadline: Instant) -> Result<OwnedFd, FabricError> {
        socket::connect(address, deadline).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                self.failed("nobody listens there", None)
            }
            _ => self.failed("no connection", Some(error)),
        })
    }

    fn check_peer(&self, socket: &OwnedFd) -> Result<Credentials, FabricError> {
        let peer = Credentials::of_peer(socket.as_fd())
            .map_err(|error| self.failed("the peer is unknown", Some(error)))?;
        if peer.is_trusted() {
            return Ok(peer);
        }
        Err(self.failed(format!("the listener belongs to another user ({})", peer.uid), None))
    }
}
