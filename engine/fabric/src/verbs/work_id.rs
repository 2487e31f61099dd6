//! Number that a work request is posted with, and that its completion returns: the queue pair, and
//! the place of the request there. It is an index and a generation, never a pointer: a stale number
//! is recognized and ignored.

use super::super::QpId;
use super::super::send_queue::POSITIONS_MAX;

const POSITION_BITS: u32 = POSITIONS_MAX.trailing_zeros();
const QUEUE_BITS: u32 = 1;
const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = u64::BITS - POSITION_BITS - QUEUE_BITS - INDEX_BITS;

pub(super) const PLACES_MAX: usize = 1 << INDEX_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Recv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(pub(super) u64);

impl WorkId {
    /// Of `position` the low bits count.
    #[inline]
    pub(super) fn new(qp: QpId, queue: Queue, position: u32) -> Self {
        let place = u64::from(qp.generation()) << INDEX_BITS | u64::from(qp.index());
        let queue = u64::from(queue == Queue::Recv);
        let position = u64::from(position % POSITIONS_MAX);
        Self((place << QUEUE_BITS | queue) << POSITION_BITS | position)
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        (self.0 >> (POSITION_BITS + QUEUE_BITS)) as usize % PLACES_MAX
    }

    /// True if it was posted by this queue pair, and not by an earlier one in its place.
    #[inline]
    pub(super) fn is_of(self, qp: QpId) -> bool {
        let generation = (self.0 >> (u64::BITS - GENERATION_BITS)) as u32;
        generation == qp.generation() % (1 << GENERATION_BITS)
            && self.index() == qp.index() as usize
    }

    #[inline]
    pub(super) fn queue(self) -> Queue {
        if self.0 >> POSITION_BITS & 1 == 0 { Queue::Send } else { Queue::Recv }
    }

    #[inline]
    pub(super) fn position(self) -> u32 {
        self.0 as u32 % POSITIONS_MAX
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_comes_back_as_it_was_made(
            index in 0_u32..PLACES_MAX as u32,
            generation: u32,
            position: u32,
            is_recv: bool,
        ) {
            let qp = QpId::new(index, generation);
            let queue = if is_recv { Queue::Recv } else { Queue::Send };
            let id = WorkId::new(qp, queue, position);
            prop_assert_eq!((id.index(), id.queue()), (index as usize, queue));
            prop_assert_eq!(id.position(), position % POSITIONS_MAX);
            prop_assert!(id.is_of(qp));
            prop_assert!(!id.is_of(QpId::new(index, generation.wrapping_add(1))));
            prop_assert!(!id.is_of(QpId::new(index ^ 1, generation)));
        }
    }
}
