//! Handlers and encoders that do anything that a core lets them do, at random: no call is lost or ends twice, no
//! reply is another call's, and when all is over every slot and credit is there again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const HELLO: Procedure = Procedure(1);
const WILD: Procedure = Procedure(2);
const CALM: Procedure = Procedure(3);
const CREDITS: u64 = 4;
/// Of each grant, for answers to calls in reverse.
const HELD_BACK: u64 = 2;
const REVERSE: u64 = 3;
const PAIRS: usize = 3;
const MEANT: &str = "meant";

#[derive(Default)]
struct World {
    /// For each connection the one that calls, and the one that calls in reverse.
    clients: Vec<Client>,
    /// Calls that have started: the client that made them, and its identifier.
    out: BTreeMap<u64, (usize, CallId)>,
    /// Calls in whose encoder something goes on.
    next: u64,
    deferred: Vec<(u64, Deferred)>,
    executed: BTreeMap<u64, u32>,
    wrong: Vec<String>,
    ok: u64,
    failed: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    downs: u64,
    /// Calls of each client that have left and were not executed, the oldest first.
    sent: [VecDeque<u64>; 2 * PAIRS],
    out_of_order: u64,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
    static SEED: Cell<u64> = const { Cell::new(1) };
    static IS_CALM: Cell<bool> = const { Cell::new(false) };
    static CLOSES: Cell<bool> = const { Cell::new(false) };
}

fn world<T>(then: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| then(&mut world.borrow_mut()))
}

fn random(below: u64) -> u64 {
    let mut x = SEED.get();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    SEED.set(x);
    (x >> 11) % below
}

fn one_in(count: u64) -> bool {
    random(count) == 0
}

/// Words of a message of any kind of length.
fn length() -> u32 {
    match random(8) {
        0 => 0,
        1..=3 => random(12) as u32,
        4 => 30 + random(30) as u32,
        5 => 60 + random(200) as u32,
        6 => random(900) as u32,
        _ => 40 + random(8) as u32,
    }
}

fn write(encoder: &mut Encoder<'_>, token: u64, words: u32) {
    encoder.u32(token as u32);
    encoder.u32(words);
    for word in 0..words {
        if word == words / 2 && one_in(16) {
            act(3);
        }
        encoder.u32(token as u32 ^ word);
    }
    if one_in(32) {
        act(3);
    }
    if !IS_CALM.get() && one_in(64) {
        std::panic::panic_any(MEANT);
    }
}

fn panic_maybe() {
    if !IS_CALM.get() && one_in(24) {
        std::panic::panic_any(MEANT);
    }
}

fn act(depth: u32) {
    if IS_CALM.get() || world(|world| world.clients.len()) < 2 * PAIRS {
        return;
    }
    match random(40) {
        0..=24 => start(random(2 * PAIRS as u64) as usize, WILD),
        25..=27 => {
            let found = world(|world| {
                let count = world.out.len() as u64;
                (count > 0).then(|| world.out.values().nth(random(count) as usize).copied())
            });
            if let Some(Some((from, call))) = found {
                let client = world(|world| world.clients[from].clone());
                // It may have ended, and its handler not have run yet.
                let _ = client.cancel(call);
            }
        }
        28..=34 => answer_one(),
        35 => {
            let client = world(|world| world.clients[random(2 * PAIRS as u64) as usize].clone());
            let user =
                AuthSys { stamp: 1, machine_name: b"m", uid: 1, gid: 2, groups: Groups::default() };
            let _ = client.set_auth_sys(Some(&user).filter(|_| one_in(2)));
        }
        36 if CLOSES.get() && one_in(6) => {
            let client = world(|world| world.clients[random(2 * PAIRS as u64) as usize].clone());
            client.close();
        }
        _ => {
            if depth < 3 {
                act(depth + 1);
                act(depth + 1);
            }
        }
    }
}

