//! Sending a transport header of either version (RFC 5666 section 4, RFC 8166 sections 4.2 to 4.5,
//! draft-cel-nfsv4-rpcrdma-version-two-01 section 4).

use super::prelude::*;
use spinrpc_proto::rpc::Direction::{Call, Reply};
use spinrpc_proto::version::TransportVersion::{One, Two};

const XID: Xid = Xid(0x0102_0304);

fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: 0x1111_2222_3333_4444 }
}

fn segment_words(handle: u32, length: u32) -> [u32; 4] {
    [handle, length, 0x1111_2222, 0x3333_4444]
}

/// The header, emitted into a buffer of exactly its length.
fn emitted(version: TransportVersion, direction: Direction, body: Body<'_>) -> Vec<u8> {
    let header = HeaderRepr::new(version, direction, XID, 16, body);
    let mut bytes = vec![0xee; header.buffer_len()];
    assert_eq!(header.emit(&mut bytes), bytes.len());
    bytes
}

/// A header of version one.
fn one(body: Body<'_>) -> Vec<u8> {
    emitted(One, Call, body)
}

fn view(bytes: &[u8]) -> HeaderView<'_> {
    let limits = Limits { versions: Versions::Both, ..Limits::DEFAULT };
    HeaderView::new_checked(bytes, &limits).unwrap()
}

fn reply<'a>(
    message_type: MessageType,
    write_lengths: &'a [u32],
    reply_length: Option<u32>,
) -> ReplyRepr<'a> {
    ReplyRepr {
        xid: XID,
        credits: 16,
        message_type,
        reads: &[],
        write_lengths,
        reply_length,
        counts_roundup: false,
    }
}

/// The reply to `call`, emitted into a buffer of exactly its length.
fn echoed(call: &[u8], reply: ReplyRepr<'_>) -> Vec<u8> {
    let mut bytes = vec![0xee; ReplyRepr::bytes_of(&view(call), 0)];
    assert_eq!(reply.emit(&mut bytes, &view(call)), bytes.len());
    bytes
}

#[test]
fn every_type_has_its_words() {
    let none = Lists::EMPTY;
    let padded = Body::Msgp { align: 64, thresh: 128, lists: none };
    let option = Body::Optional { option: 9, info: b"abcde" };
    for (version, direction, body, words) in [
        (One, Call, Body::Msg(none), &[0, 0, 0, 0][..]),
        (One, Reply, Body::Nomsg(none), &[1, 0, 0, 0]),
        (One, Call, padded, &[2, 64, 128, 0, 0, 0]),
        (One, Call, Body::Done, &[3]),
        (Two, Call, Body::Msg(none), &[0, 0, 0, 0, 0]),
        (Two, Reply, Body::Nomsg(none), &[1, 1, 0, 0, 0]),
        (Two, Reply, option, &[5, 1, 9, 5, 0x6162_6364, 0x6500_0000]),
    ] {
        let start = [XID.0, version.to_wire(), 16];
        let expected = wire(&[&start[..], words].concat());
        assert_eq!(emitted(version, direction, body), expected, "{words:?}");
    }
}

