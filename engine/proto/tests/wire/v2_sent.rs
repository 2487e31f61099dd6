//! Sending a version-two transport header, and the document's description of it
//! (draft-cel-nfsv4-rpcrdma-version-two-01 section 4).

use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v2::{Body, HeaderRepr, MSG_HEADER_BYTES, OptionalBody, emit_msg_header};
use spinrpc_proto::rdma::{
    HeaderView, MessageType, RdmaError, ReadSegment, ReplyRepr, Segment, v1,
};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::{TransportVersion, Versions};

use super::wire;

const XID: Xid = Xid(0x0102_0304);

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: 0x1111_2222_3333_4444 }
}

fn segment_words(handle: u32, length: u32) -> [u32; 4] {
    [handle, length, 0x1111_2222, 0x3333_4444]
}

/// The header, emitted into a buffer of exactly its length.
fn emitted(body: Body<'_>) -> Vec<u8> {
    let header = HeaderRepr { xid: XID, credits: 16, body };
    let mut bytes = vec![0xee; header.buffer_len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes
}

fn view(bytes: &[u8]) -> HeaderView<'_> {
    let limits = Limits { versions: Versions::Two, ..Limits::DEFAULT };
    HeaderView::new_checked(bytes, &limits).unwrap()
}

#[test]
fn every_type_has_its_words() {
    let start = |message_type| [XID.0, 2, 16, message_type];
    let expect = |words: &[&[u32]]| wire(&words.concat());
    let none = v1::Lists::EMPTY;
    let msg = emitted(Body::Msg(Direction::Call, none));
    assert_eq!((msg.len(), msg), (32, expect(&[&start(0), &[0, 0, 0, 0]])));
    let nomsg = emitted(Body::Nomsg(Direction::Reply, none));
    assert_eq!((nomsg.len(), nomsg), (32, expect(&[&start(1), &[1, 0, 0, 0]])));
    let body = OptionalBody { direction: Direction::Reply, option: 9, info: b"abcde" };
    let words = [1, 9, 5, 0x6162_6364, 0x6500_0000];
    assert_eq!(emitted(Body::Optional(body)), expect(&[&start(5), &words]));
}

#[test]
fn errors_are_those_of_version_one_but_for_their_numbers() {
    let mut bytes = [0; 28];
    let range = RdmaError::Version { low: 1, high: 2 };
    assert_eq!(v1::emit_error(&mut bytes, XID, 2, 3, range), 28);
    assert_eq!(bytes[..], wire(&[XID.0, 2, 3, 4, 1, 1, 2]));
    for (error, code) in [(RdmaError::BadHeader, 2), (RdmaError::InvalidOption, 3)] {
        assert_eq!(v1::emit_error(&mut bytes, XID, 2, 3, error), 20, "nothing follows");
        assert_eq!(bytes[..20], wire(&[XID.0, 2, 3, 4, code]));
    }
}

#[test]
fn lists_stand_behind_the_direction_in_the_order_read_write_reply() {
    let lists = v1::Lists {
        reads: &[ReadSegment { position: 40, target: segment(1, 10) }],
        writes: &[&[segment(2, 20), segment(3, 30)], &[]],
        reply: Some(&[segment(4, 40)]),
    };
    let words = [
        &[XID.0, 2, 16, 0, 1][..],
        &[1, 40],
        &segment_words(1, 10),
        &[0],
        &[1, 2],
        &segment_words(2, 20),
        &segment_words(3, 30),
        &[1, 0],
        &[0],
        &[1, 1],
        &segment_words(4, 40),
    ];
    assert_eq!(emitted(Body::Msg(Direction::Reply, lists)), wire(&words.concat()));
}

#[test]
fn the_short_way_to_write_rdma2_msg_gives_the_same_bytes() {
    for direction in [Direction::Call, Direction::Reply] {
        let mut bytes = [0xee; MSG_HEADER_BYTES + 4];
        assert_eq!(emit_msg_header(&mut bytes, XID, 16, direction), MSG_HEADER_BYTES);
        assert_eq!(bytes[..MSG_HEADER_BYTES], emitted(Body::Msg(direction, v1::Lists::EMPTY)));
        assert_eq!(bytes[MSG_HEADER_BYTES..], [0xee; 4]);
    }
    let mut short = [0xee; MSG_HEADER_BYTES - 1];
    assert_eq!(emit_msg_header(&mut short, XID, 16, Direction::Call), MSG_HEADER_BYTES);
    assert_eq!(short, [0xee; MSG_HEADER_BYTES - 1]);
}

