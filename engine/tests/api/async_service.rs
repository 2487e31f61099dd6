//! Handlers that are futures: the events they await, their number, and their end.

use crate::common::prelude::*;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The number of the call, at once.
const AT_ONCE: Procedure = Procedure(1);
/// The same, when the gate is open.
const GATED: Procedure = Procedure(2);
/// The same, from a call of the other server.
const PASSED: Procedure = Procedure(3);
/// The same, after a timer of tokio.
#[cfg(not(sanitized))]
const TIMED: Procedure = Procedure(4);
/// Calls that were executed so far, after some polls.
const COUNTED: Procedure = Procedure(5);
/// PROC_UNAVAIL, after some polls.
const REFUSED: Procedure = Procedure(6);
/// Returns this many bytes of registered memory, after some polls.
const BULK: Procedure = Procedure(7);
/// The number of the call, when the gate is open: polled in every turn until then.
const SPINS: Procedure = Procedure(8);
/// Panics: at the first poll, at a later one, in the encoder, and when its future is dropped.
const PANICS: [Procedure; 4] = [Procedure(10), Procedure(11), Procedure(12), Procedure(13)];

/// Handlers that a service of these tests may run at a time.
const HANDLERS: usize = 3;

/// Keeps handlers until it is opened by another thread.
#[derive(Default)]
struct Gate {
    is_open: bool,
    wakers: Vec<Waker>,
}

#[derive(Default)]
struct Inside {
    gate: Mutex<Gate>,
    dropped: AtomicUsize,
}

impl Inside {
    fn open(&self) {
        let mut gate = lock(&self.gate);
        gate.is_open = true;
        gate.wakers.drain(..).for_each(Waker::wake);
    }

    fn close(&self) {
        lock(&self.gate).is_open = false;
    }

    fn waiting(&self) -> usize {
        lock(&self.gate).wakers.len()
    }

