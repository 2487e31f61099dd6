//! The handle of a core, owned by its thread.

use super::client::{Client, ClientLink, LinkState, ReplyHandler};
use super::client_state::ConnectTo;
use super::errors::ConnectError;
use super::handle::ClientHandle;
use super::handle::pool::Pool;
use super::reconnect::ConnectOptions;
use super::runtime::{Runner, Runtime};
use crate::config::IdlePolicy;
use crate::mem::{Bulk, BulkPool};
use crate::reactor::Progress;
use crate::reactor::types::idle::{Idle, IdleSwitch, Rest};
use crate::sys::clock::Clock;
use crate::sys::pinning::Pin;
use spinrpc_proto::ids::{Program, Version};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a core waits for its connections to go down when it ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Turns after the end of a wait, in which a thread that was stopped takes what has arrived meanwhile.
const LATE_TURNS: u32 = 4;

/// A reactor that belongs to the calling thread, which is pinned to the core's CPU. It makes progress only while this
/// thread calls [`Core::poll_once`] or [`Core::run_until`]: peers wait while the thread does anything else.
pub struct Core {
    pub(super) driver: Box<Runner>,
    idle: Idle,
    context: CoreContext,
    /// Dropped after the driver: it gives the thread its CPUs back.
    _pin: Option<Pin>,
    /// Lives as long as one of its cores exists, even without engine handles.
    engine: Arc<Runtime>,
}

/// Work done in one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Completions and letters handled, plus the events reported by services; zero is an idle turn.
    pub events: usize,
    /// A service has work in progress whose completion no event announces, as
    /// [`Progress::is_waiting`](crate::Progress::is_waiting) tells, or may have begun such work in this turn. The
    /// thread may yield before the next turn; if it sleeps, callers wait for it.
    pub is_waiting: bool,
}

impl Core {
    pub(super) fn new(
        driver: Box<Runner>,
        context: CoreContext,
        idle: Arc<IdleSwitch>,
        pin: Option<Pin>,
        engine: Arc<Runtime>,
    ) -> Self {
        let idle = Idle::new(&engine.config, Clock::shared(), idle);
        Self { driver, idle, context, _pin: pin, engine }
    }

    /// Index of this core in its engine.
    pub fn index(&self) -> usize {
        self.context.index
    }

    /// Requests a connection and returns at once. `make` creates the handler of its replies, which may keep the
    /// [`Client`] to start calls with. The handler gets [`Up`](crate::ConnectionEvent::Up) when calls can be started.
    ///
    /// # Errors
    /// None yet: the handler is notified if the address is wrong or no server listens there.
    pub fn connect<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, ConnectError> {
        self.connect_with(address, program, version, &ConnectOptions::new(), make)
    }

    /// As [`Core::connect`], with options.
    ///
    /// # Errors
    /// [`ConnectError::NoReverseCalls`] for a connection that takes reverse calls if `rpc.reverse_calls` is 0;
    /// [`ConnectError::VersionNotConfigured`] for versions that the engine does not speak (`rpc.version`);
    /// [`ConnectError::TooManyConnections`], and [`ConnectError::TooManySlabs`]. Other errors are reported to the handler, as with [`Core::connect`].
    pub fn connect_with<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, ConnectError> {
        options.check(&self.engine.config)?;
        let reconnects = options.reconnect.is_some();
        let ops = Rc::clone(&self.driver.dispatch.ops);
        let link = ClientLink::new(ops, program, version, reconnects);
        let client = Client(Rc::clone(&link));
        let handler = Box::new(make(client.clone()));
        self.driver.dispatch.connect(link, handler, address, options);
        Ok(client)
    }

