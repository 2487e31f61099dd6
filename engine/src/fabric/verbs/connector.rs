//! The control plane: makes data planes, connects and listens.

use super::super::address::RdmaAddress;
use super::super::{Acceptor, Connector, FabricError};

use super::cm::PRIVATE_DATA_BYTES_MAX;
use super::config::VerbsConfig;
use super::control::{self, ConnectRequest, Control, Job};
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

/// How much longer than it was told a caller waits for the control thread, which keeps the time and
/// knows what was waited for.
const GRACE: Duration = Duration::from_secs(2);

/// Makes and accepts RDMA connections for all cores of a process. It has one thread, which ends when
/// the connector and all its data planes, connections and listeners are gone.
#[derive(Debug)]
pub struct VerbsConnector {
    environment: Arc<Environment>,
    control: Arc<Control>,
}

/// What connecting and accepting have in common.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) config: VerbsConfig,
    /// What all usable devices can do.
    caps: DeviceCaps,
    /// Whether all of them can invalidate windows: it is said to peers before the device of a
    /// connection is known, and on one without windows a peer that believed it would end for good
    /// the key that a block is registered with.
    remote_invalidate: bool,
    cores: Mutex<HashMap<usize, Arc<CoreShared>>>,
}

impl VerbsConnector {
    /// Starts the control plane.
    ///
    /// # Errors
    /// A setting out of its limits; no RDMA device, or not the one that is configured; no thread or
    /// descriptors to be had.
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
    fn connect(
        &self,
        address: &str,
        core: usize,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<VerbsEndpoint, FabricError> {
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
            let deadline = now + share;
            let (reply, wait) = mpsc::channel();
            let (op, core) = (attempt.op.clone(), Arc::clone(&core));
            let private_data = private_data.into();
            let request = ConnectRequest { op, peer, core, private_data, deadline, reply };
            self.control.post(Job::Connect(Box::new(request)));
            match wait.recv_timeout(share + GRACE) {
                Ok(Ok(endpoint)) => return Ok(endpoint),
                Ok(Err(error)) => first = first.or(Some(error)),
                Err(error) => first = first.or_else(|| Some(attempt.unanswered(error))),
            }
        }
        Err(first.unwrap_or_else(|| attempt.failed("the name has no address", None)))
    }

    fn listen(
        &self,
        address: &str,
        private_data: &[u8],
        accept: Box<dyn Acceptor<VerbsEndpoint>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let attempt = Attempt { op: format!("listen {address}") };
        attempt.check_private_data(private_data)?;
        let own = attempt.resolve(address)?.into_iter().next();
        let own = own.ok_or_else(|| attempt.failed("the name has no address", None))?;
        let guard = control::listen(&self.control, attempt.op, own, private_data.into(), accept)?;
        Ok(Box::new(guard))
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
