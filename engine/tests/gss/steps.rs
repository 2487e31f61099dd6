//! Long bodies are sealed and opened in steps, between which the core does its other work. Counted in turns, not
//! timed: the test turns both cores.

use crate::common::caller::Caller;
use crate::common::{
    LIMIT, PROGRAM, VERSION, engine, pattern, pause_after, small_with, unique_address, valid,
};
use crate::{ECHO, FILL, LATER, LENGTH, LONGEST, Program, SERVICES, Seen, keys, one_item, options};
use spinrpc::config::RawConfig;
use spinrpc::gss::{Enctype, GssAcceptor, GssService};
use spinrpc::sync::lock;
use spinrpc::{
    Backpressure, CallError, CallSpec, ConnectOptions, Core, CoreContext, Engine, Token,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const ENCTYPE: Enctype = Enctype::Aes256Sha1;
pub(crate) const STEP: usize = 4096;
pub(crate) const LONG: usize = 256 * 1024;
/// Turns that a body of that length takes at least.
pub(crate) const STEPS: usize = LONG / STEP;
/// Turns in which a short call, which takes one, must have been answered among long ones.
pub(crate) const SOON: usize = 12;

/// A server and its clients, all turned by hand.
pub(crate) struct Turned {
    pub(crate) server: Core,
    pub(crate) seen: Arc<Seen>,
    pub(crate) address: String,
    pub(crate) callers: Vec<Caller<Vec<u8>>>,
    pub(crate) engine: Engine,
}

impl Turned {
    pub(crate) fn start() -> Self {
        Self::start_as(|raw| {
            raw.fixed.gss_step_bytes = STEP as u64;
            raw.mem.arena_mib = 64;
        })
    }

    /// The memory of the defaults, and 64 credits, but for this.
    pub(crate) fn start_as(change: impl FnOnce(&mut RawConfig)) -> Self {
        let config = valid(small_with(|raw| {
            raw.mem.arena_mib = RawConfig::default().mem.arena_mib;
            change(raw);
        }));
        let (engine, address) = (Engine::new(config).unwrap(), unique_address());
        let seen = Arc::<Seen>::default();
        let of_service = Arc::clone(&seen);
        engine
            .serve(PROGRAM, VERSION, move |context: &CoreContext| Program {
                context: context.clone(),
                seen: Arc::clone(&of_service),
            })
            .unwrap();
        engine.gss(GssAcceptor::new(keys(ENCTYPE, "server"))).unwrap();
        engine.listen(&address).unwrap();
        let server = engine.core(0).unwrap();
        Self { server, seen, address, callers: Vec::new(), engine }
    }

    /// Another client, on a core of its own, that does so many bytes of a body in one turn.
    pub(crate) fn connect(&mut self, service: GssService, step_bytes: u64) -> usize {
        self.connect_as(service, |raw| {
            raw.fixed.gss_step_bytes = step_bytes;
            raw.mem.arena_mib = 64;
        })
    }

    pub(crate) fn connect_as(
        &mut self,
        service: GssService,
        change: impl FnOnce(&mut RawConfig),
    ) -> usize {
        let with = options(keys(ENCTYPE, "alice"), service);
        self.join(engine(small_with(change)), &with)
    }

    /// Another client, of this engine.
    pub(crate) fn join(&mut self, engine: Engine, with: &ConnectOptions) -> usize {
        self.callers.push(Caller::asked(engine, &self.address, with, one_item));
        let index = self.callers.len() - 1;
        self.wait_until("a context", |all| all.callers[index].client.is_up());
        index
    }

    /// Turns all cores; how many events they had.
    fn turn(&mut self) -> usize {
        let mut events = self.server.poll_once().events;
        for caller in &mut self.callers {
            events += caller.core.poll_once().events;
        }
        events
    }

    /// Turns all cores until other threads have done something, for which they need the CPU.
    pub(crate) fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
            pause_after(self.turn());
        }
    }

    /// Turns all cores; how often, until it is so. Does not sleep between turns, which would be time for timers.
    pub(crate) fn turn_until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> usize {
        let began = Instant::now();
        for turns in 0.. {
            if done(self) {
                return turns;
            }
            assert!(began.elapsed() < LIMIT, "no {what}");
            self.turn();
            std::thread::yield_now();
        }
        unreachable!("a test of {what} goes on for ever")
    }

    pub(crate) fn call(&mut self, index: usize, procedure: spinrpc::Procedure, data: &[u8]) {
        let mut spec = CallSpec::new().reply_bytes_max(data.len() + 64);
        let client = &self.callers[index].client;
        client.call(procedure, Token(7), &mut spec, |args| args.opaque(data)).unwrap();
    }

    /// A call that waits, with all cores turned, until its core has room for it.
    fn call_when_there_is_room(
        &mut self,
        index: usize,
        procedure: spinrpc::Procedure,
        data: &[u8],
        reply_bytes: usize,
    ) {
        let client = self.callers[index].client.clone();
        self.turn_until("room for a call", |_| {
            let mut spec = CallSpec::new().reply_bytes_max(reply_bytes);
            let started = client.call(procedure, Token(7), &mut spec, |args| args.opaque(data));
            match started {
                Ok(_) => true,
                Err(Backpressure::NoBuffer | Backpressure::NoCredit) => false,
                Err(refused) => panic!("{refused}"),
            }
        });
    }

    /// Answers in the order in which they came; an error as its text.
    pub(crate) fn heard(&self, index: usize) -> Vec<Result<Vec<u8>, String>> {
        let heard = self.callers[index].heard.borrow();
        let texts = |result: &Result<_, CallError>| result.clone().map_err(|why| why.to_string());
        heard.replies.iter().map(|(_, result)| texts(result)).collect()
    }

    pub(crate) fn answered(&self, index: usize) -> usize {
        self.callers[index].heard.borrow().replies.len()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.seen.calls.load(Ordering::Relaxed)
    }
}