fn start(from: usize, procedure: Procedure) {
    let (client, token) = world(|world| {
        world.next += 1;
        (world.clients[from].clone(), world.next)
    });
    let mut spec = match random(8) {
        0 => CallSpec::short().deadline(Duration::from_micros(random(200))),
        1 => CallSpec::short().no_deadline(),
        2 => CallSpec::new().reply_bytes_max(5000),
        _ => CallSpec::short(),
    };
    let words = length();
    let started = client.call(procedure, Token(token), &mut spec, |args| write(args, token, words));
    match started {
        Ok(call) => world(|world| {
            world.out.insert(token, (from, call));
            world.sent[from].push_back(token);
        }),
        Err(why) => world(|world| {
            let why = format!("{why:?}");
            let why = why.split([' ', '(']).next().unwrap_or_default().to_owned();
            *world.refused.entry(why).or_default() += 1;
        }),
    }
}

fn answer_one() {
    let found = world(|world| {
        let count = world.deferred.len() as u64;
        (count > 0).then(|| world.deferred.swap_remove(random(count) as usize))
    });
    let Some((token, deferred)) = found else { return };
    match random(6) {
        0 => drop(deferred),
        1 => deferred.reject(AcceptStatus::SystemErr),
        _ => {
            let words = length();
            deferred.reply(|results| write(results, token, words));
        }
    }
}

fn reply_with(call: Call<'_>, token: u64) {
    let words = length();
    call.reply(|results| write(results, token, words));
}

struct Wild;

impl Service for Wild {
    fn call(&mut self, mut call: Call<'_>) {
        let procedure = call.procedure();
        if procedure == HELLO {
            let options = ReverseOptions::new();
            let mut call = call;
            let place = call.args().u32().unwrap() as usize + 1;
            let made = call.reverse_client(PROGRAM, VERSION, &options, |_| Ears(place)).unwrap();
            world(|world| match place < world.clients.len() {
                true => world.clients[place] = made,
                false => world.clients.push(made),
            });
            return call.reply(|_| {});
        }
        if procedure == Procedure(0) {
            return call.reply(|_| {});
        }
        let mut args = call.args();
        let token = u64::from(args.u32().unwrap());
        let words = args.u32().unwrap();
        for word in 0..words {
            if args.u32().unwrap() != token as u32 ^ word {
                world(|world| world.wrong.push(format!("arguments of {token}")));
            }
        }
        world(|world| {
            let times = world.executed.entry(token).or_default();
            *times += 1;
            if *times > 1 {
                world.wrong.push(format!("{token} is executed again"));
            }
            for sent in &mut world.sent {
                if let Some(place) = sent.iter().position(|sent| *sent == token) {
                    // Those before it, which a connection took with it, are not executed any more.
                    world.out_of_order += sent.drain(..=place).count() as u64 - 1;
                }
            }
        });
        if procedure == CALM {
            return call.reply(|results| {
                results.u32(token as u32);
                results.u32(0);
            });
        }
        while one_in(3) {
            act(1);
        }
        panic_maybe();
        match random(12) {
            0 => call.reject(AcceptStatus::GarbageArgs),
            1 => call.deny(AuthStat::TooWeak),
            2 => drop(call),
            3 | 4 => {
                let deferred = call.defer();
                if let Some(deferred) = deferred {
                    world(|world| world.deferred.push((token, deferred)));
                }
            }
            5 => match call.try_defer() {
                Ok(deferred) => deferred.reply(|results| write(results, token, 3)),
                Err(call) => reply_with(call, token),
            },
            _ => reply_with(call, token),
        }
        while one_in(3) {
            act(1);
        }
        panic_maybe();
    }
}

struct Ears(usize);

