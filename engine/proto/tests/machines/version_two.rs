//! Handling of version-two messages by a connection (draft-cel-nfsv4-rpcrdma-version-two-01
//! sections 4.2.1 to 4.2.3 and 5.3).

use spinrpc_proto::rpc::Direction::{Call, Reply};

use crate::messages;
use crate::prelude::*;
use crate::two::{
    BOTH, Proto, UNKNOWN, both_ways, call, end, msg, nomsg, optional, plain_call, plain_reply,
    receive, view,
};

const XID: Xid = Xid(0xaabb_ccdd);
const BAD_HEADER: Event = Event::Error(XID, 2, RdmaError::BadHeader);

fn server() -> Proto {
    end(Side::Server, Versions::Both, 4)
}

fn client() -> Proto {
    let mut client = end(Side::Client, Versions::Both, 4);
    client.requester.negotiate(Negotiation::settled(TransportVersion::Two));
    client
}

fn server_receives(message: &[u8]) -> Vec<Event> {
    receive(&mut server(), message)
}

/// Receives the message that `message` builds from the XID of a call in flight; expects it dropped,
/// the call in flight as before, and its reply welcome.
fn client_drops(message: impl FnOnce(Xid) -> Vec<u8>) -> Dropped {
    let mut client = client();
    let (started, _) = call(&mut client, 5);
    let events = receive(&mut client, &message(started.xid));
    let [Event::Dropped(why)] = events[..] else { panic!("one dropped message, not {events:?}") };
    assert_eq!(client.requester.credits().in_flight(), 1);
    assert_eq!(client.requester.credits().granted(), 1, "a dropped message grants nothing");
    assert_eq!(replied(&receive(&mut client, &plain_reply(started.xid))), 5);
    why
}

#[test]
fn send_a_call_expect_rdma2_msg_with_direction_call() {
    let mut client = client();
    let (started, header) = call(&mut client, 5);
    assert_eq!(header, wire(&[started.xid.0, 2, 4, 0, 0, 0, 0, 0]));
    let events = receive(&mut client, &plain_reply(started.xid));
    let [Event::Reply(reply)] = events[..] else { panic!("{events:?}") };
    assert_eq!((reply.token, reply.stream), (5, ReplyStream::Inline { header_bytes: 32 }));
    assert_eq!(client.requester.credits().granted(), 4);
}

#[test]
fn receive_calls_of_both_versions_expect_each_answered_in_its_own() {
    // Section 5.3: "Replies with the same RPC-over-RDMA protocol version that the requester uses".
    let mut server = server();
    assert_eq!(server.responder.version(), TransportVersion::One);
    for (message, header) in [
        (messages::plain_call(XID), wire(&[XID.0, 1, 4, 0, 0, 0, 0])),
        (plain_call(XID), wire(&[XID.0, 2, 4, 0, 1, 0, 0, 0])),
        (messages::plain_call(XID), wire(&[XID.0, 1, 4, 0, 0, 0, 0])),
    ] {
        let slot = delivered(&receive(&mut server, &message));
        let mut room = [0; 32];
        let length = server.responder.reply_chunkless(slot, XID, &mut room).unwrap();
        assert_eq!(room[32 - length..], header);
    }
    assert_eq!(server.responder.version(), TransportVersion::Two);
}

#[test]
fn receive_a_call_with_chunks_expect_them_back_in_version_two() {
    let mut server = server();
    let lists = Chunks::none().write(&[segment(1, 100)]).reply(&[segment(2, 500)]);
    let message = msg(Call, &lists, XID, &rpc_call(XID));
    let slot = delivered(&receive(&mut server, &message));
    let mut header = vec![0; ReplyRepr::bytes_of(&view(&message), 0)];
    let shape = ReplyShape { placed: &[60], long_bytes: Some(400) };
    let mut writes = Vec::new();
    let write = |write| writes.push(write);
    server.responder.reply(slot, &view(&message), &shape, &mut header, write).unwrap();
    let returned = Chunks::none().write(&[segment(1, 60)]).reply(&[segment(2, 400)]);
    let mut expected = nomsg(Reply, &returned, XID);
    expected[8..12].copy_from_slice(&4_u32.to_be_bytes());
    assert_eq!(header, expected);
    assert_eq!(writes.len(), 2, "one RDMA Write for each chunk");
}

