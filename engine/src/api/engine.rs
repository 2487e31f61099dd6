//! The engine. It holds the configuration and the listeners, and starts cores.

use super::at_most_once::ServeOnce;
use super::client_state::ConnectTo;
use super::core::{Core, CoreContext};
use super::errors::{ConnectError, EngineError};
#[cfg(feature = "gss")]
use super::gss::{GssAcceptor, GssStats};
use super::handle::ClientHandle;
use super::listening::ListenOptions;
use super::reconnect::ConnectOptions;
use super::runtime::{Runtime, Threads};
use super::served_programs::Directory;
use super::service::Service;
#[cfg(feature = "verbs")]
use crate::config;
use crate::config::{Config, Driver};
use crate::fabric::Connector;
use crate::fabric::capture::{CaptureConnector, CaptureSink};
use crate::fabric::iwarp::{IwarpConfig, IwarpConnector};
use crate::fabric::shm::{ShmConfig, ShmConnector};
#[cfg(feature = "sim")]
use crate::fabric::sim::{Device, SimConnector};
#[cfg(feature = "verbs")]
use crate::fabric::verbs::{Registration, VerbsConfig, VerbsConnector};
use crate::mem::{Slab, SlabLayout};
use crate::reactor::StatsSnapshot;
use crate::reactor::in_flight::panic_log::message_of;
use crate::reactor::types::memory;
use crate::sys::pinning;
use spinrpc_proto::ids::{Program, Version};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// An engine; clones are the same one. A process may have several. It lives until the last clone and the last of its cores are
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
/// engine.serve(program, version, |_: &CoreContext| Echo)?;
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
    /// Starts the configured driver (`fabric.driver`) and, if `stats.export` asks for it, the
    /// [control socket](crate::control), whose thread sleeps until a request arrives. No core runs yet.
    ///
    /// # Errors
    /// [`EngineError`] if the driver cannot be started: for RDMA devices also if there is none, or if this library
    /// was built without the feature `verbs`.
    pub fn new(config: Config) -> Result<Self, EngineError> {
        Self::with_driver(config, None)
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
        let connector = Arc::new(node(sim_device(&config)));
        Ok(Self(Runtime::launch(connector, config, Threads::Callers)?))
    }

    /// As [`Engine::new`], and captures everything that its cores send and receive for Wireshark; see
    /// [`capture`](crate::fabric::capture) for the format, and [`CaptureSink`] for an example.
    ///
    /// # Errors
    /// [`EngineError`] if the driver, or the thread that writes the capture, cannot be started.
    pub fn with_capture(config: Config, sink: CaptureSink) -> Result<Self, EngineError> {
        Self::with_driver(config, Some(sink))
    }

    /// The only function that lists the drivers.
    fn with_driver(config: Config, capture: Option<CaptureSink>) -> Result<Self, EngineError> {
        // The calling thread may already own a core, whose CPU other threads must not inherit.
        pinning::off_the_cores(|| {
            let mut connector: Arc<dyn Connector> = match config.driver() {
                Driver::Shm => Arc::new(ShmConnector::new(shm_config(&config))?),
                #[cfg(feature = "verbs")]
                Driver::Verbs => Arc::new(VerbsConnector::new(verbs_config(&config))?),
                #[cfg(not(feature = "verbs"))]
                Driver::Verbs => return Err(EngineError::Host(NO_VERBS.into())),
                Driver::Iwarp => Arc::new(IwarpConnector::new(iwarp_config(&config))),
            };
            if let Some(sink) = capture {
                connector = Arc::new(CaptureConnector::new(connector, sink)?);
            }
            Runtime::launch(connector, config, Threads::Own).map(Self)
        })
    }

    /// Serves a program: `factory` makes its service once per core, on the core's thread. It
    /// cannot fail: what can is done before, and cloned there. A service with all data in one place takes `cores.max = 1`. Of two
    /// services of one version the first gets all calls.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if a core was started before, which would not get the service.
    pub fn serve<S: Service + 'static>(
        &self,
        program: Program,
        version: Version,
        factory: impl Fn(&CoreContext) -> S + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        self.0.add_service(program, version, Box::new(move |context, _| Box::new(factory(context))))
    }

    /// As [`Engine::serve`], for a program whose calls must not be executed twice. The reply of each call is kept for
    /// its client (`rpc.reply_cache_mib`), which may lose the connection and send the call again
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
    /// Memory alone limits how long a reply is kept: there is no time after which it goes. When the memory is used up,
    /// the reply that was made or asked for longest ago goes: of the same host or user if its clients have a quarter,
    /// otherwise of one whose clients have more than that, and if there is none, of any client. A call that is sent
    /// again after that is executed again. Of `rpc.reply_cache_mib = 64`, a client that is another implementation has
    /// its last 8192 replies while others do not need the memory, and 2048 when four others do. Calls in progress keep
    /// their places. When they hold a quarter, a further call is not executed, but given to [`Service::too_many`].
    /// Idempotent calls need no place, and peers that the service does not know as its clients get none
    /// ([`Service::keeps_replies_for`]).
    ///
    /// A reply that is longer than 64 KiB cannot be kept: if its call is sent again, it is answered with SYSTEM_ERR,
    /// and not executed again. The cache ends with the process: clients detect that and do not resend such calls to
    /// the next process.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if `rpc.reply_cache_mib` is 0, or a core was started before.
    pub fn serve_once<S: Service + 'static>(
        &self,
        program: Program,
        version: Version,
        factory: impl Fn(&CoreContext) -> S + Send + Sync + 'static,
    ) -> Result<(), EngineError> {
        let cache = self.0.reply_cache.clone().ok_or_else(|| {
            EngineError::ApiMisuse("no replies are kept: set rpc.reply_cache_mib".into())
        })?;
        self.0.add_service(
            program,
            version,
            Box::new(move |context, _| {
                let service = Box::new(factory(context));
                Box::new(ServeOnce::new(service, Arc::clone(&cache), context))
            }),
        )
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

    /// Allocates memory for the application, for calls and for files, cut into blocks as `layout` says. Pages are
    /// huge, locked and local as `mem.hugepages` and `mem.lock` say (relative to the CPU of the first
    /// core), and all are resident. See [`Slab`] for an example, and [`Slab::from_memfd`] for existing memory.
    ///
    /// # Errors
    /// [`EngineError::Fabric`] if such memory cannot be allocated.
    pub fn slab(&self, layout: SlabLayout) -> Result<Slab, EngineError> {
        Ok(memory::slab(self.config(), layout)?)
    }

    /// Accepts connections at `address` from now on, and spreads them over the cores. The address is `shm:NAME`, or
    /// `shm:/path` for a socket file; with the driver of RDMA devices it is `rdma://HOST:PORT`, and with that of TCP
    /// sockets `iwarp://HOST:PORT`, where the host is an address of this machine, or `0.0.0.0` or `[::]` for all.
    /// Blocks until the address is bound.
    ///
    /// # Errors
    /// [`EngineError::Fabric`] if the address is invalid, in use, or of another driver; [`EngineError::ApiMisuse`] if
    /// the engine was shut down, or is being drained.
    pub fn listen(&self, address: &str) -> Result<(), EngineError> {
        self.listen_with(address, &ListenOptions::new())
    }

    /// As [`Engine::listen`], with options for the connections that are accepted there.
    ///
    /// # Errors
    /// As [`Engine::listen`], and [`EngineError::Fabric`] if too many slabs are lent.
    pub fn listen_with(&self, address: &str, options: &ListenOptions) -> Result<(), EngineError> {
        self.0.listen(address, options)
    }

    /// Connects core number `core`, for use by threads other than cores: any thread can call through the handle as
    /// soon as it has it. Returns at once; [`ClientHandle::wait_up`] reports connection errors. Calls are sent when
    /// the core runs ([`Engine::start`], [`Engine::core`]); if it never does, they end with the engine. The core
    /// accepts `Config::handle_calls` calls at a time from all its handles together.
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
        let place = self.0.place(core)?;
        let (address, options) = (address.to_owned(), options.clone());
        ClientHandle::connect(&place.calls, ConnectTo { address, program, version, options })
    }

    /// Makes the calling thread core number `index`: pins it and gives it the core's memory. The thread gets its
    /// previous CPUs back when the core is dropped.
    ///
    /// # Errors
    /// [`EngineError`] if the core does not exist, already runs, or its memory or CPU is not available.
    pub fn core(&self, index: usize) -> Result<Core, EngineError> {
        self.0.take_core(index)?;
        self.0.make_core(index)
    }

    /// Runs every configured core on a thread of its own and returns.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if a core was started before; nothing changes then, and cores that run go on.
    /// [`EngineError`] if a core cannot be started; then the engine is shut down, and none runs.
    pub fn start(&self) -> Result<Running, EngineError> {
        Running::launch(self)
    }

    /// Runs every configured core and blocks until [`Engine::shutdown`].
    ///
    /// # Errors
    /// As [`Engine::start`], and [`EngineError::Host`] if a core's thread panicked; the panic also shuts the engine
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
    /// [`Engine::serve_once`] keeps no reply for it. A connection is closed once all its executed calls are answered,
    /// so the calls that its client loses with it were not executed. The client cannot tell this from a crash: those of
    /// [`Resend::AtLeastOnce`](crate::Resend::AtLeastOnce) are sent to the next process, others end with
    /// [`CallError::Disconnected`](crate::CallError::Disconnected). Connections that this engine opened stay until the
    /// end. Services are polled, and notified of connections, as before.
    ///
    /// It blocks, so call it on a thread of your own, such as one that waits for signals, and not on a core's thread.
    /// A core that no thread drives ([`Engine::core`]) is waited for until `at_most`, and counts as one; a core that
    /// was never made, or has already ended, counts as zero. [`Engine::shutdown`] by another thread interrupts the
    /// wait within a tenth of a second. After a shutdown the result is zero. If two threads drain at the same time,
    /// the shorter `at_most` applies, exceeded by up to a tenth of a second. Both return the same number, as does a
    /// later call.
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
    pub fn directory(&self) -> Directory {
        self.0.directory.clone()
    }

    /// Number of configured cores.
    pub fn cores(&self) -> usize {
        self.0.config.cores()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Counters of a core, readable from any thread without disturbing the core; all zero before it runs.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if the core does not exist.
    pub fn stats(&self, core: usize) -> Result<StatsSnapshot, EngineError> {
        Ok(self.0.place(core)?.cells.snapshot())
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", self.config()).finish_non_exhaustive()
    }
}

