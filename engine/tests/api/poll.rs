//! Services with background work: calls are deferred, and answered when the core polls the service.

use crate::common::prelude::*;

/// `u32` in; deferred, the same out.
const LATER: Procedure = Procedure(1);

#[derive(Default)]
struct Shared {
    calls: AtomicU64,
    polls: AtomicU64,
    /// Polls keep the calls that came instead of answering them, and say that they wait.
    holds: AtomicBool,
    held: Mutex<Vec<(u32, Deferred)>>,
}

impl Shared {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::Relaxed);
    }
}

/// Starts each call's work when it comes, and ends it when it is polled.
struct Batched(Arc<Shared>);

impl Service for Batched {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() != LATER {
            return call.reply(|_| {});
        }
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let number = call.args().u32().unwrap();
        lock(&self.0.held).push((number, call.defer().unwrap()));
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        let mut held = lock(&self.0.held);
        if self.0.holds.load(Ordering::Relaxed) {
            return Progress { events: 0, is_waiting: !held.is_empty() };
        }
        let events = held.len();
        for (number, deferred) in held.drain(..) {
            deferred.reply(|results| results.u32(number));
        }
        Progress { events, is_waiting: false }
    }
}

/// A server's core and a client, both moved by the test, turn by turn.
struct Pair {
    cores: Cores,
    caller: Client,
    heard: SharedHeard<Vec<u32>>,
    shared: Arc<Shared>,
}

fn keeping_replies() -> RawConfig {
    small_with(|raw| raw.rpc.reply_cache_mib = 1)
}

impl Pair {
    /// As a service whose calls are executed any number of times, or once.
    fn both() -> [Self; 2] {
        [false, true].map(Self::new)
    }

    fn new(once: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let of_service = Arc::clone(&shared);
        let factory = move |_: &_| Batched(Arc::clone(&of_service));
        let mut cores =
            Cores::new(engine(client_config()), engine(keeping_replies()), |there| match once {
                true => there.serve_once(PROGRAM, VERSION, factory).unwrap(),
                false => there.serve(PROGRAM, VERSION, factory).unwrap(),
            });
        let heard = SharedHeard::default();
        let caller = cores.connect(&ConnectOptions::new(), |_| recorder(&heard, all_words));
        Self { cores, caller, heard, shared }
    }

    fn start(&self, number: u32) {
        let spec = &mut spinrpc::CallSpec::short();
        self.caller.call(LATER, Token(number.into()), spec, |args| args.u32(number)).unwrap();
    }

    fn replies(&self) -> Vec<Vec<u32>> {
        let mut heard = self.heard.borrow_mut();
        heard.replies.drain(..).map(|(_, reply)| reply.unwrap()).collect()
    }

    /// The server takes turns until this number of calls has come in all, and none after that.
    fn bring_calls(&mut self, count: u64) {
        turn_until("calls", || {
            self.cores.near.poll_once();
            self.cores.far.poll_once();
            self.shared.calls() == count
        });
    }

    /// The client alone takes turns until it has heard this number of replies.
    fn hear(&mut self, count: usize) {
        turn_until("replies", || {
            self.cores.near.poll_once();
            self.heard.borrow().replies.len() >= count
        });
    }

    fn parks(&self) -> u64 {
        self.cores.there.stats(0).unwrap().parks
    }
}

#[track_caller]
fn turn_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
    }
}

#[test]
fn work_that_a_call_began_is_polled_for_and_answered_in_the_same_turn() {
    for mut pair in Pair::both() {
        for number in 1..=20 {
            pair.start(number);
            pair.bring_calls(number.into());
            pair.hear(1);
            assert_eq!(pair.replies(), [[number]]);
        }
    }
}

#[test]
fn a_turn_tells_what_a_service_got_done_and_whether_it_waits() {
    let mut pair = Pair::new(false);
    pair.shared.hold(true);
    (0..3).for_each(|number| pair.start(number));
    pair.bring_calls(3);
    assert_eq!(pair.cores.far.poll_once(), Work { events: 0, is_waiting: true });
    pair.shared.hold(false);
    // Three that the service has answered, and three letters with the answers.
    assert_eq!(pair.cores.far.poll_once().events, 6);
    let at_rest = Work { events: 0, is_waiting: false };
    turn_until("a turn with nothing left", || pair.cores.far.poll_once() == at_rest);
    pair.hear(3);
}