    /// As [`Core::connect`], and polls until the connection is up (blocks this thread).
    ///
    /// # Errors
    /// [`ConnectError`] tells why the connection failed.
    pub fn connect_wait<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        make: impl FnOnce(Client) -> H,
        timeout: Duration,
    ) -> Result<Client, ConnectError> {
        let options = ConnectOptions::default();
        self.connect_wait_with(address, program, version, &options, make, timeout)
    }

    /// As [`Core::connect_with`], and polls until the connection is up (blocks this thread). Clients that reconnect do so once they
    /// were up: the first failure is returned.
    ///
    /// # Errors
    /// [`ConnectError`] tells why the connection failed.
    pub fn connect_wait_with<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
        timeout: Duration,
    ) -> Result<Client, ConnectError> {
        let client = self.connect_with(address, program, version, options, make)?;
        let end = Instant::now() + timeout;
        let mut turns_late = 0;
        self.run_until(|| {
            turns_late += u32::from(Instant::now() >= end);
            let is_decided = client.is_up() || client.0.state.get() == LinkState::Down;
            is_decided || turns_late > LATE_TURNS
        });
        if client.is_up() {
            return Ok(client);
        }
        client.close();
        Err(client.0.failure.borrow_mut().take().unwrap_or(ConnectError::TimedOut(timeout)))
    }

    /// Runs one turn: reaps completions, runs handlers, flushes. Never blocks.
    ///
    /// A task of a thread-per-core runtime can drive a core with it, and so share the thread with other tasks. That
    /// task is always ready: like a polling core, it never sleeps. Handlers of the core can await futures of the same
    /// runtime.
    #[inline]
    pub fn poll_once(&mut self) -> Work {
        let Progress { events, is_waiting } = self.driver.turn();
        Work { events, is_waiting }
    }

    /// Runs turns until `done` returns true, and rests between idle turns as the idle policy says. `done` is called
    /// once per turn.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        while !done() {
            let turn = self.driver.turn();
            match self.idle.after_turn(turn) {
                Rest::None => {}
                Rest::Yield => std::thread::yield_now(),
                Rest::Park(at_most) => self.driver.park(at_most),
            }
        }
    }

    /// Runs turns until every connection is down, for a second at most. The last action of a core's thread.
    pub(super) fn drain(&mut self) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while self.driver.cell.connections() > 0 && Instant::now() < end {
            self.driver.turn();
        }
    }

    /// Changes the idle policy of this core. Requests at the engine's [control socket](crate::control) do the same;
    /// the last change applies.
    pub fn set_idle(&mut self, policy: IdlePolicy) {
        self.idle.set_policy(policy);
    }

    /// Registered memory of this core, for data items of replies: `bytes` long. Returns `None` if that exceeds the
    /// longest block, or all blocks are lent out. The [guide](crate::guide::memory) has the sizes of blocks.
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.context.bulk(bytes)
    }

    /// The context that a service factory gets, for services made elsewhere.
    pub fn context(&self) -> CoreContext {
        self.context.clone()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("index", &self.index()).finish_non_exhaustive()
    }
}

/// The core of a service, as seen by the service. It can be stored, and sent to other threads.
#[derive(Clone)]
pub struct CoreContext {
    pub(super) index: usize,
    pub(super) pool: BulkPool,
    pub(super) calls: Arc<Pool>,
}

impl CoreContext {
    /// Index of this core in its engine.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Registered memory of this core, as [`Core::bulk`].
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.pool.take(bytes)
    }

    /// Wakes this core if it sleeps, so that it polls its services soon. For threads that do the work of a service
    /// whose [`Service::poll`](crate::Service::poll) does not ask the core to stay awake. From any thread; does not
    /// block. One system call if the core sleeps.
    pub fn wake(&self) {
        self.calls.wake();
    }

    /// Connects from this core, as [`Engine::connect`](crate::Engine::connect) does: for services that call other
    /// servers, such as proxies and replicas. Such a service defers its call, and answers it from a function that
    /// runs on this core ([`ClientHandle::start_on_core`]). A handle that waits for an answer on the core itself gets
    /// an error, because it would deadlock. The [guide](crate#a-proxy) has a complete proxy.
    ///
    /// # Errors
    /// [`ConnectError`] if the core has reached its limit of handle connections, or the engine cannot connect as the
    /// options say.
    pub fn connect(
        &self,
        address: &str,
        program: Program,
        version: Version,
        options: &ConnectOptions,
    ) -> Result<ClientHandle, ConnectError> {
        let (address, options) = (address.to_owned(), options.clone());
        ClientHandle::connect(&self.calls, ConnectTo { address, program, version, options })
    }
}

impl std::fmt::Debug for CoreContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreContext").field("index", &self.index).finish_non_exhaustive()
    }
}