/// The threads of [`Engine::start`].
#[derive(Debug)]
pub struct Running(Vec<std::thread::JoinHandle<()>>);

impl Running {
    fn launch(engine: &Engine) -> Result<Self, EngineError> {
        engine.0.take_cores()?;
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
        // A core that was taken may not have a thread.
        engine.0.close_calls();
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
    match engine.0.make_core(index) {
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
                        with --features verbs, or use iwarp://HOST:PORT, which needs no device";

/// Settings of the driver that follow from the configuration.
fn shm_config(config: &Config) -> ShmConfig {
    let largest = config.peer_limits().payload_bytes_max as usize;
    ShmConfig {
        ring_slots: config.shm_ring_slots() as u32,
        arena: memory::classes(config.conn_arena_bytes(), largest),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        conns_max: config.conns_max() as u32,
        handshakes_max: config.handshakes_max(),
        peer_slab_bytes_max: config.peer_slab_bytes_max(),
        peer_memory_bytes_max: config.peer_memory_bytes_max(),
        core_memory_bytes_max: config.core_memory_bytes_max(),
        near_cores: config.is_near_cpu(),
        ..ShmConfig::default()
    }
}

fn iwarp_config(config: &Config) -> IwarpConfig {
    let largest = config.peer_limits().payload_bytes_max as usize;
    IwarpConfig {
        message_bytes_max: config.recv_buffer_bytes().max(config.send_buffer_bytes()),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        reads_out_max: config.device_reads_max(),
        reads_in_max: config.device_reads_max(),
        crc: config.iwarp_crc(),
        arena: memory::classes(config.conn_arena_bytes(), largest),
        keys_max: config.keys_max(),
        conns_max: config.conns_max(),
        handshakes_max: config.handshakes_max(),
        host_conns_max: config.host_conns_max(),
        ..IwarpConfig::default()
    }
}

#[cfg(feature = "verbs")]
fn verbs_config(config: &Config) -> VerbsConfig {
    let verbs = config.verbs();
    let largest = config.peer_limits().payload_bytes_max as usize;
    VerbsConfig {
        device: verbs.device.name().map(str::to_owned),
        message_bytes_max: config.recv_buffer_bytes().max(config.send_buffer_bytes()),
        message_memory_bytes: memory::message_bytes(config),
        accepted_exposes: config.reverse_calls() > 0 || config.protocol().has_reads_in_replies(),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        signal_every: config.signal_every(),
        reads_out_max: config.device_reads_max(),
        reads_in_max: config.device_reads_max(),
        ack_timeout: verbs.ack_timeout.map(|code| code as u8),
        type_of_service: verbs.tos.map(|code| code as u8),
        registration: match verbs.registration {
            config::Registration::Auto => Registration::Auto,
            config::Registration::Buffer => Registration::Buffer,
            config::Registration::Window => Registration::Window,
            config::Registration::Pool => Registration::Pool,
        },
        arena: memory::classes(config.conn_arena_bytes(), largest),
        keys_max: config.keys_max(),
        // A reply that the client fetches fails if no memory window is free: it does not wait. Otherwise there is one
        // for each call of a first burst.
        keys_first: match config.protocol().has_reads_in_replies() {
            true => config.keys_max(),
            false => VerbsConfig::default().keys_first.max(config.credits()),
        },
        conns_max: config.conns_max(),
        handshakes_max: config.handshakes_max(),
        host_conns_max: config.host_conns_max(),
        handshake_timeout: Duration::from_millis(verbs.connect_timeout_ms),
        ..VerbsConfig::default()
    }
}

#[cfg(feature = "sim")]
fn sim_device(config: &Config) -> Device {
    let largest = config.peer_limits().payload_bytes_max as usize;
    Device {
        trusted: true,
        arena: memory::classes(config.conn_arena_bytes(), largest),
        message_bytes_max: config.send_buffer_bytes(),
        recv_queue_depth: config.recv_budget().total().min(u16::MAX.into()) as u16,
        send_queue_depth: config.send_queue_depth(),
        conns_max: config.conns_max(),
        keys_max: 512,
        ..Device::default()
    }
}

#[cfg(test)]
mod tests;
