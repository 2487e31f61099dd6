//! A ring of messages from one producer to one consumer, in slots of 256 bytes.
//!
//! The first word of a slot is its header: sequence, flags and length in one atomic word, stored
//! last. The consumer looks only at the header of its next slot, so that flag and data arrive in
//! one cache line, and neither side reads an index of the other on this path. A message that does
//! not fit continues in the next slots; its first header is published last, when all of it is
//! there.
//!
//! The consumer publishes its progress only every quarter of the ring, in a separate line; the
//! producer reads that only when the ring looks full.
//!
//! Besides messages there are orders: a few bytes for the driver at the other end, in their place among the messages.
//! The consumer leaves an order in the ring until it has carried it out, and then says at once how far it has read.
//! So the producer knows when memory that an order names is free again ([`Producer::consumed`]).
//!
//! Both sides treat the other's writes as hostile. A consumer that lies about its progress loses
//! its own messages; a producer that lies in a header is [`Corrupt`]; neither can do more.

use super::atomic::{Ordering, fence};
use super::words::{
    BLOCK_BYTES, LINE_WORDS, PADDED_WORDS, SLOT_LINES, SlotPayload, Slots, WORD_BYTES, Words,
    tail_of_word, word_of_tail,
};
pub use super::words::{SLOT_WORDS, SlotImage};
use std::cell::Cell;
use std::mem::offset_of;

/// Bytes of a message that a slot holds after the first one.
pub const SLOT_PAYLOAD_BYTES: usize = size_of::<SlotPayload>();

/// Bytes of a message that its first slot holds: half a word is for the lead, used or not.
///
/// The half word also shifts the words of the slot by four bytes against those of the message. This suits the format
/// of messages: a transport header of seven XDR words, followed by pairs of words. Code that reads a pair as one word
/// then finds it in one of the stores that copied it.
pub const FIRST_PAYLOAD_BYTES: usize = SLOT_PAYLOAD_BYTES - LEAD_BYTES;

const LEAD_BYTES: usize = WORD_BYTES / 2;

/// Offset of a message in its first slot. The bytes before it are ignored in an image.
pub const SLOT_MESSAGE_AT: usize = WORD_BYTES + LEAD_BYTES;

/// Words of the control block of one ring.
pub const CONTROL_WORDS: usize = 4 * PADDED_WORDS;

/// Fewest and most slots of a ring.
pub const RING_SLOTS_MIN: u32 = 16;
/// See [`RING_SLOTS_MIN`].
pub const RING_SLOTS_MAX: u32 = 1 << 16;

// Lines of the control block: written by the consumer, by the consumer when it goes idle, and by
// the producer when it ends.
const CONSUMED: usize = 0;
const NEED_BELL: usize = PADDED_WORDS;
const CLOSED: usize = 2 * PADDED_WORDS;

// Number of slots ahead whose first two lines are prefetched. Slots to send in are prefetched for
// writing, well before the consumer looks at them; slots to receive from, as soon as one message of
// several has arrived. Both raise the rate at depth 32, and more so the farther apart the cores
// are. For every message they would cost the round trip of an echo 19 ns of 254.
const SEND_AHEAD: u64 = 3;
const RECEIVE_AHEAD: usize = 2;

// What one end writes and the other one reads. The slots are words of both.
const _: () = assert!(NEED_BELL - CONSUMED >= PADDED_WORDS && CLOSED - NEED_BELL >= PADDED_WORDS);
const _: () = assert!(CONTROL_WORDS - CLOSED >= PADDED_WORDS);
const _: () = assert!(CONTROL_WORDS.is_multiple_of(PADDED_WORDS));

const FLAG_CONTINUED: u64 = 1;
const FLAG_LEAD: u64 = 2;
const FLAG_ORDER: u64 = 4;
const LENGTH_BITS: u32 = 24;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

// The longest message fills half of the largest ring; its length must fit the header.
const _: () = assert!((RING_SLOTS_MAX as usize / 2) * SLOT_PAYLOAD_BYTES <= LENGTH_MASK as usize);

/// Bytes of an order.
pub const ORDER_BYTES: usize = 32;

const _: () = assert!(ORDER_BYTES <= FIRST_PAYLOAD_BYTES);

