//! A message buffer with one owner.

#[cfg(feature = "verbs")]
use super::RegionHold;
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
/// bytes that its owner has not written are those of the previous owner.
///
/// It is one pointer wide: work requests and completions that carry it are moved a lot.
pub struct Buf {
    slot: NonNull<Slot>,
}

pub(super) struct Slot {
    /// Pointer from `Rc::into_raw` while the buffer is out: it keeps the pool alive.
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

#[expect(clippy::len_without_is_empty, reason = "nothing asks")]
impl Buf {
    /// The buffer must not be in use.
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

    /// The current range in the buffer.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.slot().start.get() as usize..self.slot().end.get() as usize
    }

    /// Makes `range` of the whole buffer the current one.
    ///
    /// # Panics
    /// If it is not within the capacity, as slicing does: a length that a peer named is compared
    /// with [`Buf::capacity`] before.
    #[inline(always)]
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
        // SAFETY: as in `bytes`, and `&mut self` keeps other accesses out while the slice lives.
        unsafe { slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.len()) }
    }

    /// The whole buffer, to write to, wherever the current range lies.
    #[inline]
    pub fn whole_mut(&mut self) -> &mut [u8] {
        let first = self.slot().first;
        // SAFETY: the buffer has `capacity` initialised bytes and no other owner; `&mut self` keeps
        // other accesses out while the slice lives.
        unsafe { slice::from_raw_parts_mut(first.as_ptr(), self.capacity()) }
    }

    /// First byte of the current range, for a driver that transfers it. Valid while this owner
    /// lives and does not touch the bytes.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `start` is at most the capacity.
        unsafe { self.slot().first.add(self.slot().start.get() as usize) }
    }

    /// The region it lies in, by which a driver finds its registration.
    pub fn region_id(&self) -> RegionId {
        self.pool().region().id()
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn hold_region(&self) -> RegionHold {
        self.pool().region().hold()
    }

    #[inline]
    fn pool(&self) -> &PoolCore {
        // SAFETY: the pointer is that of a live pool, as long as the buffer is out.
        unsafe { &*self.slot().pool.get() }
    }

    /// For a driver: copies a part of a message, which fits, to where it belongs.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        self.whole_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// For a driver: records that a message of `length` bytes was received here. Returns `false`, and
    /// changes nothing, if the message does not fit.
    #[inline]
    #[must_use]
    pub fn set_received(&mut self, length: usize) -> bool {
        let fits = length <= self.capacity();
        if fits {
            self.set_range(0..length);
        }
        fits
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
        write!(f, "Buf({}, {:?} of {})", self.slot().index, self.range(), self.capacity())
    }
}
