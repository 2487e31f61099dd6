//! Memory that may be handed to the kernel by [`FileRing`](super::FileRing).

use super::StableMemory;

/// A buffer whose bytes stay where they are, and belong to it alone, while a
/// [`FileRing`](super::FileRing) has it.
///
/// # Safety
/// From one call of [`StableBytes::stable_bytes`] to the next, or to the drop of the value, the
/// bytes it returned are valid at the same address, wherever the value is moved meanwhile, and no
/// other code reads or writes them. If the value is leaked, that holds forever: a type that borrows
/// its bytes cannot implement this.
pub(crate) unsafe trait StableBytes {
    /// The bytes to fill or to write out: all of them.
    ///
    /// # Panics
    /// It may, but not any more once a call has returned.
    fn stable_bytes(&mut self) -> &mut [u8];

    /// All of the memory that the bytes lie in, for the ring to register, if that is likely to be read
    /// and written again through the same ring. It is asked for large transfers in memory that the
    /// ring does not know.
    fn whole_memory(&self) -> Option<Box<dyn StableMemory>> {
        None
    }
}

// SAFETY: the bytes are on the heap, where they stay when the vector is moved, and are its own.
unsafe impl StableBytes for Vec<u8> {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: as for a vector.
unsafe impl StableBytes for Box<[u8]> {
    fn stable_bytes(&mut self) -> &mut [u8] {
        self
    }
}