impl ReplyHandler for Ears {
    fn on_reply(&mut self, Token(token): Token, reply: Result<Reply<'_>, CallError>) {
        if token == 0 {
            return;
        }
        let whose = world(|world| world.out.remove(&token)).map(|(client, _)| client);
        if whose != Some(self.0) {
            world(|world| world.wrong.push(format!("an end of {token} for {}: {whose:?}", self.0)));
        }
        match reply {
            Ok(mut reply) => {
                let mut results = reply.results();
                let found = results.u32().unwrap();
                let words = results.u32().unwrap();
                let fine = (0..words).all(|word| results.u32() == Ok(token as u32 ^ word));
                if found != token as u32 || !fine {
                    world(|world| world.wrong.push(format!("{token} got that of {found}")));
                }
                world(|world| world.ok += 1);
            }
            Err(error) => world(|world| {
                let error = format!("{error:?}");
                let error = error.split([' ', '{']).next().unwrap_or_default().to_owned();
                *world.failed.entry(error).or_default() += 1;
            }),
        }
        while one_in(3) {
            act(1);
        }
        panic_maybe();
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { .. } = event {
            world(|world| world.downs += 1);
            act(2);
        }
    }
}

struct Both(Cores);

fn both(versions: Versions, once: bool) -> Both {
    let raw = small_with(|raw| {
        (raw.rpc.credits, raw.rpc.reverse_calls) = (CREDITS + HELD_BACK, REVERSE);
        raw.rpc.on_panic = OnPanic::Answer;
        raw.rpc.version = versions;
        raw.shm.ring_slots = 64;
        raw.rpc.reply_cache_mib = 1;
    });
    let serving = || {
        let engine = engine(raw.clone());
        match once {
            true => engine.serve_once(PROGRAM, VERSION, |_| Wild).unwrap(),
            false => engine.serve(PROGRAM, VERSION, |_| Wild).unwrap(),
        }
        engine
    };
    Both(Cores::new(serving(), serving(), |_| {}))
}

impl Both {
    /// Makes each connection that is not there.
    fn connect(&mut self) {
        let closes = CLOSES.replace(false);
        for place in (0..2 * PAIRS).step_by(2) {
            let is_up = |at| world(|world| world.clients.get(at).is_some_and(Client::is_up));
            if is_up(place) && is_up(place + 1) {
                continue;
            }
            // The other end may not have gone down yet.
            self.0.until("the end", || !is_up(place) && !is_up(place + 1));
            self.connect_at(place);
        }
        CLOSES.set(closes);
    }

    fn connect_at(&mut self, place: usize) {
        let options = ConnectOptions::new().take_reverse_calls();
        let (cores, make) = (&mut self.0, |_| Ears(place));
        let client = cores.near.connect_with(&cores.address, PROGRAM, VERSION, &options, make);
        let client = client.unwrap();
        world(|world| match place < world.clients.len() {
            true => world.clients[place] = client.clone(),
            false => world.clients.push(client.clone()),
        });
        self.0.until("the connection", || client.is_up());
        // A handler that ran in the same turn may have spent the first credit.
        self.0.until("a credit", || {
            let place = |args: &mut Encoder<'_>| args.u32(place as u32);
            let result = client.call(HELLO, Token(0), &mut CallSpec::short(), place);
            assert!(matches!(result, Ok(_) | Err(Backpressure::NoCredit)), "{result:?}");
            result.is_ok()
        });
        self.0.until("the other client", || {
            world(|world| world.clients.get(place + 1).is_some_and(Client::is_up))
        });
    }

    fn poll_any(&mut self) {
        let is_near = one_in(2);
        for _ in 0..1 + random(3) {
            match is_near {
                true => self.0.near.poll_once(),
                false => self.0.far.poll_once(),
            };
        }
    }

    fn go_wild(&mut self, steps: u32) {
        for _ in 0..steps {
            if one_in(3) {
                let outside = catch_unwind(AssertUnwindSafe(|| act(0)));
                if let Err(payload) = outside
                    && payload.downcast_ref::<&str>() != Some(&MEANT)
                {
                    resume_unwind(payload);
                }
            }
            self.poll_any();
            assert_eq!(world(|world| world.wrong.clone()), Vec::<String>::new());
            if world(|world| world.clients.iter().any(|client| !client.is_up())) {
                self.end();
                self.connect();
            }
        }
    }

