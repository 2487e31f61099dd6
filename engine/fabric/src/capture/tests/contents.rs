//! Contents of the file compared with the traffic on the fabric.

use super::super::CaptureSink;
use super::super::frame::invariant_crc;
use super::reader::{Capture, Packet, icrc_of};
use super::{CapturedPair, Memory, captured};
use crate::tests::conformance::{Event, bytes_of, expose, pattern, read, write};
use crate::{Access, Fabric, SendWr, WrId};
use std::time::{SystemTime, UNIX_EPOCH};

// Operation codes of reliable connections (InfiniBand Architecture Specification, volume 1, 9.2.1).
const SEND_ONLY: u8 = 0x04;
const SEND_ONLY_INVALIDATE: u8 = 0x17;
const WRITE: [u8; 3] = [0x06, 0x07, 0x08];
const WRITE_ONLY: u8 = 0x0a;
const READ_REQUEST: u8 = 0x0c;
const READ_RESPONSE: [u8; 3] = [0x0d, 0x0e, 0x0f];
const SEND_FIRST: u8 = 0x00;
const SEND_LAST: u8 = 0x02;
const DATAGRAM: u8 = 0x64;

/// Does something with a pair, and reads the capture of it.
fn capture_of(
    sink: impl FnOnce(CaptureSink) -> CaptureSink,
    run: impl FnOnce(&mut CapturedPair),
) -> Capture {
    let memory = Memory::default();
    let mut pair = captured(sink(CaptureSink::new(memory.clone())));
    run(&mut pair);
    drop(pair);
    memory.read()
}

/// The packets of one core, without those of connection management.
fn transport(capture: &Capture, interface: u32) -> Vec<&Packet> {
    let of_core = capture.packets.iter().filter(|packet| packet.interface == interface);
    of_core.filter(|packet| packet.frame.opcode != DATAGRAM).collect()
}

/// Attribute and data of each message of connection management of one core.
fn management(capture: &Capture, interface: u32) -> Vec<(bool, u16, &[u8])> {
    let of_core = capture.packets.iter().filter(|packet| packet.interface == interface);
    let datagrams = of_core.filter(|packet| packet.frame.opcode == DATAGRAM);
    let message = |packet: &Packet| {
        assert_eq!((packet.frame.queue_pair, packet.frame.payload.len()), (1, 256));
        u16::from_be_bytes([packet.frame.payload[16], packet.frame.payload[17]])
    };
    datagrams.map(|p| (p.outbound, message(p), &p.frame.payload[24..])).collect()
}

fn opcodes(packets: &[&Packet]) -> Vec<u8> {
    packets.iter().map(|packet| packet.frame.opcode).collect()
}

fn payload(packets: &[&Packet]) -> Vec<u8> {
    packets.iter().flat_map(|packet| packet.frame.payload.clone()).collect()
}

fn exchange(pair: &mut CapturedPair, message: &[u8]) {
    pair.far.post_recvs(pair.at_far, 1);
    pair.near.send(pair.at_near, message);
    assert_eq!(pair.next_far(pair.at_far), Event::Message(message.to_vec(), None));
}

#[test]
fn the_file_says_what_wrote_it_and_names_its_cores() {
    let capture = capture_of(|sink| sink, |pair| exchange(pair, b"hello"));
    assert!(capture.section[&4].starts_with(b"spinrpc "));
    let names: Vec<_> = capture.interfaces.iter().map(|options| options[&2].as_slice()).collect();
    assert_eq!(names, [b"core 0", b"core 1"]);
    for options in &capture.interfaces {
        assert_eq!(options[&9], [9], "nanoseconds");
    }
    for core in 0..2 {
        let written = capture.packets.iter().filter(|packet| packet.interface == core).count();
        assert!(capture.statistics.contains(&(core, written as u64, 0)), "of core {core}");
    }
}

#[test]
fn time_stamps_are_those_of_the_day_and_in_order() {
    let now_ns = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = now_ns();
    let capture = capture_of(|sink| sink, |pair| (0..20).for_each(|_| exchange(pair, b"tick")));
    let after = now_ns();
    let times: Vec<u64> = capture.packets.iter().map(|packet| packet.time_ns).collect();
    // The clock of the cores is calibrated to a few parts in a million; both are read in a hurry.
    const SLACK_NS: u64 = 1_000_000;
    assert!(before - SLACK_NS <= times[0] && *times.last().unwrap() <= after + SLACK_NS);
    for core in 0..2 {
        let times: Vec<_> = transport(&capture, core).iter().map(|p| p.time_ns).collect();
        assert!(times.is_sorted() && times[0] < times[times.len() - 1], "{times:?}");
    }
}

