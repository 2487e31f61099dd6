//! Graceful shutdown of an engine: calls that it has begun are finished, later ones are left alone.

use crate::common::prelude::*;
use spinrpc::fabric::sim::{Network, World};
use std::thread::JoinHandle;

/// Shuts an engine down on a separate thread, as a program that waits for signals does.
fn drain(engine: &Engine, at_most: Duration) -> JoinHandle<usize> {
    let engine = engine.clone();
    std::thread::spawn(move || engine.drain(at_most))
}

fn is_down<T>(heard: &SharedHeard<T>) -> bool {
    let is_down = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Down { .. });
    heard.borrow().events.iter().any(is_down)
}

const LEFT: u64 = 1 << 32;

/// A server with deferred calls of a client that has a second connection, with none.
struct Scene {
    server: Server,
    caller: Caller<Vec<u32>>,
    /// Held, so that only the server ends it.
    _idle: Client,
    idle_heard: SharedHeard<Vec<u32>>,
}

impl Scene {
    fn new(server: Server, deferred: u64) -> Self {
        let mut caller = Caller::connect(&server.address, all_words);
        let (idle, idle_heard) = open(&mut caller.core, &server.address, all_words).unwrap();
        caller.start_later(0..deferred, |token| token as u32);
        let waiting = || server.shared.waiting() as u64 == deferred;
        run_core(&mut caller.core, "the deferred calls", waiting);
        Self { server, caller, _idle: idle, idle_heard }
    }

    /// The idle connection goes as soon as the core has heard that it is to end.
    fn wait_for_the_beginning(&mut self) {
        let heard = &self.idle_heard;
        run_core(&mut self.caller.core, "the idle connection's end", || is_down(heard));
    }

    /// A call that comes now is left alone: then the core has also reported all earlier calls.
    fn wait_for_a_call_to_be_left(&mut self) {
        self.caller.start(ECHO, LEFT, |args| args.opaque(b"late")).unwrap();
        let left = || self.server.stats().calls_left == 1;
        run_core(&mut self.caller.core, "the call that is left", left);
    }

    fn calls(&self) -> u64 {
        self.server.shared.calls.load(Ordering::Relaxed)
    }
}

/// The test program, as one whose calls must not be executed twice.
fn serving_once() -> Server {
    let engine = Engine::new(valid(small_with(|raw| raw.rpc.reply_cache_mib = 1))).unwrap();
    let shared = Arc::new(Shared::default());
    let of_program = Arc::clone(&shared);
    let program = move |context: &_| TestProgram::new(Clone::clone(context), of_program.clone());
    engine.serve_once(PROGRAM, VERSION, program).unwrap();
    Server::started(engine, shared)
}

/// Drain with a call deferred, connect, and call. Expect a refusal, the reply of the first call, no execution of the second, and
/// the end of its connection.
#[test]
fn drain_with_a_call_deferred_expect_its_reply_and_no_other() {
    for (what, server) in [("served", Server::start()), ("served once", serving_once())] {
        let mut scene = Scene::new(server, 1);
        let draining = drain(&scene.server.engine, LIMIT);
        scene.wait_for_the_beginning();
        let (config, address) = (valid(client_config()), &scene.server.address);
        assert!(blocking::Client::connect_with(config, address, PROGRAM, VERSION).is_err());
        let calls = scene.calls();
        scene.wait_for_a_call_to_be_left();
        assert!(!draining.is_finished(), "{what}: a call is deferred");
        scene.server.shared.answer_all();
        let mut replies = scene.caller.replies(2);
        let left = replies.pop();
        assert!(matches!(left, Some((LEFT, Err(CallError::Disconnected(DownCause::Remote))))));
        assert!(matches!(&replies[..], [(0, Ok(words))] if words == &[0]), "{what}: {replies:?}");
        assert_eq!(draining.join().unwrap(), 0, "{what}");
        assert_eq!(scene.calls(), calls, "{what}");
        assert!(scene.server.engine.is_shut_down());
    }
}

