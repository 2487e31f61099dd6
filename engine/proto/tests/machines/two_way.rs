//! Calls in both directions of one connection (RFC 8167): the machine that each message is for, and
//! the handling of messages without a direction.

use spinrpc_proto::version::TransportVersion::One;

use crate::prelude::*;

const OTHER: Xid = Xid(0xaabb_ccdd);
const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// Both ways with four slots, whichever end it is.
fn both_ways_under(side: Side, profile: Profile) -> Proto {
    with_slots(side, (4, 4), profile, Limits::DEFAULT).two_way()
}

fn both_ways(side: Side) -> Proto {
    both_ways_under(side, Profile::Rfc8166)
}

fn start(connection: &mut Proto, token: u64) -> StartedCall {
    start_with(connection, token, &CallChunks::EMPTY)
}

fn start_with(connection: &mut Proto, token: u64, chunks: &CallChunks) -> StartedCall {
    connection.requester.start_call(token, NEVER, chunks, &mut [0; 128]).unwrap().0
}

/// RFC 8167 section 4: XIDs of the two directions have nothing to do with each other.
#[test]
fn receive_a_call_and_a_reply_with_one_xid_expect_each_in_its_direction() {
    for mut connection in SIDES.map(both_ways) {
        let ours = start(&mut connection, 7);
        let theirs = delivered(&receive(&mut connection, &plain_call(ours.xid)));
        assert!(connection.responder.is_delivered(theirs));
        assert_eq!(replied(&receive(&mut connection, &plain_reply(ours.xid, 4))), 7);
        assert!(connection.responder.is_delivered(theirs), "their call is answered by us");
    }
}

/// RFC 8167 section 4: a credit word asks in a call and grants in a reply, in its own direction.
#[test]
fn receive_calls_expect_no_credit_granted_by_their_words() {
    for mut connection in SIDES.map(both_ways) {
        let ours = start(&mut connection, 1);
        // Also of one with the XID of our call, and of one with a chunk.
        for (xid, chunks) in [
            (OTHER, Chunks::none()),
            (ours.xid, Chunks::none()),
            (ours.xid, Chunks::none().write(&[segment(1, 8)])),
        ] {
            delivered(&receive(&mut connection, &chunks.msg(xid, 99, &rpc_call(xid))));
            assert_eq!(connection.requester.credits().granted(), 1, "one until the first reply");
            assert_eq!(connection.requester.check_room(), Err(CallRefused::NoCredit));
            assert_eq!(connection.responder.grant(), 4);
        }
        // A reply grants, although a call of theirs has its XID.
        assert_eq!(replied(&receive(&mut connection, &plain_reply(ours.xid, 3))), 1);
        assert_eq!(connection.requester.credits().granted(), 3);
        assert_eq!(connection.responder.grant(), 4);
        assert_eq!(connection.responder.in_progress(), 3);
    }
}

#[test]
fn receive_a_long_message_expect_a_call_with_a_read_chunk_and_a_reply_with_a_reply_chunk() {
    for mut connection in SIDES.map(both_ways) {
        let mut chunks = CallChunks::EMPTY;
        let room = ChunkOffer { handle: 9, length: 512, offset: 64, segment_bytes: 512 };
        assert!(chunks.set_reply(room));
        let ours = start_with(&mut connection, 3, &chunks);
        let long_call = Chunks::none().read(0, 1, 100).nomsg(ours.xid, 4);
        let events = receive(&mut connection, &long_call);
        assert!(matches!(events[..], [Event::Pull(_)]), "{events:?}");
        let mut filled = segment(9, 100);
        filled.offset = 64;
        let long_reply = Chunks::none().reply(&[filled]).nomsg(ours.xid, 4);
        let events = receive(&mut connection, &long_reply);
        let [Event::Reply(reply)] = events[..] else { panic!("{events:?}") };
        assert_eq!((reply.token, reply.stream), (3, ReplyStream::ReplyChunk { length: 100 }));
    }
}

