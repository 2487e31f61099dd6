//! A window on memory that another process writes: the only way this driver touches such memory.
//!
//! Words go through relaxed atomics, long copies through [`copy_bytes`], and blocks of messages through
//! [`load_block`] and [`store_block`], so that nothing the other side does meanwhile is undefined behaviour here. No
//! reference to the bytes ever exists.

pub(super) use crate::sync::arch::copy_bytes;
use crate::sync::arch::{load_block, prefetch, prefetch_write, store_block};
use crate::sync::atomic::Ordering;
use crate::sync::atomic::mapped::AtomicU64;
use crate::sync::ring::Producer;
use crate::sync::words::{
    Block, LINE_BLOCKS, LINE_BYTES, LINE_REST_WORDS, LINE_WORDS, SLOT_WORDS, SlotImage,
    SlotPayload, Slots, WORD_BYTES, Words, head_blocks, tail_of_word, word_of_tail,
};
use crate::sys::mmap::SharedMemory;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Blocks that are copied without a look at how many are left.
type Line = [Block; LINE_BLOCKS];

/// # Safety
/// As for [`store_block`], for all of it.
#[inline(always)]
unsafe fn write_line(line: &Line, to: *mut Block) {
    // SAFETY: as the caller promises.
    unsafe {
        store_block::<0>(line[0], to);
        store_block::<1>(line[1], to);
        store_block::<2>(line[2], to);
        store_block::<3>(line[3], to);
    }
}

/// # Safety
/// As for [`load_block`], for all of it.
#[inline(always)]
unsafe fn read_line(from: *const Block) -> Line {
    // SAFETY: as the caller promises.
    unsafe {
        [load_block::<0>(from), load_block::<1>(from), load_block::<2>(from), load_block::<3>(from)]
    }
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    base: NonNull<AtomicU64>,
    count: usize,
    pub(super) memory: Arc<SharedMemory>,
}

