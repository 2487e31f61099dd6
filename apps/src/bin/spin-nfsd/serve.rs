//! Runs a server from its setup until it exits.

use crate::announce;
use crate::back_ends;
use crate::cli::MountAt;
use crate::failure::Failure;
use crate::kerberos;
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
use spinrpc_apps::nfs::server::mount::{MountService, Registry};
use spinrpc_apps::nfs::server::tcp::TcpServer;
use spinrpc_apps::nfs::server::{Server, ServerOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::warn;

/// Maximum wait at shutdown for calls in progress. Systemd waits longer: TimeoutStopSec of
/// `spin-nfsd.service`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum wait for cores and threads after that. A thread stuck in the kernel, for example on a
/// disk that does not answer, must not keep the process alive.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Events of the main thread.
enum Event {
    Signal,
    Ended(Result<(), EngineError>),
}

/// Serves until a signal.
pub(crate) fn run(setup: &Setup) -> Result<(), Failure> {
    raise_descriptor_limit();
    give_up_quota_override();
    let Made { server, engine, registry, kerberos } = make(setup, state::key(&setup.state)?)?;
    if let Some(kerberos) = kerberos {
        tracing::info!("{kerberos}");
    }
    for address in &setup.listen {
        engine.listen(address).map_err(|error| Failure::failed(address, error))?;
    }
    // Before any core runs, so that signals during setup are not lost.
    let (events, arriving) = channel();
    watch_signals(events.clone()).map_err(|error| Failure::failed("signals", error))?;
    let running = engine.start().map_err(|error| failed(&error))?;
    watch_cores(running, events).map_err(|error| Failure::failed("a thread", error))?;
    let source = Source {
        server: Arc::clone(&server),
        registry: Arc::clone(&registry),
        engine: engine.clone(),
        began: Instant::now(),
    };
    let front = Front::open(setup, registry, source)?;
    front.announce(setup)?;
    notify(READY);
    match arriving.recv() {
        Ok(Event::Signal) => end(front, engine, server, arriving),
        Ok(Event::Ended(ended)) => leave(front, engine, server, || ended),
        Err(_) => Ok(()),
    }
}

/// Fails if serving would fail before listening; keeps nothing. Returns the keys and the users of Kerberos in words.
pub(crate) fn check(setup: &Setup) -> Result<Option<String>, Failure> {
    let key = state::present(&setup.state)?.unwrap_or_default();
    Ok(make(setup, key)?.kerberos)
}

/// Everything that serves.
struct Made {
    server: Arc<Server>,
    engine: Engine,
    registry: Arc<Registry>,
    /// Keys and users in words.
    kerberos: Option<String>,
}

/// Creates everything that serves, without listening.
fn make(setup: &Setup, key: state::Key) -> Result<Made, Failure> {
    let exports = back_ends::open(&setup.exports, setup.threads)?;
    let server = Server::new(exports, key, &options(setup));
    let server = server.map_err(|error| Failure::failed("starting", error))?;
    let engine = Engine::new(setup.config.clone()).map_err(|error| failed(&error))?;
    let registry = serve(&server, &engine)?;
    let kerberos = setup.kerberos.as_ref().map(|options| kerberos::accept(options, &engine));
    Ok(Made { server, engine, registry, kerberos: kerberos.transpose()? })
}

/// Limits a call to what the engine can move.
fn options(setup: &Setup) -> ServerOptions {
    let usual = ServerOptions::default();
    let bytes = |most: usize| u32::try_from(most).unwrap_or(u32::MAX);
    let read_bytes_max = bytes(setup.config.read_bytes_max());
    ServerOptions {
        threads: setup.threads,
        read_bytes_max,
        write_bytes_max: bytes(setup.config.write_bytes_max()),
        list_bytes_max: usual.list_bytes_max.min(read_bytes_max),
        ..usual
    }
}

/// Registers NFS and MOUNT with the engine.
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

/// The parts in addition to the engine.
struct Front {
    mount: Option<TcpServer>,
    /// Where clients establish contexts of Kerberos over TCP.
    contexts: Option<TcpServer>,
    registered: Registered,
    socket: Option<StatsSocket>,
    table: Option<LiveTable>,
}

impl Front {
    fn open(setup: &Setup, registry: Arc<Registry>, source: Source) -> Result<Self, Failure> {
        let mount = match setup.mount {
            MountAt::Nowhere => None,
            MountAt::Address(address) => {
                Some(TcpServer::listen(address, registry).map_err(|error| {
                    let what = format!("MOUNT at {address} (choose another address with --mount)");
                    Failure::failed(what, error)
                })?)
            }
        };
        let contexts = match &setup.kerberos {
            Some(options) => kerberos::contexts(options, &source.engine, source.server.exports())?,
            None => None,
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
        Ok(Self { mount, contexts, registered, socket, table })
    }

    /// Prints exports, clients and addresses; the last line says that the server is ready.
    fn announce(&self, setup: &Setup) -> Result<(), Failure> {
        let mut lines = announce::exports(setup);
        if let Some(mount) = &self.mount {
            lines.push(format!("mount by tcp at {}", mount.address()));
        }
        if let Some(contexts) = &self.contexts {
            lines.push(format!("kerberos contexts by tcp at {}", contexts.address()));
        }
        if self.registered.count() > 0 {
            lines.push("registered with rpcbind".to_owned());
        }
        lines.extend(setup.listen.iter().map(|address| format!("listening on {address}")));
        let written = writeln!(io::stdout(), "{}", lines.join("\n"));
        written.map_err(|error| Failure::failed("standard output", error))
    }
}

/// Waits for calls in progress, then exits. MOUNT over TCP stops first.
fn end(
    mut front: Front,
    engine: Engine,
    server: Arc<Server>,
    arriving: Receiver<Event>,
) -> Result<(), Failure> {
    notify(STOPPING);
    drop((front.mount.take(), front.contexts.take()));
    let unfinished = engine.drain(DRAIN_TIMEOUT);
    // Clients retry their calls elsewhere from now on.
    server.stop();
    let left = leave(front, engine, server, move || match arriving.recv() {
        Ok(Event::Ended(ended)) => ended,
        _ => Ok(()),
    });
    match unfinished {
        0 => left,
        calls => {
            let also = left.err().map(|failure| format!("; {failure}")).unwrap_or_default();
            Err(Failure::Failed(format!(
                "{calls} calls did not finish within {DRAIN_TIMEOUT:?}, and were abandoned{also}"
            )))
        }
    }
}

/// Waits for the cores and all other threads within the limit. The caller must not touch unfinished
/// ones afterwards. Unregisters from rpcbind last, because that may take long.
fn leave(
    front: Front,
    engine: Engine,
    server: Arc<Server>,
    cores_end: impl FnOnce() -> Result<(), EngineError> + Send + 'static,
) -> Result<(), Failure> {
    let Front { mount, contexts, registered, socket, table } = front;
    let leaving = within(LEAVE_TIMEOUT, move || {
        let ended = cores_end();
        drop((mount, contexts, socket, table, engine, server));
        ended
    });
    drop(registered);
    match leaving.map_err(|error| Failure::failed("a thread", error))? {
        Some(ended) => ended.map_err(|error| failed(&error)),
        None => Err(Failure::Failed(format!(
            "threads blocked in the kernel did not return within {LEAVE_TIMEOUT:?}, and were \
             abandoned; check whether all disks respond"
        ))),
    }
}

/// Result of `work` on its own thread, which is abandoned if it takes longer.
fn within<T: Send + 'static>(
    at_most: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (done, outcome) = channel();
    // Nothing receives a late result.
    let work = move || drop(done.send(work()));
    thread::Builder::new().name("end".into()).spawn(work)?;
    Ok(outcome.recv_timeout(at_most).ok())
}

/// The first signal stops the server; the second one kills the process.
fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        let mut arriving = signals.forever();
        if arriving.next().is_some() {
            // Nothing receives it after the cores have stopped.
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
    // A failure shows later, as a file or connection that cannot be opened.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Root's threads may exceed quotas, and use the blocks that a file system reserves for root
/// (CAP_SYS_RESOURCE). Writes for clients must not. User 0 gets those blocks by user id: a root
/// client, and other users only if the kernel rejects a ring that writes as nobody. Must run before
/// other threads start.
fn give_up_quota_override() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let given_up = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        set_capabilities(None, sets)
    });
    if let Err(error) = given_up {
        warn!("clients' writes may exceed quotas: cannot drop CAP_SYS_RESOURCE: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_does_not_end_is_left_alone() {
        let (_never, kept) = channel::<()>();
        assert!(within(Duration::from_millis(1), move || kept.recv()).unwrap().is_none());
        assert_eq!(within(Duration::MAX, || 7).unwrap(), Some(7));
    }
}