    async fn pass(&self) {
        poll_fn(|context| {
            let mut gate = lock(&self.gate);
            if gate.is_open {
                return Poll::Ready(());
            }
            gate.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Counts handlers that are dropped, finished or not.
struct Counted(Arc<Inside>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "in the drop");
    }
}

async fn turns(count: usize) {
    let mut left = count;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct Program {
    core: CoreContext,
    inside: Arc<Inside>,
    behind: Option<ClientHandle>,
    runtime: Option<tokio::runtime::Handle>,
    /// Not `Sync`, and lent to all handlers.
    calls: Cell<u32>,
}

enum Answer {
    Number(u32),
    Panic,
    Bulk(Box<WithData<fn(&mut Encoder<'_>)>>),
}

impl Results for Answer {
    fn data(&mut self) -> Option<ReplyData> {
        match self {
            Self::Bulk(item) => item.data(),
            _ => None,
        }
    }

    fn encode(self, results: &mut Encoder<'_>) {
        match self {
            Self::Number(number) => results.u32(number),
            Self::Panic => panic!("in the encoder"),
            Self::Bulk(item) => item.encode(results),
        }
    }
}

impl Program {
    fn new(core: &CoreContext, inside: &Arc<Inside>) -> Self {
        let (core, inside) = (core.clone(), Arc::clone(inside));
        Self { core, inside, behind: None, runtime: None, calls: Cell::new(0) }
    }

    async fn ask(&self, number: u32) -> Result<u32, CallError> {
        let Some(behind) = &self.behind else { return Ok(0) };
        let encode = |args: &mut Encoder<'_>| args.u32(number);
        let mut answer = behind.start(AT_ONCE, CallSpec::short(), encode)?.await?;
        Ok(answer.results().u32()?)
    }

    async fn time(&self) {
        let sleep = self.runtime.as_ref().map(|runtime| {
            let _inside = runtime.enter();
            tokio::time::sleep(std::time::Duration::from_micros(100))
        });
        if let Some(sleep) = sleep {
            sleep.await;
        }
    }

    async fn panic_at(&self, procedure: Procedure) -> Answer {
        match procedure {
            Procedure(10) => panic!("at the first poll"),
            Procedure(11) => {
                turns(2).await;
                panic!("at a later poll");
            }
            Procedure(12) => turns(2).await,
            _ => {
                let _bomb = Bomb;
                turns(2).await;
            }
        }
        Answer::Panic
    }

    fn bulk(&self, bytes: u32) -> Answer {
        let mut bulk = self.core.bulk(bytes as usize).unwrap();
        bulk.bytes_mut().fill(7);
        Answer::Bulk(Box::new(WithData(ReplyData::new().bulk(bulk), |results| results.bulk())))
    }
}

impl AsyncService for Program {
    type Request = (Procedure, u32);
    type Reply = Answer;

    fn request(&self, call: &mut Call<'_>) -> Result<Self::Request, AcceptStatus> {
        let number = call.args().u32().map_err(|_| AcceptStatus::GarbageArgs)?;
        Ok((call.procedure(), number))
    }

    async fn call(
        self: Rc<Self>,
        (procedure, number): (Procedure, u32),
    ) -> Result<Answer, AcceptStatus> {
        let _counted = Counted(Arc::clone(&self.inside));
        self.calls.set(self.calls.get() + 1);
        match procedure {
            GATED => self.inside.pass().await,
            PASSED => {
                let passed = self.ask(number).await.map_err(|_| AcceptStatus::SystemErr)?;
                return Ok(Answer::Number(passed));
            }
            COUNTED => {
                turns(3).await;
                return Ok(Answer::Number(self.calls.get()));
            }
            SPINS => {
                while !lock(&self.inside.gate).is_open {
                    turns(1).await;
                }
            }
            REFUSED => {
                turns(1).await;
                return Err(AcceptStatus::ProcUnavail);
            }
            BULK => {
                turns(1).await;
                return Ok(self.bulk(number));
            }
            Procedure(4) => self.time().await,
            Procedure(10..) => return Ok(self.panic_at(procedure).await),
            _ => {}
        }
        Ok(Answer::Number(number))
    }
}

/// A server with this program, and a client on a separate core.
struct Pair {
    /// The server's and the client's.
    engines: [Started; 2],
    inside: Arc<Inside>,
    client: ClientHandle,
}

impl Pair {
    fn start() -> Self {
        Self::with(small_with(|_| {}), |_| {})
    }

    fn with(raw: RawConfig, change: impl Fn(&mut Program) + Send + Sync + 'static) -> Self {
        Self::serving(raw, move |engine, inside| {
            engine
                .serve(PROGRAM, VERSION, move |core| {
                    let mut program = Program::new(core, &inside);
                    change(&mut program);
                    async_service(core, HANDLERS, program)
                })
                .unwrap();
        })
    }

    fn serving(raw: RawConfig, serve: impl FnOnce(&Engine, Arc<Inside>)) -> Self {
        let inside = Arc::<Inside>::default();
        let credits = raw.rpc.credits;
        let engine = Engine::new(valid(raw)).unwrap();
        serve(&engine, Arc::clone(&inside));
        let address = listening(&engine);
        let of_client = client_with(|of_client| of_client.rpc.credits = credits);
        let engines = [engine, Engine::new(valid(of_client)).unwrap()].map(Started::new);
        let options = ConnectOptions::new();
        let client = engines[1].connect(0, &address, PROGRAM, VERSION, &options).unwrap();
        client.wait_up(LIMIT).unwrap();
        Self { engines, inside, client }
    }

    fn start_call(&self, procedure: Procedure, number: u32) -> PendingCall {
        self.client.start(procedure, CallSpec::short(), |args| args.u32(number)).unwrap()
    }

    fn call(&self, procedure: Procedure, number: u32) -> Result<u32, CallError> {
        word(self.start_call(procedure, number))
    }

    fn dropped(&self) -> usize {
        self.inside.dropped.load(Ordering::Relaxed)
    }

    fn wait_for_gated(&self, count: usize) {
        wait_until("handlers at the gate", || self.inside.waiting() == count);
    }

    fn fill(&self) -> Vec<PendingCall> {
        let gated = (0..HANDLERS as u32).map(|number| self.start_call(GATED, number)).collect();
        self.wait_for_gated(HANDLERS);
        gated
    }

    fn end(&mut self) {
        self.engines.iter().for_each(|engine| engine.shutdown());
        self.engines.iter_mut().for_each(Started::stop);
    }
}

fn word(call: PendingCall) -> Result<u32, CallError> {
    Ok(call.wait()?.results().u32()?)
}

fn is_system_err(answer: &Result<u32, CallError>) -> bool {
    matches!(answer, Err(CallError::Accepted(AcceptStatus::SystemErr)))
}

#[test]
fn handlers_that_await_expect_their_results_and_errors() {
    let pair = Pair::start();
    for number in 0..50 {
        assert_eq!(pair.call(COUNTED, 0).unwrap(), 3 * number + 1);
        let refused = pair.call(REFUSED, 0).unwrap_err();
        assert!(matches!(refused, CallError::Accepted(AcceptStatus::ProcUnavail)), "{refused}");
        let call = pair.start_call(BULK, 3000);
        assert_eq!(call.wait().unwrap().results().opaque(4000).unwrap(), [7; 3000]);
    }
    let refused = pair.client.call(AT_ONCE, |_| {}, |results| results.u32()).unwrap_err();
    assert!(matches!(refused, CallError::Accepted(AcceptStatus::GarbageArgs)), "{refused}");
}

/// The bell wakes a core that sleeps for a second: without it this would take 40 of them.
#[test]
fn a_waker_on_another_thread_expect_a_core_that_wakes_up() {
    let sleepy =
        small_with(|raw| (raw.poll.mode, raw.poll.park_us) = (IdlePolicy::Sleep, 1_000_000));
    let pair = Pair::with(sleepy, |_| {});
    let began = std::time::Instant::now();
    for number in 0..40 {
        pair.inside.close();
        let call = pair.start_call(GATED, number);
        pair.wait_for_gated(1);
        pair.inside.open();
        assert_eq!(word(call).unwrap(), number);
    }
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn more_calls_than_handlers_expect_them_refused_and_the_others_answered() {
    let pair = Pair::start();
    for _ in 0..20 {
        pair.inside.close();
        let gated = pair.fill();
        for procedure in [GATED, AT_ONCE] {
            assert!(is_system_err(&pair.call(procedure, 0)));
        }
        pair.inside.open();
        let answers = gated.into_iter().map(|call| word(call).unwrap());
        assert_eq!(answers.collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(pair.call(AT_ONCE, 7).unwrap(), 7);
    }
}

#[test]
fn handlers_that_never_wait_expect_the_core_to_serve_others() {
    let pair = Pair::start();
    let calls = [7, 8].map(|number| pair.start_call(SPINS, number));
    for number in 0..20 {
        assert_eq!(pair.call(AT_ONCE, number).unwrap(), number);
    }
    pair.inside.open();
    assert_eq!(calls.map(|call| word(call).unwrap()), [7, 8]);
}

/// More than the bits of a word.
#[test]
fn many_handlers_are_woken_at_once_expect_all_answers() {
    const MANY: u32 = 100;
    // Each call that waits holds memory for its reply.
    let raw = small_with(|raw| (raw.rpc.credits, raw.mem.arena_mib) = (128, 64));
    let pair = Pair::serving(raw, |engine, inside| {
        engine
            .serve(PROGRAM, VERSION, move |core| {
                async_service(core, MANY as usize, Program::new(core, &inside))
            })
            .unwrap();
    });
    for _ in 0..10 {
        pair.inside.close();
        let calls: Vec<_> = (0..MANY).map(|number| pair.start_call(GATED, number)).collect();
        pair.wait_for_gated(MANY as usize);
        pair.inside.open();
        assert!((0..MANY).eq(calls.into_iter().map(|call| word(call).unwrap())));
    }
}

/// A program that says by its results that there is too much to do.
struct Polite(Program);

impl AsyncService for Polite {
    type Request = (Procedure, u32);
    type Reply = Answer;

    fn request(&self, call: &mut Call<'_>) -> Result<Self::Request, AcceptStatus> {
        self.0.request(call)
    }

    async fn call(self: Rc<Self>, _: Self::Request) -> Result<Answer, AcceptStatus> {
        self.0.inside.pass().await;
        Ok(Answer::Number(1))
    }

    fn too_many(&self, call: Call<'_>) {
        call.reply(|results| results.u32(99));
    }
}

#[test]
fn a_service_says_itself_that_there_is_too_much_to_do() {
    let inside = Arc::<Inside>::default();
    inside.open();
    let engine = Engine::new(valid(small_with(|_| {}))).unwrap();
    let of_program = Arc::clone(&inside);
    engine
        .serve(PROGRAM, VERSION, move |core| {
            async_service(core, 0, Polite(Program::new(core, &of_program)))
        })
        .unwrap();
    let server = Server::started(engine, Default::default());
    let mut caller = Caller::connect(&server.address, all_words);
    inside.close();
    caller.start(GATED, 1, |args| args.u32(0)).unwrap();
    caller.start(GATED, 2, |args| args.u32(0)).unwrap();
    let refused = caller.replies(1).pop().unwrap();
    assert_eq!((refused.0, refused.1.unwrap()), (2, vec![99]));
    inside.open();
    let answered = caller.replies(1).pop().unwrap();
    assert_eq!((answered.0, answered.1.unwrap()), (1, vec![1]));
}

#[test]
fn the_connection_goes_down_expect_its_handlers_dropped_and_their_places_free() {
    let pair = Pair::start();
    let other = pair.engines[1].clone();
    let address = pair.engines[0].directory().addresses()[0].clone();
    let options = ConnectOptions::new();
    for round in 0..10 {
        let client = other.connect(0, &address, PROGRAM, VERSION, &options).unwrap();
        client.wait_up(LIMIT).unwrap();
        let before = pair.dropped();
        let open = |number| client.start(GATED, CallSpec::short(), move |args| args.u32(number));
        let calls: Vec<_> = (0..HANDLERS as u32).map(|number| open(number).unwrap()).collect();
        wait_until("handlers", || pair.inside.waiting() == (round + 1) * HANDLERS);
        client.close();
        for call in calls {
            assert!(matches!(word(call), Err(CallError::Disconnected(_))));
        }
        wait_until("dropped handlers", || pair.dropped() == before + HANDLERS);
    }
    // Wakers of handlers that are gone wake nothing.
    pair.inside.open();
    assert_eq!(pair.call(GATED, 5).unwrap(), 5);
}

/// The server cannot know: its handler goes on.
#[test]
fn a_caller_gives_up_expect_the_answer_dropped() {
    let pair = Pair::start();
    let call = pair.start_call(GATED, 1);
    pair.wait_for_gated(1);
    drop(call);
    pair.inside.open();
    wait_until("the end of the handler", || pair.dropped() == 1);
    for number in 0..10 {
        assert_eq!(pair.call(COUNTED, 0).unwrap(), number + 2);
    }
}

#[test]
fn the_engine_ends_expect_handlers_dropped() {
    let mut pair = Pair::start();
    let gated = pair.fill();
    pair.end();
    assert_eq!(pair.dropped(), HANDLERS);
    gated.into_iter().for_each(|call| assert!(word(call).is_err()));
    // Its wakers are there still.
    pair.inside.open();
}

#[test]
fn the_engine_is_drained_expect_handlers_to_finish() {
    let pair = Pair::start();
    let gated = pair.fill();
    let engine = pair.engines[0].clone();
    let draining = std::thread::spawn(move || engine.drain(LIMIT));
    pair.inside.open();
    assert_eq!(draining.join().unwrap(), 0);
    gated.into_iter().enumerate().for_each(|(at, call)| assert_eq!(word(call).unwrap(), at as u32));
}

/// More of each than there are places: none may be lost.
#[test]
fn panics_of_handlers_expect_system_err_and_their_places_free() {
    const ROUNDS: u64 = 2 * HANDLERS as u64;
    let raw = small_with(|raw| raw.rpc.on_panic = OnPanic::Answer);
    let pair = Pair::with(raw, |_| {});
    for _ in 0..ROUNDS {
        let gated = pair.start_call(GATED, 9);
        for procedure in PANICS {
            let answer = pair.call(procedure, 0);
            assert!(is_system_err(&answer), "{procedure:?}: {answer:?}");
            assert_eq!(pair.call(COUNTED, 0).map(drop).map_err(|error| error.to_string()), Ok(()));
        }
        pair.inside.open();
        assert_eq!(word(gated).unwrap(), 9);
        pair.inside.close();
    }
    let count = || pair.engines[0].stats(0).unwrap().handler_panics;
    wait_until("the statistics", || count() == PANICS.len() as u64 * ROUNDS);
}

/// Futures that panic leave those that were woken with them.
#[test]
fn futures_woken_together_and_one_panics_expect_the_others_to_go_on() {
    let raw = small_with(|raw| raw.rpc.on_panic = OnPanic::Answer);
    let pair = Pair::with(raw, |_| {});
    for _ in 0..50 {
        let calls: Vec<_> =
            [PANICS[1], COUNTED, COUNTED].map(|procedure| pair.start_call(procedure, 0)).into();
        let answers: Vec<_> = calls.into_iter().map(word).collect();
        assert!(is_system_err(&answers[0]), "{answers:?}");
        assert!(answers[1..].iter().all(Result::is_ok), "{answers:?}");
    }
}

#[test]
fn handlers_await_calls_of_their_own_core_expect_the_answers() {
    let behind = Engine::new(valid(small_with(|_| {}))).unwrap();
    let inside = Arc::<Inside>::default();
    behind
        .serve(PROGRAM, VERSION, move |core| async_service(core, 64, Program::new(core, &inside)))
        .unwrap();
    let address = listening(&behind);
    let running = behind.start().unwrap();
    let pair = Pair::with(small_with(|_| {}), move |program| {
        let options = ConnectOptions::new();
        let client = program.core.connect(&address, PROGRAM, VERSION, &options).unwrap();
        program.behind = Some(client);
    });
    for round in 0..100 {
        let numbers = (0..HANDLERS as u32).map(|number| round * 10 + number);
        let calls: Vec<_> = numbers.clone().map(|number| pair.start_call(PASSED, number)).collect();
        assert!(numbers.eq(calls.into_iter().map(|call| word(call).unwrap())));
    }
    drop(pair);
    behind.shutdown();
    running.join().unwrap();
}

/// A call that is executed once, although its handler is a future.
#[test]
fn a_program_that_executes_once_expect_its_handlers_run() {
    let raw = small_with(|raw| raw.rpc.reply_cache_mib = 1);
    let pair = Pair::serving(raw, |engine, inside| {
        let factory =
            move |core: &CoreContext| async_service(core, HANDLERS, Program::new(core, &inside));
        engine.serve_once(PROGRAM, VERSION, factory).unwrap();
    });
    for number in 0..20 {
        assert_eq!(pair.call(AT_ONCE, number).unwrap(), number);
        assert_eq!(pair.call(COUNTED, 0).unwrap(), 2 * number + 2);
    }
}

/// ThreadSanitizer does not see the locks of tokio's threads, which are in the compiled part of std.
#[cfg(not(sanitized))]
#[test]
fn handlers_await_timers_of_tokio_for_tasks_of_tokio() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_time().build().unwrap();
    let handle = runtime.handle().clone();
    let pair = Pair::with(small_with(|_| {}), move |program| {
        program.runtime = Some(handle.clone());
    });
    let sum = runtime.block_on(async {
        let tasks: Vec<_> = (1..=HANDLERS as u32)
            .map(|number| {
                let client = pair.client.clone();
                tokio::spawn(async move {
                    let mut sum = 0;
                    for _ in 0..20 {
                        let encode = |args: &mut Encoder<'_>| args.u32(number);
                        let call = client.start(TIMED, CallSpec::short(), encode).unwrap();
                        sum += call.await.unwrap().results().u32().unwrap();
                    }
                    sum
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    assert_eq!(sum, 20 * (1 + 2 + 3));
}
