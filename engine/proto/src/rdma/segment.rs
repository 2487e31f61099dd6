//! One piece of remote memory (`xdr_rdma_segment`, RFC 5666 section 4.3).

use crate::xdr::{DecodeError, Reader, Writer};

/// A piece of registered memory of the peer. Handle and offset mean nothing to anyone but its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Steering tag of the registration: R_key or STag.
    pub handle: u32,
    /// Length in bytes; may be zero.
    pub length: u32,
    /// Address or offset of the first byte, in the terms of the registration.
    pub offset: u64,
}

impl Segment {
    /// Bytes of a segment in a header.
    pub const WIRE_BYTES: usize = 16;

    /// The offset after the last byte; `None` if that is beyond 64 bits, as of no memory.
    #[must_use]
    #[inline]
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.length as u64)
    }

    /// Reads a segment and checks that it does not wrap.
    #[inline]
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        let segment = Self::from_wire(reader.array()?);
        if segment.end().is_none() {
            return Err(DecodeError::SegmentWraps { at });
        }
        Ok(segment)
    }

    #[inline]
    pub(super) const fn from_wire(bytes: &[u8; Self::WIRE_BYTES]) -> Self {
        let [h0, h1, h2, h3, l0, l1, l2, l3, offset @ ..] = *bytes;
        Self {
            handle: u32::from_be_bytes([h0, h1, h2, h3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
            offset: u64::from_be_bytes(offset),
        }
    }

    #[inline]
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.handle);
        writer.u32(self.length);
        writer.u64(self.offset);
    }
}

/// An entry of a Read list (`xdr_read_chunk`): a segment and where its bytes belong.
///
/// Segments with the same position make up one Read chunk, in the order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadSegment {
    /// Offset in the XDR stream of the RPC message, as if nothing had been taken out of it.
    pub position: u32,
    /// Location of the bytes.
    pub target: Segment,
}

impl ReadSegment {
    /// Bytes of an entry in a header, without the link word before it.
    pub const WIRE_BYTES: usize = 4 + Segment::WIRE_BYTES;

    /// Reads an entry and checks that its position is one where an XDR item can begin (RFC 8166
    /// section 3.4.5), or the roundup of one (RFC 5666 section 3.7).
    #[inline]
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        let entry = Self { position: reader.u32()?, target: Segment::parse(reader)? };
        if !entry.position.is_multiple_of(4) && !entry.is_roundup() {
            return Err(DecodeError::BadPosition { at, position: entry.position });
        }
        Ok(entry)
    }

    /// The bytes from the end of an item to the next word, and nothing else. The whole list decides
    /// whether such a chunk is taken, and belongs to an item.
    #[inline]
    const fn is_roundup(&self) -> bool {
        let into_word = self.position % 4;
        into_word != 0 && self.target.length == 4 - into_word
    }

    #[inline]
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.position);
        self.target.write(writer);
    }
}
