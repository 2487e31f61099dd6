//! The slowest calls of the last minutes, by stage: each test stalls calls in one stage, and expects most of their time
//! there. A machine that pauses in another stage is given another try.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::control::{ask, control_of, parse};
use common::prelude::*;
use common::raw::*;
use serde_json::{Value, json};
use spinrpc::control::{SLOW_CALLS_KEPT, SLOW_MINUTES, SLOW_SCHEMA, STAGES};
use std::sync::mpsc::channel;
use std::thread::sleep;

const STALL: Duration = Duration::from_millis(50);
const TRIES: u32 = 9;

/// The handler sleeps.
const SLEEPS: Procedure = Procedure(100);
/// The call is deferred.
const WAITS: Procedure = Procedure(101);
/// The handler answers the call that is deferred, and sleeps.
const ANSWERS_AND_SLEEPS: Procedure = Procedure(102);
/// Has a chunk.
const PUT: Procedure = Procedure(103);
const PUT_BYTES: usize = 256 << 10;
/// The results are as long, and the handler sleeps behind them.
const FILL: Procedure = Procedure(104);
/// The handler does nothing.
const FIRST: Procedure = Procedure(200);
/// The same, and those behind it.
const SECOND: Procedure = Procedure(201);

type Waiting = Arc<Mutex<Vec<Deferred>>>;

/// An engine with the service, and the calls that it defers.
fn stalling(raw: RawConfig) -> (Engine, Waiting) {
    let (engine, waiting) = (engine(raw), Waiting::default());
    let all = Arc::clone(&waiting);
    let serve = move |call: Call<'_>| match call.procedure() {
        WAITS => lock(&all).extend(call.defer()),
        SLEEPS => {
            sleep(STALL);
            call.reply(|_| {});
        }
        ANSWERS_AND_SLEEPS => {
            let deferred = lock(&all).pop();
            std::thread::spawn(|| deferred.map(|it| it.reply(|_| {}))).join().unwrap();
            sleep(STALL);
            call.reply(|_| {});
        }
        FILL => {
            call.reply(|results| results.opaque(&[7; PUT_BYTES]));
            sleep(STALL);
        }
        _ => call.reply(|_| {}),
    };
    engine.serve(PROGRAM, VERSION, move |_| serve.clone()).unwrap();
    (engine, waiting)
}

/// An address of a socket, and what configures the engines of both ends.
fn by_socket() -> (String, fn(&mut RawConfig)) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp://{}", free.local_addr().unwrap());
    (address, |raw| (raw.fabric.driver, raw.mem.arena_mib) = (Driver::Iwarp, 16))
}

struct Stalling {
    server: Server,
    control: String,
    waiting: Waiting,
}

impl Stalling {
    fn start(change: impl FnOnce(&mut RawConfig)) -> Self {
        let (engine, waiting) = stalling(small_with(change));
        let server = Server::started(engine, Default::default());
        let control = control_of(&server.address).expect("a control socket");
        Self { server, control, waiting }
    }

    fn caller(&self) -> Caller<Vec<u32>> {
        Caller::connect(&self.server.address, all_words)
    }

    /// An engine that has a handle, its control socket, and the handle.
    fn handle(&self) -> (Server, String, ClientHandle) {
        let client = Server::with(client_config());
        let control = control_of(&client.address).expect("a control socket");
        let (address, options) = (&self.server.address, ConnectOptions::new());
        let handle = client.engine.connect(0, address, PROGRAM, VERSION, &options).unwrap();
        (client, control, handle)
    }

    /// Answers the call that is deferred, after the stall.
    fn answer_late(&self, answer: impl FnOnce(Deferred)) {
        wait_until("a deferred call", || !lock(&self.waiting).is_empty());
        sleep(STALL);
        answer(lock(&self.waiting).pop().unwrap());
    }
}

/// The slow calls of an engine.
fn slow_calls(control: &str) -> Vec<Value> {
    let mut calls = Vec::new();
    wait_until("an answer of the core", || {
        let answer = parse(&ask(control, "slow"));
        assert_eq!(
            (&answer["schema"], &answer["minutes"]),
            (&json!(SLOW_SCHEMA), &json!(SLOW_MINUTES))
        );
        let core = &answer["cores"][0];
        calls = core["calls"].as_array().unwrap().clone();
        core["answered"] == true
    });
    calls
}

fn stage_ns(call: &Value, stage: &str) -> u64 {
    call["stages"][stage].as_u64().unwrap_or(0)
}

