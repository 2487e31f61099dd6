//! Calls from threads other than cores, by handles: blocking, as futures, by a queue, and with a function on the core.

mod ends;
mod exposed;
mod fetched;
mod waits;

use crate::common::prelude::*;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;

/// Calls that the handles of a test may have in flight.
const CALLS: usize = 16;

/// A server, and a client's engine whose one core runs on a separate thread.
struct Pair {
    engine: Started,
    server: Server,
    client: ClientHandle,
    /// Calls that made the connection ready.
    first_calls: u64,
}

impl Pair {
    fn start() -> Self {
        Self::with(|_| {}, &ConnectOptions::new())
    }

    fn with(change: impl FnOnce(&mut RawConfig), options: &ConnectOptions) -> Self {
        Self::of(Server::start(), change, options)
    }

    fn of(server: Server, change: impl FnOnce(&mut RawConfig), options: &ConnectOptions) -> Self {
        let mut raw = client_config();
        raw.fixed.handle_calls = CALLS as u64;
        change(&mut raw);
        let engine = Started::new(Engine::new(valid(raw)).unwrap());
        let client = engine.connect(0, &server.address, PROGRAM, VERSION, options).unwrap();
        client.wait_up(LIMIT).unwrap();
        let first_calls = server.shared.calls.load(Ordering::Relaxed);
        Self { engine, server, client, first_calls }
    }

    /// Another connection, which is up.
    fn another(&self) -> ClientHandle {
        let client = connect(&self.engine, &self.server.address).unwrap();
        client.wait_up(LIMIT).unwrap();
        client
    }

    fn calls(&self) -> u64 {
        self.server.shared.calls.load(Ordering::Relaxed) - self.first_calls
    }

    fn later(&self, number: u32) -> spinrpc::PendingCall {
        self.client.start(LATER, CallSpec::short(), |args| args.u32(number)).unwrap()
    }

    fn wait_for_deferred(&self, count: usize) {
        wait_until("deferred calls", || self.server.shared.waiting() == count);
    }

    fn end_client(&mut self) {
        self.engine.stop();
    }
}

fn echo(client: &ClientHandle, bytes: &[u8]) -> Result<Vec<u8>, CallError> {
    client.call(
        ECHO,
        |args| args.opaque(bytes),
        |results| results.opaque(1 << 20).map(<[u8]>::to_vec),
    )
}

fn take_all(pair: &Pair) -> Vec<Bulk> {
    let lengths = [1 << 20, 1 << 16, 1 << 12, 1];
    lengths.iter().flat_map(|length| std::iter::from_fn(|| pair.client.bulk(*length))).collect()
}

fn next(queue: &AnswerQueue) -> (Token, Result<spinrpc::Answer, CallError>) {
    let mut answer = None;
    wait_until("the answer", || {
        answer = queue.next();
        answer.is_some()
    });
    answer.unwrap()
}

