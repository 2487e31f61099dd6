//! From what is to be done to a server that runs, and to its end.

use crate::announce;
use crate::back_ends;
use crate::cli::MountAt;
use crate::failure::Failure;
use crate::notify::{READY, STOPPING, notify};
use crate::register::Registered;
use crate::setup::Setup;
use crate::state;
use crate::stats::{LiveTable, Source, StatsSocket};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use spinrpc::{Engine, EngineError, Running};
use spinrpc_apps::nfs::mount3;
use spinrpc_apps::nfs::server::mount::{MountService, Registry, TcpServer};
use spinrpc_apps::nfs::server::{Server, ServerOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::warn;

/// How long calls that run are waited for at the end; systemd waits for 90 seconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// What the main thread waits for.
enum Event {
    Signal,
    Ended(Result<(), EngineError>),
}

/// Serves until a signal.
pub(crate) fn run(setup: &Setup) -> Result<(), Failure> {
    raise_descriptor_limit();
    give_up_reserves();
    let server = open(setup)?;
    let engine = Engine::new(setup.config.clone()).map_err(|error| failed(&error))?;
    let registry = serve(&server, &engine)?;
    for address in &setup.listen {
        engine.listen(address).map_err(|error| Failure::failed(address, error))?;
    }
    // Before any core runs: what arrives while it is set up is not lost.
    let (events, arriving) = channel();
    watch_signals(events.clone()).map_err(|error| Failure::failed("signals", error))?;
    let running = engine.start().map_err(|error| failed(&error))?;
    watch_cores(running, events).map_err(|error| Failure::failed("a thread", error))?;
    let source =
        Source { server: Arc::clone(&server), engine: engine.clone(), began: Instant::now() };
    let front = Front::open(setup, registry, source)?;
    front.announce(setup)?;
    notify(READY);
    let ended = wait(&arriving, &engine, front);
    engine.shutdown();
    ended
}

fn open(setup: &Setup) -> Result<Arc<Server>, Failure> {
    let key = state::key(&setup.state)?;
    let exports = back_ends::open(&setup.exports, setup.threads)?;
    let (read, write) = (setup.config.read_bytes_max(), setup.config.write_bytes_max());
    let options = ServerOptions {
        threads: setup.threads,
        read_bytes_max: read.min(u32::MAX as usize) as u32,
        write_bytes_max: write.min(u32::MAX as usize) as u32,
        ..ServerOptions::default()
    };
    Server::new(exports, key, &options).map_err(|error| Failure::failed("starting", error))
}

/// Has the engine serve NFS and MOUNT.
fn serve(server: &Arc<Server>, engine: &Engine) -> Result<Arc<Registry>, Failure> {
    server.serve(engine).map_err(|error| failed(&error))?;
    let exports = Arc::new(server.exports().clone());
    let registry = Arc::new(Registry::new(exports, |export| server.root_handle(export)));
    let on_cores = Arc::clone(&registry);
    engine.serve(mount3::PROGRAM, mount3::VERSION, move |_core| {
        MountService::new(Arc::clone(&on_cores))
    });
    Ok(registry)
}

fn failed(error: &EngineError) -> Failure {
    Failure::Failed(error.to_string())
}

/// What is beside the engine, and ends before it does.
struct Front {
    mount: Option<TcpServer>,
    registered: Registered,
    _socket: Option<StatsSocket>,
    _table: Option<LiveTable>,
}

impl Front {
    fn open(setup: &Setup, registry: Arc<Registry>, source: Source) -> Result<Self, Failure> {
        let mount = match setup.mount {
            MountAt::Nowhere => None,
            MountAt::Address(address) => {
                Some(TcpServer::listen(address, registry).map_err(|error| {
                    let what = format!("MOUNT at {address} (another place is chosen by --mount)");
                    Failure::failed(what, error)
                })?)
            }
        };
        let at = mount.as_ref().map(TcpServer::address);
        let socket = setup.stats_socket.as_deref().map(|path| {
            let opened = StatsSocket::start(path, source.clone());
            opened.map_err(|error| Failure::failed(path.display(), error))
        });
        let socket = socket.transpose()?;
        let registered = Registered::new(&setup.register, &setup.listen, at)?;
        let table = setup.stats.map(|every| LiveTable::start(source, every)).transpose();
        let table = table.map_err(|error| Failure::failed("a thread", error))?;
        Ok(Self { mount, registered, _socket: socket, _table: table })
    }

    /// What is served, to whom and where; the last line says that it is.
    fn announce(&self, setup: &Setup) -> Result<(), Failure> {
        let mut lines = announce::exports(setup);
        if let Some(mount) = &self.mount {
            lines.push(format!("mount by tcp at {}", mount.address()));
        }
        if self.registered.count() > 0 {
            lines.push("registered with rpcbind".to_owned());
        }
        lines.extend(setup.listen.iter().map(|address| format!("listening on {address}")));
        let written = writeln!(io::stdout(), "{}", lines.join("\n"));
        written.map_err(|error| Failure::failed("standard output", error))
    }
}

/// Waits for a signal, and then until what runs is done.
fn wait(arriving: &Receiver<Event>, engine: &Engine, mut front: Front) -> Result<(), Failure> {
    match arriving.recv() {
        Ok(Event::Ended(Err(error))) => return Err(failed(&error)),
        Ok(Event::Ended(Ok(()))) | Err(_) => return Ok(()),
        Ok(Event::Signal) => {}
    }
    notify(STOPPING);
    // rpcbind is told behind this, as it may take its time.
    drop(front.mount.take());
    match engine.drain(DRAIN_TIMEOUT) {
        0 => Ok(()),
        calls => Err(Failure::Failed(format!(
            "{calls} calls were not done within {DRAIN_TIMEOUT:?}, and were given up"
        ))),
    }
}

/// The first signal ends the server, the second one the process, whatever runs.
fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        let mut arriving = signals.forever();
        if arriving.next().is_some() {
            // Nobody waits for it any more when the cores have ended.
            drop(events.send(Event::Signal));
        }
        if let Some(signal) = arriving.next() {
            drop(emulate_default_handler(signal));
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

fn watch_cores(running: Running, events: Sender<Event>) -> io::Result<()> {
    let watch = move || drop(events.send(Event::Ended(running.join())));
    thread::Builder::new().name("cores".into()).spawn(watch).map(drop)
}

/// Connections and open files need some descriptors each.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What is refused here shows later, as a file or connection that cannot be opened.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Root's threads may pass quotas and take the blocks that a file system keeps for emergencies
/// (CAP_SYS_RESOURCE). What they write for clients must not. Before there are other threads.
fn give_up_reserves() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let given_up = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets)
    });
    if let Err(error) = given_up {
        warn!("clients' writes may pass quotas: CAP_SYS_RESOURCE could not be given up: {error}");
    }
}
