//! Words: a stretch of 64-bit atomics that the other side may read and write at the same time.
//!
//! Bytes go in and out by whole words with relaxed loads and stores, or by instructions that the compiler
//! cannot look into (module `arch`), which is what makes it sound to copy memory that a hostile process
//! rewrites meanwhile: the copy may be torn, never undefined.

use super::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

pub const WORD_BYTES: usize = size_of::<u64>();

/// Two words that are copied together.
pub type Block = [u8; BLOCK_BYTES];

pub const BLOCK_BYTES: usize = 2 * WORD_BYTES;

pub const SLOT_WORDS: usize = 32;

/// Copy of a slot in private memory.
pub type SlotImage = [Block; SLOT_WORDS * WORD_BYTES / BLOCK_BYTES];

/// The bytes of a slot behind its header.
pub type SlotPayload = [u8; (SLOT_WORDS - 1) * WORD_BYTES];

/// Words of the first line of a slot, without its header.
pub const LINE_REST_WORDS: usize = LINE_WORDS - 1;

pub const LINE_BYTES: usize = LINE_WORDS * WORD_BYTES;

pub const LINE_BLOCKS: usize = LINE_BYTES / BLOCK_BYTES;

/// Words that destructive interference reaches over: two cache lines, as the adjacent-line
/// prefetcher pulls them in pairs.
pub const PADDED_WORDS: usize = 16;

pub const LINE_WORDS: usize = 8;

/// A stretch of 64-bit atomic words.
///
/// Every index is checked; one outside panics, so callers mask indices from elsewhere.
pub trait Words {
    type Slots: Slots;

    fn count(&self) -> usize;

    /// As many slots, which are a power of two, from the word at `at` on; `None` where they are not.
    fn slots(&self, at: usize, count: u32) -> Option<Self::Slots>;

    fn load(&self, at: usize, order: Ordering) -> u64;

    fn store(&self, at: usize, value: u64, order: Ordering);

    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64;

    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64;

    /// Keeps only `bits` of the word at `at`, giving the old one.
    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64;