/// Position of a ring in its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// First word of the control block, of [`CONTROL_WORDS`].
    pub control: usize,
    /// First word of the slots.
    pub slots_at: usize,
    /// Number of slots: a power of two.
    pub slots: u32,
}

impl RingPlace {
    /// Bytes of the longest message.
    ///
    /// Half of the ring: less than a quarter is read but not yet published, so such a message
    /// always finds room in the end.
    pub const fn message_bytes_max(&self) -> usize {
        self.slots as usize / 2 * SLOT_PAYLOAD_BYTES - LEAD_BYTES
    }

    fn fits(&self, words: usize) -> bool {
        self.slots.is_power_of_two()
            && (RING_SLOTS_MIN..=RING_SLOTS_MAX).contains(&self.slots)
            && self.control.checked_add(CONTROL_WORDS).is_some_and(|end| end <= words)
            && (self.slots as usize * SLOT_WORDS)
                .checked_add(self.slots_at)
                .is_some_and(|end| end <= words)
    }

    const fn ends(&self) -> RingEnds {
        RingEnds {
            control: self.control,
            slots_at: self.slots_at,
            index_mask: (self.slots as usize - 1) * SLOT_WORDS,
            slots: self.slots as u64,
            message_bytes_max: self.message_bytes_max(),
        }
    }
}

/// Constants of a [`RingPlace`] that both ends need for each message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RingEnds {
    slots: u64,
    control: usize,
    slots_at: usize,
    /// Mask of the words before a slot.
    index_mask: usize,
    message_bytes_max: usize,
}

impl RingEnds {
    #[inline(always)]
    const fn slot(&self, index: u64) -> usize {
        self.slots_at + ((index as usize).wrapping_mul(SLOT_WORDS) & self.index_mask)
    }
}

/// The other side wrote something that no correct one writes; the text tells what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

/// Reason why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room for now.
    Full,
    /// Longer than [`RingPlace::message_bytes_max`].
    TooLong,
    /// The consumer broke the ring.
    Corrupt(Corrupt),
}

/// A message that has arrived and not been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes of the message.
    pub length: usize,
    /// The word that came before the message, if one did.
    pub lead: Option<u32>,
    /// True for an order, of [`ORDER_BYTES`]: see [`Consumer::order`].
    pub is_order: bool,
}

/// Result of a look at a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No message.
    Empty,
    /// A message of this length in bytes, which one slot holds, and nothing came before it.
    Short(usize),
    /// Any other, or a mistake of the producer: [`Consumer::arrival`] tells.
    Other,
}

impl Look {
    #[inline(always)]
    const fn of(header: u64) -> Self {
        match header as u32 as usize {
            // No flags, and a length.
            length @ ..=FIRST_PAYLOAD_BYTES => Self::Short(length),
            _ => Self::Other,
        }
    }
}

/// The sending end of a ring. Fields that every message needs are in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Producer<W: Words> {
    slots: W::Slots,
    /// Index of the next slot to fill; free-running.
    next: Cell<u64>,
    /// Slots before this one are free, by the last progress that was read.
    limit: Cell<u64>,
    /// Something was pushed since the last [`Producer::end_run`].
    in_run: Cell<bool>,
    holds_back: Cell<bool>,
    /// Begins with the word by which the consumer asks for the bell.
    bell: W::Slots,
    place: RingEnds,
    words: W,
}

/// The receiving end of a ring. Fields that every message needs are in the first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Consumer<W: Words> {
    slots: W::Slots,
    next: Cell<u64>,
    publish_at: Cell<u64>,
    quarter: u64,
    place: RingEnds,
    words: W,
}

#[inline]
fn slots_of(length: usize) -> usize {
    (length + LEAD_BYTES).div_ceil(SLOT_PAYLOAD_BYTES)
}

#[inline(always)]
const fn blocks_of(length: usize) -> usize {
    // Not `div_ceil`: it has to allow for overflow, and generates more code.
    (SLOT_MESSAGE_AT + BLOCK_BYTES - 1 + length) / BLOCK_BYTES
}

#[inline]
fn lead_word(lead: u32, message: &[u8]) -> u64 {
    let first = match message.first_chunk::<4>() {
        Some(four) => u32::from_ne_bytes(*four),
        None => word_of_tail(message) as u32,
    };
    u64::from(first) << 32 | u64::from(lead)
}

