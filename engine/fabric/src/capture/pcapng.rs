//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), in little-endian order.

use super::frame::padded;

/// Frames start with an Ethernet header (LINKTYPE_ETHERNET).
const LINK_TYPE: u16 = 1;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const MAJOR_VERSION: u16 = 1;
const MINOR_VERSION: u16 = 0;
/// A section of a length that is not told.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Frames are not cut by their interface.
const NO_SNAP_LENGTH: u32 = 0;

// Options, numbered separately for each block type.
const END_OF_OPTIONS: u16 = 0;
const SECTION_USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TIME_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_DROP_COUNT: u16 = 4;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;

/// Time stamps count units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

pub(super) fn section_header(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend(MAJOR_VERSION.to_le_bytes());
        out.extend(MINOR_VERSION.to_le_bytes());
        out.extend(UNKNOWN_LENGTH.to_le_bytes());
        option(
            out,
            SECTION_USER_APPLICATION,
            concat!("spinrpc ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// The next interface; the first one has number 0.
pub(super) fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE, |out| {
        out.extend(LINK_TYPE.to_le_bytes());
        out.extend([0; 2]);
        out.extend(NO_SNAP_LENGTH.to_le_bytes());
        option(out, INTERFACE_NAME, name.as_bytes());
        option(out, INTERFACE_TIME_RESOLUTION, &[NANOSECONDS]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

pub(super) struct Packet<'a> {
    pub(super) interface: u32,
    /// Since the beginning of 1970.
    pub(super) time_ns: u64,
    pub(super) outbound: bool,
    /// Packets of this interface that are missing before it.
    pub(super) dropped: u64,
    pub(super) frame: &'a [u8],
}

/// An Enhanced Packet Block.
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, PACKET, |out| {
        let length = packet.frame.len() as u32;
        out.extend(packet.interface.to_le_bytes());
        time(out, packet.time_ns);
        out.extend(length.to_le_bytes());
        out.extend(length.to_le_bytes());
        padded(out, packet.frame);
        let direction = if packet.outbound { OUTBOUND } else { INBOUND };
        option(out, PACKET_FLAGS, &direction.to_le_bytes());
        if packet.dropped > 0 {
            option(out, PACKET_DROP_COUNT, &packet.dropped.to_le_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// An Interface Statistics Block: packets there were, and packets that are missing.
pub(super) fn statistics(
    out: &mut Vec<u8>,
    interface: u32,
    time_ns: u64,
    (received, dropped): (u64, u64),
) {
    block(out, STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        time(out, time_ns);
        option(out, STATISTICS_RECEIVED, &received.to_le_bytes());
        option(out, STATISTICS_DROPPED, &dropped.to_le_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Type and length, the body, and the length again, for readers that go backwards.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let length = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    out.extend(length.to_le_bytes());
}

/// The upper half first, whatever the order of bytes.
fn time(out: &mut Vec<u8>, ns: u64) {
    out.extend(((ns >> 32) as u32).to_le_bytes());
    out.extend((ns as u32).to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}
