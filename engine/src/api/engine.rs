//! The engine, of which a process has one. It holds the configuration, the listeners and the control thread, and
//! starts cores.

#[cfg(feature = "async")]
use super::asynchronous::stream::Feeders;
use super::core::{Core, CoreContext};
use super::directory::Directory;
use super::errors::{ConnectError, EngineError};
#[cfg(feature = "gss")]
use super::gss::{GssAcceptor, GssStats};
use super::handle::ClientHandle;
use super::listening::ListenOptions;
use super::once::ServeOnce;
use super::reconnect::ConnectOptions;
use super::runtime::{Runtime, Threads};
use super::service::Service;
#[cfg(feature = "verbs")]
use crate::config::{self, Attempt, Invalidation};
use crate::config::{Config, Driver, NumaPolicy};
use crate::fabric::AnyConnector;
use crate::fabric::capture::{CaptureConnector, CaptureSink};
use crate::fabric::shm::{ShmConfig, ShmConnector};
#[cfg(feature = "sim")]
use crate::fabric::sim::{Device, SimConnector};
#[cfg(feature = "verbs")]
use crate::fabric::verbs::{Registration, VerbsConfig, VerbsConnector};
use crate::mem::budget::Budget;
use crate::mem::{Slab, SlabLayout};
use crate::reactor::pending::panic_log::message_of;
use crate::reactor::words::memory;
use crate::reactor::{HandlerPanic, StatsSnapshot};
use crate::sys::pinning;
#[cfg(feature = "verbs")]
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::{Program, Version};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A process's engine; clones are the same engine. It lives until the last clone and the last of its cores are
/// dropped; that closes every connection and releases all resources.
///
/// ```
/// use spinrpc::{Call, Config, CoreContext, Engine, Program, Service, Version, blocking};
///
/// struct Echo;
/// impl Service for Echo {
///     fn call(&mut self, mut call: Call<'_>) {
///         match call.args().opaque(1024) {
///             Ok(data) => call.reply(|results| results.opaque(data)),
///             Err(_) => call.reject(spinrpc::AcceptStatus::GarbageArgs),
///         }
///     }
/// }
///
/// let (program, version) = (Program(0x2000_0001), Version(1));
/// let engine = Engine::new(Config::default())?;
/// engine.serve(program, version, |_: &CoreContext| Echo);
/// engine.listen("shm:doc-engine")?;
/// let server = engine.start()?;
///
/// let mut client = blocking::Client::connect("shm:doc-engine", program, version)?;
/// let answer = client.call(
///     spinrpc::Procedure(1),
///     |args| args.opaque(b"hello"),
///     |results| results.opaque(1024).map(<[u8]>::to_vec),
/// )?;
/// assert_eq!(answer, b"hello");
/// engine.shutdown();
/// server.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine(pub(super) Arc<Runtime>);

