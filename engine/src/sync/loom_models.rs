//! Models of the ring, the idle handshake and the bell, run through every interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p spinrpc --release --lib loom`

use super::atomic::{Ordering, fence};
use super::bell::{BELL_WORDS, Bell};
use super::ring::{CONTROL_WORDS, Consumer, Producer, PushError, RingPlace, SLOT_WORDS};
use super::words::{HeapWords, Words};
use loom::thread;

const SLOTS: u32 = 16;
const PLACE: RingPlace = RingPlace { control: 0, slots_at: CONTROL_WORDS, slots: SLOTS };

/// Loom wants to know each atomic by itself, and there are thousands of words of which a model
/// touches a few: words that come to life when they are touched would differ from run to run, so
/// only those of the first lap and of the control block exist, the others fold onto them.
type RingEnds = (Producer<Sparse>, Consumer<Sparse>);

#[derive(Clone, Debug)]
struct Sparse(HeapWords);

/// Words of a slot that a model keeps: the header and the first of the payload.
const KEPT: usize = 3;
const CONTROL_KEPT: usize = 3;

impl Sparse {
    fn new() -> Self {
        Self(HeapWords::new(CONTROL_KEPT + SLOTS as usize * KEPT))
    }

    fn fold(at: usize) -> usize {
        let Some(slot_word) = at.checked_sub(CONTROL_WORDS) else { return at / 16 % CONTROL_KEPT };
        let (slot, word) = (slot_word / SLOT_WORDS, slot_word % SLOT_WORDS);
        assert!(word < KEPT, "the model's messages are short");
        CONTROL_KEPT + slot * KEPT + word
    }
}

impl Words for Sparse {
    fn count(&self) -> usize {
        CONTROL_WORDS + SLOTS as usize * SLOT_WORDS
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0.load(Self::fold(at), order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0.store(Self::fold(at), value, order);
    }

    fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.0.swap(Self::fold(at), value, order)
    }

    fn fetch_or(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(Self::fold(at), bits, order)
    }

    fn fetch_and(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_and(Self::fold(at), bits, order)
    }
}
