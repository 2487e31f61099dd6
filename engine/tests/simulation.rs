//! Whole engines on the simulated fabric, seed by seed. `cargo run --release -p spinrpc --example sim`
//! plays more of them, and replays one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

#[path = "../examples/sim/harness/mod.rs"]
mod harness;

use harness::progress::Progress;
use harness::run_seed;
use spinrpc::config::{ConfigRole, CoreList, Host, Protection, Versions, Want};
use spinrpc::fabric::sim::{Device, EarlyCompletion, Network, SideId, World};
use spinrpc::*;
use spinrpc_proto::dialect::Profile;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Seeds that each run of the tests plays; thousands more are played before a change goes in.
const SEEDS: u64 = 400;

/// Look every 20 ms for ten minutes, as the example does.
#[test]
fn progress_of_a_long_run_is_a_line_per_minute_in_a_file() {
    let lines = |is_terminal| {
        let mut progress = Progress::new(is_terminal);
        let looks = (1..=30_000).map(|look| Duration::from_millis(20 * look));
        looks.filter(|elapsed| progress.is_due(*elapsed)).count()
    };
    assert_eq!((lines(true), lines(false)), (300, 10));
}

#[test]
fn no_seed_breaks_a_rule() {
    let (mut seen, mut succeeded) = (harness::oracle::Seen::default(), 0);
    for seed in 0..SEEDS {
        let outcome = run_seed(seed, false);
        assert!(
            outcome.failures.is_empty(),
            "{:#?}\ncargo run --release -p spinrpc{} --example sim -- --seed {seed} --trace",
            outcome.failures,
            if cfg!(feature = "gss-test") { " --features gss-test" } else { "" }
        );
        seen.add(&outcome.seen);
        succeeded += outcome.succeeded;
    }
    let counted = format!("{seen:?}, {succeeded} calls well ended, in {SEEDS} seeds");
    assert!(seen.calls > 20 * SEEDS && succeeded > 10 * SEEDS, "hardly anything: {counted}");
    assert!(seen.resent > SEEDS / 20 && seen.replayed > 0, "not all there is: {counted}");
    assert!(seen.returned > 10 * SEEDS && seen.known > 10 * SEEDS, "not all there is: {counted}");
    assert!(seen.padded > SEEDS && seen.configured > SEEDS / 20, "not all there is: {counted}");
    assert!(seen.to_fetch > SEEDS / 4 && seen.dones > SEEDS / 4, "not all there is: {counted}");
    assert!(seen.in_version_two > SEEDS, "not all there is: {counted}");
    assert!(seen.reversed > SEEDS, "not all there is: {counted}");
    assert!(seen.restarts > SEEDS / 40, "not all there is: {counted}");
    assert!(seen.joined > SEEDS / 8, "not all there is: {counted}");
    assert!(seen.cuts.iter().all(|(_, count)| count > 0), "not all there is: {counted}");
}

/// Seeds beyond those that once broke a rule: calls that ended, or a client that was given up, in
/// the turn in which the next connection came; a link that came up while others were looked at;
/// calls whose time did not count while they waited for room; and a server that was taken for an
/// old one. Beyond five million: a call that was executed again, because a NULL call by the next
/// connection had its slot; one that waited for memory which its caller held, forever; a client
/// that was closed while it was to start over; one that offered version one to a server that had
/// refused it; and two of the harness, which lost a wake, and took an RDMA_DONE by draft 00 for
/// more than was granted. Then servers that are flooded, and hear of their end late. Then two calls
/// whose results, with their roundup, were more than their client takes back, and a client of a
/// server that was shut down, which the harness took for open. Then replies to be fetched, for
/// which the calls that waited held all memory. Then: the end of a connection whose repeated call could not wait
/// for the first, which was told as a mistake of this side. Then a call repeated on two connections, of which one waited for
/// the reply. Then a place of a client with several connections, which made another one before the failed one had gone, of
/// which it knew nothing.
#[test]
fn seeds_that_broke_a_rule_break_none() {
    let seeds = "\
        837 892 1099 1333 2482 9583 32724 37019 38170 39784 5010911 5016305 5059235 5157412
        5158811 5180106 5184823 5327766 132424 171274 100030002 100065358 100181170 100268690
        201251949 201267519 201362909 201393148 1000770524 3609949505 1000946301 2101467024
        3001921794 967130183 3091243620 1411 3350 2162452332";
    for seed in seeds.split_whitespace().map(|seed| seed.parse().unwrap()) {
        let failures = run_seed(seed, false).failures;
        assert!(failures.is_empty(), "seed {seed}: {failures:#?}");
    }
}

