//! The short endpoint of a connection, by which the lane sends short messages: each is copied into a slot, and posted
//! with the next flush. The lane gives the receives of short messages back here, one for each flush. What is in both the
//! queue pair and its short endpoint is kept here.
//!
//! Messages that arrive come from the completion queue of all connections: nothing can be taken here.

use super::super::{Head, LongHead, Short, ShortEndpointOps};
use super::post::Piece;
use crate::mem::Buf;
use crate::mem::budget::RECVS_BEHIND_MAX;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

/// Messages that can wait for the next flush. Others are posted.
const SLOTS: usize = 16;

const _: () = assert!(RECVS_BEHIND_MAX == 1, "the late receive");

/// Places of queue pairs that have posted something since the last flush, or have something left from it.
pub(super) type DirtyPairs = RefCell<Vec<u32>>;

/// See the module.
pub struct VerbsShortEndpoint {
    place: u32,
    dirty: Rc<DirtyPairs>,
    is_dirty: Cell<bool>,
    is_live: Cell<bool>,
    /// Messages can be sent: nothing has to be waited for any more.
    is_open: Cell<bool>,
    /// A receive for which the sends of the next flush do not wait ([`RECVS_BEHIND_MAX`]).
    late_receive: Cell<Option<Buf>>,
    /// Requests of the reactor that are in slots here or in the send queue.
    asked: Cell<u32>,
    asked_max: u32,
    inline_bytes: usize,
    /// A message is in the slot of its number modulo their number.
    slots: [UnsafeCell<Short>; SLOTS],
    /// Number of the next message ...
    written: Cell<u32>,
    /// ... of the first that is not in the send queue ...
    queued: Cell<u32>,
    /// ... and of the first that the device has not copied. Numbers wrap.
    copied: Cell<u32>,
}

impl fmt::Debug for VerbsShortEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsShortEndpoint").field("place", &self.place).finish_non_exhaustive()
    }
}

impl VerbsShortEndpoint {
    pub(super) fn new(
        place: u32,
        dirty: &Rc<DirtyPairs>,
        asked_max: u32,
        inline_bytes: u32,
    ) -> Self {
        Self {
            place,
            dirty: Rc::clone(dirty),
            is_dirty: Cell::new(false),
            is_live: Cell::new(true),
            is_open: Cell::new(false),
            late_receive: Cell::new(None),
            asked: Cell::new(0),
            asked_max,
            inline_bytes: inline_bytes as usize,
            slots: std::array::from_fn(|_| UnsafeCell::new(Short::EMPTY)),
            written: Cell::new(0),
            queued: Cell::new(0),
            copied: Cell::new(0),
        }
    }

    /// Otherwise the device does not copy messages that are as long as their heads: nothing is sent here.
    pub(super) fn has_lane(&self) -> bool {
        self.inline_bytes >= size_of::<LongHead>()
    }

    #[inline]
    pub(super) fn mark(&self) {
        if !self.is_dirty.replace(true) {
            self.dirty.borrow_mut().push(self.place);
        }
    }

    #[inline]
    pub(super) fn unmark(&self) {
        self.is_dirty.set(false);
    }

