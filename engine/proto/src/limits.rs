//! Every bound on the data that a peer may make this end hold or walk, in one place.
//!
//! RFC 8166 section 8.1 lets a responder refuse unreasonable chunk lists; these values define
//! "unreasonable". The constants bound fixed-size arrays in this crate; the fields of [`Limits`]
//! are enforced by one connection.

use crate::version::Versions;

/// Smallest inline threshold that may be agreed: every receiver takes a message of 1024 octets
/// (RFC 5666 section 6.1, RFC 8166 section 3.3.2).
pub const INLINE_THRESHOLD_MIN_BYTES: u32 = 1024;

/// Largest inline threshold that the private data of a connection can express (RFC 8797 section 4).
pub const INLINE_THRESHOLD_MAX_BYTES: u32 = 262_144;

/// Inline threshold of version two where nothing else is known: every receiver supports it, and every
/// sender assumes it (version two section 2.3).
pub const INLINE_THRESHOLD_TWO_BYTES: u32 = 4096;

/// Longest information (`rdma_optinfo`) of an RDMA2_OPTIONAL that is sent, or taken where its option is
/// known, in bytes: with header and call it fits the first message of a connection.
pub const OPTION_INFO_MAX_BYTES: usize = 512;

/// Options that one connection may know.
pub const OPTIONS_MAX: usize = 8;

/// Upper bound of [`Limits::read_chunks_max`]: Read chunks (distinct positions) of one header.
pub const READ_CHUNKS_MAX: usize = 8;

/// Upper bound of [`Limits::write_chunks_max`]: Write chunks of one header.
pub const WRITE_CHUNKS_MAX: usize = 8;

/// Upper bound of [`Limits::segments_per_chunk_max`].
pub const SEGMENTS_MAX: usize = 16;

/// Upper bound of [`Limits::read_segments_max`]: every Read chunk at its fullest.
pub const READ_SEGMENTS_MAX: usize = READ_CHUNKS_MAX * SEGMENTS_MAX;

/// Data items with direct placement in one message of ours, in each direction.
pub const ITEMS_MAX: usize = 4;

/// Segments that one call of ours offers, over all its lists.
pub const CALL_SEGMENTS_MAX: usize = 64;

const _: () = assert!(ITEMS_MAX < READ_CHUNKS_MAX && ITEMS_MAX <= WRITE_CHUNKS_MAX);
const _: () = assert!(INLINE_THRESHOLD_MIN_BYTES <= INLINE_THRESHOLD_MAX_BYTES);
const _: () = assert!(INLINE_THRESHOLD_MAX_BYTES.is_multiple_of(INLINE_THRESHOLD_MIN_BYTES));
// The code octet of RFC 8797 counts thresholds in units of 1024, from one to 256.
const _: () = assert!(INLINE_THRESHOLD_MAX_BYTES / INLINE_THRESHOLD_MIN_BYTES == 256);
const _: () = assert!(READ_CHUNKS_MAX <= READ_SEGMENTS_MAX && SEGMENTS_MAX <= READ_SEGMENTS_MAX);
const _: () = assert!(WRITE_CHUNKS_MAX <= READ_SEGMENTS_MAX && READ_SEGMENTS_MAX <= 0xffff);
const _: () = assert!(Limits::DEFAULT.within_bounds());
// Two ends of this crate understand each other: the default limits accept the largest call that
// this crate offers. A long call has its Position-Zero chunk in addition to those of its items.
const _: () = assert!(ITEMS_MAX < Limits::DEFAULT.read_chunks_max as usize);
const _: () = assert!(ITEMS_MAX <= Limits::DEFAULT.write_chunks_max as usize);
const _: () = assert!(CALL_SEGMENTS_MAX <= Limits::DEFAULT.read_segments_max as usize);
const _: () = assert!(SEGMENTS_MAX <= Limits::DEFAULT.segments_per_chunk_max as usize);

