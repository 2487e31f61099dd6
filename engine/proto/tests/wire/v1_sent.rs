//! Sending a version-one transport header.

use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::{
    Body, HeaderRepr, HeaderView, Lists, MSG_HEADER_BYTES, MessageType, emit_error,
    emit_msg_header, emit_reply, reply_header_bytes,
};
use spinrpc_proto::rdma::{RdmaError, ReadSegment, Segment};

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

/// The reply to `call`, emitted into a buffer of exactly its length.
fn echoed(
    message_type: MessageType,
    call: &[u8],
    write_lengths: &[u32],
    reply_length: Option<u32>,
) -> Vec<u8> {
    let call = HeaderView::new_checked(call, &Limits::DEFAULT).unwrap();
    let mut bytes = vec![0xee; reply_header_bytes(&call)];
    let written = emit_reply(&mut bytes, XID, 16, message_type, &call, write_lengths, reply_length);
    assert_eq!(written, bytes.len());
    bytes
}

#[test]
fn every_type_has_its_words() {
    let start = |message_type| [XID.0, 1, 16, message_type];
    let empty = [0, 0, 0];
    let expect = |words: &[&[u32]]| wire(&words.concat());
    assert_eq!(emitted(Body::Msg(Lists::EMPTY)), expect(&[&start(0), &empty]));
    assert_eq!(emitted(Body::Nomsg(Lists::EMPTY)), expect(&[&start(1), &empty]));
    let padded = Body::Msgp { align: 64, thresh: 128, lists: Lists::EMPTY };
    assert_eq!(emitted(padded), expect(&[&start(2), &[64, 128], &empty]));
    assert_eq!(emitted(Body::Done), expect(&[&start(3)]));
    assert_eq!(emitted(Body::Error(RdmaError::Chunk)), expect(&[&start(4), &[2]]));
    let versions = RdmaError::Version { low: 1, high: 2 };
    assert_eq!(emitted(Body::Error(versions)), expect(&[&start(4), &[1, 1, 2]]));
    let other = emitted(Body::Error(RdmaError::Other(7)));
    assert_eq!(other, expect(&[&start(4), &[7], &[0; 8]]));
}