/// A message is there twice: as sent by one core and as received by the other.
#[test]
fn a_message_is_a_send_of_its_bytes_at_both_ends() {
    for length in [0, 1, 2, 3, 4, 63, 1000] {
        let message = pattern(length, 3);
        let capture = capture_of(|sink| sink, |pair| exchange(pair, &message));
        for (core, outbound) in [(0, true), (1, false)] {
            let packets = transport(&capture, core);
            assert_eq!(opcodes(&packets), [SEND_ONLY], "{length} bytes");
            assert_eq!((packets[0].outbound, payload(&packets)), (outbound, message.clone()));
        }
    }
}

#[test]
fn a_message_beyond_the_path_mtu_is_several_packets_in_sequence() {
    let message = pattern(2 * 4096 - 401, 1);
    let capture = capture_of(|sink| sink.snap_bytes(0), |pair| exchange(pair, &message));
    for core in 0..2 {
        let packets = transport(&capture, core);
        assert_eq!(opcodes(&packets), [SEND_FIRST, SEND_LAST]);
        assert_eq!(payload(&packets), message, "messages are never cut");
        let first = packets[0].frame.sequence;
        let sequence: Vec<_> = packets.iter().map(|packet| packet.frame.sequence - first).collect();
        assert_eq!(sequence, [0, 1]);
    }
}

#[test]
fn a_send_with_invalidate_names_the_key_at_both_ends() {
    let mut handle = 0;
    let capture = capture_of(
        |sink| sink,
        |pair| {
            let (_bulk, slice) = expose(pair, &[1; 64], Access::RemoteRead);
            handle = slice.handle;
            let message = pair.near.message(b"over");
            pair.near.post(pair.at_near, SendWr::Send { message, invalidate: Some(handle) });
            pair.far.post_recvs(pair.at_far, 1);
            let got = pair.next_far(pair.at_far);
            assert_eq!(got, Event::Message(b"over".to_vec(), Some(handle)));
        },
    );
    for core in 0..2 {
        let packets = transport(&capture, core);
        assert_eq!(opcodes(&packets), [SEND_ONLY_INVALIDATE]);
        assert_eq!(packets[0].frame.ieth, Some(handle));
        assert_eq!(packets[0].frame.payload, b"over");
    }
}

/// A Write of one packet and one of three, then a message. Expect each with its remote memory, and
/// nothing of them at the side whose memory it is.
#[test]
fn a_write_has_its_remote_memory_and_its_bytes_at_the_side_that_makes_it() {
    let mut slices = Vec::new();
    let (short, long) = (pattern(100, 5), pattern(10_000, 6));
    let capture = capture_of(
        |sink| sink,
        |pair| {
            for bytes in [&short, &long] {
                let (_bulk, slice) = expose(pair, &vec![0; bytes.len()], Access::RemoteWrite);
                write(pair, bytes, slice);
                slices.push((slice.offset, slice.handle, slice.length));
            }
            exchange(pair, b"done");
        },
    );
    let near = transport(&capture, 0);
    let [first, middle, last] = WRITE;
    assert_eq!(opcodes(&near), [WRITE_ONLY, first, middle, last, SEND_ONLY]);
    assert_eq!(near[0].frame.reth, Some(slices[0]));
    assert_eq!(near[0].frame.payload, short);
    assert_eq!(near[1].frame.reth, Some(slices[1]));
    assert_eq!(payload(&near[1..4]), long);
    let sequence: Vec<_> = near.iter().map(|packet| packet.frame.sequence).collect();
    assert_eq!(sequence, [0, 1, 2, 3, 4]);
    assert_eq!(opcodes(&transport(&capture, 1)), [SEND_ONLY]);
}

