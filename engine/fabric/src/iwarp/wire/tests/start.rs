//! Request and Reply frames, byte by byte, and the terms that they lead to.

use super::*;
use proptest::prelude::*;

const LOCAL: Local = Local { revision: 2, crc: true, ird: 16, ord: 8, peer_to_peer: false };

/// As siw asks by default: revision 2, IRD 4, ORD 2, no CRC, and RFC 8797's private data behind.
fn request_of_siw() -> Vec<u8> {
    let private_data = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];
    let header = [0x10, 2, 0, 12, 0, 4, 0, 2];
    [&b"MPA ID Req Frame"[..], &header, &private_data].concat()
}

fn parse(kind: FrameKind, bytes: &[u8]) -> Frame<'_> {
    match Frame::parse(kind, bytes) {
        Ok(Parsed::Done((frame, length))) => {
            assert_eq!(length, bytes.len());
            frame
        }
        other => panic!("{other:?}"),
    }
}

fn emit(frame: &Frame<'_>) -> Vec<u8> {
    let mut into = [0xaa; FRAME_BYTES_MAX];
    let length = frame.emit(&mut into).unwrap();
    into[..length].to_vec()
}

fn accepted(local: &Local, request: &[u8]) -> (Vec<u8>, Agreed) {
    match local.answer(&parse(FrameKind::Request, request), &[]) {
        Answer::Accept(reply, agreed) => (emit(&reply), agreed),
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn a_request_is_as_the_rfcs_lay_it_out() {
    let frame = LOCAL.request(b"hello");
    let expected = [&b"MPA ID Req Frame"[..], &[0x50, 2, 0, 9, 0, 16, 0, 8], b"hello"].concat();
    assert_eq!(emit(&frame), expected);
    // Flag A (peer to peer) above IRD, C (Write) and D (Read) above ORD (RFC 6581).
    let frame = Local { peer_to_peer: true, crc: false, ..LOCAL }.request(&[]);
    let expected = [&b"MPA ID Req Frame"[..], &[0x10, 2, 0, 4, 0x80, 16, 0xc0, 8]].concat();
    assert_eq!(emit(&frame), expected);
    // Revision 1 has neither the data nor the flag.
    let frame = Local { revision: 1, peer_to_peer: true, ..LOCAL }.request(b"hello");
    assert_eq!(emit(&frame), [&b"MPA ID Req Frame"[..], &[0x40, 1, 0, 5], b"hello"].concat());
}

#[test]
fn a_request_of_siw_is_read_and_answered() {
    let bytes = request_of_siw();
    let frame = parse(FrameKind::Request, &bytes);
    assert_eq!((frame.revision, frame.markers, frame.crc, frame.reject), (2, false, false, false));
    assert_eq!(frame.private_data, &bytes[24..]);
    let (reply, agreed) = accepted(&LOCAL, &bytes);
    // The responder's IRD meets the initiator's ORD, and its ORD the initiator's IRD.
    assert_eq!(reply, [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4, 0, 2, 0, 4]].concat());
    assert_eq!(agreed, Agreed { crc: true, ird: 2, ord: 4, rtr: None });
}

/// Either frame asks for both ends (RFC 5044 section 7.1.1).
#[test]
fn crcs_are_used_unless_neither_end_asks() {
    for (initiator, responder) in [(false, false), (false, true), (true, false), (true, true)] {
        let (ours, theirs) = (Local { crc: initiator, ..LOCAL }, Local { crc: responder, ..LOCAL });
        let (reply, agreed) = accepted(&theirs, &emit(&ours.request(&[])));
        let concluded = ours.conclude(&parse(FrameKind::Reply, &reply)).unwrap();
        assert_eq!((agreed.crc, concluded.crc), (initiator || responder, agreed.crc));
        // siw's initiator goes by the Reply alone.
        assert_eq!(reply[16] & 0x40 != 0, agreed.crc);
    }
}

#[test]
fn a_peer_that_wants_markers_is_refused() {
    let mut bytes = request_of_siw();
    bytes[16] |= 0x80;
    let Answer::Refuse(reply) = LOCAL.answer(&parse(FrameKind::Request, &bytes), &[]) else {
        panic!("markers were accepted");
    };
    let reply = emit(&reply);
    assert_eq!((reply[16], reply[17]), (0x70, 2));
    let reply = parse(FrameKind::Reply, &reply);
    assert_eq!(LOCAL.conclude(&reply), Err(ReplyError::Rejected));
    let reply = Frame { reject: false, markers: true, ..reply };
    assert_eq!(LOCAL.conclude(&reply), Err(ReplyError::Markers));
}

#[test]
fn the_first_fpdu_is_the_cheapest_that_both_take() {
    let ask = |flags: (u8, u8)| {
        let mut bytes = request_of_siw();
        (bytes[20], bytes[22]) = flags;
        let (reply, agreed) = accepted(&LOCAL, &bytes);
        (reply[20], reply[22], agreed.rtr)
    };
    assert_eq!(ask((0x80, 0xc0)), (0x80, 0x80, Some(Rtr::Write)));
    assert_eq!(ask((0x80, 0x40)), (0x80, 0x40, Some(Rtr::Read)));
    assert_eq!(ask((0xc0, 0x00)), (0xc0, 0x00, Some(Rtr::Send)));
    assert_eq!(ask((0xc0, 0x40)), (0x80, 0x40, Some(Rtr::Read)));
    // As siw: a Write where the peer names none.
    assert_eq!(ask((0x80, 0x00)), (0x80, 0x80, Some(Rtr::Write)));
    // B, C and D mean nothing without A.
    assert_eq!(ask((0x40, 0xc0)), (0x00, 0x00, None));
}

#[test]
fn a_read_is_no_first_fpdu_for_a_side_that_serves_none() {
    let mut bytes = request_of_siw();
    (bytes[20], bytes[22]) = (0xc0, 0x40);
    let (_, agreed) = accepted(&Local { ird: 0, ..LOCAL }, &bytes);
    assert_eq!(agreed.rtr, Some(Rtr::Send));
    // Nor for one that has none outstanding: it neither offers one nor takes one.
    let local = Local { ord: 0, peer_to_peer: true, ..LOCAL };
    assert_eq!(emit(&local.request(&[]))[20..], [0x80, 16, 0x80, 0]);
    let reply = [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4, 0x80, 8, 0x40, 4]].concat();
    let concluded = local.conclude(&parse(FrameKind::Reply, &reply));
    assert_eq!(concluded, Err(ReplyError::NoMatchingRtr));
}