    /// Copies `bytes` to the words from `at` on; the rest of the last word becomes zero.
    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        let (whole, tail) = bytes.as_chunks::<WORD_BYTES>();
        for (index, word) in whole.iter().enumerate() {
            self.store(at + index, u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            self.store(at + whole.len(), word_of_tail(tail), Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self, at: usize, bytes: &mut [u8]) {
        let (whole, tail) = bytes.as_chunks_mut::<WORD_BYTES>();
        for (index, word) in whole.iter_mut().enumerate() {
            *word = self.load(at + index, Ordering::Relaxed).to_ne_bytes();
        }
        if !tail.is_empty() {
            tail_of_word(self.load(at + whole.len(), Ordering::Relaxed), tail);
        }
    }

    /// Asks for the cache line of `at`, to write to it; a hint only.
    #[inline]
    fn prefetch_write(&self, _at: usize) {}

    /// Asks for the cache line of `at`; a hint only.
    #[inline]
    fn prefetch(&self, _at: usize) {}
}

/// The slots of a ring. They are counted round, so that every number is that of a slot.
pub trait Slots {
    type Slot<'a>: Copy
    where
        Self: 'a;

    fn slot(&self, number: u64) -> Self::Slot<'_>;

    /// The first word of a slot, with Acquire.
    fn header(&self, slot: Self::Slot<'_>) -> u64;

    /// Fills a slot with `head`, which is an odd number of words, all of the first line or more; with the
    /// blocks of `image` behind that up to `blocks`; and then, with Release, with `header`. The lines behind
    /// the first one come first.
    fn put<const HEAD: usize>(
        &self,
        slot: Self::Slot<'_>,
        head: &[u64; HEAD],
        image: &SlotImage,
        blocks: usize,
        header: u64,
    );

    /// Copies the first `bytes` bytes of a slot, and perhaps more, without its first word.
    fn get(&self, slot: Self::Slot<'_>, image: &mut SlotImage, bytes: usize);

    /// Fills a whole slot, its first word with `header`, in an order that others must not rely on.
    fn fill(&self, slot: Self::Slot<'_>, payload: &SlotPayload, header: u64);

    /// Copies a whole slot. Returns its first word.
    fn copy_out(&self, slot: Self::Slot<'_>, payload: &mut SlotPayload) -> u64;

    /// Asks for line number `LINE` of a slot, to write to it; a hint only.
    fn prefetch_write<const LINE: usize>(&self, slot: Self::Slot<'_>);

    /// Asks for a line, counted from the first one of a slot; a hint only.
    fn prefetch(&self, slot: Self::Slot<'_>, line: usize);
}

pub const SLOT_LINES: usize = SLOT_WORDS / LINE_WORDS;

pub const fn head_blocks(head_words: usize) -> usize {
    assert!(head_words % 2 == 1 && LINE_REST_WORDS <= head_words && head_words < SLOT_WORDS);
    head_words.div_ceil(2)
}

/// Slots of words every access of which is checked.
#[derive(Clone, Debug)]
pub struct CheckedSlots<W> {
    words: W,
    at: usize,
    index_mask: usize,
}

impl<W: Words> CheckedSlots<W> {
    pub fn new(words: W, at: usize, count: u32) -> Option<Self> {
        let end = (count as usize).checked_mul(SLOT_WORDS)?.checked_add(at)?;
        let fits = count.is_power_of_two() && end <= words.count();
        fits.then(|| Self { words, at, index_mask: (count as usize - 1) * SLOT_WORDS })
    }
}

impl<W: Words> Slots for CheckedSlots<W> {
    type Slot<'a>
        = usize
    where
        Self: 'a;

    fn slot(&self, number: u64) -> usize {
        self.at + ((number as usize).wrapping_mul(SLOT_WORDS) & self.index_mask)
    }

    fn header(&self, slot: usize) -> u64 {
        self.words.load(slot, Ordering::Acquire)
    }

    fn put<const HEAD: usize>(
        &self,
        slot: usize,
        head: &[u64; HEAD],
        image: &SlotImage,
        blocks: usize,
        header: u64,
    ) {
        let head_blocks = const { head_blocks(HEAD) };
        let behind = image.get(head_blocks..blocks).unwrap_or_default();
        self.words.write(slot + 2 * head_blocks, behind.as_flattened());
        let (line, next) = head.split_at(LINE_REST_WORDS);
        let words = next.iter().zip(slot + LINE_WORDS..).chain(line.iter().zip(slot + 1..));
        for (word, at) in words {
            self.words.store(at, *word, Ordering::Relaxed);
        }
        self.words.store(slot, header, Ordering::Release);
    }

    fn get(&self, slot: usize, image: &mut SlotImage, bytes: usize) {
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let end = blocks.clamp(LINE_BLOCKS, image.len()) * BLOCK_BYTES;
        let bytes = &mut image.as_flattened_mut()[WORD_BYTES..end];
        self.words.read(slot + 1, bytes);
    }

    fn fill(&self, slot: usize, payload: &SlotPayload, header: u64) {
        self.words.write(slot + 1, payload);
        self.words.store(slot, header, Ordering::Relaxed);
    }

    fn copy_out(&self, slot: usize, payload: &mut SlotPayload) -> u64 {
        self.words.read(slot + 1, payload);
        self.words.load(slot, Ordering::Relaxed)
    }

    fn prefetch_write<const LINE: usize>(&self, slot: usize) {
        self.words.prefetch_write(slot + LINE * LINE_WORDS);
    }

    fn prefetch(&self, slot: usize, line: usize) {
        self.words.prefetch(slot + line * LINE_WORDS);
    }
}

/// Shift of the bytes of a word that come first in memory.
const LOW_HALF_SHIFT: u32 = if cfg!(target_endian = "little") { 0 } else { 32 };

/// The word whose first bytes are `tail` (fewer than eight), the others zero.
#[inline]
pub fn word_of_tail(tail: &[u8]) -> u64 {
    if let Ok(four) = tail.try_into() {
        // XDR: in registers, and not by way of memory, which would take the longer.
        return u64::from(u32::from_ne_bytes(four)) << LOW_HALF_SHIFT;
    }
    let mut word = [0; WORD_BYTES];
    for (to, from) in word.iter_mut().zip(tail) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

/// Fills `tail` (fewer than eight bytes) with the first bytes of `word`.
#[inline]
pub fn tail_of_word(word: u64, tail: &mut [u8]) {
    let word = word.to_ne_bytes();
    let mut at = 0;
    if let Some(four) = tail.first_chunk_mut::<4>() {
        four.copy_from_slice(&word[..4]);
        at = 4;
    }
    for (to, from) in tail[at..].iter_mut().zip(&word[at..]) {
        *to = *from;
    }
}

/// The first words of an image, without the header.
#[cfg(test)]
pub fn head_of<const HEAD: usize>(image: &SlotImage) -> [u64; HEAD] {
    let words = image.as_flattened().as_chunks().0;
    std::array::from_fn(|at| u64::from_ne_bytes(words[at + 1]))
}

/// Words in private heap memory, shared between threads only; clones are the same words.
#[derive(Clone, Debug)]
pub struct HeapWords(Arc<[AtomicU64]>);

impl HeapWords {
    /// `count` words, all zero.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Words for HeapWords {
    type Slots = CheckedSlots<Self>;

    fn slots(&self, at: usize, count: u32) -> Option<Self::Slots> {
        CheckedSlots::new(self.clone(), at, count)
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0[at].load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0[at].store(value, order);
    }

    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.0[at].swap(value, order)
    }

    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.0[at].fetch_or(bits, order)
    }

    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.0[at].fetch_and(bits, order)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back_and_leave_their_neighbours_alone() {
        for length in 0..=40 {
            let words = HeapWords::new(8);
            words.store(7, u64::MAX, Ordering::Relaxed);
            let sent: Vec<u8> = (1..=length).collect();
            words.write(1, &sent);
            let mut got = vec![0; sent.len()];
            words.read(1, &mut got);
            assert_eq!(got, sent);
            assert_eq!(words.load(0, Ordering::Relaxed), 0);
            assert_eq!(words.load(7, Ordering::Relaxed), u64::MAX);
        }
    }
}