#[inline]
fn header(index: u64, flags: u64, length: usize) -> u64 {
    ((index + 1) << 32) | (flags << LENGTH_BITS) | length as u64
}

#[inline(always)]
fn continues(is_as_expected: bool) -> Result<(), Corrupt> {
    let wrong = Corrupt("ring slot that does not continue its message");
    if is_as_expected { Ok(()) } else { Err(wrong) }
}

impl<W: Words> Producer<W> {
    /// Offset of the slots that begin with the word of the bell, in bytes.
    pub const BELL_OFFSET: usize = offset_of!(Self, bell);

    /// The sending end of a fresh ring. `None` when it does not fit its words.
    pub fn new(words: W, place: RingPlace) -> Option<Self> {
        let slots = words.slots(place.slots_at, place.slots)?;
        let bell = words.slots(place.control.checked_add(NEED_BELL)?, 1)?;
        place.fits(words.count()).then_some(Self {
            words,
            slots,
            bell,
            place: place.ends(),
            next: Cell::new(0),
            limit: Cell::new(u64::from(place.slots)),
            in_run: Cell::new(false),
            holds_back: Cell::new(false),
        })
    }

    /// Makes a fresh ring full when its first `slots` are filled, until [`Producer::release`]: the memory of the others
    /// can be brought in before they are used. Messages that find room do not ask.
    pub fn hold_back(&self, slots: u32) {
        self.limit.set(self.place.slots.min(slots.into()));
        self.holds_back.set(true);
    }

    /// All of the ring may be filled from now on.
    pub fn release(&self) {
        self.holds_back.set(false);
    }

    /// Puts one message into the ring and makes it visible. `lead` travels in front of it.
    #[inline]
    pub fn push(&self, lead: Option<u32>, message: &[u8]) -> Result<(), PushError> {
        let flags = if lead.is_some() { FLAG_LEAD } else { 0 };
        let lead = lead.unwrap_or(0);
        let Some((first, rest)) = message.split_at_checked(FIRST_PAYLOAD_BYTES) else {
            self.reserve(1)?;
            self.publish(flags, lead, message, message.len(), 1);
            return Ok(());
        };
        let slots = slots_of(message.len());
        self.push_rest(rest, message.len(), slots)?;
        self.publish(flags, lead, first, message.len(), slots);
        Ok(())
    }

    /// Puts an order into the ring and makes it visible. Returns the progress of the consumer
    /// ([`Producer::consumed`]) that says it has been carried out.
    #[cold]
    pub fn push_order(&self, order: &[u8; ORDER_BYTES]) -> Result<u64, PushError> {
        self.reserve(1)?;
        self.publish(FLAG_ORDER, 0, order, ORDER_BYTES, 1);
        Ok(self.next.get())
    }

    /// Like [`Producer::push`], for a message of `length` bytes that one slot holds, without a
    /// lead. `head` replaces the start of `image`. All of the last block is written. `follows`: another
    /// message was pushed since the last [`Producer::end_run`], for certain.
    #[inline(always)]
    pub fn push_slot<const HEAD: usize>(
        &self,
        head: &[u64; HEAD],
        image: &SlotImage,
        length: usize,
        follows: bool,
    ) -> Result<(), PushError> {
        let blocks = blocks_of(length);
        if blocks > image.len() {
            return Err(PushError::TooLong);
        }
        let next = self.next.get();
        self.reserve(1)?;
        self.slots.put(self.slots.slot(next), head, image, blocks, header(next, 0, length));
        self.next.set(next + 1);
        match follows {
            true => self.fetch_behind(next + 1),
            false => self.fetch_ahead(next + 1),
        }
        Ok(())
    }

    #[inline]
    fn publish(&self, flags: u64, lead: u32, first: &[u8], length: usize, slots: usize) {
        let at = self.place.slot(self.next.get());
        if let Some(behind) = first.get(LEAD_BYTES..) {
            self.write_lines_from_behind(at, behind);
        }
        self.words.store(at + 1, lead_word(lead, first), Ordering::Relaxed);
        self.show(flags, length, slots);
    }

    #[inline(always)]
    fn show(&self, flags: u64, length: usize, slots: usize) {
        // Release pairs with the Acquire of `waiting`.
        let header = header(self.next.get(), flags, length);
        self.words.store(self.place.slot(self.next.get()), header, Ordering::Release);
        self.go_on(slots);
    }

