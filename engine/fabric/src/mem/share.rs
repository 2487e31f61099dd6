//! Blocks that a peer holds, counted for each size class, so that no peer can take all of them.

use super::Bulk;
use super::bulk::{BulkPool, CLASSES_MAX};
use crate::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// Blocks of one pool that calls of a connection hold, or all connections of one origin together. A block counts from
/// [`BulkPool::charge`] until it is free. Clones are the same share.
#[derive(Clone, Debug, Default)]
pub struct Share(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    /// By class.
    blocks: [AtomicU32; CLASSES_MAX],
    /// The share that this one counts in, too.
    origin: Option<Share>,
}

impl Share {
    pub fn of_connection(origin: &Self) -> Self {
        Self(Arc::new(Held { origin: Some(origin.clone()), ..Held::default() }))
    }

    /// Returns true if this is the only handle: nothing counts in it any more.
    pub fn is_unused(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(super) fn count(&self, class: usize) {
        // Relaxed, here and below: counters for decisions that may be slightly outdated.
        self.0.blocks[class].fetch_add(1, Ordering::Relaxed);
        if let Some(origin) = &self.0.origin {
            origin.count(class);
        }
    }

    pub(super) fn uncount(&self, class: usize) {
        self.0.blocks[class].fetch_sub(1, Ordering::Relaxed);
        if let Some(origin) = &self.0.origin {
            origin.uncount(class);
        }
    }

    fn held(&self, class: usize) -> usize {
        self.0.blocks[class].load(Ordering::Relaxed) as usize
    }

    /// Returns true if `wanted` blocks of a class may be held by one call, of which it has `own` already, while `free` are
    /// free: an origin holds at most as many as it leaves to others, and a connection half as many. So one origin gets half
    /// of a class, two get a third each, and one that holds none gets the last block. One that holds none may also have a
    /// call that needs more than its part: it would wait in vain for its other calls.
    fn admits(&self, class: usize, (own, wanted): (usize, usize), free: usize) -> bool {
        let others = (free + own).saturating_sub(wanted.saturating_sub(1));
        let is_within = |share: &Self, part: usize| {
            let before = share.held(class).saturating_sub(own);
            before == 0 || part * (before + wanted.saturating_sub(1)) < others
        };
        let has_enough = wanted <= free + own;
        has_enough && is_within(self, 2) && self.0.origin.as_ref().is_none_or(|o| is_within(o, 1))
    }

    pub(super) fn into_raw(self) -> *mut () {
        Arc::into_raw(self.0).cast_mut().cast()
    }

    /// # Safety
    /// `raw` is of [`Share::into_raw`], and given back once.
    pub(super) unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: the caller's promise: this takes back the count that `into_raw` leaked.
        Self(unsafe { Arc::from_raw(raw.cast_const().cast()) })
    }
}

impl BulkPool {
    /// Counts a block of this pool in a share until it is free. Nothing happens if it is of other memory, or counts
    /// already.
    pub fn charge(&self, bulk: &Bulk, share: &Share) {
        bulk.block().charge(self, share);
    }

    /// Returns true if a block for so many bytes may be taken for a call that counts in this share. Also true where
    /// there is no fitting block: that is for the caller to find out.
    #[inline]
    pub fn admits(&self, bytes: usize, share: &Share) -> bool {
        self.admits_all(std::iter::empty(), std::iter::once(bytes), share)
    }

    /// A block that counts in this share, if that admits it.
    pub fn take_within(&self, share: &Share, bytes: usize) -> Option<Bulk> {
        let block = self.admits(bytes, share).then(|| self.take(bytes)).flatten();
        block.inspect(|block| self.charge(block, share))
    }

