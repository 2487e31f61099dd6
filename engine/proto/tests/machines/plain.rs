//! Functions for plain calls and replies compared with the general ones: the same ends, slots and
//! credits.

use spinrpc_proto::plain::{PlainReply, call_head};

use crate::prelude::*;

#[test]
fn a_plain_call_takes_the_next_xid_and_a_credit() {
    let mut caller = Caller::granted(2);
    let expected = caller.requester.next_xid();
    let unstarted = caller.requester.next_call().map(|call| call.xid);
    assert_eq!(unstarted, Ok(expected));
    assert_eq!(caller.requester.credits().in_flight(), 0, "it was not started");
    let start = |caller: &mut Caller, token| {
        let requested = caller.requester.credits().requested();
        caller.requester.next_call().map(|call| {
            assert_eq!(call.requested(), requested);
            let xid = call.xid;
            call.start(token, NEVER);
            xid
        })
    };
    assert_eq!(start(&mut caller, 7), Ok(expected));
    assert_eq!(caller.requester.credits().in_flight(), 1);
    assert_eq!(replied(&caller.receive(&plain_reply(expected, 2))), 7);
    let (second, third) = (start(&mut caller, 8), start(&mut caller, 9));
    assert!(second.is_ok() && third.is_ok() && second != third && second != Ok(expected));
    assert_eq!(start(&mut caller, 10), Err(CallRefused::NoCredit));
}

/// The words of the transport header, and the direction of the RPC message.
#[test]
fn the_head_of_a_plain_call_is_that_of_any_call() {
    let mut caller = Caller::granted(5);
    let (started, header) = caller.call_with(7, NEVER, &CallChunks::EMPTY);
    let (first, pairs) = call_head(started.xid, 5);
    let bytes: Vec<u8> =
        first.into_iter().chain(pairs.iter().flat_map(|pair| pair.to_ne_bytes())).collect();
    let rpc = [started.xid.0.to_be_bytes(), [0; 4]].concat();
    assert_eq!(bytes, [header, rpc].concat());
}

#[test]
fn a_plain_reply_ends_its_call_once_with_its_token_and_grant() {
    let mut caller = Caller::granted(4);
    let (first, second) = (caller.call(7), caller.call(8));
    let reply = PlainReply { xid: second.xid, credits: 3 };
    assert_eq!(index_of(second.xid), second.slot.index);
    assert_eq!(caller.requester.take_plain_reply(&reply), Some(8));
    let credits = caller.requester.credits();
    assert_eq!((credits.granted(), credits.in_flight()), (3, 1));
    assert_eq!(caller.requester.take_plain_reply(&reply), None, "once");
    let zero = PlainReply { xid: first.xid, credits: 0 };
    assert_eq!(caller.requester.take_plain_reply(&zero), Some(7));
    assert_eq!(caller.requester.credits().granted(), 1, "zero counts as one");
}

#[test]
fn the_reply_to_a_call_that_has_lent_memory_goes_the_general_way() {
    let mut caller = Caller::granted(4);
    let lent = caller.call(7);
    caller.requester.lend(lent.slot);
    let reply = PlainReply { xid: lent.xid, credits: 4 };
    assert_eq!(caller.requester.take_plain_reply(&reply), None);
    caller.requester.suspend(|_, _| true);
    let again = caller.requester.resend(lent.slot, &CallChunks::EMPTY, &mut [0; 32]);
    assert!(again.is_ok());
    assert_eq!(caller.requester.take_plain_reply(&reply), None, "neither when it is sent again");
    assert_eq!(replied(&caller.receive(&plain_reply(lent.xid, 4))), 7);
    let next = caller.call(8);
    assert_eq!(next.slot.index, lent.slot.index, "its slot lends nothing any more");
    let reply = PlainReply { xid: next.xid, credits: 4 };
    assert_eq!(caller.requester.take_plain_reply(&reply), Some(8));
}

#[test]
fn the_general_way_has_replies_that_are_not_awaited_or_have_more_to_them() {
    let mut caller = Caller::granted(4);
    let plain = |xid| PlainReply { xid, credits: 4 };
    let cancelled = caller.call(1);
    assert!(caller.requester.cancel(cancelled.slot).is_some());
    assert_eq!(caller.requester.take_plain_reply(&plain(cancelled.xid)), None);
    let mut chunks = CallChunks::EMPTY;
    let offer = ChunkOffer { handle: 1, length: 100, offset: 0, segment_bytes: 100 };
    assert!(chunks.set_reply(offer));
    let with_chunks = caller.call_with(2, NEVER, &chunks).0;
    assert_eq!(caller.requester.take_plain_reply(&plain(with_chunks.xid)), None);
    assert_eq!(caller.requester.take_plain_reply(&plain(Xid(cancelled.xid.0 ^ 0x8000_0000))), None);
    let mut unsettled = Caller::new(4);
    unsettled.requester.negotiate(Negotiation::new(Versions::Both));
    let first = unsettled.call(3);
    assert_eq!(unsettled.requester.take_plain_reply(&plain(first.xid)), None);
    let at = caller.call_with(4, Instant(50), &CallChunks::EMPTY).0;
    caller.at(50);
    assert_eq!(caller.requester.take_plain_reply(&plain(at.xid)), None, "after its deadline");
}

#[test]
fn plain_calls_take_slots_until_there_is_none_and_give_them_back() {
    let mut server = Server::new(2);
    let take = |server: &mut Server| {
        let has_slot = server.responder.has_slot();
        server.responder.count_slotless(u64::from(has_slot));
        let slot = server.responder.take_slot(TransportVersion::One);
        assert_eq!(slot.is_some(), has_slot);
        slot
    };
    let first = take(&mut server).unwrap();
    let second = take(&mut server).unwrap();
    assert_eq!(take(&mut server), None);
    assert_eq!(server.responder.calls_taken(), 2);
    assert_eq!(server.responder.in_progress(), 2);
    assert!(server.responder.is_delivered(first) && server.responder.is_delivered(second));
    assert_eq!(server.responder.version(), TransportVersion::One);
    server.responder.end_chunkless(first);
    assert!(!server.responder.is_delivered(first));
    server.responder.end_chunkless(first);
    assert_eq!(server.responder.in_progress(), 1, "once");
    server.responder.count_slotless(1);
    assert_eq!((server.responder.in_progress(), server.responder.calls_taken()), (1, 3), "no slot");
    let message = plain_call(Xid(9));
    delivered(&server.receive(&message));
}

fn connection(side: Side, versions: Versions) -> Proto {
    with_slots(side, (2, 2), Profile::default(), Limits { versions, ..Limits::DEFAULT })
}

#[test]
fn plain_messages_arrive_where_version_one_is_spoken_and_they_are_due() {
    let ways = |side, versions| {
        let one_way = connection(side, versions);
        let both = connection(side, versions).two_way();
        let refusing = connection(side, versions).refusing_reverse();
        [one_way, both, refusing].map(|end| (end.takes_calls_one(), end.takes_replies_one()))
    };
    for versions in [Versions::One, Versions::Both] {
        let client = [(false, true), (true, true), (false, true)];
        assert_eq!(ways(Side::Client, versions), client);
        let server = [(true, false), (true, true), (true, false)];
        assert_eq!(ways(Side::Server, versions), server);
    }
    assert_eq!(ways(Side::Client, Versions::Two), [(false, false); 3]);
    assert_eq!(ways(Side::Server, Versions::Two), [(false, false); 3]);
}