    #[inline(always)]
    fn go_on(&self, slots: usize) {
        let next = self.next.get() + slots as u64;
        self.next.set(next);
        self.fetch_ahead(next);
    }

    /// Under load a later slot is fetched. A message that is sent alone fetches the next one only, as anything
    /// more would compete with its answer for the way between the cores.
    #[inline(always)]
    fn fetch_ahead(&self, next: u64) {
        match self.in_run.replace(true) {
            true => self.fetch_behind(next),
            false => self.slots.prefetch_write::<0>(self.slots.slot(next)),
        }
    }

    #[inline(always)]
    fn fetch_behind(&self, next: u64) {
        let ahead = self.slots.slot(next + SEND_AHEAD);
        self.slots.prefetch_write::<0>(ahead);
        self.slots.prefetch_write::<1>(ahead);
    }

    /// Returns true if something was pushed since the last [`Producer::end_run`].
    #[inline(always)]
    pub fn is_in_run(&self) -> bool {
        self.in_run.get()
    }

    /// Ends a run of pushes: the next message may be alone.
    #[inline]
    pub fn end_run(&self) {
        self.in_run.set(false);
    }

    /// The consumer watches the line of the header, and takes it away whenever it looks: so the
    /// lines behind it are filled first, and that line last and at once.
    #[inline]
    fn write_lines_from_behind(&self, at: usize, bytes: &[u8]) {
        match bytes.split_at_checked((LINE_WORDS - 2) * WORD_BYTES) {
            Some((line, behind)) => {
                self.words.write(at + LINE_WORDS, behind);
                self.words.write(at + 2, line);
            }
            None => self.words.write(at + 2, bytes),
        }
    }

    /// They are not looked at before the first header is there, so that header publishes them too.
    #[cold]
    fn push_rest(&self, rest: &[u8], length: usize, slots: usize) -> Result<(), PushError> {
        if length > self.place.message_bytes_max {
            return Err(PushError::TooLong);
        }
        self.reserve(slots)?;
        let (whole, last) = rest.as_chunks();
        let mut index = self.next.get() + 1;
        for part in whole {
            let header = header(index, FLAG_CONTINUED, SLOT_PAYLOAD_BYTES);
            self.slots.fill(self.slots.slot(index), part, header);
            index += 1;
        }
        if !last.is_empty() {
            let at = self.place.slot(index);
            self.words.write(at + 1, last);
            let header = header(index, FLAG_CONTINUED, last.len());
            self.words.store(at, header, Ordering::Relaxed);
        }
        Ok(())
    }

    #[inline(always)]
    fn reserve(&self, slots: usize) -> Result<(), PushError> {
        match self.next.get() + slots as u64 <= self.limit.get() {
            true => Ok(()),
            false => self.reserve_slowly(slots as u64),
        }
    }

    #[cold]
    fn reserve_slowly(&self, slots: u64) -> Result<(), PushError> {
        if self.holds_back.get() {
            return Err(PushError::Full);
        }
        self.consumed().map_err(PushError::Corrupt)?;
        if self.next.get() + slots <= self.limit.get() { Ok(()) } else { Err(PushError::Full) }
    }

    /// Slots that the consumer has freed since the start, as far as it has published. It has
    /// finished reading them, and the memory that orders in them name.
    pub fn consumed(&self) -> Result<u64, Corrupt> {
        // Acquire pairs with the Release of `publish_progress`: the consumer has read the slots out
        // before this side fills them again.
        let consumed = self.words.load(self.place.control + CONSUMED, Ordering::Acquire);
        // Less than a ring while most of it is held back: nothing is known to be consumed.
        let consumed_before = self.limit.get().saturating_sub(self.place.slots);
        if consumed < consumed_before || consumed > self.next.get() {
            return Err(Corrupt("ring progress out of range"));
        }
        if !self.holds_back.get() {
            self.limit.set(consumed + self.place.slots);
        }
        Ok(consumed)
    }

    /// Slots that this side has filled since the start.
    pub fn produced(&self) -> u64 {
        self.next.get()
    }

    /// True if the consumer went idle and must be rung.
    ///
    /// The caller has put a `fence(SeqCst)` between its pushes and this; one fence serves many
    /// rings. It pairs with the fence of [`Consumer::go_idle`].
    #[inline]
    pub fn wants_bell(&self) -> bool {
        self.bell.header(self.bell.slot(0)) != 0
    }

