//! The control plane: makes data planes, connects and listens.

use super::super::address::RdmaAddress;
use super::super::{Acceptor, ConnectRequest, Connector, FabricError, ListenRequest};

use super::cm::PRIVATE_DATA_BYTES_MAX;
use super::config::VerbsConfig;
use super::control::{self, Control, Job};
use super::core::CoreShared;
use super::device::{self, DeviceCaps, NO_DEVICE_REMEDY};
use super::driver::VerbsFabric;
use super::endpoint::VerbsEndpoint;
use crate::sync::atomic::Ordering;
use crate::sync::lock;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time that a caller waits for the control thread beyond its timeout. The control thread keeps the
/// time and knows which step timed out.
const GRACE: Duration = Duration::from_secs(2);

/// Ports of this side that are tried for one connection.
const PORTS_MAX: u32 = 4;

/// Makes and accepts RDMA connections for all cores of a process. It has one thread, which ends when
/// the connector and all its data planes, connections and listeners are gone.
#[derive(Debug)]
pub struct VerbsConnector {
    environment: Arc<Environment>,
    control: Arc<Control>,
}

/// State shared by connecting and accepting.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) config: VerbsConfig,
    /// Capabilities common to all usable devices.
    caps: DeviceCaps,
    /// True if all of them can invalidate windows. It is told to peers before the device of a
    /// connection is known. On a device without windows, a peer that relied on it would end for
    /// good the key that a block is registered with.
    remote_invalidate: bool,
    cores: Mutex<HashMap<usize, Arc<CoreShared>>>,
}

impl VerbsConnector {
    /// Tells the control thread to connect, and waits for it.
    fn ask(
        &self,
        attempt: &Attempt,
        peer: SocketAddr,
        core: &Arc<CoreShared>,
        private_data: &[u8],
        deadline: Instant,
    ) -> Result<VerbsEndpoint, FabricError> {
        let (reply, wait) = mpsc::channel();
        let (op, core, private_data) = (attempt.op.clone(), Arc::clone(core), private_data.into());
        let request = control::ConnectRequest { op, peer, core, private_data, deadline, reply };
        self.control.post(Job::Connect(Box::new(request)));
        let left = deadline.saturating_duration_since(Instant::now());
        wait.recv_timeout(left + GRACE).unwrap_or_else(|error| Err(attempt.unanswered(error)))
    }

    /// Starts the control plane.
    ///
    /// # Errors
    /// A setting out of its limits; no RDMA device, or not the one that is configured; no thread or
    /// descriptors available.
    pub fn new(config: VerbsConfig) -> Result<Self, FabricError> {
        config.validate().map_err(|error| not_started(error, None))?;
        let devices = device::usable(&config)?;
        let caps =
            DeviceCaps::common(&devices).ok_or_else(|| not_started(NO_DEVICE_REMEDY, None))?;
        let by_window = device::all_take_windows(&devices, config.registration);
        let remote_invalidate = config.remote_invalidate && by_window;
        let cores = Mutex::new(HashMap::new());
        let environment = Arc::new(Environment { config, caps, remote_invalidate, cores });
        let control = Control::start(Arc::clone(&environment)).map_err(|error| {
            let reason = match error.raw_os_error() {
                Some(libc::ENODEV | libc::ENOENT) => {
                    "the connection manager is not there: modprobe rdma_ucm"
                }
                _ => "its control thread cannot start",
            };
            not_started(reason, Some(error))
        })?;
        Ok(Self { environment, control })
    }
}

/// Connects until a deadline, and once more where the port of this side is in use: the connection manager
/// picks it at random among those that it has not given out itself, and over iWARP it may be that of a TCP
/// connection.
fn with_another_port<T>(
    deadline: Instant,
    connect: impl Fn(Instant) -> Result<T, FabricError>,
) -> Result<T, FabricError> {
    let in_use = |error: &FabricError| {
        let source = error.source.as_ref().and_then(io::Error::raw_os_error);
        source == Some(libc::EADDRINUSE) && Instant::now() < deadline
    };
    for _ in 1..PORTS_MAX {
        match connect(deadline) {
            Err(error) if in_use(&error) => tracing::debug!(%error, "retrying with another port"),
            ended => return ended,
        }
    }
    connect(deadline)
}

fn not_started(reason: impl fmt::Display, source: Option<io::Error>) -> FabricError {
    FabricError::because("start the verbs fabric", reason, source)
}

