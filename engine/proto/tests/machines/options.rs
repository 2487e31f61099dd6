//! Extensions of version two (draft-cel-nfsv4-rpcrdma-version-two-01 sections 3, 4.2.1 and 4.2.2).

use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::{OPTION_INFO_MAX_BYTES, OPTIONS_MAX};
use spinrpc_proto::options::{Carries, OptionalRefused, Options};
use spinrpc_proto::output::{CallFailure, DeliveredOptional, Dropped, ReplyStream, SlotId};
use spinrpc_proto::rdma::v2::optional_header_bytes;
use spinrpc_proto::rdma::{MessageType, RdmaError};
use spinrpc_proto::requester::{CallRefused, StartedCall};
use spinrpc_proto::responder::ReplyRefused;
use spinrpc_proto::rpc::Direction::{Call, Reply};
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion, Versions};

use crate::messages::{self, NEVER, rpc_call, rpc_reply, wire};
use crate::recorder::{Event, Recorder};
use crate::two::{
    ALONE, Proto, UNKNOWN, WITH_MESSAGE, WITH_PART, both_ways, call, end, error, optional, options,
    plain_call, plain_reply, receive, view,
};

const XID: Xid = Xid(0xaabb_ccdd);

fn server() -> Proto {
    end(Side::Server, Versions::Both, 2)
}

/// A client that was granted two credits.
fn client() -> Proto {
    let mut client = end(Side::Client, Versions::Two, 2);
    let (first, _) = call(&mut client, 0);
    receive(&mut client, &plain_reply(first.xid));
    client
}

fn start(client: &mut Proto, token: u64, option: u32) -> (StartedCall, Vec<u8>) {
    let mut room = vec![0xee; 64];
    let (started, length) =
        client.requester.start_optional(token, NEVER, option, b"inform", &mut room).unwrap();
    (started, room.split_off(64 - length))
}

fn delivered(server: &mut Proto, message: &[u8]) -> (SlotId, u32) {
    match receive(server, message)[..] {
        [Event::Optional(DeliveredOptional::Call { slot, option })] => (slot, option),
        ref other => panic!("no call of an extension: {other:?}"),
    }
}

#[test]
fn receive_an_unknown_option_expect_invalid_option_with_its_xid() {
    // Section 3.1: "it MUST send an RPC-over-RDMA message with the `rdma_xid` field set to the same
    // value [...] and the `rdma_err` field set to `RDMA2_ERR_INVALID_OPTION`".
    let mut server = server();
    let refused = Event::Error(XID, 2, RdmaError::InvalidOption);
    let long = [optional(Call, UNKNOWN, XID, &[]), vec![0; 900]].concat();
    for payload in [&[][..], &[0; 4], &rpc_call(XID)] {
        assert_eq!(receive(&mut server, &optional(Call, UNKNOWN, XID, payload)), [refused]);
    }
    assert_eq!(receive(&mut server, &long), [refused], "whatever stands in it");
    assert_eq!(server.responder.in_progress(), 0);
    let events = receive(&mut server, &plain_call(XID));
    assert!(matches!(events[..], [Event::Call(_)]), "the connection goes on");
}

#[test]
fn receive_an_unknown_option_of_direction_reply_expect_it_dropped() {
    // An error would be taken for the answer to a call of the peer with the same XID.
    for option in [0, UNKNOWN, u32::MAX] {
        let mut client = client();
        let (started, _) = call(&mut client, 7);
        let events = receive(&mut client, &optional(Reply, option, started.xid, &[]));
        assert_eq!(events, [Event::Dropped(Dropped::UnknownOption)]);
        let events = receive(&mut client, &plain_reply(started.xid));
        assert!(matches!(events[..], [Event::Reply(reply)] if reply.token == 7), "{events:?}");
    }
}

#[test]
fn unknown_options_are_no_malformed_headers() {
    let mut server = server();
    for _ in 0..200 {
        let events = receive(&mut server, &optional(Call, UNKNOWN, XID, &[]));
        assert!(matches!(events[..], [Event::Error(..)]), "{events:?}");
    }
}

