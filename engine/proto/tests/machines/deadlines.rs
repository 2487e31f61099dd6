//! Deadlines, cancelling, and the end of a connection: every call ends exactly once, and its memory
//! is given back only when the peer cannot reach it (RFC 8166 section 4.5.4, RFC 5042 section
//! 6.2.2).

use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::{CallFailure, PeerMisbehaved, SlotId};
use spinrpc_proto::payload::CallChunks;
use spinrpc_proto::requester::{CallRefused, StartedCall};

use crate::messages::{Caller, Chunks, NEVER, plain_reply, rdma_error};
use crate::recorder::Event;

fn call_until(caller: &mut Caller, token: u64, deadline: u64) -> StartedCall {
    caller.call_with(token, Instant(deadline), &CallChunks::EMPTY).0
}

fn timed_out(call: StartedCall, token: u64) -> Event {
    Event::Failed { slot: call.slot, token, failure: CallFailure::TimedOut, fenced: true }
}

#[test]
fn a_call_times_out_at_its_deadline_not_before() {
    let mut caller = Caller::granted(4);
    let early = call_until(&mut caller, 1, 100);
    let late = call_until(&mut caller, 2, 200);
    caller.call(3);
    assert_eq!(caller.at(99), []);
    assert_eq!(caller.at(100), [timed_out(early, 1)]);
    assert_eq!(caller.at(199), []);
    assert_eq!(caller.at(500), [timed_out(late, 2)]);
    assert_eq!(caller.at(u64::MAX - 1), []);
}

#[test]
fn the_next_deadline_is_never_later_than_one_that_counts() {
    let mut caller = Caller::granted(4);
    assert_eq!(caller.requester.next_deadline(), NEVER);
    let first = call_until(&mut caller, 1, 300);
    call_until(&mut caller, 2, 200);
    assert_eq!(caller.requester.next_deadline(), Instant(200));
    caller.receive(&plain_reply(first.xid, 4));
    caller.at(200);
    assert_eq!(caller.requester.next_deadline(), NEVER);
    call_until(&mut caller, 3, 400);
    assert_eq!(caller.requester.next_deadline(), Instant(400));
}

#[test]
fn calls_that_expire_together_end_together() {
    let mut caller = Caller::granted(4);
    let calls: Vec<_> = (0..4).map(|token| call_until(&mut caller, token, 50)).collect();
    let expected: Vec<_> = (0..).zip(calls).map(|(token, call)| timed_out(call, token)).collect();
    let mut events = caller.at(60);
    events.sort_by_key(|event| match event {
        Event::Failed { token, .. } => *token,
        _ => u64::MAX,
    });
    assert_eq!(events, expected);
}

#[test]
fn a_call_given_up_keeps_its_slot_and_credit() {
    // The responder may still read and write its memory, and its receive buffer is in use.
    let mut caller = Caller::granted(1);
    let call = call_until(&mut caller, 1, 100);
    caller.at(100);
    assert_eq!(caller.requester.credits().in_flight(), 1);
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
    assert_eq!(caller.receive(&plain_reply(call.xid, 1)), [Event::Released(call.slot)]);
    assert_eq!(caller.requester.check_room(), Ok(()));
}

#[test]
fn a_late_reply_grants_credits_like_any_other() {
    let mut caller = Caller::new(8);
    let call = call_until(&mut caller, 1, 100);
    caller.at(100);
    caller.receive(&plain_reply(call.xid, 8));
    assert_eq!(caller.requester.credits().granted(), 8);
}

#[test]
fn a_late_error_releases_the_call() {
    let mut caller = Caller::granted(1);
    let call = call_until(&mut caller, 1, 100);
    caller.at(100);
    let events = caller.receive(&rdma_error(call.xid, 1, &[2]));
    assert_eq!(events, [Event::Released(call.slot)]);
    assert_eq!(caller.requester.check_room(), Ok(()));
}

#[test]
fn a_late_reply_that_breaks_the_rules_still_ends_the_connection() {
    let mut caller = Caller::granted(1);
    let call = call_until(&mut caller, 1, 100);
    caller.at(100);
    let events = caller.receive(&Chunks::none().nomsg(call.xid, 1));
    let why = PeerMisbehaved::NoReplyStream;
    assert_eq!(events, [Event::Released(call.slot), Event::Closed(why)]);
}

#[test]
fn cancel_ends_a_call_once() {
    let mut caller = Caller::granted(2);
    let call = call_until(&mut caller, 9, 100);
    assert!(caller.requester.cancel(call.slot, &mut caller.out));
    let failure = CallFailure::Cancelled;
    let cancelled = Event::Failed { slot: call.slot, token: 9, failure, fenced: true };
    assert_eq!(caller.out.take(), [cancelled]);
    assert!(!caller.requester.cancel(call.slot, &mut caller.out));
    assert_eq!(caller.at(1000), [], "its deadline means nothing any more");
    assert_eq!(caller.receive(&plain_reply(call.xid, 2)), [Event::Released(call.slot)]);
    assert!(!caller.requester.cancel(call.slot, &mut caller.out));
}

#[test]
fn cancel_of_an_earlier_call_in_the_same_slot_does_nothing() {
    let mut caller = Caller::granted(1);
    let old = caller.call(1);
    caller.receive(&plain_reply(old.xid, 1));
    let new = caller.call(2);
    assert_eq!(old.slot.index, new.slot.index);
    let beyond = SlotId { index: 40_000, ..new.slot };
    assert!(!caller.requester.cancel(old.slot, &mut caller.out));
    assert!(!caller.requester.cancel(beyond, &mut caller.out));
    assert_eq!(caller.out.take(), []);
    assert!(matches!(caller.receive(&plain_reply(new.xid, 1))[..], [Event::Reply(_)]));
}

#[test]
fn a_call_is_found_by_its_token_while_the_application_waits_for_it() {
    let mut caller = Caller::granted(3);
    let calls: Vec<_> = (10..13).map(|token| caller.call(token)).collect();
    assert_eq!(caller.requester.find(11), Some(calls[1].slot));
    assert_eq!(caller.requester.find(13), None);
    caller.requester.cancel(calls[1].slot, &mut caller.out);
    assert_eq!(caller.requester.find(11), None);
    caller.receive(&plain_reply(calls[2].xid, 3));
    assert_eq!(caller.requester.find(12), None);
}

#[test]
fn the_end_of_a_connection_ends_every_call_exactly_once() {
    let mut caller = Caller::granted(4);
    let waiting = caller.call(1);
    let answered = caller.call(2);
    let given_up = call_until(&mut caller, 3, 100);
    caller.receive(&plain_reply(answered.xid, 4));
    caller.at(100);
    let mut ended = Vec::new();
    caller.requester.on_down(|slot, token| ended.push((slot, token)));
    ended.sort_by_key(|(slot, _)| slot.index);
    let mut expected = [(waiting.slot, Some(1)), (given_up.slot, None)];
    expected.sort_by_key(|(slot, _)| slot.index);
    assert_eq!(ended, expected);
    caller.requester.on_down(|slot, _| panic!("{slot:?} ends twice"));
    assert!(caller.requester.check_room().is_err());
    assert_eq!(caller.at(u64::MAX), []);
    for call in [waiting, answered, given_up] {
        assert!(matches!(caller.receive(&plain_reply(call.xid, 4))[..], [Event::Dropped(_)]));
    }
}
