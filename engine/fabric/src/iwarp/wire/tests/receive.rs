//! The receiving half: what each field may be, and the error that any other value causes.

use super::*;

/// Room of the posted receive.
const ROOM: Option<usize> = Some(64);

fn receiver() -> Receiver {
    Receiver::new(&AGREED, true)
}

fn fault(receiver: &mut Receiver, ulpdu: &[u8]) -> Fault {
    let before = format!("{receiver:?}");
    let fault = event_of(receiver, ulpdu, ROOM).expect_err("the segment was taken");
    assert_eq!(format!("{receiver:?}"), before, "an error changed the state");
    fault
}

fn send(msn: u32, offset: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged(SEND, last, [0, 0, msn, offset], payload)
}

fn sink(stag: u32, offset: u64, length: u32) -> ReadSink {
    ReadSink { stag, offset, length }
}

#[test]
fn each_message_is_what_its_header_says() {
    let mut receiver = receiver();
    receiver.expect_read(sink(6, 0x100, 4)).unwrap();
    let mut event = |ulpdu: &[u8]| event_of(&mut receiver, ulpdu, ROOM).unwrap();
    let payload = 20..23;
    let (msn, offset, last) = (1, 0, true);
    let expected = Event::Send {
        msn,
        offset,
        payload: payload.clone(),
        last,
        invalidate: None,
        solicited: false,
    };
    assert_eq!(event(&send(1, 0, true, b"abc")), expected);
    let kinds = [
        (SEND_INVALIDATE, Some(0x8000_0001), false),
        (SEND_SE, None, true),
        (SEND_SE_INVALIDATE, Some(0x8000_0001), true),
    ];
    for (msn, (control, invalidate, solicited)) in (2..).zip(kinds) {
        let expected =
            Event::Send { msn, offset, payload: payload.clone(), last, invalidate, solicited };
        let words = [0x8000_0001, 0, msn, 0];
        assert_eq!(event(&untagged(control, true, words, b"abc")), expected);
    }
    let expected = Event::Write { stag: 7, offset: 1 << 40, payload: 16..19, last: false };
    assert_eq!(event(&tagged(WRITE, false, 7, 1 << 40, b"abc")), expected);
    let expected =
        Event::ReadResponse { sink: sink(6, 0x100, 4), offset: 0, payload: 16..20, last };
    assert_eq!(event(&tagged(READ_RESPONSE, true, 6, 0x100, b"abcd")), expected);
    let request = ReadRequest {
        msn: 1,
        sink_stag: 8,
        sink_offset: 0x20,
        length: 16,
        source_stag: 9,
        source_offset: 0x30,
    };
    assert_eq!(event(&read_request(1)), Event::ReadRequest(request));
}

/// Reserved bits are sent as zero and not checked (RFC 5041 section 4.1, RFC 5040 section 4.1): four bits of DDP, two of
/// RDMAP, and the word of a Send that invalidates nothing.
#[test]
fn reserved_bits_are_not_checked() {
    let mut ulpdu = send(1, 0, true, b"abc");
    ulpdu[0] |= 0x3c;
    ulpdu[1] |= 0x30;
    ulpdu[2..6].copy_from_slice(&[0xff; 4]);
    let event = event_of(&mut receiver(), &ulpdu, ROOM);
    assert!(matches!(event, Ok(Event::Send { invalidate: None, last: true, .. })), "{event:?}");
}

