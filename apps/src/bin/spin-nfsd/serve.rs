//! Runs a server from its setup until it exits.

use crate::announce;
use crate::back_ends::{self, Opened};
use crate::cli::{Cli, MountAt};
use crate::failure::{Failure, Failures};
use crate::keeper::Keeper;
use crate::kerberos;
use crate::live::Live;
use crate::metrics;
use crate::names::Names;
use crate::notify::{READY, STOPPING, notify};
use crate::register::Registered;
use crate::reload::{self, Control, Request};
use crate::setup::Setup;
use crate::slow;
use crate::socket::Socket;
use crate::state;
use crate::stats::{LiveTable, Served};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};
use spinrpc::config::Host;
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc::{CoreContext, Engine, EngineError, ListenOptions, Running};
use spinrpc_nfs::mount3;
use spinrpc_nfs::server::exports::Peer;
use spinrpc_nfs::server::mount::{MountService, Registry};
use spinrpc_nfs::server::tcp::TcpServer;
use spinrpc_nfs::server::{Server, ServerOptions};
use spinrpc_tuning::raise_descriptor_limit;
use std::ffi::c_int;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Systemd waits longer: TimeoutStopSec of `spin-nfsd.service`.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// A thread stuck in the kernel, as on a disk that does not answer, must not keep the process alive.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

enum Event {
    Stop(c_int),
    /// By the signal, or by a client of the control socket.
    Reload(Option<Request>),
    Ended(Result<(), EngineError>),
}

pub(crate) fn run(read: (Cli, Host), setup: &Setup) -> Result<(), Vec<Failure>> {
    raise_descriptor_limit();
    give_up_quota_override();
    let key = state::key(&setup.state).map_err(one)?;
    let Made { served, kerberos, opened, names } = make(setup, key)?;
    if let Some(kerberos) = kerberos {
        event!(INFO, "{kerberos}");
    }
    let shown = announce::exports(setup, &names);
    let live = Live::new(read, setup, &served.server, (opened, names));
    let live = Arc::new(Mutex::new(live));
    serve_until_the_end(setup, (served, live), shown).map_err(one)?;
    event!(INFO, "shut down");
    Ok(())
}

fn one(failure: Failure) -> Vec<Failure> {
    vec![failure]
}

type Parts = (Served, Arc<Mutex<Live>>);

/// A host that no export lists gets no connection, and with it no memory. Local users are checked by the engine, and
/// learn from each call what they may not do.
fn admitting_listed_hosts(registry: &Arc<Registry>) -> ListenOptions {
    let registry = Arc::clone(registry);
    ListenOptions::new().admit(move |peer| match Peer::from(peer) {
        peer @ Peer::Host(_) => registry.admits(&peer),
        _ => true,
    })
}

fn serve_until_the_end(setup: &Setup, parts: Parts, shown: Vec<String>) -> Result<(), Failure> {
    let Served { engine, registry, .. } = &parts.0;
    let options = admitting_listed_hosts(registry);
    for address in &setup.listen {
        engine.listen_with(address, &options).map_err(|error| failed(&error))?;
    }
    // Before any core runs, so that signals during setup are not lost.
    let (events, arriving) = channel();
    watch_signals(events.clone()).map_err(|error| Failure::failed("signals", error))?;
    let running = engine.start().map_err(|error| failed(&error))?;
    watch_cores(running, events.clone()).map_err(|error| Failure::failed("a thread", error))?;
    let front = Front::open(setup, &parts, events)?;
    front.announce(setup, shown)?;
    event!(INFO, "spin-nfsd {} is ready", env!("CARGO_PKG_VERSION"));
    notify(READY);
    loop {
        match arriving.recv() {
            Ok(Event::Reload(request)) => front.keeper.reload(request),
            Ok(Event::Stop(signal)) => {
                event!(INFO, "shutting down on {}", signal_name(signal).unwrap_or("a signal"));
                return end(front, parts, arriving);
            }
            Ok(Event::Ended(ended)) => {
                return leave(front, parts, move || {
                    drop(arriving);
                    ended
                });
            }
            Err(_) => return Ok(()),
        }
    }
}

