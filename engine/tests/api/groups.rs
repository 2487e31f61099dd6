//! A client with several connections: calls are spread over them, and those of a lost one go over to another, executed
//! once. On the simulated fabric, with both ends on the test's thread: a connection is cut at every step of its calls.

use crate::common::caller::recorder;
use crate::common::prelude::*;
use spinrpc::fabric::sim::{Network, SideId, World};

/// `u32` number in; how often it was executed, out.
const ADD: Procedure = Procedure(1);
/// The same, answered when the test says.
const ADD_LATER: Procedure = Procedure(2);
const RAILS: [&str; 2] = ["rail-a", "rail-b"];
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Seen {
    executed: Mutex<HashMap<u32, u32>>,
    deferred: Mutex<Vec<(u32, Deferred)>>,
    /// Calls by connection.
    calls: Mutex<HashMap<ConnectionId, u32>>,
}

impl Seen {
    fn executed(&self, number: u32) -> u32 {
        lock(&self.executed).get(&number).copied().unwrap_or(0)
    }

    fn waiting(&self) -> usize {
        lock(&self.deferred).len()
    }

    fn answer(&self) {
        let deferred = std::mem::take(&mut *lock(&self.deferred));
        deferred.into_iter().for_each(|(count, call)| call.reply(|results| results.u32(count)));
    }

    fn answer_first(&self) {
        let (count, call) = lock(&self.deferred).remove(0);
        call.reply(|results| results.u32(count));
    }

    fn calls_by_connection(&self) -> Vec<u32> {
        let mut calls: Vec<_> = lock(&self.calls).values().copied().collect();
        calls.sort_unstable();
        calls
    }
}

struct Adder(Arc<Seen>);

impl Service for Adder {
    fn call(&mut self, mut call: Call<'_>) {
        let (seen, connection, procedure) = (&self.0, call.connection(), call.procedure());
        if procedure == NULL {
            return call.reply(|_| {});
        }
        let number = call.args().u32().unwrap();
        *lock(&seen.calls).entry(connection).or_default() += 1;
        let mut executed = lock(&seen.executed);
        let count = executed.entry(number).or_default();
        *count += 1;
        let count = *count;
        drop(executed);
        match procedure {
            ADD_LATER => lock(&seen.deferred).push((count, call.defer().unwrap())),
            _ => call.reply(|results| results.u32(count)),
        }
    }

    fn is_idempotent(&self, procedure: Procedure) -> bool {
        procedure == NULL
    }
}

fn serve_adder(engine: &Engine) -> Arc<Seen> {
    let seen = Arc::<Seen>::default();
    let of_service = Arc::clone(&seen);
    engine.serve_once(PROGRAM, VERSION, move |_| Adder(Arc::clone(&of_service))).unwrap();
    seen
}

fn sim_config() -> Config {
    let raw = small_with(|raw| {
        raw.cores.list = CoreList::Cpus(vec![0]);
        raw.fixed.is_near_cpu = false;
        raw.rpc.reply_cache_mib = 1;
        raw.rpc.timeout_ms = 60_000;
    });
    raw.validate_for(&Host { allowed: vec![0], ..Host::default() }).unwrap()
}

/// Pauses of seconds: what takes less time has not waited for one.
fn slow() -> Reconnect {
    let pause = Duration::from_secs(5);
    Reconnect::default().first_delay(pause).max_delay(pause).jitter_percent(0)
}

struct Pair {
    world: World,
    seen: Arc<Seen>,
    /// That of the server, one that serves nothing, and that of the client.
    engines: [Engine; 3],
    cores: [Core; 3],
    client: Client,
    heard: SharedHeard<Vec<u32>>,
}

impl Pair {
    fn asked(options: &ConnectOptions) -> Self {
        Self::asked_in(World::new(Network::default()), options)
    }

    fn asked_in(world: World, options: &ConnectOptions) -> Self {
        Self::served_by(world, RAILS.len(), options)
    }