// SAFETY: the words are atomics in a mapping that `memory` keeps alive; any thread may use them.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(super) fn new(memory: Arc<SharedMemory>) -> Self {
        Self { base: memory.as_ptr().cast(), count: memory.len() / WORD_BYTES, memory }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> Option<NonNull<u8>> {
        let inside = range.start <= range.end && range.end <= self.memory.len();
        // SAFETY: the start is within the mapping, as was just checked.
        inside.then(|| unsafe { self.memory.as_ptr().add(range.start) })
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} is outside of a window of {}", self.count);
        // SAFETY: within the mapping, as was just checked; mappings start at a page, so the word is
        // aligned; everybody accesses it atomically or not as Rust memory at all.
        unsafe { self.base.add(at).as_ref() }
    }

    #[inline(always)]
    fn span(&self, at: usize, bytes: usize) -> *const AtomicU64 {
        let room = self.count.checked_sub(at);
        let fits = room.is_some_and(|room| bytes.div_ceil(WORD_BYTES) <= room);
        assert!(fits, "{bytes} bytes at word {at} are outside");
        // SAFETY: `at` is at most the count, as was just checked.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Words for Window {
    type Slots = SlotWindow;

    fn slots(&self, at: usize, count: u32) -> Option<SlotWindow> {
        let words = (count as usize).checked_mul(SLOT_WORDS)?;
        let fits = count.is_power_of_two() && at.checked_add(words)? <= self.count;
        // SAFETY: `at` is within the mapping, as was just checked.
        let first = fits.then(|| unsafe { self.base.add(at) })?;
        let offset_mask = (words - SLOT_WORDS) * WORD_BYTES;
        Some(SlotWindow { first, offset_mask, _memory: Arc::clone(&self.memory) })
    }

    #[inline]
    fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    #[inline(always)]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    #[inline]
    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.word(at).swap(value, order)
    }

    #[inline]
    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.word(at).fetch_or(bits, order)
    }

    #[inline]
    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.word(at).fetch_and(bits, order)
    }

    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        let mut to = self.span(at, bytes.len()).cast::<Block>().cast_mut();
        let (blocks, rest) = bytes.as_chunks();
        let (lines, blocks) = blocks.as_chunks();
        let (words, tail) = rest.as_chunks();
        // SAFETY: `span` has checked the words that `bytes` take. What is behind whole blocks is less than one.
        unsafe {
            for line in lines {
                write_line(line, to);
                to = to.add(LINE_BLOCKS);
            }
            for block in blocks {
                store_block::<0>(*block, to);
                to = to.add(1);
            }
            let mut to = to.cast::<AtomicU64>();
            for word in words {
                (*to).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                to = to.add(1);
            }
            if !tail.is_empty() {
                (*to).store(word_of_tail(tail), Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn read(&self, at: usize, bytes: &mut [u8]) {
        let mut from = self.span(at, bytes.len()).cast::<Block>();
        let (blocks, rest) = bytes.as_chunks_mut();
        let (lines, blocks) = blocks.as_chunks_mut();
        let (words, tail) = rest.as_chunks_mut();
        // SAFETY: as in `write`.
        unsafe {
            for line in lines {
                *line = read_line(from);
                from = from.add(LINE_BLOCKS);
            }
            for block in blocks {
                *block = load_block::<0>(from);
                from = from.add(1);
            }
            let mut from = from.cast::<AtomicU64>();
            for word in words {
                *word = (*from).load(Ordering::Relaxed).to_ne_bytes();
                from = from.add(1);
            }
            if !tail.is_empty() {
                tail_of_word((*from).load(Ordering::Relaxed), tail);
            }
        }
    }
}

/// Slots in a window. An access needs no check: whatever its number, a slot is within them.
///
/// In this order, so that the address of the bell's word is in the first cache line of a ring's end, whose fields lie
/// before it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SlotWindow {
    first: NonNull<AtomicU64>,
    /// Of the bytes before a slot.
    offset_mask: usize,
    _memory: Arc<SharedMemory>,
}

const BELL_AT: usize = Producer::<Window>::BELL_OFFSET + offset_of!(SlotWindow, first);
const _: () = assert!(BELL_AT + size_of::<NonNull<AtomicU64>>() <= LINE_BYTES);

// SAFETY: the words are atomics in a mapping that `_memory` keeps alive; any thread may use them.
unsafe impl Send for SlotWindow {}
// SAFETY: as above.
unsafe impl Sync for SlotWindow {}

type SlotWords = [AtomicU64; SLOT_WORDS];

impl Slots for SlotWindow {
    type Slot<'a> = &'a SlotWords;

    #[inline(always)]
    fn slot(&self, number: u64) -> &SlotWords {
        let offset = (number as usize).wrapping_mul(SLOT_WORDS * WORD_BYTES) & self.offset_mask;
        // SAFETY: `Window::slots` has checked that there are SLOT_WORDS words from each multiple of them on
        // that is no greater than the mask, in a mapping that `_memory` keeps alive. Words are only accessed as
        // atomics, or by instructions that the compiler cannot look into.
        unsafe { self.first.byte_add(offset).cast().as_ref() }
    }

    #[inline(always)]
    fn header(&self, slot: &SlotWords) -> u64 {
        slot[0].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn put<const HEAD: usize>(
        &self,
        slot: &SlotWords,
        head: &[u64; HEAD],
        image: &SlotImage,
        blocks: usize,
        header: u64,
    ) {
        let head_blocks = const { head_blocks(HEAD) };
        let (line, next) = head.split_at(LINE_REST_WORDS);
        let to = slot.as_ptr().cast::<Block>().cast_mut();
        let mut at = head_blocks;
        while at < blocks
            && let Some(block) = image.get(at)
        {
            // SAFETY: a slot has as many blocks as an image, and they are words that anybody may write.
            unsafe { store_block::<0>(*block, to.add(at)) };
            at += 1;
        }
        for (word, to) in next.iter().zip(&slot[LINE_WORDS..]) {
            to.store(*word, Ordering::Relaxed);
        }
        for (word, to) in line.iter().zip(&slot[1..]) {
            to.store(*word, Ordering::Relaxed);
        }
        slot[0].store(header, Ordering::Release);
    }

    #[inline(always)]
    fn get(&self, slot: &SlotWords, image: &mut SlotImage, bytes: usize) {
        let from = slot.as_ptr().cast::<Block>();
        image[0][WORD_BYTES..].copy_from_slice(&slot[1].load(Ordering::Relaxed).to_ne_bytes());
        let [_, first, rest @ ..] = image;
        // SAFETY: a slot has as many blocks as an image. What is not asked for of a line comes along; a further
        // line would take its time.
        unsafe {
            *first = load_block::<1>(from);
            let [third, fourth, rest @ ..] = rest;
            (*third, *fourth) = (load_block::<2>(from), load_block::<3>(from));
            for (line, behind) in rest.as_chunks_mut::<LINE_BLOCKS>().0.iter_mut().enumerate() {
                if bytes <= LINE_BYTES * (line + 1) {
                    break;
                }
                let from = from.add(LINE_BLOCKS * (line + 1));
                *behind = read_line(from);
            }
        }
    }

    #[inline(always)]
    fn fill(&self, slot: &SlotWords, payload: &SlotPayload, header: u64) {
        let (lines, rest) = payload.as_chunks().0.as_chunks();
        let last = payload.last_chunk().map_or(0, |last| u64::from_ne_bytes(*last));
        let mut to = slot[1..].as_ptr().cast::<Block>().cast_mut();
        // SAFETY: what is behind the header of a slot has the bytes of a payload, and they are words that anybody
        // may write.
        unsafe {
            for line in lines {
                write_line(line, to);
                to = to.add(LINE_BLOCKS);
            }
            for block in rest {
                store_block::<0>(*block, to);
                to = to.add(1);
            }
        }
        slot[SLOT_WORDS - 1].store(last, Ordering::Relaxed);
        slot[0].store(header, Ordering::Relaxed);
    }

    #[inline(always)]
    fn copy_out(&self, slot: &SlotWords, payload: &mut SlotPayload) -> u64 {
        let (blocks, last) = payload.as_chunks_mut();
        let (lines, rest) = blocks.as_chunks_mut();
        let mut from = slot[1..].as_ptr().cast::<Block>();
        // SAFETY: what is behind the header of a slot has the bytes of a payload.
        unsafe {
            for line in lines {
                *line = read_line(from);
                from = from.add(LINE_BLOCKS);
            }
            for block in rest {
                *block = load_block::<0>(from);
                from = from.add(1);
            }
        }
        last.copy_from_slice(&slot[SLOT_WORDS - 1].load(Ordering::Relaxed).to_ne_bytes());
        slot[0].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn prefetch_write<const LINE: usize>(&self, slot: &SlotWords) {
        prefetch_write::<LINE>(slot.as_ptr().addr());
    }

    #[inline(always)]
    fn prefetch(&self, slot: &SlotWords, line: usize) {
        prefetch(slot.as_ptr().wrapping_add(line * LINE_WORDS));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::words::{BLOCK_BYTES, CheckedSlots, head_of};

    #[test]
    fn bytes_of_every_length_come_back_and_leave_their_neighbours_alone() {
        let (memory, _fd) = SharedMemory::create("window", 4096).unwrap();
        let window = Window::new(Arc::new(memory));
        for length in 0..=SLOT_WORDS * WORD_BYTES {
            let after = 1 + length.div_ceil(WORD_BYTES);
            for at in 0..=after {
                window.store(at, u64::MAX, Ordering::Relaxed);
            }
            let sent: Vec<u8> = (1..=length).map(|byte| byte as u8).collect();
            window.write(1, &sent);
            let mut got = vec![0; length];
            window.read(1, &mut got);
            assert_eq!(got, sent);
            assert_eq!(window.load(0, Ordering::Relaxed), u64::MAX);
            assert_eq!(window.load(after, Ordering::Relaxed), u64::MAX);
        }
    }

    #[test]
    fn there_are_no_slots_beyond_the_words_and_none_that_cannot_be_counted_round() {
        let (memory, _fd) = SharedMemory::create("window", 4096).unwrap();
        let window = Window::new(Arc::new(memory));
        for (at, count, is_there) in [
            (0, 16, true),
            (256, 8, true),
            (257, 8, false),
            (0, 32, false),
            (512, 1, false),
            (480, 1, true),
            (0, 3, false),
            (0, 0, false),
            (usize::MAX, 1, false),
        ] {
            assert_eq!(window.slots(at, count).is_some(), is_there, "{count} slots at {at}");
            assert_eq!(
                CheckedSlots::new(window.clone(), at, count).is_some(),
                is_there,
                "{count} checked slots at {at}"
            );
        }
    }

    #[test]
    fn a_slot_comes_back_by_whole_blocks_and_leaves_its_neighbours_alone() {
        let (memory, _fd) = SharedMemory::create("window", 4096).unwrap();
        let window = Window::new(Arc::new(memory));
        let (at, words_used) = (3 * SLOT_WORDS, 6 * SLOT_WORDS);
        let slots = window.slots(2 * SLOT_WORDS, 2).unwrap();
        for blocks in LINE_BLOCKS..=SlotImage::default().len() {
            (0..words_used).for_each(|at| window.store(at, u64::MAX, Ordering::Relaxed));
            let mut sent = SlotImage::default();
            let bytes = sent.as_flattened_mut().iter_mut().enumerate();
            bytes.for_each(|(number, byte)| *byte = number as u8 | 1);
            // The seventh slot of two is the second one.
            match blocks % 2 {
                0 => slots.put(slots.slot(7), &head_of::<LINE_REST_WORDS>(&sent), &sent, blocks, 7),
                _ => slots.put(
                    slots.slot(7),
                    &head_of::<{ LINE_REST_WORDS + 2 }>(&sent),
                    &sent,
                    blocks,
                    7,
                ),
            }
            assert_eq!((slots.header(slots.slot(7)), slots.header(slots.slot(u64::MAX))), (7, 7));
            for other in (0..at).chain(at + 2 * blocks..words_used) {
                assert_eq!(window.load(other, Ordering::Relaxed), u64::MAX, "word {other}");
            }
            let mut got = SlotImage::default();
            slots.get(slots.slot(1), &mut got, blocks * BLOCK_BYTES);
            let (got, sent) = (got.as_flattened(), sent.as_flattened());
            assert_eq!(got[WORD_BYTES..blocks * 16], sent[WORD_BYTES..blocks * 16]);
            let end = blocks.next_multiple_of(LINE_BLOCKS) * 16;
            assert!(got[end..].iter().chain(&got[..WORD_BYTES]).all(|byte| *byte == 0));
        }
    }
}