#[test]
fn a_long_body_takes_a_turn_for_each_step_and_short_calls_go_between() {
    let data = pattern(3, LONG);
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let long = all.connect(service, 16 << 20);
        let short = all.connect(service, 16 << 20);
        all.call(long, ECHO, &data);
        // Opening the call, and then sealing its reply, take as many turns as there are steps: short ones go between.
        let (mut turns, mut answers) = (0, 0);
        while all.heard(long).is_empty() {
            all.call(short, ECHO, b"short");
            let soon = all.turn_until("short reply", |all| all.heard(short).len() > answers);
            assert!(soon <= SOON, "{service:?}: a short call took {soon} turns");
            (turns, answers) = (turns + soon, answers + 1);
        }
        assert!(turns >= 2 * STEPS, "{service:?}: {turns} turns for two bodies");
        assert!(answers > STEPS / SOON, "{service:?}: {answers} short calls went between");
        assert_eq!(all.heard(long), [Ok(data.clone())], "{service:?}");
        assert!(all.heard(short).iter().all(|heard| *heard == Ok(b"short".to_vec())));
    }
}

/// A handler that answers later, on its core.
#[test]
fn a_deferred_reply_that_its_core_gives_is_sealed_in_steps() {
    let data = pattern(5, LONG);
    let mut all = Turned::start();
    let index = all.connect(GssService::Privacy, 16 << 20);
    all.call(index, LATER, &data);
    all.turn_until("the call", |all| !lock(&all.seen.deferred).is_empty());
    let (data_back, deferred) = lock(&all.seen.deferred).pop().unwrap();
    deferred.reply(|results| results.opaque(&data_back));
    let turns = all.turn_until("the reply", |all| !all.heard(index).is_empty());
    assert_eq!(all.heard(index), [Ok(data)]);
    assert!(turns >= STEPS, "{turns} turns");
}

/// The client's half of it.
#[test]
fn a_client_opens_a_long_reply_in_steps_and_hears_short_ones_between() {
    let data = pattern(5, LONG);
    let mut all = Turned::start();
    let index = all.connect(GssService::Privacy, STEP as u64);
    all.call(index, LATER, &data);
    all.turn_until("the call", |all| !lock(&all.seen.deferred).is_empty());
    let (data_back, deferred) = lock(&all.seen.deferred).pop().unwrap();
    // Sealed at once, by the thread that answers.
    std::thread::spawn(move || deferred.reply(|results| results.opaque(&data_back)))
        .join()
        .unwrap();
    all.call(index, ECHO, b"short");
    let soon = all.turn_until("a short reply", |all| !all.heard(index).is_empty());
    let rest = all.turn_until("the long reply", |all| all.heard(index).len() == 2);
    assert_eq!(all.heard(index), [Ok(b"short".to_vec()), Ok(data)]);
    // Out of memory that the server can write to it is copied before, in as many steps.
    assert!(soon <= SOON && soon + rest >= 2 * STEPS, "{soon} turns and {rest}");
}