    /// The others of the rails lead to a server without the program.
    fn served_by(world: World, rails: usize, options: &ConnectOptions) -> Self {
        let node = |_| Engine::simulated(sim_config(), |device| world.connector(device)).unwrap();
        let engines = [(); 3].map(node);
        let [server, stranger, _] = &engines;
        let seen = serve_adder(server);
        RAILS[..rails].iter().for_each(|rail| server.listen(rail).unwrap());
        RAILS[rails..].iter().for_each(|rail| stranger.listen(rail).unwrap());
        let mut cores = engines.each_ref().map(|engine| engine.core(0).unwrap());
        let heard = SharedHeard::default();
        let made = recorder(&heard, all_words);
        let client = cores[2].connect_with(RAILS[0], PROGRAM, VERSION, options, |_| made).unwrap();
        Self { world, seen, engines, cores, client, heard }
    }

    /// Both rails, and all connections up.
    fn up(options: &ConnectOptions, connections: usize) -> Self {
        let mut pair = Self::asked(options);
        pair.run_until("the connections", |pair| pair.ups() == connections);
        pair
    }

    fn turn(&mut self) {
        for core in &mut self.cores {
            core.poll_once();
        }
    }

    /// Time goes on faster while nothing happens.
    #[track_caller]
    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for turn in 0.. {
            if done(self) {
                return;
            }
            assert!(turn < 100_000, "waited for {what}: {:?}", self.heard.borrow().events);
            self.turn();
            if turn > 200 {
                self.world.advance_to(self.world.now_ns() + 5_000_000);
            }
        }
    }

    fn ups(&self) -> usize {
        let is_up = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::Up { .. });
        self.heard.borrow().events.iter().filter(is_up).count()
    }

    fn start(&self, procedure: Procedure, number: u32, resend: Resend) {
        let mut spec = CallSpec::short().resend(resend);
        let token = Token(number.into());
        self.client.call(procedure, token, &mut spec, |args| args.u32(number)).unwrap();
    }

    /// Ends of connections that are not down: those of the client.
    fn live(&self) -> Vec<SideId> {
        let live = self.world.holdings().into_iter().filter(|end| !end.is_down);
        live.map(|end| end.side).filter(|side| side.is_connector()).collect()
    }

    fn replies(&mut self, count: usize) -> Vec<(u64, Result<Vec<u32>, CallError>)> {
        self.run_until("the replies", |pair| pair.heard.borrow().replies.len() >= count);
        std::mem::take(&mut self.heard.borrow_mut().replies)
    }

    fn is_told(&self, is_meant: impl Fn(&ConnectionEvent) -> bool) -> bool {
        self.heard.borrow().events.iter().any(is_meant)
    }
}

fn two_rails(policy: Reconnect) -> ConnectOptions {
    ConnectOptions::new().also(RAILS[1]).reconnect(policy)
}

#[test]
fn calls_go_by_the_connection_with_the_fewest_in_flight() {
    let mut pair = Pair::up(&ConnectOptions::new().connections(4), 4);
    (0..8).for_each(|number| pair.start(ADD_LATER, number, Resend::Never));
    pair.run_until("the calls", |pair| pair.seen.waiting() == 8);
    assert_eq!(pair.seen.calls_by_connection(), [2; 4]);
    assert_eq!(pair.client.in_flight(), 8);
    pair.seen.answer();
    assert_eq!(pair.replies(8).len(), 8);
    // One at a time goes round.
    for number in 8..40 {
        pair.start(ADD, number, Resend::Never);
        assert!(pair.replies(1)[0].1.is_ok());
    }
    assert!(pair.seen.calls_by_connection().iter().all(|calls| *calls > 4));
}