#[test]
#[cfg_attr(feature = "gss-test", ignore = "bytes under RPCSEC_GSS are random")]
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
    config_with(credits, |_| {})
}

fn config_with(credits: u64, change: impl FnOnce(&mut RawConfig)) -> Config {
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Cpus(vec![0]);
    raw.mem.arena_mib = 2;
    raw.mem.hugepages = Want::Off;
    raw.mem.lock = Want::Off;
    raw.fixed.is_near_cpu = false;
    raw.rpc.credits = credits;
    change(&mut raw);
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

fn engine(world: &World, config: Config) -> Engine {
    Engine::simulated(config, |device| world.connector(device)).unwrap()
}

/// A server and an engine for its clients, with their cores.
fn meet(
    server: Engine,
    caller: Engine,
    service: impl FnMut(Call<'_>) + Clone + Send + Sync + 'static,
) -> ([Engine; 2], [Core; 2]) {
    server.serve(PROGRAM, Version(1), move |_| service.clone()).unwrap();
    server.listen("server").unwrap();
    let cores = [server.core(0).unwrap(), caller.core(0).unwrap()];
    ([server, caller], cores)
}

fn give(call: Call<'_>, content: u8, bytes: usize) {
    let data = ReplyData::new().bulk(Bulk::from_vec(vec![content; bytes]));
    call.reply_with(data, |results| results.bulk());
}

/// Data of so many bytes, except from procedure 0.
fn sevens<const BYTES: usize>(call: Call<'_>) {
    match call.procedure() {
        Procedure(0) => call.reply(|_| {}),
        _ => give(call, 7, BYTES),
    }
}

fn seven(call: Call<'_>) {
    call.reply(|results| results.u32(7));
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
    let [server, caller] = [(); 2].map(|()| engine(&world, config(2)));
    let (_engines, mut cores) = meet(server, caller, seven);
    let count = Count::default();
    let client: Client =
        cores[1].connect("server", PROGRAM, Version(1), |_| count.clone()).unwrap();
    let mut started = 0;
    while count.well.get() + count.badly.get() < calls && world.now_ns() < 5_000_000 {
        let start = || client.call(Procedure(1), Token(1), &mut CallSpec::short(), |_| {});
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
/// down meanwhile, expect that connection refused: it would never be closed (seed 386).
#[test]
fn a_connection_that_comes_after_the_shutdown_is_refused() {
    let world = World::new(Network::default());
    let [server, caller] = [(); 2].map(|()| engine(&world, config(2)));
    let ([_server, caller], mut cores) = meet(server, caller, seven);
    caller.shutdown();
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| Count::default()).unwrap();
    run_for(&world, 10_000, &mut cores);
    assert!(!client.is_up());
    assert!(world.holdings().iter().all(|end| end.is_down), "{:?}", world.holdings());
}

#[derive(Clone, Default)]
struct Numbered {
    right: Rc<Cell<u32>>,
    wrong: Rc<Cell<u32>>,
}

impl ReplyHandler for Numbered {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let is_right = reply.unwrap().take_result().unwrap().bytes() == [token.0 as u8; SLOW_BYTES];
        let counter = if is_right { &self.right } else { &self.wrong };
        counter.set(counter.get() + 1);
    }
}

/// Replies whose data are placed by a device that completes a request before it has read its memory, as
/// siw does; returns how many are right, how many are wrong, and the rules that were broken.
fn replies_by_early_device(signal_from_bytes: u32) -> (u32, u32, Vec<&'static str>) {
    let early = EarlyCompletion { late_from_bytes: 4096, signal_every: 16, signal_from_bytes };
    let device = |device: Device| Device { early: Some(early), ..device };
    let network = Network { delay_ns: (1_000, 20_000), ..Network::default() };
    let world = World::new(network);
    let server = Engine::simulated(config(4), |it| world.connector(device(it))).unwrap();
    let numbered = |mut call: Call<'_>| {
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        let number = call.args().u32().unwrap();
        give(call, number as u8, SLOW_BYTES);
    };
    let (_engines, mut cores) = meet(server, engine(&world, config(4)), numbered);
    let replies = Numbered::default();
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| replies.clone()).unwrap();
    let mut started = 0;
    while replies.right.get() + replies.wrong.get() < 100 && world.now_ns() < 20_000_000 {
        if let Some(room) = client.bulk(SLOW_BYTES).filter(|_| started < 100) {
            let mut spec = CallSpec::short().result_into(room);
            let token = Token(u64::from(started));
            let called = client.call(Procedure(1), token, &mut spec, |args| args.u32(started));
            started += u32::from(called.is_ok());
        }
        run_for(&world, 300, &mut cores);
    }
    let broken = world.take_observed(&mut Vec::new()).into_iter().map(|violation| violation.what);
    (replies.right.get(), replies.wrong.get(), broken.collect())
}