/// Returns true if a call to this procedure spent the stall in this stage, and more than in any other.
fn is_attributed(calls: &[Value], procedure: Procedure, stage: &str) -> bool {
    calls.iter().filter(|call| call["procedure"] == procedure.0).any(|call| {
        let longest = STAGES.iter().map(|other| stage_ns(call, other)).max();
        let sum: u64 = STAGES.iter().map(|other| stage_ns(call, other)).sum();
        // Each part is rounded down.
        assert!(call["total_ns"].as_u64().unwrap() - sum < STAGES.len() as u64 * 2, "{call}");
        let ns = stage_ns(call, stage);
        u128::from(ns) >= STALL.as_nanos() && longest == Some(ns)
    })
}

/// Stalls calls until one is attributed.
#[track_caller]
fn expect(control: &str, (procedure, stage): (Procedure, &str), mut stall: impl FnMut()) {
    for _ in 0..TRIES {
        stall();
        // A reply may be here before its call has ended there.
        sleep(STALL);
        if is_attributed(&slow_calls(control), procedure, stage) {
            return;
        }
    }
    panic!("no call to {procedure:?} spent most in {stage}: {:#?}", slow_calls(control));
}

/// Nobody has asked before the first of these calls, which the core samples.
#[test]
fn a_handler_that_sleeps_is_found_though_nobody_watched() {
    let it = Stalling::start(|_| {});
    let mut caller = it.caller();
    expect(&it.control, (SLEEPS, "handler"), || {
        (0..3).for_each(|_| {
            caller.call(SLEEPS, |_| {}).unwrap();
            // Idle turns.
            sleep(STALL / 2);
        });
    });
    let call = slow_calls(&it.control).swap_remove(0);
    assert_eq!((&call["role"], &call["program"]), (&json!("server"), &json!(PROGRAM.0)));
    assert_eq!(call["version"], VERSION.0);
    let peer = call["peer"].as_str().unwrap();
    assert!(peer.ends_with(&format!("process {}", std::process::id())), "{peer}");
}

#[test]
fn a_call_behind_one_that_sleeps_has_waited_in_the_queue() {
    let it = Stalling::start(|_| {});
    let mut caller = it.caller();
    slow_calls(&it.control);
    expect(&it.control, (ECHO, "queue"), || {
        for (token, procedure) in [SLEEPS, ECHO].into_iter().enumerate() {
            caller.start(procedure, token as u64, |_| {}).unwrap();
        }
        caller.replies(2);
    });
}

#[test]
fn a_call_after_one_that_sleeps_has_not_waited_for_it() {
    let it = Stalling::start(|_| {});
    let mut caller = it.caller();
    slow_calls(&it.control);
    for _ in 0..TRIES {
        caller.call(SLEEPS, |_| {}).unwrap();
        caller.call(ECHO, |_| {}).unwrap();
    }
    sleep(STALL);
    let calls = slow_calls(&it.control);
    let echoes: Vec<_> = calls.iter().filter(|call| call["procedure"] == ECHO.0).collect();
    let is_short = |call: &&&Value| u128::from(stage_ns(call, "queue")) < STALL.as_nanos();
    assert!(echoes.iter().filter(is_short).count() > 0, "{echoes:#?}");
}

#[test]
fn a_deferred_call_that_is_answered_late_and_the_part_of_a_disk() {
    let it = Stalling::start(|_| {});
    let mut caller = it.caller();
    let mut stall = |disk: Duration| {
        caller.start(WAITS, 0, |_| {}).unwrap();
        caller.core.poll_once();
        it.answer_late(|mut deferred| {
            deferred.note_disk(disk);
            deferred.reply(|_| {});
        });
        caller.replies(1);
    };
    expect(&it.control, (WAITS, "deferred"), || stall(Duration::ZERO));
    // More than all the time there was.
    expect(&it.control, (WAITS, "disk"), || stall(STALL * 1000));
}

#[test]
fn an_answer_that_its_core_takes_late() {
    let it = Stalling::start(|_| {});
    let mut caller = it.caller();
    expect(&it.control, (WAITS, "answer"), || {
        caller.start(WAITS, 0, |_| {}).unwrap();
        caller.start(ANSWERS_AND_SLEEPS, 1, |_| {}).unwrap();
        caller.replies(2);
    });
}