/// Executed once each, answered within a second though the pauses are longer, and the connection at its own address again
/// when that can be reached.
fn cut_one(step: usize, options: &ConnectOptions, rail: Option<&str>) -> bool {
    let mut pair = Pair::up(options, 2);
    let victim = pair.live()[0];
    let calls = 8;
    for number in 0..calls {
        let procedure = if number % 4 < 2 { ADD } else { ADD_LATER };
        pair.start(procedure, number, Resend::AtMostOnce);
    }
    (0..step).for_each(|_| pair.turn());
    let is_under_way = pair.client.in_flight() > 0;
    let cut_at = pair.world.now_ns();
    pair.world.kill(victim);
    rail.iter().for_each(|rail| pair.world.set_reachable(rail, false));
    // Some are answered by now, and others when they have been sent again.
    pair.run_until("the calls", |pair| (0..calls).all(|number| pair.seen.executed(number) > 0));
    (0..step % 7).for_each(|_| pair.turn());
    let resent = |pair: &Pair| {
        pair.seen.answer();
        pair.heard.borrow().replies.len() == calls as usize
    };
    pair.run_until("the replies", resent);
    let took = Duration::from_nanos(pair.world.now_ns() - cut_at);
    assert!(took < SECOND, "step {step}: {took:?}");
    for (token, reply) in &pair.heard.borrow().replies {
        assert!(matches!(reply.as_deref(), Ok([1])), "step {step}, call {token}: {reply:?}");
    }
    for number in 0..calls {
        assert_eq!(pair.seen.executed(number), 1, "step {step}, call {number}");
    }
    pair.start(ADD, 100, Resend::Never);
    pair.run_until("a later call", |pair| pair.seen.executed(100) == 1);
    rail.iter().for_each(|rail| pair.world.set_reachable(rail, true));
    pair.run_until("the first state", |pair| pair.live().len() == 2);
    let before = pair.world.now_ns();
    pair.run_until("some time", |pair| pair.world.now_ns() > before + 20_000_000_000);
    assert_eq!(pair.live().len(), 2, "step {step}");
    assert!(!pair.is_told(|event| matches!(event, ConnectionEvent::Down { .. })), "step {step}");
    is_under_way
}

#[test]
fn cut_one_of_two_rails_at_every_step_expect_each_call_executed_once() {
    let under_way = (0..60).take_while(|step| cut_one(*step, &two_rails(slow()), Some(RAILS[0])));
    assert!(under_way.count() > 10, "cut behind all calls");
}

#[test]
fn cut_one_of_two_connections_to_one_address_at_every_step_expect_the_same() {
    let options = ConnectOptions::new().connections(2).reconnect(slow());
    let under_way = (0..60).take_while(|step| cut_one(*step, &options, None));
    assert!(under_way.count() > 10, "cut behind all calls");
}

/// All are lost: each call is sent again over the next connections, as with one.
#[test]
fn cut_all_at_every_step_expect_each_call_executed_once() {
    let policy = Reconnect::default().first_delay(Duration::from_millis(5));
    for step in 0..40 {
        let mut pair = Pair::up(&two_rails(policy), 2);
        (0..6).for_each(|number| pair.start(ADD, number, Resend::AtMostOnce));
        (0..step).for_each(|_| pair.turn());
        pair.live().into_iter().for_each(|side| pair.world.kill(side));
        for (token, reply) in pair.replies(6) {
            assert!(matches!(reply.as_deref(), Ok([1])), "step {step}, call {token}: {reply:?}");
        }
        assert!((0..6).all(|number| pair.seen.executed(number) == 1), "step {step}");
        pair.run_until("the first state", |pair| pair.live().len() == 2);
    }
}

/// The second rail is for the time when the first one is down.
#[test]
fn one_connection_and_two_addresses_expect_the_second_one_used_meanwhile() {
    let mut pair = Pair::up(&two_rails(slow()).connections(1), 1);
    pair.world.set_reachable(RAILS[0], false);
    let victim = pair.live()[0];
    pair.world.kill(victim);
    pair.run_until("the loss", |pair| !pair.client.is_up());
    let lost_at = pair.world.now_ns();
    pair.run_until("the other rail", |pair| pair.client.is_up());
    assert!(Duration::from_nanos(pair.world.now_ns() - lost_at) < SECOND);
    pair.start(ADD_LATER, 1, Resend::Never);
    pair.run_until("the call", |pair| pair.seen.waiting() == 1);
    // It is back: new calls go there, and the other connection ends with its last call.
    pair.world.set_reachable(RAILS[0], true);
    pair.run_until("the first rail", |pair| pair.ups() == 3);
    assert_eq!(pair.live().len(), 2);
    pair.start(ADD, 2, Resend::Never);
    assert_eq!(pair.replies(1)[0].0, 2);
    pair.seen.answer();
    assert!(matches!(pair.replies(1)[0], (1, Ok(_))));
    pair.run_until("one connection", |pair| pair.live().len() == 1);
}