/// Every value of every byte of the control field.
#[test]
fn versions_and_opcodes_are_checked() {
    for value in 0..=255_u8 {
        let mut ulpdu = send(1, 0, true, b"abc");
        ulpdu[1] = value;
        let result = event_of(&mut receiver(), &ulpdu, ROOM);
        match (value >> 6, value & 0xf) {
            (0 | 2 | 3, _) => assert_eq!(result, Err(Fault::RdmapVersion)),
            (_, 3..=6) => assert!(result.is_ok()),
            (_, 1 | 7) => assert_eq!(result, Err(Fault::QueueNumber)),
            // Tagged messages in an untagged segment, and opcodes that are unknown.
            _ => assert_eq!(result, Err(Fault::Opcode)),
        }
        let mut ulpdu = tagged(WRITE, true, 7, 0, b"abc");
        ulpdu[1] = value;
        let result = event_of(&mut receiver(), &ulpdu, ROOM);
        match (value >> 6, value & 0xf) {
            (0 | 2 | 3, _) => assert_eq!(result, Err(Fault::RdmapVersion)),
            (_, 0) => assert!(result.is_ok()),
            _ => assert_eq!(result, Err(Fault::Opcode)),
        }
    }
    for version in [0, 2, 3] {
        let mut ulpdu = send(1, 0, true, b"abc");
        ulpdu[0] = ulpdu[0] & 0xfc | version;
        assert_eq!(fault(&mut receiver(), &ulpdu), Fault::UntaggedVersion);
        let mut ulpdu = tagged(WRITE, true, 7, 0, b"abc");
        ulpdu[0] = ulpdu[0] & 0xfc | version;
        assert_eq!(fault(&mut receiver(), &ulpdu), Fault::TaggedVersion);
    }
}

/// Invalid QN (RFC 5041 section 7): Sends have queue 0, Read Requests 1, Terminates 2 (RFC 5040 section 4.1).
#[test]
fn each_opcode_has_its_queue() {
    let terminate = untagged(TERMINATE, true, [0, 2, 1, 0], &[0; 4]);
    for ulpdu in [send(1, 0, true, b"abc"), read_request(1), terminate] {
        for at in 6..10 {
            let mut ulpdu = ulpdu.clone();
            ulpdu[at] ^= 0x10;
            assert_eq!(fault(&mut receiver(), &ulpdu), Fault::QueueNumber);
        }
    }
}

/// Invalid MSN, range is not valid; invalid MO (RFC 5041 section 7).
#[test]
fn each_queue_counts_its_messages_from_one() {
    let terminate = untagged(TERMINATE, true, [0, 2, 1, 0], &[0; 4]);
    for ulpdu in [send(1, 0, true, b"abc"), read_request(1), terminate] {
        for (bytes, expected) in [(10..14, Fault::MsnRange), (14..18, Fault::MessageOffset)] {
            for at in bytes {
                let mut ulpdu = ulpdu.clone();
                ulpdu[at] ^= 0x08;
                assert_eq!(fault(&mut receiver(), &ulpdu), expected);
            }
        }
    }
    let mut receiver = receiver();
    assert!(event_of(&mut receiver, &send(1, 0, true, b"abc"), ROOM).is_ok());
    for msn in [0, 1, 3] {
        assert_eq!(fault(&mut receiver, &send(msn, 0, true, b"abc")), Fault::MsnRange);
    }
    assert!(event_of(&mut receiver, &read_request(1), ROOM).is_ok());
    assert!(event_of(&mut receiver, &send(2, 0, true, b"abc"), ROOM).is_ok());
    assert!(event_of(&mut receiver, &read_request(2), ROOM).is_ok());
}

#[test]
fn a_send_continues_where_its_last_segment_ended() {
    let mut receiver = receiver();
    assert!(event_of(&mut receiver, &send(1, 0, false, b"abcd"), ROOM).is_ok());
    for offset in [0, 3, 5, u32::MAX] {
        assert_eq!(fault(&mut receiver, &send(1, offset, true, b"e")), Fault::MessageOffset);
    }
    assert_eq!(fault(&mut receiver, &send(2, 0, true, b"e")), Fault::MsnRange);
    // Another kind of Send does not continue it.
    let other = untagged(SEND_SE, true, [0, 0, 1, 4], b"e");
    assert_eq!(fault(&mut receiver, &other), Fault::Opcode);
    // A Write may come in between, and a Read Request.
    assert!(event_of(&mut receiver, &tagged(WRITE, true, 7, 0, b"abc"), ROOM).is_ok());
    assert!(event_of(&mut receiver, &read_request(1), ROOM).is_ok());
    let event = event_of(&mut receiver, &send(1, 4, true, b"e"), ROOM);
    assert!(matches!(event, Ok(Event::Send { offset: 4, last: true, .. })), "{event:?}");
}