/// The server has one credit to give, and keeps the first call.
#[test]
fn calls_of_handles_wait_for_a_credit_and_for_the_server() {
    let it = Stalling::start(|raw| raw.rpc.credits = 1);
    let (_client, control, handle) = it.handle();
    let stall = || {
        let first = handle.start(WAITS, CallSpec::short(), |_| {}).unwrap();
        let second = handle.start(ECHO, CallSpec::short(), |_| {}).unwrap();
        it.answer_late(|deferred| deferred.reply(|_| {}));
        first.wait().unwrap();
        second.wait().unwrap();
    };
    expect(&control, (WAITS, "wire"), stall);
    expect(&control, (ECHO, "credit"), stall);
    assert_eq!(slow_calls(&control)[0]["role"], "client");
}

/// Others ask for nothing: as many of a thread's calls are timed as tens of milliseconds have passed, and one or two more.
#[test]
fn calls_of_handles_are_timed_once_in_a_while() {
    let it = Stalling::start(|_| {});
    let (_client, control, handle) = it.handle();
    let began = Instant::now();
    for _ in 0..SLOW_CALLS_KEPT {
        handle.start(ECHO, CallSpec::short(), |_| {}).unwrap().wait().unwrap();
    }
    let most = began.elapsed().as_millis() / 10 + 2;
    // Answers of the engine may be some milliseconds old.
    sleep(STALL);
    let timed = slow_calls(&control).len() as u128;
    assert!((1..=most).contains(&timed), "{timed} calls of {SLOW_CALLS_KEPT}, not {most}");
}

/// The core sleeps for long before each pair of calls, and for less than samples are apart between the two. By a socket: the turn
/// in which a call comes is the first one.
#[test]
fn the_first_call_after_a_sleep_is_timed() {
    let (address, iwarp) = by_socket();
    let (engine, _) = stalling(small_with(|raw| {
        iwarp(raw);
        (raw.poll.mode, raw.poll.park_us) = (IdlePolicy::Sleep, 1_000_000);
    }));
    engine.listen(&address).unwrap();
    let _server = Started::new(engine);
    let control = control_of(&address).expect("a control socket");
    let mut caller = Caller::<Vec<u32>>::connect_with(small_with(iwarp), &address, all_words);
    for _ in 0..TRIES {
        sleep(STALL);
        caller.call(FIRST, |_| {}).unwrap();
        sleep(STALL / 50);
        caller.call(SECOND, |_| {}).unwrap();
    }
    // A reply may be here before its call has ended there, and answers may be ten milliseconds old.
    sleep(STALL);
    let calls = slow_calls(&control);
    let timed = calls.iter().filter(|call| call["procedure"] == FIRST.0).count();
    assert_eq!(timed as u32, TRIES, "{calls:#?}");
}

/// Both ends on the test's thread: it says when the server takes a turn.
struct Stepped {
    server: Core,
    caller: Caller<Vec<u32>>,
    _engine: Engine,
    address: String,
    control: String,
    waiting: Waiting,
}

impl Stepped {
    fn start(change: impl Fn(&mut RawConfig)) -> Self {
        Self::start_at(&unique_address(), change, |_| ConnectOptions::new())
    }

    fn start_at(
        address: &str,
        change: impl Fn(&mut RawConfig),
        options: impl FnOnce(&Engine) -> ConnectOptions,
    ) -> Self {
        let (engine, waiting) = stalling(small_with(&change));
        let options = options(&engine);
        engine.listen(address).unwrap();
        let server = engine.core(0).unwrap();
        let client = Engine::new(valid(small_with(change))).unwrap();
        let caller = Caller::asked(client, address, &options, all_words);
        let control = control_of(address).expect("a control socket");
        let address = address.to_owned();
        let mut it = Self { server, caller, _engine: engine, address, control, waiting };
        it.turns_until(|it| it.caller.client.is_up());
        it
    }

