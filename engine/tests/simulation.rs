//! Whole engines on the simulated fabric, seed by seed. `cargo run --release -p spinrpc --example sim`
//! plays more of them, and replays one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

#[path = "../examples/sim/harness/mod.rs"]
mod harness;

use harness::oracle::Seen;
use harness::run_seed;
use spinrpc::config::{CoreList, Host, NumaPolicy, RawConfig, Want};
use spinrpc::fabric::sim::{Device, Network, SideId, World};
use spinrpc::{
    Bulk, Call, CallError, CallSpec, Client, Config, Core, Engine, Procedure, Program, Reply,
    ReplyData, ReplyHandler, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Seeds that each run of the tests plays; thousands more are played before a change goes in.
const SEEDS: u64 = 400;

/// The canary is to be found, so that nothing here can pass with it; see the example for its test.
#[cfg(not(feature = "canary"))]
#[test]
fn no_seed_breaks_a_rule() {
    let (mut seen, mut succeeded) = (Seen::default(), 0);
    for seed in 0..SEEDS {
        let outcome = run_seed(seed, false);
        assert!(
            outcome.failures.is_empty(),
            "{:#?}\ncargo run --release -p spinrpc --example sim -- --seed {seed} --trace",
            outcome.failures
        );
        seen.add(&outcome.seen);
        succeeded += outcome.succeeded;
    }
    let counted = format!("{seen:?}, {succeeded} calls well ended, in {SEEDS} seeds");
    assert!(seen.calls > 20 * SEEDS && succeeded > 10 * SEEDS, "hardly anything: {counted}");
    assert!(seen.resent > SEEDS / 20 && seen.replayed > 0, "not all there is: {counted}");
    assert!(seen.padded > SEEDS && seen.configured > SEEDS / 20, "not all there is: {counted}");
    assert!(seen.to_fetch > SEEDS / 4 && seen.dones > SEEDS / 4, "not all there is: {counted}");
    assert!(seen.in_version_two > SEEDS, "not all there is: {counted}");
    assert!(seen.reversed > SEEDS, "not all there is: {counted}");
    assert!(seen.timed > SEEDS && seen.late > SEEDS / 20, "not all there is: {counted}");
    assert!(seen.cuts.iter().all(|(_, count)| count > 0), "not all there is: {counted}");
}

/// Seeds beyond those that once broke a rule: calls that ended, or a client that was given up, in the
/// turn in which the next connection came; a link that came up while others were looked at; calls
/// whose time did not count while they waited for room; and a server that was taken for an old one.
#[cfg(not(feature = "canary"))]
#[test]
fn seeds_that_broke_a_rule_break_none() {
    for seed in [837, 892, 1099, 1333, 2482, 9583, 32724, 37019, 38170, 39784] {
        let failures = run_seed(seed, false).failures;
        assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
    }
}

#[test]
fn the_same_seed_goes_the_same_way() {
    for seed in 0..40 {
        let (first, second) = (run_seed(seed, false), run_seed(seed, false));
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.virtual_ns, second.virtual_ns, "seed {seed}");
    }
}

#[test]
fn different_seeds_go_different_ways() {
    let mut digests: Vec<u64> = (0..40).map(|seed| run_seed(seed, false).digest).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 40);
}

const PROGRAM: Program = Program(0x2000_0052);

fn config(credits: u64) -> Config {
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Cpus(vec![0]);
    raw.mem.arena_mib = 2;
    raw.mem.hugepages = Want::Off;
    raw.mem.lock = Want::Off;
    raw.mem.prefault = false;
    raw.mem.numa = NumaPolicy::Off;
    raw.rpc.credits = credits;
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

#[derive(Clone, Default)]
struct Count {
    well: Rc<Cell<u32>>,
    badly: Rc<Cell<u32>>,
}

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let counter = if reply.is_ok() { &self.well } else { &self.badly };
        counter.set(counter.get() + 1);
    }
}

/// Lets both ends take turns, and time go on, for so long.
fn run_for(world: &World, ns: u64, cores: &mut [Core]) {
    let end = world.now_ns() + ns;
    while world.now_ns() < end {
        cores.iter_mut().for_each(|core| {
            core.poll_once();
        });
    }
}

