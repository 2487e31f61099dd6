//! A message buffer with one owner.

use super::RegionId;
use super::pool::PoolCore;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice;

/// One buffer of a [`BufPool`](super::BufPool), owned; dropping it gives it back. It has a current
/// range, the message within the buffer, which starts out empty. Every byte is initialised, but
/// outside of what its owner wrote it has whatever the previous owner left.
pub struct Buf {
    pool: Rc<PoolCore>,
    index: u32,
    start: u32,
    end: u32,
}

impl Buf {
    #[inline]
    pub(super) fn new(pool: Rc<PoolCore>, index: u32) -> Self {
        Self { pool, index, start: 0, end: 0 }
    }

    /// Bytes the whole buffer has.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.pool.capacity() as usize
    }

    /// Bytes of the current range.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The current range has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where the current range lies in the buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Makes `range` of the whole buffer the current one.
    ///
    /// # Panics
    /// If it is not within the capacity, as slicing does: a length that a peer named is compared
    /// with [`Buf::capacity`] before.
    #[inline]
    pub fn set_range(&mut self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.capacity(),
            "range {range:?} is not within the buffer of {} bytes",
            self.capacity()
        );
        // Both are at most the capacity, which is a u32.
        (self.start, self.end) = (range.start as u32, range.end as u32);
    }

    /// The current range.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the current range is within this buffer, which is initialised and has no other
        // owner; `&self` keeps writers out while the slice lives.
        unsafe { slice::from_raw_parts(self.as_ptr().as_ptr(), self.len()) }
    }

    /// The current range, to write to.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` keeps everybody else out while the slice lives.
        unsafe { slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// The whole buffer, to write to, wherever the current range lies.
    #[inline]
    pub fn whole_mut(&mut self) -> &mut [u8] {
        let first = self.pool.first_byte(self.index);
        // SAFETY: the buffer has `capacity` initialised bytes and no other owner; `&mut self` keeps
        // everybody else out while the slice lives.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.capacity()) }
    }

    /// First byte of the current range, for a driver that transfers it. Valid while this owner
    /// lives and does not touch the bytes.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `start` is at most the capacity.
        unsafe { self.pool.first_byte(self.index).add(self.start as usize) }
    }

    /// The region it lies in: what a driver finds its registration by.
    pub fn region_id(&self) -> RegionId {
        self.pool.region().id()
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        self.pool.push(self.index);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("index", &self.index)
            .field("range", &self.range())
            .field("capacity", &self.capacity())
            .finish()
    }
}
