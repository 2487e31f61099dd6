//! Threads and engines end as they began: CPUs are given back, helpers stay off the cores that poll,
//! a core outlives its engine's last handle, and errors keep their source.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use spinrpc::sys::affinity::{allowed, pin_current_thread};
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{MutexGuard, PoisonError};
use std::thread;

/// The set of polled CPUs is global to the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(run).join().unwrap()
}

#[test]
fn a_blocking_client_gives_its_threads_cpus_back() {
    let _alone = alone();
    let server = Server::start();
    let address = server.address.clone();
    let (before, after) = on_a_thread(move || {
        let before = allowed().unwrap();
        drop(blocking::Client::connect_with(valid(small()), &address, PROGRAM, VERSION).unwrap());
        (before, allowed().unwrap())
    });
    assert_eq!(after, before);
    server.stop();
}

#[test]
fn a_thread_that_was_pinned_elsewhere_since_stays_there() {
    let _alone = alone();
    let last = allowed().unwrap().iter().last().unwrap();
    let after = on_a_thread(move || {
        let (_engine, core) = with_core(small());
        pin_current_thread(last).unwrap();
        drop(core);
        allowed().unwrap()
    });
    assert_eq!(after.iter().collect::<Vec<_>>().last(), Some(&last));
}

/// With a single CPU they have no other.
#[test]
fn threads_of_a_factory_keep_off_the_cores_that_poll() {
    let _alone = alone();
    let all = allowed().unwrap();
    let cpu = all.iter().next().unwrap();
    let config = valid(small_with(|raw| raw.cores.list = CoreList::Cpus(vec![cpu])));
    let engine = Engine::new(config).unwrap();
    let (report, reports) = mpsc::channel();
    engine
        .serve(PROGRAM, VERSION, move |_| {
            let report = report.clone();
            thread::spawn(move || report.send(allowed().unwrap()).unwrap());
            |call: Call<'_>| call.reply(|_| {})
        })
        .unwrap();
    let running = engine.start().unwrap();
    let cpus = reports.recv().unwrap();
    engine.shutdown();
    running.join().unwrap();
    // On a NUMA host with one node for each CPU, no other CPU is near.
    assert_eq!(cpus.contains(cpu), all.len() == 1, "{cpus}");
}

#[test]
fn a_core_goes_on_when_the_last_handle_of_its_engine_is_dropped() {
    let _alone = alone();
    let server = Server::start();
    let (engine, mut core) = with_core(small());
    drop(engine);
    let (client, heard) = open(&mut core, &server.address, all_words).unwrap();
    client.call(ECHO, spinrpc::Token(1), &mut spinrpc::CallSpec::short(), |_| {}).unwrap();
    common::caller::run_core(&mut core, "a reply", || heard.borrow().replies.len() == 1);
    drop(core);
    server.stop();
}

fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    error.source().map_or(error, root)
}

fn os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    root(error).downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
}

#[test]
fn errors_lead_to_the_error_of_the_operating_system() {
    let _alone = alone();
    let absent = blocking::Client::connect_with(valid(small()), "shm:absent", PROGRAM, VERSION);
    let absent = absent.unwrap_err();
    assert!(os_error(&absent).is_some(), "{absent:?}");
    let address = unique_address();
    let (engine, mut core) = with_core(small());
    let Err(error) = open(&mut core, &address, all_words) else { panic!("{address} connects") };
    assert!(os_error(&error).is_some(), "{error:?}");
    let error = engine.listen("shm:/absent/socket").unwrap_err();
    assert!(os_error(&error).is_some(), "{error:?}");
}

/// Start on the thread of a core, whose one CPU other threads would inherit.
#[test]
fn helpers_of_a_handler_keep_off_the_cores_that_poll() {
    let _alone = alone();
    let all = allowed().unwrap();
    let cpu = all.iter().next().unwrap();
    let config = valid(small_with(|raw| raw.cores.list = CoreList::Cpus(vec![cpu])));
    let engine = Engine::new(config).unwrap();
    let (report, reports) = mpsc::channel();
    engine
        .serve(PROGRAM, VERSION, move |_| {
            let report = report.clone();
            move |call: Call<'_>| {
                call.reply(|_| {});
                let report = report.clone();
                let tell =
                    move || report.send((thread::current().name().map(str::to_owned), allowed()));
                drop(spawn_helper("helper", tell).unwrap());
            }
        })
        .unwrap();
    let server = Server::started(engine, Default::default());
    let mut client =
        blocking::Client::connect_with(valid(small()), &server.address, PROGRAM, VERSION).unwrap();
    client.call(Procedure(1), |_| {}, |_| Ok(())).unwrap();
    let (name, cpus) = reports.recv().unwrap();
    assert_eq!(name.as_deref(), Some("helper"));
    assert_eq!(cpus.unwrap().iter().eq([cpu]), all.len() == 1, "its core's CPU alone");
}

/// Claim two CPUs that no host has, so that engines elsewhere on this one do not matter.
#[test]
fn engines_of_one_host_take_cpus_of_their_own_by_default() {
    let _alone = alone();
    let first = 100_000 + 2 * std::process::id() as usize;
    let host = Host { allowed: vec![first, first + 1], ..Host::default() };
    let make = || Engine::new(small().validate_for(&host).unwrap()).unwrap();
    let (server, client) = (make(), make());
    assert_eq!((server.config().cpus(), client.config().cpus()), (&[first][..], &[first + 1][..]));
    let third = make();
    assert_eq!(third.config().cpus(), [first], "the only one");
    drop((server, third));
    assert_eq!(make().config().cpus(), [first]);
}

