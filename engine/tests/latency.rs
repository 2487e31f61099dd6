//! Latencies that an engine measures when its control socket is asked for them: each call counts once, under its
//! procedure, whatever becomes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::control::{ask, control_of, latency_counts, number, parse};
use common::prelude::*;
use serde_json::{Value, json};
use spinrpc::control::{LATENCY_LEASE, LATENCY_SCHEMA, PROCEDURES_MEASURED, latency_bounds_ns};
use std::thread;

/// Called by these tests only.
const HIGH: Procedure = Procedure(PROCEDURES_MEASURED);
const HIGHER: Procedure = Procedure(u32::MAX);

struct Measured {
    server: Server,
    control: String,
    caller: Caller<Vec<u32>>,
}

impl Measured {
    fn start(server: Server) -> Self {
        let control = control_of(&server.address).expect("a control socket");
        let caller = Caller::connect(&server.address, all_words);
        Self { server, control, caller }
    }

    #[track_caller]
    fn call(&mut self, procedure: Procedure, times: u64) -> Vec<Result<Vec<u32>, CallError>> {
        (0..times).map(|_| self.caller.call(procedure, |args| args.opaque(&[1; 8]))).collect()
    }

    fn counts(&self) -> Vec<(String, u64)> {
        latency_counts(&self.latencies())
    }

    /// Asks until the core answers: one that is paused does not in time.
    fn latencies(&self) -> String {
        let mut answer = String::new();
        wait_until("a core that measures", || {
            answer = ask(&self.control, "latency");
            answer.contains("\"measuring\":true")
        });
        answer
    }

    /// A reply may be there before its call is counted. Fails if more calls are counted than expected.
    #[track_caller]
    fn expect(&self, expected: &[(&str, u64)]) {
        let total: u64 = expected.iter().map(|(_, count)| count).sum();
        let sum = || self.counts().iter().map(|(_, count)| count).sum::<u64>();
        wait_until("the counts", || sum() >= total);
        let expected: Vec<_> =
            expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        assert_eq!(self.counts(), expected);
    }
}

/// A core without calls that were measured.
fn core(index: usize, running: bool, measuring: bool) -> Value {
    json!({
        "index": index, "running": running, "measuring": measuring, "histograms": 0, "procedures": [],
    })
}

#[test]
fn calls_are_counted_once_asked_for_each_under_its_procedure() {
    let mut it = Measured::start(Server::start());
    it.call(ECHO, 3);
    let first = it.latencies();
    let expected = json!({
        "schema": LATENCY_SCHEMA,
        "pid": std::process::id(),
        "engine": parse(&first)["engine"],
        "lease_seconds": LATENCY_LEASE.as_secs(),
        "bounds_ns": latency_bounds_ns().collect::<Vec<_>>(),
        "cores": [core(0, true, true)],
    });
    assert_eq!(parse(&first), expected);
    assert!(it.call(ECHO, 5).iter().all(Result::is_ok));
    // Arguments that are too many are refused by the handler, and count.
    assert!(it.call(NULL, 1)[0].is_err());
    assert!(it.call(DROP, 2).iter().chain(&it.call(FAIL, 3)).all(Result::is_err));
    assert!(it.call(HIGH, 1).iter().chain(&it.call(HIGHER, 2)).all(Result::is_err));
    it.expect(&[("0", 1), ("1", 5), ("3", 2), ("4", 3), ("other", 3)]);
    let answer = it.latencies();
    assert_eq!(answer.matches(&format!("\"program\":{}", PROGRAM.0)).count(), 5, "{answer}");
    assert_eq!(answer.matches(&format!("\"version\":{}", VERSION.0)).count(), 5, "{answer}");
    let refused = ask(&it.control, "latency 5");
    assert!(refused.contains("allowed are snapshot, idle, latency and slow"), "{refused}");
}

