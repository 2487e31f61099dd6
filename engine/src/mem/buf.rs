//! A message buffer with one owner.

use super::RegionId;
use super::pool::PoolCore;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::ptr::{NonNull, null};
use std::rc::Rc;
use std::slice;

/// One buffer of a [`BufPool`](super::BufPool), owned; dropping it gives it back. It has a current
/// range, the message within the buffer, which starts out empty. Every byte is initialised, but
/// outside of what its owner wrote it has whatever the previous owner left.
///
/// It is one pointer wide: work requests and completions that carry it are moved a lot.
pub struct Buf {
    slot: NonNull<Slot>,
}

/// What a pool keeps about one of its buffers.
pub(super) struct Slot {
    /// From `Rc::into_raw` while the buffer is out: it keeps the pool alive.
    pool: Cell<*const PoolCore>,
    first: NonNull<u8>,
    index: u32,
    capacity: u32,
    start: Cell<u32>,
    end: Cell<u32>,
}

impl Slot {
    pub(super) fn new(first: NonNull<u8>, index: u32, capacity: u32) -> Self {
        let zero = || Cell::new(0);
        Self { pool: Cell::new(null()), first, index, capacity, start: zero(), end: zero() }
    }
}

impl Buf {
    /// The buffer in place `index` of `pool`, which nobody has.
    #[inline]
    pub(super) fn new(pool: &Rc<PoolCore>, index: u32) -> Self {
        let slot = pool.slot(index);
        slot.pool.set(Rc::into_raw(Rc::clone(pool)));
        slot.start.set(0);
        slot.end.set(0);
        Self { slot: NonNull::from(slot) }
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: the slot lies in the pool, of which `new` leaked a reference that `drop` takes
        // back, so it lives as long as `self`.
        unsafe { self.slot.as_ref() }
    }

    /// Bytes the whole buffer has.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slot().capacity as usize
    }

    /// Bytes of the current range.
    #[inline]
    pub fn len(&self) -> usize {
        (self.slot().end.get() - self.slot().start.get()) as usize
    }

    /// The current range has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the current range lies in the buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.slot().start.get() as usize..self.slot().end.get() as usize
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
        self.slot().start.set(range.start as u32);
        self.slot().end.set(range.end as u32);
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
        let first = self.slot().first;
        // SAFETY: the buffer has `capacity` initialised bytes and no other owner; `&mut self` keeps
        // everybody else out while the slice lives.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.capacity()) }
    }

    /// First byte of the current range, for a driver that transfers it. Valid while this owner
    /// lives and does not touch the bytes.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `start` is at most the capacity.
        unsafe { self.slot().first.add(self.slot().start.get() as usize) }
    }

    /// The region it lies in: what a driver finds its registration by.
    pub fn region_id(&self) -> RegionId {
        // SAFETY: the pointer is that of a live pool, as long as the buffer is out.
        unsafe { (*self.slot().pool.get()).region().id() }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        let index = self.slot().index;
        // SAFETY: takes back the reference that `new` leaked; nothing uses the slot after it.
        let pool = unsafe { Rc::from_raw(self.slot().pool.get()) };
        pool.push(index);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("index", &self.slot().index)
            .field("range", &self.range())
            .field("capacity", &self.capacity())
            .finish()
    }
}