#[test]
fn lists_stand_in_the_order_read_write_reply() {
    let lists = Lists {
        reads: &[ReadSegment { position: 40, target: segment(1, 10) }],
        writes: &[&[segment(2, 20), segment(3, 30)], &[]],
        reply: Some(&[segment(4, 40)]),
    };
    let words = [
        &[XID.0, 1, 16, 0][..],
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
    assert_eq!(emitted(Body::Msg(lists)), wire(&words.concat()));
}

#[test]
fn the_short_way_to_write_rdma_msg_gives_the_same_bytes() {
    let mut bytes = [0xee; MSG_HEADER_BYTES + 4];
    assert_eq!(emit_msg_header(&mut bytes, XID, 16), MSG_HEADER_BYTES);
    assert_eq!(bytes[..MSG_HEADER_BYTES], emitted(Body::Msg(Lists::EMPTY)));
    assert_eq!(bytes[MSG_HEADER_BYTES..], [0xee; 4]);
    let mut short = [0xee; MSG_HEADER_BYTES - 1];
    assert_eq!(emit_msg_header(&mut short, XID, 16), MSG_HEADER_BYTES);
    assert_eq!(short, [0xee; MSG_HEADER_BYTES - 1]);
}

#[test]
fn err_vers_carries_the_version_of_the_call_it_answers() {
    // RFC 5666 section 4.2: "it replies with an error code of ERR_VERS, and provides the low and
    // high inclusive version numbers it does, in fact, support."
    let mut bytes = [0; MSG_HEADER_BYTES];
    let error = RdmaError::Version { low: 1, high: 1 };
    assert_eq!(emit_error(&mut bytes, XID, 9, 3, error), 28);
    assert_eq!(bytes[..], wire(&[XID.0, 9, 3, 4, 1, 1, 1]));
    assert_eq!(emit_error(&mut bytes, XID, 1, 3, RdmaError::Chunk), 20);
    assert_eq!(bytes[..20], wire(&[XID.0, 1, 3, 4, 2]));
}

#[test]
fn a_reply_never_has_a_read_list() {
    // RFC 8166 section 4.3.1.
    let reads = [ReadSegment { position: 0, target: segment(1, 10) }];
    let call = emitted(Body::Nomsg(Lists { reads: &reads, ..Lists::EMPTY }));
    assert_eq!(echoed(MessageType::Msg, &call, &[], None), emitted(Body::Msg(Lists::EMPTY)));
}

#[test]
fn a_reply_to_rdma_msgp_finds_the_lists_behind_its_padding_words() {
    let writes: [&[Segment]; 1] = [&[segment(1, 10)]];
    let lists = Lists { writes: &writes, ..Lists::EMPTY };
    let call = emitted(Body::Msgp { align: 8, thresh: 8, lists });
    assert_eq!(echoed(MessageType::Msg, &call, &[10], None), emitted(Body::Msg(lists)));
}

#[test]
fn write_chunks_come_back_filled_in_order_without_gaps() {
    // RFC 8166 section 4.3.2: same chunks, segments, handles and offsets; lengths are those that
    // were placed. "Unused" keeps its segments at length zero, "empty" has none.
    let writes: [&[Segment]; 4] = [
        &[segment(1, 100), segment(2, 0), segment(3, 100), segment(4, 100)],
        &[segment(5, 50), segment(6, 50)],
        &[],
        &[segment(7, 8)],
    ];
    let call = emitted(Body::Msg(Lists { writes: &writes, ..Lists::EMPTY }));
    let filled: [&[Segment]; 4] = [
        &[segment(1, 100), segment(2, 0), segment(3, 31), segment(4, 0)],
        &[segment(5, 0), segment(6, 0)],
        &[],
        &[segment(7, 8)],
    ];
    let expected = emitted(Body::Msg(Lists { writes: &filled, ..Lists::EMPTY }));
    assert_eq!(echoed(MessageType::Msg, &call, &[131, 0, 0, 8], None), expected);
    let unused: [&[Segment]; 4] = [
        &[segment(1, 0), segment(2, 0), segment(3, 0), segment(4, 0)],
        &[segment(5, 0), segment(6, 0)],
        &[],
        &[segment(7, 0)],
    ];
    let expected = emitted(Body::Msg(Lists { writes: &unused, ..Lists::EMPTY }));
    assert_eq!(echoed(MessageType::Msg, &call, &[], None), expected);
}

#[test]
fn the_reply_chunk_comes_back_used_or_not() {
    // RFC 8166 section 4.3.3: a responder may answer short replies inline, and copies the Reply
    // chunk back all the same.
    let reply = [segment(1, 100), segment(2, 100)];
    let call = emitted(Body::Msg(Lists { reply: Some(&reply), ..Lists::EMPTY }));
    let with = |lengths: [u32; 2]| [segment(1, lengths[0]), segment(2, lengths[1])];
    let used = with([100, 4]);
    let expected = emitted(Body::Nomsg(Lists { reply: Some(&used), ..Lists::EMPTY }));
    assert_eq!(echoed(MessageType::Nomsg, &call, &[], Some(104)), expected);
    let unused = with([0, 0]);
    let expected = emitted(Body::Msg(Lists { reply: Some(&unused), ..Lists::EMPTY }));
    assert_eq!(echoed(MessageType::Msg, &call, &[], None), expected);
}

#[test]
fn a_buffer_that_is_too_short_is_not_overrun() {
    let reply = [segment(1, 100), segment(2, 100)];
    let call = emitted(Body::Msg(Lists { reply: Some(&reply), ..Lists::EMPTY }));
    let view = HeaderView::new_checked(&call, &Limits::DEFAULT).unwrap();
    for length in 0..call.len() {
        let mut short = vec![0; length];
        let written = emit_reply(&mut short, XID, 16, MessageType::Msg, &view, &[], Some(200));
        assert_eq!(written, call.len());
        let whole_words = length / 4 * 4;
        assert!(short[whole_words..].iter().all(|&byte| byte == 0));
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "zero credits")]
fn zero_credits_are_never_sent() {
    // RFC 8166 section 3.3.1.
    emit_msg_header(&mut [0; MSG_HEADER_BYTES], XID, 0);
}

#[test]
fn a_list_without_entries_is_one_word_of_zero() {
    // D5666-14: "If the Read chunk list is null (a 32-bit word of zeros)"; the other lists likewise.
    let one = segment(7, 8);
    let write: &[Segment] = &[one];
    let words = segment_words(7, 8);
    let read = ReadSegment { position: 40, target: one };
    let read_words = [&[1, 40][..], &words].concat();
    let write_words = [&[1, 1][..], &words].concat();
    let reply_words = [&[1, 1][..], &words].concat();
    for has in 0..8_u32 {
        let [has_read, has_write, has_reply] = [has & 1 != 0, has & 2 != 0, has & 4 != 0];
        let lists = Lists {
            reads: if has_read { &[read] } else { &[] },
            writes: if has_write { &[write] } else { &[] },
            reply: has_reply.then_some(write),
        };
        let mut expected = vec![XID.0, 1, 16, 0];
        expected.extend(if has_read { &read_words[..] } else { &[] });
        expected.push(0);
        expected.extend(if has_write { &write_words[..] } else { &[] });
        expected.push(0);
        expected.extend(if has_reply { &reply_words[..] } else { &[0] });
        assert_eq!(emitted(Body::Msg(lists)), wire(&expected), "{has:03b}");
    }
    assert_eq!(wire(&[0, 0, 0]), emitted(Body::Msg(Lists::EMPTY))[16..]);
}