impl Engine {
    /// Starts the configured driver (`fabric.driver`), the control thread and, if `stats.export` asks for it, the
    /// [control socket](crate::control), whose thread sleeps until a request arrives. No core runs yet.
    ///
    /// # Errors
    /// [`EngineError`] if the driver cannot be started: for RDMA devices also if there is none, or if this library
    /// was built without the feature `verbs`.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        Self::start_driver(config, None)
    }

    /// An engine of a simulation, for tests: a node of a [`World`](crate::fabric::sim::World). It has no threads and
    /// pins none: its cores, from [`Engine::core`], run when the caller gives them a turn, on virtual time. `node`
    /// gets the device that a real driver would have for this configuration, may change it, and creates the node.
    ///
    /// With a simulated driver only [`Core::poll_once`] is certain to make progress: functions that wait for real
    /// time, such as [`Engine::start`] and [`Core::connect_wait`], may block forever.
    ///
    /// # Errors
    /// As [`Engine::new`].
    #[cfg(feature = "sim")]
    pub fn simulated(
        config: Config,
        node: impl FnOnce(Device) -> SimConnector,
    ) -> Result<Self, EngineError> {
        let connector = AnyConnector::Sim(node(sim_device(&config)));
        Ok(Self(Runtime::start(connector, config, Threads::Callers)?))
    }

    /// As [`Engine::new`], and captures everything that its cores send and receive for Wireshark; see
    /// [`capture`](crate::fabric::capture) for the format, and [`CaptureSink`] for an example.
    ///
    /// # Errors
    /// [`EngineError`] if the driver, or the thread that writes the capture, cannot be started.
    pub fn with_capture(config: Config, sink: CaptureSink) -> Result<Self, EngineError> {
        Self::start_driver(config, Some(sink))
    }

    /// The only function that lists the drivers.
    fn start_driver(config: Config, capture: Option<CaptureSink>) -> Result<Self, EngineError> {
        // The calling thread may already own a core, whose CPU other threads must not inherit.
        pinning::off_the_cores(|| Self::start_driver_here(config, capture))
    }

    fn start_driver_here(
        config: Config,
        capture: Option<CaptureSink>,
    ) -> Result<Self, EngineError> {
        let mut connector = match config.driver() {
            Driver::Shm => AnyConnector::Shm(ShmConnector::new(shm_config(&config))?),
            #[cfg(feature = "verbs")]
            Driver::Verbs => AnyConnector::Verbs(VerbsConnector::new(verbs_config(&config))?),
            #[cfg(not(feature = "verbs"))]
            Driver::Verbs => return Err(EngineError::Host(NO_VERBS.into())),
        };
        if let Some(sink) = capture {
            connector = AnyConnector::Captured(Box::new(CaptureConnector::new(connector, sink)?));
        }
        Runtime::start(connector, config, Threads::Own).map(Self)
    }

    /// Serves a program: `factory` makes its service once per core, on the core's thread. Cores that have already
    /// started do not get it.
    pub fn serve<S: Service + 'static>(
        &self,
        program: Program,
        version: Version,
        factory: impl Fn(&CoreContext) -> S + Send + Sync + 'static,
    ) {
        self.0.add_service(
            program,
            version,
            Box::new(move |context, _| Box::new(factory(context))),
        );
    }

    /// As [`Engine::serve`], for a program whose calls must not be executed twice. The reply of each call is kept for
    /// its client (`rpc.reply_cache_*`), which may lose the connection and send the call again
    /// ([`Resend::AtMostOnce`](crate::Resend::AtMostOnce)). A repeated call gets the reply of the first one, or waits
    /// for it. The service tells which procedures are idempotent ([`Service::is_idempotent`]); their replies are not
    /// kept.
    ///
    /// A client of this library that reconnects is identified by a number of its own. Any other client is identified
    /// by the fabric's knowledge of its peer: for `shm:` the user and process. Clients of this library that do not
    /// reconnect, and peers that the fabric cannot identify, are served without the cache. Two calls count as the
    /// same call if client, XID, program, version, procedure, credential and arguments are equal. Of credential and
    /// arguments only the first 256 bytes and the length are compared. So a process that calls on several connections
    /// at a time, with clients of another implementation, must not use the XIDs of one connection on another: a call
    /// on one would get the reply of the other.
    ///
    /// A call is answered with SYSTEM_ERR, and not executed, if the configured number of clients already has a share
    /// of the cache, or if clients of the same peer have an eighth of these shares; the client's next call requests a
    /// share again. The same happens while as many calls of a client are being executed as it has entries. A reply
    /// that is longer than configured cannot be kept: if its call is sent again, it is answered with SYSTEM_ERR, and
    /// not executed again. The cache ends with the process: clients detect that and do not resend such calls to the
    /// next process.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if `rpc.reply_cache_clients` is 0.
    pub fn serve_once<S: Service + 'static>(
        &self,
        program: Program,
        version: Version,
        factory: impl Fn(&CoreContext) -> S + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let cache = self.0.reply_cache().ok_or_else(|| {
            EngineError::ApiMisuse("no replies are kept: set rpc.reply_cache_clients".into())
        })?;
        self.0.add_service(
            program,
            version,
            Box::new(move |context, ops| {
                let service = Box::new(factory(context));
                Box::new(ServeOnce::new(service, Arc::clone(&cache), context, Rc::clone(ops)))
            }),
        );
        Ok(())
    }

    /// Accepts security contexts of clients (RPCSEC_GSS), for all programs, from now on. Without this, every call
    /// under RPCSEC_GSS is denied (AUTH_BADCRED). Calls without RPCSEC_GSS still reach handlers, which decide whether
    /// to accept them with [`Call::identity`](crate::Call::identity) and [`Call::deny`](crate::Call::deny).
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if this was called before; [`EngineError::Host`] if the system provides no random
    /// numbers.
    #[cfg(feature = "gss")]
    pub fn gss(&self, acceptor: GssAcceptor) -> Result<(), EngineError> {
        self.0.gss.accept(acceptor)
    }

    /// Counters of RPCSEC_GSS: contexts, calls by protection, and refusals by reason.
    #[cfg(feature = "gss")]
    #[must_use]
    pub fn gss_stats(&self) -> GssStats {
        self.0.gss.stats()
    }

    /// Serves a program through a stream of calls: other threads or tasks take calls from the stream, and answer them
    /// at any time. For programs that run in an async runtime, and for reverse calls of clients
    /// ([`ConnectOptions::take_reverse_calls`]). The core answers the NULL procedure. Call this before the cores
    /// start. All cores share the stream.
    ///
    /// At most `calls_max` calls, at least one, are in the stream, or taken from it and not dropped. Further calls
    /// are answered with SYSTEM_ERR, as are calls that arrive after the stream was dropped. The memory of calls is
    /// allocated now and grows with their arguments up to 64 KiB; memory of longer calls is released after each call.
    /// See [`CallStream`](crate::CallStream) for an example.
    #[cfg(feature = "async")]
    pub fn serve_stream(
        &self,
        program: Program,
        version: Version,
        calls_max: usize,
    ) -> super::CallStream {
        let (feeders, stream) = Feeders::new(calls_max, self.cores());
        self.serve(program, version, move |_| feeders.feeder());
        stream
    }

    /// Allocates memory for the application, for calls and for files, cut into blocks as `layout` says. Pages are
    /// huge, locked and local as `mem.hugepages`, `mem.lock` and `mem.numa` say (relative to the CPU of the first
    /// core), and all are resident. See [`Slab`] for an example, and [`Slab::from_memfd`] for existing memory.
    ///
    /// # Errors
    /// [`EngineError::Fabric`] if such memory cannot be allocated.
    pub fn slab(&self, layout: SlabLayout) -> Result<Slab, EngineError> {
        Ok(memory::slab(self.config(), layout)?)
    }

    /// Accepts connections at `address` from now on, and spreads them over the cores. The address is `shm:NAME`, or
    /// `shm:/path` for a socket file; with the driver of RDMA devices it is `rdma://HOST:PORT`, where the host is an
    /// address of this machine, or `0.0.0.0` or `[::]` for all. Blocks until the address is bound.
    ///
    /// # Errors
    /// [`EngineError::Fabric`] if the address is invalid, in use, or of another driver.
    pub fn listen(&self, address: &str) -> Result<(), EngineError> {
        self.listen_with(address, &ListenOptions::new())
    }

    /// As [`Engine::listen`], with options for the connections that are accepted there.
    ///
    /// # Errors
    /// As [`Engine::listen`], and [`EngineError::Fabric`] if too many slabs are lent.
    pub fn listen_with(&self, address: &str, options: &ListenOptions) -> Result<(), EngineError> {
        self.0.listen(address, options.lent(address)?)
    }

    /// Connects core number `core`, for use by threads other than cores: any thread can call through the handle as
    /// soon as it has it. Returns at once; [`ClientHandle::wait_up`] reports connection errors. Calls are sent when
    /// the core runs ([`Engine::start`], [`Engine::core`]); if it never does, they end with the engine. The core
    /// accepts `rpc.handle_calls` calls at a time from all its handles together.
    ///
    /// # Errors
    /// [`ConnectError`] if the core does not exist, or the engine cannot connect as the options say.
    pub fn connect(
        &self,
        core: usize,
        address: &str,
        program: Program,
        version: Version,
        options: &ConnectOptions,
    ) -> Result<ClientHandle, ConnectError> {
        self.0.connect(core, address, (program, version), options)
    }

    /// Makes the calling thread core number `index`: pins it and gives it the core's memory. The thread gets its
    /// previous CPUs back when the core is dropped.
    ///
    /// # Errors
    /// [`EngineError`] if the core does not exist, already runs, or its memory or CPU is not available.
    pub fn core(&self, index: usize) -> Result<Core, EngineError> {
        Ok(self.0.start_core(index)?.of_engine(Arc::clone(&self.0)))
    }

    /// Runs every configured core on a thread of its own and returns.
    ///
    /// # Errors
    /// [`EngineError`] if a core cannot be started; then none runs.
    pub fn start(&self) -> Result<Running, EngineError> {
        Running::start(self)
    }

    /// Runs every configured core and blocks until [`Engine::shutdown`].
    ///
    /// # Errors
    /// [`EngineError`] if a core cannot be started, or a core's thread panicked; the panic also shuts the engine
    /// down.
    pub fn run(&self) -> Result<(), EngineError> {
        self.start()?.join()
    }

    /// Shuts the engine down gracefully, for example when another process is about to take over. It closes the
    /// listeners, lets each core finish the calls that its services have deferred, and closes each connection of a
    /// client once its replies were sent; then it acts as [`Engine::shutdown`]. Waits for that at most `at_most`, and
    /// returns the number of unfinished calls. Each deferred call without an answer and each reply that the client
    /// has not fetched counts as one, and so does each connection with unsent replies. A core that did not respond,
    /// because it was in a handler or its thread did not run, counts as one, because its losses are unknown.
    ///
    /// From the start of the drain no call is executed. A call that arrives is not answered either, and
    /// [`Engine::serve_once`] keeps no reply for it. Once all executed calls of a connection are answered, clients of
    /// this library are told that the other calls were not executed. They send these to the next process, including
    /// those of [`Resend::AtMostOnce`](crate::Resend::AtMostOnce), or report
    /// [`CallError::NotExecuted`](crate::CallError::NotExecuted). Other clients see the connection close. Connections
    /// that this engine opened stay until the end. Services are polled, and notified of connections, as before.
    ///
    /// It blocks, so call it on a thread of your own, such as one that waits for signals, and not on a core's thread.
    /// A core that no thread drives ([`Engine::core`]) is waited for until `at_most`, and counts as one; a core that
    /// was never made, or has already ended, counts as zero. [`Engine::shutdown`] by another thread interrupts the
    /// wait within a tenth of a second. After a shutdown the result is zero. If two threads drain at the same time,
    /// the shorter `at_most` applies, exceeded by up to a tenth of a second. Both return the same number, as does a
    /// later call.
    ///
    /// ```
    /// use spinrpc::{Config, Engine};
    /// use std::time::Duration;
    ///
    /// let engine = Engine::new(Config::default())?;
    /// engine.listen("shm:doc-drain")?;
    /// let server = engine.start()?;
    /// // A signal came:
    /// let unfinished = engine.drain(Duration::from_secs(10));
    /// server.join()?;
    /// assert_eq!(unfinished, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, at_most: Duration) -> usize {
        self.0.drain(at_most)
    }

    /// Begins [`Engine::drain`] without waiting, for a simulation, whose cores take turns on the caller's thread.
    /// [`Engine::shutdown`] completes it.
    #[cfg(feature = "sim")]
    pub fn begin_drain(&self) {
        self.0.leave();
    }

    /// Tells every core to close its connections, and every thread of [`Engine::start`] to end.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }

    /// Returns true after [`Engine::shutdown`] was called.
    pub fn is_shut_down(&self) -> bool {
        self.0.is_shut_down()
    }

    /// Programs that the engine serves, and addresses that it listens at.
    ///
    /// ```
    /// use spinrpc::{Call, Config, Directory, Engine, Program, Version};
    ///
    /// let engine = Engine::new(Config::default())?;
    /// engine.serve(Program(0x2000_0001), Version(1), |_core| |call: Call<'_>| call.reply(|_| {}));
    /// engine.listen("shm:doc-directory")?;
    /// let directory: Directory = engine.directory();
    /// assert_eq!(directory.services(), [(Program(0x2000_0001), Version(1))]);
    /// assert_eq!(directory.addresses(), ["shm:doc-directory"]);
    /// # Ok::<(), spinrpc::EngineError>(())
    /// ```
    pub fn directory(&self) -> Directory {
        self.0.directory()
    }

    /// Number of configured cores.
    pub fn cores(&self) -> usize {
        self.0.config().cores()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        self.0.config()
    }

    /// Panics of handlers that were caught; callable from any thread. There is one entry for each handler, program
    /// and procedure, for the first 64 of them. The counter `handler_panics` of [`Engine::stats`] counts them all.
    /// Each entry is logged at most once a second, with the number of panics since the last line. With `rpc.on_panic
    /// = "end"` the first panic ends the engine; in a program built with `panic = "abort"` it ends the process.
    ///
    /// ```
    /// use spinrpc::{Config, Engine, HandlerKind, HandlerPanic};
    ///
    /// fn report(engine: &Engine) {
    ///     for HandlerPanic { handler, procedure, count, message, .. } in engine.panics() {
    ///         let at = if handler == HandlerKind::Call { "a service" } else { "another handler" };
    ///         eprintln!("{at} panicked {count} times, last at {procedure:?}: {message}");
    ///     }
    /// }
    ///
    /// let engine = Engine::new(Config::default())?;
    /// report(&engine);
    /// assert!(engine.panics().is_empty());
    /// # Ok::<(), spinrpc::EngineError>(())
    /// ```
    pub fn panics(&self) -> Vec<HandlerPanic> {
        self.0.panics()
    }

    /// Moves up to `count` connections of clients from a core to others, for example because the core is busy and others are
    /// idle ([`StatsSnapshot::busy_ticks`](crate::StatsSnapshot)). Returns true if the core was asked, and false if
    /// no thread drives it, or its mailbox is full. It does not block; any thread may call it, a handler too.
    ///
    /// A connection itself cannot change its core: its client is told that none of its calls in flight was executed, the
    /// connection is closed, and the client connects again, as after a loss but without any doubt about calls. A client that is
    /// not up yet begins again once; one that is still asking for its first security context may fail. The listener gives the new
    /// connections to the cores in turn, and more seldom to those that have more connections than the mean: some may come back.
    /// [`ConnectionEvent::Down`](crate::ConnectionEvent::Down) tells services, and
    /// [`StatsSnapshot::connections_moved`](crate::StatsSnapshot) counts them.
    ///
    /// Only clients of this library that come back are moved
    /// ([`ConnectOptions::reconnect`](crate::ConnectOptions)), and only connections that have no call in progress when the
    /// core reads its mail, no reply to be fetched and no calls in reverse. Which of them go is not specified; each
    /// call goes on where the one before ended.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if the core does not exist.
    ///
    /// ```
    /// use spinrpc::{Config, Engine};
    ///
    /// let engine = Engine::new(Config::default())?;
    /// assert!(!engine.move_connections(0, 8)?, "it is not started");
    /// let server = engine.start()?;
    /// while !engine.move_connections(0, 8)? {
    ///     std::thread::yield_now();
    /// }
    /// # engine.shutdown();
    /// # server.join()?;
    /// # Ok::<(), spinrpc::EngineError>(())
    /// ```
    pub fn move_connections(&self, core: usize, count: usize) -> Result<bool, EngineError> {
        self.0.move_connections(core, count)
    }

    /// Counters of a core, readable from any thread without disturbing the core; all zero before it runs.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if the core does not exist.
    pub fn stats(&self, core: usize) -> Result<StatsSnapshot, EngineError> {
        self.0.stats(core)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", self.config()).finish_non_exhaustive()
    }
}

