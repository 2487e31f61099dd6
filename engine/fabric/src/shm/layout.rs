//! Where things lie in the memory of one connection. Both sides compute it from the number of slots
//! they agreed on; nothing about it is read from the memory.

use super::exposure::TABLE_WORDS;
use crate::sync::ring::{CONTROL_WORDS, RING_SLOTS_MAX, RING_SLOTS_MIN, RingPlace, SLOT_WORDS};
use crate::sync::words::WORD_BYTES;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Connector,
    Listener,
}

impl Side {
    pub(super) const fn peer(self) -> Self {
        match self {
            Self::Connector => Self::Listener,
            Self::Listener => Self::Connector,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    slots: u32,
}

/// Smallest page of any host. Where pages are larger, parts share one, and the kernel is asked for whole pages.
const PAGE_WORDS: usize = 4096 / WORD_BYTES;
const TABLES_AT: usize = PAGE_WORDS;
const RINGS_AT: usize = TABLES_AT + 2 * TABLE_WORDS;

/// Slots of a ring that are used before all of it is brought into memory: those of the first page.
pub(super) const OPENING_SLOTS: u32 = (PAGE_WORDS / SLOT_WORDS) as u32;

// They begin with a page, and every ring has as many.
const _: () = assert!(RINGS_AT.is_multiple_of(PAGE_WORDS) && OPENING_SLOTS <= RING_SLOTS_MIN);
// Both control blocks fit the first page, and slots start at a multiple of their size.
const _: () = assert!(2 * CONTROL_WORDS <= PAGE_WORDS);
const _: () = assert!(RINGS_AT.is_multiple_of(SLOT_WORDS));

impl Layout {
    pub(super) fn new(slots: u32) -> Option<Self> {
        let allowed = slots.is_power_of_two() && (RING_SLOTS_MIN..=RING_SLOTS_MAX).contains(&slots);
        allowed.then_some(Self { slots })
    }

    pub(super) fn slots(self) -> u32 {
        self.slots
    }

    pub(super) fn bytes(self) -> usize {
        (RINGS_AT + 2 * self.ring_words()) * WORD_BYTES
    }

    pub(super) fn ring(self, side: Side) -> RingPlace {
        let index = side as usize;
        RingPlace {
            control: index * CONTROL_WORDS,
            slots_at: RINGS_AT + index * self.ring_words(),
            slots: self.slots,
        }
    }

    pub(super) fn table(self, side: Side) -> usize {
        TABLES_AT + side as usize * TABLE_WORDS
    }

    /// Ranges of bytes that a connection touches with its first messages: the control blocks, which the connector brings into
    /// being, and the first slots of the ring that `side` sends on.
    pub(super) fn idle_parts(self, side: Side) -> [Range<usize>; 2] {
        let start = self.ring(side).slots_at * WORD_BYTES;
        let first = start..start + OPENING_SLOTS as usize * SLOT_WORDS * WORD_BYTES;
        match side {
            Side::Connector => [0..2 * CONTROL_WORDS * WORD_BYTES, first],
            Side::Listener => [first.start..first.start, first],
        }
    }

    /// Ranges of bytes that belong near the core of `side`: the ring that it sends on, and for the connector all that is
    /// before the rings.
    pub(super) fn near(self, side: Side) -> [Range<usize>; 2] {
        let before = match side {
            Side::Connector => 0..RINGS_AT * WORD_BYTES,
            Side::Listener => 0..0,
        };
        [before, self.ring_bytes(side)]
    }

    pub(super) fn ring_bytes(self, side: Side) -> Range<usize> {
        let start = self.ring(side).slots_at;
        start * WORD_BYTES..(start + self.ring_words()) * WORD_BYTES
    }

    pub(super) fn message_bytes_max(self) -> usize {
        self.ring(Side::Connector).message_bytes_max()
    }

    fn ring_words(self) -> usize {
        self.slots as usize * SLOT_WORDS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_all_of_it_is_inside() {
        let layout = Layout::new(64).unwrap();
        let words = layout.bytes() / WORD_BYTES;
        let mut spans = Vec::new();
        for side in [Side::Connector, Side::Listener] {
            let ring = layout.ring(side);
            spans.push((ring.control, ring.control + CONTROL_WORDS));
            spans.push((layout.table(side), layout.table(side) + TABLE_WORDS));
            spans.push((ring.slots_at, ring.slots_at + 64 * SLOT_WORDS));
        }
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
        assert_eq!(spans.last().unwrap().1, words);
    }

    /// All memory of a connection is near one of both cores, and what a side brings into being is near its own.
    #[test]
    fn each_part_is_near_one_side() {
        let layout = Layout::new(64).unwrap();
        let near =
            |side| layout.near(side).into_iter().filter(|part: &Range<usize>| !part.is_empty());
        let mut parts: Vec<_> = near(Side::Connector).chain(near(Side::Listener)).collect();
        parts.sort_unstable_by_key(|part| part.start);
        assert_eq!((parts[0].start, parts.last().unwrap().end), (0, layout.bytes()));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        for side in [Side::Connector, Side::Listener] {
            let inside = |part: &Range<usize>| {
                near(side).any(|near| near.start <= part.start && part.end <= near.end)
            };
            let idle = layout.idle_parts(side);
            assert!(idle.iter().filter(|part| !part.is_empty()).all(inside), "{side:?}");
            assert!(idle.iter().any(|part| !part.is_empty()));
        }
    }

    #[test]
    fn numbers_of_slots_that_no_ring_can_have_are_refused() {
        for slots in [0, 1, 8, 100, RING_SLOTS_MAX * 2, u32::MAX] {
            assert_eq!(Layout::new(slots), None);
        }
    }
}