#[test]
fn a_rail_that_is_down_from_the_start_is_tried_while_the_other_is_up() {
    let world = World::new(Network::default());
    world.set_reachable(RAILS[1], false);
    let mut pair = Pair::asked_in(world, &two_rails(slow()));
    pair.run_until("one rail", |pair| pair.ups() == 1);
    // Longer than the policy says for all that is down.
    let begun = pair.world.now_ns();
    pair.run_until("two minutes", |pair| pair.world.now_ns() > begun + 120_000_000_000);
    pair.start(ADD, 1, Resend::Never);
    assert!(pair.replies(1)[0].1.is_ok());
    pair.world.set_reachable(RAILS[1], true);
    pair.run_until("both rails", |pair| pair.ups() == 2);
    assert_eq!(pair.live().len(), 2);
}

#[test]
fn a_rail_that_was_down_for_long_is_tried_after_a_moment_with_none_up() {
    let mut pair = Pair::up(&two_rails(slow()), 2);
    let cut = |pair: &Pair, rail| {
        pair.world.set_reachable(rail, false);
        pair.live().into_iter().for_each(|side| pair.world.kill(side));
    };
    cut(&pair, RAILS[0]);
    let lost_at = pair.world.now_ns();
    pair.run_until("two minutes", |pair| pair.world.now_ns() > lost_at + 120_000_000_000);
    assert!(pair.client.is_up());
    cut(&pair, RAILS[1]);
    pair.run_until("the second loss", |pair| !pair.client.is_up());
    let lost_at = pair.world.now_ns();
    pair.run_until("ten seconds", |pair| pair.world.now_ns() > lost_at + 10_000_000_000);
    let before = pair.ups();
    RAILS.iter().for_each(|rail| pair.world.set_reachable(rail, true));
    pair.run_until("both rails", |pair| pair.ups() >= before + 2 && pair.live().len() == 2);
    assert!(!pair.is_told(|event| matches!(event, ConnectionEvent::Down { .. })));
}

/// Two losses while calls are in flight: both links of the place are at the other address. The own one is used again though
/// there are calls all the time.
#[test]
fn lost_at_home_again_under_load_expect_a_way_back() {
    let mut pair = Pair::up(&two_rails(slow()).connections(1), 1);
    let mut next = 0;
    let mut call = |pair: &mut Pair| {
        pair.start(ADD_LATER, next, Resend::AtMostOnce);
        next += 1;
        pair.run_until("the call", |pair| pair.seen.executed(next - 1) == 1);
    };
    let lose_home = |pair: &mut Pair, ups| {
        let home = *pair.live().last().unwrap();
        pair.world.set_reachable(RAILS[0], false);
        pair.world.kill(home);
        pair.run_until("the other rail", |pair| pair.ups() == ups);
        pair.world.set_reachable(RAILS[0], true);
    };
    call(&mut pair);
    lose_home(&mut pair, 2);
    pair.run_until("the first rail", |pair| pair.ups() == 3);
    call(&mut pair);
    lose_home(&mut pair, 4);
    for _ in 0..6 {
        call(&mut pair);
        pair.seen.answer_first();
        pair.run_until("a reply", |pair| !pair.heard.borrow().replies.is_empty());
        pair.heard.borrow_mut().replies.clear();
    }
    assert!(pair.seen.waiting() > 1);
    pair.run_until("the first rail", |pair| pair.ups() == 5);
}

