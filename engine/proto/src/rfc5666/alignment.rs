//! Padding that brings data to a place the receiver likes (RFC 5666 section 3.9).
//!
//! ```text
//! in the XDR stream   AAA LLLL DDDDDDDD
//! in an RDMA_MSGP     AAA LLLL ppp DDDDDDDD
//!                               data begin at a multiple of the alignment
//! ```
//!
//! The section leaves questions open. Both ends of this crate answer them alike:
//!
//! * Padding stands before data "at or above" the threshold, as its definition says, though the rule
//!   for decoding says "exceeds".
//! * The alignment counts from the first byte of the Send, as only then can data begin where a
//!   receive buffer begins.
//! * It is for counted data: `opaque<>` and `string<>`, wherever they stand in the RPC message,
//!   several of them in one message as well. Empty data have none, whatever the threshold; an
//!   alignment of 0 or 1 means none.
//! * Padding is not part of the XDR stream: the positions of Read chunks do not count it, and
//!   roundup follows the data as ever. Data in a chunk have none.
//!
//! Used by the XDR cursors and the payload streams.

/// Alignment and threshold of an RDMA_MSGP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    align_bytes: u32,
    threshold_bytes: u32,
}

impl Alignment {
    /// Alignment of a message without padding.
    pub const NONE: Self = Self { align_bytes: 1, threshold_bytes: u32::MAX };

    /// Alignment of any two words: those of a peer may make no sense, and are taken as they are.
    pub const fn new(align_bytes: u32, threshold_bytes: u32) -> Self {
        let threshold_bytes = if threshold_bytes == 0 { 1 } else { threshold_bytes };
        Self { align_bytes, threshold_bytes }
    }

    /// Bytes that the place of padded data is a multiple of (`rdma_align`).
    pub const fn align_bytes(self) -> u32 {
        self.align_bytes
    }

    /// Length from which data are padded, in bytes (`rdma_thresh`); at least 1.
    pub const fn threshold_bytes(self) -> u32 {
        self.threshold_bytes
    }

    /// True if data of this length are preceded by padding, even if that padding is empty.
    #[must_use]
    #[inline]
    pub const fn applies_to(self, length: usize) -> bool {
        length >= self.threshold_bytes as usize
    }

    /// Bytes of padding before data of this length whose count word ends `at` bytes behind the
    /// start of the Send.
    #[inline]
    pub const fn gap(self, at: usize, length: usize) -> usize {
        if self.align_bytes <= 1 || !self.applies_to(length) {
            return 0;
        }
        let align = self.align_bytes as usize;
        match at % align {
            0 => 0,
            beyond => align - beyond,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Data size at or above which padding is applied."
    #[test]
    fn data_at_or_above_the_threshold_have_padding_and_shorter_ones_none() {
        let alignment = Alignment::new(64, 100);
        assert_eq!([99, 100, 101].map(|length| alignment.gap(68, length)), [0, 60, 60]);
    }

    /// "Up to (4 KB - 1) padding bytes could be used to achieve alignment of the data."
    #[test]
    fn padding_ends_at_the_next_multiple_of_the_alignment() {
        let alignment = Alignment::new(4096, 1);
        let gaps = [0, 1, 4, 4095, 4096, 4097].map(|at| alignment.gap(at, 1));
        assert_eq!(gaps, [0, 4095, 4092, 1, 0, 4095]);
        assert_eq!(Alignment::new(24, 1).gap(100, 1), 20, "not a power of two");
    }

    #[test]
    fn words_that_make_no_sense_mean_no_padding_or_much_and_overflow_nothing() {
        assert_eq!(Alignment::new(0, 0).gap(5, 5), 0);
        assert_eq!(Alignment::new(1, 0).gap(5, 5), 0);
        assert_eq!(Alignment::new(8, 0).gap(5, 0), 0, "there is nothing to align");
        assert_eq!(Alignment::new(8, 0).gap(5, 1), 3);
        assert_eq!(Alignment::new(u32::MAX, 0).gap(5, 1), u32::MAX as usize - 5);
        assert_eq!(Alignment::new(u32::MAX, 0).gap(usize::MAX, usize::MAX), 0);
        assert_eq!(Alignment::NONE.gap(5, usize::MAX), 0);
    }
}