/// Makes a client and calls for as long as it takes, up to 5 ms; says how many ended well and badly.
fn call_many(network: Network, calls: u32) -> (u32, u32) {
    let world = World::new(network);
    let engine = || Engine::simulated(config(2), |device| world.connector(device)).unwrap();
    let (server, caller) = (engine(), engine());
    server.serve(PROGRAM, Version(1), |_| |call: Call<'_>| call.reply(|results| results.u32(7)));
    server.listen("server").unwrap();
    let mut cores = [server.core(0).unwrap(), caller.core(0).unwrap()];
    let count = Count::default();
    let client: Client =
        cores[1].connect("server", PROGRAM, Version(1), |_| count.clone()).unwrap();
    let mut started = 0;
    while count.well.get() + count.badly.get() < calls && world.now_ns() < 5_000_000 {
        let start = || client.call(Procedure(1), Token(1), &mut CallSpec::new(), |_| {});
        while started < calls && start().is_ok() {
            started += 1;
        }
        run_for(&world, 300, &mut cores);
    }
    (count.well.get(), count.badly.get())
}

/// A device says that a message has left long after its receiver has answered it (buffers of Sends
/// come back with completions, RFC 5666 section 3.3 grants credits without them). Expect every call
/// to be answered, though late.
#[test]
fn sends_that_complete_late_cost_nobody_the_connection() {
    let slow = Network { poll_ns: 50, completion_ns: (20_000, 20_000), ..Network::default() };
    assert_eq!(call_many(slow, 100), (100, 0));
}

/// A client that finds no answer to its first question asks on another connection. Shut the engine
/// down meanwhile, expect that connection refused: nobody would ever close it (seed 386).
#[test]
fn a_connection_that_comes_after_the_shutdown_is_refused() {
    let world = World::new(Network::default());
    let engine = || Engine::simulated(config(2), |device| world.connector(device)).unwrap();
    let (server, caller) = (engine(), engine());
    server.serve(PROGRAM, Version(1), |_| |call: Call<'_>| call.reply(|results| results.u32(7)));
    server.listen("server").unwrap();
    let mut cores = [server.core(0).unwrap(), caller.core(0).unwrap()];
    caller.shutdown();
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| Count::default()).unwrap();
    run_for(&world, 10_000, &mut cores);
    assert!(!client.is_up());
    assert!(world.holdings().iter().all(|end| end.is_down), "{:?}", world.holdings());
}

const SLOW_BYTES: usize = 6000;

/// Looks, when a reply comes, how many keys of the client are alive.
#[derive(Clone)]
struct KeysAlive {
    world: World,
    seen: Rc<RefCell<Vec<usize>>>,
}

impl ReplyHandler for KeysAlive {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let mut reply = reply.unwrap();
        assert_eq!(reply.take_result().unwrap().bytes(), [7; SLOW_BYTES]);
        let client = self.world.holdings().into_iter().find(|end| end.side.is_connector());
        self.seen.borrow_mut().push(client.unwrap().keys);
    }
}

/// A client with a device that takes 50 us to kill a key, and what it sees. `meanwhile` is called
/// every 300 ns.
fn call_by_slow_keys(calls: usize, mut meanwhile: impl FnMut(&World)) -> Vec<usize> {
    let world = World::new(Network::default());
    let server = Engine::simulated(config(4), |device| world.connector(device)).unwrap();
    let slow = |device: Device| Device { revoke_ns: 50_000, remote_invalidate: false, ..device };
    let caller = Engine::simulated(config(4), |device| world.connector(slow(device))).unwrap();
    server.serve(PROGRAM, Version(1), |_| {
        |call: Call<'_>| {
            if call.procedure() == Procedure(0) {
                return call.reply(|_| {});
            }
            let data = ReplyData::new().bulk(Bulk::from_vec(vec![7; SLOW_BYTES]));
            call.reply_with(data, |results| results.bulk());
        }
    });
    server.listen("server").unwrap();
    let mut cores = [server.core(0).unwrap(), caller.core(0).unwrap()];
    let keys = KeysAlive { world: world.clone(), seen: Rc::default() };
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| keys.clone()).unwrap();
    let mut started = 0;
    while keys.seen.borrow().len() < calls && world.now_ns() < 5_000_000 {
        if let Some(room) = client.bulk(SLOW_BYTES).filter(|_| started < calls) {
            let mut spec = CallSpec::new().result_into(room);
            started += usize::from(client.call(Procedure(1), Token(1), &mut spec, |_| {}).is_ok());
        }
        run_for(&world, 300, &mut cores);
        meanwhile(&world);
    }
    keys.seen.take()
}

/// RFC 8166 section 8.1: the requester invalidates the memory of a call before its application
/// looks at it. Let a device take its time for that: expect each reply when the keys are dead, and
/// several calls under way all the same.
#[test]
fn a_reply_is_delivered_when_the_keys_of_its_call_are_dead() {
    assert_eq!(call_by_slow_keys(1, |_| {}), [0]);
    let keys = call_by_slow_keys(40, |_| {});
    assert!(keys.len() == 40 && keys.iter().any(|alive| *alive > 0), "{keys:?}");
}

/// The connection goes while the reply waits for its keys, which go with it. Expect the reply.
#[test]
fn a_reply_that_waits_for_its_keys_outlives_the_connection() {
    let replied =
        |world: &World| world.holdings().iter().any(|end| end.keys > 0 && end.flying == 0);
    let mut killed = false;
    let keys = call_by_slow_keys(1, |world| {
        if world.now_ns() > 5_000 && replied(world) && !std::mem::replace(&mut killed, true) {
            world.kill(SideId(1));
        }
    });
    assert!(killed);
    assert_eq!(keys, [0]);
}
