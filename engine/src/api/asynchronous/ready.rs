//! The futures that wakers have named since the core polled them last: one bit each. Any thread sets bits, and the
//! core takes them.

use crate::api::handle::pool::Pool;
use crate::sync::doorbell::{BELL_BITS, Doorbell};
use crate::sync::words::HeapWords;
use std::sync::Arc;
use std::task::{Wake, Waker};

pub(super) const SLOTS_MAX: usize = BELL_BITS;

const WORD_BITS: usize = u64::BITS as usize;

/// The side of the wakers.
struct Named {
    bits: Doorbell<HeapWords>,
    core: Arc<Pool>,
}

/// The side of the core.
pub(super) struct Ready {
    named: Arc<Named>,
    /// Slots to be polled in this turn. Some are left when one panics; they are polled in the next.
    taken: Box<[u64]>,
    /// The first word of these that may have bits; behind the last one, all have been polled.
    word: usize,
}

impl Ready {
    /// None of `slots` slots is ready; they are [`SLOTS_MAX`] at most.
    pub(super) fn new(slots: usize, core: Arc<Pool>) -> Self {
        let (bits, words) = (Doorbell::on_heap(), slots.div_ceil(WORD_BITS));
        let (named, taken) = (Arc::new(Named { bits, core }), vec![0; words].into());
        Self { named, taken, word: words }
    }

    /// The waker of a slot. Clones of it cost no memory.
    pub(super) fn waker(&self, slot: usize) -> Waker {
        Waker::from(Arc::new(SlotWaker { named: Arc::clone(&self.named), slot: slot as u32 }))
    }

    /// Takes all slots that were named; false if there are none. A slot that is named while these are polled is for the
    /// next turn, so that a future that never waits leaves the core to others.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        if self.word == self.taken.len() && !self.named.bits.rings() {
            return false;
        }
        for _ in 0..self.taken.len() {
            let Some((first, bits)) = self.named.bits.take() else { break };
            if let Some(word) = self.taken.get_mut(first as usize / WORD_BITS) {
                *word |= bits;
            }
        }
        self.word = 0;
        true
    }

    pub(super) fn next(&mut self) -> Option<usize> {
        while let Some(bits) = self.taken.get_mut(self.word) {
            if *bits != 0 {
                let lowest = bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                return Some(self.word * WORD_BITS + lowest);
            }
            self.word += 1;
        }
        None
    }
}

/// Wakes the future in a slot, whichever is there: one that came later is polled once more than it asked for.
struct SlotWaker {
    named: Arc<Named>,
    slot: u32,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Named { bits, core } = &*self.named;
        // The core does not sleep by this bell, but by its own.
        let _ = bits.ring(self.slot);
        core.wake();
    }
}
