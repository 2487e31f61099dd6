//! Receiving a version-two transport header (draft-cel-nfsv4-rpcrdma-version-two-01 section 4).

use super::prelude::*;
use spinrpc_proto::rdma::v1;
use spinrpc_proto::version::TransportVersion::{One, Two};

const XID: u32 = 0x0102_0304;
const MSG: u32 = 0;
const NOMSG: u32 = 1;
const ERROR: u32 = 4;
const OPTIONAL: u32 = 5;
const CALL: u32 = 0;
const REPLY: u32 = 1;

const BOTH: Limits = Limits { versions: Versions::Both, ..Limits::DEFAULT };

/// A message of the given type, version two, with 32 credits.
fn message(message_type: u32, body: &[u32]) -> Vec<u8> {
    wire(&[&[XID, 2, 32, message_type], body].concat())
}

fn check(bytes: &[u8]) -> Result<HeaderView<'_>, HeaderError> {
    HeaderView::new_checked(bytes, &BOTH)
}

/// Expects a message to be answered with BAD_HEADER, if it is a call. Returns its direction, and
/// the error.
fn malformed(bytes: &[u8]) -> (Option<Direction>, DecodeError) {
    match check(bytes) {
        Err(HeaderError::Malformed {
            xid: Xid(XID),
            credits: 32,
            version: Two,
            direction,
            cause,
        }) => (direction, cause),
        other => panic!("expected a malformed header, got {other:?}"),
    }
}

#[test]
fn receive_rdma2_msg_with_three_null_lists() {
    for (word, direction) in [(CALL, Direction::Call), (REPLY, Direction::Reply)] {
        let bytes = message(MSG, &[word, 0, 0, 0, XID, 77]);
        let view = check(&bytes).unwrap();
        assert_eq!((view.xid(), view.version(), view.credits()), (Xid(XID), 2, 32));
        assert_eq!((view.transport_version(), view.direction()), (Two, Some(direction)));
        assert_eq!((view.message_type(), view.is_chunkless()), (MessageType::Msg, true));
        assert_eq!(view.header_bytes(), 32);
        assert_eq!(view.payload(), wire(&[XID, 77]));
        assert!(view.reads().is_empty() && view.writes().is_empty());
        assert!(view.reply_chunk().is_none() && view.error().is_none());
        assert_eq!(HeaderView::chunkless_two(&bytes).unwrap().direction(), Some(direction));
    }
}

/// RFC 5666 section 4.2 has a bad request answered however short it is. Version two builds upon RFC 8166,
/// whose section 4.5 has a short one dropped.
#[test]
fn receive_a_short_request_where_version_one_answers_it_expect_that_of_version_two_dropped() {
    let limits = Limits { answers_short: true, ..BOTH };
    for length in 16..28 {
        let [one, two] = [1, 2].map(|version| wire(&[XID, version, 32, MSG, 0, 0, 0]));
        let one = HeaderView::new_checked(&one[..length], &limits);
        assert!(matches!(one, Err(HeaderError::Malformed { version: One, .. })), "{one:?}");
        let two = HeaderView::new_checked(&two[..length], &limits);
        assert_eq!(two.err(), Some(HeaderError::TooShort), "{length}");
    }
    for length in 8..16 {
        let two = wire(&[XID, 2, 32, MSG]);
        let two = HeaderView::new_checked(&two[..length], &limits);
        assert_eq!(two.err(), Some(HeaderError::TooShort), "{length}");
    }
}

#[test]
fn the_short_way_takes_nothing_else() {
    let plain = message(MSG, &[REPLY, 0, 0, 0]);
    assert!(HeaderView::chunkless_two(&plain).is_some() && HeaderView::chunkless(&plain).is_none());
    let one = wire(&[XID, 1, 32, MSG, 0, 0, 0, XID, 0]);
    assert!(HeaderView::chunkless_two(&one).is_none() && HeaderView::chunkless(&one).is_some());
    for at in (4..8).chain(12..32) {
        for bit in 0..8 {
            let mut spoilt = plain.clone();
            spoilt[at] ^= 1 << bit;
            let is_other_direction = (at, bit) == (19, 0);
            assert_eq!(
                HeaderView::chunkless_two(&spoilt).is_some(),
                is_other_direction,
                "{at} {bit}"
            );
        }
    }
    assert!(HeaderView::chunkless_two(&plain[..31]).is_none());
}