fn reload(live: &Mutex<Live>, request: Option<Request>) {
    let outcome = lock(live).reload();
    let outcome = outcome
        .map_err(|failures| failures.iter().map(ToString::to_string).collect::<Vec<String>>());
    match &outcome {
        Ok(changes) => changes.iter().for_each(|change| event!(INFO, "reloaded: {change}")),
        Err(problems) => {
            problems.iter().for_each(|problem| event!(ERROR, "not reloaded: {problem}"));
        }
    }
    if let Some(request) = request {
        // Its client may have gone.
        drop(request.send(outcome));
    }
}

/// Keeps nothing but the keys and users of Kerberos, in words, and names of clients.
pub(crate) fn check(setup: &Setup) -> Result<(Option<String>, Names), Vec<Failure>> {
    let key = state::present(&setup.state).map_err(one)?.unwrap_or_default();
    let Made { kerberos, names, .. } = make(setup, key)?;
    Ok((kerberos, names))
}

struct Made {
    served: Served,
    kerberos: Option<String>,
    opened: Opened,
    names: Names,
}

/// Creates everything that serves, without listening. Returns everything that fails.
fn make(setup: &Setup, key: state::Key) -> Result<Made, Vec<Failure>> {
    let mut failures = Failures::default();
    let opened = back_ends::open(&setup.exports, setup.threads, &Opened::default());
    let opened = failures.keep_all(opened);
    let engine = Engine::new(setup.config.clone()).map_err(|error| failed(&error));
    let engine = failures.keep(engine);
    let accept = |engine: &Engine| {
        setup.kerberos.as_ref().map(|options| kerberos::accept(options, engine)).transpose()
    };
    let kerberos = engine.as_ref().and_then(|engine| failures.keep(accept(engine)));
    let parts = opened.zip(engine).zip(kerberos);
    let ((opened, engine), kerberos) = failures.or(parts)?;
    let names = Names::default().look_up(opened.clients());
    let exports = opened.named(&names).map_err(one)?;
    let failed_to_start = |error: io::Error| one(Failure::failed("starting", error));
    let server = Server::new(exports, key, &options(setup)).map_err(failed_to_start)?;
    let registry = serve(&server, &engine).map_err(one)?;
    let served = Served { engine, registry, server, began: Instant::now() };
    Ok(Made { served, kerberos, opened, names })
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

fn serve(server: &Arc<Server>, engine: &Engine) -> Result<Arc<Registry>, Failure> {
    server.serve(engine).map_err(|error| failed(&error))?;
    let registry = Arc::new(Registry::new(Arc::clone(server.table()), server.root_handles()));
    let on_cores = Arc::clone(&registry);
    let mounts = move |_: &CoreContext| MountService::new(Arc::clone(&on_cores));
    engine.serve(mount3::PROGRAM, mount3::VERSION, mounts).map_err(|error| failed(&error))?;
    metrics::publish(server, &registry, engine).map_err(|error| failed(&error))?;
    Ok(registry)
}

fn failed(error: &EngineError) -> Failure {
    Failure::Failed(error.to_string())
}

struct Front {
    mount: Option<TcpServer>,
    contexts: Option<TcpServer>,
    registered: Registered,
    table: Option<LiveTable>,
    control: Option<Socket>,
    keeper: Keeper,
}

impl Front {
    fn open(setup: &Setup, parts: &Parts, events: Sender<Event>) -> Result<Self, Failure> {
        let (served, live) = parts;
        let Served { engine, registry, server, .. } = served;
        let mount = match setup.mount {
            MountAt::Nowhere => None,
            MountAt::Address(address) => {
                let service = Arc::clone(registry);
                Some(TcpServer::listen(address, service).map_err(|error| {
                    let what = format!("MOUNT at {address} (choose another address with --mount)");
                    Failure::failed(what, error)
                })?)
            }
        };
        let contexts = match &setup.kerberos {
            Some(options) => kerberos::contexts(options, engine, server.table())?,
            None => None,
        };
        let at = mount.as_ref().map(TcpServer::address);
        let registered = Registered::new(&setup.register, &setup.listen, at)?;
        let of_thread = |error| Failure::failed("a thread", error);
        let table = setup.stats.map(|every| LiveTable::start(served.clone(), every)).transpose();
        let table = table.map_err(of_thread)?;
        let keeper = keeper(server, live).map_err(of_thread)?;
        let control = control(setup, served.clone(), events);
        Ok(Self { mount, contexts, registered, table, control, keeper })
    }

    /// Prints exports, clients and addresses; the last line says that the server is ready.
    fn announce(&self, setup: &Setup, mut lines: Vec<String>) -> Result<(), Failure> {
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

fn keeper(server: &Server, live: &Arc<Mutex<Live>>) -> io::Result<Keeper> {
    let (table, live) = (Arc::clone(server.table()), Arc::clone(live));
    Keeper::start(move |request| reload(&live, request), move || table.collect())
}

/// Without this socket, SIGHUP remains: another server may have the state directory.
fn control(setup: &Setup, served: Served, events: Sender<Event>) -> Option<Socket> {
    let path = reload::socket(&setup.state);
    let ask = move |request| drop(events.send(Event::Reload(Some(request))));
    let others =
        move |request: &str| served.about_clients(request).or_else(|| slow::answer(request));
    let control = Control { reload: ask, others };
    let answer = move |request: Option<&[u8]>| {
        control.answer(request.map(String::from_utf8_lossy).as_deref().map(str::trim_end))
    };
    let opened = Socket::start(&path, answer);
    let path = path.display();
    opened
        .inspect_err(|error| {
            event!(
                WARN,
                "{path}: {error}: only SIGHUP reloads the exports, and clients are not listed"
            )
        })
        .ok()
}

/// Waits for calls in progress, then exits. MOUNT over TCP stops first.
fn end(mut front: Front, parts: Parts, arriving: Receiver<Event>) -> Result<(), Failure> {
    notify(STOPPING);
    drop((front.mount.take(), front.contexts.take()));
    let unfinished = parts.0.engine.drain(DRAIN_TIMEOUT);
    // Clients retry their calls elsewhere from now on.
    parts.0.server.stop();
    let left = leave(front, parts, move || {
        let ended = arriving.into_iter().find_map(|event| match event {
            Event::Ended(ended) => Some(ended),
            Event::Stop(_) | Event::Reload(_) => None,
        });
        ended.unwrap_or(Ok(()))
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

/// The caller must not touch unfinished ones afterwards. Unregisters from rpcbind last, which may take long.
fn leave(
    front: Front,
    (served, live): Parts,
    cores_end: impl FnOnce() -> Result<(), EngineError> + Send + 'static,
) -> Result<(), Failure> {
    let Front { mount, contexts, registered, table, control, keeper } = front;
    let leaving = within(LEAVE_TIMEOUT, move || {
        // Ends the requests of control's clients, too.
        let ended = cores_end();
        drop(keeper);
        let opened = lock(&live).close();
        drop((mount, contexts, table, control, opened, served));
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

/// SIGHUP reloads. The first one of the other signals stops the server; the second one kills the process.
fn watch_signals(events: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        let mut is_stopping = false;
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::Reload(None),
                signal if is_stopping => {
                    drop(emulate_default_handler(signal));
                    continue;
                }
                signal => Event::Stop(signal),
            };
            is_stopping |= signal != SIGHUP;
            // Nothing receives it after the cores have stopped.
            drop(events.send(event));
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

fn watch_cores(running: Running, events: Sender<Event>) -> io::Result<()> {
    let watch = move || drop(events.send(Event::Ended(running.join())));
    thread::Builder::new().name("cores".into()).spawn(watch).map(drop)
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
        event!(WARN, "clients' writes may exceed quotas: cannot drop CAP_SYS_RESOURCE: {error}");
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
