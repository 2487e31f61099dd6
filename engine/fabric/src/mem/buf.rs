//! A message buffer with one owner.

#[cfg(feature = "verbs")]
use super::RegionHold;
use super::pool::PoolCore;
use super::{Bulk, RegionId};
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
    /// Less than the pool's buffers have while the buffer is the head of a chain.
    capacity: Cell<u32>,
    start: Cell<u32>,
    end: Cell<u32>,
}

impl Slot {
    pub(super) fn new(first: NonNull<u8>, index: u32, capacity: u32) -> Self {
        let zero = || Cell::new(0);
        let capacity = Cell::new(capacity);
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

    /// Bytes the whole buffer has; of the head of a chain, those that a message fills before it
    /// runs on into the tail.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slot().capacity.get() as usize
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
}

/// Chained receives: a message that is longer than its buffer runs on into a second one.
///
/// The tail is a separate block, so that data that begin where it begins can be handed on in place.
/// The room of the head beyond its capacity is spare, for joining the two.
impl Buf {
    /// Makes this buffer the head of a chain: it takes the first `head_bytes` of a message, `tail`
    /// as many of the rest as its length says. A buffer stays chained, also in its pool, until
    /// [`Buf::unchain`]. The first chain of a pool allocates.
    ///
    /// # Panics
    /// If the buffer is chained already, or cannot hold all that the two take.
    pub fn chain(&mut self, head_bytes: usize, tail: Bulk) {
        let chain_bytes = head_bytes.checked_add(tail.len());
        let fits = chain_bytes.is_some_and(|bytes| bytes <= self.capacity());
        assert!(fits, "the chain is longer than its buffer");
        let place = self.make_tail();
        assert!(place.is_none(), "chained already");
        *place = Some(tail);
        self.set_range(0..0);
        // At most the capacity, which is a u32.
        self.slot().capacity.set(head_bytes as u32);
    }

    /// Ends a chain: the buffer is whole again, and its tail comes back. `None` if it was not
    /// chained, or the tail was taken.
    pub fn unchain(&mut self) -> Option<Bulk> {
        self.slot().capacity.set(self.pool().buf_bytes());
        self.tail_mut().and_then(Option::take)
    }

    /// The second buffer of a chain. While the chain is posted, its length is its capacity;
    /// afterwards it is the number of bytes that a message longer than the head has there.
    pub fn tail(&self) -> Option<&Bulk> {
        let tail = self.pool().tail(self.slot().index)?;
        // SAFETY: only the owner of a buffer reaches its tail, and `&self` keeps it from changing
        // while the reference lives.
        unsafe { (*tail.get()).as_ref() }
    }

    fn tail_mut(&mut self) -> Option<&mut Option<Bulk>> {
        let tail = self.pool().tail(self.slot().index)?;
        // SAFETY: only the owner of a buffer reaches its tail, and `&mut self` keeps other accesses
        // out while the reference lives.
        Some(unsafe { &mut *tail.get() })
    }

    fn make_tail(&mut self) -> &mut Option<Bulk> {
        let tail = self.pool().make_tail(self.slot().index);
        // SAFETY: as in `tail_mut`.
        unsafe { &mut *tail.get() }
    }

    /// True if a received message runs on into the tail.
    #[inline]
    pub fn spills(&self) -> bool {
        self.len() >= self.capacity() && self.tail().is_some_and(|tail| !tail.is_empty())
    }

    /// For a driver: longest message that fits, with the tail of a chain.
    pub fn room(&self) -> usize {
        self.capacity() + self.tail().map_or(0, Bulk::len)
    }

    /// For a driver: copies a part of a message, which fits, to where it belongs.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let head_bytes = self.capacity();
        let (head, tail) = bytes.split_at(head_bytes.saturating_sub(offset).min(bytes.len()));
        if !head.is_empty() {
            self.whole_mut()[offset..offset + head.len()].copy_from_slice(head);
        }
        if !tail.is_empty()
            && let Some(Some(block)) = self.tail_mut()
        {
            block.copy_from(offset + head.len() - head_bytes, tail);
        }
    }

    /// For a driver: records that a message of `length` bytes was received here. Its bytes belong
    /// where [`Buf::received_mut`] says. Returns `false`, and changes nothing, if the message does
    /// not fit.
    #[must_use]
    pub fn set_received(&mut self, length: usize) -> bool {
        let in_head = length.min(self.capacity());
        let behind = length - in_head;
        if length > self.room() {
            return false;
        }
        self.set_range(0..in_head);
        if in_head == self.capacity()
            && let Some(Some(tail)) = self.tail_mut()
        {
            tail.set_len(behind);
        }
        true
    }

    /// The bytes of a received message: those in the head, and those in the tail.
    pub fn received_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        if !self.spills() {
            return (self.bytes_mut(), &mut []);
        }
        let Parts { head, tail, .. } = self.parts_mut();
        (head, tail.and_then(Option::as_mut).map_or(&mut [], Bulk::bytes_mut))
    }

    pub fn parts_mut(&mut self) -> Parts<'_> {
        let slot = self.slot();
        let (first, range, whole) = (slot.first, self.range(), self.pool().buf_bytes());
        // SAFETY: the buffer has `whole` initialised bytes and no other owner; `&mut self` keeps
        // other accesses out while the slices live.
        let bytes = unsafe { slice::from_raw_parts_mut(first.as_ptr(), whole as usize) };
        let (head, spare) = bytes.split_at_mut(range.end);
        let tail = self.pool().tail(slot.index);
        // SAFETY: as in `tail_mut`; the tail is not part of the bytes.
        let tail = tail.map(|tail| unsafe { &mut *tail.get() });
        Parts { head: &mut head[range.start..], spare, tail }
    }

    /// Moves the bytes of the tail behind those of the head, and ends the chain. Returns the number
    /// of bytes copied; zero for a message that did not spill.
    pub fn join(&mut self) -> usize {
        let spills = self.spills();
        let length = self.len();
        let Some(tail) = self.unchain().filter(|_| spills) else { return 0 };
        let joined = length + tail.len();
        self.whole_mut()[length..joined].copy_from_slice(tail.bytes());
        self.set_range(0..joined);
        tail.len()
    }
}

#[derive(Debug)]
pub struct Parts<'a> {
    /// The bytes received in the buffer.
    pub head: &'a mut [u8],
    /// The bytes of the buffer behind it, of no meaning.
    pub spare: &'a mut [u8],
    /// The second buffer, if it was not taken; `None` in a pool without chains.
    pub tail: Option<&'a mut Option<Bulk>>,
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
