//! Calls that are answered later: from other threads, out of order, or not at all.

use crate::common::prelude::*;
use spinrpc_proto::rdma::RdmaError;
use std::sync::mpsc::{Sender, channel};

const OTHER_VERSION: Version = Version(VERSION.0 + 1);

/// Answers deferred calls with their number until none comes any more.
fn answer_all(shared: &Arc<Shared>, count: usize) -> std::thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        let mut answered = 0;
        wait_until("calls to answer", || {
            while let Some((number, deferred)) = shared.pop() {
                deferred.reply(|results| results.u32(number));
                answered += 1;
            }
            answered == count
        });
    })
}

/// `copies` counts data items and long messages.
#[test]
fn short_deferred_replies_are_no_copies() {
    let (server, mut caller) = served(all_words);
    let answering = answer_all(&server.shared, 10);
    for number in 0..10 {
        assert_eq!(caller.call(LATER, |args| args.u32(number)).unwrap(), [number]);
    }
    answering.join().unwrap();
    server.wait_for("ten replies", |stats| stats.replies_sent > 10);
    assert_eq!(server.stats().copies, 0);
}

#[test]
fn answers_may_come_in_any_order() {
    let (server, mut caller) = served(all_words);
    caller.start_later(0..64, |token| token as u32);
    run_core(&mut caller.core, "64 calls", || server.shared.waiting() == 64);
    let mut calls: Vec<_> = std::iter::from_fn(|| server.shared.pop()).collect();
    // Last to first, and then every other one.
    calls.reverse();
    let (even, odd): (Vec<_>, Vec<_>) = calls.into_iter().partition(|(n, _)| n % 2 == 0);
    for (number, deferred) in odd.into_iter().chain(even) {
        deferred.reply(|results| results.u32(number));
    }
    let replies = caller.replies(64);
    assert_eq!(replies[0].0, 63);
    assert_eq!(replies[63].0, 0);
    assert!(replies.into_iter().all(|(token, reply)| reply.unwrap() == [token as u32]));
}

fn panic_while_answering(deferred: Deferred) {
    let answer = std::thread::spawn(|| deferred.reply(|_| panic!("an encoder that panics")));
    assert!(answer.join().is_err());
}

#[test]
fn a_dropped_or_rejected_one_is_answered_with_an_error() {
    let (server, mut caller) = served(all_words);
    type Answer = fn(Deferred);
    let answers: [(Answer, AcceptStatus); 4] = [
        (drop, AcceptStatus::SystemErr),
        (panic_while_answering, AcceptStatus::SystemErr),
        (|deferred| deferred.reject(AcceptStatus::GarbageArgs), AcceptStatus::GarbageArgs),
        (|deferred| deferred.reject(AcceptStatus::ProcUnavail), AcceptStatus::ProcUnavail),
    ];
    for (answer, status) in answers {
        caller.start(LATER, 1, |args| args.u32(1)).unwrap();
        run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
        answer(server.shared.pop().unwrap().1);
        let error = caller.reply().unwrap_err();
        assert!(matches!(error, CallError::Accepted(said) if said == status), "{error:?}");
    }
}

#[test]
fn an_answer_after_the_connection_went_down_is_counted_and_nothing_else() {
    let (server, mut first) = served(all_words);
    first.start_later(0..20, |_| 7);
    run_core(&mut first.core, "20 calls", || server.shared.waiting() == 20);
    drop(first);
    wait_until("the end at the server", || server.shared.downs() == 1);
    // The next connection takes the place of the first, and its calls the same slots.
    let mut second = Caller::connect(&server.address, all_words);
    second.start_later(0..20, |_| 8);
    run_core(&mut second.core, "20 more", || server.shared.waiting() == 40);
    let of_first: Vec<_> = (0..20).filter_map(|_| server.shared.pop()).collect();
    for (index, (number, deferred)) in of_first.into_iter().enumerate() {
        assert_eq!(number, 7);
        match index % 3 {
            0 => deferred.reply(|results| results.u32(0xdead)),
            1 => deferred.reject(AcceptStatus::GarbageArgs),
            _ => drop(deferred),
        }
    }
    server.wait_for("20 stale answers", |stats| stats.stale == 20);
    assert!(second.heard.borrow().replies.is_empty(), "the answer of another connection's call");
    server.shared.answer_all();
    assert!(second.replies(20).into_iter().all(|(_, reply)| reply.unwrap() == [8]));
}

