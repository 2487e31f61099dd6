//! The engine's memory for transfers, as buffers of a [`FileRing`](super::file_ring::FileRing).

use super::file_ring::{StableBytes, StableMemory};
use spinrpc::Bulk;
use spinrpc::mem::RegionHold;
use std::ptr::NonNull;

// SAFETY: the engine promises it for a `Bulk` (section "Contract" of its documentation): its bytes stay
// where they are when the value is moved, until it is dropped, and only this value reads or writes them
// while no lease is out. A lease needs `&mut` of it.
unsafe impl StableBytes for Bulk {
    /// The bytes in use.
    ///
    /// # Panics
    /// If a lease is out ([`Bulk::is_leased`]), or a peer can write the memory.
    #[inline]
    fn stable_bytes(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }

    /// Memory of the pool. A block that is all of its memory, as an application's own is, comes and
    /// goes with it.
    fn whole_memory(&self) -> Option<Box<dyn StableMemory>> {
        Some(Box::new(self.pool_memory()?))
    }
}

// SAFETY: the engine promises it (section "Contract" of its documentation): the memory stays where it is
// while a hold exists. Bytes of it can be reached through its parts only, of which no new ones appear once
// there are none.
unsafe impl StableMemory for RegionHold {
    fn range(&self) -> (NonNull<u8>, usize) {
        (self.as_ptr(), self.len())
    }

    fn is_unused(&self) -> bool {
        Self::is_unused(self)
    }
}

#[cfg(test)]
mod tests;