#[test]
fn the_initiator_takes_the_kind_that_the_reply_names() {
    let local = Local { peer_to_peer: true, ..LOCAL };
    let conclude = |[ird, high]: [u8; 2]| {
        let field = [ird, 8, high, 4];
        let reply = [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4], &field].concat();
        local.conclude(&parse(FrameKind::Reply, &reply)).map(|agreed| agreed.rtr)
    };
    assert_eq!(conclude([0x80, 0x80]), Ok(Some(Rtr::Write)));
    assert_eq!(conclude([0x80, 0x40]), Ok(Some(Rtr::Read)));
    assert_eq!(conclude([0x80, 0xc0]), Ok(Some(Rtr::Write)));
    // Send was not offered, and nothing is no answer.
    for flags in [[0xc0, 0], [0x80, 0], [0, 0xc0]] {
        assert_eq!(conclude(flags), Err(ReplyError::NoMatchingRtr));
    }
}

#[test]
fn ird_and_ord_are_the_least_of_both_ends() {
    let conclude = |ird: u16, ord: u16| {
        let field = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
        let reply = [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4], &field].concat();
        let agreed = LOCAL.conclude(&parse(FrameKind::Reply, &reply));
        agreed.map(|agreed| (agreed.ird, agreed.ord))
    };
    assert_eq!(conclude(3, 16), Ok((16, 3)));
    assert_eq!(conclude(100, 1), Ok((1, 8)));
    assert_eq!(conclude(0, 0), Ok((0, 0)));
    // 0x3fff: not to be negotiated (RFC 6581).
    assert_eq!(conclude(0x3fff, 0x3fff), Ok((16, 8)));
    assert_eq!(conclude(8, 17), Err(ReplyError::InsufficientIrd));
    // More than 14 bits are not sent.
    let frame = Local { ird: 0xffff, ord: 0x4000, ..LOCAL }.request(&[]);
    assert_eq!(&emit(&frame)[20..], [0x3f, 0xff, 0x3f, 0xff]);
}

/// siw rounds its queues of Reads up to a power of two. Expect as many to be served, and none of this side's own beyond what
/// both said.
#[test]
fn reads_of_a_peer_that_rounds_up_are_served() {
    let local = Local { ird: 10, ord: 10, ..LOCAL };
    let conclude = |ord: u8| {
        let reply = [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4, 0, 10, 0, ord]].concat();
        let agreed = local.conclude(&parse(FrameKind::Reply, &reply));
        agreed.map(|agreed| (agreed.ird, agreed.ord))
    };
    assert_eq!(
        [9, 16, 17].map(conclude),
        [Ok((16, 10)), Ok((16, 10)), Err(ReplyError::InsufficientIrd)]
    );
    let mut bytes = request_of_siw();
    (bytes[21], bytes[23]) = (9, 12);
    let (reply, agreed) = accepted(&local, &bytes);
    assert_eq!((reply[21], reply[23]), (10, 9));
    assert_eq!((agreed.ird, agreed.ord), (16, 9));
    assert_eq!(accepted(&Local { ird: 0, ..local }, &bytes).1.ird, 0);
}