/// The threads of [`Engine::start`].
///
/// ```
/// use spinrpc::{Config, Engine, Running};
///
/// let engine = Engine::new(Config::default())?;
/// let running: Running = engine.start()?;
/// engine.shutdown();
/// running.join()?;
/// # Ok::<(), spinrpc::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Running(Vec<std::thread::JoinHandle<()>>);

impl Running {
    fn start(engine: &Engine) -> Result<Self, EngineError> {
        let (report, reports) = std::sync::mpsc::channel();
        let mut running = Self(Vec::with_capacity(engine.cores()));
        let spawn =
            || (0..engine.cores()).try_for_each(|core| running.spawn(engine, core, &report));
        let spawned = pinning::off_the_cores(spawn);
        drop(report);
        // Ends when every core has reported, or its thread has panicked in a service's factory.
        let started = spawned.and_then(|()| reports.iter().collect::<Result<Vec<()>, _>>());
        let failed = match started {
            Ok(reports) if reports.len() == engine.cores() => return Ok(running),
            Ok(_) => EngineError::Host("a core's thread panicked while it started".into()),
            Err(error) => error,
        };
        engine.shutdown();
        drop(running.join());
        Err(failed)
    }

    fn spawn(
        &mut self,
        engine: &Engine,
        core: usize,
        report: &Sender<Result<(), EngineError>>,
    ) -> Result<(), EngineError> {
        let (engine, report) = (engine.clone(), report.clone());
        let thread = std::thread::Builder::new().name(format!("spinrpc-core-{core}"));
        let spawned = thread.spawn(move || run_core(&engine, core, report));
        self.0.push(
            spawned
                .map_err(|error| EngineError::host(format!("no thread for core {core}"), error))?,
        );
        Ok(())
    }