#[test]
fn a_reply_that_does_not_fit_its_chunks_is_bad_header() {
    let mut server = server();
    let message = msg(Call, &Chunks::none().write(&[segment(1, 8)]), XID, &rpc_call(XID));
    let slot = delivered(&receive(&mut server, &message));
    let mut header = [0; 64];
    let shape = ReplyShape { placed: &[9], long_bytes: None };
    let write = |_| panic!("a write");
    let refused = server.responder.reply(slot, &view(&message), &shape, &mut header, write);
    assert_eq!(refused, Err(ReplyRefused::ChunkTooSmall));
}

#[test]
fn receive_long_and_chunked_calls() {
    for message in [
        nomsg(Call, &Chunks::none().read(0, 1, 5000), XID),
        // Section 4.2.1 has no rule for bytes behind RDMA2_NOMSG: ignored, as in version one.
        [nomsg(Call, &Chunks::none().read(0, 1, 5000), XID), rpc_reply(XID)].concat(),
        msg(Call, &Chunks::none().read(40, 1, 100), XID, &rpc_call(XID)),
    ] {
        assert!(matches!(server_receives(&message)[..], [Event::Pull(_)]));
    }
}

#[test]
fn send_a_call_with_chunks_expect_them_behind_the_direction() {
    let mut client = client();
    let mut chunks = CallChunks::EMPTY;
    let offer = |handle| ChunkOffer { handle, length: 64, offset: 9, segment_bytes: 0 };
    assert!(chunks.push_read(0, offer(1)) && chunks.push_write(offer(2)));
    assert!(chunks.set_reply(offer(3)));
    let mut header = vec![0; chunks.header_bytes_in(TransportVersion::Two)];
    assert_eq!(header.len(), chunks.header_bytes() + 4);
    let started = client.requester.start_call(1, NEVER, &chunks, &mut header).unwrap();
    assert_eq!(started.1, header.len());
    let sent = view(&header);
    assert_eq!((sent.direction(), sent.header_bytes()), (Some(Call), header.len()));
    assert_eq!((sent.message_type(), sent.check_call()), (MessageType::Nomsg, Ok(())));
    assert_eq!((sent.reads().len(), sent.writes().len()), (1, 1));
    let placed = Chunks::none().write(&[returned(2, 10)]).reply(&[returned(3, 20)]);
    let events = receive(&mut client, &nomsg(Reply, &placed, started.0.xid));
    let [Event::Reply(reply)] = events[..] else { panic!("{events:?}") };
    assert_eq!((reply.stream, reply.placed[0]), (ReplyStream::ReplyChunk { length: 20 }, 10));
}

fn returned(handle: u32, length: u32) -> spinrpc_proto::rdma::Segment {
    spinrpc_proto::rdma::Segment { handle, length, offset: 9 }
}

#[test]
fn receive_a_reply_that_its_header_calls_a_call() {
    // Section 4.2.2: the direction "MUST be the same as the value of the associated RPC message's
    // `msg_type` field". The peer waits for the answer to a call.
    let lists = Chunks::none().write(&[segment(1, 8)]);
    for lists in [Chunks::none(), lists] {
        assert_eq!(server_receives(&msg(Call, &lists, XID, &rpc_reply(XID))), [BAD_HEADER]);
    }
    // Where both ends call, our call with that XID goes on.
    let mut end = both_ways(Side::Client);
    let (started, _) = call(&mut end, 1);
    let message = msg(Call, &Chunks::none(), started.xid, &rpc_reply(started.xid));
    let refused = Event::Error(started.xid, 2, RdmaError::BadHeader);
    assert_eq!(receive(&mut end, &message), [refused]);
    assert_eq!(end.requester.credits().in_flight(), 1);
}

#[test]
fn receive_a_call_that_its_header_calls_a_reply() {
    // RFC 8166 section 4.5: a reply is never answered.
    let plain = |xid| msg(Reply, &Chunks::none(), xid, &rpc_call(xid));
    assert_eq!(client_drops(plain), Dropped::WrongDirection);
    let mut end = both_ways(Side::Server);
    let events = receive(&mut end, &plain(XID));
    assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    assert_eq!(end.responder.in_progress(), 0);
}

