//! A doorbell: one bit per connection that needs attention, so that checking costs O(ringing).
//!
//! Two levels: a summary word says which of 64 words have bits set. Any number of threads and
//! processes ring, one core listens. A hostile ringer can set bits (a look for nothing), clear
//! them, or keep the listener asleep (a delay until the listener's own rounds); it cannot do more.

use super::atomic::{Ordering, fence};
use super::words::{HeapWords, PADDED_WORDS, Words};

pub const BELL_BITS: usize = 64 * 64;

pub const BELL_WORDS: usize = BITS + 64;

// Each on separate cache lines: the summary is loaded every turn, the parked word once per ring.
const SUMMARY: usize = 0;
const PARKED: usize = PADDED_WORDS;
const BITS: usize = 2 * PADDED_WORDS;

const _: () = assert!(PARKED - SUMMARY >= PADDED_WORDS && BITS - PARKED >= PADDED_WORDS);

/// The word that is set while the listener sleeps; a 32-bit futex lies in its low half.
pub const BELL_PARKED_WORD: usize = PARKED;

/// Ready bits over some words; see the module.
#[derive(Debug)]
pub struct Doorbell<W>(W);

impl Doorbell<HeapWords> {
    /// A bell for threads of this process.
    pub fn on_heap() -> Self {
        Self(HeapWords::new(BELL_WORDS))
    }
}

impl<W: Words> Doorbell<W> {
    /// A bell in `words`, which hold [`BELL_WORDS`] at least. `None` if they do not.
    pub fn new(words: W) -> Option<Self> {
        (words.count() >= BELL_WORDS).then_some(Self(words))
    }

    /// Sets the bit of `index`. Returns true if the listener was parked and must be woken.
    /// An index beyond the bell has no effect.
    #[must_use = "a parked listener must be woken"]
    pub fn ring(&self, index: u32) -> bool {
        let index = index as usize;
        if index >= BELL_BITS {
            return false;
        }
        // Release pairs with the Acquire of `take`: a thread that sees the bit sees the data that
        // it announces.
        self.0.fetch_or(BITS + index / 64, 1 << (index % 64), Ordering::Release);
        self.0.fetch_or(SUMMARY, 1 << (index / 64), Ordering::Release);
        // Pairs with the fence of `park`: either this side sees it parked, or it sees the summary.
        fence(Ordering::SeqCst);
        self.unpark()
    }

    /// Marks the listener as no longer parked. Returns true if it was.
    pub fn unpark(&self) -> bool {
        // Acquire pairs with the fence that comes before `park` where two bells guard one sleep: a
        // thread that sees the second one parked also sees the first one parked.
        self.0.load(PARKED, Ordering::Relaxed) != 0
            && self.0.swap(PARKED, 0, Ordering::Acquire) != 0
    }

    /// True if any bit rings. One load of a line that stays in the cache while none does.
    #[inline]
    pub fn rings(&self) -> bool {
        // The bits are fetched by `take`, which orders; here only the value matters.
        self.0.load(SUMMARY, Ordering::Relaxed) != 0
    }

    /// Takes the bits of up to 64 connections: the index of the first one, and the bits.
    pub fn take(&self) -> Option<(u32, u64)> {
        let summary = self.0.load(SUMMARY, Ordering::Relaxed);
        if summary == 0 {
            return None;
        }
        let word = summary.trailing_zeros();
        // The summary is cleared before the bits are: a ring that comes between sets both again.
        // Acquire keeps the swap below from moving up, and pairs with the Release of `ring`.
        self.0.fetch_and(SUMMARY, !(1 << word), Ordering::AcqRel);
        let bits = self.0.swap(BITS + word as usize, 0, Ordering::Acquire);
        Some((word * 64, bits))
    }

    /// Declares the listener parked. False when something rings: then it must not sleep.
    #[must_use = "when false, the listener must not sleep"]
    pub fn park(&self) -> bool {
        self.0.store(PARKED, 1, Ordering::Relaxed);
        // Pairs with the fence of `ring`, and with the Acquire of `unpark`.
        fence(Ordering::SeqCst);
        if self.rings() {
            self.0.store(PARKED, 0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Ends a sleep, however it ended.
    pub fn awake(&self) {
        self.0.store(PARKED, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    impl<W> Doorbell<W> {
        /// The words the bell lies in.
        pub(crate) fn words(&self) -> &W {
            &self.0
        }
    }

    fn bell() -> Doorbell<HeapWords> {
        Doorbell::new(HeapWords::new(BELL_WORDS)).unwrap()
    }

    fn taken(bell: &Doorbell<HeapWords>) -> Vec<u32> {
        let mut all = Vec::new();
        while let Some((first, bits)) = bell.take() {
            all.extend((0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit));
        }
        all
    }

    #[test]
    fn every_rung_index_is_taken_once_and_in_order() {
        let bell = bell();
        for index in [4095, 0, 63, 64, 2000, 63] {
            assert!(!bell.ring(index));
        }
        assert_eq!(taken(&bell), [0, 63, 64, 2000, 4095]);
        assert_eq!(taken(&bell), [] as [u32; 0]);
    }

    #[test]
    fn an_index_the_bell_does_not_have_rings_nothing() {
        let bell = bell();
        assert!(!bell.ring(4096) && !bell.ring(u32::MAX));
        assert!(!bell.rings());
    }

    #[test]
    fn a_parked_listener_is_woken_by_the_first_ring_only() {
        let bell = bell();
        assert!(bell.park());
        assert!(bell.ring(5));
        assert!(!bell.ring(6));
        assert!(!bell.park(), "it must not sleep while something rings");
    }

    #[test]
    fn too_few_words_make_no_bell() {
        assert!(Doorbell::new(HeapWords::new(BELL_WORDS - 1)).is_none());
    }
}
