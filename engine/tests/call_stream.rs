//! Calls as a stream for another thread: reverse calls that a client answers from its runtime, and ordinary ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;
use std::task::{Context, Poll, Waker};

/// Calls that a stream of these tests takes.
const CALLS: usize = 4;
/// More than those.
const CREDITS: u64 = 16;
/// A number in, the same out.
const SAME: Procedure = Procedure(1);

fn config(raw: &mut RawConfig) {
    (raw.rpc.credits, raw.rpc.reverse_calls) = (CREDITS, CREDITS);
}

struct Forward {
    engine: Started,
    calls: Option<CallStream>,
    caller: Caller<Vec<u32>>,
}

impl Forward {
    fn start() -> Self {
        let engine = Engine::new(valid(small_with(config))).unwrap();
        let calls = Some(engine.serve_stream(PROGRAM, VERSION, CALLS).unwrap());
        let address = unique_address();
        engine.listen(&address).unwrap();
        let engine = Started::new(engine);
        let caller = Caller::connect(&address, all_words);
        Self { engine, calls, caller }
    }

    fn start_call(&self, number: u32) {
        self.caller.start(SAME, number.into(), |args| args.u32(number)).unwrap();
    }

    /// The next call: the core of the caller runs meanwhile.
    fn take(&mut self) -> IncomingCall {
        let (calls, taken) = (RefCell::new(self.calls.as_mut().unwrap()), RefCell::new(None));
        run_core(&mut self.caller.core, "a call", || {
            let mut taken = taken.borrow_mut();
            *taken = taken.take().or_else(|| calls.borrow_mut().try_next());
            taken.is_some()
        });
        taken.into_inner().unwrap()
    }

    /// Waits for as many refusals; the tokens of their calls.
    fn refused(&mut self, count: usize) -> Vec<u64> {
        let token_of = |(token, reply)| {
            let is_refused = matches!(reply, Err(CallError::Accepted(AcceptStatus::SystemErr)));
            assert!(is_refused, "{reply:?}");
            token
        };
        self.caller.replies(count).into_iter().map(token_of).collect()
    }

    fn end(&mut self) {
        self.engine.stop();
    }
}

fn number_of(call: &mut IncomingCall) -> u32 {
    call.args().u32().unwrap()
}

fn answer(mut call: IncomingCall) {
    let number = number_of(&mut call);
    call.reply(|results| results.u32(number));
}

#[test]
fn calls_are_answered_in_any_order_expect_each_its_own_answer() {
    let mut forward = Forward::start();
    for _ in 0..50 {
        (0..CALLS as u32).for_each(|number| forward.start_call(number));
        let mut taken: Vec<_> = (0..CALLS).map(|_| forward.take()).collect();
        let numbers: Vec<_> = taken.iter_mut().map(number_of).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        taken.into_iter().rev().for_each(answer);
        for (token, words) in forward.caller.replies(CALLS) {
            assert_eq!(words.unwrap(), [token as u32]);
        }
    }
}

#[test]
fn more_calls_than_the_stream_takes_expect_them_refused() {
    let mut forward = Forward::start();
    for _ in 0..10 {
        (0..CALLS as u32).for_each(|number| forward.start_call(number));
        let first = forward.take();
        forward.start_call(77);
        assert_eq!(forward.refused(1), [77]);
        // NULL is not for the stream.
        assert!(forward.caller.call(NULL, |_| {}).unwrap().is_empty());
        answer(first);
        assert_eq!(forward.caller.reply().unwrap(), [0]);
        forward.start_call(78);
        let rest: Vec<_> = (0..CALLS).map(|_| forward.take()).collect();
        rest.into_iter().for_each(answer);
        forward.caller.replies(CALLS);
    }
}

