//! The control plane: makes data planes, connects and listens.

use super::super::address::RdmaAddress;
use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest,
};
use super::cm::{CmId, EventChannel};
use super::config::{Registration, VerbsConfig};
use super::control::{self, Control, Waiting};
use super::core::CoreShared;
use super::device::{self, DeviceCaps, DeviceInfo};
use super::driver::VerbsFabric;
use super::link::Link;
use crate::connector_common::{Attempt, Cores, take_core};
use crate::sys::journal::event;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time that a caller waits for the control thread beyond its timeout. The control thread keeps the
/// time and knows which step timed out.
const GRACE: Duration = Duration::from_secs(2);

const PORTS_MAX: u32 = 4;

/// Makes and accepts RDMA connections for all cores of a process. It has one thread, which ends when
/// the connector and all its data planes, connections and listeners are gone.
#[derive(Debug)]
pub struct VerbsConnector {
    environment: Arc<Environment>,
    control: Arc<Control>,
}

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) config: VerbsConfig,
    devices: Vec<DeviceInfo>,
    /// True if all of them can invalidate windows. It is told to peers before the device of a
    /// connection is known. On a device without windows, a peer that relied on it would end for
    /// good the key that a block is registered with.
    remote_invalidate: bool,
    cores: Cores<CoreShared>,
}

impl VerbsConnector {
    fn ask(
        &self,
        attempt: &Attempt,
        peer: SocketAddr,
        core: &Arc<CoreShared>,
        private_data: &[u8],
        deadline: Instant,
    ) -> Result<Endpoint, FabricError> {
        let (reply, wait) = mpsc::channel();
        let (op, core, private_data) = (attempt.op.clone(), Arc::clone(core), private_data.into());
        let waiting = Waiting { op, reply };
        self.control.mailbox.leave(move |thread| {
            thread.connect(waiting, peer, core, private_data, deadline);
        });
        let left = deadline.saturating_duration_since(Instant::now());
        wait.recv_timeout(left + GRACE).unwrap_or_else(|error| Err(unanswered(attempt, error)))
    }

    /// Starts the control plane.
    ///
    /// # Errors
    /// No RDMA device, or not the one that is configured; no thread or
    /// descriptors available.
    pub fn new(config: VerbsConfig) -> Result<Self, FabricError> {
        if let Some(variable) = unlocked_driver(std::env::var_os(UNLOCKED_DRIVER).as_deref()) {
            return Err(not_started(format!("{variable} is set: unset it"), None));
        }
        let devices = device::usable(&config)?;
        let remote_invalidate = device::all_take_windows(&devices, config.registration);
        let cores = Cores::default();
        let environment = Arc::new(Environment { config, devices, remote_invalidate, cores });
        let control = control::run(Arc::clone(&environment)).map_err(|error| {
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
            Err(error) if in_use(&error) => event!(DEBUG, %error, "retrying with another port"),
            ended => return ended,
        }
    }
    connect(deadline)
}

/// See [`RdmaAddress::find_device`].
pub(crate) fn leads_to(address: &RdmaAddress) -> io::Result<()> {
    let local = address.local_address()?;
    CmId::new(&Arc::new(EventChannel::new()?), 0)?.bind(local)?;
    // A wildcard takes no device.
    match local.ip().is_unspecified() && device::devices().is_ok_and(|found| found.is_empty()) {
        true => Err(io::ErrorKind::NotFound.into()),
        false => Ok(()),
    }
}

fn not_started(reason: impl fmt::Display, source: Option<io::Error>) -> FabricError {
    FabricError::because("start the verbs fabric", reason, source)
}

const UNLOCKED_DRIVER: &str = "MLX5_SINGLE_THREADED";

/// Name of the variable if its value has the driver of mlx5 leave out all locks. A core and the control thread use one
/// completion queue at a time, and one protection domain.
fn unlocked_driver(value: Option<&OsStr>) -> Option<&'static str> {
    (value? == "1").then_some(UNLOCKED_DRIVER)
}

impl Environment {
    pub(super) fn known(&self, name: &str) -> Option<DeviceCaps> {
        self.devices.iter().find(|device| device.name == name).map(|device| device.caps)
    }

    pub(super) fn check(&self, name: &str, caps: &DeviceCaps) -> Result<(), FabricError> {
        let is_window = caps.registration(self.config.registration) == Registration::Window;
        if is_window || !self.remote_invalidate {
            return Ok(());
        }
        let reason = "it was added after the start and has no memory windows; restart the program";
        Err(FabricError::because(&format!("use device {name}"), reason, None))
    }

    pub(super) fn core(&self, index: usize) -> Result<Arc<CoreShared>, FabricError> {
        self.cores.get(index, || CoreShared::new(index))
    }
}

impl Connector for VerbsConnector {
    type Fabric = VerbsFabric;

    fn remote_invalidate(&self) -> bool {
        self.environment.remote_invalidate
    }

    fn fabric(&self, core: usize) -> Result<VerbsFabric, FabricError> {
        let shared = self.environment.core(core)?;
        take_core(core, &shared.sleep.taken)?;
        let Environment { config, remote_invalidate, .. } = &*self.environment;
        Ok(VerbsFabric::new(shared, config, *remote_invalidate))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(AnyFabric::Other(Box::new(self.fabric(core)?)))
    }

    /// Looks up names on the calling thread, for as long as the system's resolver takes. Each address
    /// of a name is tried, with a fair share of the time; the first one's error is told.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let ConnectRequest { address, core, private_data, timeout, lent } = *request;
        let deadline = Instant::now() + timeout;
        let attempt = Attempt { op: format!("connect {address}") };
        attempt.padded(private_data)?;
        let peers = attempt.resolve(address, false)?;
        let core = self.environment.core(core)?;
        let mut endpoint = attempt.connect_any(peers, deadline, |peer, deadline| {
            let ask = |deadline| self.ask(&attempt, peer, &core, private_data, deadline);
            with_another_port(deadline, ask)
        })?;
        if let Some(link) = endpoint.link.downcast_mut::<Link>() {
            link.memory.lend(lent)?;
        }
        Ok(endpoint)
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let ListenRequest { address, private_data, .. } = *request;
        let attempt = Attempt { op: format!("listen {address}") };
        attempt.padded(private_data)?;
        let own = attempt.resolve_own(address, false)?;
        control::listen(&self.control, attempt.op, own, private_data.into(), accept)
    }
}

fn unanswered(attempt: &Attempt, error: RecvTimeoutError) -> FabricError {
    match error {
        RecvTimeoutError::Timeout => attempt.failed(
            "the control thread is busy: an acceptor, or a device that is slow to make or \
             destroy queue pairs, holds it up",
            None,
        ),
        RecvTimeoutError::Disconnected => control::ended(&attempt.op),
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
    fn a_driver_without_locks_is_refused() {
        let is_refused = |value: &str| unlocked_driver(Some(OsStr::new(value))).is_some();
        assert!(is_refused("1"));
        assert!(!is_refused("0") && !is_refused("") && unlocked_driver(None).is_none());
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
