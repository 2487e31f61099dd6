//! Terminate messages: reason, and the header that it is about (RFC 5040 section 4.8).

use super::*;

fn about(fault: Fault, ulpdu: &[u8]) -> Vec<u8> {
    let fpdu = fpdu_of(ulpdu);
    let (first, second) = fpdu.split_at(7);
    Terminate::about(fault, Readable::new(first, second)).body().to_vec()
}

#[test]
fn each_fault_has_the_code_of_its_layer() {
    let codes = [
        (Fault::RdmapCatastrophic, (0, 0, 0x00)),
        (Fault::ReadStag, (0, 1, 0x00)),
        (Fault::ReadBounds, (0, 1, 0x01)),
        (Fault::AccessRights, (0, 1, 0x02)),
        (Fault::ReadWrap, (0, 1, 0x04)),
        (Fault::CannotInvalidate, (0, 1, 0x09)),
        (Fault::RdmapVersion, (0, 2, 0x05)),
        (Fault::Opcode, (0, 2, 0x06)),
        (Fault::ReadsExceeded, (0, 2, 0x07)),
        (Fault::Malformed, (0, 2, 0xff)),
        (Fault::DdpCatastrophic, (1, 0, 0x00)),
        (Fault::TaggedStag, (1, 1, 0x00)),
        (Fault::TaggedBounds, (1, 1, 0x01)),
        (Fault::TaggedWrap, (1, 1, 0x03)),
        (Fault::TaggedVersion, (1, 1, 0x04)),
        (Fault::QueueNumber, (1, 2, 0x01)),
        (Fault::NoBuffer, (1, 2, 0x02)),
        (Fault::MsnRange, (1, 2, 0x03)),
        (Fault::MessageOffset, (1, 2, 0x04)),
        (Fault::MessageTooLong, (1, 2, 0x05)),
        (Fault::UntaggedVersion, (1, 2, 0x06)),
        (Fault::Crc, (2, 0, 0x02)),
        (Fault::UlpduLength, (2, 0, 0x03)),
    ];
    for (fault, (layer, kind, code)) in codes {
        let expected = TerminateCode { layer, kind, code };
        assert_eq!(fault.code(), expected);
        assert_eq!(expected.is_access_error(), layer < 2 && kind == 1);
        // Layer and EType of 4 bits each, Error Code of 8 (RFC 5040 section 4.8).
        let body = Terminate::bare(fault);
        assert_eq!(body.body(), [layer << 4 | kind, code, 0, 0]);
    }
}

#[test]
fn a_tagged_header_is_copied_with_the_length_of_its_segment() {
    let ulpdu = tagged(WRITE, true, 7, 0x1122, b"abc");
    let expected = [&[0x11, 1, 0xc0, 0, 0, 17], &ulpdu[..14]].concat();
    assert_eq!(about(Fault::TaggedBounds, &ulpdu), expected);
}

#[test]
fn an_untagged_header_is_copied_with_the_length_of_its_segment() {
    let ulpdu = untagged(SEND_INVALIDATE, true, [5, 0, 1, 0], b"abc");
    let expected = [&[0x12, 5, 0xc0, 0, 0, 21], &ulpdu[..18]].concat();
    assert_eq!(about(Fault::MessageTooLong, &ulpdu), expected);
    let expected = [&[0x01, 9, 0xc0, 0, 0, 21], &ulpdu[..18]].concat();
    assert_eq!(about(Fault::CannotInvalidate, &ulpdu), expected);
}

#[test]
fn a_read_request_is_copied_whole_at_once_or_later() {
    let ulpdu = read_request(3);
    let expected = [&[0x01, 2, 0xe0, 0, 0, 46], &ulpdu[..]].concat();
    assert_eq!(about(Fault::AccessRights, &ulpdu), expected);
    let mut receiver = Receiver::new(&AGREED, true);
    event_of(&mut receiver, &read_request(1), None).unwrap();
    let Ok(Event::ReadRequest(request)) = event_of(&mut receiver, &read_request(2), None) else {
        panic!("not a Read Request");
    };
    let request = ReadRequest { msn: 3, ..request };
    assert_eq!(Terminate::about_request(Fault::AccessRights, &request).body(), expected);
}

#[test]
fn a_header_of_unknown_layout_is_left_out() {
    let ulpdu = tagged(0x4f, true, 7, 0, &[]);
    assert_eq!(about(Fault::Opcode, &ulpdu), [0x02, 6, 0, 0]);
    assert_eq!(about(Fault::RdmapVersion, &ulpdu), [0x02, 5, 0, 0]);
    let ulpdu = [&[0xc2], &ulpdu[1..]].concat();
    assert_eq!(about(Fault::TaggedVersion, &ulpdu), [0x11, 4, 0, 0]);
    assert_eq!(about(Fault::UlpduLength, &[1]), [0x20, 3, 0, 0]);
    // A tagged segment with the opcode of a Read Request has no such header behind it.
    let ulpdu = tagged(READ_REQUEST, true, 7, 0, &[1; 40]);
    assert_eq!(about(Fault::ReadBounds, &ulpdu).len(), 6 + 14);
}

#[test]
fn the_reason_of_the_peer_is_told_with_and_without_a_header() {
    for header in [0, 16, 20, 48] {
        let body = [&[0x12, 5, 0xc0, 0][..], &vec![9; header]].concat();
        let ulpdu = untagged(TERMINATE, true, [0, 2, 1, 0], &body);
        let event = event_of(&mut Receiver::new(&AGREED, true), &ulpdu, None);
        let code = TerminateCode { layer: 1, kind: 2, code: 5 };
        assert_eq!(event, Ok(Event::Terminate(code)));
    }
}