/// Defers every call with its arguments read: answered on another thread by the same rules as
/// in place.
struct Elsewhere {
    context: CoreContext,
    answers: Sender<(Mix, CoreContext, Deferred)>,
}

impl Service for Elsewhere {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == NULL {
            return call.reply(|_| {});
        }
        let mix = Mix::read(&mut call.args()).unwrap();
        let deferred = call.defer().unwrap();
        self.answers.send((mix, self.context.clone(), deferred)).unwrap();
    }
}

#[test]
fn long_results_and_data_items_go_the_same_ways_from_another_thread() {
    let (answers, jobs) = channel::<(Mix, CoreContext, Deferred)>();
    let engine = Engine::new(valid(small())).unwrap();
    engine
        .serve(PROGRAM, VERSION, move |context| Elsewhere {
            context: context.clone(),
            answers: answers.clone(),
        })
        .unwrap();
    let server = Server::started(engine, Default::default());
    let answering = std::thread::spawn(move || {
        for (mix, context, deferred) in jobs {
            deferred.reply_with(mix.items(&context).unwrap(), |results| mix.encode(results));
        }
    });
    let mut caller: Caller<MixAnswer> = Caller::connect(&server.address, MixCall::read);
    for length in [0, 1, 3, 1000, 3900, 4000, 4096, 5001, 100_003, 700_000] {
        let sizes = vec![length, 17, length / 3];
        for (results, offers) in
            [(sizes.clone(), sizes.clone()), (vec![17], vec![]), (vec![], vec![9])]
        {
            let call = MixCall {
                seed: length as u32,
                arguments: vec![length / 2, 5],
                results,
                offers,
                tail: length,
                reply_bytes_max: length + 200,
            };
            call.start(&caller.client, 1).unwrap();
            call.check(&caller.reply().unwrap_or_else(|error| panic!("{call:?}: {error}")));
        }
    }
    let too_long = MixCall { seed: 1, tail: 9000, reply_bytes_max: 5000, ..MixCall::default() };
    let too_large = MixCall { results: vec![900], offers: vec![899], ..MixCall::default() };
    for call in [too_long, too_large] {
        call.start(&caller.client, 1).unwrap();
        let error = caller.reply().unwrap_err();
        assert!(matches!(error, CallError::Rdma(_)), "{call:?}: {error:?}");
    }
    // The engine keeps the factory, and with it a sender.
    drop(server);
    wait_until("the answering thread to end", || answering.is_finished());
}

/// The service takes all memory of the core, so that none is left for a reply that comes later.
#[test]
fn a_call_that_cannot_be_deferred_comes_back_to_be_answered() {
    let engine = Engine::new(valid(small())).unwrap();
    engine
        .serve(PROGRAM, VERSION, |context| {
            let context = context.clone();
            move |call: Call<'_>| {
                let sizes = [1 << 20, 64 << 10, 1].into_iter();
                let all = |size| std::iter::from_fn(|| context.bulk(size)).collect::<Vec<_>>();
                let taken: Vec<_> = sizes.map(all).collect();
                let given_back = call.try_defer().unwrap_err();
                drop(taken);
                match given_back.procedure() {
                    LATER => given_back.reply(|results| results.u32(5)),
                    _ => drop(given_back.try_defer().map(|deferred| deferred.reply(|_| {}))),
                }
            }
        })
        .unwrap();
    let server = Server::started(engine, Default::default());
    let mut caller = Caller::connect(&server.address, all_words);
    assert_eq!(caller.call(LATER, |_| {}).unwrap(), [5]);
    assert!(caller.call(NULL, |_| {}).unwrap().is_empty(), "deferred at the second attempt");
    drop(caller);
}

