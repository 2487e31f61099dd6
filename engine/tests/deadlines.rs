//! Calls that are answered or given up too late: a service that has kept a call for too long, and a client whose deadlines
//! passed while it did not run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{Caller, SharedHeard, all_words, recorder, run_core};
use common::program::{LATER, NULL};
use common::two_way::poll_until;
use common::{LIMIT, PROGRAM, Server, VERSION, serve, small_with, unique_address, valid};
use spinrpc::{AcceptStatus, CallError, CallSpec, Engine, Token};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Defer calls, and find out that it is too late for each. Expect the client to get an error, and its slots back.
#[test]
fn a_service_says_of_a_deferred_call_that_it_is_too_late() {
    let server = Server::start();
    let mut caller = Caller::connect(&server.address, all_words);
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
    let [here, there] = [(); 2].map(|()| Engine::new(valid(small_with(|_| {}))).unwrap());
    let shared = serve(&there);
    let address = unique_address();
    there.listen(&address).unwrap();
    let [mut near, mut far] = [&here, &there].map(|engine| engine.core(0).unwrap());
    let heard = SharedHeard::<Vec<u32>>::default();
    let made = recorder(&heard, all_words);
    let client = near.connect(&address, PROGRAM, VERSION, |_| made).unwrap();
    poll_until(&mut near, &mut far, "the connection", || client.is_up());
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