#[test]
fn calls_are_refused_or_dropped_expect_errors_and_their_places_free() {
    let mut forward = Forward::start();
    for _ in 0..3 * CALLS as u32 {
        forward.start_call(1);
        drop(forward.take());
        forward.refused(1);
        forward.start_call(1);
        forward.take().reject(AcceptStatus::ProcUnavail);
        let refused = forward.caller.reply();
        let is_refused = matches!(refused, Err(CallError::Accepted(AcceptStatus::ProcUnavail)));
        assert!(is_refused, "{refused:?}");
    }
}

#[test]
fn the_stream_is_dropped_expect_its_calls_refused_but_those_taken() {
    let mut forward = Forward::start();
    (0..3).for_each(|number| forward.start_call(number));
    let taken = forward.take();
    forward.calls = None;
    // One that comes now may be refused before one that was in the stream.
    let mut refused = forward.refused(2);
    refused.sort_unstable();
    assert_eq!(refused, [1, 2]);
    forward.start_call(3);
    assert_eq!(forward.refused(1), [3]);
    answer(taken);
    assert_eq!(forward.caller.reply().unwrap(), [0]);
}

#[test]
fn the_engine_ends_expect_what_came_and_then_the_end() {
    let mut forward = Forward::start();
    let mut calls = forward.calls.take().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(calls.poll_next(&mut context).is_pending());
    forward.start_call(5);
    let engine = forward.engine.clone();
    // With the one by which the caller waited for its credits.
    run_core(&mut forward.caller.core, "the call", || engine.stats(0).unwrap().calls_received == 2);
    forward.end();
    let Poll::Ready(Some(mut call)) = calls.poll_next(&mut context) else {
        panic!("the call was lost")
    };
    assert_eq!(number_of(&mut call), 5);
    answer(call);
    assert!(matches!(calls.poll_next(&mut context), Poll::Ready(None)));
}

#[test]
fn an_engine_that_never_starts_expect_the_end() {
    let engine = Engine::new(valid(small_with(config))).unwrap();
    let mut calls = engine.serve_stream(PROGRAM, VERSION, 0).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(calls.poll_next(&mut context).is_pending());
    drop(engine);
    assert!(matches!(calls.poll_next(&mut context), Poll::Ready(None)));
}

#[test]
fn arguments_of_every_length_expect_them_whole_and_who_called() {
    echo_all(|_| {});
}

/// RFC 5666 section 3.9: in an RDMA_MSGP, data have padding before them.
#[test]
fn padded_arguments_expect_them_whole() {
    echo_all(|raw| {
        raw.rpc.protocol = Profile::Rfc5666;
        (raw.rpc.msgp_align_bytes, raw.fixed.msgp_threshold_bytes) = (1024, 512);
    });
}

fn echo_calls(calls: &mut CallStream) {
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match calls.poll_next(&mut context) {
            Poll::Ready(None) => return,
            Poll::Pending => std::thread::yield_now(),
            Poll::Ready(Some(mut call)) => {
                let credential = call.credential();
                let user = AuthSys::parse(credential.body).map(|user| user.uid);
                assert_eq!((credential.flavor, user), (AuthFlavor::Sys, Ok(1234)));
                // Twice: the arguments can be read again.
                assert!(call.args().opaque(1 << 20).is_ok());
                let bytes = call.args().opaque(1 << 20).unwrap().to_vec();
                call.reply(|results| results.opaque(&bytes));
            }
        }
    }
}

