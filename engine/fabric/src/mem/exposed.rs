//! Memory of a connection whose peer can write it at any time.

use super::Bulk;
use std::slice;

/// A block that the peer of a connection can write at any time, whatever it has agreed to: memory that both processes
/// have mapped. Bytes are copied in and out; a peer that writes during a copy can tear it, but cannot cause other
/// harm. `unsafe` methods give references to the bytes.
///
/// ```compile_fail
/// fn bytes(bulk: &spinrpc_fabric::mem::ExposedBulk) -> &[u8] {
///     bulk.bytes()
/// }
/// ```
#[derive(Debug)]
pub struct ExposedBulk(Bulk);

impl ExposedBulk {
    /// The block in `bulk`, exposed or not.
    #[doc(hidden)]
    pub fn new(bulk: Bulk) -> Self {
        Self(bulk)
    }

    /// The block, for the engine.
    #[doc(hidden)]
    pub fn into_bulk(self) -> Bulk {
        self.0
    }

    /// Bytes the block has.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Bytes in use, from the start.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No bytes in use.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the number of bytes in use.
    ///
    /// # Panics
    /// If that is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        self.0.set_len(len);
    }

    /// Copies bytes from byte `at` on, of those in use, to `into`. Two copies of the same bytes may
    /// differ.
    ///
    /// # Panics
    /// If fewer bytes than `into` takes are in use there.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        self.0.copy_to(at, into);
    }

    /// Copies `bytes` to byte `at` and on.
    ///
    /// # Panics
    /// If they are not within the bytes in use.
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) {
        self.0.copy_from(at, bytes);
    }

    /// The bytes in use.
    ///
    /// # Safety
    /// The peer does not write them while the reference lives. Nothing enforces that: it has to be
    /// trusted, and so has every process that it may have passed the memory to.
    pub unsafe fn assume_stable(&self) -> &[u8] {
        let (first, len) = self.0.address();
        // SAFETY: `len` initialised bytes of a block that has no other handle; for the peer the
        // caller vouches.
        unsafe { slice::from_raw_parts(first.as_ptr(), len) }
    }

    /// The bytes in use, to write to.
    ///
    /// # Safety
    /// As [`ExposedBulk::assume_stable`].
    pub unsafe fn assume_stable_mut(&mut self) -> &mut [u8] {
        let (first, len) = self.0.address();
        // SAFETY: as above, and `&mut self` keeps readers out while the slice lives.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), len) }
    }
}
