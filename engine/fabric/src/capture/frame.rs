//! Frames of RoCE version 2: InfiniBand's transport in UDP, IP and Ethernet (InfiniBand Architecture
//! Specification, volume 1, chapter 9, and its annex A17).

use super::management::Message;
use super::record::{Kind, Record};
use super::wire::{FIRST_RECEIVED, FIRST_SENT};
use crc32fast::Hasher;

const ETHERNET_IPV4: [u8; 2] = [0x08, 0x00];
const IP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const ROCE_PORT: u16 = 4791;
/// UDP's source is free from here on, one per connection.
const SOURCE_PORT: u16 = 0xc000;
const ICRC_BYTES: usize = 4;

/// An Unreliable Datagram in one packet, as connection management uses it.
const DATAGRAM: Kind = Kind(0x64);
/// Queue pair of connection management, and its well-known key.
const MANAGEMENT_PAIR: u32 = 1;
const MANAGEMENT_KEY: u32 = 0x8001_0000;
const FIRST_PAIR: u32 = 2;

/// Flags of the base transport header: the path is the one it began with.
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const DEFAULT_PARTITION: u16 = 0xffff;
const ACKNOWLEDGE: u32 = 1 << 31;
/// Acknowledgement without a limit of credits.
const ACKNOWLEDGED: u32 = 0x1f00_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) address: [u8; 4],
    pub(super) queue_pair: u32,
    pub(super) first_sequence: u32,
}

/// Names of a connection in the file. All of them are made up, as a fabric need not have any: a
/// loopback address for each core and for each of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) local: End,
    pub(super) peer: End,
    pub(super) number: u32,
}

impl Ends {
    pub(super) fn of(core: usize, number: u32) -> Self {
        let [_, _, high, low] = (core as u32 + 1).to_be_bytes();
        let [_, a, b, c] = number.to_be_bytes();
        let queue_pair = FIRST_PAIR + 2 * (number & 0x3f_ffff);
        let local = End { address: [127, 0, high, low], queue_pair, first_sequence: FIRST_SENT };
        let peer = End {
            address: [127, a | 0x80, b, c],
            queue_pair: queue_pair + 1,
            first_sequence: FIRST_RECEIVED,
        };
        Self { local, peer, number }
    }

    pub(super) fn in_direction(&self, outbound: bool) -> (End, End) {
        if outbound { (self.local, self.peer) } else { (self.peer, self.local) }
    }
}

pub(super) fn transport(out: &mut Vec<u8>, ends: &Ends, record: &Record, payload: &[u8]) {
    let kind = record.kind;
    let (_, to) = ends.in_direction(record.outbound);
    frame(out, ends, record.outbound, |out| {
        let asked = if kind.asks_acknowledgement() { ACKNOWLEDGE } else { 0 };
        base_header(out, kind, (to.queue_pair, asked | record.sequence), payload.len());
        if kind.has_remote() {
            out.extend(record.remote.offset.to_be_bytes());
            out.extend(record.remote.handle.to_be_bytes());
            out.extend(record.remote.length.to_be_bytes());
        }
        if kind.has_acknowledgement() {
            out.extend(ACKNOWLEDGED.to_be_bytes());
        }
        if kind.has_invalidated_key() {
            out.extend(record.remote.handle.to_be_bytes());
        }
        padded(out, payload);
    });
}

pub(super) fn management(out: &mut Vec<u8>, ends: &Ends, outbound: bool, message: &Message) {
    frame(out, ends, outbound, |out| {
        base_header(out, DATAGRAM, (MANAGEMENT_PAIR, 0), message.len());
        out.extend(MANAGEMENT_KEY.to_be_bytes());
        out.extend(MANAGEMENT_PAIR.to_be_bytes());
        padded(out, message);
    });
}

fn base_header(out: &mut Vec<u8>, kind: Kind, (to, sequence): (u32, u32), payload_bytes: usize) {
    let pad = payload_bytes.next_multiple_of(4) - payload_bytes;
    out.extend([kind.0, MIGRATED | (pad as u8) << PAD_SHIFT]);
    out.extend(DEFAULT_PARTITION.to_be_bytes());
    out.extend(to.to_be_bytes());
    out.extend(sequence.to_be_bytes());
}

pub(super) fn padded(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend(payload);
    out.extend(&[0; 3][..payload.len().next_multiple_of(4) - payload.len()]);
}

fn frame(out: &mut Vec<u8>, ends: &Ends, outbound: bool, body: impl FnOnce(&mut Vec<u8>)) {
    let (from, to) = ends.in_direction(outbound);
    for end in [to, from] {
        // A locally administered address.
        out.extend([0x02, 0]);
        out.extend(end.address);
    }
    out.extend(ETHERNET_IPV4);
    let ip_at = out.len();
    out.extend([0; IP_BYTES + UDP_BYTES]);
    body(out);
    let ip_bytes = (out.len() - ip_at + ICRC_BYTES) as u16;
    let (ip, rest) = out[ip_at..].split_at_mut(IP_BYTES);
    ip_header(ip, ip_bytes, (from, to));
    udp_header(rest, ip_bytes - IP_BYTES as u16, ends.number);
    let icrc = invariant_crc(&out[ip_at..]);
    out.extend(icrc);
}

fn ip_header(header: &mut [u8], total_bytes: u16, (from, to): (End, End)) {
    const VERSION_AND_WORDS: u8 = 0x45;
    const DO_NOT_FRAGMENT: u8 = 0x40;
    const HOPS: u8 = 64;
    const UDP: u8 = 17;
    header[0] = VERSION_AND_WORDS;
    header[2..4].copy_from_slice(&total_bytes.to_be_bytes());
    header[6] = DO_NOT_FRAGMENT;
    header[8] = HOPS;
    header[9] = UDP;
    header[12..16].copy_from_slice(&from.address);
    header[16..20].copy_from_slice(&to.address);
    let sum: u32 = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Without a checksum, which RoCE leaves out.
fn udp_header(header: &mut [u8], total_bytes: u16, number: u32) {
    let source = SOURCE_PORT | number as u16 & !SOURCE_PORT;
    header[0..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    header[4..6].copy_from_slice(&total_bytes.to_be_bytes());
}

/// The CRC over all that no router changes: a field that a router may change counts as ones, and so
/// do eight bytes in the place of InfiniBand's local route header (annex A17.3.3). `packet` starts
/// with the IP header.
pub(super) fn invariant_crc(packet: &[u8]) -> [u8; ICRC_BYTES] {
    const CHANGED_BYTES: usize = IP_BYTES + UDP_BYTES + 8;
    const TYPE_OF_SERVICE: usize = 1;
    const HOPS: usize = 8;
    const IP_CHECKSUM: [usize; 2] = [10, 11];
    const UDP_CHECKSUM: [usize; 2] = [IP_BYTES + 6, IP_BYTES + 7];
    const CONGESTION: usize = IP_BYTES + UDP_BYTES + 4;
    let Some((start, rest)) = packet.split_first_chunk::<CHANGED_BYTES>() else { return [0; 4] };
    let mut start = *start;
    for at in [[TYPE_OF_SERVICE, HOPS], IP_CHECKSUM, UDP_CHECKSUM].as_flattened() {
        start[*at] = 0xff;
    }
    start[CONGESTION] = 0xff;
    let mut crc = Hasher::new();
    for part in [&[0xff; 8], &start[..], rest] {
        crc.update(part);
    }
    crc.finalize().to_le_bytes()
}