/// One that accepts connections, and closes each as soon as it is up: each link is made with pauses of 5 s, and once in
/// that time without.
#[test]
fn a_server_that_closes_each_connection_is_not_asked_without_pauses() {
    let mut pair = Pair::up(&two_rails(slow()).connections(4), 4);
    const LINKS: usize = 2;
    let (begun, span) = (pair.world.now_ns(), 50_000_000_000);
    while pair.world.now_ns() < begun + span {
        let ups = pair.ups();
        assert!(ups < 4 * LINKS * 2 * 11, "{ups}");
        pair.live().into_iter().for_each(|side| pair.world.kill(side));
        pair.run_until("a connection, or the end", |pair| {
            pair.ups() > ups || pair.world.now_ns() >= begun + span
        });
    }
}

#[test]
fn no_rail_at_the_start_expect_one_failure() {
    let world = World::new(Network::default());
    RAILS.iter().for_each(|rail| world.set_reachable(rail, false));
    let mut pair = Pair::asked_in(world, &two_rails(slow()));
    let is_failed = |event: &_| matches!(event, ConnectionEvent::ConnectFailed { .. });
    pair.run_until("the failure", |pair| pair.is_told(is_failed));
    assert!(matches!(pair.client.failure(), Some(ConnectError::Fabric(_))));
    let call = pair.client.call(ADD, Token(1), &mut CallSpec::short(), |args| args.u32(1));
    assert_eq!(call, Err(Backpressure::Down));
    (0..1000).for_each(|_| pair.turn());
    assert_eq!(pair.heard.borrow().events.iter().filter(|event| is_failed(event)).count(), 1);
}

#[test]
fn a_program_that_no_server_has_expect_one_failure() {
    let options = ConnectOptions::new().connections(4).reconnect(Reconnect::default());
    let mut pair = Pair::served_by(World::new(Network::default()), 0, &options);
    let is_failed = |event: &_| matches!(event, ConnectionEvent::ConnectFailed { .. });
    pair.run_until("the failure", |pair| pair.is_told(is_failed));
    assert!(matches!(pair.client.failure(), Some(ConnectError::NotServed(_))));
}

/// One of the addresses is that of a server without the program. The others are used, and that one is asked with pauses.
#[test]
fn a_program_that_one_server_lacks_is_asked_for_with_pauses() {
    let options = two_rails(Reconnect::default()).connections(6);
    let mut pair = Pair::served_by(World::new(Network::default()), 1, &options);
    pair.run_until("the connections", |pair| pair.ups() == 3);
    let begun = pair.world.now_ns();
    pair.run_until("fifty seconds", |pair| pair.world.now_ns() > begun + 50_000_000_000);
    pair.start(ADD, 1, Resend::Never);
    assert!(pair.replies(1)[0].1.is_ok());
    let asked = pair.engines[1].stats(0).unwrap().connections_opened;
    assert!((30..150).contains(&asked), "{asked}");
}

/// A call that has timed out, and is never answered, does not keep a connection at the other address.
#[test]
fn a_call_that_was_given_up_keeps_no_connection_from_its_end() {
    let mut pair = Pair::up(&two_rails(slow()).connections(1), 1);
    let home = pair.live()[0];
    pair.world.set_reachable(RAILS[0], false);
    pair.world.kill(home);
    pair.run_until("the other rail", |pair| pair.ups() == 2);
    let mut spec = CallSpec::short().deadline(SECOND);
    pair.client.call(ADD_LATER, Token(1), &mut spec, |args| args.u32(1)).unwrap();
    assert!(matches!(pair.replies(1)[0].1, Err(CallError::TimedOut)));
    pair.world.set_reachable(RAILS[0], true);
    pair.run_until("the first rail", |pair| pair.ups() == 3);
    pair.run_until("one connection", |pair| pair.live().len() == 1);
    assert_eq!(pair.seen.waiting(), 1);
}