#[test]
fn each_segment_of_a_send_names_the_same_key() {
    let mut receiver = receiver();
    let first = untagged(SEND_INVALIDATE, false, [5, 0, 1, 0], b"abcd");
    assert!(event_of(&mut receiver, &first, ROOM).is_ok());
    let other = untagged(SEND_INVALIDATE, true, [6, 0, 1, 4], b"e");
    assert_eq!(fault(&mut receiver, &other), Fault::Malformed);
    let last = untagged(SEND_INVALIDATE, true, [5, 0, 1, 4], b"e");
    let event = event_of(&mut receiver, &last, ROOM);
    assert!(matches!(event, Ok(Event::Send { invalidate: Some(5), .. })), "{event:?}");
}

/// Invalid MSN, no buffer available; message too long for the available buffer (RFC 5041 section 7).
#[test]
fn a_send_fits_the_posted_receive() {
    let mut receiver = receiver();
    let first = send(1, 0, false, &[7; 60]);
    assert_eq!(event_of(&mut receiver, &first, None), Err(Fault::NoBuffer));
    assert_eq!(event_of(&mut receiver, &first, Some(59)), Err(Fault::MessageTooLong));
    assert!(event_of(&mut receiver, &first, ROOM).is_ok());
    assert_eq!(fault(&mut receiver, &send(1, 60, true, &[7; 5])), Fault::MessageTooLong);
    assert!(event_of(&mut receiver, &send(1, 60, true, &[7; 4]), ROOM).is_ok());
}

/// TO wrap (RFC 5041 section 7, RFC 5040 section 7).
#[test]
fn offsets_do_not_wrap() {
    let write = |offset| tagged(WRITE, true, 7, offset, b"abc");
    assert!(event_of(&mut receiver(), &write(u64::MAX - 3), ROOM).is_ok());
    assert_eq!(fault(&mut receiver(), &write(u64::MAX - 2)), Fault::TaggedWrap);
    // Sink and source of a Read Request.
    for at in [18 + 4, 18 + 20] {
        let mut ulpdu = read_request(1);
        ulpdu[at..at + 8].copy_from_slice(&(u64::MAX - 15).to_be_bytes());
        assert_eq!(fault(&mut receiver(), &ulpdu), Fault::ReadWrap);
        ulpdu[at..at + 8].copy_from_slice(&(u64::MAX - 16).to_be_bytes());
        assert!(event_of(&mut receiver(), &ulpdu, ROOM).is_ok());
    }
}

#[test]
fn read_requests_are_whole_and_no_more_than_ird() {
    let mut receiver = receiver();
    let good = read_request(1);
    assert_eq!(fault(&mut receiver, &good[..good.len() - 1]), Fault::Malformed);
    assert_eq!(fault(&mut receiver, &good[..18]), Fault::Malformed);
    assert_eq!(fault(&mut receiver, &[&good[..], &[0]].concat()), Fault::MessageTooLong);
    let unfinished = [&[0x01], &good[1..]].concat();
    assert_eq!(fault(&mut receiver, &unfinished), Fault::MessageTooLong);
    for msn in 1..=2 {
        assert!(event_of(&mut receiver, &read_request(msn), None).is_ok());
    }
    assert_eq!(fault(&mut receiver, &read_request(3)), Fault::ReadsExceeded);
    receiver.request_answered();
    assert!(event_of(&mut receiver, &read_request(3), None).is_ok());
    assert_eq!(fault(&mut receiver, &read_request(4)), Fault::ReadsExceeded);
}

