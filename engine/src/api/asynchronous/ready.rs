//! The futures that wakers have named since the core polled them last: one bit each. Any thread sets bits, and the
//! core takes them.

use crate::api::handle::pool::Pool;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// Bits of a word.
const WORD_BITS: usize = u64::BITS as usize;

/// See the module.
pub(super) struct ReadySet {
    /// Some word has a bit. On a line of its own: the core reads it in every turn.
    is_any: CachePadded<AtomicBool>,
    words: Box<[AtomicU64]>,
    /// Wakes the core.
    core: Arc<Pool>,
}

impl ReadySet {
    /// None of `slots` slots is ready.
    pub(super) fn new(slots: usize, core: Arc<Pool>) -> Arc<Self> {
        let words = (0..slots.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { is_any: CachePadded::new(AtomicBool::new(false)), words, core })
    }

    /// The waker of a slot. Clones of it cost no memory.
    pub(super) fn waker(self: &Arc<Self>, slot: usize) -> Waker {
        Waker::from(Arc::new(SlotWaker { ready: Arc::clone(self), slot }))
    }

    /// Has the core poll a slot. Any thread calls it.
    fn add(&self, slot: usize) {
        self.put(slot / WORD_BITS, 1 << (slot % WORD_BITS));
        // The bit is seen by a core that sees its wake request.
        fence(Ordering::SeqCst);
        self.core.wake();
    }

    fn put(&self, word: usize, bits: u64) {
        if let Some(word) = self.words.get(word) {
            // Release pairs with the Acquire of `take`: a future that is polled sees what it was woken for.
            word.fetch_or(bits, Ordering::Release);
            // Release pairs with the Acquire of `begin`.
            self.is_any.store(true, Ordering::Release);
        }
    }

    /// True if there are slots to poll. What is named from now on makes it true again.
    #[inline]
    pub(super) fn begin(&self) -> bool {
        // A plain load while there is nothing, so that the line stays in the cache.
        self.is_any.load(Ordering::Relaxed) && self.is_any.swap(false, Ordering::Acquire)
    }

    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// Takes the slots of one word.
    pub(super) fn take(&self, word: usize) -> Taken<'_> {
        let bits = self.words.get(word).map_or(0, |bits| bits.swap(0, Ordering::Acquire));
        Taken { ready: self, word, bits }
    }
}

/// Slots that were taken, in order. Those that are left when this is dropped, because a future panicked, go back.
pub(super) struct Taken<'a> {
    ready: &'a ReadySet,
    word: usize,
    bits: u64,
}

impl Iterator for Taken<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = self.bits.trailing_zeros() as usize;
        // Clears the lowest bit.
        self.bits &= self.bits.checked_sub(1)?;
        Some(self.word * WORD_BITS + lowest)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.bits != 0 {
            self.ready.put(self.word, self.bits);
        }
    }
}

/// Wakes the future in a slot, whichever is there: one that came later is polled once more than it asked for.
struct SlotWaker {
    ready: Arc<ReadySet>,
    slot: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.add(self.slot);
    }
}