#[test]
fn an_option_without_an_rpc_message_is_a_call_and_its_answer() {
    let (mut client, mut server) = (client(), server());
    let (started, sent) = start(&mut client, 7, ALONE);
    // Section 4.2.2: "a Requester MUST set the value of the `rdma_optdir` field to `CALL`".
    assert_eq!((view(&sent).direction(), view(&sent).credits()), (Some(Call), 2));
    assert_eq!(client.requester.credits().in_flight(), 1, "it costs a credit");
    let (slot, option) = delivered(&mut server, &sent);
    assert_eq!((option, server.responder.in_progress()), (ALONE, 1));
    let mut room = [0; 64];
    let length =
        server.responder.reply_optional(slot, started.xid, ALONE, b"answer", &mut room).unwrap();
    let answer = &room[64 - length..];
    // "... and a Responder MUST set the value of the `rdma_optdir` field to `REPLY`."
    assert_eq!((view(answer).direction(), view(answer).credits()), (Some(Reply), 2));
    assert_eq!(view(answer).optional().unwrap().info, b"answer");
    assert_eq!(server.responder.in_progress(), 0);
    let events = receive(&mut client, answer);
    let [Event::Optional(DeliveredOptional::Reply { reply, option })] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((reply.token, reply.slot, option), (7, started.slot, ALONE));
    assert_eq!(reply.stream, ReplyStream::Inline { header_bytes: length });
    assert_eq!(client.requester.credits().in_flight(), 0);
    let again = receive(&mut client, answer);
    assert_eq!(again, [Event::Dropped(Dropped::UnmatchedReply)], "answered once");
}

#[test]
fn an_option_with_a_whole_rpc_message_is_that_call_or_reply() {
    let (mut client, mut server) = (client(), server());
    let (started, mut sent) = start(&mut client, 7, WITH_MESSAGE);
    sent.extend(rpc_call(started.xid));
    let (slot, option) = delivered(&mut server, &sent);
    assert_eq!(option, WITH_MESSAGE);
    assert_eq!(view(&sent).payload(), rpc_call(started.xid));
    let mut room = [0; 32];
    assert_eq!(server.responder.reply_plain(slot, started.xid, &mut room), Ok(32));
    let events = receive(&mut client, &[&room[..], &rpc_reply(started.xid)].concat());
    assert!(matches!(events[..], [Event::Reply(reply)] if reply.token == 7), "{events:?}");
    // And the other way round: an RPC reply that an extension carries.
    let (started, _) = call(&mut client, 8);
    let reply = optional(Reply, WITH_MESSAGE, started.xid, &rpc_reply(started.xid));
    let events = receive(&mut client, &reply);
    let [Event::Optional(DeliveredOptional::Reply { reply, .. })] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((reply.token, reply.stream), (8, ReplyStream::Inline { header_bytes: 36 }));
    assert_eq!(client.requester.credits().granted(), 2, "asked for two, granted three");
}

#[test]
fn receive_an_option_whose_payload_is_not_what_it_says() {
    // Section 4.2.2: with a payload the direction "MUST be the same as the value of the associated
    // RPC message's `msg_type` field".
    let bad_header = [Event::Error(XID, 2, RdmaError::BadHeader)];
    for (option, payload) in [
        (WITH_MESSAGE, rpc_reply(XID)),
        (WITH_MESSAGE, rpc_call(Xid(1))),
        (WITH_MESSAGE, Vec::new()),
        (ALONE, rpc_call(XID)),
        (ALONE, vec![0; 4]),
    ] {
        let mut server = server();
        assert_eq!(receive(&mut server, &optional(Call, option, XID, &payload)), bad_header);
        assert_eq!(server.responder.in_progress(), 0);
        let mut client = client();
        let (started, _) = call(&mut client, 7);
        let spoilt = match option {
            WITH_MESSAGE => rpc_call(started.xid),
            _ => rpc_reply(started.xid),
        };
        let events = receive(&mut client, &optional(Reply, option, started.xid, &spoilt));
        assert_eq!(events, [Event::Dropped(Dropped::MalformedReply)]);
        assert_eq!(client.requester.credits().in_flight(), 1);
    }
}

#[test]
fn receive_an_option_with_part_of_a_message_expect_no_look_at_it() {
    for payload in [&[][..], &[0xff; 4], &rpc_reply(XID)] {
        let message = optional(Call, WITH_PART, XID, payload);
        let (_, option) = delivered(&mut server(), &message);
        assert_eq!((option, view(&message).payload()), (WITH_PART, payload));
    }
}

