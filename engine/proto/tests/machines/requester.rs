//! Credits and XIDs of the requester (RFC 5666 sections 3.3 and 4.1, RFC 8166 section 3.3).

use std::collections::HashSet;

use spinrpc_proto::requester::SLOTS_MAX;

use crate::prelude::*;

/// Starts calls until one is refused; how many there were, and why no more.
fn start_all(caller: &mut Caller) -> (u32, CallRefused) {
    let mut header = [0; 28];
    for started in 0.. {
        let chunks = &CallChunks::EMPTY;
        if let Err(refused) = caller.requester.start_call(started, NEVER, chunks, &mut header) {
            return (started as u32, refused);
        }
    }
    unreachable!("calls without end")
}

#[test]
fn until_the_first_reply_there_is_exactly_one_credit() {
    // RFC 8166 section 3.3.3. RFC 5666 section 6.1: "the client MUST NOT assume more than one".
    let mut caller = Caller::new(32);
    assert_eq!(start_all(&mut caller), (1, CallRefused::NoCredit));
}

#[test]
fn send_a_call_expect_it_to_ask_for_a_credit_per_slot() {
    let mut caller = Caller::new(32);
    let (started, header) = caller.call_with(7, NEVER, &CallChunks::EMPTY);
    let header = view(&header);
    assert!(header.is_chunkless());
    assert_eq!((header.xid(), header.credits()), (started.xid, 32));
}

/// R5666-2: the requested value "MAY be dynamically adjusted by the caller". Ours is not, whatever is granted.
#[test]
fn receive_any_grant_expect_every_call_to_ask_for_as_many_as_the_first() {
    let mut caller = Caller::new(8);
    for grant in [1, 8, 0, u32::MAX, 3, 3] {
        let mut asked = Vec::new();
        while caller.requester.check_room().is_ok() {
            let (started, header) = caller.call_with(7, NEVER, &CallChunks::EMPTY);
            assert_eq!(view(&header).credits(), 8, "with {grant} to come");
            asked.push(started.xid);
        }
        assert!(!asked.is_empty());
        for xid in asked {
            caller.receive(&plain_reply(xid, grant));
        }
        let mut chunks = CallChunks::EMPTY;
        let room = ChunkOffer { handle: 9, length: 512, offset: 64, segment_bytes: 512 };
        assert!(chunks.set_reply(room));
        let (started, header) = caller.call_with(8, NEVER, &chunks);
        assert_eq!(view(&header).credits(), 8, "with chunks, after {grant}");
        caller.receive(&plain_reply(started.xid, grant));
    }
}

#[test]
fn receive_a_grant_expect_so_many_calls_in_flight() {
    // RFC 5666 section 3.3: "The RPC client MUST NOT send unacknowledged requests in excess of this
    // granted RPC server credit limit."
    let mut caller = Caller::new(32);
    let first = caller.call(0);
    caller.receive(&plain_reply(first.xid, 5));
    assert_eq!(start_all(&mut caller), (5, CallRefused::NoCredit));
    assert_eq!(caller.requester.credits().in_flight(), 5);
}

#[test]
fn receive_a_lower_grant_expect_no_call_until_fewer_are_in_flight() {
    // RFC 5666 section 3.3: the responder may lower the grant at each reply.
    let mut caller = Caller::granted(4);
    let calls: Vec<_> = (0..4).map(|token| caller.call(token)).collect();
    caller.receive(&plain_reply(calls[0].xid, 2));
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
    caller.receive(&plain_reply(calls[1].xid, 2));
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
    caller.receive(&plain_reply(calls[2].xid, 2));
    assert_eq!(start_all(&mut caller).0, 1);
}

/// RFC 8167 section 4.2: an answer to a call in reverse takes no credit. It must find a receive of a peer that has as many as it
/// grants, too.
#[test]
fn hold_credits_back_expect_as_many_calls_fewer_in_flight_of_any_grant() {
    for (grant, calls) in [(32, 30), (1, 1), (2, 1), (3, 1), (4, 2), (0, 1), (u32::MAX, 30)] {
        let mut caller = Caller::new(32);
        caller.requester = caller.requester.holding_back(2);
        for connection in 0..2 {
            let first = caller.call(0);
            caller.receive(&plain_reply(first.xid, grant));
            let refused = (calls, CallRefused::NoCredit);
            assert_eq!(start_all(&mut caller), refused, "of {grant} on connection {connection}");
            caller.requester.suspend(|_, _| false);
        }
    }
}

#[test]
fn the_next_xid_is_known_before_the_call() {
    // A long call has its XID in memory that the peer reads (RFC 5666 section 5.1).
    let mut caller = Caller::granted(3);
    for token in 0..3 {
        let next = caller.requester.next_xid();
        assert_eq!(caller.call(token).xid, next);
    }
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoCredit));
}

#[test]
fn receive_a_reply_expect_the_token_of_its_call() {
    let mut caller = Caller::granted(8);
    let calls: Vec<_> = (100..108).map(|token| (token, caller.call(token))).collect();
    for (token, call) in calls.into_iter().rev() {
        let events = caller.receive(&plain_reply(call.xid, 8));
        let [Event::Reply(reply)] = events[..] else { panic!("one reply, not {events:?}") };
        assert_eq!((reply.token, reply.slot), (token, call.slot));
        assert_eq!(reply.stream, ReplyStream::Inline { header_bytes: 28 });
        assert_eq!(reply.placed, [0; 4]);
    }
    assert_eq!(caller.requester.credits().in_flight(), 0);
}