/// Limits on what one connection accepts of a peer: versions and the contents of chunk lists. Other
/// versions are answered with ERR_VERS, longer lists with ERR_CHUNK, in version two with
/// BAD_HEADER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Versions of headers that are read at all.
    pub versions: Versions,
    /// The extension of [`crate::deadlines`] is known; without effect where version two is not spoken.
    pub deadlines: bool,
    /// A message that is shorter than the shortest request, but has the four words of every header, is
    /// a request to be answered with RDMA_ERROR (RFC 5666 section 4.2); otherwise it is dropped (RFC 8166
    /// section 4.5). A connection sets this by its profile.
    pub answers_short: bool,
    /// Segments in a Read list, over all its chunks.
    pub read_segments_max: u16,
    /// Read chunks, that is, distinct positions, in a Read list.
    pub read_chunks_max: u16,
    /// Write chunks in a Write list.
    pub write_chunks_max: u16,
    /// Segments in one Read chunk, Write chunk or Reply chunk.
    pub segments_per_chunk_max: u16,
    /// Bytes that one Read list, one Write list or one Reply chunk may name in total.
    pub payload_bytes_max: u32,
}

impl Limits {
    /// The limits of a connection that was configured with nothing else: version one, and payloads of
    /// 1 MiB, with room for the RPC header and the arguments around them in a long message.
    pub const DEFAULT: Self = Self {
        versions: Versions::One,
        deadlines: false,
        answers_short: false,
        read_segments_max: 128,
        read_chunks_max: 8,
        write_chunks_max: 8,
        segments_per_chunk_max: 16,
        payload_bytes_max: (1 << 20) + (64 << 10),
    };

    /// True if every field is at most its constant upper bound.
    #[must_use]
    pub const fn within_bounds(&self) -> bool {
        self.read_segments_max as usize <= READ_SEGMENTS_MAX
            && self.read_chunks_max as usize <= READ_CHUNKS_MAX
            && self.write_chunks_max as usize <= WRITE_CHUNKS_MAX
            && self.segments_per_chunk_max as usize <= SEGMENTS_MAX
    }

    /// These limits with every field brought down to its constant upper bound.
    #[must_use]
    pub const fn clamped(self) -> Self {
        Self {
            versions: self.versions,
            deadlines: self.deadlines,
            answers_short: self.answers_short,
            read_segments_max: at_most(self.read_segments_max, READ_SEGMENTS_MAX),
            read_chunks_max: at_most(self.read_chunks_max, READ_CHUNKS_MAX),
            write_chunks_max: at_most(self.write_chunks_max, WRITE_CHUNKS_MAX),
            segments_per_chunk_max: at_most(self.segments_per_chunk_max, SEGMENTS_MAX),
            payload_bytes_max: self.payload_bytes_max,
        }
    }
}

/// The smaller of the two; the bounds of this module all fit 16 bits, as asserted above.
const fn at_most(value: u16, bound: usize) -> u16 {
    if value as usize <= bound { value } else { bound as u16 }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_within_bounds_if_each_of_them_is() {
        let bounds = Limits {
            read_segments_max: READ_SEGMENTS_MAX as u16,
            read_chunks_max: READ_CHUNKS_MAX as u16,
            write_chunks_max: WRITE_CHUNKS_MAX as u16,
            segments_per_chunk_max: SEGMENTS_MAX as u16,
            ..Limits::DEFAULT
        };
        assert!(bounds.within_bounds() && Limits::DEFAULT.within_bounds());
        for above in [
            Limits { read_segments_max: bounds.read_segments_max + 1, ..bounds },
            Limits { read_chunks_max: bounds.read_chunks_max + 1, ..bounds },
            Limits { write_chunks_max: bounds.write_chunks_max + 1, ..bounds },
            Limits { segments_per_chunk_max: bounds.segments_per_chunk_max + 1, ..bounds },
        ] {
            assert!(!above.within_bounds(), "{above:?}");
            assert_eq!(above.clamped(), bounds);
        }
    }

    #[test]
    fn payloads_of_a_mebibyte_have_room_for_headers() {
        assert_eq!(Limits::DEFAULT.payload_bytes_max, 1_048_576 + 65_536);
    }
}