#[test]
fn lists_stand_in_the_order_read_write_reply() {
    let lists = Lists {
        reads: &[ReadSegment { position: 40, target: segment(1, 10) }],
        writes: &[&[segment(2, 20), segment(3, 30)], &[]],
        reply: Some(&[segment(4, 40)]),
    };
    let words = [
        &[1, 40][..],
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
    // Version two has the direction before them.
    for (version, start) in [(One, &[XID.0, 1, 16, 0][..]), (Two, &[XID.0, 2, 16, 0, 1])] {
        let expected = wire(&[start, &words.concat()].concat());
        assert_eq!(emitted(version, Reply, Body::Msg(lists)), expected);
    }
}

#[test]
fn the_short_way_to_write_a_message_gives_the_same_bytes() {
    for (version, direction) in [(One, Call), (Two, Call), (Two, Reply)] {
        let length = version.chunkless_header_bytes();
        let mut bytes = vec![0xee; 4 + length];
        assert_eq!(emit_msg_header(&mut bytes, version, XID, 16, direction), length);
        assert_eq!(bytes[4..], emitted(version, direction, Body::Msg(Lists::EMPTY)));
        assert_eq!(bytes[..4], [0xee; 4]);
    }
}

#[test]
fn err_vers_carries_the_version_of_the_call_it_answers() {
    // RFC 5666 section 4.2: "it replies with an error code of ERR_VERS, and provides the low and
    // high inclusive version numbers it does, in fact, support."
    let mut bytes = [0; 28];
    let error = RdmaError::Version { low: 1, high: 2 };
    for version in [1, 2, 9] {
        assert_eq!(emit_error(&mut bytes, XID, version, 3, error), 28);
        assert_eq!(bytes[..], wire(&[XID.0, version, 3, 4, 1, 1, 2]));
    }
}

#[test]
fn an_error_is_its_number_and_nothing_follows_unless_it_is_undefined() {
    let errors = [
        (1, RdmaError::Chunk, 2, 20),
        (2, RdmaError::BadHeader, 2, 20),
        (2, RdmaError::InvalidOption, 3, 20),
        (1, RdmaError::Other(7), 7, 52),
    ];
    for (version, error, code, length) in errors {
        let mut bytes = [0; 52];
        assert_eq!(emit_error(&mut bytes, XID, version, 3, error), length);
        assert_eq!(bytes[..20], wire(&[XID.0, version, 3, 4, code]));
        assert_eq!(bytes[20..], [0; 32]);
    }
}

#[test]
fn a_reply_never_has_a_read_list() {
    // RFC 8166 section 4.3.1.
    let reads = [ReadSegment { position: 0, target: segment(1, 10) }];
    let call = one(Body::Nomsg(Lists { reads: &reads, ..Lists::EMPTY }));
    let answer = echoed(&call, reply(MessageType::Msg, &[], None));
    assert_eq!(answer, one(Body::Msg(Lists::EMPTY)));
}

#[test]
fn a_reply_to_rdma_msgp_finds_the_lists_behind_its_padding_words() {
    let writes: [&[Segment]; 1] = [&[segment(1, 10)]];
    let lists = Lists { writes: &writes, ..Lists::EMPTY };
    let call = one(Body::Msgp { align: 8, thresh: 8, lists });
    assert_eq!(echoed(&call, reply(MessageType::Msg, &[10], None)), one(Body::Msg(lists)));
}

#[test]
fn write_chunks_come_back_filled_in_order_without_gaps() {
    // RFC 8166 section 4.3.2: same chunks, segments, handles and offsets; lengths are those that
    // were placed. "Unused" keeps its segments at length zero, "empty" has none.
    let with = |lengths: [u32; 7]| {
        let [a, b, c, d, e, f, g] = lengths;
        let first = [segment(1, a), segment(2, b), segment(3, c), segment(4, d)];
        let writes: [&[Segment]; 4] =
            [&first, &[segment(5, e), segment(6, f)], &[], &[segment(7, g)]];
        one(Body::Msg(Lists { writes: &writes, ..Lists::EMPTY }))
    };
    let call = with([100, 0, 100, 100, 50, 50, 8]);
    let filled = echoed(&call, reply(MessageType::Msg, &[131, 0, 0, 8], None));
    assert_eq!(filled, with([100, 0, 31, 0, 0, 0, 8]));
    assert_eq!(echoed(&call, reply(MessageType::Msg, &[], None)), with([0; 7]));
}

#[test]
fn the_reply_chunk_comes_back_used_or_not() {
    // RFC 8166 section 4.3.3: a responder may answer short replies inline, and copies the Reply
    // chunk back all the same.
    let with = |is_long, [first, second]: [u32; 2]| {
        let chunk = [segment(1, first), segment(2, second)];
        let lists = Lists { reply: Some(&chunk), ..Lists::EMPTY };
        one(if is_long { Body::Nomsg(lists) } else { Body::Msg(lists) })
    };
    let call = with(false, [100, 100]);
    let used = echoed(&call, reply(MessageType::Nomsg, &[], Some(104)));
    assert_eq!(used, with(true, [100, 4]));
    let unused = echoed(&call, reply(MessageType::Msg, &[], None));
    assert_eq!(unused, with(false, [0, 0]));
}

#[test]
fn a_buffer_that_is_too_short_is_not_overrun() {
    let chunk = [segment(1, 100), segment(2, 100)];
    let call = one(Body::Msg(Lists { reply: Some(&chunk), ..Lists::EMPTY }));
    for length in 0..call.len() {
        let mut short = vec![0; length];
        let written = reply(MessageType::Msg, &[], Some(200)).emit(&mut short, &view(&call));
        assert_eq!(written, call.len());
        let whole_words = length / 4 * 4;
        assert!(short[whole_words..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_reply_is_of_the_version_of_its_call() {
    // Version two section 5.3: "a responder MUST send Replies with the same RPC-over-RDMA protocol
    // version that the requester uses to send its Calls".
    let with = |[write, reply]: [u32; 2], made: &dyn Fn(Lists<'_>) -> Vec<u8>| {
        made(Lists {
            reads: &[],
            writes: &[&[segment(1, write)]],
            reply: Some(&[segment(2, reply)]),
        })
    };
    let call = with([64, 64], &|lists| emitted(Two, Call, Body::Msg(lists)));
    let placed = with([3, 60], &|lists| emitted(Two, Reply, Body::Nomsg(lists)));
    assert_eq!(echoed(&call, reply(MessageType::Nomsg, &[3], Some(60))), placed);
}

#[test]
fn an_rpc_reply_to_rdma2_optional_has_three_empty_lists() {
    let call = emitted(Two, Call, Body::Optional { option: 9, info: &[0; 4] });
    assert_eq!(call.len(), 32, "as long as a header with empty lists");
    let answer = echoed(&call, reply(MessageType::Msg, &[], None));
    assert_eq!(answer, emitted(Two, Reply, Body::Msg(Lists::EMPTY)));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "zero credits")]
fn zero_credits_are_never_sent() {
    // RFC 8166 section 3.3.1.
    emit_msg_header(&mut [0; 28], One, XID, 0, Call);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "zero credits")]
fn zero_credits_are_never_sent_in_version_two() {
    emit_msg_header(&mut [0; 32], Two, XID, 0, Call);
}

#[test]
fn a_list_without_entries_is_one_word_of_zero() {
    // D5666-14: "If the Read chunk list is null (a 32-bit word of zeros)"; the other lists likewise.
    let write: &[Segment] = &[segment(7, 8)];
    let read = ReadSegment { position: 40, target: segment(7, 8) };
    let words = |link: u32, number| [&[link, number][..], &segment_words(7, 8)].concat();
    for has in 0..8_u32 {
        let [has_read, has_write, has_reply] = [has & 1 != 0, has & 2 != 0, has & 4 != 0];
        let lists = Lists {
            reads: if has_read { &[read] } else { &[] },
            writes: if has_write { &[write] } else { &[] },
            reply: has_reply.then_some(write),
        };
        let mut expected = vec![XID.0, 1, 16, 0];
        expected.extend(if has_read { words(1, 40) } else { vec![] });
        expected.push(0);
        expected.extend(if has_write { words(1, 1) } else { vec![] });
        expected.push(0);
        expected.extend(if has_reply { words(1, 1) } else { vec![0] });
        assert_eq!(one(Body::Msg(lists)), wire(&expected), "{has:03b}");
    }
}

/// The XDR of the base protocol of version two, in the document's words.
const XDR: &str = include_str!("../../xdr/rpcrdma_v2.x");

/// The value which the XDR gives a name.
fn named(name: &str) -> u32 {
    let line = XDR.lines().find(|line| line.trim().starts_with(&format!("{name} =")));
    let value = line.unwrap().split('=').nth(1).unwrap();
    value.trim().trim_end_matches(',').parse().unwrap()
}

#[test]
fn the_numbers_are_those_of_the_xdr_and_there_are_no_others() {
    // Version two section 3: "Any change to this XDR description requires a protocol version number
    // change."
    let types = [
        ("RDMA2_MSG", MessageType::Msg),
        ("RDMA2_NOMSG", MessageType::Nomsg),
        ("RDMA2_ERROR", MessageType::Error),
        ("RDMA2_OPTIONAL", MessageType::Optional),
    ];
    let known = |value| MessageType::from_wire(Two, value);
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
        emit_error(&mut bytes, XID, 2, 1, error);
        assert_eq!(bytes[16..20], named(name).to_be_bytes());
    }
}