#[test]
fn receive_rdma2_msg_without_an_rpc_message() {
    // Section 4.2.1: "an RPC Payload Stream MUST follow".
    assert_eq!(server_receives(&msg(Call, &Chunks::none(), XID, &[])), [BAD_HEADER]);
    assert_eq!(server_receives(&msg(Call, &Chunks::none(), XID, &[0; 4])), [BAD_HEADER]);
    let other = rpc_call(Xid(1));
    assert_eq!(server_receives(&msg(Call, &Chunks::none(), XID, &other)), [BAD_HEADER]);
    let empty = |xid| msg(Reply, &Chunks::none(), xid, &[]);
    assert_eq!(client_drops(empty), Dropped::MalformedReply);
}

#[test]
fn receive_messages_of_the_wrong_direction_where_they_go_one_way() {
    let plain = |xid| msg(Call, &Chunks::none(), xid, &rpc_call(xid));
    assert_eq!(client_drops(plain), Dropped::WrongDirection);
    let long = |xid| nomsg(Call, &Chunks::none().read(0, 1, 500), xid);
    assert_eq!(client_drops(long), Dropped::WrongDirection);
    for message in [plain_reply(XID), nomsg(Reply, &Chunks::none(), XID)] {
        let dropped = [Event::Dropped(Dropped::WrongDirection)];
        assert_eq!(server_receives(&message), dropped);
    }
}

#[test]
fn calls_go_both_ways_each_with_its_own_xids_and_credits() {
    // Section 3.2: XID and credits "are interpreted in the context of each message's direction".
    let mut end = both_ways(Side::Server);
    let (started, _) = call(&mut end, 7);
    let xid = started.xid;
    let slot = delivered(&receive(&mut end, &plain_call(xid)));
    assert_eq!(end.requester.credits().granted(), 1, "a call's request for credits is not a grant");
    assert_eq!(replied(&receive(&mut end, &plain_reply(xid))), 7);
    assert_eq!(end.requester.credits().granted(), 4);
    let mut header = [0; 32];
    assert_eq!(end.responder.reply_chunkless(slot, xid, &mut header), Ok(32));
    assert_eq!(header[..], wire(&[xid.0, 2, 4, 0, 1, 0, 0, 0]));
}

#[test]
fn an_error_is_always_a_reply() {
    // Section 4.2.2; and such a message is never answered (RFC 8166 section 4.5).
    for body in [&[1, 1, 1][..], &[2], &[3], &[77], &[1]] {
        let events = server_receives(&rdma_error(XID, 2, body));
        assert_eq!(events, [Event::Dropped(Dropped::UnexpectedError)], "{body:?}");
    }
    let mut end = both_ways(Side::Client);
    let (started, _) = call(&mut end, 1);
    // A call of the peer with the same XID is not meant.
    delivered(&receive(&mut end, &plain_call(started.xid)));
    let events = receive(&mut end, &rdma_error(started.xid, 2, &[2]));
    let failure = CallFailure::Rdma(RdmaError::BadHeader);
    let failed = Event::Failed { slot: started.slot, token: 1, failure, fenced: false };
    assert_eq!((events, end.responder.in_progress()), (vec![failed], 1));
}

#[test]
fn receive_an_error_expect_its_call_to_end_and_no_grant() {
    for (body, expected) in [
        (&[2][..], RdmaError::BadHeader),
        (&[3], RdmaError::InvalidOption),
        (&[2, 1, 2], RdmaError::BadHeader),
    ] {
        let mut client = client();
        let (started, _) = call(&mut client, 5);
        let events = receive(&mut client, &rdma_error(started.xid, 2, body));
        let failure = CallFailure::Rdma(expected);
        let failed = Event::Failed { slot: started.slot, token: 5, failure, fenced: false };
        assert_eq!(events, [failed]);
        let credits = client.requester.credits();
        assert_eq!((credits.in_flight(), credits.granted()), (0, 1));
    }
}

#[test]
fn receive_a_call_whose_header_cannot_be_used_expect_bad_header() {
    let malformed = [
        wire(&[XID.0, 2, 32, 0, 0, 2, 0, 0]),
        wire(&[XID.0, 2, 32, 0, 0, 1, 41, 7, 8, 0, 0, 0, 0, 0]),
        wire(&[XID.0, 2, 32, 0, 9, 0, 0, 0]),
        msg(Call, &Chunks::none().read(0, 1, 8), XID, &rpc_call(XID)),
        nomsg(Call, &Chunks::none(), XID),
        msg(Call, &Chunks::none().write(&vec![segment(1, 1); 289]), XID, &rpc_call(XID)),
        msg(Call, &Chunks::none().read(4000, 1, 8), XID, &rpc_call(XID)),
    ];
    for message in malformed {
        assert_eq!(server_receives(&message), [BAD_HEADER], "{message:x?}");
    }
}