/// Defer calls and answer them from another thread. Expect them counted when they are answered, with the time until
/// then.
#[test]
fn a_deferred_call_is_measured_until_its_answer() {
    const HELD: Duration = Duration::from_millis(3);
    let mut it = Measured::start(Server::start());
    it.counts();
    for number in 0..4 {
        it.caller.start(LATER, number.into(), |args| args.u32(number)).unwrap();
    }
    let shared = &it.server.shared;
    it.caller.core.run_until(|| shared.waiting() == 4);
    let deferred = Instant::now();
    it.expect(&[]);
    wait_until("the time", || deferred.elapsed() >= HELD);
    thread::scope(|scope| {
        scope.spawn(|| {
            shared.pop().unwrap().1.reply(|results| results.u32(0));
            shared.pop().unwrap().1.reject(spinrpc::AcceptStatus::SystemErr);
            drop(shared.pop());
            shared.pop().unwrap().1.too_late();
        });
    });
    assert_eq!(it.caller.replies(4).iter().filter(|(_, reply)| reply.is_ok()).count(), 1);
    it.expect(&[("7", 4)]);
    let sum_ns = number(&it.latencies(), "sum_ns");
    // The clocks differ by less.
    assert!(u128::from(sum_ns) > HELD.as_nanos() * 3, "{sum_ns}");
}

const PANICS: Procedure = Procedure(1);
const DEFERS_AND_PANICS: Procedure = Procedure(2);
const ANSWERS_AND_PANICS: Procedure = Procedure(3);

fn panicking(call: Call<'_>) {
    match call.procedure() {
        PANICS => panic!("in the handler"),
        DEFERS_AND_PANICS => {
            let _deferred = call.defer();
            panic!("with the call deferred");
        }
        ANSWERS_AND_PANICS => {
            call.reply(|_| {});
            panic!("after the reply");
        }
        _ => call.reply(|_| {}),
    }
}

/// Also where replies are kept.
#[test]
fn a_handler_that_panics_counts_once_and_the_next_call_counts_too() {
    for once in [false, true] {
        let raw = small_with(|raw| {
            (raw.rpc.reply_cache_mib, raw.rpc.on_panic) = (1, OnPanic::Answer);
        });
        let engine = Engine::new(valid(raw)).unwrap();
        match once {
            true => engine.serve_once(PROGRAM, VERSION, |_| panicking).unwrap(),
            false => engine.serve(PROGRAM, VERSION, |_| panicking).unwrap(),
        }
        let mut it = Measured::start(Server::started(engine, Default::default()));
        it.counts();
        for (procedure, is_ok) in [
            (PANICS, false),
            (DEFERS_AND_PANICS, false),
            (ANSWERS_AND_PANICS, true),
            (Procedure(4), true),
            (PANICS, false),
        ] {
            let replies = it.call(procedure, 1);
            assert_eq!(replies[0].is_ok(), is_ok, "{procedure:?}: {replies:?}");
        }
        it.expect(&[("1", 2), ("2", 1), ("3", 1), ("4", 1)]);
    }
}

/// One of two cores has a thread, which does not take its turns. Expect an answer that reports
/// this.
#[test]
fn cores_that_do_not_move_are_told_of_and_measure_once_they_do() {
    let raw = small_with(|raw| raw.cores.list = CoreList::Cpus(vec![0, 1]));
    let Ok(config) = raw.validate() else {
        return common::not_tested("two cores: this host has one CPU");
    };
    let engine = Engine::new(config).unwrap();
    serve(&engine);
    let address = listening(&engine);
    let control = control_of(&address).expect("a control socket");
    let mut core_0 = engine.core(0).unwrap();
    for _ in 0..20 {
        let answer = parse(&ask(&control, "latency"));
        assert_eq!(answer["cores"], json!([core(0, true, false), core(1, false, false)]));
    }
    wait_until("a core that measures", || {
        core_0.poll_once();
        parse(&ask(&control, "latency"))["cores"][0] == core(0, true, true)
    });
    drop(core_0);
    let answer = parse(&ask(&control, "latency"));
    assert_eq!(answer["cores"][0], core(0, false, false));
}
