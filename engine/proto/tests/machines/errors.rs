//! Events that end a call without a reply, and messages that only look like its reply (RFC 5666
//! sections 4.1 to 4.3, RFC 8166 sections 4.5 and 4.6, RFC 8167 section 4).

use crate::prelude::*;

#[test]
fn receive_rdma_error_expect_the_call_to_end_for_good() {
    // RFC 8166 section 4.5: an RDMA_ERROR completes the call. RFC 5666 section 4.3 puts 8 words
    // behind a code that it does not define, RFC 8166 none.
    let unknown = [&[3][..], &[0; 8]].concat();
    for (version, body, error) in [
        (1, &[2][..], RdmaError::Chunk),
        (1, &[1, 1, 1], RdmaError::Version { low: 1, high: 1 }),
        (1, &unknown, RdmaError::Other(3)),
        (1, &[3], RdmaError::Other(3)),
        (2, &[1, 2, 2], RdmaError::Version { low: 2, high: 2 }),
    ] {
        let mut caller = Caller::granted(2);
        let call = caller.call(5);
        let failure = CallFailure::Rdma(error);
        let failed = Event::Failed { slot: call.slot, token: 5, failure, fenced: false };
        let message = rdma_error(call.xid, version, body);
        assert_eq!(caller.receive(&message), [failed]);
        assert_eq!(caller.requester.credits().in_flight(), 0);
        assert_eq!(caller.receive(&message), [Event::Dropped(Dropped::UnmatchedReply)]);
    }
}

#[test]
fn the_credit_word_of_rdma_error_is_not_a_grant() {
    // Its meaning is undefined; the limit comes from replies.
    let mut caller = Caller::new(32);
    let call = caller.call(5);
    caller.receive(&rdma_error(call.xid, 1, &[2]));
    assert_eq!(caller.requester.credits().granted(), 1);
    assert_eq!(caller.requester.check_room(), Ok(()));
}

#[test]
fn receive_an_error_of_no_call_expect_it_dropped() {
    let mut caller = Caller::granted(2);
    let events = caller.receive(&rdma_error(Xid(1), 1, &[2]));
    assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
}

#[test]
fn a_late_reply_that_breaks_the_rules_still_ends_the_connection() {
    let mut caller = Caller::granted(1);
    let call = caller.call(1);
    assert!(caller.requester.cancel(call.slot).is_some());
    let events = caller.receive(&Chunks::none().nomsg(call.xid, 1));
    let why = PeerMisbehaved::NoReplyStream;
    assert_eq!(events, [Event::Released(call.slot), Event::Closed(why)]);
}

/// Receives the message that `message` builds from the XID of a call in flight; expects it dropped,
/// the call in flight as before, and its reply welcome.
fn drops(message: impl FnOnce(Xid) -> Vec<u8>) -> Dropped {
    let mut caller = Caller::new(32);
    let call = caller.call(5);
    let events = caller.receive(&message(call.xid));
    let [Event::Dropped(why)] = events[..] else { panic!("one dropped message, not {events:?}") };
    assert_eq!(caller.requester.credits().in_flight(), 1);
    assert_eq!(caller.requester.credits().granted(), 1, "a dropped message grants nothing");
    assert_eq!(replied(&caller.receive(&crate::messages::plain_reply(call.xid, 32))), 5);
    why
}

#[test]
fn receive_what_is_no_reply_of_ours_expect_it_dropped() {
    type Make = fn(Xid) -> Vec<u8>;
    let cases: [(Make, Dropped); 7] = [
        // RFC 8166 section 4.6: a requester discards both.
        (|xid| Chunks::none().msgp(xid, 32, &rpc_reply(xid)), Dropped::UnexpectedType),
        (rdma_done, Dropped::Done),
        // RFC 8167 section 4: each direction has separate XIDs and separate credits.
        (plain_call, Dropped::WrongDirection),
        (|xid| Chunks::none().read(40, 5, 8).msg(xid, 32, &rpc_call(xid)), Dropped::WrongDirection),
        // No RPC message.
        (|xid| Chunks::none().msg(xid, 32, &[]), Dropped::MalformedReply),
        (|xid| Chunks::none().msg(xid, 32, &wire(&[xid.0])), Dropped::MalformedReply),
        (|xid| Chunks::none().msg(xid, 32, &wire(&[xid.0, 2])), Dropped::MalformedReply),
    ];
    for (index, (message, why)) in cases.into_iter().enumerate() {
        assert_eq!(drops(message), why, "case {index}");
    }
}