/// A client may offer more memory than the results need, or less. Results are written to memory as long as what it offers.
#[test]
fn results_of_any_length_fit_the_memory_that_their_call_offers_or_end_it() {
    const OFFERED: usize = 4 * STEP;
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let index = all.connect(service, STEP as u64);
        for bytes in (0..STEP).step_by(509).chain(OFFERED - 80..OFFERED + 16).chain([LONG]) {
            let before = all.answered(index);
            all.call_when_there_is_room(index, FILL, &(bytes as u64).to_be_bytes(), OFFERED);
            all.turn_until("a reply", |all| all.answered(index) > before);
            match all.heard(index).pop().unwrap() {
                Ok(heard) => assert_eq!(heard, vec![0x77; bytes], "{service:?}, {bytes} bytes"),
                Err(_) => assert!(bytes + 4 > OFFERED, "{service:?}: {bytes} bytes did not fit"),
            }
        }
        let last = all.heard(index).pop().unwrap();
        assert!(last.is_err(), "{service:?}: more than was offered");
    }
}

/// Bodies of one connection are done one after the other, those of several in turn.
#[test]
fn long_bodies_of_a_connection_keep_their_order_and_those_of_others_do_not_wait() {
    let mut all = Turned::start();
    let (one, other) =
        (all.connect(GssService::Privacy, 16 << 20), all.connect(GssService::Privacy, 16 << 20));
    let bodies: Vec<Vec<u8>> = (0..4).map(|seed| pattern(seed, LONG >> seed)).collect();
    bodies.iter().for_each(|body| all.call(one, ECHO, body));
    all.turn_until("the first call", |all| all.calls() > 0);
    let behind = pattern(9, LONG / 8);
    all.call(other, ECHO, &behind);
    all.turn_until("the other reply", |all| !all.heard(other).is_empty());
    assert!(all.heard(one).len() < 4, "the other connection waited for all of the first");
    all.turn_until("all replies", |all| all.heard(one).len() == 4);
    let heard: Vec<Vec<u8>> = all.heard(one).into_iter().map(Result::unwrap).collect();
    assert_eq!(heard, bodies);
    assert_eq!(all.heard(other), [Ok(behind)]);
}

#[test]
fn every_service_carries_bodies_longer_than_a_step_both_ways() {
    for service in SERVICES {
        let mut all = Turned::start();
        let index = all.connect(service, STEP as u64);
        for bytes in [STEP - 64, STEP, STEP + 1, 3 * STEP, LONG, LONGEST / 4 + 3] {
            let data = pattern(bytes as u32, bytes);
            let before = all.heard(index).len();
            all.call(index, ECHO, &data);
            all.turn_until("a reply", |all| all.heard(index).len() > before);
            assert_eq!(all.heard(index)[before], Ok(data), "{service:?}, {bytes} bytes");
        }
    }
}

/// At the defaults a core has 48 blocks of a mebibyte: bodies that wait take a part of them, and the rest is done at once.
#[test]
fn as_many_long_calls_and_replies_as_there_are_credits_find_memory() {
    const MIB: usize = 1 << 20;
    let data = pattern(3, MIB);
    let mut all = Turned::start_as(|_| {});
    let index = all.connect_as(GssService::Privacy, |raw| raw.mem.arena_mib = 256);
    for _ in 0..30 {
        all.call_when_there_is_room(index, LENGTH, &data, 64);
    }
    all.turn_until("all writes", |all| all.answered(index) == 30);
    let length = || Ok(MIB.to_be_bytes().to_vec());
    assert!(all.heard(index).iter().all(|heard| *heard == length()), "a write found no memory");
    for _ in 0..64 {
        all.call_when_there_is_room(index, FILL, &(MIB as u64).to_be_bytes(), MIB + 64);
    }
    all.turn_until("all reads", |all| all.answered(index) == 94);
    let filled = vec![0x77; MIB];
    for heard in &all.heard(index)[30..] {
        assert_eq!(heard.as_deref(), Ok(&filled[..]));
    }
}