#[test]
fn receive_rdma2_nomsg_with_all_three_lists() {
    let lists =
        [REPLY, 1, 0, 7, 4096, 1, 0, 0, 1, 2, 8, 100, 2, 0, 9, 0, 2, 0, 0, 1, 1, 10, 50, 3, 0];
    let bytes = message(NOMSG, &lists);
    let view = check(&bytes).unwrap();
    assert_eq!((view.message_type(), view.header_bytes()), (MessageType::Nomsg, bytes.len()));
    assert_eq!(view.direction(), Some(Direction::Reply));
    let target = Segment { handle: 7, length: 4096, offset: 1 << 32 };
    assert_eq!(view.reads().collect::<Vec<_>>(), [ReadSegment { position: 0, target }]);
    let lengths: Vec<Vec<u32>> =
        view.writes().map(|chunk| chunk.segments().map(|s| s.length).collect()).collect();
    assert_eq!(lengths, [[100, 0]]);
    assert_eq!(view.reply_chunk().unwrap().total_length(), 50);
    assert_eq!(view.check_call(), Ok(()));
    for length in 28..bytes.len() {
        let (direction, _) = malformed(&bytes[..length]);
        assert_eq!(direction, Some(Direction::Reply), "cut to {length}");
    }
}

#[test]
fn receive_a_direction_that_is_neither_call_nor_reply() {
    for (message_type, rest) in [(MSG, 0), (NOMSG, 0), (OPTIONAL, 7)] {
        let bytes = message(message_type, &[2, rest, 0, 0]);
        assert_eq!(malformed(&bytes), (None, DecodeError::BadEnum { at: 16, value: 2 }));
    }
}

#[test]
fn receive_rdma2_error_of_each_kind() {
    let range = RdmaError::Version { low: 1, high: 2 };
    let errors = [
        (&[1, 1, 2][..], range, 28),
        (&[2], RdmaError::BadHeader, 20),
        (&[3], RdmaError::InvalidOption, 20),
        // Section 4.2.1: a payload "MUST NOT follow". The meaning of the error is clear all the same,
        // and without it the call that it ends would time out.
        (&[2, XID, 1, 0, 0, 0, 0], RdmaError::BadHeader, 20),
        (&[2, XID], RdmaError::BadHeader, 20),
    ];
    for (body, error, header_bytes) in errors {
        let bytes = message(ERROR, body);
        let view = check(&bytes).unwrap();
        assert_eq!((view.message_type(), view.error()), (MessageType::Error, Some(error)));
        assert_eq!(view.header_bytes(), header_bytes);
        // Section 4.2.2: "the direction of the message is always Responder-to-Requester (REPLY)".
        assert_eq!(view.direction(), Some(Direction::Reply));
        assert!(view.reads().is_empty() && view.writes().is_empty());
        assert!(view.reply_chunk().is_none());
    }
}

#[test]
fn the_version_word_says_what_an_error_code_means() {
    let code = |version, code| {
        let bytes = wire(&[XID, version, 1, ERROR, code, 0, 0]);
        check(&bytes).unwrap().error().unwrap()
    };
    assert_eq!([code(1, 2), code(2, 2)], [RdmaError::Chunk, RdmaError::BadHeader]);
    assert_eq!([code(1, 3), code(2, 3)], [RdmaError::Other(3), RdmaError::InvalidOption]);
    assert_eq!([code(2, 4), code(9, 2)], [RdmaError::Other(4), RdmaError::Chunk]);
}