fn nothing(_: &mut Encoder<'_>) {}

fn connect(engine: &Engine, address: &str) -> Result<ClientHandle, ConnectError> {
    engine.connect(0, address, PROGRAM, VERSION, &ConnectOptions::new())
}

#[test]
fn threads_call_by_one_connection_expect_each_its_own_answers() {
    let pair = Pair::start();
    let threads: Vec<_> = (0..4_u32)
        .map(|thread| {
            let client = pair.client.clone();
            thread::spawn(move || {
                for call in 0..500_usize {
                    let bytes = crate::common::pattern(thread * 1000 + call as u32, call % 300);
                    assert_eq!(echo(&client, &bytes).unwrap(), bytes);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(pair.calls(), 2000);
}

/// Also where the caller does not know how long the results are: then the call is executed once, too.
#[test]
fn messages_of_every_length_expect_them_whole() {
    let pair = Pair::start();
    let lengths = [0, 1, 100, 1000, 4000, 4096, 4200, 5000, 70_000];
    for length in lengths {
        let bytes = crate::common::pattern(length as u32, length);
        let spec = CallSpec::new().reply_bytes_max(length + 64);
        let pending = pair.client.start(ECHO, spec, |args| args.opaque(&bytes)).unwrap();
        let mut answer = pending.wait().unwrap();
        assert_eq!(answer.results().opaque(1 << 20).unwrap(), bytes, "{length}");
        let echoed = echo(&pair.client, &bytes).map_err(|error| error.to_string());
        assert_eq!(echoed, Ok(bytes), "{length}");
    }
    assert_eq!(pair.calls(), 2 * lengths.len() as u64);
}

#[test]
fn data_items_go_both_ways_expect_their_bytes() {
    let pair = Pair::start();
    wait_until("memory", || pair.client.bulk(1).is_some());
    let mut item = pair.client.bulk(50_000).unwrap();
    fill_pattern(1, item.bytes_mut());
    let room = pair.client.bulk(40_000).unwrap();
    let spec = CallSpec::short().argument(item).result_into(room);
    let encode = |args: &mut Encoder<'_>| {
        args.u32(1);
        args.u32(1);
        args.bulk();
        args.u32(1);
        args.u32(40_000);
        args.u32(5);
    };
    let mut answer = pair.client.start(MIX, spec, encode).unwrap().wait().unwrap();
    let mut results = answer.results();
    let _ = (results.u32().unwrap(), results.u32().unwrap());
    let data = results.data(1 << 20).unwrap();
    assert!(is_pattern(101, data.bytes()));
    assert_eq!(data.bytes().len(), 40_000);
    assert!(is_pattern(201, results.opaque(5).unwrap()));
}

#[test]
fn a_call_that_differs_from_its_spec_is_refused_at_once() {
    let pair = Pair::start();
    let refused = pair.client.start(MIX, CallSpec::short(), |args| args.bulk()).unwrap_err();
    assert!(matches!(refused, Backpressure::Misuse(_)), "{refused}");
    wait_until("memory", || pair.client.bulk(1).is_some());
    let spec = CallSpec::short().argument(pair.client.bulk(8).unwrap());
    let refused = pair.client.start(NULL, spec, nothing).unwrap_err();
    assert!(matches!(refused, Backpressure::Misuse(_)), "{refused}");
    let long = vec![0; 8 << 20];
    let refused =
        pair.client.start(ECHO, CallSpec::short(), |args| args.opaque(&long)).unwrap_err();
    assert!(matches!(refused, Backpressure::TooLarge { .. }), "{refused}");
    let mut nested = None;
    let pending = pair.client.start(NULL, CallSpec::short(), |_| {
        nested = pair.client.start(NULL, CallSpec::short(), nothing).err();
    });
    assert!(matches!(nested, Some(Backpressure::Misuse(_))), "{nested:?}");
    pending.unwrap().wait().unwrap();
    // None of them has kept its memory.
    let all: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
    drop(all);
}

#[test]
fn an_encoder_panics_expect_no_call_lost() {
    let pair = Pair::start();
    for _ in 0..2 * CALLS {
        let client = pair.client.clone();
        let panicked =
            thread::spawn(move || client.call(NULL, |_| panic!("in an encoder"), |_| Ok(())));
        assert!(panicked.join().is_err());
    }
    assert_eq!(echo(&pair.client, b"still here").unwrap(), b"still here");
}

#[test]
fn more_calls_than_configured_expect_back_pressure_and_then_room() {
    let pair = Pair::start();
    let mut pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
    let refused = pair.client.start(NULL, CallSpec::short(), nothing).unwrap_err();
    assert_eq!(refused, Backpressure::TooManyCalls);
    assert!(refused.is_transient());
    pair.wait_for_deferred(CALLS);
    pair.server.shared.answer_all();
    for (number, pending) in pending.drain(..).enumerate() {
        let mut answer = pending.wait().unwrap();
        assert_eq!(answer.results().u32().unwrap(), number as u32);
    }
    assert_eq!(echo(&pair.client, b"room").unwrap(), b"room");
}

#[test]
fn a_call_that_is_not_sent_in_time_was_not_started() {
    let pair = Pair::with(|raw| raw.rpc.credits = 1, &ConnectOptions::new());
    let first = pair.later(1);
    pair.wait_for_deferred(1);
    let spec = CallSpec::short().deadline(Duration::from_millis(20));
    let error = pair.client.start(NULL, spec, nothing).unwrap().wait().unwrap_err();
    assert!(matches!(error, CallError::NotStarted(Backpressure::NoCredit)), "{error}");
    pair.server.shared.answer_all();
    first.wait().unwrap();
}

#[test]
fn dropped_calls_are_cancelled_expect_their_places_free() {
    let pair = Pair::start();
    for round in 0..3 {
        let pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(number)).collect();
        if round > 0 {
            pair.wait_for_deferred(CALLS);
        }
        drop(pending);
        let mut free = Vec::new();
        wait_until("the places of cancelled calls", || {
            free.extend(pair.client.start(NULL, CallSpec::short(), nothing).ok());
            free.len() == CALLS
        });
        free.into_iter().for_each(|call| drop(call.wait().unwrap()));
        wait_until("deferred calls", || {
            pair.server.shared.answer_all();
            pair.server.shared.waiting() == 0
        });
        // Calls that were cancelled on their way may still be deferred.
        pair.server.wait_for("calls", |stats| stats.calls_received >= stats.replies_sent);
    }
    assert_eq!(echo(&pair.client, b"after all").unwrap(), b"after all");
}

#[derive(Default)]
struct Count(AtomicUsize);

impl std::task::Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Future with a counting waker: woken once the answer is there, and not before.
#[test]
fn a_future_is_ready_when_its_answer_is_there() {
    let pair = Pair::start();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut pending = pin!(pair.later(7));
    assert!(pending.as_mut().poll(&mut context).is_pending());
    pair.wait_for_deferred(1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    pair.server.shared.answer_all();
    wait_until("the waker", || woken.0.load(Ordering::Relaxed) == 1);
    let Poll::Ready(answer) = pending.as_mut().poll(&mut context) else {
        panic!("woken for nothing")
    };
    assert_eq!(answer.unwrap().results().u32().unwrap(), 7);
    // A future that is asked once more does not wait forever.
    let Poll::Ready(Err(CallError::Cancelled)) = pending.as_mut().poll(&mut context) else {
        panic!("answered twice")
    };
}

/// ThreadSanitizer does not see the locks of tokio's threads, which are in the compiled part of std.
#[cfg(not(sanitized))]
#[test]
fn tokio_awaits_many_calls_expect_all_answers() {
    let pair = Pair::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let sum = runtime.block_on(async {
        let tasks: Vec<_> = (0..CALLS as u32)
            .map(|task| {
                let client = pair.client.clone();
                tokio::spawn(async move {
                    let mut sum = 0;
                    for number in 4 * task..4 * task + 4 {
                        let bytes = number.to_be_bytes();
                        let encode = |args: &mut Encoder<'_>| args.opaque(&bytes);
                        let pending = client.start(ECHO, CallSpec::short(), encode);
                        let mut answer = pending.unwrap().await.unwrap();
                        let bytes = answer.results().opaque(4).unwrap().try_into().unwrap();
                        sum += u32::from_be_bytes(bytes);
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
    assert_eq!(sum, 63 * 64 / 2);
}

#[test]
fn answers_come_to_a_queue_expect_their_tokens_and_a_readable_descriptor() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let pair = Pair::start();
    let queue = AnswerQueue::new(4).unwrap();
    let is_readable = |at_most: Duration| {
        let mut watched = [PollFd::new(&queue, PollFlags::IN)];
        let at_most = Timespec::try_from(at_most).unwrap();
        poll(&mut watched, Some(&at_most)).unwrap() == 1
    };
    for round in 0..3_u64 {
        let tokens: BTreeSet<u64> = (0..4).map(|number| 10 * round + number).collect();
        for token in &tokens {
            let encode = |args: &mut Encoder<'_>| args.u32(*token as u32);
            let spec = CallSpec::short();
            pair.client.start_to_queue(&queue, Token(*token), LATER, spec, encode).unwrap();
        }
        let full = pair.client.start_to_queue(&queue, Token(0), NULL, CallSpec::short(), nothing);
        assert_eq!(full, Err(Backpressure::AnswerQueueFull));
        pair.wait_for_deferred(4);
        assert!(queue.next().is_none() && queue.arm());
        assert!(!is_readable(Duration::ZERO));
        pair.server.shared.answer_all();
        let mut heard = BTreeSet::new();
        while heard.len() < 4 {
            match queue.next() {
                Some((Token(token), answer)) => {
                    assert_eq!(answer.unwrap().results().u32().unwrap(), token as u32);
                    heard.insert(token);
                }
                None => assert!(!queue.arm() || is_readable(LIMIT), "no wake-up"),
            }
        }
        assert_eq!(heard, tokens);
    }
}

#[test]
fn a_call_has_waited_for_memory_expect_its_answer_in_the_queue_of_a_sleeping_core() {
    let pair = Pair::with(|raw| raw.poll.mode = IdlePolicy::Sleep, &ConnectOptions::new());
    let queue = AnswerQueue::new(1).unwrap();
    wait_until("memory", || pair.client.bulk(1).is_some());
    for round in 0..20 {
        let lent = take_all(&pair);
        let bytes = crate::common::pattern(round, 70_000);
        let spec = CallSpec::new().reply_bytes_max(bytes.len() + 64);
        let encode = |args: &mut Encoder<'_>| args.opaque(&bytes);
        pair.client.start_to_queue(&queue, Token(7), ECHO, spec, encode).unwrap();
        let parks = pair.engine.stats(0).unwrap().parks;
        wait_until("sleeps", || pair.engine.stats(0).unwrap().parks > parks + 3);
        assert!(queue.next().is_none());
        drop(lent);
        let mut answer = next(&queue).1.unwrap();
        assert_eq!(answer.results().opaque(1 << 20).unwrap(), bytes);
    }
}

#[test]
fn a_queue_is_dropped_with_answers_expect_their_places_free() {
    let pair = Pair::start();
    for _ in 0..3 {
        let queue = AnswerQueue::new(CALLS).unwrap();
        for token in 0..CALLS as u64 {
            wait_until("a place", || {
                let spec = CallSpec::short();
                pair.client.start_to_queue(&queue, Token(token), NULL, spec, nothing).is_ok()
            });
        }
    }
    wait_until("a place", || echo(&pair.client, b"next").is_ok());
}

#[test]
fn a_function_runs_on_the_core_expect_it_to_start_further_calls() {
    let pair = Pair::start();
    let (heard, threads) =
        (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(BTreeSet::new())));
    let on_answer: Arc<OnAnswer> = {
        let (heard, threads, client) =
            (Arc::clone(&heard), Arc::clone(&threads), pair.client.clone());
        let last: Arc<OnAnswer> = Arc::new(|_: Token, _: Result<Reply<'_>, CallError>| {});
        Arc::new(move |Token(token), reply: Result<Reply<'_>, CallError>| {
            let name = thread::current().name().unwrap_or_default().to_owned();
            lock(&threads).insert(name);
            lock(&heard).push((token, reply.unwrap().results().opaque(4).unwrap().to_vec()));
            client.start_on_core(&last, Token(0), NULL, CallSpec::short(), nothing).unwrap();
        })
    };
    for token in 0..8_u64 {
        let encode = |args: &mut Encoder<'_>| args.opaque(&[token as u8]);
        let spec = CallSpec::short();
        pair.client.start_on_core(&on_answer, Token(token), ECHO, spec, encode).unwrap();
    }
    wait_until("answers", || lock(&heard).len() == 8);
    assert_eq!(*lock(&heard), (0..8).map(|n| (n, vec![n as u8])).collect::<Vec<_>>());
    assert_eq!(*lock(&threads), BTreeSet::from(["spinrpc-core-0".to_owned()]));
    wait_until("the further calls", || pair.calls() == 16);
    // The function holds a handle: without it the connection stays.
    lock(&heard).clear();
}

#[test]
fn a_core_that_waits_for_itself_is_told() {
    let pair = Pair::start();
    let told = Arc::new(Mutex::new(None));
    let on_answer: Arc<OnAnswer> = {
        let (told, client) = (Arc::clone(&told), pair.client.clone());
        Arc::new(move |_: Token, _: Result<Reply<'_>, CallError>| {
            *lock(&told) = client.call(NULL, nothing, |_| Ok(())).err();
        })
    };
    pair.client.start_on_core(&on_answer, Token(1), NULL, CallSpec::short(), nothing).unwrap();
    wait_until("the error", || lock(&told).is_some());
    let told = lock(&told).take();
    assert!(matches!(told, Some(CallError::NotStarted(Backpressure::Misuse(_)))), "{told:?}");
    assert_eq!(echo(&pair.client, b"another").unwrap(), b"another");
    assert_eq!(pair.calls(), 2, "what was not started is not executed");
}

/// A call that waits keeps the user that it was started as.
#[test]
fn a_user_that_is_set_behind_a_waiting_call_is_not_the_users_of_that_call() {
    let (server, engine) = (Server::start(), Engine::new(valid(client_config())).unwrap());
    let client = connect(&engine, &server.address).unwrap();
    let groups = Groups::new(&[7]).unwrap();
    let user = AuthSys { stamp: 1, machine_name: b"host", uid: 2, gid: 3, groups };
    let mut pending = Vec::new();
    for user in [Some(&user), None, Some(&user)] {
        client.set_auth_sys(user).unwrap();
        pending.push(client.start(WHO, CallSpec::short(), nothing).unwrap());
    }
    client.set_auth_sys(None).unwrap();
    let _engine = Started::new(engine);
    let flavors = pending.into_iter().map(|call| call.wait().unwrap().results().u32().unwrap());
    assert_eq!(flavors.collect::<Vec<_>>(), [1, 0, 1]);
    drop(client);
}

/// "rpc.on_panic": a function that panics ends nothing but itself, also where its call is not sent.
#[test]
fn a_function_panics_with_a_refused_call_expect_the_core_to_go_on() {
    let pair = Pair::with(|raw| raw.rpc.on_panic = OnPanic::Answer, &ConnectOptions::new());
    let other = pair.another();
    other.close();
    wait_until("the end", || !other.is_up());
    let bad: Arc<OnAnswer> = Arc::new(|_: Token, reply: Result<Reply<'_>, CallError>| {
        panic!("on the core: {reply:?}");
    });
    other.start_on_core(&bad, Token(0), NULL, CallSpec::short(), nothing).unwrap();
    wait_until("the panic", || pair.engine.stats(0).unwrap().handler_panics == 1);
    assert_eq!(echo(&pair.client, b"goes on").unwrap(), b"goes on");
}

#[test]
fn calls_before_the_connection_is_up_are_sent_when_it_is() {
    let (server, engine) = (Server::start(), Engine::new(valid(client_config())).unwrap());
    let client = connect(&engine, &server.address).unwrap();
    let pending = client.start(ECHO, CallSpec::short(), |args| args.opaque(b"early")).unwrap();
    assert!(!client.is_up());
    assert!(matches!(client.wait_up(Duration::ZERO), Err(ConnectError::TimedOut(_))));
    let _engine = Started::new(engine);
    assert_eq!(pending.wait().unwrap().results().opaque(5).unwrap(), b"early");
    assert!(client.is_up());
    drop(client);
}

#[test]
fn no_server_listens_expect_the_reason() {
    let engine = Started::new(Engine::new(valid(client_config())).unwrap());
    let client = connect(&engine, &unique_address()).unwrap();
    let pending = client.start(NULL, CallSpec::short(), nothing).unwrap();
    let error = client.wait_up(LIMIT).unwrap_err();
    assert!(matches!(error, ConnectError::Fabric(_)), "{error}");
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, CallError::NotStarted(Backpressure::Down)), "{error}");
    let options = ConnectOptions::new();
    let error = engine.connect(1, "shm:x", PROGRAM, VERSION, &options).unwrap_err();
    assert!(error.to_string().contains("core 1 of 1"), "{error}");
}

#[test]
fn the_last_handle_is_dropped_expect_the_connection_closed_after_its_calls() {
    let mut pair = Pair::start();
    let pending = pair.later(5);
    pair.wait_for_deferred(1);
    let other = pair.another();
    drop(std::mem::replace(&mut pair.client, other));
    assert_eq!(echo(&pair.client, b"the other").unwrap(), b"the other");
    assert_eq!(pair.server.shared.downs(), 0);
    pair.server.shared.answer_all();
    assert_eq!(pending.wait().unwrap().results().u32().unwrap(), 5);
    wait_until("the end of the connection", || pair.server.shared.downs() == 1);
}

#[test]
fn a_handle_is_closed_expect_its_calls_to_end() {
    let pair = Pair::start();
    let pending = pair.later(5);
    pair.wait_for_deferred(1);
    pair.client.close();
    pair.client.close();
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, CallError::Disconnected(DownCause::Local)), "{error}");
    let error = echo(&pair.client, b"").unwrap_err();
    assert!(matches!(error, CallError::NotStarted(Backpressure::Down)), "{error}");
}

/// A call waits for the next server, and is answered by it.
fn replaced(mode: IdlePolicy, meanwhile: impl FnOnce(&Pair)) {
    let policy = Reconnect::default().first_delay(Duration::from_millis(5));
    let pair = Pair::with(|raw| raw.poll.mode = mode, &ConnectOptions::new().reconnect(policy));
    let address = pair.server.address.clone();
    pair.server.engine.shutdown();
    wait_until("the loss", || !pair.client.is_up());
    let pending = pair.client.start(ECHO, CallSpec::short(), |args| args.opaque(b"again")).unwrap();
    meanwhile(&pair);
    let next = Server::at(&address);
    assert_eq!(pending.wait().unwrap().results().opaque(5).unwrap(), b"again");
    drop((pair, next));
}

#[test]
fn a_server_is_replaced_expect_calls_to_wait_while_the_core_sleeps_if_it_may() {
    replaced(client_config().poll.mode, |_| {});
    replaced(IdlePolicy::Sleep, |pair| {
        let before = pair.engine.stats(0).unwrap().parks;
        wait_until("sleeps", || pair.engine.stats(0).unwrap().parks > before + 20);
    });
}

/// Clients with fewer connections than handles over time: numbers and connections come back.
#[test]
fn handles_are_made_and_dropped_many_times_expect_room_for_the_next() {
    let pair = Pair::with(|raw| raw.limits.conns = 4, &ConnectOptions::new());
    let connect = || connect(&pair.engine, &pair.server.address);
    let mut came_up = 0;
    for round in 0..200_u32 {
        let mut made = None;
        wait_until("a number", || {
            made = connect().ok();
            made.is_some()
        });
        let client = made.unwrap();
        let pending = client.start(ECHO, CallSpec::short(), |args| args.u32(0));
        match round % 3 {
            0 => drop((pending, client)),
            1 => {
                drop(client);
                drop(pending.unwrap().wait());
            }
            // The control thread may hold a connection that has just gone, for a moment.
            _ => came_up += u32::from(client.wait_up(LIMIT).is_ok()),
        }
    }
    assert!(came_up > 0, "no connection came up");
    assert_eq!(echo(&pair.client, b"the first").unwrap(), b"the first");
}

/// A server that never answers keeps the credit of a call that was given up, and nothing of the handle.
#[test]
fn a_call_was_given_up_expect_its_handle_to_go() {
    let pair = Pair::start();
    let other = pair.another();
    let spec = CallSpec::short().deadline(Duration::from_millis(200));
    let error = other.start(LATER, spec, |args| args.u32(1)).unwrap().wait().unwrap_err();
    assert!(matches!(error, CallError::TimedOut), "{error}");
    drop((other.start(LATER, CallSpec::short(), |args| args.u32(2)).unwrap(), other));
    wait_until("the end of the connection", || pair.server.shared.downs() == 1);
}

#[test]
fn a_core_calls_itself_before_its_first_turn_expect_it_to_be_told() {
    let (_engine, core) = with_core(client_config());
    let client =
        core.context().connect("shm:none", PROGRAM, VERSION, &ConnectOptions::new()).unwrap();
    let began = Instant::now();
    assert!(matches!(client.wait_up(LIMIT), Err(ConnectError::TimedOut(_))));
    assert!(began.elapsed() < LIMIT, "it does not wait for itself");
    let error = client.call(NULL, nothing, |_| Ok(())).unwrap_err();
    assert!(matches!(error, CallError::NotStarted(Backpressure::Misuse(_))), "{error}");
    let error = client.start(NULL, CallSpec::short(), nothing).unwrap().wait().unwrap_err();
    assert!(matches!(error, CallError::Cancelled), "{error}");
    let pending = client.start(NULL, CallSpec::short(), nothing).unwrap();
    drop(core);
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, CallError::NotExecuted(DownCause::Local)), "{error}");
}

/// Nothing was sent, so that it is safe to call again.
#[test]
fn a_core_never_runs_expect_the_deadline_and_then_calls_that_were_not_executed() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let client = connect(&engine, "shm:none").unwrap();
    let spec = CallSpec::short().deadline(Duration::from_millis(20));
    let error = client.start(NULL, spec, nothing).unwrap().wait().unwrap_err();
    assert!(matches!(error, CallError::TimedOut), "{error}");
    // A deadline that no clock reaches.
    let spec = CallSpec::short().deadline(Duration::MAX);
    let pending = client.start(NULL, spec, nothing).unwrap();
    engine.shutdown();
    let error = pending.wait().unwrap_err();
    assert!(matches!(error, CallError::NotExecuted(DownCause::Local)), "{error}");
}

#[test]
fn too_many_handles_expect_the_limit_by_name() {
    let pair = Pair::with(|raw| raw.limits.conns = 2, &ConnectOptions::new());
    let connect = || connect(&pair.engine, &unique_address());
    let second = connect().unwrap();
    let error = connect().unwrap_err();
    assert!(matches!(error, ConnectError::TooManyHandles(2)), "{error}");
    drop(second);
    wait_until("a number", || connect().is_ok());
}

/// Calls of one thread, whether they wait or not. RFC 8166 section 3.3: no more of them than credits are on their way.
#[test]
fn calls_of_a_thread_are_served_in_its_order() {
    let pair = Pair::with(|raw| raw.rpc.credits = 3, &ConnectOptions::new());
    let mut next = 0;
    for _ in 0..50 {
        let pending: Vec<_> = (0..CALLS as u32).map(|number| pair.later(next + number)).collect();
        for number in next..next + CALLS as u32 {
            wait_until("the next call", || pair.server.shared.waiting() > 0);
            assert!(pair.server.shared.waiting() <= 3);
            let (served, deferred) = pair.server.shared.pop().unwrap();
            assert_eq!(served, number);
            deferred.reply(|results| results.u32(number));
        }
        for (number, pending) in (next..).zip(pending) {
            assert_eq!(pending.wait().unwrap().results().u32().unwrap(), number);
        }
        next += CALLS as u32;
    }
}

/// The last handle may go where the core runs: in a function with an answer.
#[test]
fn the_last_handle_is_dropped_on_the_core_expect_the_connection_closed() {
    let mut pair = Pair::start();
    let other = pair.another();
    let last = Mutex::new(Some(std::mem::replace(&mut pair.client, other)));
    let on_answer: Arc<OnAnswer> =
        Arc::new(move |_: Token, _: Result<Reply<'_>, CallError>| drop(lock(&last).take()));
    pair.client.start_on_core(&on_answer, Token(0), NULL, CallSpec::short(), nothing).unwrap();
    wait_until("the end of the connection", || pair.server.shared.downs() == 1);
    assert_eq!(echo(&pair.client, b"the other").unwrap(), b"the other");
}

#[test]
fn buffers_of_calls_that_end_go_back() {
    let pair = Pair::start();
    wait_until("memory", || pair.client.bulk(1).is_some());
    let count = || std::iter::from_fn(|| pair.client.bulk(1 << 20)).collect::<Vec<Bulk>>().len();
    let before = count();
    let spec = CallSpec::short().argument(pair.client.bulk(1 << 20).unwrap());
    let error = pair.client.start(NULL, spec, |args| args.bulk()).unwrap().wait().unwrap_err();
    assert!(matches!(error, CallError::Accepted(AcceptStatus::GarbageArgs)), "{error}");
    wait_until("the buffer", || count() == before);
}
