//! Grants that follow the use of connections, in the simulation: whole engines in virtual time (RFC 5666 section 3.3).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

#[path = "grants/cheat.rs"]
mod cheat;

use cheat::Cheat;
use spinrpc::config::{CoreList, Host, NumaPolicy, RawConfig, Versions, Want};
use spinrpc::fabric::sim::{Device, Network, Observed, SideId, What, World};
use spinrpc::{
    AuthSys, Call, CallError, CallSpec, Client, Config, Core, Deferred, Engine, Procedure, Program,
    Reply, ReplyHandler, Token, Version,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

const PROGRAM: Program = Program(0x2000_0053);
const ECHO: Procedure = Procedure(1);
/// The server answers it when it is told to.
const KEEP: Procedure = Procedure(2);
const PERIOD_NS: u64 = 1_000_000;

fn config(change: impl FnOnce(&mut RawConfig)) -> Config {
    let mut raw = RawConfig::default();
    raw.cores.list = CoreList::Cpus(vec![0]);
    (raw.mem.arena_mib, raw.shm.arena_mib) = (2, 1);
    (raw.mem.hugepages, raw.mem.lock) = (Want::Off, Want::Off);
    (raw.mem.prefault, raw.mem.numa) = (false, NumaPolicy::Off);
    (raw.rpc.inline_send_bytes, raw.rpc.inline_recv_bytes) = (1024, 1024);
    (raw.rpc.credits, raw.rpc.credits_period_ms) = (16, 1);
    (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (4096, 4096);
    // Calls wait for others in virtual time.
    raw.rpc.timeout_ms = 60_000;
    change(&mut raw);
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

/// Counts answers.
#[derive(Clone, Default)]
struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        if reply.is_ok() {
            self.0.set(self.0.get() + 1);
        }
    }
}

struct Caller {
    client: Client,
    answers: Count,
}

impl Caller {
    /// Starts as many calls as there are credits, at most this number; says how many.
    fn start(&self, procedure: Procedure, most: usize) -> usize {
        let start = || self.client.call(procedure, Token(0), &mut CallSpec::new(), |_| {});
        (0..most).take_while(|_| start().is_ok()).count()
    }

    /// The same for calls with arguments, without a maximum.
    fn start_with(&self, procedure: Procedure, args: &[u8]) -> usize {
        let mut spec = CallSpec::new();
        let start = |_| self.client.call(procedure, Token(0), &mut spec, |to| to.opaque(args));
        (0..usize::MAX).map(start).take_while(Result::is_ok).count()
    }
}

/// Grants and calls of one connection, as they go over the wire.
#[derive(Default)]
struct Flow {
    taken: usize,
    answered: usize,
    edge: usize,
}

thread_local! {
    /// Calls that the server has not answered; both cores are on the thread of the test.
    static KEPT: RefCell<Vec<Deferred>> = const { RefCell::new(Vec::new()) };
}

/// A server, and clients on another core.
struct Sim {
    world: World,
    cores: [Core; 2],
    callers: Vec<Caller>,
    flows: HashMap<usize, Flow>,
    seen: Vec<Observed>,
    /// The end of the server's of a connection whose client keeps to no grant.
    of_cheat: Option<SideId>,
    /// Times that a connection was refused memory for receives.
    refused: usize,
}

impl Sim {
    fn new(network: Network, server: Config, client: Config) -> Self {
        Self::over(Device::default(), network, server, client)
    }

    fn over(like: Device, network: Network, server: Config, client: Config) -> Self {
        let world = World::new(network);
        let recv_regions_max = like.recv_regions_max;
        let node =
            |device| world.connector(Device { conns_max: 4_096, recv_regions_max, ..device });
        let engine = |config| Engine::simulated(config, node).unwrap();
        let (server, client) = (engine(server), engine(client));
        // The service is made on the thread of the core, which is this one.
        server.serve(PROGRAM, Version(1), |_| {
            |call: Call<'_>| match call.procedure() {
                KEEP => KEPT.with_borrow_mut(|kept| kept.extend(call.defer())),
                _ => call.reply(|_| {}),
            }
        });
        server.listen("server").unwrap();
        let cores = [server.core(0).unwrap(), client.core(0).unwrap()];
        let (callers, flows, seen) = (Vec::new(), HashMap::new(), Vec::new());
        Self { world, cores, callers, flows, seen, of_cheat: None, refused: 0 }
    }

    /// Makes connections, as many at a time as the mailbox of a core holds for sure.
    fn connect(&mut self, count: usize) {
        for made in 0..count {
            let answers = Count::default();
            let handler = answers.clone();
            let client = self.cores[1].connect("server", PROGRAM, Version(1), |_| handler).unwrap();
            self.callers.push(Caller { client, answers });
            if made % 50 == 49 {
                self.wait_for_clients();
            }
        }
        self.wait_for_clients();
    }

    fn wait_for_clients(&mut self) {
        for _ in 0..10_000 {
            if self.callers.iter().rev().take(100).all(|caller| caller.client.is_up()) {
                return;
            }
            self.turn();
        }
        let up = self.callers.iter().filter(|caller| caller.client.is_up()).count();
        panic!("{up} of {} clients came up", self.callers.len());
    }

    /// A turn of both cores, after which the rules are checked.
    fn turn(&mut self) {
        for core in &mut self.cores {
            core.poll_once();
        }
        let violations = self.world.take_observed(&mut self.seen);
        assert!(violations.is_empty(), "{}", violations[0]);
        for seen in std::mem::take(&mut self.seen) {
            if !seen.side.is_connector() && Some(seen.side) != self.of_cheat {
                self.check(&seen);
            }
        }
    }

    /// Calls that can come by what was granted never outnumber the receives that are posted.
    fn check(&mut self, seen: &Observed) {
        self.refused += usize::from(matches!(seen.what, What::RegionRefused));
        let flow = self.flows.entry(seen.side.0).or_default();
        match &seen.what {
            What::Received { .. } => flow.taken += 1,
            What::Sent { message, receives, .. } => {
                let word = |at| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
                let granted = word(8) as usize;
                assert!(granted >= 1, "{}: granted no credit", seen.side);
                flow.answered += 1;
                flow.edge = flow.edge.max(flow.answered + granted);
                let to_come = flow.edge - flow.taken;
                assert!(
                    to_come <= *receives,
                    "{}: {to_come} calls, {receives} receives",
                    seen.side
                );
            }
            _ => {}
        }
    }

    /// Calls with all credits until so much time has passed.
    fn saturate(&mut self, which: std::ops::Range<usize>, ns: u64) {
        let end = self.world.now_ns() + ns;
        while self.world.now_ns() < end {
            for caller in &self.callers[which.clone()] {
                caller.start(ECHO, usize::MAX);
            }
            self.turn();
        }
        self.settle();
    }

    /// Waits until all calls are answered.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            if self.callers.iter().all(|caller| caller.client.in_flight() == 0) {
                return;
            }
            self.turn();
        }
        panic!("calls are not answered");
    }

    /// Passes time without calls.
    fn rest(&mut self, ns: u64) {
        let end = self.world.now_ns() + ns;
        while self.world.now_ns() < end {
            self.turn();
        }
    }

    /// Calls that a client can have outstanding now. They are answered.
    fn grant_of(&mut self, caller: usize) -> usize {
        let calls = self.callers[caller].start(ECHO, usize::MAX);
        self.settle();
        calls
    }

    /// A client that keeps to no grant, once the server has it.
    fn cheat(&mut self) -> Cheat {
        let mut cheat = Cheat::connect(&self.world, "server");
        self.of_cheat = Some(cheat.side.peer());
        cheat.call(self, ECHO, 1);
        cheat
    }

    /// Receives that the server has posted, of all connections.
    fn receives(&self) -> usize {
        let of_server = self.world.holdings().into_iter().filter(|it| !it.side.is_connector());
        of_server.map(|it| it.receives).sum()
    }

    fn answer_kept(&mut self) {
        KEPT.take().into_iter().for_each(|deferred| deferred.reply(|_| {}));
        self.settle();
    }
}