#[test]
fn more_than_can_be_deferred_are_answered_with_system_err_and_the_rest_go_on() {
    // 2048 calls of a core may be deferred, 1536 of one user; three connections could have 3072.
    let server = Server::with(small_with(|raw| {
        raw.rpc.credits = 1024;
        raw.mem.arena_mib = 320;
    }));
    let raw = small_with(|raw| raw.rpc.credits = 1024);
    let (_engine, mut core) = with_core(raw);
    let clients: Vec<_> =
        (0..3).map(|_| open(&mut core, &server.address, one_opaque).unwrap()).collect();
    for (client, _) in &clients {
        for token in 0..1024 {
            let encode = |args: &mut Encoder<'_>| args.u32(token as u32);
            client.call(LATER, Token(token), &mut CallSpec::short(), encode).unwrap();
        }
    }
    let ended = || clients.iter().map(|(_, heard)| heard.borrow().replies.len()).sum::<usize>();
    run_core(&mut core, "1536 refusals", || ended() == 1536);
    assert_eq!(server.shared.waiting(), 1536);
    for (_, heard) in &clients {
        for (_, reply) in heard.borrow_mut().replies.drain(..) {
            let error = reply.unwrap_err();
            assert!(matches!(error, CallError::Accepted(AcceptStatus::SystemErr)), "{error:?}");
        }
    }
    while let Some((number, deferred)) = server.shared.pop() {
        deferred.reply(|results| results.opaque(&number.to_be_bytes()));
    }
    run_core(&mut core, "1536 answers", || ended() == 1536);
    let (client, heard) = &clients[0];
    heard.borrow_mut().replies.clear();
    client.call(LATER, Token(1), &mut CallSpec::short(), |args| args.u32(5)).unwrap();
    run_core(&mut core, "a call that can be deferred again", || server.shared.waiting() == 1);
    server.shared.pop().unwrap().1.reply(|results| results.opaque(b"again"));
    run_core(&mut core, "its answer", || heard.borrow().replies.len() == 1);
}

/// Of 39 blocks for replies, 30 are for anybody. Calls of connections that have gone keep theirs, so the user who opened
/// them gets no others.
#[test]
fn deferred_calls_of_connections_that_have_gone_count_for_their_user() {
    let server = Server::with(small_with(|raw| {
        raw.rpc.credits = 16;
        raw.mem.arena_mib = 4;
    }));
    let refused = || server.shared.defer_refused.load(std::sync::atomic::Ordering::Relaxed);
    let connect = || {
        let caller = Caller::connect(&server.address, all_words);
        caller.start_later(0..16, |_| 0);
        caller
    };
    let mut callers = [connect(), connect()];
    let end = Instant::now() + LIMIT;
    // Both, whose first calls may wait for the other side.
    while server.shared.waiting() as u64 + refused() < 32 {
        for caller in &mut callers {
            caller.core.poll_once();
        }
        assert!(Instant::now() < end, "{} calls are here", server.shared.waiting());
    }
    assert_eq!(server.shared.waiting(), 30);
    drop(callers);
    wait_until("both connections to end", || server.shared.downs() == 2);
    let mut again = connect();
    assert!(again.replies(16).iter().all(|(_, reply)| reply.is_err()));
    assert_eq!(refused(), 18);
    server.shared.answer_all_with_nothing();
    server.wait_for("stale answers", |stats| stats.stale == 30);
    again.start_later(0..16, |_| 0);
    run_core(&mut again.core, "16 calls", || server.shared.waiting() == 16);
}

/// The core sleeps for 400 ms unless it is woken. Expect it to be, at least once in five times: a busy
/// machine may let everybody wait.
#[test]
fn an_answer_by_another_thread_wakes_the_core() {
    let server = Server::with(small_with(|raw| {
        raw.poll.mode = IdlePolicy::Sleep;
        raw.poll.park_us = 400_000;
    }));
    let mut caller = Caller::connect(&server.address, all_words);
    let took = (0..5).map(|token| {
        caller.start(LATER, token, |args| args.u32(1)).unwrap();
        run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
        let parks = server.stats().parks;
        wait_until("the core to sleep", || server.stats().parks > parks);
        let (_, deferred) = server.shared.pop().unwrap();
        let answering = std::thread::spawn(move || deferred.reply(|results| results.u32(2)));
        let began = Instant::now();
        assert_eq!(caller.reply().unwrap(), [2]);
        answering.join().unwrap();
        began.elapsed()
    });
    let fastest = took.min().unwrap();
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
}

/// Answers with as many bytes as the argument says; by way of a deferral if the procedure is [`LATER`].
struct Sized;