/// A listener that never says a word, as one that is stopped.
fn silent_listener() -> (OwnedFd, String) {
    let address = unique_address();
    let name = address.strip_prefix("shm:").unwrap();
    let name = format!("spinrpc/{}/{name}", geteuid().as_raw());
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    net::listen(&socket, 64).unwrap();
    (socket, address)
}

/// Connect often to a listener that does not answer, and then to a server. Expect the server's connection
/// while the others wait, and an engine that ends without trying them all: each waits for 5 s.
#[test]
fn a_listener_that_does_not_answer_delays_neither_other_connections_nor_the_end() {
    let _alone = alone();
    let (_silent, address) = silent_listener();
    let server = Server::start();
    on_a_thread(move || {
        let (engine, mut core) = with_core(small());
        let heard: Rc<RefCell<Heard<Vec<u32>>>> = Rc::default();
        for to in [&address; 6].into_iter().chain([&server.address]) {
            core.connect(to, PROGRAM, VERSION, |_| recorder(&heard, all_words)).unwrap();
        }
        run_core(&mut core, "the first event", || !heard.borrow().events.is_empty());
        let first = heard.borrow().events[0].clone();
        assert!(matches!(first, ConnectionEvent::Up { .. }), "{first:?}");
        let start = Instant::now();
        drop((core, engine));
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    });
}

fn mapped_rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|mapping| mapping.contains("spinrpc-connection")).count()
}

#[test]
fn a_client_is_kept_after_its_connection_expect_the_memory_given_back() {
    let _alone = alone();
    let (server, mut caller) = served(all_words);
    assert!(mapped_rings() >= 2, "both ends are here");
    server.stop();
    caller.down();
    wait_until("rings that are not mapped any more", || {
        caller.core.poll_once();
        mapped_rings() == 0
    });
    assert!(!caller.client.is_up());
}

/// "Clients that outlive the core keep its state, but not its connections."
#[test]
fn a_client_is_kept_after_its_core_expect_the_memory_given_back() {
    let _alone = alone();
    let server = Server::start();
    let Caller { client, core, engine, .. } = Caller::connect(&server.address, all_words);
    assert!(mapped_rings() >= 2, "both ends are here");
    drop((core, engine));
    server.stop();
    assert!(client.call(Procedure(0), Token(1), &mut CallSpec::short(), |_| {}).is_err());
    wait_until("rings that are not mapped any more", || mapped_rings() == 0);
}

#[test]
fn an_encoder_drops_its_core_expect_its_call_refused() {
    let _alone = alone();
    let server = Server::start();
    let Caller { client, core, .. } = Caller::connect(&server.address, all_words);
    let mut core = Some(core);
    let spec = &mut CallSpec::short();
    let started = client.call(Procedure(0), Token(1), spec, |_| drop(core.take()));
    assert_eq!(started, Err(Backpressure::Down));
    assert!(!client.is_up());
}

/// A reader of the statistics misses nothing of the last turns.
#[test]
fn a_core_ends_expect_all_that_it_counted_in_the_statistics() {
    let _alone = alone();
    let server = Server::start();
    let Caller { client, heard, mut core, engine } = Caller::connect(&server.address, all_words);
    client.call(Procedure(0), Token(1), &mut CallSpec::short(), |_| {}).unwrap();
    let end = Instant::now() + LIMIT;
    while heard.borrow().replies.is_empty() && Instant::now() < end {
        core.poll_once();
    }
    drop(core);
    let counted = engine.stats(0).unwrap();
    // With the call that a connection begins with.
    assert_eq!((counted.calls_sent, counted.replies_received), (2, 2));
}

fn is_misuse<T>(result: Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::ApiMisuse(_)))
}

#[test]
fn a_second_start_is_refused_and_the_cores_go_on() {
    let _alone = alone();
    let server = Server::start();
    let mut client =
        blocking::Client::connect_with(valid(small()), &server.address, PROGRAM, VERSION).unwrap();
    assert!(is_misuse(server.engine.start()));
    assert!(is_misuse(server.engine.run()));
    assert!(is_misuse(server.engine.core(0)));
    assert!(!server.engine.is_shut_down());
    client.call(ECHO, |args| args.opaque(b"on"), |_| Ok(())).unwrap();
    drop(client);
    server.stop();
}

/// Of the cores that a refused start came to before it was refused, each can still be started.
#[test]
fn a_start_after_one_core_was_started_takes_no_other() {
    let _alone = alone();
    let cpus = allowed().unwrap().iter().take(2).collect::<Vec<_>>();
    let last = cpus.len() - 1;
    let config = valid(small_with(|raw| raw.cores.list = CoreList::Cpus(cpus)));
    let engine = Engine::new(config).unwrap();
    let core = engine.core(last).unwrap();
    assert!(is_misuse(engine.start()));
    assert!(!engine.is_shut_down());
    (0..last).for_each(|index| drop(engine.core(index).unwrap()));
    drop(core);
}

#[test]
fn services_and_addresses_that_come_too_late_are_refused() {
    let _alone = alone();
    let server = Server::start();
    let engine = server.engine.clone();
    let null = |call: Call<'_>| call.reply(|_| {});
    assert!(is_misuse(engine.serve(Program(PROGRAM.0 + 1), VERSION, move |_| null)));
    assert!(is_misuse(engine.serve_once(Program(PROGRAM.0 + 1), VERSION, move |_| null)));
    assert_eq!(engine.directory().services(), [(PROGRAM, VERSION)]);
    engine.listen(&unique_address()).unwrap();
    server.stop();
    assert!(is_misuse(engine.listen(&unique_address())));
}
