//! The benchmark program, which `program.x` describes.
//!
//! `check` is 0, or a verify mode in its two high bits and the number of the call, which seeds the
//! data, in the others. `wrong_at` is the index of the first wrong byte, or all ones. A reply to an
//! echo is the start of the data sent; a longer one is the start of the data that READ serves, whose
//! seed is [`SERVED_SEED`]. INTENT announces a client's load, so that a server without enough memory
//! can reject it; an empty `refusal` accepts it. BACK makes the server prepare to call this very program in
//! reverse, over the same connection (RFC 8167), and BACK_BEGIN makes it call. BACK_END is answered with the results at the end of
//! that load, or at once if its argument is true. A `calls_max` of zero means no limit. JOIN says that a
//! rank of a job is ready for its next repeat, until all are.

use super::workload::SHARES;
use crate::pattern::Verify;
use spinrpc::{Procedure, Program, Version};
use spinrpc_xdr::Discriminant;

/// In the user-defined range of RFC 5531 section 13.
pub(super) const PROGRAM: Program = Program(0x2000_5350);
pub(super) const VERSION: Version = Version(6);

pub(super) const NULL: Procedure = Procedure(0);
pub(super) const ECHO: Procedure = Procedure(1);
pub(super) const READ: Procedure = Procedure(2);
pub(super) const WRITE: Procedure = Procedure(3);
pub(super) const STATUS: Procedure = Procedure(4);
pub(super) const BACK: Procedure = Procedure(5);
pub(super) const BACK_END: Procedure = Procedure(6);
pub(super) const INTENT: Procedure = Procedure(7);
pub(super) const HOLDINGS: Procedure = Procedure(8);
pub(super) const JOIN: Procedure = Procedure(9);
pub(super) const BACK_BEGIN: Procedure = Procedure(10);

pub(super) const SHARES_MAX: u32 = SHARES as u32;
pub(super) const RANKS_SHOWN: usize = 16;
/// Longer than any reason of a refusal.
pub(super) const REFUSAL_BYTES_MAX: u32 = 512;
pub(super) const CORES_MAX: u32 = 256;
pub(super) const STATUS_BYTES_MAX: usize = 20 + CORES_MAX as usize * 104;

pub(super) const SERVED_SEED: u64 = 0;
/// [`READ_STRIDE_BYTES`] apart, so that the data of successive calls differs.
pub(super) const READ_OFFSETS: u64 = 1024;
pub(super) const READ_STRIDE_BYTES: u64 = 64;
/// Bytes that the server serves beyond the longest read.
pub(super) const READ_WINDOW_BYTES: usize = (READ_OFFSETS * READ_STRIDE_BYTES) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) verify: Verify,
    pub(super) seed: u64,
}

impl Check {
    /// The check of call number `seed`, modulo 2^30.
    pub(super) fn new(verify: Verify, seed: u64) -> Self {
        Self { verify, seed: seed & SEED_MASK }
    }

    pub(super) fn to_wire(self) -> u32 {
        (self.verify as u32) << SEED_BITS | self.seed as u32
    }

    /// `None` for a mode that this version does not know.
    pub(super) fn from_wire(word: u32) -> Option<Self> {
        let verify = Verify::from_word(word >> SEED_BITS, 0).ok()?;
        Some(Self::new(verify, u64::from(word)))
    }
}

/// Value in a result that means no wrong byte.
pub(super) const NONE_WRONG: u32 = u32::MAX;

const SEED_BITS: u32 = 30;
const SEED_MASK: u64 = (1 << SEED_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_survives_the_wire() {
        for check in [Check::new(Verify::Full, 77), Check::new(Verify::Touch, SEED_MASK)] {
            assert_eq!(Check::from_wire(check.to_wire()), Some(check));
        }
        assert_eq!(Check::new(Verify::Off, 0).to_wire(), 0);
        assert_eq!(Check::from_wire(u32::MAX), None);
    }
}
