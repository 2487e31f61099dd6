//! Handlers that panic: the call is answered and the core continues. A core that ends despite that gets no further
//! connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::log::{Line, logged};
use common::prelude::*;
use std::io::{self, Write};
use std::sync::mpsc;

const CREDITS: u64 = 8;
const EVERY_POLL: &str = "in every poll";
/// Two calls of each kind for each slot.
const ROUNDS: u64 = 2 * CREDITS;
const FINE: Procedure = Procedure(0);
const BEFORE: Procedure = Procedure(1);
const WHILE: Procedure = Procedure(2);
const AFTER: Procedure = Procedure(3);
const DEFERRED: Procedure = Procedure(4);
const POLL: Procedure = Procedure(5);

/// Panics in each place where an application can.
#[derive(Default)]
struct Panics {
    poll: bool,
    kept: Option<Deferred>,
}

impl Service for Panics {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            BEFORE => panic!("before the reply"),
            WHILE => call.reply(|_| panic!("in the encoder")),
            AFTER => {
                call.reply(|results| results.u32(3));
                panic!("after the reply");
            }
            DEFERRED => {
                let _deferred = call.defer();
                panic!("with the call deferred");
            }
            POLL => {
                (self.poll, self.kept) = (true, call.defer());
            }
            _ => call.reply(|results| results.u32(0)),
        }
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        if std::mem::take(&mut self.poll) {
            let kept = self.kept.take();
            kept.unwrap().reply(|_| panic!("in the poll"));
        }
        Progress::default()
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if matches!(event, ConnectionEvent::Up { .. }) {
            panic!("at an event");
        }
    }
}

/// Prints panics past the test harness. The harness captures output of several cores' threads
/// behind a lock of std that ThreadSanitizer does not see.
fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        // Of that one there are thousands.
        if panic.payload().downcast_ref::<&str>() != Some(&EVERY_POLL) {
            let _ = writeln!(io::stderr(), "{panic}");
        }
    }));
}

fn start(raw: RawConfig, once: bool) -> Server {
    tell_panics();
    let engine = Engine::new(valid(raw)).unwrap();
    let factory = |_: &_| Panics::default();
    match once {
        true => engine.serve_once(PROGRAM, VERSION, factory).unwrap(),
        false => engine.serve(PROGRAM, VERSION, factory).unwrap(),
    }
    Server::started(engine, Default::default())
}

fn answering() -> RawConfig {
    small_with(|raw| {
        (raw.rpc.reply_cache_mib, raw.rpc.on_panic) = (1, OnPanic::Answer);
        raw.rpc.credits = CREDITS;
    })
}

fn answer(caller: &mut Caller<Vec<u32>>, procedure: Procedure) -> Result<Vec<u32>, CallError> {
    caller.start(procedure, 1, |_| {}).unwrap();
    caller.reply()
}

/// More calls of each kind than the connection has slots: none may be lost.
#[test]
fn panic_in_a_handler_expect_system_err_and_a_core_that_goes_on() {
    for once in [false, true] {
        let server = start(answering(), once);
        let mut caller = Caller::connect(&server.address, all_words);
        for round in 0..ROUNDS {
            for procedure in [BEFORE, WHILE, DEFERRED, POLL] {
                let answer = answer(&mut caller, procedure);
                let refused = matches!(answer, Err(CallError::Accepted(AcceptStatus::SystemErr)));
                assert!(refused, "once: {once}, round {round}, {procedure:?}: {answer:?}");
            }
            assert_eq!(answer(&mut caller, AFTER).unwrap(), [3]);
            assert_eq!(answer(&mut caller, FINE).unwrap(), [0]);
        }
        let count = || server.engine.stats(0).unwrap().handler_panics;
        wait_until("the statistics", || count() == 5 * ROUNDS + 1);
    }
}

struct Restless;

impl Service for Restless {
    fn call(&mut self, _: Call<'_>) {}

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        std::panic::panic_any(EVERY_POLL);
    }
}

