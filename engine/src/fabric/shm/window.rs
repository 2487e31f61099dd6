//! A window on memory that another process writes: the only way this driver touches such memory.
//!
//! Words go through relaxed atomics, long copies through [`copy_bytes`], and blocks of a slot through
//! [`load_block`], so that nothing the other side does meanwhile is undefined behaviour here. No
//! reference to the bytes ever exists.

use crate::sync::atomic::Ordering;
use crate::sync::atomic::mapped::AtomicU64;
pub(super) use crate::sync::copy::copy_bytes;
use crate::sync::copy::load_block;
use crate::sync::words::{
    Block, LINE_BLOCKS, LINE_WORDS, SlotImage, WORD_BYTES, Words, tail_of_word, word_of_tail,
};
use crate::sys::mmap::SharedMemory;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that are copied without a look at how many are left: half a cache line, as the messages that
/// are to be fast have two or three lines.
const BLOCK_BYTES: usize = 4 * WORD_BYTES;

/// Words of a shared mapping; clones are windows on the same words.
#[derive(Clone, Debug)]
pub(super) struct Window {
    base: NonNull<AtomicU64>,
    count: usize,
    memory: Arc<SharedMemory>,
}

// SAFETY: the words are atomics in a mapping that `memory` keeps alive; any thread may use them.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// All whole words of `memory`.
    pub(super) fn new(memory: Arc<SharedMemory>) -> Self {
        Self { base: memory.as_ptr().cast(), count: memory.len() / WORD_BYTES, memory }
    }

    /// Where the bytes of `range` start; `None` if the mapping does not have them.
    pub(super) fn bytes(&self, range: Range<usize>) -> Option<NonNull<u8>> {
        let inside = range.start <= range.end && range.end <= self.memory.len();
        // SAFETY: the start is within the mapping, as was just checked.
        inside.then(|| unsafe { self.memory.as_ptr().add(range.start) })
    }

    /// Brings all pages into being, so that the data path takes no page fault.
    pub(super) fn prefault(&self) -> std::io::Result<()> {
        self.memory.prefault(0..self.memory.len())
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.count, "word {at} is outside of a window of {}", self.count);
        // SAFETY: within the mapping, as was just checked; mappings start at a page, so the word is
        // aligned; everybody accesses it atomically or not as Rust memory at all.
        unsafe { self.base.add(at).as_ref() }
    }

    /// The words from `at` on that `bytes` bytes take.
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
        let mut to = self.span(at, bytes.len());
        let mut rest = bytes;
        let mut put = |word: u64| {
            // SAFETY: `span` has checked all words that `bytes` take, and this is called once for each.
            unsafe {
                (*to).store(word, Ordering::Relaxed);
                to = to.add(1);
            }
        };
        let mut put_all = |bytes: &[u8]| {
            bytes.as_chunks().0.iter().for_each(|word| put(u64::from_ne_bytes(*word)));
        };
        while let Some(block) = rest.split_off(..BLOCK_BYTES) {
            put_all(block);
        }
        if let Some(half) = rest.split_off(..BLOCK_BYTES / 2) {
            put_all(half);
        }
        if let Some(word) = rest.split_off(..WORD_BYTES) {
            put_all(word);
        }
        if !rest.is_empty() {
            put(word_of_tail(rest));
        }
    }

    #[inline]
    fn read(&self, at: usize, bytes: &mut [u8]) {
        let mut from = self.span(at, bytes.len());
        let mut rest = bytes;
        let mut get = || {
            // SAFETY: `span` has checked all words that `bytes` take, and this is called once for each.
            unsafe {
                let word = (*from).load(Ordering::Relaxed);
                from = from.add(1);
                word
            }
        };
        let mut get_all = |bytes: &mut [u8]| {
            bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = get().to_ne_bytes());
        };
        while let Some(block) = rest.split_off_mut(..BLOCK_BYTES) {
            get_all(block);
        }
        if let Some(half) = rest.split_off_mut(..BLOCK_BYTES / 2) {
            get_all(half);
        }
        if let Some(word) = rest.split_off_mut(..WORD_BYTES) {
            get_all(word);
        }
        if !rest.is_empty() {
            tail_of_word(get(), rest);
        }
    }

    /// By words and not by blocks: the headers were written by words just now, and a load that spans two
    /// stores waits for both (no store forwarding).
    #[inline(always)]
    fn put_slot(&self, at: usize, image: &SlotImage, blocks: usize, header: u64) {
        let slot = self.span(at, size_of::<SlotImage>());
        let words = image.as_flattened().as_chunks::<WORD_BYTES>().0;
        let behind = words.get(LINE_WORDS..2 * blocks).unwrap_or_default();
        let line = words[..LINE_WORDS].iter().enumerate().skip(1);
        // SAFETY: `span` has checked all words of a slot, which are as many as the image has.
        unsafe {
            for (word, at) in behind.iter().zip(LINE_WORDS..) {
                (*slot.add(at)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            for (at, word) in line {
                (*slot.add(at)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            (*slot).store(header, Ordering::Release);
        }
    }

    #[inline(always)]
    fn get_slot(&self, at: usize, image: &mut SlotImage, blocks: usize) {
        let slot = self.span(at, size_of::<SlotImage>());
        let from = slot.cast::<Block>();
        // SAFETY: `span` has checked all words of a slot, which are as many as the image has.
        unsafe {
            let second = (*slot.add(1)).load(Ordering::Relaxed);
            image[0][WORD_BYTES..].copy_from_slice(&second.to_ne_bytes());
            for (at, block) in image[..LINE_BLOCKS].iter_mut().enumerate().skip(1) {
                *block = load_block(from.add(at));
            }
            let behind = image.get_mut(LINE_BLOCKS..blocks).unwrap_or_default();
            for (block, at) in behind.iter_mut().zip(LINE_BLOCKS..) {
                *block = load_block(from.add(at));
            }
        }
    }

    #[inline(always)]
    fn prefetch_write(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which faults on no address and changes nothing.
        unsafe {
            std::arch::asm!(
                "prefetchw [{}]",
                in(reg) self.base.as_ptr().wrapping_add(at),
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which faults on no address and changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().wrapping_add(at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back_and_leave_their_neighbours_alone() {
        let (memory, _fd) = SharedMemory::create("window", 4096).unwrap();
        let window = Window::new(Arc::new(memory));
        for length in 0..=12 * WORD_BYTES {
            let after = 1 + length.div_ceil(WORD_BYTES);
            for at in 0..=after {
                window.store(at, u64::MAX, Ordering::Relaxed);
            }
            let sent: Vec<u8> = (1..=length as u8).collect();
            window.write(1, &sent);
            let mut got = vec![0; length];
            window.read(1, &mut got);
            assert_eq!(got, sent);
            assert_eq!(window.load(0, Ordering::Relaxed), u64::MAX);
            assert_eq!(window.load(after, Ordering::Relaxed), u64::MAX);
        }
    }

    #[test]
    fn a_slot_comes_back_by_whole_blocks_and_leaves_its_neighbours_alone() {
        let (memory, _fd) = SharedMemory::create("window", 4096).unwrap();
        let window = Window::new(Arc::new(memory));
        let (at, slot_words) = (32, size_of::<SlotImage>() / WORD_BYTES);
        for blocks in LINE_BLOCKS..=SlotImage::default().len() {
            (0..3 * slot_words).for_each(|at| window.store(at, u64::MAX, Ordering::Relaxed));
            let mut sent = SlotImage::default();
            let bytes = sent.as_flattened_mut().iter_mut().enumerate();
            bytes.for_each(|(number, byte)| *byte = number as u8 | 1);
            window.put_slot(at, &sent, blocks, 7);
            let words = 2 * blocks;
            assert_eq!(window.load(at, Ordering::Acquire), 7);
            for other in (0..at).chain(at + words..3 * slot_words) {
                assert_eq!(window.load(other, Ordering::Relaxed), u64::MAX, "word {other}");
            }
            let mut got = SlotImage::default();
            window.get_slot(at, &mut got, blocks);
            let (got, sent) = (got.as_flattened(), sent.as_flattened());
            assert_eq!(got[WORD_BYTES..blocks * 16], sent[WORD_BYTES..blocks * 16]);
            assert!(got[blocks * 16..].iter().chain(&got[..WORD_BYTES]).all(|byte| *byte == 0));
        }
    }
}
