//! Deadlines and cancelling. The server answers on the test's command, so that nothing depends on
//! timing.

use crate::common::prelude::*;

/// A deadline that passes while the server waits for the test.
const SOON: Duration = Duration::from_millis(20);

fn start_later(client: &Client, token: u64, spec: CallSpec) -> Result<CallId, Backpressure> {
    let mut spec = spec;
    client.call(LATER, Token(token), &mut spec, |args: &mut Encoder<'_>| args.u32(token as u32))
}

#[test]
fn a_deadline_that_passes_ends_the_call_once_and_the_late_reply_is_dropped() {
    let (server, mut caller) = served(all_words);
    let began = Instant::now();
    start_later(&caller.client, 1, CallSpec::short().deadline(SOON)).unwrap();
    let error = caller.reply().unwrap_err();
    assert!(began.elapsed() >= SOON, "{:?} is before the deadline", began.elapsed());
    assert!(matches!(error, CallError::TimedOut) && error.is_retryable(), "{error:?}");
    assert_eq!(caller.client.in_flight(), 1, "its credit is the server's until it answers");
    run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
    server.shared.pop().unwrap().1.reply(|results| results.u32(1));
    let client = caller.client.clone();
    run_core(&mut caller.core, "the late reply", || client.in_flight() == 0);
    assert!(caller.heard.borrow().replies.is_empty(), "the caller no longer waits for it");
    assert!(caller.call(NULL, |_| {}).is_ok());
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "one timeout", || engine.stats(0).unwrap().timeouts == 1);
}

/// RFC 8166 section 8.1: memory that a cancelled call exposed is not used again while the peer may
/// reach it.
#[test]
fn buffers_of_a_given_up_call_are_fenced_until_the_server_answers() {
    let server = Server::start();
    let mut caller: Caller<()> = Caller::connect(&server.address, |_: Reply<'_>| Ok(()));
    let size = 1 << 20;
    let before = caller.free_blocks(size);
    for token in 0..3 {
        let spec = CallSpec::short().deadline(SOON).result_into(caller.client.bulk(size).unwrap());
        start_later(&caller.client, token, spec).unwrap();
    }
    let replies = caller.replies(3);
    assert!(replies.iter().all(|(_, reply)| matches!(reply, Err(CallError::TimedOut))));
    assert_eq!(caller.free_blocks(size), before - 3, "the server may still write there");
    run_core(&mut caller.core, "3 calls", || server.shared.waiting() == 3);
    server.shared.answer_all_with_nothing();
    let client = caller.client.clone();
    run_core(&mut caller.core, "the late replies", || client.in_flight() == 0);
    assert_eq!(caller.free_blocks(size), before);
}

#[test]
fn the_end_of_the_connection_frees_fenced_buffers_and_tells_nobody_again() {
    let server = Server::start();
    let mut caller: Caller<()> = Caller::connect(&server.address, |_: Reply<'_>| Ok(()));
    let spec = CallSpec::short().deadline(SOON).result_into(caller.client.bulk(9000).unwrap());
    start_later(&caller.client, 1, spec).unwrap();
    assert!(matches!(caller.reply(), Err(CallError::TimedOut)));
    start_later(&caller.client, 2, CallSpec::short()).unwrap();
    caller.client.close();
    assert_eq!(caller.down().1, 1, "only the second call was still waited for");
    let replies = caller.replies(1);
    assert_eq!(replies[0].0, 2);
    assert!(matches!(replies[0].1, Err(CallError::Disconnected(_))));
}

#[test]
fn calls_with_equal_tokens_are_cancelled_one_by_one() {
    let (server, mut caller) = served(all_words);
    let mut start = |number: u32| {
        let mut spec = CallSpec::short();
        caller.client.call(LATER, Token(u64::MAX), &mut spec, |args| args.u32(number)).unwrap()
    };
    let calls = [1, 2, 3].map(&mut start);
    assert_eq!(caller.client.cancel(calls[1]), Ok(()));
    assert_eq!(caller.client.cancel(calls[1]), Err(CallEnded), "given up already");
    assert!(caller.heard.borrow().replies.is_empty(), "not before the turn ends");
    run_core(&mut caller.core, "3 calls", || server.shared.waiting() == 3);
    server.shared.answer_all();
    let (cancelled, answered): (Vec<_>, Vec<_>) =
        caller.replies(3).into_iter().partition(|(_, reply)| reply.is_err());
    assert!(matches!(&cancelled[..], [(u64::MAX, Err(CallError::Cancelled))]), "{cancelled:?}");
    let mut numbers: Vec<u32> =
        answered.into_iter().flat_map(|(_, reply)| reply.unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 3]);
    for call in calls {
        assert_eq!(caller.client.cancel(call), Err(CallEnded), "ended before");
    }
}

/// A slot is used again by the next call.
#[test]
fn the_id_of_an_ended_call_cancels_no_later_one() {
    let (server, mut caller) = served(all_words);
    let mut ended = Vec::new();
    for token in 0..100 {
        ended.push(caller.start(NULL, token, |_| {}).unwrap());
        assert!(caller.reply().is_ok());
        let later = start_later(&caller.client, token, CallSpec::short()).unwrap();
        for call in &ended {
            assert_eq!(caller.client.cancel(*call), Err(CallEnded));
        }
        run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
        server.shared.pop().unwrap().1.reply(|results| results.u32(7));
        assert_eq!(caller.reply().unwrap(), [7]);
        ended.push(later);
    }
    let distinct: std::collections::HashSet<_> = ended.iter().collect();
    assert_eq!(distinct.len(), ended.len());
}

#[test]
fn without_a_deadline_a_call_outlives_the_configured_one() {
    let server = Server::start();
    let mut raw = client_config();
    // The call that opens the connection has this deadline, too.
    raw.rpc.timeout_ms = 1500;
    let mut caller = Caller::connect_with(raw, &server.address, all_words);
    start_later(&caller.client, 1, CallSpec::short().no_deadline()).unwrap();
    start_later(&caller.client, 2, CallSpec::short()).unwrap();
    start_later(&caller.client, 3, CallSpec::short().deadline(SOON)).unwrap();
    let mut timed_out = caller.replies(2);
    timed_out.sort_by_key(|(token, _)| *token);
    assert_eq!(timed_out.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 3]);
    assert!(timed_out.iter().all(|(_, reply)| matches!(reply, Err(CallError::TimedOut))));
    run_core(&mut caller.core, "3 calls", || server.shared.waiting() == 3);
    server.shared.answer_all();
    let (token, reply) = caller.replies(1).remove(0);
    assert_eq!((token, reply.unwrap()), (1, vec![1]));
}

