//! A core as its thread holds it.

use super::client::{Client, Link, LinkState, ReplyHandler};
use super::client_entry::ConnectTo;
use super::errors::ConnectError;
use super::handle::ClientHandle;
use super::handle::pool::Pool;
use super::reconnect::ConnectOptions;
use super::runtime::{Runner, Runtime};
use crate::config::{Config, IdlePolicy};
use crate::mem::{Bulk, BulkPool};
use crate::reactor::Progress;
use crate::reactor::words::idle::{Idle, IdleSwitch, Rest};
use crate::sys::clock::Clock;
use crate::sys::pinning::Pin;
use spinrpc_proto::ids::{Program, Version};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a core that ends waits for its connections to go down.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A reactor that belongs to the calling thread, which is pinned to the core's CPU. It moves only
/// while this thread calls [`Core::poll_once`] or [`Core::run_until`]: a thread that does something
/// else for long lets its peers wait.
pub struct Core {
    pub(super) driver: Box<Runner>,
    idle: Idle,
    index: usize,
    pool: BulkPool,
    calls: Arc<Pool>,
    config: Config,
    /// Dropped after the driver: it gives the thread its CPUs back.
    _pin: Option<Pin>,
    /// The engine goes on for as long as one of its cores, whatever becomes of its handles.
    _engine: Option<Arc<Runtime>>,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Completions and letters handled, and what services got done of their own work; zero is an
    /// idle turn.
    pub events: usize,
    /// A service has something under way whose end no event will announce, as
    /// [`Progress::is_waiting`](crate::Progress::is_waiting) says, or may have begun it in this turn:
    /// the thread may let others run before the next turn, but if it sleeps, callers wait for it.
    pub is_waiting: bool,
}

impl Core {
    pub(super) fn new(
        driver: Box<Runner>,
        config: &Config,
        index: usize,
        (idle, calls): (Arc<IdleSwitch>, Arc<Pool>),
    ) -> Self {
        let pool = driver.ops().pool();
        let idle = Idle::new(config, Clock::shared(), idle);
        let (config, _pin, _engine) = (config.clone(), None, None);
        Self { driver, idle, index, pool, calls, config, _pin, _engine }
    }

    /// On a thread that is tied to a CPU.
    pub(super) fn pinned(self, pin: Option<Pin>) -> Self {
        Self { _pin: pin, ..self }
    }

    /// Of an engine that is not to end before it.
    pub(super) fn of_engine(self, engine: Arc<Runtime>) -> Self {
        Self { _engine: Some(engine), ..self }
    }

    /// Which core of its engine this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Asks for a connection and returns at once. `make` makes the handler of its replies, which
    /// may keep the [`Client`] to start calls with; the handler hears
    /// [`Up`](crate::ConnectionEvent::Up) when calls may be made.
    ///
    /// # Errors
    /// None yet: that the address is wrong or nobody listens is heard by the handler.
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
    /// [`ConnectError::NoReverseCalls`] for a connection that is to take calls in reverse if
    /// `rpc.reverse_calls` is 0; [`ConnectError::VersionNotConfigured`] for versions that the engine
    /// does not speak (`rpc.version`); else none yet, as [`Core::connect`].
    pub fn connect_with<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, ConnectError> {
        options.check(&self.config)?;
        let reconnects = options.reconnect.is_some();
        let link = Link::new(self.driver.ops(), program, version, reconnects);
        let client = Client(Rc::clone(&link));
        let handler = Box::new(make(client.clone()));
        self.driver.connect(link, handler, address, options);
        Ok(client)
    }