    fn end(&mut self) {
        IS_CALM.set(true);
        let what = "the end of all calls";
        self.0.until(what, || {
            answer_one();
            world(|world| world.out.is_empty() && world.deferred.is_empty())
        });
        IS_CALM.set(false);
        assert_eq!(world(|world| world.wrong.clone()), Vec::<String>::new());
    }

    fn check_credits(&mut self) {
        self.end();
        // One that was closed just now goes down.
        (0..100).for_each(|_| self.poll_any());
        self.end();
        if world(|world| world.clients.iter().any(|client| !client.is_up())) {
            self.connect();
        }
        IS_CALM.set(true);
        let clients = world(|world| world.clients.clone());
        self.0.until("answers to calls that were given up", || {
            // One that was on its way is deferred only now.
            answer_one();
            clients.iter().all(|client| client.in_flight() == 0)
        });
        for round in 0..3 {
            // The first reply brings the credits.
            let credits = if round == 0 { [1, 1] } else { [CREDITS, REVERSE] };
            for (index, credits) in [credits; PAIRS].concat().into_iter().enumerate() {
                clients[index].set_auth_sys(None).unwrap();
                for number in 0..credits {
                    let token = world(|world| {
                        world.next += 1;
                        world.next
                    });
                    let started =
                        clients[index].call(CALM, Token(token), &mut CallSpec::short(), |args| {
                            args.u32(token as u32);
                            args.u32(0);
                        });
                    assert!(started.is_ok(), "{round} {index} {number}: {started:?}");
                    world(|world| world.out.extend(started.map(|call| (token, (index, call)))));
                }
            }
            self.end();
            IS_CALM.set(true);
        }
        IS_CALM.set(false);
    }
}

fn play(seed: u64, versions: Versions, once: bool, closes: bool, steps: u32) {
    WORLD.set(World::default());
    SEED.set(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    CLOSES.set(closes);
    IS_CALM.set(false);
    println!("plays seed {seed}");
    let mut both = both(versions, once);
    both.connect();
    both.go_wild(steps);
    both.check_credits();
    let cores = &mut both.0;
    (0..5000).for_each(|_| _ = (cores.near.poll_once(), cores.far.poll_once()));
    let [near, far] = [&cores.here, &cores.there].map(|engine| engine.stats(0).unwrap());
    world(|world| {
        println!(
            "seed {seed} {versions:?} {once}: {} ok, failed {:?}, refused {:?}, {} downs, {} out of order\n{near:?}\n{far:?}",
            world.ok, world.failed, world.refused, world.downs, world.out_of_order
        );
        if !closes {
            assert_eq!((near.stale, far.stale, world.downs), (0, 0, 0));
            assert!(world.out_of_order == 0 || near.queue_full + far.queue_full > 0);
            assert_eq!(near.calls_sent, far.calls_received);
            assert_eq!(far.calls_sent, near.calls_received);
            assert_eq!(near.calls_sent, far.replies_sent);
            assert_eq!(far.calls_sent, near.replies_sent);
        }
        world.clients.clear();
    });
    WORLD.set(World::default());
}

fn play_all(versions: Versions, once: bool, closes: bool) {
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&MEANT) {
            eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
        }
    }));
    let from = std::env::var("WILD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let count = std::env::var("WILD_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(4);
    for seed in from..from + count {
        play(seed, versions, once, closes, 4000);
    }
}

#[test]
fn version_one() {
    play_all(Versions::One, false, false);
}

#[test]
fn version_one_that_closes() {
    play_all(Versions::One, false, true);
}

#[test]
fn version_one_once() {
    play_all(Versions::One, true, false);
}

#[test]
fn version_two() {
    play_all(Versions::Two, false, false);
}

#[test]
fn both_versions_that_close() {
    play_all(Versions::Both, true, true);
}
