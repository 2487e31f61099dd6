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

/// Upper bound of [`Limits::read_chunks_max`]: Read chunks (distinct positions) of one header.
pub const READ_CHUNKS_MAX: usize = 8;

/// Upper bound of [`Limits::write_chunks_max`]: Write chunks of one header.
pub const WRITE_CHUNKS_MAX: usize = 8;

/// Upper bound of [`Limits::segments_max`]. Nothing is kept for each segment: they are read from the message.
pub const SEGMENTS_MAX: usize = 512;

/// Data items with direct placement in one message of ours, in each direction.
pub const ITEMS_MAX: usize = 4;

/// Segments that one call of ours offers, over all its lists.
pub const CALL_SEGMENTS_MAX: usize = 64;

const _: () = assert!(ITEMS_MAX < READ_CHUNKS_MAX && ITEMS_MAX <= WRITE_CHUNKS_MAX);
const _: () = assert!(INLINE_THRESHOLD_MIN_BYTES <= INLINE_THRESHOLD_MAX_BYTES);
const _: () = assert!(INLINE_THRESHOLD_MAX_BYTES.is_multiple_of(INLINE_THRESHOLD_MIN_BYTES));
// The code octet of RFC 8797 counts thresholds in units of 1024, from one to 256.
const _: () = assert!(INLINE_THRESHOLD_MAX_BYTES / INLINE_THRESHOLD_MIN_BYTES == 256);
const _: () = assert!(READ_CHUNKS_MAX <= SEGMENTS_MAX && WRITE_CHUNKS_MAX <= SEGMENTS_MAX);
const _: () = assert!(SEGMENTS_MAX <= 0xffff);
const _: () = assert!(Limits::DEFAULT.within_bounds());
// Two ends of this crate understand each other: the default limits accept the largest call that
// this crate offers. A long call has its Position-Zero chunk in addition to those of its items.
const _: () = assert!(ITEMS_MAX < Limits::DEFAULT.read_chunks_max as usize);
const _: () = assert!(ITEMS_MAX <= Limits::DEFAULT.write_chunks_max as usize);
const _: () = assert!(CALL_SEGMENTS_MAX <= Limits::DEFAULT.segments_max as usize);
// Peers that register their memory page by page name a payload of the default size.
const _: () =
    assert!(Limits::DEFAULT.payload_bytes_max / 4096 < Limits::DEFAULT.segments_max as u32);

/// Limits on what one connection accepts of a peer: versions and the contents of chunk lists. Other
/// versions are answered with ERR_VERS, longer lists with ERR_CHUNK, in version two with
/// BAD_HEADER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Versions of headers that are read at all.
    pub versions: Versions,
    /// A message that is shorter than the shortest request, but has an XID, is a request to be answered with
    /// RDMA_ERROR (RFC 5666 section 4.2); otherwise it is dropped (RFC 8166 section 4.5). A connection sets this by its
    /// profile.
    pub answers_short: bool,
    /// Segments in a Read list, over all its chunks, in a Write list and in a Reply chunk.
    pub segments_max: u16,
    /// Read chunks in a Read list. Those next to each other count as one: they may be one item.
    pub read_chunks_max: u16,
    /// Write chunks in a Write list.
    pub write_chunks_max: u16,
    /// Bytes that one Read list, one Write list or one Reply chunk may name in total.
    pub payload_bytes_max: u32,
}

impl Limits {
    /// The limits of a connection that was configured with nothing else: version one, and payloads of
    /// 1 MiB, with room for the RPC header and the arguments around them in a long message.
    pub const DEFAULT: Self = Self {
        versions: Versions::One,
        answers_short: false,
        segments_max: 288,
        read_chunks_max: 8,
        write_chunks_max: 8,
        payload_bytes_max: (1 << 20) + (64 << 10),
    };

    /// True if every field is at most its constant upper bound.
    #[must_use]
    pub const fn within_bounds(&self) -> bool {
        self.segments_max as usize <= SEGMENTS_MAX
            && self.read_chunks_max as usize <= READ_CHUNKS_MAX
            && self.write_chunks_max as usize <= WRITE_CHUNKS_MAX
    }

    /// These limits with every field brought down to its constant upper bound.
    #[must_use]
    pub const fn clamped(self) -> Self {
        Self {
            versions: self.versions,
            answers_short: self.answers_short,
            segments_max: at_most(self.segments_max, SEGMENTS_MAX),
            read_chunks_max: at_most(self.read_chunks_max, READ_CHUNKS_MAX),
            write_chunks_max: at_most(self.write_chunks_max, WRITE_CHUNKS_MAX),
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
            segments_max: SEGMENTS_MAX as u16,
            read_chunks_max: READ_CHUNKS_MAX as u16,
            write_chunks_max: WRITE_CHUNKS_MAX as u16,
            ..Limits::DEFAULT
        };
        assert!(bounds.within_bounds() && Limits::DEFAULT.within_bounds());
        for above in [
            Limits { segments_max: bounds.segments_max + 1, ..bounds },
            Limits { read_chunks_max: bounds.read_chunks_max + 1, ..bounds },
            Limits { write_chunks_max: bounds.write_chunks_max + 1, ..bounds },
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