    /// Says that nothing more will come, and why (not zero). The consumer must be rung after it.
    pub fn close(&self, reason: u64) {
        // Release pairs with the Acquire of `closed`: all messages are there before.
        self.words.store(self.place.control + CLOSED, reason, Ordering::Release);
    }
}

impl<W: Words> Consumer<W> {
    /// The receiving end of a fresh ring. `None` when it does not fit its words.
    pub fn new(words: W, place: RingPlace) -> Option<Self> {
        let slots = words.slots(place.slots_at, place.slots)?;
        place.fits(words.count()).then_some(Self {
            words,
            slots,
            place: place.ends(),
            next: Cell::new(0),
            publish_at: Cell::new(u64::from(place.slots / 4)),
            quarter: u64::from(place.slots / 4),
        })
    }

    #[inline(always)]
    fn next_slot(&self) -> Option<(<W::Slots as Slots>::Slot<'_>, u64)> {
        let next = self.next.get();
        let slot = self.slots.slot(next);
        // The Acquire pairs with the Release of `show` and of `Slots::put`.
        let header = self.slots.header(slot);
        if (header >> 32) as u32 == (next + 1) as u32 {
            return Some((slot, header));
        }
        // The lines behind the header, so that they come with it and not after it. They are near
        // already unless a message is being written.
        self.slots.prefetch(slot, 1);
        self.slots.prefetch(slot, 2);
        None
    }

    #[inline(always)]
    fn waiting(&self) -> Option<u64> {
        self.next_slot().map(|(_, header)| header)
    }

    /// Looks for a message that one slot holds, and takes it. Behind it the image may hold anything. `ahead`: there
    /// may be more behind it, which are asked for.
    #[inline(always)]
    pub fn take_slot(&self, image: &mut SlotImage, ahead: bool) -> Look {
        let next = self.next.get();
        let Some((slot, header)) = self.next_slot() else { return Look::Empty };
        let Look::Short(length) = Look::of(header) else { return Look::Other };
        if ahead {
            self.slots.prefetch(slot, RECEIVE_AHEAD * SLOT_LINES);
            self.slots.prefetch(slot, RECEIVE_AHEAD * SLOT_LINES + 1);
        }
        self.slots.get(slot, image, SLOT_MESSAGE_AT + length);
        self.go_on(next + 1);
        Look::Short(length)
    }

    /// Returns true if [`Consumer::take_slot`] would take a message.
    pub fn has_short(&self) -> bool {
        matches!(self.waiting().map(Look::of), Some(Look::Short(_)))
    }

    /// True if `arrival` would return a message or an error.
    #[inline]
    pub fn has_arrival(&self) -> bool {
        self.waiting().is_some()
    }

    /// The message that waits, if one does.
    #[inline]
    pub fn arrival(&self) -> Result<Option<Arrival>, Corrupt> {
        let Some(header) = self.waiting() else { return Ok(None) };
        let length = (header & LENGTH_MASK) as usize;
        let flags = header >> LENGTH_BITS & 0xff;
        if flags == FLAG_ORDER {
            let is_order = length == ORDER_BYTES;
            let wrong = Corrupt("ring slot with an order of another length");
            return is_order.then_some(Some(Arrival { length, lead: None, is_order })).ok_or(wrong);
        }
        if flags & !FLAG_LEAD != 0 {
            return Err(Corrupt("ring slot with flags that no message starts with"));
        }
        if length > self.place.message_bytes_max {
            return Err(Corrupt("ring slot with a message longer than the ring takes"));
        }
        let lead_at = self.place.slot(self.next.get()) + 1;
        let lead = (flags != 0).then(|| self.words.load(lead_at, Ordering::Relaxed) as u32);
        Ok(Some(Arrival { length, lead, is_order: false }))
    }

    /// A copy of the order that waits, which stays in the ring until [`Consumer::finish_order`]. The producer can
    /// change it meanwhile.
    #[cold]
    pub fn order(&self) -> [u8; ORDER_BYTES] {
        let mut order = [0; ORDER_BYTES];
        self.read_first(&mut order);
        order
    }