    pub(super) fn open(&self) {
        self.is_open.set(true);
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    #[inline]
    pub(super) fn take_late(&self) -> Option<Buf> {
        self.late_receive.take()
    }

    #[inline]
    pub(super) fn has_late(&self) -> bool {
        let late = self.late_receive.take();
        let is_some = late.is_some();
        self.late_receive.set(late);
        is_some
    }

    #[inline]
    pub(super) fn count(&self) {
        self.asked.set(self.asked.get() + 1);
    }

    #[inline]
    pub(super) fn uncount(&self) {
        self.asked.set(self.asked.get() - 1);
    }

    #[inline]
    pub(super) fn has_written(&self) -> bool {
        self.written != self.queued
    }

    /// The next message for the send queue, where it stays until [`VerbsShortEndpoint::free_slot`].
    #[inline]
    pub(super) fn take_written(&self) -> Option<Piece> {
        if !self.has_written() {
            return None;
        }
        let number = self.queued.get();
        self.queued.set(number.wrapping_add(1));
        // SAFETY: nothing changes a slot before it is free, and a shared borrow for this step is the only one.
        let message = unsafe { &*self.slot(number).get() }.bytes();
        Some(Piece { first: NonNull::from(message).cast(), bytes: message.len() as u32, key: 0 })
    }

    #[inline]
    pub(super) fn take_only_written(&self) -> Option<Piece> {
        let is_one = self.written.get().wrapping_sub(self.queued.get()) == 1;
        if is_one { self.take_written() } else { None }
    }

    #[inline]
    pub(super) fn free_slot(&self) {
        self.copied.set(self.copied.get().wrapping_add(1));
    }

    /// Messages that are not in the send queue are discarded.
    pub(super) fn end(&self) {
        self.is_live.set(false);
        while self.take_written().is_some() {
            self.uncount();
        }
    }

    #[inline]
    fn slot(&self, number: u32) -> &UnsafeCell<Short> {
        &self.slots[number as usize % SLOTS]
    }
}

impl ShortEndpointOps for VerbsShortEndpoint {
    #[inline]
    fn take(&self, _: &mut Short) -> Option<bool> {
        None
    }

    #[inline]
    fn send<const HEAD: usize>(
        &self,
        head: impl Into<Head<HEAD>>,
        message: &Short,
        bytes: usize,
    ) -> bool {
        let number = self.written.get();
        let is_full = number.wrapping_sub(self.copied.get()) as usize >= SLOTS;
        if is_full || bytes > self.inline_bytes || self.room() == 0 {
            return false;
        }
        // SAFETY: the slot is free, so that no request names it, and no borrow of it lasts longer than a step.
        unsafe { &mut *self.slot(number).get() }.copy_with_head(&head.into(), message, bytes);
        self.written.set(number.wrapping_add(1));
        self.count();
        self.mark();
        true
    }

    #[inline]
    fn room(&self) -> usize {
        let room = if self.is_live.get() { self.asked_max - self.asked.get() } else { 0 };
        room as usize
    }

