//! Segments of messages, and the order in which they leave.

use super::*;

const SEND_OF: fn(u32) -> Message =
    |length| Message::Send { length, invalidate: None, solicited: false };

fn sender(segment_bytes: usize, message: Message) -> Sender {
    let mut sender = Sender::new(segment_bytes);
    sender.start(message).unwrap();
    sender
}

#[test]
fn a_send_of_one_segment_is_byte_exact() {
    let message = Message::Send { length: 5, invalidate: Some(0x0102_0304), solicited: true };
    let mut sender = sender(1500, message);
    let (segment, header) = next(&mut sender).unwrap();
    let ulpdu = untagged(SEND_SE_INVALIDATE, true, [0x0102_0304, 0, 1, 0], b"hello");
    let expected = fpdu_of(&ulpdu);
    assert_eq!(header, expected[..20]);
    assert_eq!((segment.source, segment.offset, segment.length), (Source::Message, 0, 5));
    assert_eq!(segment.fpdu_bytes(), expected.len());
    let mut crc = Crc::new();
    crc.update(&header);
    crc.update(b"he");
    crc.update(b"llo");
    assert_eq!(segment.trailer(Some(crc)).bytes(), &expected[25..]);
    // The field is there without CRCs, too (RFC 5044 section 4.4).
    assert_eq!(segment.trailer(None).bytes(), [0; 7]);
    assert!(next(&mut sender).is_none());
}

/// RFC 3720 appendix B.4: the CRCs of 32 bytes of zeroes and of ones.
#[test]
fn crcs_are_those_of_the_vectors_of_iscsi() {
    for (byte, expected) in [(0, [0xaa, 0x36, 0x91, 0x8a]), (0xff, [0x43, 0xab, 0xa8, 0x62])] {
        let mut crc = Crc::new();
        crc.update(&[byte; 32]);
        assert_eq!(crc.to_bytes(), expected);
        assert_eq!(crc32c(&[byte; 32]).to_le_bytes(), expected);
    }
}

/// A Send of no bytes, by hand: 18 bytes of header, no pad, and the CRC that other code computed.
#[test]
fn an_fpdu_is_byte_exact() {
    let expected =
        [0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x58, 0x7b, 0xe8, 0xc4];
    let mut sender = sender(1500, SEND_OF(0));
    let (segment, header) = next(&mut sender).unwrap();
    let mut crc = Crc::new();
    crc.update(&header);
    assert_eq!([&header, segment.trailer(Some(crc)).bytes()].concat(), expected);
}

#[test]
fn a_write_is_cut_into_segments_that_fill_the_limit() {
    let mut sender = sender(
        131, // Not a multiple of four: 128 count.
        Message::Write { stag: 7, offset: u64::MAX - 9, length: 250 },
    );
    let mut offsets = Vec::new();
    while let Some((segment, header)) = next(&mut sender) {
        let at = (u64::MAX - 9).wrapping_add(segment.offset.into());
        let expected = tagged(WRITE, segment.last, 7, at, &[]);
        assert_eq!(header[2..], expected);
        assert_eq!(segment.fpdu_bytes() % 4, 0);
        offsets.push((segment.offset, segment.length, segment.fpdu_bytes()));
    }
    assert_eq!(offsets, [(0, 108, 128), (108, 108, 128), (216, 34, 56)]);
}

#[test]
fn a_send_is_cut_at_message_offsets_and_numbers_are_counted_per_queue() {
    let mut sender = sender(128, SEND_OF(208));
    let (first, header) = next(&mut sender).unwrap();
    assert_eq!(header[2..], untagged(SEND, false, [0, 0, 1, 0], &[]));
    assert!(!first.last && sender.start(SEND_OF(1)) == Err(Busy));
    let (second, header) = next(&mut sender).unwrap();
    assert_eq!(header[2..], untagged(SEND, true, [0, 0, 1, 104], &[]));
    assert_eq!((second.length, second.last), (104, true));
    sender.start(SEND_OF(0)).unwrap();
    assert_eq!(next(&mut sender).unwrap().1[2..], untagged(SEND, true, [0, 0, 2, 0], &[]));
    for msn in 1..4 {
        let request = ReadRequest {
            msn: 77,
            sink_stag: 8,
            sink_offset: 0x20,
            length: 16,
            source_stag: 9,
            source_offset: 0x30,
        };
        sender.start(Message::Read(request)).unwrap();
        let (segment, header) = next(&mut sender).unwrap();
        assert_eq!(header[2..], read_request(msn));
        assert_eq!((segment.length, segment.last), (0, true));
    }
}

#[test]
fn a_segment_has_at_most_64_kib() {
    let mut sender = sender(usize::MAX, SEND_OF(70_000));
    let (segment, _) = next(&mut sender).unwrap();
    assert_eq!((segment.fpdu_bytes(), segment.length), (65_536, 65_512));
}

#[test]
fn read_responses_and_sends_take_turns() {
    let mut sender = sender(128, SEND_OF(208));
    sender.respond(ReadResponse { stag: 4, offset: 0, length: 216 }).unwrap();
    let busy = ReadResponse { stag: 5, offset: 0, length: 1 };
    assert_eq!(sender.respond(busy), Err(Busy));
    let mut order = Vec::new();
    while let Some((segment, _)) = next(&mut sender) {
        order.push((segment.source, segment.offset));
    }
    let (own, response) = (Source::Message, Source::ReadResponse);
    assert_eq!(order, [(own, 0), (response, 0), (own, 104), (response, 108)]);
}

/// siw drops a connection on which a Write and a Read Response mix.
#[test]
fn tagged_messages_do_not_mix_and_neither_starves() {
    let mut sender = sender(128, Message::Write { stag: 3, offset: 0, length: 216 });
    let mut order = Vec::new();
    for _ in 0..8 {
        let write = Message::Write { stag: 3, offset: 0, length: 216 };
        let _ = sender.start(write);
        let _ = sender.respond(ReadResponse { stag: 4, offset: 0, length: 216 });
        let (segment, _) = next(&mut sender).unwrap();
        order.push((segment.source, segment.last));
    }
    let (own, response) = (Source::Message, Source::ReadResponse);
    let round = [(own, false), (own, true), (response, false), (response, true)];
    assert_eq!(order, [round, round].concat());
}

#[test]
fn a_terminate_is_the_last_segment() {
    let mut sender = sender(128, SEND_OF(208));
    next(&mut sender).unwrap();
    sender.terminate(Terminate::bare(Fault::Crc));
    sender.terminate(Terminate::bare(Fault::Opcode));
    assert!(!sender.is_free() && !sender.is_free_to_respond());
    let (segment, header) = next(&mut sender).unwrap();
    assert_eq!(segment.source, Source::Terminate);
    assert_eq!(header[2..], untagged(TERMINATE, true, [0, 2, 1, 0], &[0x20, 2, 0, 0]));
    assert!(next(&mut sender).is_none());
    assert_eq!(sender.start(SEND_OF(1)), Err(Busy));
}
