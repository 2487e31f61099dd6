//! Messages of InfiniBand's connection manager (Architecture Specification, volume 1, chapter 12),
//! with the private data that rdma_cm puts into them (annex A11): from these a reader learns which
//! queue pairs talk with each other.

use super::frame::{End, Ends};

pub(super) type Message = [u8; 256];

const HEADER_BYTES: usize = 24;

/// Service of RPC-over-RDMA at its well-known port (RFC 5666 section 10), as rdma_cm codes a port
/// of TCP's space.
const SERVICE: u64 = 0x0000_0000_0106_0000 | 20049;

const REQUEST: u16 = 0x10;
const REPLY: u16 = 0x13;
const READY_TO_USE: u16 = 0x14;
const DISCONNECT_REQUEST: u16 = 0x15;

/// Reads that a side may have in flight: the field's largest value, as none is refused here.
const READS_MAX: u8 = 255;

pub(super) fn opening(
    ends: &Ends,
    asked: bool,
    asking_private_data: &[u8],
    answering_private_data: &[u8],
) -> [Message; 3] {
    let (client, server) = ends.in_direction(asked);
    [
        request(ends, (client, server), asking_private_data),
        reply(ends, (client, server), answering_private_data),
        with_ids(ends, READY_TO_USE, (client, server)),
    ]
}

/// This side ends the connection, or hears that it has ended.
pub(super) fn disconnect_request(ends: &Ends) -> Message {
    let mut message = with_ids(ends, DISCONNECT_REQUEST, (ends.local, ends.peer));
    put(&mut message, 8, &low_24(ends.peer.queue_pair));
    message
}

fn request(ends: &Ends, (client, server): (End, End), private_data: &[u8]) -> Message {
    const RELIABLE_CONNECTION: u8 = 0;
    const PATH_MTU_4096: u8 = 5 << 4;
    const RETRIES: u8 = 7;
    const IP_VERSION_4: u8 = 4 << 4;
    let mut message = header(ends, REQUEST);
    put(&mut message, 0, &id(client));
    put(&mut message, 8, &SERVICE.to_be_bytes());
    put(&mut message, 32, &low_24(client.queue_pair));
    put(&mut message, 35, &[READS_MAX]);
    put(&mut message, 39, &[READS_MAX]);
    put(&mut message, 43, &[RELIABLE_CONNECTION]);
    put(&mut message, 44, &low_24(client.first_sequence));
    put(&mut message, 47, &[RETRIES]);
    put(&mut message, 48, &[0xff, 0xff]);
    put(&mut message, 50, &[PATH_MTU_4096 | RETRIES]);
    put(&mut message, 56, &global_id(client));
    put(&mut message, 72, &global_id(server));
    // The private data of rdma_cm: version 0.0, version of IP, port and addresses, then the
    // application's.
    put(&mut message, 141, &[IP_VERSION_4]);
    put(&mut message, 142, &(ends.number as u16).to_be_bytes());
    put(&mut message, 156, &client.address);
    put(&mut message, 172, &server.address);
    put(&mut message, 176, private_data);
    message
}

fn reply(ends: &Ends, (client, server): (End, End), private_data: &[u8]) -> Message {
    const RETRIES: u8 = 7 << 5;
    let mut message = with_ids(ends, REPLY, (server, client));
    put(&mut message, 12, &low_24(server.queue_pair));
    put(&mut message, 20, &low_24(server.first_sequence));
    put(&mut message, 24, &[READS_MAX, READS_MAX]);
    put(&mut message, 27, &[RETRIES]);
    put(&mut message, 36, private_data);
    message
}

fn with_ids(ends: &Ends, attribute: u16, (from, to): (End, End)) -> Message {
    let mut message = header(ends, attribute);
    put(&mut message, 0, &id(from));
    put(&mut message, 4, &id(to));
    message
}

/// The messages of one connection have one transaction.
fn header(ends: &Ends, attribute: u16) -> Message {
    const BASE_VERSION: u8 = 1;
    const COMMUNICATION_MANAGEMENT: u8 = 7;
    const CLASS_VERSION: u8 = 2;
    const METHOD_SEND: u8 = 3;
    let mut message = [0; 256];
    message[..4].copy_from_slice(&[
        BASE_VERSION,
        COMMUNICATION_MANAGEMENT,
        CLASS_VERSION,
        METHOD_SEND,
    ]);
    message[8..16].copy_from_slice(&u64::from(ends.number).to_be_bytes());
    message[16..18].copy_from_slice(&attribute.to_be_bytes());
    message
}

fn put(message: &mut Message, at: usize, field: &[u8]) {
    message[HEADER_BYTES + at..][..field.len()].copy_from_slice(field);
}

fn id(end: End) -> [u8; 4] {
    end.queue_pair.to_be_bytes()
}

fn low_24(value: u32) -> [u8; 3] {
    let [_, bytes @ ..] = value.to_be_bytes();
    bytes
}

fn global_id(end: End) -> [u8; 16] {
    let [a, b, c, d] = end.address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}