/// One that sees everything, with delays.
fn network(seed: u64) -> Network {
    let delay_ns = (500, 3_000);
    Network { seed, poll_ns: 200, delay_ns, observe: true, ..Network::default() }
}

fn pair(change: impl FnOnce(&mut RawConfig)) -> Sim {
    Sim::new(network(1), config(change), config(|_| {}))
}

fn idle_at(credits: u64) -> impl FnOnce(&mut RawConfig) {
    move |raw| raw.rpc.credits_idle = credits
}

#[test]
fn a_busy_connection_is_granted_all_credits_and_an_idle_one_few() {
    let mut sim = pair(idle_at(2));
    sim.connect(1);
    assert_eq!(sim.grant_of(0), 2);
    sim.saturate(0..1, PERIOD_NS / 2);
    assert_eq!(sim.grant_of(0), 16, "within half of a period");
    // A reply tells of the smaller grant, and none comes while nothing is called.
    sim.rest(10 * PERIOD_NS);
    assert_eq!(sim.callers[0].start(ECHO, 1), 1);
    sim.settle();
    assert_eq!(sim.grant_of(0), 2);
}

/// Calls that take long use a grant, too.
#[test]
fn calls_in_progress_raise_the_grant() {
    let mut sim = pair(idle_at(2));
    sim.connect(1);
    for granted in [2, 4, 8, 16] {
        assert_eq!(sim.callers[0].start(KEEP, usize::MAX), granted);
        sim.rest(5 * PERIOD_NS);
        assert_eq!(sim.callers[0].start(KEEP, 1), 0, "no more than granted");
        sim.answer_kept();
    }
}

