//! A core's record of one packet, and its way through the ring to the writer.

use super::super::RemoteSlice;

/// Most payload of one packet: the largest path MTU that InfiniBand knows.
pub(super) const PATH_MTU_BYTES: usize = 4096;

/// Bytes of a record in the ring, without the payload that follows it.
pub(super) const RECORD_BYTES: usize = 40;

/// Kind of the packet: the operation code of its base transport header (InfiniBand Architecture
/// Specification, volume 1, section 9.2.1), or one of the reserved codes for events of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(pub(super) u8);

impl Kind {
    pub(super) const READ_REQUEST: Self = Self(0x0c);
    /// A connection that this side asked for is there; the payload is [`super::wire::BothPrivateData`].
    pub(super) const CONNECTED: Self = Self(0xf0);
    /// As above, but the peer asked for it.
    pub(super) const ACCEPTED: Self = Self(0xf1);
    pub(super) const CLOSED: Self = Self(0xf2);

    /// True if it starts with the place in the remote memory, and the length (RETH).
    pub(super) fn has_remote(self) -> bool {
        matches!(self.0, 0x06 | 0x0a | 0x0c)
    }

    /// True if it starts with an acknowledgement (AETH).
    pub(super) fn has_acknowledgement(self) -> bool {
        matches!(self.0, 0x0d | 0x0f | 0x10)
    }

    /// True if it starts with the key that it invalidates (IETH).
    pub(super) fn has_invalidated_key(self) -> bool {
        matches!(self.0, 0x16 | 0x17)
    }

    /// The sender asks for an acknowledgement: the last packet of a message that is not a response.
    pub(super) fn asks_acknowledgement(self) -> bool {
        matches!(self.0, 0x02 | 0x04 | 0x08 | 0x0a | 0x0c | 0x16 | 0x17)
    }
}

/// Kinds of the packets of one operation: the first, one in the middle, the last, and one that is all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family([u8; 4]);

impl Family {
    pub(super) const SEND: Self = Self([0x00, 0x01, 0x02, 0x04]);
    pub(super) const SEND_INVALIDATE: Self = Self([0x00, 0x01, 0x16, 0x17]);
    pub(super) const WRITE: Self = Self([0x06, 0x07, 0x08, 0x0a]);
    pub(super) const READ_RESPONSE: Self = Self([0x0d, 0x0e, 0x0f, 0x10]);

    pub(super) fn packet(self, index: usize, count: usize) -> Kind {
        Kind(match (index, count - index) {
            (0, 1) => self.0[3],
            (0, _) => self.0[0],
            (_, 1) => self.0[2],
            _ => self.0[1],
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) ticks: u64,
    /// Number of the connection, over all cores of the capture.
    pub(super) connection: u32,
    /// Packet sequence number: 24 bits.
    pub(super) sequence: u32,
    /// Packets of this core that found no room since the record before.
    pub(super) dropped: u32,
    pub(super) kind: Kind,
    pub(super) outbound: bool,
    /// For a kind that has it; of a Send With Invalidate only the handle.
    pub(super) remote: RemoteSlice,
}

pub(super) const NOWHERE: RemoteSlice = RemoteSlice { handle: 0, length: 0, offset: 0 };

impl Record {
    pub(super) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..8].copy_from_slice(&self.ticks.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.remote.offset.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.remote.handle.to_ne_bytes());
        bytes[20..24].copy_from_slice(&self.remote.length.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.connection.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.dropped.to_ne_bytes());
        bytes[36] = self.kind.0;
        bytes[37] = u8::from(self.outbound);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Self {
            ticks: long(0),
            remote: RemoteSlice { offset: long(8), handle: word(16), length: word(20) },
            connection: word(24),
            sequence: word(28),
            dropped: word(32),
            kind: Kind(bytes[36]),
            outbound: bytes[37] != 0,
        }
    }
}