/// RFC 5666 section 5.2: a long reply may come as a Position-Zero Read chunk, as a long call does. The lists of a reply are
/// those of its call, with actual lengths (section 3.7).
#[test]
fn receive_a_position_zero_chunk_under_older_rules_expect_its_lists_and_the_xid_to_tell_its_direction()
 {
    let room = ChunkOffer { handle: 9, length: 512, offset: 64, segment_bytes: 512 };
    let returned = |length| Segment { offset: 64, ..segment(9, length) };
    for profile in READ_PROFILES {
        let long = |xid| Chunks::none().read(0, 1, 100).nomsg(xid, 4);
        let calls = |xid| {
            [
                Chunks::none().read(0, 1, 100).reply(&[returned(512)]).nomsg(xid, 4),
                Chunks::none().read(0, 1, 100).write(&[segment(3, 8)]).nomsg(xid, 4),
                long(OTHER),
            ]
        };
        let mut connection = both_ways_under(Side::Server, profile);
        let ours = start(&mut connection, 3);
        for message in calls(ours.xid) {
            let events = receive(&mut connection, &message);
            assert!(matches!(events[..], [Event::Pull(_)]), "{profile:?}: {events:?}");
        }
        let events = receive(&mut connection, &long(ours.xid));
        assert!(matches!(events[..], [Event::PullReply(_)]), "{events:?}");
        // Where the call has offered a Reply chunk, too.
        let mut chunks = CallChunks::EMPTY;
        assert!(chunks.set_reply(room));
        for length in [0, 100] {
            let mut connection = both_ways_under(Side::Client, profile);
            let ours = start_with(&mut connection, 3, &chunks);
            let message =
                Chunks::none().read(0, 1, 100).reply(&[returned(length)]).nomsg(ours.xid, 4);
            let events = receive(&mut connection, &message);
            let is_reply = matches!(events[..], [Event::PullReply(_)]);
            assert_eq!(is_reply, length == 0, "{profile:?}: {events:?}");
            assert!(is_reply || matches!(events[..], [Event::Pull(_)]), "{events:?}");
        }
    }
}

/// RFC 5666 section 3.4: the message may be in the Reply chunk, and an item of it in a Read chunk.
#[test]
fn receive_read_chunks_without_a_message_expect_a_reply_if_it_is_in_the_reply_chunk() {
    let room = ChunkOffer { handle: 9, length: 512, offset: 64, segment_bytes: 512 };
    let filled = Segment { offset: 64, ..segment(9, 100) };
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.set_reply(room));
    for profile in READ_PROFILES.into_iter().chain([Profile::Rfc8166]) {
        let mut connection = both_ways_under(Side::Server, profile);
        let ours = start_with(&mut connection, 3, &chunks);
        // The message of neither a call nor a reply is there.
        let message = Chunks::none().read(40, 1, 100).nomsg(ours.xid, 4);
        let dropped = [Event::Dropped(Dropped::MalformedReply)];
        assert_eq!(receive(&mut connection, &message), dropped, "{profile:?}");
        let message = Chunks::none().read(40, 1, 100).reply(&[filled]).nomsg(ours.xid, 4);
        let events = receive(&mut connection, &message);
        match profile {
            Profile::Rfc8166 => assert_eq!(events, dropped),
            _ => assert!(matches!(events[..], [Event::PullReply(_)]), "{profile:?}: {events:?}"),
        }
    }
}

#[test]
fn receive_rdma_done_expect_the_responder_and_rdma_error_the_requester_to_have_it() {
    for mut connection in SIDES.map(both_ways) {
        let ours = start(&mut connection, 5);
        let theirs = delivered(&receive(&mut connection, &plain_call(ours.xid)));
        let events = receive(&mut connection, &rdma_done(ours.xid));
        assert_eq!(events, [Event::Dropped(Dropped::Done)]);
        let events = receive(&mut connection, &rdma_error(ours.xid, 1, &[2]));
        let failure = CallFailure::Rdma(RdmaError::Chunk);
        assert!(
            matches!(events[..], [Event::Failed { token: 5, failure: why, .. }] if why == failure)
        );
        assert!(connection.responder.is_delivered(theirs), "an error answers no call of theirs");
    }
}

