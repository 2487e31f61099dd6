//! Connections are moved from a core to others: their clients connect again, and no call is lost or executed twice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{SharedHeard, all_words, client_config, recorder, run_core};
use common::program::{ECHO, LATER, Shared};
use common::{LIMIT, PROGRAM, Server, VERSION, serve, small_with, valid, wait_until};
use spinrpc::config::{Config, CoreList, Host, NumaPolicy};
use spinrpc::fabric::sim::{Network, World};
use spinrpc::{
    CallSpec, Client, ConnectOptions, ConnectionEvent, Core, Engine, EngineError, Reconnect,
    Resend, Token,
};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

fn comes_back() -> ConnectOptions {
    let policy = Reconnect::default().first_delay(Duration::from_micros(100));
    ConnectOptions::new().reconnect(policy)
}

fn ups<T>(heard: &SharedHeard<T>) -> usize {
    let is_up = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::Up { .. });
    heard.borrow().events.iter().filter(is_up).count()
}

/// Of the simulated fabric.
fn with_cores(count: usize) -> Config {
    let cpus: Vec<usize> = (0..count).collect();
    let raw = small_with(|raw| {
        raw.cores.list = CoreList::Cpus(cpus.clone());
        raw.mem.numa = NumaPolicy::Off;
    });
    raw.validate_for(&Host { allowed: cpus, ..Host::default() }).unwrap()
}

/// Two cores of a server, which keep no replies, and a client's core, all in turns on the test's thread.
struct Scene {
    engine: Engine,
    shared: Arc<Shared>,
    servers: Vec<Core>,
    caller: Core,
    _asking: Engine,
}

impl Scene {
    fn new() -> Self {
        let network = Network { delay_ns: (2_000, 2_000), ..Network::default() };
        let world = World::new(network);
        let node =
            |cores| Engine::simulated(with_cores(cores), |device| world.connector(device)).unwrap();
        let (engine, asking) = (node(2), node(1));
        let shared = serve(&engine);
        engine.listen("server").unwrap();
        let servers = vec![engine.core(0).unwrap(), engine.core(1).unwrap()];
        let caller = asking.core(0).unwrap();
        Self { engine, shared, servers, caller, _asking: asking }
    }

    fn turn_until(&mut self, what: &str, done: impl Fn() -> bool) {
        wait_until(what, || {
            for server in &mut self.servers {
                server.poll_once();
            }
            self.caller.poll_once();
            done()
        });
    }

    fn connect(&mut self, options: &ConnectOptions) -> (Client, SharedHeard<Vec<u32>>) {
        let heard = SharedHeard::default();
        let made = recorder(&heard, all_words);
        let connected = self.caller.connect_with("server", PROGRAM, VERSION, options, |_| made);
        let client = connected.unwrap();
        let is_up = client.clone();
        self.turn_until("the connection", || is_up.is_up());
        (client, heard)
    }

    /// The core reads that letter in its next turn.
    fn move_from(&mut self, core: usize, count: usize) {
        assert!(self.engine.move_connections(core, count).unwrap());
        self.servers[core].poll_once();
    }

    /// What is on its way has arrived when a call of this client is answered.
    fn echo(&mut self, client: &Client, heard: &SharedHeard<Vec<u32>>, token: u64) {
        client.call(ECHO, Token(token), &mut CallSpec::new(), |args| args.opaque(b"")).unwrap();
        self.turn_until("the echo", || heard.borrow().replies.iter().any(|(of, _)| *of == token));
    }
}