#[test]
fn a_call_can_be_refused_by_an_option_without_an_rpc_message() {
    // The extension decides which answers fit which calls: thus a responder tells why it has not
    // executed a call.
    let (mut client, mut server) = (client(), server());
    let (started, mut sent) = start(&mut client, 7, WITH_MESSAGE);
    sent.extend(rpc_call(started.xid));
    let (slot, _) = delivered(&mut server, &sent);
    let mut room = [0; 40];
    let length =
        server.responder.reply_optional(slot, started.xid, ALONE, b"late", &mut room).unwrap();
    let events = receive(&mut client, &room[40 - length..]);
    let [Event::Optional(DeliveredOptional::Reply { reply, option: ALONE })] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(reply.token, 7);
}

#[test]
fn options_beyond_the_grant_are_refused() {
    let mut server = end(Side::Server, Versions::Both, 0);
    let with_message = optional(Call, WITH_MESSAGE, XID, &rpc_call(XID));
    let refused = [Event::Refused(XID, TransportVersion::Two)];
    assert_eq!(receive(&mut server, &with_message), refused);
    // A message without an RPC message has no other answer, and its sender waits.
    let bad_header = [Event::Error(XID, 2, RdmaError::BadHeader)];
    assert_eq!(receive(&mut server, &optional(Call, ALONE, XID, &[])), bad_header);
}

#[test]
fn no_more_options_leave_than_there_are_credits() {
    let mut client = client();
    start(&mut client, 1, ALONE);
    start(&mut client, 2, WITH_MESSAGE);
    let refused = client.requester.start_optional(3, NEVER, ALONE, &[], &mut [0; 28]);
    assert_eq!(refused, Err(OptionalRefused::Call(CallRefused::NoCredit)));
}

#[test]
fn receive_the_answer_to_an_option_that_was_given_up_expect_its_slot_free() {
    let mut client = client();
    let (started, _) = start(&mut client, 7, ALONE);
    let mut out = Recorder::default();
    assert!(client.requester.cancel(started.slot, &mut out));
    let failure = CallFailure::Cancelled;
    let failed = Event::Failed { slot: started.slot, token: 7, failure, fenced: true };
    assert_eq!(out.take(), [failed]);
    let events = receive(&mut client, &optional(Reply, ALONE, started.xid, &[]));
    assert_eq!(events, [Event::Released(started.slot)]);
}

#[test]
fn receive_invalid_option_expect_the_call_to_end_with_it() {
    let mut client = client();
    let (started, _) = start(&mut client, 7, ALONE);
    let events = receive(&mut client, &error(started.xid, 2, &[3]));
    let failure = CallFailure::Rdma(RdmaError::InvalidOption);
    assert_eq!(events, [Event::Failed { slot: started.slot, token: 7, failure, fenced: false }]);
}

#[test]
fn options_go_both_ways() {
    let mut end = both_ways(Side::Server);
    let (started, _) = start(&mut end, 7, ALONE);
    let (slot, _) = delivered(&mut end, &optional(Call, ALONE, started.xid, &[]));
    let events = receive(&mut end, &optional(Reply, ALONE, started.xid, &[]));
    assert!(matches!(events[..], [Event::Optional(DeliveredOptional::Reply { .. })]));
    assert_eq!(end.requester.credits().in_flight(), 0);
    assert!(end.responder.is_delivered(slot), "the peer's call with that XID is another");
    // Where messages go one way, an option of the other is as out of place as a call.
    let dropped = [Event::Dropped(Dropped::WrongDirection)];
    assert_eq!(receive(&mut client(), &optional(Call, ALONE, XID, &[])), dropped);
    assert_eq!(receive(&mut server(), &optional(Reply, ALONE, XID, &[])), dropped);
}

#[test]
fn the_first_answer_may_be_one_of_an_extension() {
    let mut client = end(Side::Client, Versions::Both, 2);
    let (started, sent) = start(&mut client, 7, ALONE);
    assert_eq!(view(&sent).message_type(), MessageType::Optional);
    assert_eq!(client.requester.negotiation().stage(), Stage::Offered);
    receive(&mut client, &optional(Reply, ALONE, started.xid, &[]));
    assert_eq!(client.requester.negotiation().stage(), Stage::Settled);
    assert_eq!(client.requester.negotiation().version(), TransportVersion::Two);
}