    /// Waits until every core has ended (blocks). If the thread of one core panics, the engine shuts down, and the
    /// others end, too.
    ///
    /// # Errors
    /// [`EngineError::Host`] if a core's thread panicked: in a handler, with `rpc.on_panic = "end"`.
    pub fn join(self) -> Result<(), EngineError> {
        let joined = self.0.into_iter().map(std::thread::JoinHandle::join).enumerate();
        // Join all threads before looking at the first error.
        let joined: Vec<_> = joined.collect();
        let failed = joined.into_iter().find_map(|(core, result)| Some((core, result.err()?)));
        failed.map_or(Ok(()), |(core, payload)| {
            let message = message_of(&*payload);
            let what = format!("the thread of core {core} panicked: {message}");
            Err(EngineError::Host(what.into()))
        })
    }
}

/// Shuts the engine down when the thread of a core panics.
struct ShutdownOnPanic<'a>(&'a Engine);

impl Drop for ShutdownOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.shutdown();
        }
    }
}

fn run_core(engine: &Engine, index: usize, report: Sender<Result<(), EngineError>>) {
    let _guard = ShutdownOnPanic(engine);
    match engine.core(index) {
        Err(error) => drop(report.send(Err(error))),
        Ok(mut core) => {
            drop(report.send(Ok(())));
            drop(report);
            core.run_until(|| engine.is_shut_down());
            core.drain();
        }
    }
}