/// Panic in every turn for more than a second. Expect one line of log a second, which counts them all and names the place.
#[test]
fn panics_are_logged_once_a_second_and_all_are_counted() {
    tell_panics();
    let engine = Engine::new(valid(answering())).unwrap();
    engine.serve(PROGRAM, VERSION, |_| Restless).unwrap();
    let mut core = engine.core(0).unwrap();
    let count = || engine.stats(0).unwrap().handler_panics;
    let began = Instant::now();
    let lines = logged(|| {
        core.run_until(|| count() >= 100 && began.elapsed() > Duration::from_millis(1200));
        // The next one is a second after the first for sure, also if this thread was paused until now.
        let before = count();
        core.run_until(|| count() > before);
    });
    drop(core);
    let of_panics = || lines.iter().filter(|line| line.says("a handler panicked"));
    let logged = of_panics().count() as u64;
    assert!((2..=began.elapsed().as_secs() + 1).contains(&logged), "{logged} of {}", count());
    let panics = |line: &Line| line.field("panics").and_then(|count| count.parse::<u64>().ok());
    let told = of_panics().filter_map(panics).sum::<u64>();
    assert!((2..=count()).contains(&told), "{told} of {}", count());
    let is_named = |line: &Line| {
        let program = format!("{:?}", Some((PROGRAM, VERSION)));
        (line.field("handler"), line.field("program")) == (Some("Poll"), Some(&*program))
    };
    assert!(of_panics().all(is_named), "{lines:?}");
}

struct Clumsy {
    client: Client,
    replies: Rc<Cell<u32>>,
}

impl ReplyHandler for Clumsy {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {
        self.replies.set(self.replies.get() + 1);
        let _ = self
            .client
            .call(FINE, Token(9), &mut CallSpec::short(), |_| panic!("a call's encoder"));
    }

    fn on_event(&mut self, _: &ConnectionEvent) {
        panic!("an event of the client");
    }
}

#[test]
fn panic_in_a_reply_handler_expect_its_core_to_go_on() {
    let server = start(answering(), false);
    let raw = client_with(|raw| (raw.rpc.on_panic, raw.rpc.credits) = (OnPanic::Answer, CREDITS));
    let (_client_engine, mut core) = with_core(raw);
    let replies = Rc::new(Cell::new(0));
    let of_handler = Rc::clone(&replies);
    let make = |client| Clumsy { client, replies: of_handler };
    let client = core.connect(&server.address, PROGRAM, VERSION, make).unwrap();
    run_core(&mut core, "the connection", || client.is_up());
    for round in 1..=2 * CREDITS as u32 {
        client.call(FINE, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
        run_core(&mut core, "the reply", || replies.get() == round);
        assert_eq!(client.in_flight(), 0);
    }
    drop(core);
}

fn ending() -> RawConfig {
    small_with(|raw| (raw.cores.list, raw.rpc.on_panic) = (two_cores(), OnPanic::End))
}

/// Two cores, of one CPU if there is only one.
fn two_cores() -> CoreList {
    let allowed: Vec<usize> = spinrpc::sys::affinity::allowed().unwrap().iter().collect();
    CoreList::Cpus(vec![allowed[0], *allowed.get(1).unwrap_or(&allowed[0])])
}

#[test]
fn panic_with_on_panic_end_expect_run_to_return_an_error_though_other_cores_live() {
    let engine = Engine::new(valid(ending())).unwrap();
    engine
        .serve(PROGRAM, VERSION, |_| {
            |call: Call<'_>| match call.procedure() {
                BEFORE => panic!("it broke"),
                _ => call.reply(|_| {}),
            }
        })
        .unwrap();
    let address = listening(&engine);
    let (done, ended) = mpsc::channel();
    let runs = engine.clone();
    std::thread::spawn(move || done.send(runs.run()));
    let mut caller = Caller::connect(&address, all_words);
    caller.start(BEFORE, 1, |_| {}).unwrap();
    assert!(caller.reply().is_err());
    let error = ended.recv_timeout(LIMIT).expect("run() does not return").unwrap_err();
    assert!(error.to_string().contains("it broke"), "{error}");
}

/// The first core's thread panics in its own code; the second one keeps serving.
#[test]
fn a_dead_core_gets_no_more_connections() {
    let engine = Engine::new(valid(ending())).unwrap();
    engine.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.reply(|_| {})).unwrap();
    let address = listening(&engine);
    let dead = engine.clone();
    let died = std::thread::spawn(move || {
        let mut core = dead.core(0).unwrap();
        core.run_until(|| panic!("a thread of the application"));
    });
    died.join().unwrap_err();
    let (is_done, alive) = (Arc::new(AtomicBool::new(false)), engine.clone());
    let done = Arc::clone(&is_done);
    let serving = std::thread::spawn(move || {
        let mut core = alive.core(1).unwrap();
        core.run_until(|| done.load(Ordering::Relaxed));
    });
    wait_until("the second core", || engine.stats(1).unwrap().polls > 0);
    let mut connected = 0;
    for _ in 0..6 {
        let (_client, mut core) = with_core(client_config());
        connected += usize::from(open(&mut core, &address, all_words).is_ok());
    }
    is_done.store(true, Ordering::Relaxed);
    serving.join().unwrap();
    assert_eq!(connected, 6, "connections by the core that lives");
}