/// The path of a call to its handler depends on its kind, and so does the one to a look at the grant.
#[test]
fn calls_of_every_kind_raise_the_grant() {
    let credential =
        AuthSys { stamp: 1, machine_name: b"host", uid: 2, gid: 3, groups: Default::default() };
    for (bytes, version, has_credential) in [
        (4, Versions::One, false),
        (4, Versions::Two, false),
        (4, Versions::One, true),
        (600, Versions::One, false),
        // With Read chunks.
        (3_000, Versions::One, false),
        (3_000, Versions::Two, true),
    ] {
        let of = |raw: &mut RawConfig| {
            (raw.rpc.credits_idle, raw.rpc.version) = (2, version);
        };
        // Buffers of long calls are fewer than sixteen.
        let granted = [2, 4, 8];
        for procedure in [KEEP, ECHO] {
            let mut sim = Sim::new(network(1), config(of), config(of));
            sim.connect(1);
            if has_credential {
                sim.callers[0].client.set_auth_sys(Some(&credential)).unwrap();
            }
            let started = granted.map(|_| {
                let started = sim.callers[0].start_with(procedure, &vec![0; bytes]);
                sim.rest(PERIOD_NS / 20);
                sim.answer_kept();
                started
            });
            let what = (bytes, version, has_credential, procedure);
            assert_eq!(started, granted, "{what:?}");
        }
    }
}

#[test]
fn a_server_that_grants_all_credits_always_does() {
    let mut sim = pair(idle_at(1024));
    sim.connect(1);
    assert_eq!(sim.grant_of(0), 16);
    sim.rest(10 * PERIOD_NS);
    assert_eq!((sim.grant_of(0), sim.grant_of(0)), (16, 16));
}

#[test]
fn without_credits_to_share_all_connections_have_few() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (2, 0));
    sim.connect(3);
    sim.saturate(0..3, 5 * PERIOD_NS);
    assert_eq!([0, 1, 2].map(|caller| sim.grant_of(caller)), [2, 2, 2]);
}

