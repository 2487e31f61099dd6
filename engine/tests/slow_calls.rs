//! The slowest calls of the last minutes, by stage: each test stalls calls in one stage, and expects most of their time
//! there. A machine that pauses in another stage is given another try.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::control::{ask, control_of, parse};
use common::prelude::*;
use serde_json::{Value, json};
use spinrpc::control::{SLOW_MINUTES, SLOW_SCHEMA, STAGES};
use std::thread::sleep;

const STALL: Duration = Duration::from_millis(50);
const TRIES: u32 = 9;

/// The handler sleeps.
const SLEEPS: Procedure = Procedure(100);
/// The call is deferred.
const WAITS: Procedure = Procedure(101);
/// The handler answers the call that is deferred, and sleeps.
const ANSWERS_AND_SLEEPS: Procedure = Procedure(102);

type Waiting = Arc<Mutex<Vec<Deferred>>>;

struct Stalling {
    server: Server,
    control: String,
    waiting: Waiting,
}

impl Stalling {
    fn start(change: impl FnOnce(&mut RawConfig)) -> Self {
        let engine = engine(small_with(change));
        let waiting = Waiting::default();
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
            _ => call.reply(|_| {}),
        };
        engine.serve(PROGRAM, VERSION, move |_| serve.clone()).unwrap();
        let server = Server::started(engine, Default::default());
        let control = control_of(&server.address).expect("a control socket");
        Self { server, control, waiting }
    }

    fn caller(&self) -> Caller<Vec<u32>> {
        Caller::connect(&self.server.address, all_words)
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
    let client = engine(client_config());
    serve(&client);
    let client = Server::started(client, Default::default());
    let control = control_of(&client.address).expect("a control socket");
    let (address, options) = (&it.server.address, ConnectOptions::new());
    let handle = client.engine.connect(0, address, PROGRAM, VERSION, &options).unwrap();
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