impl Service for Sized {
    fn call(&mut self, mut call: Call<'_>) {
        let is_later = call.procedure() == LATER;
        let results = vec![7; call.args().u32().unwrap_or(0) as usize];
        match is_later {
            true => call.defer().unwrap().reply(|stream| stream.fixed(&results)),
            false => call.reply(|stream| stream.fixed(&results)),
        }
    }
}

/// RFC 5666 section 4.2: ERR_CHUNK, where the call brought no room; however long the blocks of the server are.
#[test]
fn results_longer_than_any_block_expect_err_chunk() {
    let engine = Engine::new(valid(small())).unwrap();
    engine.serve(PROGRAM, VERSION, |_| Sized).unwrap();
    let server = Server::started(engine, Default::default());
    let mut caller = Caller::connect(&server.address, all_words);
    for procedure in [LATER, ECHO] {
        for bytes in [100_000, 1_200_000] {
            let error = caller.call(procedure, |args| args.u32(bytes)).unwrap_err();
            let expected = RdmaError::of_header(crate::common::version());
            let is_expected = matches!(error, CallError::Rdma(error) if error == expected);
            assert!(is_expected, "{procedure:?} {bytes}: {error:?}");
        }
    }
}

struct AtEnd(Option<Deferred>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(deferred) = self.0.take() {
            deferred.reply(|results| results.u32(9));
        }
    }
}

thread_local! {
    static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_may_answer_in_a_destructor() {
    let (server, mut caller) = served(all_words);
    caller.start_later(0..2, |_| 0);
    run_core(&mut caller.core, "two calls", || server.shared.waiting() == 2);
    let (first, last) = (server.shared.pop().unwrap().1, server.shared.pop().unwrap().1);
    let thread = std::thread::spawn(move || {
        AT_END.with(|place| *place.borrow_mut() = Some(AtEnd(Some(last))));
        first.reply(|results| results.u32(9));
    });
    thread.join().unwrap();
    for (_, reply) in caller.replies(2) {
        assert_eq!(reply.unwrap(), [9]);
    }
}

/// End the connection of a caller. Expect the holder of its call to learn that, unless the call is
/// executed once: its caller may ask for the answer again.
#[test]
fn who_answers_later_learns_that_the_caller_has_gone() {
    let engine = Engine::new(valid(small_with(|raw| raw.rpc.reply_cache_mib = 1))).unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = |kept: &Arc<Mutex<Vec<Deferred>>>| {
        let kept = Arc::clone(kept);
        move |_: &_| {
            let kept = Arc::clone(&kept);
            move |call: Call<'_>| match call.procedure() {
                LATER => lock(&kept).extend(call.defer()),
                _ => call.reply(|_| {}),
            }
        }
    };
    let once = Arc::new(Mutex::new(Vec::new()));
    engine.serve(PROGRAM, VERSION, keep(&kept)).unwrap();
    engine.serve_once(PROGRAM, OTHER_VERSION, keep(&once)).unwrap();
    let server = Server::started(engine, Default::default());
    let (_other, mut core) = with_core(client_config());
    for (version, kept) in [(VERSION, &kept), (OTHER_VERSION, &once)] {
        let made = recorder(&SharedHeard::default(), all_words);
        let options = ConnectOptions::new().reconnect(Reconnect::default());
        let client =
            core.connect_with(&server.address, PROGRAM, version, &options, |_| made).unwrap();
        run_core(&mut core, "the connection", || client.is_up());
        let mut spec = CallSpec::short().resend(Resend::AtMostOnce);
        client.call(LATER, Token(1), &mut spec, |_| {}).unwrap();
        run_core(&mut core, "the call", || lock(kept).len() == 1);
        assert!(!lock(kept)[0].is_unheard());
        let closed = server.engine.stats(0).unwrap().connections_closed;
        client.close();
        run_core(&mut core, "its end", || {
            server.engine.stats(0).unwrap().connections_closed > closed
        });
    }
    assert!(lock(&kept)[0].is_unheard());
    assert!(!lock(&once)[0].is_unheard(), "it may be asked for again");
    for deferred in [&kept, &once].into_iter().flat_map(|kept| std::mem::take(&mut *lock(kept))) {
        deferred.reply(|_| {});
    }
}