    /// The server takes turns, and its client, until `done` returns true behind a turn of the server.
    #[track_caller]
    fn turns_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        loop {
            self.caller.core.poll_once();
            self.server.poll_once();
            if done(self) {
                return;
            }
            assert!(Instant::now() < end, "{:?}", self.caller.heard.borrow().events);
        }
    }

    #[track_caller]
    fn reply(&mut self) -> Result<Vec<u32>, CallError> {
        self.turns_until(|it| !it.caller.heard.borrow().replies.is_empty());
        self.caller.reply()
    }

    #[track_caller]
    fn call(&mut self, procedure: Procedure) {
        self.caller.start(procedure, 0, |_| {}).unwrap();
        self.reply().unwrap();
    }

    /// A call with a chunk that the server fetches.
    fn start_put(&self, client: &Client) {
        let mut spec = CallSpec::short().argument(client.bulk(PUT_BYTES).unwrap());
        client.call(PUT, Token(0), &mut spec, |args| args.bulk()).unwrap();
    }

    /// Has no sample waiting for the next call, if that comes within ten milliseconds.
    fn take_samples(&mut self) {
        sleep(STALL);
        // More idle turns than are between two publications of statistics.
        for _ in 0..4096 {
            self.server.poll_once();
        }
        self.call(FIRST);
    }

    fn slow_calls(&mut self) -> Vec<Value> {
        // Answers may be ten milliseconds old, as other tests ask for snapshots.
        sleep(STALL / 2);
        let control = self.control.clone();
        let asking = std::thread::spawn(move || slow_calls(&control));
        while !asking.is_finished() {
            self.server.poll_once();
            pause();
        }
        asking.join().unwrap()
    }
}

#[test]
fn turns_without_a_handler_are_no_time_in_the_queue() {
    const PARTS: u32 = 2;
    let mut it = Stepped::start(|_| {});
    it.slow_calls();
    for _ in 0..TRIES {
        for _ in 0..PARTS {
            it.caller.start(WAITS, 0, |_| {}).unwrap();
        }
        it.turns_until(|it| lock(&it.waiting).len() == PARTS as usize);
        let waiting = std::mem::take(&mut *lock(&it.waiting));
        for deferred in waiting {
            sleep(STALL);
            deferred.reply(|_| {});
            it.server.poll_once();
        }
        it.caller.start(ECHO, 0, |_| {}).unwrap();
        it.turns_until(|it| it.caller.heard.borrow().replies.len() > PARTS as usize);
        it.caller.replies(PARTS as usize + 1);
    }
    let calls = it.slow_calls();
    let mut echoes = calls.iter().filter(|call| call["procedure"] == ECHO.0);
    let is_short = |call: &Value| u128::from(stage_ns(call, "queue")) < STALL.as_nanos();
    assert!(echoes.any(is_short), "{calls:#?}");
}

#[test]
fn a_call_is_timed_for_others_if_they_ask() {
    let mut it = Stepped::start(|_| {});
    let is_timed = |it: &mut Stepped| {
        it.caller.start(WAITS, 0, |_| {}).unwrap();
        it.turns_until(|it| !lock(&it.waiting).is_empty());
        let deferred = lock(&it.waiting).pop().unwrap();
        let is_timed = deferred.is_timed();
        deferred.reply(|_| {});
        it.reply().unwrap();
        is_timed
    };
    let not = (0..TRIES).any(|_| {
        it.take_samples();
        !is_timed(&mut it)
    });
    assert!(not, "each of {TRIES}");
    it.slow_calls();
    assert!(is_timed(&mut it));
}

/// The program of the call that waited for its chunk is not served, and the next call has nothing to do with it.
#[test]
fn a_call_that_is_refused_after_its_wait_leaves_the_next_one_alone() {
    let mut it = Stepped::start(|_| {});
    let (address, (go, order), (end, ended)) = (it.address.clone(), channel(), channel());
    let putting = std::thread::spawn(move || {
        let mut peer = RawPeer::connect(&address);
        end.send(()).unwrap();
        for xid in order {
            let slice = peer.expose(&[7; 1000], Access::RemoteRead);
            let mut call = rpc_call(xid, PUT, &[]);
            call[3] += 1;
            let lists = [&read_segment(40, slice)[..], &NO_LISTS].concat();
            peer.send_words(&message(xid, MSG, &lists, &call));
            assert!(matches!(peer.hear(), Said::Message(_)));
            end.send(()).unwrap();
        }
    });
    it.turns_until(|_| ended.try_recv().is_ok());
    for number in 0..TRIES {
        it.take_samples();
        go.send(number).unwrap();
        it.turns_until(|_| ended.try_recv().is_ok());
        it.call(Procedure(SECOND.0 + number));
    }
    drop(go);
    putting.join().unwrap();
    let calls = it.slow_calls();
    let is_timed = |procedure| calls.iter().any(|call| call["procedure"] == procedure);
    assert!((0..TRIES).any(|number| !is_timed(SECOND.0 + number)), "{calls:#?}");
    assert!(calls.iter().any(|call| call["procedure"] == Value::Null), "{calls:#?}");
}