/// A completion of such a device says nothing of unsignalled requests before it. Expect right data where
/// those are signalled that it reads late, and that the simulation notices where they are not.
#[test]
fn a_device_that_completes_early_places_the_right_data() {
    assert_eq!(replies_by_early_device(4096), (100, 0, vec![]));
    let (_, wrong, broken) = replies_by_early_device(u32::MAX);
    assert!(wrong > 0, "nothing was wrong without the rule");
    assert!(broken.contains(&"memory was released before the device had read it"), "{broken:?}");
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

/// A client with a device that takes 50 us to kill a key, and its observations. `meanwhile` is
/// called every 300 ns.
fn call_by_slow_keys(calls: usize, mut meanwhile: impl FnMut(&World)) -> Vec<usize> {
    let world = World::new(Network::default());
    let slow = |device: Device| Device { revoke_ns: 50_000, remote_invalidate: false, ..device };
    let caller = Engine::simulated(config(4), |device| world.connector(slow(device))).unwrap();
    let server = engine(&world, config(4));
    let (_engines, mut cores) = meet(server, caller, sevens::<SLOW_BYTES>);
    let keys = KeysAlive { world: world.clone(), seen: Rc::default() };
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| keys.clone()).unwrap();
    let mut started = 0;
    while keys.seen.borrow().len() < calls && world.now_ns() < 5_000_000 {
        if let Some(room) = client.bulk(SLOW_BYTES).filter(|_| started < calls) {
            let mut spec = CallSpec::short().result_into(room);
            started += usize::from(client.call(Procedure(1), Token(1), &mut spec, |_| {}).is_ok());
        }
        run_for(&world, 300, &mut cores);
        meanwhile(&world);
    }
    keys.seen.take()
}

/// RFC 8166 section 8.1: the requester invalidates the memory of a call before its application
/// looks at it. Let a device take its time for that: expect each reply when the keys are dead, and
/// several calls in flight all the same.
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

#[derive(Clone, Default)]
struct Ends(Rc<RefCell<Vec<Result<(), CallError>>>>);

impl ReplyHandler for Ends {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.borrow_mut().push(reply.map(drop));
    }
}