#[test]
fn receive_an_error_of_version_two_where_version_one_is_spoken() {
    let bytes = message(ERROR, &[1, 2, 2]);
    let view = HeaderView::new_checked(&bytes, &Limits::DEFAULT).unwrap();
    assert_eq!(view.error(), Some(RdmaError::Version { low: 2, high: 2 }));
}

#[test]
fn receive_rdma2_optional_with_all_part_or_nothing_of_an_rpc_message() {
    // Section 4.2.1: "all, part of, or no RPC Payload Stream MAY follow".
    for payload in [&[][..], &[XID], &[XID, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]] {
        let bytes =
            message(OPTIONAL, &[&[CALL, 77, 5, 0x6162_6364, 0x6500_0000], payload].concat());
        let view = check(&bytes).unwrap();
        assert_eq!((view.message_type(), view.header_bytes()), (MessageType::Optional, 36));
        assert_eq!(view.direction(), Some(Direction::Call));
        assert_eq!(view.payload(), wire(payload));
        assert!(view.reads().is_empty() && view.writes().is_empty() && !view.is_chunkless());
        assert!(view.reply_chunk().is_none());
    }
}

#[test]
fn receive_the_shortest_rdma2_optional_and_ones_cut_short() {
    let shortest = message(OPTIONAL, &[REPLY, 77, 0]);
    let view = check(&shortest).unwrap();
    assert_eq!((view.header_bytes(), view.direction()), (28, Some(Direction::Reply)));
    let bytes = message(OPTIONAL, &[REPLY, 77, 9, 1, 2]);
    let (direction, cause) = malformed(&bytes);
    assert_eq!(direction, Some(Direction::Reply));
    assert!(matches!(cause, DecodeError::Truncated { .. }), "{cause}");
    let endless = message(OPTIONAL, &[CALL, 77, u32::MAX, 1]);
    assert_eq!(malformed(&endless).0, Some(Direction::Call));
}

#[test]
fn receive_a_type_that_version_two_does_not_have() {
    // 2 and 3 are types of version one, from 6 on those of a later document.
    for message_type in [2, 3].into_iter().chain(6..=13).chain([u32::MAX]) {
        let bytes = message(message_type, &[0, 0, 0, 0]);
        let cause = DecodeError::BadEnum { at: 12, value: message_type };
        assert_eq!(malformed(&bytes), (None, cause));
    }
    let optional = wire(&[XID, 1, 32, OPTIONAL, 0, 0, 0]);
    let cause = DecodeError::BadEnum { at: 12, value: OPTIONAL };
    assert!(matches!(
        check(&optional),
        Err(HeaderError::Malformed { version: One, cause: found, .. }) if found == cause
    ));
}

#[test]
fn receive_a_version_that_is_not_spoken_expect_it_to_be_seen_before_anything_else() {
    for (versions, unspoken) in [(Versions::One, 2), (Versions::Two, 1), (Versions::Both, 3)] {
        let limits = Limits { versions, ..Limits::DEFAULT };
        for message_type in [MSG, 3, OPTIONAL, 13] {
            let bytes = wire(&[XID, unspoken, 32, message_type, 0, 0, 0, 0]);
            let error = HeaderError::Version { xid: Xid(XID), version: unspoken };
            assert_eq!(HeaderView::new_checked(&bytes, &limits).err(), Some(error));
        }
    }
}

#[test]
fn receive_a_message_too_short_to_be_one() {
    // RFC 8166 section 4.5; nothing but an error is that short in version two either.
    let bytes = message(MSG, &[CALL, 0, 0, 0]);
    for length in 0..v1::MSG_HEADER_BYTES {
        assert_eq!(check(&bytes[..length]).err(), Some(HeaderError::TooShort), "{length}");
    }
    assert!(matches!(malformed(&bytes[..28]).1, DecodeError::Truncated { .. }));
    assert_eq!(check(&message(3, &[])).err(), Some(HeaderError::TooShort));
    assert_eq!(check(&message(ERROR, &[1])).err(), Some(HeaderError::TooShort));
}