/// Those of a call with this procedure, until one is attributed.
#[track_caller]
fn expect_stepped(
    it: &mut Stepped,
    (procedure, stage): (Procedure, &str),
    stall: impl Fn(&mut Stepped),
) {
    for _ in 0..TRIES {
        stall(it);
        if is_attributed(&it.slow_calls(), procedure, stage) {
            return;
        }
    }
    panic!("no call to {procedure:?} spent most in {stage}: {:#?}", it.slow_calls());
}

/// The server reads the chunk from the client's socket, and the client takes no turn.
#[test]
fn a_chunk_that_its_client_sends_late_is_fetched_for_long() {
    let (address, iwarp) = by_socket();
    let mut it = Stepped::start_at(&address, iwarp, |_| ConnectOptions::new());
    expect_stepped(&mut it, (PUT, "fetch"), |it| {
        it.start_put(&it.caller.client);
        it.caller.core.poll_once();
        let end = Instant::now() + 2 * STALL;
        while Instant::now() < end {
            it.server.poll_once();
        }
        it.reply().unwrap();
    });
}

/// The application has all memory for this time, or until the call is refused.
fn stall_memory(it: &mut Stepped, time: Duration) -> Result<Vec<u32>, CallError> {
    let sizes = (0..=20).rev().map(|power| 1 << power);
    let server = &it.server;
    let blocks = |bytes| std::iter::from_fn(move || server.bulk(bytes));
    let held: Vec<_> = sizes.flat_map(blocks).collect();
    it.start_put(&it.caller.client);
    let end = Instant::now() + time;
    it.turns_until(|it| !it.caller.heard.borrow().replies.is_empty() || Instant::now() >= end);
    drop(held);
    it.reply()
}

#[test]
fn a_call_that_waits_for_memory_is_fetched_for_long() {
    let mut it = Stepped::start(|_| {});
    expect_stepped(&mut it, (PUT, "fetch"), |it| {
        stall_memory(it, STALL).unwrap();
    });
}

#[test]
fn a_call_that_is_refused_for_want_of_memory_was_fetched_for_long() {
    let mut it = Stepped::start(|raw| raw.fixed.memory_wait_ms = STALL.as_millis() as u64);
    expect_stepped(&mut it, (PUT, "fetch"), |it| {
        stall_memory(it, LIMIT).unwrap_err();
    });
}

/// The core looks late at bodies that a thread has opened or sealed, because a handler sleeps meanwhile: that of the call behind long
/// arguments, and that of the call with long results.
#[cfg(feature = "gss-test")]
#[test]
fn bodies_whose_end_the_core_sees_late() {
    use spinrpc::gss::mechanism::GivenKeys;
    use spinrpc::gss::{Enctype, GssAcceptor, GssInitiator, GssService};
    let keys = || GivenKeys {
        enctype: Enctype::Aes256Sha1,
        key: vec![0x5a; 32],
        name: "server".to_owned(),
        tokens: 1,
        lifetime: u64::MAX,
    };
    let larger = |raw: &mut RawConfig| raw.mem.arena_mib = 32;
    let start = |it: &Stepped, procedure, arguments: usize| {
        let (mut spec, data) =
            (CallSpec::new().reply_bytes_max(PUT_BYTES + 64), vec![7; arguments]);
        let client = &it.caller.client;
        client.call(procedure, Token(0), &mut spec, |args| args.opaque(&data)).unwrap();
    };
    let stall_opened = |it: &mut Stepped| {
        start(it, ECHO, PUT_BYTES);
        // A thread of the client seals them.
        sleep(STALL / 5);
        it.caller.core.poll_once();
        // In a chunk as well, and short enough to be opened at once.
        start(it, SLEEPS, 16 << 10);
        it.turns_until(|it| it.caller.heard.borrow().replies.len() == 2);
        it.caller.replies(2).into_iter().for_each(|(_, reply)| drop(reply.unwrap()));
    };
    let stall_sealed = |it: &mut Stepped| {
        start(it, FILL, 0);
        it.reply().unwrap();
    };
    for service in [GssService::Integrity, GssService::Privacy] {
        let secured = |engine: &Engine| {
            engine.gss(GssAcceptor::new(keys())).unwrap();
            ConnectOptions::new().gss(GssInitiator::new(keys(), "test@server").service(service))
        };
        let mut it = Stepped::start_at(&unique_address(), larger, secured);
        expect_stepped(&mut it, (ECHO, "crypto"), stall_opened);
        expect_stepped(&mut it, (FILL, "crypto"), stall_sealed);
    }
}