/// The server's application holds all blocks that the arguments would fit into: perhaps for its
/// calls to a client that waits for this one (seed 5045056). Expect an answer all the same, and the
/// next call served when the memory is back.
#[test]
fn a_call_that_waits_for_memory_too_long_is_answered_system_err_and_the_next_one_served() {
    const ARGUMENT_BYTES: usize = 100_000;
    let world = World::new(Network::default());
    let patient = config_with(4, |raw| raw.fixed.memory_wait_ms = 2);
    let (server, caller) = (engine(&world, patient), engine(&world, config(4)));
    let (_engines, mut cores) = meet(server, caller, seven);
    let ends = Ends::default();
    let client = cores[1].connect("server", PROGRAM, Version(1), |_| ends.clone()).unwrap();
    run_for(&world, 100_000, &mut cores);
    let held: Vec<Bulk> = std::iter::from_fn(|| cores[0].bulk(ARGUMENT_BYTES)).collect();
    assert!(!held.is_empty());
    let call = || {
        let mut spec = CallSpec::short().argument(client.bulk(ARGUMENT_BYTES).unwrap());
        client.call(Procedure(1), Token(1), &mut spec, |args| args.bulk()).unwrap();
    };
    call();
    run_for(&world, 1_900_000, &mut cores);
    assert!(ends.0.borrow().is_empty(), "it waits");
    run_for(&world, 200_000, &mut cores);
    let refused = |end: &Result<(), CallError>| {
        matches!(end, Err(CallError::Accepted(AcceptStatus::SystemErr)))
    };
    let first = ends.0.take();
    assert!(first.len() == 1 && first.iter().all(refused), "{first:?}");
    assert_eq!(client.in_flight(), 0);
    drop(held);
    call();
    run_for(&world, 100_000, &mut cores);
    assert!(matches!(ends.0.borrow()[..], [Ok(())]), "{:?}", ends.0.borrow());
}

/// A client whose replies come by Read list, while its application holds every block they would fit into.
struct WithoutMemory {
    world: World,
    engines: [Engine; 2],
    cores: [Core; 2],
    client: Client,
    ends: Ends,
    held: Vec<Bulk>,
}

impl WithoutMemory {
    const RESULT_BYTES: usize = 100_000;

    fn new() -> Self {
        let world = World::new(Network::default());
        let rules = |raw: &mut RawConfig| {
            raw.rpc.protocol = Profile::Draft03;
            raw.fixed.memory_wait_ms = 2;
        };
        let [server, caller] = [(); 2].map(|()| engine(&world, config_with(4, rules)));
        let (engines, mut cores) = meet(server, caller, sevens::<{ Self::RESULT_BYTES }>);
        let ends = Ends::default();
        let client = cores[1].connect("server", PROGRAM, Version(1), |_| ends.clone()).unwrap();
        run_for(&world, 100_000, &mut cores);
        let held: Vec<Bulk> = std::iter::from_fn(|| cores[1].bulk(Self::RESULT_BYTES)).collect();
        assert!(!held.is_empty());
        Self { world, engines, cores, client, ends, held }
    }

    fn call(&self) {
        let mut spec = CallSpec::short().no_deadline();
        self.client.call(Procedure(1), Token(1), &mut spec, |_| {}).unwrap();
    }

    fn run_for(&mut self, ns: u64) -> Vec<Result<(), CallError>> {
        run_for(&self.world, ns, &mut self.cores);
        self.ends.0.take()
    }

    /// RDMA_DONEs that the client has sent, and the server received.
    fn dones(&mut self) -> (u64, u64) {
        // Counters are published every 1024 idle turns.
        self.run_for(1_000_000);
        (
            self.engines[1].stats(0).unwrap().dones_sent,
            self.engines[0].stats(0).unwrap().dones_received,
        )
    }
}

/// All memory may be that of arguments and results of calls that wait for replies, too (seed 2101467024).
/// Expect the call to end, RDMA_DONE sent, and the next reply fetched when the memory is back.
#[test]
fn a_reply_that_waits_for_memory_too_long_fails_its_call_and_the_next_one_is_fetched() {
    let mut short = WithoutMemory::new();
    short.call();
    assert!(short.run_for(1_900_000).is_empty(), "it waits");
    let first = short.run_for(200_000);
    assert!(matches!(first[..], [Err(CallError::NoMemory)]), "{first:?}");
    assert_eq!(short.dones(), (1, 1), "the server has its memory back");
    short.held.clear();
    short.call();
    let second = short.run_for(100_000);
    assert!(matches!(second[..], [Ok(())]), "{second:?}");
}

#[test]
fn a_reply_that_waits_for_memory_is_fetched_when_there_is_some() {
    let mut short = WithoutMemory::new();
    short.call();
    assert!(short.run_for(1_900_000).is_empty(), "it waits");
    short.held.clear();
    let first = short.run_for(50_000);
    assert!(matches!(first[..], [Ok(())]), "{first:?}");
    short.call();
    assert!(matches!(short.run_for(100_000)[..], [Ok(())]));
    assert_eq!(short.dones(), (2, 2));
}

