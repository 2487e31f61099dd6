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

    /// True if its last byte lies beyond the 64-bit address space, where no memory is. It may end where that ends.
    #[must_use]
    #[inline]
    pub const fn wraps(&self) -> bool {
        self.offset.checked_add((self.length as u64).saturating_sub(1)).is_none()
    }

    #[inline]
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let at = reader.position();
        let segment = Self::from_wire(reader.array()?);
        if segment.wraps() {
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

    /// The whole list decides whether the position is one where an item, or a part of one, begins.
    #[inline]
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { position: reader.u32()?, target: Segment::parse(reader)? })
    }

    #[inline]
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.position);
        self.target.write(writer);
    }
}