#[test]
fn receive_a_second_reply_to_a_call_expect_it_dropped() {
    let mut caller = Caller::granted(1);
    let old = caller.call(1);
    caller.receive(&plain_reply(old.xid, 1));
    let stale = [Event::Dropped(Dropped::UnmatchedReply)];
    assert_eq!(caller.receive(&plain_reply(old.xid, 1)), stale);
    // The slot is the same, its generation is not.
    let new = caller.call(2);
    assert_eq!(old.slot.index, new.slot.index);
    assert_ne!((old.slot, old.xid), (new.slot, new.xid));
    assert_eq!(caller.receive(&plain_reply(old.xid, 1)), stale);
    assert_eq!(caller.requester.credits().in_flight(), 1);
    assert!(matches!(caller.receive(&plain_reply(new.xid, 1))[..], [Event::Reply(_)]));
}

#[test]
fn an_unmatched_reply_grants_nothing() {
    let mut caller = Caller::new(32);
    let call = caller.call(1);
    for xid in [call.xid.0 ^ 1, call.xid.0 ^ 0x7ff, call.xid.0 ^ 0x8000_0000, 0] {
        let events = caller.receive(&plain_reply(Xid(xid), 32));
        assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    }
    assert_eq!(caller.requester.credits().granted(), 1);
}

#[test]
fn generations_wrap_without_harm() {
    let mut requester = Requester::new(vec![CallSlot::FREE; 1], u32::MAX - 1);
    let mut xids = HashSet::new();
    for token in 0..4 {
        let mut header = [0; 28];
        let chunks = &CallChunks::EMPTY;
        let (call, _) = requester.start_call(token, NEVER, chunks, &mut header).unwrap();
        assert!(xids.insert(call.xid));
        let mut out = crate::recorder::Recorder::default();
        out.arriving(|out| requester.on_receive(&view(&plain_reply(call.xid, 1)), out));
        assert!(matches!(out.take()[..], [Event::Reply(reply)] if reply.token == token));
    }
}

#[test]
fn a_requester_without_slots_calls_nobody() {
    // The side that only serves has none.
    let mut caller = Caller::new(0);
    assert_eq!(caller.requester.check_room(), Err(CallRefused::NoSlot));
    assert_eq!(caller.requester.credits().requested(), 1, "zero is never asked for");
    let events = caller.receive(&plain_reply(caller.requester.next_xid(), 32));
    assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
}

#[test]
fn slots_beyond_the_most_an_xid_can_name_are_not_used() {
    assert_eq!(SLOTS_MAX, 2048, "as many as indices");
    let mut caller = Caller::granted(SLOTS_MAX + 5);
    assert_eq!(caller.requester.credits().requested(), SLOTS_MAX as u32);
    assert_eq!(start_all(&mut caller), (SLOTS_MAX as u32, CallRefused::NoCredit));
}

#[test]
#[should_panic]
fn a_buffer_too_short_for_the_header_is_a_mistake_of_the_caller() {
    let mut requester = Requester::new(vec![CallSlot::FREE; 1], 0);
    let _ = requester.start_call(0, NEVER, &CallChunks::EMPTY, &mut [0; 27]);
}

#[test]
fn a_call_is_not_held_to_the_chunks_of_an_earlier_one_in_its_slot() {
    // RFC 8166 section 4.3: a reply returns the chunks of its own call, which has none here.
    let offer =
        ChunkOffer { handle: 7, length: 64, offset: segment(7, 0).offset, segment_bytes: 0 };
    let of_reply = ChunkOffer { handle: 8, offset: segment(8, 0).offset, ..offer };
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(offer) && chunks.set_reply(of_reply));
    let mut caller = Caller::granted(1);
    let (with_chunks, _) = caller.call_with(1, NEVER, &chunks);
    let lists = Chunks::none().write(&[segment(7, 5)]).reply(&[segment(8, 0)]);
    let reply = lists.msg(with_chunks.xid, 1, &rpc_reply(with_chunks.xid));
    assert!(matches!(caller.receive(&reply)[..], [Event::Reply(reply)] if reply.placed[0] == 5));
    for (lists, why) in [
        (Chunks::none().write(&[segment(7, 5)]), PeerMisbehaved::WriteListChanged),
        (Chunks::none().reply(&[segment(8, 5)]), PeerMisbehaved::ReplyChunkChanged),
    ] {
        let plain = caller.call(2);
        assert_eq!(plain.slot.index, with_chunks.slot.index);
        let events = caller.receive(&lists.msg(plain.xid, 1, &rpc_reply(plain.xid)));
        assert_eq!(events.last(), Some(&Event::Closed(why)), "{events:?}");
    }
}

#[test]
fn calls_are_counted() {
    let mut caller = Caller::granted(4);
    for count in 2..6 {
        let call = caller.call(0);
        assert_eq!(caller.requester.calls_started(), count);
        caller.receive(&plain_reply(call.xid, 4));
    }
}

#[test]
fn a_kept_reply_keeps_its_credit() {
    let mut caller = Caller::granted(2);
    let call = caller.call(0);
    caller.receive(&plain_reply(call.xid, 2));
    caller.requester.keep_credit();
    assert_eq!(caller.requester.credits().in_flight(), 1);
    assert_eq!(start_all(&mut caller), (1, CallRefused::NoCredit));
    caller.requester.release_credit();
    assert_eq!(caller.requester.credits().in_flight(), 1);
}
