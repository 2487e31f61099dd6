//! The benchmark program, as XDR (RFC 4506):
//!
//! ```text
//! struct echo_args   { unsigned reply_bytes; unsigned check; opaque data<>; };
//! struct echo_result { unsigned wrong_at; opaque data<>; };
//! struct read_args   { unsigned offset; unsigned length; };
//! struct read_result { opaque data<>; };                      /* DDP-eligible */
//! struct write_args  { unsigned check; opaque data<>; };      /* DDP-eligible */
//! struct write_result { unsigned wrong_at; unsigned count; };
//! struct share       { unsigned op; unsigned call_bytes; unsigned reply_bytes; };
//! struct intent      { share shares<8>; unsigned depth; unsigned connections; unsigned verify;
//!                      bool reverse; };
//! struct welcome     { string refusal<512>; unsigned inline_recv_bytes, inline_send_bytes; };
//! struct back_args   { share calls; unsigned depth; unsigned verify;
//!                      unsigned hyper warmup_ns, duration_ns, calls_max; };
//! struct bucket      { unsigned hyper latency_ns, calls; };
//! struct figures     { unsigned hyper elapsed_ns, lost; bucket buckets<8192>; };
//! struct core_status { unsigned hyper cpu, busy_ticks, polls, empty_polls, calls,
//!                      credit_stalls, queue_full, copies, steal_ms; };
//! struct status      { unsigned hyper ticks, ticks_per_second; core_status cores<256>; };
//! struct join        { string job<321>; unsigned rank, ranks; unsigned hyper process;
//!                      unsigned round; };
//! struct joined      { string refusal<512>; bool is_set; unsigned hyper start_in_ns;
//!                      unsigned missing; unsigned first_missing<16>; };
//! struct holdings    { unsigned hyper resident_bytes, descriptors; };
//!
//! program SPINPERF {
//!     version SPINPERF_V2 {
//!         void         NULL(void)         = 0;
//!         echo_result  ECHO(echo_args)    = 1;
//!         read_result  READ(read_args)    = 2;
//!         write_result WRITE(write_args)  = 3;
//!         status       STATUS(void)       = 4;
//!         welcome      BACK(back_args)    = 5;
//!         figures      BACK_END(bool)     = 6;
//!         welcome      INTENT(intent)     = 7;
//!         holdings     HOLDINGS(void)     = 8;
//!         joined       JOIN(join)         = 9;
//!     } = 2;
//! } = 0x20005350;
//! ```
//!
//! `check` is 0, or a verify mode in its two high bits and the number of the call, which seeds the
//! data, in the others. `wrong_at` is the index of the first wrong byte, or all ones. A reply to an
//! echo is the start of the data sent; a longer one is the start of the data that READ serves, whose
//! seed is [`SERVED_SEED`]. INTENT announces a client's load, so that a server without enough memory
//! can reject it; an empty `refusal` accepts it. BACK makes the server call this very program in
//! reverse, over the same connection (RFC 8167). BACK_END is answered with the results at the end of
//! that load, or at once if its argument is true. A `calls_max` of zero means no limit. JOIN says that a
//! rank of a job is ready for its next repeat, until all are.

use super::workload::SHARES;
use crate::pattern::Verify;
use spinrpc::{Procedure, Program, Version};

/// In the user-defined range of RFC 5531 section 13.
pub(super) const PROGRAM: Program = Program(0x2000_5350);
pub(super) const VERSION: Version = Version(2);

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

/// Shares of a mix.
pub(super) const SHARES_MAX: u32 = SHARES as u32;
/// Ranks that are missing, in an answer to JOIN.
pub(super) const RANKS_SHOWN: usize = 16;
/// Longer than any reason of a refusal.
pub(super) const REFUSAL_BYTES_MAX: usize = 512;
/// Cores in a status.
pub(super) const CORES_MAX: usize = 256;
/// Maximum length of a status.
pub(super) const STATUS_BYTES_MAX: usize = 20 + CORES_MAX * 72;

/// Seed of the data that READ serves.
pub(super) const SERVED_SEED: u64 = 0;
/// Number of offsets where verified reads may begin, [`READ_STRIDE_BYTES`] apart, so that the data
/// of successive calls differs.
pub(super) const READ_OFFSETS: u64 = 1024;
pub(super) const READ_STRIDE_BYTES: u64 = 64;
/// Bytes that the server serves beyond the longest read.
pub(super) const READ_WINDOW_BYTES: usize = (READ_OFFSETS * READ_STRIDE_BYTES) as usize;

/// Expected content of received data.
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
        self.verify.to_wire() << SEED_BITS | self.seed as u32
    }

    /// `None` for a mode that this version does not know.
    pub(super) fn from_wire(word: u32) -> Option<Self> {
        let verify = Verify::from_wire(word >> SEED_BITS)?;
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