    #[inline]
    fn give_back(&self, receive: Buf) -> Option<Buf> {
        if !self.is_live.get() || !self.is_open() || self.has_late() {
            return Some(receive);
        }
        self.late_receive.set(Some(receive));
        self.mark();
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::LineHead;
    use super::*;
    use crate::mem::{BufPool, Region};
    use crate::sys::mmap::{Mapping, PageRequest};

    const ASKED_MAX: u32 = 20;
    const INLINE_BYTES: u32 = 100;
    const HEAD: LineHead = LineHead::new([1, 2, 3, 4], [0; 6]);

    fn short_endpoint() -> (Rc<DirtyPairs>, VerbsShortEndpoint) {
        let dirty = Rc::new(DirtyPairs::default());
        let endpoint = VerbsShortEndpoint::new(7, &dirty, ASKED_MAX, INLINE_BYTES);
        (dirty, endpoint)
    }

    /// A message of `bytes` bytes, all but the head of which are `number`.
    fn message(number: u8, bytes: usize) -> Short {
        let mut short = Short::EMPTY;
        assert!(short.copy_from(&vec![number; bytes]));
        short
    }

    fn send(endpoint: &VerbsShortEndpoint, number: u8, bytes: usize) -> bool {
        endpoint.send(HEAD, &message(number, bytes), bytes)
    }

    /// The bytes that the device would copy.
    fn taken(endpoint: &VerbsShortEndpoint) -> Option<Vec<u8>> {
        let piece = endpoint.take_written()?;
        // SAFETY: the slot is not free, so that nothing changes it.
        let bytes =
            unsafe { std::slice::from_raw_parts(piece.first.as_ptr(), piece.bytes as usize) };
        Some(bytes.to_vec())
    }

    #[test]
    fn messages_are_taken_in_order_with_their_heads() {
        let (dirty, endpoint) = short_endpoint();
        assert!(send(&endpoint, 1, 60) && send(&endpoint, 2, 100));
        assert_eq!(*dirty.borrow(), [7], "marked once");
        for (number, bytes) in [(1, 60), (2, 100)] {
            let message = taken(&endpoint).unwrap();
            assert_eq!((message.len(), message[..4].to_vec()), (bytes, vec![1, 2, 3, 4]));
            assert_eq!(message[4..52], [0; 48], "the head");
            assert_eq!(message[52..], vec![number; bytes - 52]);
        }
        assert!(taken(&endpoint).is_none() && !endpoint.has_written());
    }

    #[test]
    fn a_slot_is_used_again_when_the_device_has_copied_it() {
        let (_, endpoint) = short_endpoint();
        for number in 0..SLOTS as u8 {
            assert!(send(&endpoint, number, 60));
        }
        assert!(!send(&endpoint, 99, 60), "no slot");
        assert!(taken(&endpoint).is_some() && !send(&endpoint, 99, 60), "not copied yet");
        endpoint.free_slot();
        assert!(send(&endpoint, 99, 60) && !send(&endpoint, 99, 60));
        let rest: Vec<u8> =
            std::iter::from_fn(|| taken(&endpoint)).map(|bytes| bytes[59]).collect();
        let expected: Vec<u8> = (1..SLOTS as u8).chain([99]).collect();
        assert_eq!(rest, expected);
    }

    #[test]
    fn a_message_is_refused_that_the_device_does_not_copy_or_has_no_room_for() {
        let (_, endpoint) = short_endpoint();
        assert!(!send(&endpoint, 1, INLINE_BYTES as usize + 1));
        (0..ASKED_MAX - 1).for_each(|_| endpoint.count());
        assert_eq!(endpoint.room(), 1);
        assert!(send(&endpoint, 1, 60) && !send(&endpoint, 2, 60));
        endpoint.uncount();
        assert!(send(&endpoint, 2, 60));
    }

    #[test]
    fn the_end_discards_what_was_not_queued_and_leaves_no_room() {
        let (_, endpoint) = short_endpoint();
        assert!(send(&endpoint, 1, 60) && send(&endpoint, 2, 60) && send(&endpoint, 3, 60));
        assert!(endpoint.take_written().is_some());
        endpoint.end();
        assert_eq!(
            (endpoint.asked.get(), endpoint.has_written()),
            (1, false),
            "one is in the send queue"
        );
        assert!(endpoint.room() == 0 && !send(&endpoint, 4, 60));
    }

    #[test]
    fn only_a_single_message_is_taken_alone() {
        let (_, endpoint) = short_endpoint();
        assert!(endpoint.take_only_written().is_none());
        assert!(send(&endpoint, 1, 60) && send(&endpoint, 2, 60));
        assert!(endpoint.take_only_written().is_none(), "two");
        assert!(endpoint.take_written().is_some());
        assert!(endpoint.take_only_written().is_some() && !endpoint.has_written());
    }

    /// Give back receives before and after messages can be sent. Expect one to be kept, and none after the end.
    #[test]
    fn one_receive_is_kept_for_the_next_flush_once_messages_can_be_sent() {
        let (dirty, endpoint) = short_endpoint();
        let region =
            Region::from_mapping(Mapping::anonymous(4096, PageRequest::default()).unwrap());
        let pool = BufPool::new(region, 256, 5).unwrap();
        let receive = || pool.take().unwrap();
        assert!(endpoint.give_back(receive()).is_some() && dirty.borrow().is_empty(), "not open");
        endpoint.open();
        assert!(endpoint.give_back(receive()).is_none());
        assert!(endpoint.has_late() && *dirty.borrow() == [7]);
        assert!(endpoint.give_back(receive()).is_some() && endpoint.has_late(), "the second");
        assert!(endpoint.take_late().is_some() && endpoint.take_late().is_none());
        endpoint.end();
        assert!(endpoint.give_back(receive()).is_some() && !endpoint.has_late());
    }
}
