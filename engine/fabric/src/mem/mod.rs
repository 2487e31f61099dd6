//! Memory that messages live in: registered once, carved into pools, lent out by type.
//!
//! May use `sys` and `sync`; the drivers and the reactor call it. A buffer or block has one owner at
//! a time and goes back to its pool when the owner drops it, so that only pool memory can be posted
//! and posting is safe. Nothing here allocates, locks or makes a system call after a pool is made.
//!
//! * [`Buf`]: an inline message buffer; belongs to one core ([`BufPool`]).
//! * [`Bulk`], [`SharedBulk`], [`Lease`]: memory for one-sided transfers; any thread ([`BulkPool`]).
//! * [`Slab`]: memory of the application's own, whose blocks are [`Bulk`]s; any thread.
//! * [`ExposedBulk`]: such memory where a peer can write it at any time. Safe code gets no reference
//!   to it.
#![allow(unsafe_code)]

pub mod budget;
mod buf;
mod bulk;
mod exposed;
mod key_table;
mod keys;
mod loan;
mod pool;
mod region;
mod secret_memory;
mod share;
mod slab;

pub use buf::Buf;
pub use bulk::{BulkClass, BulkPool, ClassStats};
pub use exposed::ExposedBulk;
pub(crate) use key_table::KeyTable;
pub use keys::KeyGenerator;
pub use loan::{Bulk, Lease, SharedBulk};
pub use pool::BufPool;
pub use region::RegionHold;
pub use region::{Region, RegionId};
pub use secret_memory::{Undumped, UndumpedPool};
pub use share::Share;
pub use slab::{SLABS_MAX, Slab, SlabLayout};

/// Bytes of a cache line, the alignment of buffers.
pub const LINE_BYTES: usize = 64;

/// Reason why a pool could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A size or a count is zero.
    #[error("a pool needs at least one buffer of at least one byte")]
    Empty,
    /// Sizes or counts are larger than a pool supports.
    #[error("the pool's sizes or counts are too large")]
    TooLarge,
    /// The region is memory that a peer can write, and message buffers must be private.
    #[error("a peer can write the region's memory")]
    Exposed,
    /// The region cannot hold the requested buffers.
    #[error("the pool needs {needed_bytes} bytes, its region has {region_bytes}")]
    RegionTooSmall {
        /// Size of the buffers, with their alignment.
        needed_bytes: usize,
        /// Available size.
        region_bytes: usize,
    },
}

#[cfg(test)]
mod tests;
