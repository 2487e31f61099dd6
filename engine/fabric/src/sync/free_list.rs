//! A free list of numbered places: any thread takes and gives, and the place that was given back
//! last is taken first, because its memory is the one that is still in a cache.
//!
//! A stack of indices with a tag next to its head, raised at every change: a head that looks the
//! same after others have taken and given has another tag (the ABA problem).

use super::atomic::{AtomicU32, AtomicU64, Ordering};

const NONE: u32 = u32::MAX;
/// Top of a list that is closed.
const CLOSED: u32 = NONE - 1;

/// The free ones of `count` places that are numbered from `first` on.
#[derive(Debug)]
pub struct FreeList {
    first: u32,
    /// Tag in the upper half, the number of the top place less `first` in the lower.
    head: AtomicU64,
    /// The place below each place in the list.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// All of `count` places free, the first one on top. At most `u32::MAX - 2` places.
    pub fn full(first: u32, count: u32) -> Self {
        let below = |place| AtomicU32::new(if place + 1 < count { place + 1 } else { NONE });
        Self {
            first,
            head: AtomicU64::new(u64::from(if count == 0 { NONE } else { 0 })),
            below: (0..count).map(below).collect(),
        }
    }

    /// Takes a place; `None` when all are taken. Lock-free.
    #[inline]
    pub fn take(&self) -> Option<u32> {
        // Acquire pairs with the Release of `give`: earlier writes about the place are seen.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = head as u32;
            let below = self.below.get(top as usize)?.load(Ordering::Relaxed);
            match self.exchange(head, below) {
                Ok(()) => return Some(self.first + top),
                Err(changed) => head = changed,
            }
        }
    }

    /// Gives a place back that was taken from this list. Returns false if the list is closed.
    #[inline]
    pub fn give(&self, place: u32) -> bool {
        let place = place - self.first;
        let mut head = self.head.load(Ordering::Relaxed);
        while head as u32 != CLOSED {
            self.below[place as usize].store(head as u32, Ordering::Relaxed);
            match self.exchange(head, place) {
                Ok(()) => return true,
                Err(changed) => head = changed,
            }
        }
        false
    }

    /// Takes all places that are free, and closes the list: no other place is given back.
    pub fn close(&self, mut each: impl FnMut(u32)) {
        let mut head = self.head.load(Ordering::Acquire);
        while let Err(changed) = self.exchange(head, CLOSED) {
            head = changed;
        }
        let mut top = head as u32;
        while let Some(below) = self.below.get(top as usize) {
            // Before its holder writes to it.
            let next = below.load(Ordering::Relaxed);
            each(self.first + top);
            top = next;
        }
    }

    /// Release publishes the place below, and the giver's writes; Acquire sees those of others.
    #[inline]
    fn exchange(&self, head: u64, top: u32) -> Result<(), u64> {
        let tag = (head >> 32).wrapping_add(1);
        let new = tag << 32 | u64::from(top);
        self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    pub fn total(&self) -> usize {
        self.below.len()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn the_place_given_back_last_is_taken_first() {
        let list = FreeList::full(10, 3);
        assert_eq!([list.take(), list.take()], [Some(10), Some(11)]);
        list.give(10);
        assert_eq!([list.take(), list.take(), list.take()], [Some(10), Some(12), None]);
        list.give(11);
        assert_eq!(list.take(), Some(11));
    }

    #[test]
    fn an_empty_list_has_nothing_to_take() {
        assert_eq!(FreeList::full(0, 0).take(), None);
    }

    #[test]
    fn a_closed_list_expect_free_places_taken_and_others_refused() {
        let list = FreeList::full(10, 3);
        assert_eq!(list.take(), Some(10));
        for expected in [[11, 12].as_slice(), &[]] {
            let mut taken = Vec::new();
            list.close(|place| taken.push(place));
            assert_eq!((taken.as_slice(), list.take()), (expected, None));
            assert!(!list.give(10));
        }
    }

    #[test]
    fn threads_never_hold_the_same_place() {
        let list = FreeList::full(0, 4);
        let held: [std::sync::atomic::AtomicBool; 4] = Default::default();
        let use_places = || {
            for _ in 0..20_000 {
                let Some(place) = list.take() else { continue };
                let held = &held[place as usize];
                assert!(!held.swap(true, Ordering::Relaxed), "place {place} held twice");
                held.store(false, Ordering::Relaxed);
                list.give(place);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(use_places)).collect();
            // Joined one by one: ThreadSanitizer does not see the synchronization at the end of a
            // scope.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(std::iter::from_fn(|| list.take()).count(), 4);
    }
}