    /// As [`Core::connect`], and polls until the connection is up (blocks this thread).
    ///
    /// # Errors
    /// [`ConnectError`] says why there is none.
    pub fn connect_wait<H: ReplyHandler + 'static>(
        &mut self,
        address: &str,
        program: Program,
        version: Version,
        make: impl FnOnce(Client) -> H,
        timeout: Duration,
    ) -> Result<Client, ConnectError> {
        let client = self.connect(address, program, version, make)?;
        let end = Instant::now() + timeout;
        let mut in_time = true;
        self.run_until(|| {
            in_time = Instant::now() < end;
            matches!(client.0.state.get(), LinkState::Up(_) | LinkState::Down) || !in_time
        });
        if client.is_up() {
            return Ok(client);
        }
        client.close();
        Err(client.0.failure.borrow_mut().take().unwrap_or(ConnectError::TimedOut(timeout)))
    }

    /// One turn: reaps what has completed, runs handlers, flushes. Never blocks.
    ///
    /// A task of a thread-per-core runtime drives a core by it, and so shares the thread with other tasks. That task is
    /// always ready: as a core that polls, it never sleeps. What the handlers of the core await may be made of the same
    /// runtime.
    ///
    /// ```
    /// use spinrpc::{Config, Core, Engine};
    ///
    /// async fn drive(engine: Engine, mut core: Core) {
    ///     while !engine.is_shut_down() {
    ///         core.poll_once();
    ///         // Other tasks of this thread run.
    ///         tokio::task::yield_now().await;
    ///     }
    /// }
    ///
    /// let engine = Engine::new(Config::default())?;
    /// let core = engine.core(0)?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// let tasks = tokio::task::LocalSet::new();
    /// tasks.spawn_local(drive(engine.clone(), core));
    /// tasks.spawn_local(async move { engine.shutdown() });
    /// runtime.block_on(tasks);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_once(&mut self) -> Work {
        let Progress { events, is_waiting } = self.driver.turn();
        Work { events, is_waiting }
    }

    /// Turns until `done`, resting between idle turns as the idle policy says. `done` is asked
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

    /// Turns until every connection is down, for a second at most: what a thread does last.
    pub(super) fn drain(&mut self) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while self.driver.connections() > 0 && Instant::now() < end {
            self.driver.turn();
        }
    }

    /// Changes what this core does when it is idle. So do requests at the engine's
    /// [control socket](crate::control); the last one holds.
    pub fn set_idle(&mut self, policy: IdlePolicy) {
        self.idle.set_policy(policy);
    }

    /// Registered memory of this core, for data items of replies: `bytes` long. `None` if that is
    /// longer than the longest block, or all is lent out.
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.pool.take(bytes)
    }

    /// What a service factory gets, for services made outside of one.
    pub fn context(&self) -> CoreContext {
        let calls = Arc::clone(&self.calls);
        CoreContext { index: self.index, pool: self.pool.clone(), calls }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("index", &self.index).finish_non_exhaustive()
    }
}

/// What a service may know of its core. It can be kept, and sent to other threads.
#[derive(Clone)]
pub struct CoreContext {
    pub(super) index: usize,
    pub(super) pool: BulkPool,
    pub(super) calls: Arc<Pool>,
}

impl CoreContext {
    /// Which core of its engine this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Registered memory of this core, as [`Core::bulk`].
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.pool.take(bytes)
    }

    /// Has this core connect, as [`Engine::connect`](crate::Engine::connect) does: for services that call other
    /// servers, as proxies and replicas do. Such a service defers the call it has, and answers it from a function that
    /// runs on this core ([`ClientHandle::start_on_core`]). A handle that waits for an answer on the core itself is
    /// told that it would wait for ever. The [guide](crate#a-proxy) has a whole proxy.
    ///
    /// # Errors
    /// [`ConnectError`] if the core has as many connections of handles as it takes, or the engine cannot connect as
    /// the options say.
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

    /// The memory that [`bulk`](Self::bulk) takes from, for
    /// [`FileRing::register`](crate::sys::file_ring::FileRing::register). The arguments of calls are
    /// pulled to it, too, but for connections whose device lets the peer write what is pulled (iWARP):
    /// these have memory of their own, which a ring gets to know when it meets it.
    #[cfg(feature = "file-io")]
    pub fn memory(&self) -> crate::mem::RegionHold {
        self.pool.hold_region()
    }
}

impl std::fmt::Debug for CoreContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoreContext").field("index", &self.index).finish_non_exhaustive()
    }
}