    /// The order that waits has been carried out; the producer is told.
    #[cold]
    pub fn finish_order(&self) {
        self.free_slots(1);
        self.publish_progress();
    }

    /// Hints that the messages behind the one that waits will be taken, too: where there were
    /// several there are often more, and they come while this one is copied.
    #[inline(always)]
    pub fn fetch_ahead(&self) {
        let slot = self.slots.slot(self.next.get());
        self.slots.prefetch(slot, RECEIVE_AHEAD * SLOT_LINES);
        self.slots.prefetch(slot, RECEIVE_AHEAD * SLOT_LINES + 1);
    }

    /// Copies the waiting message out and frees its slots. `into` has the length of `arrival`.
    #[inline]
    pub fn take(&self, arrival: Arrival, into: &mut [u8]) -> Result<(), Corrupt> {
        debug_assert_eq!(arrival.length, into.len());
        let Some((first, rest)) = into.split_at_mut_checked(FIRST_PAYLOAD_BYTES) else {
            self.read_first(into);
            self.free_slots(1);
            return Ok(());
        };
        self.read_first(first);
        self.take_rest(rest)?;
        self.free_slots(slots_of(arrival.length));
        Ok(())
    }

    #[inline(always)]
    fn read_first(&self, first: &mut [u8]) {
        let at = self.place.slot(self.next.get());
        let word = self.words.load(at + 1, Ordering::Relaxed) >> 32;
        match first.split_at_mut_checked(LEAD_BYTES) {
            Some((start, behind)) => {
                start.copy_from_slice(&(word as u32).to_ne_bytes());
                self.words.read(at + 2, behind);
            }
            None => tail_of_word(word, first),
        }
    }

    #[cold]
    fn take_rest(&self, rest: &mut [u8]) -> Result<(), Corrupt> {
        let (whole, last) = rest.as_chunks_mut();
        let mut index = self.next.get() + 1;
        for part in whole {
            self.read_whole(index, part)?;
            index += 1;
        }
        if last.is_empty() { Ok(()) } else { self.read_continued(index, last) }
    }

    /// The first header has made slot `index` visible.
    fn read_continued(&self, index: u64, part: &mut [u8]) -> Result<(), Corrupt> {
        if let Ok(part) = part.try_into() {
            return self.read_whole(index, part);
        }
        let at = self.place.slot(index);
        self.words.read(at + 1, part);
        let found = self.words.load(at, Ordering::Relaxed);
        continues(found == header(index, FLAG_CONTINUED, part.len()))
    }

    #[inline(always)]
    fn read_whole(&self, index: u64, part: &mut SlotPayload) -> Result<(), Corrupt> {
        let found = self.slots.copy_out(self.slots.slot(index), part);
        continues(found == header(index, FLAG_CONTINUED, SLOT_PAYLOAD_BYTES))
    }

    #[inline(always)]
    fn free_slots(&self, slots: usize) {
        self.go_on(self.next.get() + slots as u64);
    }

    #[inline(always)]
    fn go_on(&self, next: u64) {
        self.next.set(next);
        if next >= self.publish_at.get() {
            self.publish_progress();
        }
    }

    #[cold]
    fn publish_progress(&self) {
        self.publish_at.set(self.next.get() + self.quarter);
        // Release pairs with the Acquire of `reserve_slowly`: our reads are over.
        self.words.store(self.place.control + CONSUMED, self.next.get(), Ordering::Release);
    }

    /// Asks the producer to ring from now on. False when a message waits already: then the ring
    /// is not idle, and the producer need not ring.
    pub fn go_idle(&self) -> bool {
        self.words.store(self.place.control + NEED_BELL, 1, Ordering::Relaxed);
        // Pairs with the producer's fence before `wants_bell`: either it sees that this side wants
        // the bell, or this side sees its message.
        fence(Ordering::SeqCst);
        if !self.has_arrival() {
            return true;
        }
        self.go_busy();
        false
    }

    /// The consumer looks by itself from now on; rings on the way are harmless.
    pub fn go_busy(&self) {
        self.words.store(self.place.control + NEED_BELL, 0, Ordering::Relaxed);
    }

    /// The producer's reason to end, or zero. Messages from before it may still wait.
    pub fn closed(&self) -> u64 {
        // Acquire pairs with the Release of `close`.
        self.words.load(self.place.control + CLOSED, Ordering::Acquire)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