#[cfg(not(feature = "verbs"))]
const NO_VERBS: &str = "fabric.driver = \"verbs\", and this program was built without RDMA: build it \
                        with --features verbs, or use an address such as shm:NAME";

/// Settings of the driver that follow from the configuration.
fn shm_config(config: &Config) -> ShmConfig {
    let largest = config.peer_limits().payload_bytes_max as usize;
    ShmConfig {
        ring_slots: config.shm_ring_slots() as u32,
        arena: memory::classes(config.shm_arena_bytes(), largest),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        conns_max: config.conns_max() as u32,
        rnr_timeout: config.shm_rnr_timeout(),
        fetch_timeout: config.shm_fetch_timeout(),
        handshakes_max: config.handshakes_max(),
        peer_arena_bytes_max: config.peer_arena_bytes_max(),
        peer_slabs_max: config.peer_slabs_max(),
        peer_slab_bytes_max: config.peer_slab_bytes_max(),
        peer_memory_bytes_max: config.peer_memory_bytes_max(),
        core_memory_bytes_max: config.core_memory_bytes_max(),
        near_cores: config.numa() == NumaPolicy::Local,
        ..ShmConfig::default()
    }
}

/// As [`shm_config`], for RDMA devices.
#[cfg(feature = "verbs")]
fn verbs_config(config: &Config) -> VerbsConfig {
    let verbs = config.verbs();
    let largest = config.peer_limits().payload_bytes_max as usize;
    VerbsConfig {
        device: verbs.device.name().map(str::to_owned),
        message_bytes_max: config.recv_buffer_bytes().max(config.send_buffer_bytes()),
        message_memory_bytes: memory::message_bytes(config, Side::Client),
        accepted_memory_bytes: memory::message_bytes(config, Side::Server),
        accepted_exposes: config.reverse_calls() > 0 || config.protocol().has_reads_in_replies(),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        cq_depth: verbs.cq_depth as u32,
        signal_every: verbs.signal_every as u16,
        inline_bytes_max: verbs.max_inline_bytes as u32,
        reads_out_max: verbs.ord as u8,
        reads_in_max: verbs.ird as u8,
        retry_count: verbs.retry as u8,
        rnr_retry_count: verbs.rnr_retry as u8,
        min_rnr_timer: verbs.min_rnr_timer as u8,
        ack_timeout: verbs.ack_timeout as u8,
        type_of_service: verbs.tos as u8,
        registration: match verbs.registration {
            config::Registration::Auto => Registration::Auto,
            config::Registration::Buffer => Registration::Buffer,
            config::Registration::Window => Registration::Window,
            config::Registration::Pool => Registration::Pool,
        },
        remote_invalidate: verbs.remote_invalidate == Invalidation::Auto,
        thread_domains: verbs.thread_domain == Attempt::Try,
        arena: memory::classes((verbs.arena_mib as usize) << 20, largest),
        keys_max: verbs.keys as usize,
        conns_max: config.conns_max(),
        backlog: verbs.backlog as u16,
        handshakes_max: config.handshakes_max(),
        host_conns_max: config.host_conns_max(),
        handshake_timeout: Duration::from_millis(verbs.connect_timeout_ms),
        ..VerbsConfig::default()
    }
}