/// Where each connection has its own receives, as over a device, and no more memory may be registered.
#[test]
fn without_memory_for_receives_a_grant_does_not_rise_and_the_connection_stays() {
    for (regions, granted, refused) in [(1, 2, 2), (2, 16, 0)] {
        let device = Device { recv_regions_max: Some(regions), ..Device::default() };
        let server = config(|raw| raw.rpc.credits_idle = 2);
        let mut sim = Sim::over(device, network(1), server, config(|_| {}));
        sim.connect(1);
        sim.saturate(0..1, 10 * PERIOD_NS);
        assert_eq!(sim.refused, refused / 2, "asked once");
        sim.saturate(0..1, 80 * PERIOD_NS);
        assert_eq!((sim.grant_of(0), sim.refused), (granted, refused), "{regions} regions");
        assert!(sim.callers[0].client.is_up());
    }
}

/// What they were granted is there for others at once, and they are not among those that share.
#[test]
fn connections_that_end_while_busy_leave_all_that_they_had() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (1, 14));
    let end = |sim: &mut Sim, ended: usize| {
        sim.connect(ended);
        for _ in 0..4 {
            for caller in &sim.callers {
                caller.start(ECHO, usize::MAX);
            }
            sim.turn();
        }
        for caller in sim.callers.drain(..) {
            caller.start(ECHO, usize::MAX);
            caller.client.close();
        }
        sim.rest(PERIOD_NS / 10);
        assert_eq!(sim.receives(), 0);
    };
    // More than there are places for connections, all within a period.
    (0..4).for_each(|_| end(&mut sim, 40));
    for _ in 0..3 {
        end(&mut sim, 3);
        sim.connect(1);
        sim.saturate(0..1, PERIOD_NS / 5);
        assert_eq!(sim.grant_of(0), 15, "all that there is, at once");
        sim.saturate(0..1, 3 * PERIOD_NS);
        assert_eq!(sim.grant_of(0), 15);
    }
    // Those that are left are looked at, whatever places the others had.
    sim.connect(3);
    sim.saturate(0..4, 5 * PERIOD_NS);
    for caller in [2, 0] {
        sim.callers.remove(caller).client.close();
    }
    sim.saturate(0..2, 8 * PERIOD_NS);
    assert_eq!([0, 1].map(|caller| sim.grant_of(caller)), [8, 8]);
}

/// In each turn, the core looks at one of them.
#[test]
fn busy_connections_beyond_the_budget_of_a_turn_are_looked_at_in_the_next_ones() {
    let mut sim = pair(|raw| {
        (raw.rpc.credits_idle, raw.rpc.credits_shared, raw.poll.budget) = (1, 1_000, 1);
    });
    sim.connect(20);
    sim.saturate(0..20, 10 * PERIOD_NS);
    sim.rest(10 * PERIOD_NS);
    // The first reply tells of what the connection is granted since.
    sim.callers.iter().for_each(|caller| assert_eq!(caller.start(ECHO, 1), 1));
    sim.settle();
    for caller in 0..20 {
        assert_eq!(sim.grant_of(caller), 1);
    }
}

/// A longer period, in which calls count.
#[test]
fn a_connection_that_calls_rarely_is_busy_in_a_long_period() {
    for (period_ms, granted) in [(1, 2), (100, 16)] {
        let mut sim = pair(|raw| {
            (raw.rpc.credits_idle, raw.rpc.credits_period_ms) = (2, period_ms);
        });
        sim.connect(1);
        for _ in 0..20 {
            assert_eq!(sim.callers[0].start(ECHO, 1), 1);
            sim.rest(2 * PERIOD_NS);
        }
        assert_eq!(sim.grant_of(0), granted, "{period_ms} ms");
    }
}