    /// The same of blocks that a call takes together, in this order, in addition to those that it has, which count in the
    /// share already.
    pub fn admits_all<'a>(
        &self,
        own: impl Iterator<Item = &'a Bulk>,
        lengths: impl Iterator<Item = usize>,
        share: &Share,
    ) -> bool {
        let mut has = [0; CLASSES_MAX];
        own.filter_map(|bulk| bulk.block().class_in(self)).for_each(|class| has[class] += 1);
        let (mut wanted, mut free) = (has, [0; CLASSES_MAX]);
        for (free, class) in free.iter_mut().zip(self.classes()) {
            *free = class.free;
        }
        for bytes in lengths {
            // The class that `take` takes from.
            let mut classes = self.classes().enumerate();
            let is_free = |at: usize| wanted[at] - has[at] < free[at];
            match classes.find(|(at, class)| class.block_bytes >= bytes && is_free(*at)) {
                Some((at, _)) => wanted[at] += 1,
                None => return true,
            }
        }
        let mut taken = (0..CLASSES_MAX).filter(|at| wanted[*at] > 0);
        taken.all(|at| share.admits(at, (has[at], wanted[at]), free[at]))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::mem::{BulkClass, Region};

    fn pool(count: usize) -> BulkPool {
        let region = Region::from_boxed(vec![0; 64 * (count + 1)].into());
        BulkPool::new(region, &[BulkClass { block_bytes: 64, count }]).unwrap()
    }

    impl Share {
        /// One more block of the first class may be held.
        fn admits_one(&self, free: usize) -> bool {
            self.admits(0, (0, 1), free)
        }
    }

    /// Blocks that calls in this share get.
    fn take_all(pool: &BulkPool, share: &Share) -> Vec<Bulk> {
        let take = || if pool.admits(1, share) { pool.take(1) } else { None };
        std::iter::from_fn(take).inspect(|block| pool.charge(block, share)).collect()
    }

    #[test]
    fn a_connection_gets_a_third_an_origin_half_and_a_newcomer_the_last_block() {
        let pool = pool(48);
        let (first, second) = (Share::default(), Share::default());
        let connections = [&first, &first, &second].map(Share::of_connection);
        let held = connections.each_ref().map(|share| take_all(&pool, share));
        assert_eq!(held.each_ref().map(Vec::len), [16, 8, 8]);
        let newcomers: Vec<_> = (0..16)
            .map(|_| Share::of_connection(&Share::default()))
            .map(|share| (take_all(&pool, &share), share))
            .collect();
        assert!(newcomers.iter().all(|(blocks, _)| !blocks.is_empty()) || pool.take(1).is_none());
        drop((held, newcomers));
        assert_eq!(take_all(&pool, &connections[1]).len(), 16, "what was free counts no more");
        drop(connections);
        assert!(first.is_unused() && second.is_unused());
    }

    #[test]
    fn a_block_counts_once_and_only_in_shares_of_its_pool() {
        let (ours, other) = (pool(8), pool(8));
        let share = Share::of_connection(&Share::default());
        let block = ours.take(1).unwrap();
        other.charge(&block, &share);
        assert!(share.admits_one(1), "it is of another pool");
        ours.charge(&block, &share);
        ours.charge(&block, &Share::default());
        assert!(!share.admits_one(2) && share.admits_one(3));
        drop(block);
        assert!(share.admits_one(1));
    }

    #[test]
    fn what_the_application_keeps_frozen_is_its_own() {
        let (pool, share) = (pool(8), Share::of_connection(&Share::default()));
        let kept: Vec<_> =
            take_all(&pool, &share).into_iter().map(crate::mem::Bulk::freeze).collect();
        let count = kept.len();
        assert!(count > 0 && share.admits_one(1));
        drop(kept);
        assert_eq!(
            take_all(&pool, &share).len(),
            count,
            "a block that is taken again counts again"
        );
    }

    /// Calls with eight blocks each: a connection gets a third, as with calls of one block.
    #[test]
    fn all_blocks_of_a_call_count() {
        let (pool, share) = (pool(48), Share::of_connection(&Share::default()));
        let none = std::iter::empty;
        let mut held = Vec::new();
        while pool.admits_all(none(), [1; 8].into_iter(), &share) {
            held.extend((0..8).map_while(|_| pool.take(1)));
            held.iter().for_each(|block| pool.charge(block, &share));
        }
        assert_eq!(held.len(), 16);
    }

    #[test]
    fn a_peer_that_holds_nothing_may_make_a_call_of_any_size() {
        let (pool, share) = (pool(2), Share::of_connection(&Share::default()));
        let two = || [1; 2].into_iter();
        assert!(pool.admits_all(std::iter::empty(), two(), &share));
        let block = pool.take(1).unwrap();
        pool.charge(&block, &share);
        assert!(!pool.admits(1, &share));
    }

    /// A reply that has its data, and is asked if it may keep them, is not in its own way.
    #[test]
    fn blocks_that_a_reply_has_are_not_counted_against_it() {
        let (pool, share) = (pool(2), Share::of_connection(&Share::default()));
        let own = pool.take(1).unwrap();
        pool.charge(&own, &share);
        let keeps = |own: &Bulk| pool.admits_all(std::iter::once(own), std::iter::empty(), &share);
        assert!(keeps(&own));
        let other = pool.take(1).unwrap();
        pool.charge(&other, &share);
        assert!(!keeps(&own), "the other is of another reply");
    }
}