#[test]
fn read_responses_answer_outstanding_reads_in_order() {
    let mut receiver = receiver();
    let response =
        |last, stag, offset, payload: &[u8]| tagged(READ_RESPONSE, last, stag, offset, payload);
    assert_eq!(fault(&mut receiver, &response(true, 6, 0, b"")), Fault::Opcode);
    receiver.expect_read(sink(6, 0x100, 8)).unwrap();
    receiver.expect_read(sink(7, 0x200, 0)).unwrap();
    assert!(!receiver.has_read_room());
    assert_eq!(receiver.expect_read(sink(8, 0, 1)), Err(Busy));
    let bad = [
        (response(true, 7, 0x200, b""), Fault::TaggedStag),
        (response(false, 6, 0x0ff, b"abcd"), Fault::TaggedBounds),
        (response(false, 6, 0x104, b"abcd"), Fault::TaggedBounds),
        // Longer than the Read, shorter with its end, and whole without it.
        (response(true, 6, 0x100, b"abcdefghi"), Fault::TaggedBounds),
        (response(true, 6, 0x100, b"abcd"), Fault::TaggedBounds),
        (response(false, 6, 0x100, b"abcdefgh"), Fault::TaggedBounds),
    ];
    for (ulpdu, expected) in &bad {
        assert_eq!(fault(&mut receiver, ulpdu), *expected);
    }
    let part = event_of(&mut receiver, &response(false, 6, 0x100, b"abc"), None).unwrap();
    let whole = sink(6, 0x100, 8);
    let expected =
        |offset, payload, last| Event::ReadResponse { sink: whole, offset, payload, last };
    assert_eq!(part, expected(0, 16..19, false));
    assert_eq!(fault(&mut receiver, &response(true, 6, 0x100, b"abcdefgh")), Fault::TaggedBounds);
    let part = event_of(&mut receiver, &response(true, 6, 0x103, b"defgh"), None).unwrap();
    assert_eq!(part, expected(3, 16..21, true));
    assert!(event_of(&mut receiver, &response(true, 7, 0x200, b""), None).is_ok());
    assert_eq!(fault(&mut receiver, &response(true, 7, 0x200, b"")), Fault::Opcode);
}

#[test]
fn a_side_without_reads_takes_neither_requests_nor_responses() {
    let mut receiver = Receiver::new(&Agreed { ird: 0, ord: 0, ..AGREED }, true);
    assert_eq!(receiver.expect_read(sink(1, 0, 1)), Err(Busy));
    assert_eq!(fault(&mut receiver, &read_request(1)), Fault::ReadsExceeded);
    assert_eq!(fault(&mut receiver, &tagged(READ_RESPONSE, true, 0, 0, b"")), Fault::Opcode);
}

#[test]
fn a_segment_is_as_long_as_its_header() {
    let (untagged, tagged) = (send(1, 0, true, b""), tagged(WRITE, true, 7, 0, b""));
    for ulpdu in [untagged, tagged] {
        for length in 0..ulpdu.len() {
            assert_eq!(fault(&mut receiver(), &ulpdu[..length]), Fault::UlpduLength);
        }
        assert!(event_of(&mut receiver(), &ulpdu, ROOM).is_ok());
    }
    let short = untagged_terminate(3);
    assert_eq!(fault(&mut receiver(), &short), Fault::Malformed);
}

fn untagged_terminate(bytes: usize) -> Vec<u8> {
    untagged(TERMINATE, true, [0, 2, 1, 0], &vec![0; bytes])
}