/// One that has had all credits to share gives them to those that come later.
#[test]
fn a_connection_that_becomes_busy_late_gets_its_share() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (1, 14));
    sim.connect(1);
    sim.saturate(0..1, 5 * PERIOD_NS);
    assert_eq!(sim.grant_of(0), 15);
    sim.connect(1);
    sim.saturate(0..2, 6 * PERIOD_NS);
    assert_eq!([0, 1].map(|caller| sim.grant_of(caller)), [8, 8]);
}

const SUCCESS: u32 = 0;
const SYSTEM_ERR: u32 = 5;

/// "The RPC client MUST NOT send unacknowledged requests in excess of this granted RPC server credit limit" (section 3.3).
/// One that does gets an RPC error for each call too many, and takes nothing from the others.
#[test]
fn a_client_that_ignores_a_smaller_grant_is_refused_what_it_sends_beyond() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (2, 14));
    let mut cheat = sim.cheat();
    let at_rest = sim.receives();
    for _ in 0..20 {
        cheat.call(&mut sim, ECHO, cheat.granted);
    }
    assert_eq!((cheat.granted, sim.receives()), (16, at_rest + 14));
    for _ in 0..30 {
        sim.rest(2 * PERIOD_NS);
        cheat.call(&mut sim, ECHO, 1);
    }
    assert_eq!((cheat.granted, sim.receives()), (2, at_rest));
    sim.connect(1);
    for _ in 0..4 {
        sim.callers[0].start(KEEP, usize::MAX);
        sim.rest(PERIOD_NS / 10);
        sim.answer_kept();
    }
    assert_eq!(sim.callers[0].start(KEEP, usize::MAX), 16, "another one has what it gave up");
    sim.rest(PERIOD_NS / 10);
    cheat.send(KEEP, 16);
    assert_eq!(cheat.hear(&mut sim, 14), [SYSTEM_ERR; 14]);
    assert_eq!(cheat.granted, 2);
    // A further connection has its receives.
    sim.connect(1);
    assert_eq!(sim.callers[1].start(ECHO, usize::MAX), 2);
    sim.answer_kept();
    assert_eq!(cheat.hear(&mut sim, 2), [SUCCESS; 2]);
    assert_eq!([0, 1].map(|caller| sim.callers[caller].client.is_up()), [true; 2]);
    assert!(cheat.is_up && sim.receives() <= 3 * at_rest + 14);
    assert_eq!(cheat.call(&mut sim, ECHO, 1), [SUCCESS]);
}

/// One call that is never answered must not keep what a burst of others was granted.
#[test]
fn a_call_that_hangs_keeps_no_more_than_its_own_credit() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (2, 14));
    let mut cheat = sim.cheat();
    let at_rest = sim.receives();
    cheat.send(KEEP, 1);
    for _ in 0..20 {
        cheat.call(&mut sim, ECHO, cheat.granted - 1);
    }
    assert_eq!(cheat.granted, 16);
    sim.rest(20 * PERIOD_NS);
    let posted = sim.receives();
    assert_eq!(posted, at_rest + 14 - 1, "the call that hangs has one");
    cheat.call(&mut sim, ECHO, 1);
    assert_eq!((cheat.granted, sim.receives()), (2, posted - 1), "one reply, one receive");
}

/// It is not among those that the rest is divided among, as long as it does not call.
#[test]
fn a_connection_whose_calls_hang_takes_no_share() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (2, 24));
    let mut cheat = sim.cheat();
    for _ in 0..20 {
        cheat.call(&mut sim, ECHO, cheat.granted);
    }
    assert_eq!(cheat.granted, 16);
    cheat.send(KEEP, 4);
    sim.rest(20 * PERIOD_NS);
    sim.connect(2);
    sim.saturate(0..1, 5 * PERIOD_NS);
    sim.saturate(0..2, 8 * PERIOD_NS);
    assert_eq!([0, 1].map(|caller| sim.grant_of(caller)), [7, 7], "half of what it left");
    sim.answer_kept();
    assert_eq!(cheat.hear(&mut sim, 4), [SUCCESS; 4]);
    assert_eq!(cheat.granted, 5, "one beyond those that hang");
    for _ in 0..6 {
        cheat.call(&mut sim, ECHO, 1);
        sim.rest(3 * PERIOD_NS);
    }
    assert_eq!(cheat.granted, 2, "nothing hangs any more");
}

