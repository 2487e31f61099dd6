//! The engine's memory for transfers, as buffers of a [`FileRing`](super::file_ring::FileRing).

use super::file_ring::StableBytes;
use spinrpc::Bulk;

// SAFETY: the engine promises it for a `Bulk` (section "Contract" of its documentation): its bytes stay
// where they are when the value is moved, until it is dropped, and only this value reads or writes them
// while no lease is out. A lease needs `&mut` of it.
unsafe impl StableBytes for Bulk {
    /// Panics if a lease is out ([`Bulk::is_leased`]), or a peer can write the memory.
    #[inline]
    fn stable_bytes(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

#[cfg(test)]
mod tests;