#[test]
fn receive_types_of_version_one_and_of_a_later_document_expect_bad_header() {
    for message_type in [2, 3].into_iter().chain(6..=13) {
        let message = wire(&[XID.0, 2, 32, message_type, 0, 0, 0, 0]);
        assert_eq!(server_receives(&message), [BAD_HEADER], "type {message_type}");
        let unknown = |xid: Xid| wire(&[xid.0, 2, 32, message_type, 0, 0, 0, 0]);
        assert_eq!(client_drops(unknown), Dropped::MalformedReply);
    }
}

#[test]
fn receive_a_reply_whose_header_cannot_be_used_expect_no_answer() {
    // The header says that it is a reply, so that this is known on any connection.
    let reply = wire(&[XID.0, 2, 32, 0, 1, 2, 0, 0]);
    for connection in [&mut server(), &mut client(), &mut both_ways(Side::Server)] {
        let dropped = [Event::Dropped(Dropped::MalformedReply)];
        assert_eq!(receive(connection, &reply), dropped);
    }
    let call = wire(&[XID.0, 2, 32, 0, 0, 2, 0, 0]);
    assert_eq!(receive(&mut both_ways(Side::Client), &call), [BAD_HEADER]);
}

#[test]
fn too_many_malformed_messages_end_the_connection() {
    let (mut server, message) = (server(), wire(&[XID.0, 2, 32, 77, 0, 0, 0, 0]));
    for _ in 0..MALFORMED_MAX {
        assert_eq!(receive(&mut server, &message), [BAD_HEADER]);
    }
    let closed = Event::Closed(PeerMisbehaved::MalformedHeaders);
    assert_eq!(receive(&mut server, &message), [closed]);
}

#[test]
fn a_call_beyond_the_grant_is_refused_in_its_version() {
    let mut server = end(Side::Server, Versions::Both, 0);
    let refused = |version| [Event::Refused(XID, version)];
    assert_eq!(receive(&mut server, &plain_call(XID)), refused(TransportVersion::Two));
    let one = messages::plain_call(XID);
    assert_eq!(receive(&mut server, &one), refused(TransportVersion::One));
}

#[test]
fn receive_a_version_that_is_not_spoken_expect_the_range_of_those_that_are() {
    for (versions, unspoken, low, high) in [
        (Versions::One, &[0, 2, 3][..], 1, 1),
        (Versions::Two, &[0, 1, 3], 2, 2),
        (Versions::Both, &[0, 3, u32::MAX], 1, 2),
    ] {
        for version in unspoken {
            let message = wire(&[XID.0, *version, 32, 0, 0, 0, 0, 0, XID.0, 0]);
            let events = receive(&mut end(Side::Server, versions, 4), &message);
            let range = RdmaError::Version { low, high };
            assert_eq!(events, [Event::Error(XID, *version, range)], "{versions:?} {version}");
        }
    }
}

#[test]
fn receive_a_reply_of_the_other_version_expect_it_dropped() {
    assert_eq!(client_drops(|xid| messages::plain_reply(xid, 32)), Dropped::MalformedReply);
}

#[test]
fn version_two_knows_no_profile() {
    // RDMA_DONE has no type there, and so no reply can be left to be fetched.
    let requester = Requester::new(vec![CallSlot::FREE; 4], 0);
    let responder = Responder::new(vec![ServeSlot::FREE; 4]).with_exports(4);
    let mut old: Proto =
        Connection::new(Side::Server, requester, responder, BOTH, Profile::Draft00);
    let message = plain_call(XID);
    let slot = delivered(&receive(&mut old, &message));
    assert!(old.responder.may_export());
    let reads = [ReadSegment { position: 24, target: segment(1, 8) }];
    let mut header = [0; 96];
    let shape = ReplyShape { placed: &[], long_bytes: None };
    let (view, until) = (view(&message), Instant(9));
    let refused = old
        .responder
        .reply_by_read(slot, &view, &shape, &reads, until, &mut header, |_| panic!("a write"))
        .map(|_| ());
    assert_eq!(refused, Err(ReplyRefused::ChunkTooSmall));
    // The roundup of an item has no separate chunk here, which RFC 5666 allows.
    let roundup = Chunks::none().read(40, 1, 13).read(53, 2, 3);
    let one = roundup.msg(XID, 32, &rpc_call(XID));
    assert!(matches!(receive(&mut old, &one)[..], [Event::Pull(_)]));
    let two = msg(Call, &roundup, XID, &rpc_call(XID));
    assert_eq!(receive(&mut old, &two), [BAD_HEADER]);
    // Of version one all that remains.
    assert_eq!(receive(&mut old, &rdma_done(XID)), [Event::Dropped(Dropped::Done)]);
}