/// A grant that falls while the calls in progress are more: short calls count one by one then.
#[test]
fn short_calls_beyond_an_earlier_grant_are_refused_while_others_are_in_progress() {
    let mut sim = pair(|raw| (raw.rpc.credits_idle, raw.rpc.credits_shared) = (2, 14));
    let mut cheat = sim.cheat();
    for _ in 0..20 {
        cheat.call(&mut sim, ECHO, cheat.granted);
    }
    assert_eq!(cheat.granted, 16);
    sim.connect(1);
    sim.saturate(0..1, 5 * PERIOD_NS);
    cheat.send(KEEP, 12);
    sim.rest(PERIOD_NS / 20);
    let statuses = cheat.call(&mut sim, ECHO, 8);
    assert_eq!(statuses, [[SUCCESS; 4].as_slice(), &[SYSTEM_ERR; 4]].concat());
    assert_eq!(cheat.call(&mut sim, ECHO, 4), [SYSTEM_ERR; 4]);
    sim.answer_kept();
    assert_eq!(cheat.hear(&mut sim, 12), [SUCCESS; 12]);
    assert!(cheat.is_up);
}

/// Connections on a core, most of them idle.
const CONNECTIONS: usize = 2_000;
const BUSY: usize = 100;

/// Under saturation no client gets less than half of its share, and the rules hold with each message, while
/// connections come and go.
#[test]
fn thousands_of_connections_share_what_a_core_has() {
    let many = |raw: &mut RawConfig| {
        (raw.limits.conns, raw.limits.core_mib) = (CONNECTIONS as u64 + 100, 1 << 20);
        raw.limits.peer_mib = 1 << 20;
        (raw.rpc.credits_idle, raw.rpc.credits_shared) = (1, 3 * BUSY as u64);
    };
    let slow = Network { poll_ns: 4_000, ..network(2) };
    let mut sim = Sim::new(slow, config(many), config(many));
    sim.connect(CONNECTIONS);
    sim.saturate(0..BUSY, 4 * PERIOD_NS);
    let grants: Vec<_> = (0..BUSY).map(|caller| sim.grant_of(caller)).collect();
    let before: Vec<_> = sim.callers.iter().map(|caller| caller.answers.0.get()).collect();
    // Some end, in the midst of their calls, and others are opened.
    for caller in sim.callers.drain(..BUSY / 4) {
        caller.start(ECHO, usize::MAX);
        caller.client.close();
    }
    sim.connect(BUSY / 4);
    let busy = CONNECTIONS - BUSY..CONNECTIONS;
    let at = busy.start;
    let started: Vec<_> = sim.callers[busy.clone()].iter().map(|c| c.answers.0.get()).collect();
    sim.saturate(busy.clone(), 6 * PERIOD_NS);
    let callers = sim.callers[busy].iter().zip(started);
    let answers: Vec<_> = callers.map(|(caller, before)| caller.answers.0.get() - before).collect();
    let share = answers.iter().sum::<u64>() / answers.len() as u64;
    assert!(share > 100, "hardly any calls: {share}");
    let least = answers.iter().min().unwrap();
    assert!(2 * least >= share, "{least} calls of one, {share} on average, of {answers:?}");
    // Those that are asked late have been idle for a while.
    let (lowest, highest) = (grants.iter().min().unwrap(), grants.iter().max().unwrap());
    assert!(*lowest >= 1 && *highest <= 4 && 2 * lowest >= *highest, "{grants:?}");
    let idle = &sim.callers[BUSY..at];
    assert!(idle.iter().zip(&before[BUSY + BUSY / 4..]).all(|(c, n)| c.answers.0.get() == *n));
    assert!(sim.flows.len() > CONNECTIONS);
}