#[test]
fn close_a_client_of_several_connections_expect_one_end_and_no_connection_left() {
    let mut pair = Pair::up(&two_rails(slow()).connections(3), 3);
    pair.start(ADD_LATER, 1, Resend::AtMostOnce);
    pair.run_until("the call", |pair| pair.seen.waiting() == 1);
    // One has left its address when the client is closed.
    pair.world.set_reachable(RAILS[0], false);
    let victim = pair.live()[0];
    pair.world.kill(victim);
    (0..300).for_each(|_| pair.turn());
    pair.client.close();
    let is_down = |event: &_| matches!(event, ConnectionEvent::Down { .. });
    pair.run_until("the end", |pair| pair.is_told(is_down) && pair.live().is_empty());
    assert!(matches!(pair.replies(1)[0].1, Err(CallError::Disconnected(_))));
    let begun = pair.world.now_ns();
    pair.run_until("some time", |pair| pair.world.now_ns() > begun + 20_000_000_000);
    assert!(pair.live().is_empty() && !pair.client.is_up());
    assert_eq!(pair.heard.borrow().events.iter().filter(|event| is_down(event)).count(), 1);
}

#[test]
fn calls_are_cancelled_on_whichever_connection_they_are() {
    let mut pair = Pair::up(&two_rails(slow()), 2);
    let start = |number: u32| {
        let mut spec = CallSpec::short();
        let token = Token(number.into());
        pair.client.call(ADD_LATER, token, &mut spec, |args| args.u32(number)).unwrap()
    };
    let calls: Vec<CallId> = (0..4).map(start).collect();
    pair.run_until("the calls", |pair| pair.seen.waiting() == 4);
    assert_eq!(pair.client.cancel(calls[2]), Ok(()));
    assert!(matches!(pair.replies(1)[..], [(2, Err(CallError::Cancelled))]));
    assert_eq!(pair.client.cancel(calls[2]), Err(CallEnded));
    assert_eq!(pair.client.cancel(calls[1]), Ok(()));
    assert!(matches!(pair.replies(1)[..], [(1, Err(CallError::Cancelled))]));
    pair.seen.answer();
    assert_eq!(pair.replies(2).len(), 2);
}

#[test]
fn without_a_policy_a_lost_connection_is_not_replaced() {
    let mut pair = Pair::up(&ConnectOptions::new().connections(2), 2);
    let victim = pair.live()[0];
    pair.world.kill(victim);
    pair.run_until("the loss", |pair| pair.live().len() == 1);
    (0..100).for_each(|_| pair.turn());
    for number in 0..4 {
        pair.start(ADD, number, Resend::Never);
        assert!(pair.replies(1)[0].1.is_ok());
    }
    let last = pair.live()[0];
    pair.world.kill(last);
    pair.run_until("the end", |pair| {
        pair.is_told(|event| matches!(event, ConnectionEvent::Down { .. }))
    });
    let call = pair.client.call(ADD, Token(1), &mut CallSpec::short(), |args| args.u32(1));
    assert_eq!(call, Err(Backpressure::Down));
}

#[test]
fn more_connections_or_addresses_than_a_client_can_have_are_refused() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let many = ConnectOptions::new().connections(17);
    let far = (0..16).fold(ConnectOptions::new().connections(1), |to, _| to.also("shm:x"));
    for options in [many, far] {
        let refused = engine.connect(0, &unique_address(), PROGRAM, VERSION, &options).unwrap_err();
        assert!(matches!(refused, ConnectError::TooManyConnections), "{refused}");
    }
}

#[test]
fn threads_call_by_a_handle_with_several_connections() {
    let server = Server::start();
    let engine = Engine::new(valid(client_config())).unwrap();
    let ups = Arc::<AtomicU32>::default();
    let counted = Arc::clone(&ups);
    let options = ConnectOptions::new().connections(3).on_event(move |event| {
        let is_up = matches!(event, ConnectionEvent::Up { .. });
        counted.fetch_add(u32::from(is_up), Ordering::Relaxed);
    });
    let client = engine.connect(0, &server.address, PROGRAM, VERSION, &options).unwrap();
    let _started = Started::new(engine);
    client.wait_up(LIMIT).unwrap();
    wait_until("three connections", || ups.load(Ordering::Relaxed) == 3);
    assert!(client.is_up() && client.exposed_bulk(64).is_none() && client.bulk(64).is_some());
    std::thread::scope(|threads| {
        for thread in 0..4_u8 {
            let client = client.clone();
            threads.spawn(move || {
                for _ in 0..200 {
                    let sent = [thread; 5];
                    let echoed = client.call(
                        ECHO,
                        |args| args.opaque(&sent),
                        |results| Ok(results.opaque(100)? == sent),
                    );
                    assert!(echoed.unwrap());
                }
            });
        }
    });
    client.close();
    wait_until("the end", || !client.is_up());
}