/// A deadline counts from the start of the call, not from when the core last looked at the clock.
#[test]
fn a_core_that_was_away_does_not_shorten_the_deadlines_of_new_calls() {
    let (server, mut caller) = served(all_words);
    let again = std::rc::Rc::new(std::cell::RefCell::new(None));
    let make = |client| Restart { client, began: None, again: std::rc::Rc::clone(&again) };
    let limit = crate::common::LIMIT;
    let core = &mut caller.core;
    let program = (crate::common::PROGRAM, crate::common::VERSION);
    let client = core.connect_wait(&server.address, program.0, program.1, make, limit).unwrap();
    client.call(NULL, Token(1), &mut CallSpec::short(), |_| {}).unwrap();
    core.poll_once();
    server.wait_for("the reply to be sent", |stats| stats.replies_sent >= 3);
    // The reply is there; this thread does something else for a while.
    let away = Instant::now();
    while away.elapsed() < Duration::from_millis(1200) {
        std::hint::spin_loop();
    }
    run_core(core, "the end of the second call", || again.borrow().is_some());
    let (is_answered, lived) = again.borrow().unwrap();
    assert!(is_answered || lived >= BRIEF, "it timed out after {lived:?}");
}

/// Shorter than the core was away.
const BRIEF: Duration = Duration::from_millis(1000);

/// Answers the first reply with a call that has a short deadline, and notes how that ends.
struct Restart {
    client: Client,
    began: Option<Instant>,
    again: std::rc::Rc<std::cell::RefCell<Option<(bool, Duration)>>>,
}

impl spinrpc::ReplyHandler for Restart {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        if token == Token(2) {
            let lived = self.began.unwrap().elapsed();
            *self.again.borrow_mut() = Some((reply.is_ok(), lived));
            return;
        }
        self.began = Some(Instant::now());
        let mut spec = CallSpec::short().deadline(BRIEF);
        self.client.call(NULL, Token(2), &mut spec, |_| {}).unwrap();
    }
}

/// Defer calls, and find out that it is too late for each. Expect the client to get an error, and its slots back.
#[test]
fn a_service_says_of_a_deferred_call_that_it_is_too_late() {
    let (server, mut caller) = served(all_words);
    for round in 1..=20 {
        caller.start(LATER, round, |args| args.u32(7)).unwrap();
        run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
        let (_, deferred) = server.shared.pop().unwrap();
        assert!(!deferred.is_unheard());
        deferred.too_late();
        let error = caller.reply().unwrap_err();
        assert!(matches!(error, CallError::Accepted(AcceptStatus::SystemErr)), "{error:?}");
    }
    let answered = caller.call(NULL, |_| {});
    assert!(answered.is_ok(), "{answered:?}");
    server.wait_for("the count of late calls", |stats| stats.calls_late == 20);
}

/// As in a process that was stopped: before the client's next turn the replies arrive, more than one turn takes, and its deadlines
/// pass. Expect the replies.
#[test]
fn replies_that_have_arrived_are_taken_before_deadlines_are_acted_on() {
    const CALLS: u64 = 60;
    let mut shared = Arc::default();
    let mut cores = Cores::of(small(), |there| shared = serve(there));
    let heard = SharedHeard::<Vec<u32>>::default();
    let client = cores.connect(&ConnectOptions::new(), |_| recorder(&heard, all_words));
    let Cores { mut near, mut far, .. } = cores;
    let before = shared.calls.load(Ordering::Relaxed);
    for token in 0..CALLS {
        let mut spec = CallSpec::short().deadline(Duration::from_nanos(1));
        client.call(NULL, Token(token), &mut spec, |_| {}).unwrap();
    }
    let end = Instant::now() + LIMIT;
    while shared.calls.load(Ordering::Relaxed) < before + CALLS || far.poll_once().events > 0 {
        assert!(Instant::now() < end, "not all calls came");
        far.poll_once();
    }
    near.run_until(|| heard.borrow().replies.len() == CALLS as usize || Instant::now() > end);
    let heard = heard.borrow();
    let late = heard.replies.iter().filter(|(_, reply)| reply.is_err()).count();
    assert_eq!((late, heard.replies.len()), (0, CALLS as usize));
}