/// Two Reads in flight at once. Expect a request and the bytes for each, the response in the
/// sequence numbers that its request began.
#[test]
fn a_read_has_its_request_and_what_it_brought() {
    let data = [pattern(10_000, 7), pattern(4097, 8)];
    let mut slices = Vec::new();
    let capture = capture_of(
        |sink| sink,
        |pair| {
            let exposed = data.each_ref().map(|bytes| expose(pair, bytes, Access::RemoteRead));
            let targets = [0, 1].map(|at| read(pair, at as u64, exposed[at].1));
            for (at, target) in targets.iter().enumerate() {
                assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(at as u64), Ok(())));
                assert_eq!(bytes_of(target), data[at], "the memory is home when the Read is over");
            }
            slices.extend(exposed.iter().map(|(_, s)| (s.offset, s.handle, s.length)));
        },
    );
    let packets = transport(&capture, 0);
    let [first, middle, last] = READ_RESPONSE;
    let requests = [READ_REQUEST, READ_REQUEST];
    assert_eq!(opcodes(&packets), [&requests[..], &[first, middle, last], &[first, last]].concat());
    for at in 0..2 {
        assert_eq!(packets[at].frame.reth, Some(slices[at]));
        assert!(packets[at].outbound && packets[at].frame.payload.is_empty());
    }
    assert!(packets[2..].iter().all(|packet| !packet.outbound));
    assert_eq!(payload(&packets[2..5]), data[0]);
    assert_eq!(payload(&packets[5..]), data[1]);
    let sequence: Vec<_> = packets.iter().map(|packet| packet.frame.sequence).collect();
    assert_eq!(sequence, [0, 3, 0, 1, 2, 3, 4]);
}

/// Expect the packets within the first bytes of a transfer, the others only in its numbers.
#[test]
fn a_transfer_beyond_the_snap_length_is_left_out_from_there_on() {
    let capture = capture_of(
        |sink| sink.snap_bytes(5000),
        |pair| {
            let (_bulk, slice) = expose(pair, &[0; 20_000], Access::RemoteWrite);
            write(pair, &pattern(20_000, 9), slice);
            exchange(pair, b"done");
        },
    );
    let packets = transport(&capture, 0);
    assert_eq!(opcodes(&packets), [WRITE[0], WRITE[1], SEND_ONLY]);
    assert_eq!(packets[0].frame.reth.map(|(.., length)| length), Some(20_000));
    assert_eq!(payload(&packets[..2]), pattern(20_000, 9)[..5000]);
    assert_eq!(packets[2].frame.sequence, 5, "five packets were sent before it");
}

/// Expect request, reply and ready-to-use at each end, with the queue pairs and private data of
/// both, and a disconnect request when the connection is down.
#[test]
fn a_connection_begins_and_ends_with_messages_of_connection_management() {
    let capture = capture_of(
        |sink| sink,
        |pair| {
            exchange(pair, b"hello");
            pair.near.fabric.close(pair.at_near);
            pair.expect_down();
        },
    );
    for (core, asked) in [(0, true), (1, false)] {
        let messages = management(&capture, core);
        let seen: Vec<_> = messages.iter().map(|(out, attribute, _)| (*out, *attribute)).collect();
        assert_eq!(seen, [(asked, 0x10), (!asked, 0x13), (asked, 0x14), (true, 0x15)]);
        let [request, reply] = [messages[0].2, messages[1].2];
        assert_eq!(request[8..16], [0, 0, 0, 0, 1, 6, 0x4e, 0x51], "TCP's space, port 20049");
        assert!(request[176..].starts_with(b"from the connector\0"), "rdma_cm's private data");
        assert!(reply[36..].starts_with(b"from the listener\0"));
        let asker = u32::from_be_bytes([0, request[32], request[33], request[34]]);
        let answerer = u32::from_be_bytes([0, reply[12], reply[13], reply[14]]);
        let sent = transport(&capture, core)[0];
        assert_eq!(sent.frame.queue_pair, answerer, "the message went to the listener's pair");
        assert_ne!(asker, answerer);
        assert_eq!(sent.frame.from, request[56 + 12..72], "from the address of the request");
        assert_eq!(sent.frame.to, request[72 + 12..88]);
    }
}

#[test]
fn connections_have_numbers_and_addresses_of_their_own() {
    let capture = capture_of(
        |sink| sink,
        |pair| {
            for _ in 0..3 {
                (pair.at_near, pair.at_far) = pair.connect();
                exchange(pair, b"hello");
            }
        },
    );
    let mut names: Vec<_> = [0, 1]
        .iter()
        .flat_map(|core| transport(&capture, *core))
        .map(|packet| (packet.frame.queue_pair, packet.frame.from, packet.frame.to))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 6, "{names:?}");
}

/// A congestion notification that a ConnectX-4 Lx sent, as published; its last four bytes were
/// computed by the adapter.
#[test]
fn the_invariant_crc_is_that_of_an_adapter() {
    const PACKET: [u8; 56] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11,
        0x01, 0x0a, 0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00,
        0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0,
    ];
    assert_eq!(invariant_crc(&PACKET), [0x82, 0xfd, 0x00, 0x2a]);
    for length in 36..PACKET.len() {
        assert_eq!(invariant_crc(&PACKET[..length]), icrc_of(&PACKET[..length]), "{length} bytes");
    }
}