fn iwarp() -> RawConfig {
    small_with(|raw| raw.fabric.driver = Driver::Iwarp)
}

fn adder_by_iwarp() -> (Engine, Arc<Seen>) {
    let mut raw = iwarp();
    raw.rpc.reply_cache_mib = 1;
    let server = engine(raw);
    let seen = serve_adder(&server);
    (server, seen)
}

/// It takes connections, and says nothing: an attempt ends after 5 s. Calls do not queue up for it when the other address
/// is there.
#[test]
fn an_address_that_does_not_answer_keeps_no_calls_from_one_that_does() {
    let (server, seen) = adder_by_iwarp();
    let address = format!("iwarp://127.0.0.1:{}", 12_097 + std::process::id() % 200 * 100);
    server.listen(&address).unwrap();
    let _server = Started::new(server);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = format!("iwarp://{}", silent.local_addr().unwrap());
    let (_asking, mut core) = with_core(iwarp());
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let options = ConnectOptions::new().also(&silent_address).connections(8);
    let options = options.reconnect(Reconnect::default());
    let client = core.connect_with(&address, PROGRAM, VERSION, &options, |_| made).unwrap();
    let ups = || {
        let is_up = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::Up { .. });
        heard.borrow().events.iter().filter(is_up).count()
    };
    run_core(&mut core, "the connections", || ups() == 4);
    for number in 0..8 {
        let mut spec = CallSpec::short().resend(Resend::AtMostOnce);
        client.call(ADD_LATER, Token(7), &mut spec, |args| args.u32(number)).unwrap();
    }
    run_core(&mut core, "the calls", || seen.waiting() == 8);
    let begun = Instant::now();
    client.reconnect();
    run_core(&mut core, "the same address", || ups() >= 8);
    seen.answer();
    run_core(&mut core, "the replies", || heard.borrow().replies.len() == 8);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(heard.borrow().replies.iter().all(|(_, reply)| matches!(reply.as_deref(), Ok([1]))));
}

/// A client of two source addresses: IPv4 and IPv6 on this host. Its identity is the same by both.
#[test]
fn a_client_is_known_whichever_address_it_comes_from() {
    let (server, seen) = adder_by_iwarp();
    let port = 12_098 + std::process::id() % 200 * 100;
    let rails = [format!("iwarp://127.0.0.1:{port}"), format!("iwarp://[::1]:{port}")];
    server.listen(&rails[0]).unwrap();
    if let Err(error) = server.listen(&rails[1]) {
        return not_tested(&format!("two source addresses: {error}"));
    }
    let _server = Started::new(server);
    let (_asking, mut core) = with_core(iwarp());
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let options = ConnectOptions::new().also(&rails[1]).connections(1).reconnect(slow());
    let client = core.connect_with(&rails[0], PROGRAM, VERSION, &options, |_| made).unwrap();
    run_core(&mut core, "the connection", || client.is_up());
    let mut spec = CallSpec::short().resend(Resend::AtMostOnce);
    client.call(ADD_LATER, Token(7), &mut spec, |args| args.u32(7)).unwrap();
    run_core(&mut core, "the call", || seen.waiting() == 1);
    let begun = Instant::now();
    client.reconnect();
    run_core(&mut core, "the other address", || client.is_up());
    // The call waits there for the reply of the first one.
    run_core(&mut core, "some time", || begun.elapsed() > Duration::from_millis(200));
    seen.answer();
    run_core(&mut core, "the reply", || !heard.borrow().replies.is_empty());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(matches!(&heard.borrow().replies[..], [(7, Ok(words))] if words == &[1]));
    assert_eq!(seen.executed(7), 1);
}