/// Bodies that are short, but come in one turn, do not keep a core for longer than a step and a step of those that wait.
#[test]
fn short_bodies_of_a_turn_wait_once_they_are_as_long_as_a_step() {
    const CLIENTS: usize = 8;
    let data = pattern(3, STEP * 3 / 4);
    for (step_bytes, at_least, at_most) in [(STEP as u64, 1, 3), (16 << 20, CLIENTS, CLIENTS)] {
        let mut all = Turned::start_as(|raw| {
            raw.fixed.gss_step_bytes = step_bytes;
            raw.mem.arena_mib = 64;
        });
        for index in 0..CLIENTS {
            assert_eq!(all.connect(GssService::Privacy, 16 << 20), index);
        }
        for index in 0..CLIENTS {
            all.call(index, ECHO, &data);
            all.callers[index].core.poll_once();
        }
        let (mut served, mut most) = (0, 0);
        all.turn_until("all calls", |all| {
            let calls = all.calls() as usize;
            (served, most) = (calls, most.max(calls - served));
            served == CLIENTS
        });
        assert!((at_least..=at_most).contains(&most), "{step_bytes}: {most} calls in a turn");
        for index in 0..CLIENTS {
            all.turn_until("a reply", |all| all.answered(index) == 1);
            assert_eq!(all.heard(index), [Ok(data.clone())]);
        }
    }
}

/// Results that are shorter than a step, of many calls in one turn: deferred, and given on the core.
#[test]
fn short_deferred_replies_that_a_core_gives_together_take_a_turn_for_each_step() {
    const CALLS: usize = 24;
    let data = pattern(3, STEP * 3 / 4);
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let index = all.connect(service, 16 << 20);
        let short = all.connect(service, 16 << 20);
        for _ in 0..CALLS {
            all.call_when_there_is_room(index, LATER, &data, STEP);
        }
        all.turn_until("all calls", |all| lock(&all.seen.deferred).len() == CALLS);
        for (data, deferred) in std::mem::take(&mut *lock(&all.seen.deferred)) {
            deferred.reply(|results| results.opaque(&data));
        }
        let (mut heard, mut most) = (0, 0);
        all.call(short, ECHO, b"short");
        let turns = all.turn_until("all replies", |all| {
            let answered = all.answered(index);
            (heard, most) = (answered, most.max(answered - heard));
            assert!(
                answered < CALLS / 2 || all.answered(short) == 1,
                "{service:?}: a short call waited"
            );
            answered == CALLS
        });
        // One and those of a step that waited, in each turn of the server.
        assert!(most <= 3, "{service:?}: {most} replies in a turn, {turns} turns");
        assert!(turns >= CALLS / 3, "{service:?}: {turns} turns");
        assert!(all.heard(index).iter().all(|heard| heard.as_deref() == Ok(&data[..])));
    }
}

/// Results that go inline, of calls without chunks, on several connections.
#[test]
fn inline_replies_of_one_turn_take_a_turn_for_each_step() {
    const CLIENTS: usize = 8;
    const BYTES: usize = 3 << 10;
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        for index in 0..CLIENTS {
            assert_eq!(all.connect(service, 16 << 20), index);
        }
        for index in 0..CLIENTS {
            all.call_when_there_is_room(index, FILL, &(BYTES as u64).to_be_bytes(), 0);
            all.callers[index].core.poll_once();
        }
        let (mut heard, mut most) = (0, 0);
        all.turn_until("all replies", |all| {
            let answered = (0..CLIENTS).map(|index| all.answered(index)).sum();
            (heard, most) = (answered, most.max(answered - heard));
            answered == CLIENTS
        });
        assert!(most <= 3, "{service:?}: {most} replies in a turn");
        for index in 0..CLIENTS {
            assert_eq!(all.heard(index), [Ok(vec![0x77; BYTES])], "{service:?}");
        }
    }
}