/// RFC 8166 section 4.5: an RDMA_ERROR is never answered, and neither is a reply.
#[test]
fn receive_errors_and_replies_that_answer_nothing_expect_silence() {
    for mut connection in SIDES.map(both_ways) {
        let long_reply = Chunks::none().reply(&[segment(9, 100)]).nomsg(OTHER, 4);
        let messages = [
            plain_reply(OTHER, 4),
            long_reply,
            Chunks::none().write(&[segment(1, 8)]).msg(OTHER, 4, &rpc_reply(OTHER)),
            rdma_error(OTHER, 1, &[2]),
            rdma_error(OTHER, 1, &[]),
            rdma_error(OTHER, 2, &[9]),
            wire(&[OTHER.0, 1, 32]),
        ];
        for message in messages {
            let events = receive(&mut connection, &message);
            assert!(matches!(events[..], [Event::Dropped(_)]), "{message:x?}: {events:?}");
        }
        assert_eq!(connection.requester.credits().granted(), 1, "no credit of a stray reply");
    }
}

/// Messages that could be calls or replies, and the answer to each if it is taken for a call.
fn without_direction(xid: Xid) -> Vec<(Vec<u8>, RdmaError)> {
    let supported = RdmaError::Version { low: 1, high: 1 };
    vec![
        (wire(&[xid.0, 2, 32, 0, 0, 0, 0, xid.0, 1]), supported),
        (wire(&[xid.0, 1, 32, 5, 0, 0, 0]), RdmaError::Chunk),
        (wire(&[xid.0, 1, 32, 0, 2, 0, 0, xid.0, 1]), RdmaError::Chunk),
        (wire(&[xid.0, 1, 32, 0, 0, 0, 0]), RdmaError::Chunk),
        (wire(&[xid.0, 1, 32, 0, 0, 0, 0, xid.0]), RdmaError::Chunk),
        (wire(&[xid.0, 1, 32, 0, 0, 0, 0, xid.0, 2]), RdmaError::Chunk),
        (Chunks::none().msgp(xid, 32, &[]), RdmaError::Chunk),
    ]
}

/// RFC 8167 section 4: without a direction the credit word says nothing; RFC 8166 section 4.5: a
/// message that may be a reply is not answered.
#[test]
fn receive_no_direction_and_the_xid_of_our_call_expect_it_dropped_and_the_call_in_flight() {
    for mut connection in SIDES.map(both_ways) {
        let ours = start(&mut connection, 8);
        for (message, _) in without_direction(ours.xid) {
            let events = receive(&mut connection, &message);
            let dropped = [Event::Dropped(Dropped::MalformedReply)];
            assert_eq!(events, dropped, "{message:x?}");
        }
        assert_eq!(connection.requester.credits().granted(), 1);
        assert_eq!(replied(&receive(&mut connection, &plain_reply(ours.xid, 4))), 8);
    }
}

/// RFC 5666 section 4.2: a call that cannot be read is answered.
#[test]
fn receive_no_direction_and_another_xid_expect_the_answer_of_a_call() {
    for mut connection in SIDES.map(both_ways) {
        start(&mut connection, 8);
        for (message, error) in without_direction(OTHER) {
            let events = receive(&mut connection, &message);
            let version = u32::from_be_bytes(*message[4..].first_chunk().unwrap());
            assert_eq!(events, [Event::Error(OTHER, version, error)], "{message:x?}");
        }
    }
}

/// RFC 5666 section 3.3: a call beyond the grant gets an RPC error; credits go by direction.
#[test]
fn receive_more_calls_than_granted_expect_the_rest_refused_and_our_calls_untouched() {
    for mut connection in SIDES.map(both_ways) {
        let ours = start(&mut connection, 2);
        for number in 0..4 {
            delivered(&receive(&mut connection, &plain_call(Xid(number))));
        }
        let events = receive(&mut connection, &plain_call(OTHER));
        assert_eq!(events, [Event::Refused(OTHER, One)]);
        assert_eq!(replied(&receive(&mut connection, &plain_reply(ours.xid, 4))), 2);
    }
}
