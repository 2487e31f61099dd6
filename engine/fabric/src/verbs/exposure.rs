//! Memory that this side exposes to its peer, and the leases on it: by the keys of blocks, by
//! memory windows, or by one key for all. Nothing here touches a device.

use super::super::{Access, ExposeError, RemoteSlice};
use crate::mem::{Lease, RegionId};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockKeys {
    pub(super) read: u32,
    pub(super) write: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The key is dead, or was not one of this side.
    Now,
    /// The device has to invalidate the key of this window.
    ByDevice { window: usize },
}

/// An exposure, and the window that has to be bound before the peer may learn of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exposed {
    pub(super) slice: RemoteSlice,
    pub(super) window: Option<usize>,
    pub(super) region: RegionId,
}

#[derive(Debug)]
pub(super) struct Exposures {
    regions: Box<[RegionId]>,
    by: By,
}

#[derive(Debug)]
enum By {
    Blocks(Blocks),
    Windows(Windows),
    /// One key for everything, which does not die. Leases would have no end to wait for, so none are
    /// held: the peer is trusted.
    One(u32),
}

impl Exposures {
    pub(super) fn of_blocks(region: RegionId, keys: &[BlockKeys], keys_max: usize) -> Self {
        Self { regions: [region].into(), by: By::Blocks(Blocks::new(keys, keys_max)) }
    }

    pub(super) fn by_windows(regions: Box<[RegionId]>, most: usize) -> Self {
        Self { regions, by: By::Windows(Windows::with_capacity(most)) }
    }

    /// `keys` names the windows from the given number on. Does not allocate.
    pub(super) fn add_windows<K: Iterator<Item = u32>>(&mut self, keys: impl FnOnce(usize) -> K) {
        if let By::Windows(windows) = &mut self.by {
            windows.add(keys(windows.places.len()));
        }
    }

    /// True if windows are to be added, as few are free; once until some are.
    #[inline]
    pub(super) fn asks_for_windows(&mut self) -> bool {
        match &mut self.by {
            By::Windows(windows) => windows.asks(),
            By::Blocks(_) | By::One(_) => false,
        }
    }

    pub(super) fn by_one_key(region: RegionId, key: u32) -> Self {
        Self { regions: [region].into(), by: By::One(key) }
    }

    pub(super) fn expose(&mut self, memory: Lease, access: Access) -> Result<Exposed, ExposeError> {
        let may = memory.writable() || access == Access::RemoteRead;
        let length = u32::try_from(memory.len()).map_err(|_| ExposeError::Foreign)?;
        let region = memory.region_id();
        if !self.regions.contains(&region) || !may {
            return Err(ExposeError::Foreign);
        }
        let offset = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let (handle, window) = match &mut self.by {
            By::Blocks(blocks) => (blocks.expose(memory, access)?, None),
            By::Windows(windows) => windows.expose(memory)?,
            By::One(key) => (*key, None),
        };
        Ok(Exposed { slice: RemoteSlice { handle, length, offset }, window, region })
    }

    /// Of several exposures under `key`, ends one.
    pub(super) fn revoke(&mut self, key: u32) -> Ended {
        match &mut self.by {
            By::Blocks(blocks) => blocks.revoke(key),
            By::Windows(windows) => return windows.revoke(key),
            By::One(_) => {}
        }
        Ended::Now
    }

    pub(super) fn on_remote_invalidate(&mut self, key: u32) -> bool {
        match &mut self.by {
            By::Windows(windows) => windows.on_remote_invalidate(key),
            By::Blocks(_) | By::One(_) => false,
        }
    }

    /// The key of `window` is dead, or its binding was taken back, so that it was never alive.
    pub(super) fn on_invalidated(&mut self, window: usize) -> Option<u32> {
        match &mut self.by {
            By::Windows(windows) => windows.on_invalidated(window),
            By::Blocks(_) | By::One(_) => None,
        }
    }

    /// Windows that are bound, or may be.
    pub(super) fn bound_windows(&self) -> impl Iterator<Item = usize> + '_ {
        let windows = match &self.by {
            By::Windows(windows) => &windows.places[..],
            By::Blocks(_) | By::One(_) => &[],
        };
        let is_bound = |window: &Window| !matches!(window.state, State::Free | State::Unbound(_));
        windows.iter().enumerate().filter(move |(_, window)| is_bound(window)).map(|(at, _)| at)
    }
}

/// Exposures by the keys of blocks: several can be under one key, if a block is exposed in parts.
#[derive(Debug)]
struct Blocks {
    keys: Box<[BlockKeys]>,
    /// With room for as many as there can be: later nothing is allocated.
    held: Vec<(u32, Lease)>,
    most: usize,
}

