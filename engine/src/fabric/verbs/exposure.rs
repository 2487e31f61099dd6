//! Memory that this side exposes to its peer, and the leases on it: by the keys of blocks, by
//! memory windows, or by one key for all. Nothing here touches a device.

use super::super::{Access, ExposeError, RemoteSlice};
use crate::mem::{Lease, RegionId};
use std::collections::VecDeque;

/// The keys of a block of memory, one with each right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockKeys {
    pub(super) read: u32,
    pub(super) write: u32,
}

/// Result of a request to end a key.
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
    /// Region of the memory.
    pub(super) region: RegionId,
}

/// The exposures of one connection; see the module.
#[derive(Debug)]
pub(super) struct Exposures {
    /// The regions that can be exposed.
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
    /// Exposures of blocks of `region`, at most `keys_max` at a time.
    pub(super) fn of_blocks(region: RegionId, keys: &[BlockKeys], keys_max: usize) -> Self {
        Self { regions: [region].into(), by: By::Blocks(Blocks::new(keys, keys_max)) }
    }

    /// Exposures of `regions`, by windows that were made with the keys `first_keys`.
    pub(super) fn by_windows(
        regions: Box<[RegionId]>,
        first_keys: impl Iterator<Item = u32>,
    ) -> Self {
        Self { regions, by: By::Windows(Windows::new(first_keys)) }
    }

    /// Everything has the key `key`.
    pub(super) fn by_one_key(region: RegionId, key: u32) -> Self {
        Self { regions: [region].into(), by: By::One(key) }
    }

    /// Lets the peer reach the leased bytes. A window that is named in the result has to be bound.
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

    /// Begins to end an exposure under `key`; of several, one.
    pub(super) fn revoke(&mut self, key: u32) -> Ended {
        match &mut self.by {
            By::Blocks(blocks) => blocks.revoke(key),
            By::Windows(windows) => return windows.revoke(key),
            By::One(_) => {}
        }
        Ended::Now
    }

    /// The peer invalidated `key` with a message. True if that was a live key of ours, now dead.
    pub(super) fn on_remote_invalidate(&mut self, key: u32) -> bool {
        match &mut self.by {
            By::Windows(windows) => windows.on_remote_invalidate(key),
            By::Blocks(_) | By::One(_) => false,
        }
    }

    /// The binding of `window` was taken back: its key was never alive.
    pub(super) fn on_unbound(&mut self, window: usize) {
        self.on_invalidated(window);
    }

    /// The device has invalidated the key of `window`, which is the result.
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
    /// Keys, ascending, each with the list of its exposures.
    lists: Box<[(u32, Option<u32>)]>,
    held: Box<[Held]>,
    /// The first of the unused ones.
    unused: Option<u32>,
}

/// One exposure in the list of its key, or an unused place.
#[derive(Debug, Default)]
struct Held {
    memory: Option<Lease>,
    next: Option<u32>,
}

impl Blocks {
    fn new(keys: &[BlockKeys], keys_max: usize) -> Self {
        let mut lists: Vec<_> = keys.iter().flat_map(|keys| [keys.read, keys.write]).collect();
        lists.sort_unstable();
        let places = u32::try_from(keys_max).unwrap_or(u32::MAX);
        let held = (0..places)
            .map(|at| Held { memory: None, next: Some(at + 1).filter(|next| *next < places) });
        Self {
            keys: keys.into(),
            lists: lists.into_iter().map(|key| (key, None)).collect(),
            held: held.collect(),
            unused: Some(0).filter(|_| places > 0),
        }
    }

    fn list(&mut self, key: u32) -> Option<&mut Option<u32>> {
        let at = self.lists.binary_search_by_key(&key, |list| list.0).ok()?;
        Some(&mut self.lists[at].1)
    }

    fn expose(&mut self, memory: Lease, access: Access) -> Result<u32, ExposeError> {
        let keys = self.keys.get(memory.block_index()).ok_or(ExposeError::Foreign)?;
        let key = match access {
            Access::RemoteRead => keys.read,
            Access::RemoteWrite => keys.write,
        };
        let place = self.unused.ok_or(ExposeError::NoKey)?;
        let list = self.list(key).ok_or(ExposeError::Foreign)?;
        let next = list.replace(place);
        let held = &mut self.held[place as usize];
        self.unused = held.next;
        *held = Held { memory: Some(memory), next };
        Ok(key)
    }

    fn revoke(&mut self, key: u32) {
        let Some(Some(place)) = self.list(key).map(|list| *list) else { return };
        let held = &mut self.held[place as usize];
        held.memory = None;
        let next = std::mem::replace(&mut held.next, self.unused);
        self.unused = Some(place);
        if let Some(list) = self.list(key) {
            *list = next;
        }
    }
}

/// Exposures by memory windows, each with a separate key.
#[derive(Debug)]
struct Windows {
    places: Box<[Window]>,
    /// The window that was free for longest comes first, as its keys come back after 256.
    free: VecDeque<u32>,
    /// The constant part of a window's keys, ascending, and the window.
    by_stem: Box<[(u32, u32)]>,
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
    /// The device is at invalidating it.
    Dying(#[expect(dead_code, reason = "held to be dropped")] Lease),
}

/// The last bits of a key count its uses.
const TAG_BITS: u32 = 8;

fn stem(key: u32) -> u32 {
    key >> TAG_BITS
}

fn next_key(key: u32) -> u32 {
    (stem(key) << TAG_BITS) | (key.wrapping_add(1) % (1 << TAG_BITS))
}

impl Windows {
    fn new(first_keys: impl Iterator<Item = u32>) -> Self {
        let places = first_keys.map(|key| Window { key, state: State::Free });
        let places: Box<[Window]> = places.collect();
        let mut by_stem: Vec<_> =
            places.iter().zip(0..).map(|(window, at)| (stem(window.key), at)).collect();
        by_stem.sort_unstable();
        Self { free: (0..places.len() as u32).collect(), by_stem: by_stem.into(), places }
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

    /// The window that has the key now.
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
        let mut exposures =
            Exposures::by_windows([pool.region_id()].into(), [0x100, 0x2ff].into_iter());
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
        let regions = [pool.region_id(), lent.region_id()].into();
        let mut exposures = Exposures::by_windows(regions, [0x100, 0x200].into_iter());
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
        let mut exposures = Exposures::by_windows([pool.region_id()].into(), [0x100].into_iter());
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