/// The simulated device for this configuration.
#[cfg(feature = "sim")]
fn sim_device(config: &Config) -> Device {
    let largest = config.peer_limits().payload_bytes_max as usize;
    Device {
        trusted: true,
        arena: memory::classes(config.shm_arena_bytes(), largest),
        message_bytes_max: config.send_buffer_bytes(),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        conns_max: config.conns_max(),
        keys_max: 512,
        ..Device::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::Call;
    use super::super::client::{Reply, ReplyHandler, Token};
    use super::super::errors::CallError;
    use super::super::runtime::SIMULATED_LETTERS;
    use super::*;
    use crate::config::{CoreList, Host, RawConfig, Want};
    #[cfg(feature = "verbs")]
    use crate::config::{DeviceName, RawVerbs};
    use crate::fabric::sim::{Network, World};
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(30);
    const PROGRAM: Program = Program(0x2000_0001);

    struct Deaf;

    impl ReplyHandler for Deaf {
        fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
    }

    fn two_cores() -> Config {
        let mut raw = RawConfig::default();
        raw.cores.list = CoreList::Cpus(vec![0, 1]);
        raw.mem.arena_mib = 8;
        raw.mem.hugepages = Want::Off;
        raw.mem.lock = Want::Off;
        raw.mem.prefault = false;
        raw.mem.numa = NumaPolicy::Off;
        raw.validate_for(&Host { allowed: vec![0, 1], ..Host::default() }).unwrap()
    }

    fn turn_until(core: &mut Core, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !done() {
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
            core.poll_once();
        }
    }

    fn changed(change: impl FnOnce(&mut RawConfig)) -> Config {
        let mut raw = RawConfig::default();
        change(&mut raw);
        raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
    }

    #[test]
    fn keys_of_shared_memory_reach_its_driver() {
        let of = |change: fn(&mut RawConfig)| shm_config(&changed(change));
        assert_eq!(of(|raw| raw.shm.ring_slots = 1024).ring_slots, 1024);
        let patience = of(|raw| raw.shm.rnr_timeout_ms = 77).rnr_timeout;
        assert_eq!(patience, Duration::from_millis(77));
        let patience = of(|raw| raw.shm.fetch_timeout_ms = 78).fetch_timeout;
        assert_eq!(patience, Duration::from_millis(78));
        assert_eq!(of(|raw| raw.limits.handshakes = 5).handshakes_max, 5);
        assert_eq!(of(|raw| raw.limits.conns = 6).conns_max, 6);
        assert_eq!(of(|raw| raw.limits.peer_arena_mib = 7).peer_arena_bytes_max, 7 << 20);
        assert_eq!(of(|raw| raw.limits.peer_slabs = 3).peer_slabs_max, 3);
        assert_eq!(of(|raw| raw.limits.peer_slab_mib = 5).peer_slab_bytes_max, 5 << 20);
        assert_eq!(of(|raw| raw.limits.peer_mib = 8).peer_memory_bytes_max, 8 << 20);
        assert_eq!(of(|raw| raw.limits.core_mib = 9).core_memory_bytes_max, 9 << 20);
        assert!(of(|raw| raw.mem.numa = NumaPolicy::Local).near_cores);
        assert!(!of(|raw| raw.mem.numa = NumaPolicy::Off).near_cores);
        let room = |config: ShmConfig| crate::mem::BulkPool::region_bytes(&config.arena).unwrap();
        let arena_bytes = room(of(|raw| raw.shm.arena_mib = 64));
        assert!((63 << 20..=64 << 20).contains(&arena_bytes), "{arena_bytes}");
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn keys_of_connections_reach_the_driver_of_rdma_devices() {
        let of = |change: fn(&mut RawConfig)| verbs_config(&changed(change));
        assert_eq!(of(|raw| raw.limits.host_conns = 7).host_conns_max, 7);
        assert_eq!(of(|raw| raw.limits.conns = 6).conns_max, 6);
    }

    #[cfg(feature = "verbs")]
    fn of_verbs(change: fn(&mut RawVerbs)) -> VerbsConfig {
        verbs_config(&changed(|raw| {
            raw.fabric.driver = Driver::Verbs;
            change(&mut raw.verbs);
        }))
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn keys_of_queues_reach_the_driver_of_rdma_devices() {
        assert_eq!(of_verbs(|verbs| verbs.cq_depth = 1234).cq_depth, 1234);
        assert_eq!(of_verbs(|verbs| verbs.signal_every = 7).signal_every, 7);
        assert_eq!(of_verbs(|verbs| verbs.max_inline_bytes = 64).inline_bytes_max, 64);
        assert!(of_verbs(|_| {}).thread_domains);
        assert!(!of_verbs(|verbs| verbs.thread_domain = Attempt::Off).thread_domains);
        assert_eq!(of_verbs(|verbs| verbs.keys = 33).keys_max, 33);
        assert_eq!(of_verbs(|verbs| verbs.backlog = 9).backlog, 9);
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn keys_of_queue_pairs_reach_the_driver_of_rdma_devices() {
        assert_eq!(of_verbs(|verbs| verbs.ord = 3).reads_out_max, 3);
        assert_eq!(of_verbs(|verbs| verbs.ird = 4).reads_in_max, 4);
        assert_eq!(of_verbs(|verbs| verbs.retry = 5).retry_count, 5);
        assert_eq!(of_verbs(|verbs| verbs.rnr_retry = 6).rnr_retry_count, 6);
        assert_eq!(of_verbs(|verbs| verbs.min_rnr_timer = 20).min_rnr_timer, 20);
        assert_eq!(of_verbs(|verbs| verbs.ack_timeout = 21).ack_timeout, 21);
        assert_eq!(of_verbs(|verbs| verbs.tos = 104).type_of_service, 104);
        let timeout = of_verbs(|verbs| verbs.connect_timeout_ms = 250).handshake_timeout;
        assert_eq!(timeout, Duration::from_millis(250));
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn keys_of_memory_reach_the_driver_of_rdma_devices() {
        let named = of_verbs(|verbs| verbs.device = DeviceName::Named("rxe7".into()));
        assert_eq!(named.device.as_deref(), Some("rxe7"));
        let pool = of_verbs(|verbs| verbs.registration = config::Registration::Pool);
        assert_eq!(pool.registration, Registration::Pool);
        assert!(of_verbs(|_| {}).remote_invalidate);
        assert!(!of_verbs(|verbs| verbs.remote_invalidate = Invalidation::Off).remote_invalidate);
        let room = |config: VerbsConfig| crate::mem::BulkPool::region_bytes(&config.arena).unwrap();
        let arena_bytes = room(of_verbs(|verbs| verbs.arena_mib = 32));
        assert!((31 << 20..=32 << 20).contains(&arena_bytes), "{arena_bytes}");
    }

    /// The first core never takes a turn, so that nothing leaves its mailbox.
    #[test]
    fn drain_with_a_full_mailbox_expect_the_others_asked_and_shutdown_to_cut_it_short() {
        let world = World::new(Network::default());
        let engine = Engine::simulated(two_cores(), |device| world.connector(device)).unwrap();
        engine.serve(PROGRAM, Version(1), |_| |call: Call<'_>| call.reply(|_| {}));
        engine.listen("server").unwrap();
        let (mut full, mut moving) = (engine.core(0).unwrap(), engine.core(1).unwrap());
        for _ in 0..SIMULATED_LETTERS {
            full.connect("nobody", PROGRAM, Version(1), |_| Deaf).unwrap();
        }
        // Connections go to the cores in turn; the connection of the first core is lost.
        let mut connect = || moving.connect("server", PROGRAM, Version(1), |_| Deaf).unwrap();
        let (_lost, client) = (connect(), connect());
        turn_until(&mut moving, "the connection", || client.is_up());
        let began = Instant::now();
        let draining = {
            let engine = engine.clone();
            std::thread::spawn(move || engine.drain(2 * LIMIT))
        };
        turn_until(&mut moving, "the end of the connection", || !client.is_up());
        engine.shutdown();
        assert_eq!(draining.join().unwrap(), 1, "the core that was never asked");
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    }
}