#[test]
fn a_core_that_would_sleep_polls_on_while_a_service_waits_and_sleeps_when_it_does_not() {
    for mut pair in Pair::both() {
        pair.cores.far.set_idle(IdlePolicy::Sleep);
        pair.shared.hold(true);
        pair.start(7);
        pair.bring_calls(1);
        let (parks, polls) = (pair.parks(), pair.shared.polls());
        let shared = Arc::clone(&pair.shared);
        pair.cores.far.run_until(|| shared.polls() >= polls + 1000);
        assert_eq!(pair.parks(), parks, "the core slept while work was pending");
        pair.shared.hold(false);
        let engine = pair.cores.there.clone();
        let end = Instant::now() + LIMIT;
        pair.cores.far.run_until(|| engine.stats(0).unwrap().parks > parks || Instant::now() > end);
        assert!(pair.parks() > parks, "the core did not sleep when the work was done");
        pair.hear(1);
        assert_eq!(pair.replies(), [[7]]);
    }
}

/// Polled, and never keeps its core awake.
struct Counted(Arc<Shared>);

impl Service for Counted {
    fn call(&mut self, call: Call<'_>) {
        call.reply(|_| {});
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        Progress::default()
    }
}

/// By itself a core that sleeps for a second at a time would take longer than this test waits.
#[test]
fn a_thread_that_works_for_a_service_wakes_its_core() {
    const WAKES: u64 = 50;
    let engine = Engine::new(valid(small_with(|raw| raw.poll.park_us = 1_000_000))).unwrap();
    let shared = Arc::new(Shared::default());
    let (tell, told) = std::sync::mpsc::channel();
    let of_service = Arc::clone(&shared);
    engine
        .serve(PROGRAM, VERSION, move |context| {
            tell.send(context.clone()).unwrap();
            Counted(Arc::clone(&of_service))
        })
        .unwrap();
    let mut core = engine.core(0).unwrap();
    core.set_idle(IdlePolicy::Sleep);
    let context = told.recv().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let thread = std::thread::spawn({
        let (engine, is_over) = (engine.clone(), Arc::clone(&is_over));
        move || {
            for _ in 0..WAKES {
                let polls = shared.polls();
                let parks = engine.stats(0).unwrap().parks;
                context.wake();
                wait_until("a poll", || shared.polls() > polls);
                context.wake();
                wait_until("a sleep", || engine.stats(0).unwrap().parks > parks);
            }
            is_over.store(true, Ordering::Relaxed);
            context.wake();
        }
    });
    let end = Instant::now() + LIMIT;
    core.run_until(|| is_over.load(Ordering::Relaxed) || Instant::now() > end);
    thread.join().unwrap();
}

/// Would fail its core if it were polled.
struct Silent;

impl Service for Silent {
    fn call(&mut self, call: Call<'_>) {
        call.reply(|results| results.u32(1));
    }

    fn poll(&mut self) -> Progress {
        panic!("polled without having asked for it");
    }
}

#[test]
fn a_service_that_does_not_poll_is_never_polled_even_beside_one_that_does() {
    let engine = Engine::new(valid(keeping_replies())).unwrap();
    let shared = Arc::new(Shared::default());
    let of_service = Arc::clone(&shared);
    engine.serve(PROGRAM, VERSION, |_| Silent).unwrap();
    engine.serve_once(Program(PROGRAM.0 + 1), VERSION, |_| Silent).unwrap();
    engine
        .serve(Program(PROGRAM.0 + 2), VERSION, move |_| Batched(Arc::clone(&of_service)))
        .unwrap();
    let server = Server::started(engine, Default::default());
    let mut caller = Caller::connect(&server.address, all_words);
    for _ in 0..100 {
        assert_eq!(caller.call(LATER, |_| {}).unwrap(), [1]);
    }
    assert!(shared.polls() > 100, "the other one is polled in every turn");
}
