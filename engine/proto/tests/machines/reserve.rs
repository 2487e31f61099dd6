//! Calls that have a slot before they are sent: they hold a credit, no reply reaches them, and their end leaves nothing.

use crate::prelude::*;

const NO_CHUNKS: CallChunks = CallChunks::EMPTY;

#[test]
fn a_reserved_call_holds_its_credit_and_is_sent_with_its_xid() {
    let mut caller = Caller::granted(2);
    let xid = caller.requester.next_xid();
    let slot = caller.requester.reserve(7, NEVER).unwrap();
    assert_eq!((slot.xid(), caller.requester.credits().in_flight()), (xid, 1));
    let (other, _) = caller.call_with(8, NEVER, &NO_CHUNKS);
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
    assert_eq!(caller.requester.reserved().collect::<Vec<_>>(), [slot]);
    let mut header = [0; 28];
    let (sent, length) = caller.requester.resend(slot, &NO_CHUNKS, &mut header).unwrap();
    assert_eq!((sent.xid, length, view(&header).xid()), (xid, 28, xid));
    assert_eq!(caller.requester.credits().in_flight(), 2);
    let again = caller.requester.resend(slot, &NO_CHUNKS, &mut header);
    assert_eq!(again, Err(CallRefused::NoSlot), "it is sent once");
    for (xid, token) in [(other.xid, 8), (xid, 7)] {
        assert_eq!(replied(&caller.receive(&plain_reply(xid, 2))), token);
    }
    assert_eq!(caller.requester.credits().in_flight(), 0);
}

/// Found by the simulation.
#[test]
fn receive_a_lower_grant_expect_a_reserved_call_to_wait_for_replies() {
    let mut caller = Caller::granted(3);
    let (one, _) = caller.call_with(1, NEVER, &NO_CHUNKS);
    let (other, _) = caller.call_with(2, NEVER, &NO_CHUNKS);
    let slot = caller.requester.reserve(7, NEVER).unwrap();
    let mut header = [0; 28];
    caller.receive(&plain_reply(one.xid, 1));
    let sent = caller.requester.resend(slot, &NO_CHUNKS, &mut header);
    assert_eq!(sent, Err(CallRefused::NoCredit));
    assert!(caller.requester.is_reserved(slot));
    caller.receive(&plain_reply(other.xid, 1));
    caller.requester.resend(slot, &NO_CHUNKS, &mut header).unwrap();
    assert_eq!(caller.requester.credits().in_flight(), 1);
}

/// The XID can be guessed.
#[test]
fn receive_a_reply_to_a_call_that_is_not_sent_expect_it_dropped() {
    let mut caller = Caller::granted(2);
    let slot = caller.requester.reserve(7, NEVER).unwrap();
    let events = caller.receive(&plain_reply(slot.xid(), 2));
    assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    assert!(caller.requester.is_reserved(slot));
    assert_eq!(caller.requester.credits().in_flight(), 1);
}

#[test]
fn deadlines_and_owners_end_reserved_calls_at_once_with_their_credits() {
    let mut caller = Caller::granted(3);
    let late = caller.requester.reserve(1, Instant(50)).unwrap();
    let unwanted = caller.requester.reserve(2, NEVER).unwrap();
    let impossible = caller.requester.reserve(3, NEVER).unwrap();
    assert_eq!(caller.requester.next_deadline(), Instant(50));
    let failed = |slot, token, failure| Event::Failed { slot, token, failure, fenced: false };
    assert_eq!(caller.at(50), [failed(late, 1, CallFailure::TimedOut)]);
    let cancelled = caller.requester.cancel(unwanted).map(Event::from);
    assert_eq!(cancelled, Some(failed(unwanted, 2, CallFailure::Cancelled)));
    assert_eq!(caller.requester.release_held(impossible), Some(3));
    assert_eq!(caller.requester.release_held(impossible), None);
    assert_eq!(caller.requester.credits().in_flight(), 0);
    let mut header = [0; 28];
    for slot in [late, unwanted, impossible] {
        let sent = caller.requester.resend(slot, &NO_CHUNKS, &mut header);
        assert_eq!(sent, Err(CallRefused::NoSlot));
    }
    // All slots are there again.
    for token in 0..3 {
        caller.requester.reserve(token, NEVER).unwrap();
    }
}

#[test]
fn lose_the_connection_expect_a_reserved_call_to_be_held_or_to_end() {
    let mut caller = Caller::granted(2);
    let [kept, ended] = [1, 2].map(|token| caller.requester.reserve(token, NEVER).unwrap());
    let mut seen = Vec::new();
    caller.requester.suspend(|slot, token| {
        seen.push((slot, token));
        slot == kept
    });
    assert_eq!(seen, [(kept, Some(1)), (ended, Some(2))]);
    assert_eq!(caller.requester.held().collect::<Vec<_>>(), [kept]);
    assert_eq!((caller.requester.reserved().count(), caller.requester.find(2)), (0, None));
}

#[test]
fn a_call_that_is_held_from_the_first_has_a_slot_and_takes_its_credit_when_it_is_sent() {
    let mut caller = Caller::granted(1);
    let slot = caller.requester.hold(7, NEVER).unwrap();
    assert_eq!(
        (caller.requester.credits().in_flight(), caller.requester.hold(8, NEVER)),
        (0, None)
    );
    let mut header = [0; 28];
    caller.requester.resend(slot, &NO_CHUNKS, &mut header).unwrap();
    assert_eq!((view(&header).xid(), caller.requester.credits().in_flight()), (slot.xid(), 1));
    assert_eq!(replied(&caller.receive(&plain_reply(slot.xid(), 1))), 7);
}
