//! Tests in the words of the RFCs. Vectors and headers are written by hand here, and CRCs computed bit by bit, so that a
//! mistake of the module does not hide in its tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod pair;
mod receive;
mod send;
mod start;
mod terminate;

use super::*;

/// Control bytes of RDMAP, version 1 (RFC 5040 section 4.1).
const WRITE: u8 = 0x40;
const READ_REQUEST: u8 = 0x41;
const READ_RESPONSE: u8 = 0x42;
const SEND: u8 = 0x43;
const SEND_INVALIDATE: u8 = 0x44;
const SEND_SE: u8 = 0x45;
const SEND_SE_INVALIDATE: u8 = 0x46;
const TERMINATE: u8 = 0x47;

const AGREED: Agreed = Agreed { crc: true, ird: 2, ord: 2, rtr: None };

/// CRC32c of RFC 3385, a bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, byte)
}

/// ULPDU_Length, ULPDU, PAD, CRC (RFC 5044 section 4.1).
fn fpdu_of(ulpdu: &[u8]) -> Vec<u8> {
    let mut fpdu = [&(ulpdu.len() as u16).to_be_bytes()[..], ulpdu].concat();
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = crc32c(&fpdu);
    [fpdu, crc.to_le_bytes().to_vec()].concat()
}

/// T, L, version 1; STag, TO (RFC 5041 section 4.2).
fn tagged(control: u8, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let ddp = if last { 0xc1 } else { 0x81 };
    [&[ddp, control], &stag.to_be_bytes()[..], &offset.to_be_bytes(), payload].concat()
}

/// L, version 1; the reserved word, QN, MSN, MO (RFC 5041 section 4.3).
fn untagged(control: u8, last: bool, words: [u32; 4], payload: &[u8]) -> Vec<u8> {
    let ddp = if last { 0x41 } else { 0x01 };
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    [&[ddp, control], &words[..], payload].concat()
}

/// A Read Request for 16 bytes from offset 0x30 of key 9, to offset 0x20 of key 8.
fn read_request(msn: u32) -> Vec<u8> {
    let mut body = [0; 28];
    body[3] = 8;
    body[11] = 0x20;
    body[15] = 16;
    body[19] = 9;
    body[27] = 0x30;
    untagged(READ_REQUEST, true, [0, 1, msn, 0], &body)
}

fn whole(bytes: &[u8]) -> Readable<'_> {
    Readable::new(bytes, &[])
}

/// The event of one FPDU.
fn event_of(receiver: &mut Receiver, ulpdu: &[u8], room: Option<usize>) -> Result<Event, Fault> {
    let fpdu = fpdu_of(ulpdu);
    match receiver.next(whole(&fpdu), room)? {
        Parsed::Done(arrival) => {
            assert_eq!(arrival.bytes, fpdu.len());
            Ok(arrival.event)
        }
        Parsed::Need(bytes) => panic!("the FPDU is whole, and {bytes} bytes are needed"),
    }
}

/// The header of the next segment.
fn next(sender: &mut Sender) -> Option<(Segment, Vec<u8>)> {
    let mut header = [0xaa; HEADER_BYTES_MAX];
    let segment = sender.next(&mut header)?;
    Some((segment, header[..segment.header_bytes].to_vec()))
}