impl Blocks {
    fn new(keys: &[BlockKeys], most: usize) -> Self {
        Self { keys: keys.into(), held: Vec::with_capacity(most), most }
    }

    fn expose(&mut self, memory: Lease, access: Access) -> Result<u32, ExposeError> {
        let keys = self.keys.get(memory.block_index()).ok_or(ExposeError::Foreign)?;
        let key = match access {
            Access::RemoteRead => keys.read,
            Access::RemoteWrite => keys.write,
        };
        if self.held.len() == self.most {
            return Err(ExposeError::NoKey);
        }
        self.held.push((key, memory));
        Ok(key)
    }

    fn revoke(&mut self, key: u32) {
        // As a rule one of the last: calls are short.
        if let Some(at) = self.held.iter().rposition(|(other, _)| *other == key) {
            self.held.swap_remove(at);
        }
    }
}

#[derive(Debug)]
struct Windows {
    places: Vec<Window>,
    /// The window that was free for longest comes first, as its keys come back after 256.
    free: VecDeque<u32>,
    /// The constant part of a window's keys, ascending, and the window.
    by_stem: Vec<(u32, u32)>,
    most: usize,
    has_asked: bool,
}

#[derive(Debug)]
struct Window {
    key: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Free,
    /// An exposure of nothing, for which devices bind no window.
    Unbound(#[expect(dead_code, reason = "held to be dropped")] Lease),
    Bound(Lease),
    Dying(#[expect(dead_code, reason = "held to be dropped")] Lease),
}

/// The last bits of a key count its uses.
const TAG_BITS: u32 = 8;

fn stem(key: u32) -> u32 {
    key >> TAG_BITS
}

pub(super) fn next_key(key: u32) -> u32 {
    (stem(key) << TAG_BITS) | (key.wrapping_add(1) % (1 << TAG_BITS))
}

impl Windows {
    fn with_capacity(most: usize) -> Self {
        Self {
            places: Vec::with_capacity(most),
            free: VecDeque::with_capacity(most),
            by_stem: Vec::with_capacity(most),
            most,
            has_asked: false,
        }
    }

    fn add(&mut self, keys: impl Iterator<Item = u32>) {
        for key in keys.take(self.most - self.places.len()) {
            let at = self.places.len() as u32;
            let (Ok(place) | Err(place)) =
                self.by_stem.binary_search_by_key(&stem(key), |entry| entry.0);
            self.by_stem.insert(place, (stem(key), at));
            self.places.push(Window { key, state: State::Free });
            self.free.push_back(at);
            self.has_asked = false;
        }
    }

    /// When more than half are in use: the others last until more have come, as a rule.
    #[inline]
    fn asks(&mut self) -> bool {
        let (count, few) = (self.places.len(), self.free.len() < self.places.len().div_ceil(2));
        let asks = few && count < self.most && !self.has_asked;
        self.has_asked |= asks;
        asks
    }

    fn expose(&mut self, memory: Lease) -> Result<(u32, Option<usize>), ExposeError> {
        let at = self.free.pop_front().ok_or(ExposeError::NoKey)? as usize;
        let window = &mut self.places[at];
        window.key = next_key(window.key);
        if memory.is_empty() {
            window.state = State::Unbound(memory);
            return Ok((window.key, None));
        }
        window.state = State::Bound(memory);
        Ok((window.key, Some(at)))
    }

    fn find(&mut self, key: u32) -> Option<(usize, &mut Window)> {
        let at = self.by_stem.binary_search_by_key(&stem(key), |entry| entry.0).ok()?;
        let at = self.by_stem[at].1 as usize;
        Some((at, &mut self.places[at])).filter(|(_, window)| window.key == key)
    }

    fn revoke(&mut self, key: u32) -> Ended {
        let Some((at, window)) = self.find(key) else { return Ended::Now };
        match std::mem::replace(&mut window.state, State::Free) {
            State::Bound(memory) => {
                window.state = State::Dying(memory);
                return Ended::ByDevice { window: at };
            }
            State::Unbound(_) => self.free.push_back(at as u32),
            as_it_was @ (State::Free | State::Dying(_)) => window.state = as_it_was,
        }
        Ended::Now
    }

    /// A key that the device is invalidating already ends when it reports that.
    fn on_remote_invalidate(&mut self, key: u32) -> bool {
        let Some((at, window)) = self.find(key) else { return false };
        let was_bound = matches!(window.state, State::Bound(_));
        if was_bound {
            window.state = State::Free;
            self.free.push_back(at as u32);
        }
        was_bound
    }

    fn on_invalidated(&mut self, at: usize) -> Option<u32> {
        let window = self.places.get_mut(at)?;
        if !matches!(window.state, State::Dying(_)) {
            return None;
        }
        window.state = State::Free;
        self.free.push_back(at as u32);
        Some(window.key)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::mem::{Bulk, BulkClass, BulkPool, Region};

    fn pool() -> BulkPool {
        let classes = [BulkClass { block_bytes: 64, count: 4 }];
        let bytes = BulkPool::region_bytes(&classes).unwrap() + 64;
        BulkPool::new(Region::from_boxed(vec![0; bytes].into()), &classes).unwrap()
    }

    fn lease(bulk: &mut Bulk) -> Lease {
        bulk.lease(0..bulk.len())
    }

    fn by_windows(pools: &[&BulkPool], most: usize, keys: &[u32]) -> Exposures {
        let regions = pools.iter().map(|pool| pool.region_id()).collect();
        let mut exposures = Exposures::by_windows(regions, most);
        exposures.add_windows(|first| keys[first..].iter().copied());
        exposures
    }

    /// Use more windows than there are at first. Expect more to be asked for once, when more than half are in use, and each
    /// time that some have come; those that come late to be found by their keys; and no more than there can be, nor an allocation.
    #[test]
    fn windows_are_asked_for_when_few_are_free_until_there_are_all() {
        let pool = pool();
        let mut bulk = pool.take(64).unwrap();
        // Keys of the windows that come later are between those of the first ones.
        let keys = [0x500, 0x900, 0x100, 0x700, 0x300, 0xb00, 0xd00];
        let mut exposures = by_windows(&[&pool], 6, &keys[..2]);
        let capacity = |exposures: &Exposures| match &exposures.by {
            By::Windows(all) => {
                (all.places.capacity(), all.free.capacity(), all.by_stem.capacity())
            }
            By::Blocks(_) | By::One(_) => unreachable!(),
        };
        let (before, mut alive) = (capacity(&exposures), Vec::new());
        let mut words = (0..64).step_by(4);
        let mut expose = |exposures: &mut Exposures| {
            let word = words.next().map(|first| first..first + 4).unwrap();
            let exposed = exposures.expose(bulk.lease(word), Access::RemoteRead);
            (exposed.map(|exposed| exposed.slice.handle), exposures.asks_for_windows())
        };
        assert!(!exposures.asks_for_windows(), "none is in use");
        for (count, asks) in [(2, [false, true]), (4, [true, false]), (6, [false; 2])] {
            exposures.add_windows(|first| keys[first..count.max(first)].iter().copied());
            let found: Vec<_> = asks.iter().map(|_| expose(&mut exposures)).collect();
            assert_eq!(found.iter().map(|found| found.1).collect::<Vec<_>>(), asks, "{count}");
            alive.extend(found.into_iter().map(|found| found.0.unwrap()));
            assert_eq!(expose(&mut exposures), (Err(ExposeError::NoKey), false), "{count}");
        }
        exposures.add_windows(|first| keys[first..].iter().copied());
        assert_eq!(expose(&mut exposures), (Err(ExposeError::NoKey), false), "there can be six");
        assert_eq!(alive, keys[..6].iter().map(|key| key + 1).collect::<Vec<_>>());
        for (window, key) in alive.into_iter().enumerate() {
            assert_eq!(exposures.revoke(key), Ended::ByDevice { window });
            assert_eq!(exposures.on_invalidated(window), Some(key));
        }
        assert_eq!(capacity(&exposures), before);
        assert!(!exposures.asks_for_windows());
    }

    #[test]
    fn a_block_is_held_until_each_exposure_under_its_key_is_revoked() {
        let pool = pool();
        let keys: Vec<_> = (0..4).map(|at| BlockKeys { read: 100 + at, write: 200 + at }).collect();
        let mut exposures = Exposures::of_blocks(pool.region_id(), &keys, 3);
        let mut bulk = pool.take(64).unwrap();
        let block = lease(&mut bulk).block_index() as u32;
        let (first, second) = (bulk.lease(0..8), bulk.lease(8..64));
        let first = exposures.expose(first, Access::RemoteRead).unwrap();
        let second = exposures.expose(second, Access::RemoteRead).unwrap();
        assert_eq!((first.slice.handle, second.slice.handle), (100 + block, 100 + block));
        assert_eq!(second.slice.offset - first.slice.offset, 8);
        let mut other = pool.take(64).unwrap();
        let written = exposures.expose(lease(&mut other), Access::RemoteWrite).unwrap();
        let mut third = pool.take(64).unwrap();
        let refused = exposures.expose(lease(&mut third), Access::RemoteRead);
        assert_eq!(refused, Err(ExposeError::NoKey));
        exposures.revoke(first.slice.handle);
        assert!(bulk.is_leased() && other.is_leased());
        exposures.revoke(first.slice.handle);
        exposures.revoke(first.slice.handle);
        assert!(!bulk.is_leased() && other.is_leased());
        exposures.revoke(written.slice.handle);
        assert!(!other.is_leased());
        for _ in 0..10 {
            let again = exposures.expose(lease(&mut third), Access::RemoteRead).unwrap();
            exposures.revoke(again.slice.handle);
        }
    }

    #[test]
    fn a_window_is_used_again_only_when_its_key_is_dead() {
        let pool = pool();
        let mut exposures = by_windows(&[&pool], 2, &[0x100, 0x2ff]);
        let mut bulks = [pool.take(64).unwrap(), pool.take(64).unwrap()];
        let [first, second] = &mut bulks;
        let revoked = exposures.expose(lease(first), Access::RemoteRead).unwrap();
        let invalidated = exposures.expose(lease(second), Access::RemoteWrite).unwrap();
        assert_eq!((revoked.slice.handle, revoked.window), (0x101, Some(0)));
        assert_eq!((invalidated.slice.handle, invalidated.window), (0x200, Some(1)));
        assert_eq!(exposures.revoke(0x101), Ended::ByDevice { window: 0 });
        assert_eq!(exposures.revoke(0x101), Ended::Now, "it is being ended already");
        assert!(!exposures.on_remote_invalidate(0x101), "the device tells when it is dead");
        assert!(first.is_leased());
        assert_eq!(exposures.bound_windows().collect::<Vec<_>>(), [0, 1]);
        assert!(!exposures.on_remote_invalidate(0x2ff), "a key of the past");
        assert!(exposures.on_remote_invalidate(0x200) && !second.is_leased());
        assert!(!exposures.on_remote_invalidate(0x200), "once only");
        assert_eq!(exposures.revoke(0x200), Ended::Now);
        assert_eq!(exposures.on_invalidated(0), Some(0x101));
        assert_eq!((exposures.on_invalidated(0), first.is_leased()), (None, false));
        let again = exposures.expose(lease(first), Access::RemoteRead).unwrap();
        assert_eq!(again.slice.handle, 0x201, "the window that was free for longest");
    }

    #[test]
    fn a_window_is_bound_to_the_slab_that_its_block_lies_in() {
        let pool = pool();
        let (lent, kept) = (self::pool(), self::pool());
        let mut exposures = by_windows(&[&pool, &lent], 2, &[0x100, 0x200]);
        for of in [&pool, &lent] {
            let mut block = of.take(64).unwrap();
            let exposed = exposures.expose(lease(&mut block), Access::RemoteWrite).unwrap();
            assert_eq!(exposed.region, of.region_id());
        }
        let mut foreign = kept.take(64).unwrap();
        let refused = exposures.expose(lease(&mut foreign), Access::RemoteRead);
        assert_eq!(refused, Err(ExposeError::Foreign));
    }

    #[test]
    fn an_exposure_of_nothing_needs_no_device() {
        let pool = pool();
        let mut exposures = by_windows(&[&pool], 1, &[0x100]);
        let mut bulk = pool.take(64).unwrap();
        let nothing = exposures.expose(bulk.lease(0..0), Access::RemoteRead).unwrap();
        assert_eq!((nothing.window, exposures.bound_windows().count()), (None, 0));
        assert_eq!(exposures.revoke(nothing.slice.handle), Ended::Now);
        assert!(!bulk.is_leased());
    }

    #[test]
    fn memory_of_others_and_shared_memory_to_write_to_are_refused() {
        let (pool, elsewhere) = (pool(), pool());
        let mut exposures = Exposures::by_one_key(pool.region_id(), 5);
        let mut foreign = elsewhere.take(64).unwrap();
        let refused = exposures.expose(lease(&mut foreign), Access::RemoteRead);
        assert_eq!(refused, Err(ExposeError::Foreign));
        let shared = pool.take(64).unwrap().freeze();
        let refused = exposures.expose(shared.lease(0..64), Access::RemoteWrite);
        assert_eq!(refused, Err(ExposeError::Foreign));
        let exposed = exposures.expose(shared.lease(0..64), Access::RemoteRead).unwrap();
        assert_eq!(exposed.slice.handle, 5);
    }
}