/// The connection goes meanwhile. Expect one end, and no memory lost.
#[test]
fn a_reply_that_waits_for_memory_ends_with_its_connection() {
    let mut short = WithoutMemory::new();
    short.call();
    assert!(short.run_for(1_000_000).is_empty(), "it waits");
    short.world.kill(SideId(1));
    let first = short.run_for(3_000_000);
    assert!(matches!(first[..], [Err(CallError::Disconnected(_))]), "{first:?}");
    let blocks = short.held.len();
    short.held.clear();
    let core = &mut short.cores[1];
    let free = std::iter::from_fn(|| core.bulk(WithoutMemory::RESULT_BYTES));
    assert_eq!(free.collect::<Vec<_>>().len(), blocks);
}

/// The errors with which connections could not be made, in their order.
#[derive(Clone, Default)]
struct Failures(Rc<RefCell<Vec<ConnectError>>>);

impl ReplyHandler for Failures {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::ConnectFailed { error } = event {
            self.0.borrow_mut().push(error.clone());
        }
    }
}

/// A server that has no turn, a client that asks it by the Connection Configuration Protocol, and
/// the client closed in the turn in which its patience ends. Expect no other connection: it would
/// stay forever (seed 5157412).
#[test]
fn a_client_that_is_closed_while_it_asks_does_not_start_over() {
    let world = World::new(Network::default());
    let server = engine(&world, config(2));
    let asking = config_with(2, |raw| {
        (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Ask, Some(Protection::Sys));
        raw.rpc.timeout_ms = 1;
        // Its receives come back one by one: the end of the connection is heard turns later.
        raw.poll.budget = 1;
    });
    let caller = engine(&world, asking);
    server.listen("server").unwrap();
    let failures = Failures::default();
    let mut cores = [caller.core(0).unwrap(), server.core(0).unwrap()];
    let client = cores[0].connect("server", PROGRAM, Version(1), |_| failures.clone()).unwrap();
    run_for(&world, 10_000, &mut cores[..1]);
    assert!(failures.0.borrow().is_empty(), "it asks");
    world.advance_to(world.now_ns() + 2_000_000);
    client.close();
    run_for(&world, 100_000, &mut cores);
    let holdings = world.holdings();
    assert!(holdings.len() == 2 && holdings.iter().all(|end| end.is_down), "{holdings:?}");
    assert_eq!(failures.0.borrow().len(), 1);
}

/// A server that speaks version two alone, and connections that are lost when they offer it: the first
/// one makes the client try version one, which the server refuses. Expect the second loss told as
/// one, and no version one again, to end with "none of those here" (seed 5158811).
#[test]
fn a_lost_offer_to_a_server_that_has_refused_version_one_is_a_lost_connection() {
    let world = World::new(Network::default());
    let two = config_with(2, |raw| raw.rpc.version = Versions::Two);
    let both = config_with(2, |raw| raw.rpc.version = Versions::Both);
    let (server, caller) = (engine(&world, two), engine(&world, both));
    let (_engines, mut cores) = meet(server, caller, seven);
    cores.reverse();
    let failures = Failures::default();
    let _client = cores[0].connect("server", PROGRAM, Version(1), |_| failures.clone()).unwrap();
    let connections = |world: &World| world.holdings().len() / 2;
    run_for(&world, 1_000, &mut cores[..1]);
    assert_eq!(connections(&world), 1, "version two is offered");
    world.kill(SideId(0));
    run_for(&world, 1_000, &mut cores[..1]);
    assert_eq!(connections(&world), 2, "version one is tried");
    while connections(&world) < 3 && world.now_ns() < 1_000_000 {
        run_for(&world, 100, &mut cores);
    }
    run_for(&world, 1_000, &mut cores[..1]);
    assert_eq!(connections(&world), 3, "version two is offered again");
    world.kill(SideId(4));
    run_for(&world, 100_000, &mut cores);
    assert_eq!(connections(&world), 3, "version one is tried again");
    let failures = failures.0.take();
    assert!(matches!(failures[..], [ConnectError::FirstCall(_)]), "{failures:?}");
}