#[test]
fn a_reply_with_a_read_list_breaks_the_rules_of_version_two_under_any_profile() {
    let mut client = with_slots(Side::Client, (4, 0), Profile::Rfc5666, BOTH);
    client.requester.negotiate(Negotiation::settled(TransportVersion::Two));
    let (started, _) = call(&mut client, 1);
    let lists = Chunks::none().read(24, 1, 8);
    let events = receive(&mut client, &msg(Reply, &lists, started.xid, &rpc_reply(started.xid)));
    let why = PeerMisbehaved::ReadListInReply;
    assert!(matches!(events[..], [Event::Failed { .. }, Event::Closed(closed)] if closed == why));
}

/// A client with a call in flight that takes no calls in reverse; the XID of its call.
fn refusing() -> (Proto, Xid) {
    let mut client = client().refusing_reverse();
    let (started, _) = call(&mut client, 5);
    (client, started.xid)
}

/// Section 4.2.2: "REQUIRED to support backwards direction operation". A refusal is an answer.
#[test]
fn a_client_that_takes_no_calls_in_reverse_answers_that_it_has_no_program() {
    let (mut client, ours) = refusing();
    for xid in [XID, ours] {
        let refused = Event::ProgramRefused(xid, TransportVersion::Two);
        assert_eq!(receive(&mut client, &plain_call(xid)), [refused]);
    }
    assert_eq!(client.responder.calls_taken(), 0);
    assert_eq!(client.requester.credits().granted(), 1, "a call grants nothing");
    assert!(!client.is_two_way());
    assert_eq!(replied(&receive(&mut client, &plain_reply(ours))), 5);
}

#[test]
fn a_client_that_takes_no_calls_in_reverse_answers_bad_header_to_chunks_and_rubbish() {
    let (mut client, _) = refusing();
    let one = [segment(1, 8)];
    for message in [
        msg(Call, &Chunks::none().read(40, 1, 8), XID, &rpc_call(XID)),
        msg(Call, &Chunks::none().write(&one), XID, &rpc_call(XID)),
        msg(Call, &Chunks::none().reply(&one), XID, &rpc_call(XID)),
        nomsg(Call, &Chunks::none().read(0, 1, 80), XID),
        msg(Call, &Chunks::none(), XID, &rpc_reply(XID)),
        msg(Call, &Chunks::none(), XID, &rpc_call(Xid(1))),
        wire(&[XID.0, 2, 4, 0, 0, 2, 0, 0]),
    ] {
        assert_eq!(receive(&mut client, &message), [BAD_HEADER]);
    }
}

/// Section 3.1: INVALID_OPTION is a MUST.
#[test]
fn a_client_that_takes_no_calls_in_reverse_answers_invalid_option() {
    let (mut client, ours) = refusing();
    let refused = Event::Error(XID, 2, RdmaError::InvalidOption);
    assert_eq!(receive(&mut client, &optional(Call, UNKNOWN, XID, &[])), [refused]);
    let unknown = receive(&mut client, &optional(Reply, UNKNOWN, ours, &[]));
    assert_eq!(unknown, [Event::Dropped(Dropped::UnknownOption)]);
}

/// RFC 8167 section 4: version one has no calls in reverse before the upper layer says so.
#[test]
fn a_client_that_takes_no_calls_in_reverse_answers_none_of_version_one() {
    let (mut client, ours) = refusing();
    for xid in [XID, ours] {
        let unknown_type = wire(&[xid.0, 1, 4, 9, 0, 0, 0]);
        let broken = wire(&[xid.0, 1, 4, 0, 2, 0, 0]);
        let long = Chunks::none().read(0, 1, 80).nomsg(xid, 4);
        for message in [messages::plain_call(xid), long, broken, unknown_type] {
            let events = receive(&mut client, &message);
            assert!(matches!(events[..], [Event::Dropped(_)]), "{events:?}");
        }
    }
    assert_eq!(client.requester.credits().in_flight(), 1);
}