#[test]
fn version_one_has_no_options() {
    let mut client = end(Side::Client, Versions::One, 2);
    let refused = client.requester.start_optional(1, NEVER, ALONE, &[], &mut [0; 28]);
    assert_eq!(refused, Err(OptionalRefused::NotVersionTwo));
    assert_eq!(client.requester.check_room(), Ok(()));
    let mut server = server();
    let events = receive(&mut server, &messages::plain_call(XID));
    let [Event::Call(slot)] = events[..] else { panic!("{events:?}") };
    let refused = server.responder.reply_optional(slot, XID, ALONE, &[], &mut [0; 28]);
    assert_eq!(refused, Err(OptionalRefused::NotVersionTwo));
    assert!(server.responder.is_delivered(slot), "still to be answered");
    let version_one = wire(&[XID.0, 1, 1, 5, 0, ALONE, 0]);
    let unknown_type = [Event::Error(XID, 1, RdmaError::Chunk)];
    assert_eq!(receive(&mut server, &version_one), unknown_type);
}

#[test]
fn information_is_as_long_as_the_limit_and_no_longer() {
    let info = [7; OPTION_INFO_MAX_BYTES + 1];
    let mut room = [0; optional_header_bytes(OPTION_INFO_MAX_BYTES)];
    let mut client = client();
    let requester = &mut client.requester;
    let too_long = requester.start_optional(1, NEVER, ALONE, &info, &mut room);
    assert_eq!(too_long, Err(OptionalRefused::InfoTooLong));
    let sent = requester.start_optional(1, NEVER, ALONE, &info[1..], &mut room);
    assert_eq!(sent.unwrap().1, room.len());
    let mut server = server();
    let (slot, _) = delivered(&mut server, &room);
    let too_long = server.responder.reply_optional(slot, XID, ALONE, &info, &mut room);
    assert_eq!(too_long, Err(OptionalRefused::InfoTooLong));
    let mut longer = [&room[..], &[0; 4]].concat();
    longer[24..28].copy_from_slice(&(info.len() as u32).to_be_bytes());
    let xid = view(&longer).xid();
    let bad_header = [Event::Error(xid, 2, RdmaError::BadHeader)];
    assert_eq!(receive(&mut server, &longer), bad_header);
}

#[test]
fn answer_an_option_twice_expect_the_second_refused() {
    let mut server = server();
    let (slot, _) = delivered(&mut server, &optional(Call, ALONE, XID, &[]));
    assert!(server.responder.reply_optional(slot, XID, ALONE, &[], &mut [0; 28]).is_ok());
    let stale = Err(OptionalRefused::Reply(ReplyRefused::Stale));
    assert_eq!(server.responder.reply_optional(slot, XID, ALONE, &[], &mut [0; 28]), stale);
}

#[test]
fn a_feature_is_known_with_all_its_options_or_not_at_all() {
    // Section 3.1.
    let known = Options::NONE.with(&[(7, Carries::Nothing), (3, Carries::Part)]).unwrap();
    assert_eq!(
        [3, 5, 7].map(|n| known.find(n)),
        [Some(Carries::Part), None, Some(Carries::Nothing)]
    );
    assert_eq!(known.with(&[(5, Carries::Nothing), (7, Carries::Part)]), None, "7 is taken");
    assert_eq!(known.find(5), None);
    let many: Vec<_> = (100..).map(|n| (n, Carries::Message)).take(OPTIONS_MAX).collect();
    assert!(Options::NONE.with(&many).is_some());
    assert_eq!(known.with(&many), None, "not all of them fit");
    let mut full = Options::NONE.with(&many).unwrap();
    assert!(!full.add(1, Carries::Nothing) && full.find(1).is_none());
    assert_eq!(Options::default(), Options::NONE);
}

#[test]
fn connections_know_no_options_unless_told() {
    let mut server = server().with_options(Options::NONE);
    let events = receive(&mut server, &optional(Call, ALONE, XID, &[]));
    assert_eq!(events, [Event::Error(XID, 2, RdmaError::InvalidOption)]);
    let mut client = client();
    client.requester.negotiate(Negotiation::settled(TransportVersion::One));
    assert!(client.requester.start_optional(1, NEVER, ALONE, &[], &mut [0; 28]).is_err());
}

#[test]
fn a_connection_can_be_told_of_options_later() {
    let mut server = end(Side::Server, Versions::Two, 2).with_options(Options::NONE);
    let message = optional(Call, ALONE, XID, &[]);
    let unknown = Event::Error(XID, 2, RdmaError::InvalidOption);
    assert_eq!(receive(&mut server, &message), [unknown]);
    server.know_options(options());
    assert_eq!(delivered(&mut server, &message).1, ALONE);
}