/// A receiver that does not know the revision closes the connection (RFC 5044 section 7.1.1). An initiator of revision 2 tries again with 1.
#[test]
fn an_initiator_falls_back_to_revision_one() {
    let rejected = [&b"MPA ID Rep Frame"[..], &[0x20, 1, 0, 0]].concat();
    assert_eq!(LOCAL.conclude(&parse(FrameKind::Reply, &rejected)), Err(ReplyError::Revision));
    let old = [&b"MPA ID Rep Frame"[..], &[0x40, 1, 0, 2], b"hi"].concat();
    assert_eq!(LOCAL.conclude(&parse(FrameKind::Reply, &old)), Err(ReplyError::Revision));
    let second = Local { revision: 1, ..LOCAL };
    assert_eq!(second.conclude(&parse(FrameKind::Reply, &rejected)), Err(ReplyError::Rejected));
    let agreed = second.conclude(&parse(FrameKind::Reply, &old)).unwrap();
    assert_eq!(agreed, Agreed { crc: true, ird: 16, ord: 1, rtr: None });
    let (reply, agreed) = accepted(&LOCAL, &emit(&second.request(&[])));
    assert_eq!(reply, [&b"MPA ID Rep Frame"[..], &[0x40, 1, 0, 0]].concat());
    assert_eq!(agreed, Agreed { crc: true, ird: 16, ord: 1, rtr: None });
}

#[test]
fn a_refusal_of_siw_is_read_without_the_data_that_it_announces() {
    let reply = [&b"MPA ID Rep Frame"[..], &[0x30, 2, 0, 0]].concat();
    assert_eq!(LOCAL.conclude(&parse(FrameKind::Reply, &reply)), Err(ReplyError::Rejected));
}

#[test]
fn frames_that_are_none_are_refused_as_soon_as_they_show_it() {
    let parse = |bytes: &[u8]| Frame::parse(FrameKind::Request, bytes).map(|_| ());
    let good = request_of_siw();
    assert_eq!(parse(b"GET "), Err(FrameError::Key));
    for at in 0..16 {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        assert_eq!(parse(&bytes[..=at]), Err(FrameError::Key));
    }
    for revision in [0, 3, 255] {
        let mut bytes = good[..20].to_vec();
        bytes[17] = revision;
        assert_eq!(parse(&bytes), Err(FrameError::Revision(revision)));
    }
    let mut bytes = good[..20].to_vec();
    (bytes[18], bytes[19]) = (2, 1);
    assert_eq!(parse(&bytes), Err(FrameError::PrivateData(513)));
    (bytes[18], bytes[19]) = (0, 0);
    assert_eq!(parse(&bytes), Err(FrameError::Enhanced));
}

#[test]
fn bits_that_mean_nothing_are_not_checked() {
    // R of a Request, and reserved bits: siw sets 0x08.
    let mut bytes = request_of_siw();
    let expected = request_of_siw();
    bytes[16] |= 0x2f;
    assert_eq!(parse(FrameKind::Request, &bytes), parse(FrameKind::Request, &expected));
    // S of revision 1: all of the field is the application's.
    bytes[17] = 1;
    let frame = parse(FrameKind::Request, &bytes);
    assert_eq!((frame.enhanced, frame.private_data), (None, &bytes[20..]));
}

#[test]
fn private_data_of_the_longest_frame_come_through() {
    let data = [7; PRIVATE_DATA_BYTES_MAX + 1];
    let bytes = emit(&LOCAL.request(&data[1..]));
    assert_eq!(bytes.len(), FRAME_BYTES_MAX);
    assert_eq!(parse(FrameKind::Request, &bytes).private_data, &data[1..]);
    assert_eq!(LOCAL.request(&data).emit(&mut [0; FRAME_BYTES_MAX]), None);
}

proptest! {
    #[test]
    fn any_frame_is_read_as_it_was_written_and_needs_all_of_its_bytes(
        (kind, revision) in (any::<bool>(), 1..3_u8),
        (markers, crc, reject) in any::<(bool, bool, bool)>(),
        numbers in proptest::option::of((0..0x4000_u16, 0..0x4000_u16)),
        (peer_to_peer, send, write, read) in any::<(bool, bool, bool, bool)>(),
        data in proptest::collection::vec(any::<u8>(), 0..=PRIVATE_DATA_BYTES_MAX),
    ) {
        let kind = if kind { FrameKind::Request } else { FrameKind::Reply };
        let rtr = RtrKinds {
            send: send && peer_to_peer,
            write: write && peer_to_peer,
            read: read && peer_to_peer,
        };
        let enhanced = numbers.filter(|_| revision == 2);
        let enhanced = enhanced.map(|(ird, ord)| Enhanced { ird, ord, peer_to_peer, rtr });
        let reject = reject && kind == FrameKind::Reply;
        let frame = Frame { kind, revision, markers, crc, reject, enhanced, private_data: &data };
        let bytes = emit(&frame);
        prop_assert_eq!(parse(kind, &bytes), frame);
        for cut in 0..bytes.len() {
            let Ok(Parsed::Need(needed)) = Frame::parse(kind, &bytes[..cut]) else {
                panic!("{cut} of {} bytes", bytes.len());
            };
            prop_assert!(needed > cut && needed <= bytes.len());
        }
    }
}