/// Which core has the first connection is the listener's choice: the first one in turn.
#[test]
fn a_call_on_its_way_to_a_connection_that_leaves_is_executed_once_on_the_next() {
    let mut scene = Scene::new();
    let (client, heard) = scene.connect(&comes_back());
    let mut spec = CallSpec::new().resend(Resend::AtMostOnce);
    client.call(LATER, Token(7), &mut spec, |args| args.u32(9)).unwrap();
    // The core says that it has executed no call before it gets this one.
    scene.caller.poll_once();
    scene.move_from(0, 1);
    let shared = Arc::clone(&scene.shared);
    scene.turn_until("the call, on another connection", || {
        shared.waiting() == 1 && ups(&heard) == 2
    });
    shared.pop().unwrap().1.reply(|results| results.u32(9));
    scene.turn_until("the reply", || !heard.borrow().replies.is_empty());
    assert!(matches!(&heard.borrow().replies[..], [(7, Ok(words))] if words == &[9]));
    assert_eq!((shared.waiting(), heard.borrow().replies.len()), (0, 1));
    let engine = scene.engine.clone();
    scene.turn_until("the count", || engine.stats(0).unwrap().connections_moved == 1);
    scene.turn_until("the other core", || engine.stats(1).unwrap().connections_opened == 1);
}

/// The core hears that the connection is down in a later turn than a call that came before.
#[test]
fn calls_of_other_connections_go_on_while_one_leaves() {
    let mut scene = Scene::new();
    let (_leaving, leaving_heard) = scene.connect(&comes_back());
    // To the other core.
    let (_far, _) = scene.connect(&comes_back());
    let (staying, staying_heard) = scene.connect(&ConnectOptions::new());
    for token in 1..=64 {
        staying.call(ECHO, Token(token), &mut CallSpec::new(), |args| args.opaque(b"")).unwrap();
        scene.caller.poll_once();
        if token == 32 {
            scene.move_from(0, 1);
        }
    }
    scene.turn_until("all replies", || staying_heard.borrow().replies.len() == 64);
    assert!(staying_heard.borrow().replies.iter().all(|(_, reply)| reply.is_ok()));
    scene.turn_until("the move", || ups(&leaving_heard) == 2);
    assert_eq!(ups(&staying_heard), 1);
}

/// It has no call in progress at the server between the connection and its first call.
#[test]
fn a_client_that_is_not_up_yet_begins_again() {
    let mut scene = Scene::new();
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let options = comes_back();
    let client = scene.caller.connect_with("server", PROGRAM, VERSION, &options, |_| made).unwrap();
    let opened = |engine: &Engine| engine.stats(0).unwrap().connections_opened;
    let engine = scene.engine.clone();
    scene.turn_until("the connection at the server", || {
        // As a server that is asked all the time: it is up before the client can have called.
        engine.move_connections(0, 1).unwrap();
        opened(&engine) == 1
    });
    scene.turn_until("the client", || client.is_up());
    assert_eq!(ups(&heard), 1);
    assert!(scene.engine.stats(0).unwrap().connections_moved <= 1);
}

/// Letters that pile up would leave no room for replies and connections.
#[test]
fn a_core_that_is_asked_again_and_again_has_one_letter() {
    let mut scene = Scene::new();
    let (client, heard) = scene.connect(&comes_back());
    for _ in 0..100_000 {
        assert!(scene.engine.move_connections(0, usize::MAX).unwrap());
    }
    scene.turn_until("the move", || ups(&heard) == 2 && client.is_up());
}

/// A server that may call its clients moves those that it does not call.
#[test]
fn connections_leave_a_server_that_could_call_in_reverse() {
    let server = Server::with(small_with(|raw| raw.rpc.reverse_calls = 2));
    let mut core = Engine::new(valid(client_config())).unwrap().core(0).unwrap();
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let options = comes_back();
    let client =
        core.connect_wait_with(&server.address, PROGRAM, VERSION, &options, |_| made, LIMIT);
    let client = client.unwrap();
    assert!(server.engine.move_connections(0, 1).unwrap());
    run_core(&mut core, "the move", || ups(&heard) == 2 && client.is_up());
}