fn echo_all(change: fn(&mut RawConfig)) {
    let changed = |mut raw: RawConfig| {
        config(&mut raw);
        change(&mut raw);
        raw
    };
    let engine = Engine::new(valid(changed(small_with(|_| {})))).unwrap();
    let mut calls = engine.serve_stream(PROGRAM, VERSION, CALLS).unwrap();
    let server = Server::started(engine, Default::default());
    let echo = std::thread::spawn(move || echo_calls(&mut calls));
    let mut caller = Caller::connect_with(changed(client_config()), &server.address, one_opaque);
    let user =
        AuthSys { stamp: 0, machine_name: b"here", uid: 1234, gid: 5, groups: Groups::default() };
    caller.client.set_auth_sys(Some(&user)).unwrap();
    for length in [0, 1, 100, 3000, 5000, 70_000] {
        for by_chunk in [false, true] {
            let bytes = pattern(length as u32, length);
            let mut spec = CallSpec::new().reply_bytes_max(length + 64);
            if by_chunk {
                let mut item = caller.client.bulk(length.max(1)).unwrap();
                item.set_len(length);
                item.bytes_mut().copy_from_slice(&bytes);
                spec = spec.argument(item);
            }
            let encode = |args: &mut Encoder<'_>| match by_chunk {
                true => args.bulk(),
                false => args.opaque(&bytes),
            };
            caller.client.call(SAME, Token(1), &mut spec, encode).unwrap();
            let echoed = caller.reply().unwrap();
            assert!(is_pattern(length as u32, &echoed) && echoed.len() == length, "{length}");
        }
    }
    server.stop();
    echo.join().unwrap();
}

/// A server on this thread, and a client's engine on a separate thread whose stream takes the calls
/// in reverse.
struct Reverse {
    _engine: Started,
    calls: Option<CallStream>,
    back: Client,
    heard: SharedHeard<Vec<u32>>,
    core: Core,
    client: spinrpc::ClientHandle,
}

impl Reverse {
    fn start() -> Self {
        let server = Engine::new(valid(small_with(config))).unwrap();
        let shared = serve(&server);
        let address = unique_address();
        server.listen(&address).unwrap();
        let mut core = server.core(0).unwrap();
        let mut raw = client_config();
        config(&mut raw);
        let engine = Engine::new(valid(raw)).unwrap();
        let calls = Some(engine.serve_stream(PROGRAM, VERSION, CALLS).unwrap());
        let engine = Started::new(engine);
        let options = ConnectOptions::new().take_reverse_calls();
        let client = engine.connect(0, &address, PROGRAM, VERSION, &options).unwrap();
        run_core(&mut core, "the connection", || client.is_up());
        let (connection, heard) = (connections(&shared)[0], SharedHeard::default());
        let made = recorder(&heard, all_words);
        let options = ReverseOptions::new();
        let back = core.reverse_client(connection, PROGRAM, VERSION, &options, |_| made).unwrap();
        // With the first reply come all credits.
        back.call(NULL, Token(0), &mut CallSpec::short(), |_| {}).unwrap();
        let mut reverse = Self { _engine: engine, calls, back, heard, core, client };
        reverse.replies(1);
        reverse
    }

    fn start_call(&self, number: u32) {
        let spec = &mut CallSpec::short();
        self.back.call(SAME, Token(number.into()), spec, |args| args.u32(number)).unwrap();
    }

    fn replies(&mut self, count: usize) -> Vec<(u64, Result<Vec<u32>, CallError>)> {
        let heard = std::rc::Rc::clone(&self.heard);
        run_core(&mut self.core, "replies", || heard.borrow().replies.len() == count);
        std::mem::take(&mut heard.borrow_mut().replies)
    }
}

/// ThreadSanitizer does not see the locks of tokio's threads, which are in the compiled part of std.
#[cfg(not(sanitized))]
#[test]
fn tokio_answers_reverse_calls_by_tasks_expect_every_answer() {
    let mut reverse = Reverse::start();
    let mut calls = reverse.calls.take().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let served = runtime.spawn(async move {
        let mut tasks = Vec::new();
        while let Some(call) = calls.next().await {
            tasks.push(tokio::spawn(async move {
                tokio::task::yield_now().await;
                answer(call);
            }));
        }
        for task in &mut tasks {
            task.await.unwrap();
        }
        tasks.len()
    });
    for _ in 0..100 {
        (0..CALLS as u32).for_each(|number| reverse.start_call(number));
        for (token, words) in reverse.replies(CALLS) {
            assert_eq!(words.unwrap(), [token as u32]);
        }
    }
    // Calls forward continue meanwhile.
    assert!(reverse.client.is_up());
    drop(reverse);
    assert_eq!(runtime.block_on(served).unwrap(), 100 * CALLS);
}