/// The CRC covers every bit behind the length (RFC 5044 section 4.4).
#[test]
fn a_wrong_bit_is_a_wrong_crc() {
    let good = fpdu_of(&send(1, 0, true, b"abcde"));
    for bit in 16..good.len() * 8 {
        let mut fpdu = good.clone();
        fpdu[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(receiver().next(whole(&fpdu), ROOM), Err(Fault::Crc));
    }
}

/// CRCs are not checked where neither end asked for them (RFC 5044 section 7.1.1).
#[test]
fn a_crc_that_was_not_agreed_is_not_checked() {
    let mut receiver = Receiver::new(&Agreed { crc: false, ..AGREED }, true);
    let mut fpdu = fpdu_of(&send(1, 0, true, b"abcde"));
    for at in fpdu.len() - 7..fpdu.len() {
        fpdu[at] ^= 0x55;
    }
    assert!(matches!(receiver.next(whole(&fpdu), ROOM), Ok(Parsed::Done(_))));
}

/// Cut at every place, wrapped at every place.
#[test]
fn an_fpdu_is_taken_when_its_last_byte_is_there() {
    let fpdu = fpdu_of(&send(1, 0, true, b"abcde"));
    for cut in 0..=fpdu.len() {
        for wrap in 0..=cut {
            let mut receiver = receiver();
            let readable = Readable::new(&fpdu[..wrap], &fpdu[wrap..cut]);
            match receiver.next(readable, ROOM).unwrap() {
                Parsed::Need(bytes) => {
                    assert!(bytes > cut && bytes <= fpdu.len());
                    assert!(!receiver.has_received());
                }
                Parsed::Done(arrival) => {
                    assert_eq!((cut, arrival.bytes), (fpdu.len(), fpdu.len()));
                    assert!(receiver.has_received());
                    let Event::Send { payload, .. } = arrival.event else {
                        panic!("{:?}", arrival.event);
                    };
                    let mut bytes = [0; 5];
                    assert_eq!(readable.range(payload).copy_to(&mut bytes), 5);
                    assert_eq!(&bytes, b"abcde");
                }
            }
        }
    }
}

/// The longest FPDU: a length field of ones.
#[test]
fn the_ring_holds_the_longest_fpdu() {
    let fpdu = fpdu_of(&tagged(WRITE, true, 7, 0, &[3; 65_535 - 14]));
    assert_eq!(fpdu.len(), FPDU_BYTES_MAX);
    let need = receiver().next(whole(&fpdu[..2]), ROOM);
    assert_eq!(need, Ok(Parsed::Need(FPDU_BYTES_MAX)));
    assert!(matches!(receiver().next(whole(&fpdu), ROOM), Ok(Parsed::Done(_))));
}

/// RFC 6581, flag B: the first FPDU may be one of no bytes. It takes no receive, and only once.
#[test]
fn a_first_fpdu_of_no_bytes_is_no_message() {
    let agreed = Agreed { rtr: Some(Rtr::Send), ..AGREED };
    let mut receiver = Receiver::new(&agreed, true);
    assert_eq!(event_of(&mut receiver, &[], None), Ok(Event::Rtr));
    assert!(receiver.has_received());
    assert_eq!(fault(&mut receiver, &[]), Fault::UlpduLength);
    assert!(event_of(&mut receiver, &send(1, 0, true, b"abc"), ROOM).is_ok());

    let mut receiver = Receiver::new(&agreed, true);
    assert_eq!(event_of(&mut receiver, &send(1, 0, true, b""), None), Ok(Event::Rtr));
    let event = event_of(&mut receiver, &send(2, 0, true, b""), ROOM);
    assert!(matches!(event, Ok(Event::Send { msn: 2, .. })), "{event:?}");

    // A Send that invalidates a key is a message.
    let mut receiver = Receiver::new(&agreed, true);
    let invalidate = untagged(SEND_INVALIDATE, true, [5, 0, 1, 0], &[]);
    let event = event_of(&mut receiver, &invalidate, ROOM);
    assert!(matches!(event, Ok(Event::Send { invalidate: Some(5), .. })), "{event:?}");

    // Not where it was not agreed, and not from the side that was connected to.
    for (agreed, accepted) in [(AGREED, true), (agreed, false)] {
        let mut receiver = Receiver::new(&agreed, accepted);
        assert_eq!(fault(&mut receiver, &[]), Fault::UlpduLength);
        let event = event_of(&mut receiver, &send(1, 0, true, b""), ROOM);
        assert!(matches!(event, Ok(Event::Send { msn: 1, .. })), "{event:?}");
    }
}

/// A message that comes first takes the place of the agreed FPDU.
#[test]
fn any_first_fpdu_lets_this_side_send() {
    let mut receiver = Receiver::new(&Agreed { rtr: Some(Rtr::Send), ..AGREED }, true);
    assert!(!receiver.has_received());
    assert!(event_of(&mut receiver, &send(1, 0, true, b"abc"), ROOM).is_ok());
    assert!(receiver.has_received());
    let event = event_of(&mut receiver, &send(2, 0, true, b""), ROOM);
    assert!(matches!(event, Ok(Event::Send { msn: 2, .. })), "{event:?}");
}