/// One whose client does not come back would be lost, and one with a call in progress could not say that it was not executed.
#[test]
fn connections_stay_whose_clients_do_not_come_back_or_wait_for_a_reply() {
    let mut scene = Scene::new();
    // Connections go to both cores in turn: the second one is not asked here.
    let (passing, passing_heard) = scene.connect(&ConnectOptions::new());
    let (_far, _) = scene.connect(&comes_back());
    let (waiting, waiting_heard) = scene.connect(&comes_back());
    waiting.call(LATER, Token(1), &mut CallSpec::new(), |args| args.u32(1)).unwrap();
    let shared = Arc::clone(&scene.shared);
    scene.turn_until("the deferred call", || shared.waiting() == 1);
    scene.move_from(0, 8);
    scene.echo(&passing, &passing_heard, 5);
    scene.echo(&waiting, &waiting_heard, 6);
    assert_eq!([&passing_heard, &waiting_heard].map(ups), [1, 1]);
    shared.pop().unwrap().1.reply(|results| results.u32(1));
    scene.turn_until("the reply", || waiting_heard.borrow().replies.len() == 2);
    scene.move_from(0, 8);
    scene.turn_until("the one that may go", || ups(&waiting_heard) == 2);
    assert!(passing.is_up() && ups(&passing_heard) == 1);
}

#[test]
fn as_many_go_as_are_asked_for_and_others_the_next_time() {
    let mut scene = Scene::new();
    let clients: Vec<_> = (0..6).map(|_| scene.connect(&comes_back())).collect();
    let of_first: Vec<_> = clients.iter().step_by(2).map(|(_, heard)| heard.clone()).collect();
    let gone = || of_first.iter().filter(|heard| ups(heard) == 2).count();
    for count in 1..=3 {
        scene.move_from(0, 1);
        scene.turn_until("the next one", || gone() == count);
    }
    assert!(clients.iter().skip(1).step_by(2).all(|(_, heard)| ups(heard) == 1));
}

/// A client keeps calling while its connection is moved to and fro, by a server whose cores have threads.
#[test]
fn calls_go_on_over_many_moves() {
    const CALLS: u64 = 2_000;
    let server = Server::with(small_with(|raw| {
        raw.cores.list = CoreList::Cpus(vec![0, 1]);
    }));
    let mut core = Engine::new(valid(client_config())).unwrap().core(0).unwrap();
    let heard = SharedHeard::default();
    let made = recorder(&heard, all_words);
    let options = comes_back();
    let client =
        core.connect_wait_with(&server.address, PROGRAM, VERSION, &options, |_| made, LIMIT);
    let client = client.unwrap();
    let moved =
        || (0..2).map(|core| server.engine.stats(core).unwrap().connections_moved).sum::<u64>();
    for token in 0..CALLS {
        if token % 20 == 0 {
            server.engine.move_connections((token / 20 % 2) as usize, 1).unwrap();
        }
        let started = Cell::new(false);
        run_core(&mut core, "room for the call", || {
            let call = || {
                let mut spec = CallSpec::new().resend(Resend::AtMostOnce);
                client.call(ECHO, Token(token), &mut spec, |args| args.opaque(b"")).is_ok()
            };
            started.set(started.get() || call());
            started.get()
        });
        let replied = || heard.borrow().replies.last().is_some_and(|(of, _)| *of == token);
        run_core(&mut core, "the reply", replied);
    }
    assert!(heard.borrow().replies.iter().all(|(_, reply)| reply.is_ok()));
    assert_eq!(heard.borrow().replies.len() as u64, CALLS);
    assert!(moved() > 1 && ups(&heard) > 2, "{} moves", moved());
}

#[test]
fn a_core_that_does_not_run_or_exist_is_not_asked() {
    let engine = Engine::new(valid(client_config())).unwrap();
    assert!(!engine.move_connections(0, 1).unwrap());
    assert!(matches!(engine.move_connections(1, 1), Err(EngineError::ApiMisuse(_))));
}