impl Environment {
    /// Core number `index` as others see it; made when it is first asked for.
    pub(super) fn core(&self, index: usize) -> Result<Arc<CoreShared>, FabricError> {
        let mut cores = lock(&self.cores);
        if let Some(core) = cores.get(&index) {
            return Ok(Arc::clone(core));
        }
        let core = CoreShared::new(self.config.conns_max).map_err(|error| {
            let op = format!("start core {index}");
            FabricError::because(&op, "no descriptor for waking it", Some(error))
        })?;
        let core = Arc::new(core);
        cores.insert(index, Arc::clone(&core));
        Ok(core)
    }
}

impl Connector for VerbsConnector {
    type Fabric = VerbsFabric;

    fn remote_invalidate(&self) -> bool {
        self.environment.remote_invalidate
    }

    fn fabric(&self, core: usize) -> Result<VerbsFabric, FabricError> {
        let shared = self.environment.core(core)?;
        // Acquire pairs with the Release of the previous fabric's end.
        if shared.taken.swap(true, Ordering::Acquire) {
            return Err(FabricError::because(
                &format!("start core {core}"),
                "it runs already",
                None,
            ));
        }
        let Environment { config, caps, remote_invalidate, .. } = &*self.environment;
        Ok(VerbsFabric::new(shared, config, caps, *remote_invalidate))
    }

    /// Looks up names on the calling thread, for as long as the system's resolver takes. Each address
    /// of a name is tried, with a fair share of the time; the first one's error is told.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<VerbsEndpoint, FabricError> {
        let ConnectRequest { address, core, private_data, timeout, lent } = *request;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        attempt.check_private_data(private_data)?;
        let peers = attempt.resolve(address)?;
        let core = self.environment.core(core)?;
        let mut first = None;
        let mut untried = peers.len() as u32;
        for peer in peers {
            let now = Instant::now();
            let share = deadline.saturating_duration_since(now) / untried;
            untried -= 1;
            let ask = |deadline| self.ask(&attempt, peer, &core, private_data, deadline);
            match with_another_port(now + share, ask) {
                Ok(mut endpoint) => {
                    endpoint.lend(lent)?;
                    return Ok(endpoint);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| attempt.failed("the name has no address", None)))
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor<VerbsEndpoint>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        attempt.check_private_data(private_data)?;
        let own = attempt.resolve(address)?.into_iter().next();
        let own = own.ok_or_else(|| attempt.failed("the name has no address", None))?;
        let guard = control::listen(&self.control, attempt.op, own, private_data.into(), accept)?;
        Ok(Box::new(guard))
    }
}

/// The operation being attempted, for errors.
struct Attempt {
    op: String,
}

impl Attempt {
    fn failed(&self, reason: impl fmt::Display, source: Option<io::Error>) -> FabricError {
        FabricError::because(&self.op, reason, source)
    }

    /// The control thread has not said how it went.
    fn unanswered(&self, error: RecvTimeoutError) -> FabricError {
        match error {
            RecvTimeoutError::Timeout => self.failed(
                "the control thread is busy: an acceptor, or a device that is slow to make or \
                 destroy queue pairs, holds it up",
                None,
            ),
            RecvTimeoutError::Disconnected => Control::ended(&self.op),
        }
    }

    fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>, FabricError> {
        let address = RdmaAddress::parse(address).map_err(|error| self.failed(error, None))?;
        address.resolve().map_err(|error| self.failed("the name is not known", Some(error)))
    }

    fn check_private_data(&self, private_data: &[u8]) -> Result<(), FabricError> {
        if private_data.len() <= PRIVATE_DATA_BYTES_MAX {
            return Ok(());
        }
        let reason = format!("private data beyond {PRIVATE_DATA_BYTES_MAX} bytes");
        Err(self.failed(reason, None))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn error(errno: i32) -> FabricError {
        let source = Some(io::Error::from_raw_os_error(errno));
        FabricError::because("connect", "the handshake failed", source)
    }

    #[test]
    fn a_port_that_is_in_use_is_passed_over_a_few_times() {
        let later = Instant::now() + Duration::from_secs(3600);
        for (errno, failures, deadline, expected) in [
            (libc::EADDRINUSE, 3, later, Ok(4)),
            (libc::EADDRINUSE, 4, later, Err(4)),
            (libc::EADDRINUSE, 1, Instant::now(), Err(1)),
            (libc::ECONNREFUSED, 1, later, Err(1)),
        ] {
            let tries = Cell::new(0);
            let connected = with_another_port(deadline, |_| {
                tries.set(tries.get() + 1);
                if tries.get() > failures { Ok(tries.get()) } else { Err(error(errno)) }
            });
            assert_eq!(connected.map_err(|_| tries.get()), expected, "{errno} {failures}");
        }
    }
}