/// Also where the core sleeps: for as long as it may, unless it is woken.
#[test]
fn drain_an_idle_engine_expect_zero_at_once() {
    let asleep = small_with(|raw| {
        raw.poll.mode = IdlePolicy::Sleep;
        raw.poll.park_us = 1_000_000;
    });
    for raw in [small(), asleep] {
        let scene = Scene::new(Server::with(raw), 0);
        let began = Instant::now();
        assert_eq!(scene.server.engine.drain(2 * LIMIT), 0);
        assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
        assert_eq!(scene.server.engine.drain(2 * LIMIT), 0, "again");
    }
    let unstarted = Engine::new(valid(small())).unwrap();
    assert_eq!(unstarted.drain(2 * LIMIT), 0);
    let ended = Engine::new(valid(small())).unwrap();
    drop(ended.core(0).unwrap());
    let began = Instant::now();
    assert_eq!(ended.drain(2 * LIMIT), 0);
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// As one that is in a handler, or whose thread does not run.
#[test]
fn drain_a_core_that_does_not_move_expect_it_counted() {
    let (engine, core) = with_core(small());
    assert_eq!(engine.drain(Duration::from_millis(10)), 1);
    drop(core);
    assert_eq!(engine.drain(LIMIT), 1, "what is lost stays lost");
}

/// Resources left by the reply are reported with a later call.
#[test]
fn drain_for_too_short_a_time_expect_the_count_of_what_is_left() {
    let mut scene = Scene::new(Server::start(), 3);
    let draining = drain(&scene.server.engine, 2 * LIMIT);
    scene.wait_for_the_beginning();
    let (number, deferred) = scene.server.shared.pop().unwrap();
    deferred.reply(|results| results.u32(number));
    assert!(matches!(scene.caller.reply(), Ok(words) if words == [0]));
    scene.wait_for_a_call_to_be_left();
    let began = Instant::now();
    scene.server.engine.shutdown();
    assert_eq!(draining.join().unwrap(), 2);
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    let replies = scene.caller.replies(3);
    let lost = |reply: &(u64, Result<_, _>)| matches!(reply.1, Err(CallError::Disconnected(_)));
    assert!(replies.iter().all(lost), "{replies:?}");
    scene.server.shared.answer_all();
}

/// The one that has less time ends the engine for both.
#[test]
fn drain_while_draining_expect_the_shorter_time_for_both() {
    let mut scene = Scene::new(Server::start(), 2);
    let began = Instant::now();
    let draining = drain(&scene.server.engine, 2 * LIMIT);
    scene.wait_for_the_beginning();
    assert_eq!(scene.server.engine.drain(Duration::from_millis(10)), 2);
    assert_eq!(draining.join().unwrap(), 2);
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// The client does nothing meanwhile: replies that have left wait for it, and so does the news of
/// the end.
#[test]
fn drain_with_many_calls_deferred_expect_all_replies_before_the_end() {
    let mut scene = Scene::new(Server::start(), 64);
    let draining = drain(&scene.server.engine, LIMIT);
    scene.server.shared.answer_all();
    assert_eq!(draining.join().unwrap(), 0);
    assert!(scene.caller.replies(64).iter().all(|(_, reply)| reply.is_ok()));
    assert_eq!(scene.caller.down(), (DownCause::Remote, 0));
}

const LONG_BYTES: usize = 700_000;

/// A server with deferred calls that want long replies, by their Reply chunks or left to be fetched.
fn wanting_long_replies(profile: Profile, by_read: bool, calls: u64) -> (Server, Caller<Vec<u8>>) {
    let rules = |raw: &mut RawConfig| raw.rpc.protocol = profile;
    let server = Server::with(small_with(rules));
    let mut caller = Caller::connect_with(small_with(rules), &server.address, one_opaque);
    for token in 0..calls {
        let mut spec = CallSpec::short();
        if !by_read {
            spec = spec.reply_bytes_max(LONG_BYTES + 100);
        }
        caller.client.call(LATER, Token(token), &mut spec, |args| args.u32(1)).unwrap();
    }
    let waiting = || server.shared.waiting() as u64 == calls;
    run_core(&mut caller.core, "the calls", waiting);
    (server, caller)
}

fn answer_long(server: &Server, by_read: bool) {
    while let Some((_, deferred)) = server.shared.pop() {
        let data = if by_read { ReplyData::new().allow_read_chunks() } else { ReplyData::new() };
        deferred.reply_with(data, |results| results.opaque(&pattern(5, LONG_BYTES)));
    }
}

#[test]
fn drain_with_a_long_reply_to_send_expect_it_to_arrive() {
    for by_read in [false, true] {
        let profile = if by_read { Profile::Rfc5666 } else { Profile::default() };
        let (server, mut caller) = wanting_long_replies(profile, by_read, 1);
        let draining = drain(&server.engine, LIMIT);
        answer_long(&server, by_read);
        assert!(is_pattern(5, &caller.reply().unwrap()));
        run_core(&mut caller.core, "the end", || draining.is_finished());
        assert_eq!(draining.join().unwrap(), 0);
    }
}

/// RFC 5666 section 4.2: replies are there for the client until its RDMA_DONE. Another client sees
/// that the server has begun, and with that reported them.
#[test]
fn drain_with_replies_that_are_not_fetched_expect_them_counted() {
    let (server, _caller) = wanting_long_replies(Profile::Rfc5666, true, 2);
    answer_long(&server, true);
    server.wait_for("the replies", |counted| counted.replies_exported == 2);
    let mut other = Caller::connect(&server.address, one_opaque);
    let draining = drain(&server.engine, 2 * LIMIT);
    other.down();
    server.engine.shutdown();
    assert_eq!(draining.join().unwrap(), 2);
}

/// A server that is the client of another one, and may need it for the calls it has begun.
#[test]
fn a_connection_that_the_engine_asked_for_stays_until_the_end() {
    let (behind, engine) = (Server::start(), Engine::new(valid(client_config())).unwrap());
    let shared = serve(&engine);
    let address = listening(&engine);
    let mut core = engine.core(0).unwrap();
    // Its own client will do.
    let (client, _) = open(&mut core, &address, one_opaque).unwrap();
    client.call(LATER, Token(1), &mut CallSpec::short(), |args| args.u32(9)).unwrap();
    run_core(&mut core, "the call", || shared.waiting() == 1);
    let (_idle, idle_heard) = open(&mut core, &address, one_opaque).unwrap();
    let (asking, heard) = open(&mut core, &behind.address, one_opaque).unwrap();
    let draining = drain(&engine, LIMIT);
    run_core(&mut core, "the beginning", || is_down(&idle_heard));
    asking.call(ECHO, Token(1), &mut CallSpec::short(), |args| args.opaque(b"needed")).unwrap();
    run_core(&mut core, "the reply of the server behind", || !heard.borrow().replies.is_empty());
    assert!(matches!(&heard.borrow().replies[..], [(1, Ok(bytes))] if bytes == b"needed"));
    shared.pop().unwrap().1.reply(|results| results.opaque(b"done"));
    run_core(&mut core, "the end", || draining.is_finished() && is_down(&heard));
    assert_eq!(draining.join().unwrap(), 0);
}

/// The same on the simulated fabric, where messages take their time.
#[test]
fn drain_over_a_network_expect_the_reply_before_the_end() {
    let world = World::new(Network::default());
    let node = || Engine::simulated(simulated(), |device| world.connector(device)).unwrap();
    let (engine, asking) = (node(), node());
    let shared = serve(&engine);
    engine.listen("server").unwrap();
    let (mut server, mut caller) = (engine.core(0).unwrap(), asking.core(0).unwrap());
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = crate::common::caller::recorder(&heard, all_words);
    let client = caller.connect("server", PROGRAM, VERSION, |_| made).unwrap();
    let mut turn_until = |what: &str, done: &dyn Fn() -> bool| {
        wait_until(what, || {
            server.poll_once();
            caller.poll_once();
            done()
        });
    };
    turn_until("the connection", &|| client.is_up());
    client.call(LATER, Token(1), &mut CallSpec::short(), |args| args.u32(9)).unwrap();
    turn_until("the call", &|| shared.waiting() == 1);
    let draining = drain(&engine, LIMIT);
    turn_until("the refusal of connections", &|| engine.directory().addresses().is_empty());
    let (number, deferred) = shared.pop().unwrap();
    deferred.reply(|results| results.u32(number));
    turn_until("the end", &|| draining.is_finished() && is_down(&heard));
    assert_eq!(draining.join().unwrap(), 0);
    assert!(matches!(&heard.borrow().replies[..], [(1, Ok(words))] if words == &[9]));
}