#[test]
fn a_reply_is_of_the_version_of_its_call() {
    // Section 5.3: "a responder MUST send Replies with the same RPC-over-RDMA protocol version that
    // the requester uses to send its Calls".
    let writes: [&[Segment]; 1] = [&[segment(1, 64)]];
    let reply = [segment(2, 64)];
    let offered = v1::Lists { reads: &[], writes: &writes, reply: Some(&reply) };
    let call = emitted(Body::Msg(Direction::Call, offered));
    let mut bytes = vec![0xee; v1::reply_header_bytes(&view(&call))];
    let kind = MessageType::Nomsg;
    let written = v1::emit_reply(&mut bytes, XID, 16, kind, &view(&call), &[3], Some(60));
    assert_eq!(written, bytes.len());
    let placed =
        v1::Lists { reads: &[], writes: &[&[segment(1, 3)]], reply: Some(&[segment(2, 60)]) };
    assert_eq!(bytes, emitted(Body::Nomsg(Direction::Reply, placed)));
}

#[test]
fn an_rpc_reply_to_rdma2_optional_has_three_empty_lists() {
    let body = OptionalBody { direction: Direction::Call, option: 9, info: &[0; 4] };
    let call = emitted(Body::Optional(body));
    assert_eq!(call.len(), 32, "as long as a header with empty lists");
    let call = view(&call);
    let repr = ReplyRepr {
        xid: XID,
        credits: 16,
        message_type: MessageType::Msg,
        reads: &[],
        write_lengths: &[],
        reply_length: None,
        counts_roundup: false,
    };
    let mut bytes = vec![0xee; ReplyRepr::bytes_of(&call, 0)];
    assert_eq!(repr.emit(&mut bytes, &call), bytes.len());
    assert_eq!(bytes, emitted(Body::Msg(Direction::Reply, v1::Lists::EMPTY)));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "zero credits")]
fn zero_credits_are_never_sent() {
    emit_msg_header(&mut [0; MSG_HEADER_BYTES], XID, 0, Direction::Call);
}

/// The XDR of the base protocol, in the document's words.
const XDR: &str = include_str!("../../xdr/rpcrdma_v2.x");

/// The value which the XDR gives a name.
fn named(name: &str) -> u32 {
    let line = XDR.lines().find(|line| line.trim().starts_with(&format!("{name} =")));
    let value = line.unwrap().split('=').nth(1).unwrap();
    value.trim().trim_end_matches(',').parse().unwrap()
}

#[test]
fn the_numbers_are_those_of_the_xdr_and_there_are_no_others() {
    // Section 3: "Any change to this XDR description requires a protocol version number change."
    let types = [
        ("RDMA2_MSG", MessageType::Msg),
        ("RDMA2_NOMSG", MessageType::Nomsg),
        ("RDMA2_ERROR", MessageType::Error),
        ("RDMA2_OPTIONAL", MessageType::Optional),
    ];
    let known = |value| MessageType::from_wire(TransportVersion::Two, value);
    for (name, message_type) in types {
        assert_eq!(known(named(name)), Some(message_type));
    }
    assert_eq!((0..100).filter_map(known).count(), types.len());
    assert_eq!((named("CALL"), named("REPLY")), (0, 1));
    let mut bytes = [0; 28];
    for (name, error) in [
        ("RDMA2_ERR_VERS", RdmaError::Version { low: 1, high: 2 }),
        ("RDMA2_ERR_BAD_HEADER", RdmaError::BadHeader),
        ("RDMA2_ERR_INVALID_OPTION", RdmaError::InvalidOption),
    ] {
        v1::emit_error(&mut bytes, XID, 2, 1, error);
        assert_eq!(bytes[16..20], named(name).to_be_bytes());
    }
}
