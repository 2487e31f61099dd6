//! Memory keys: what this side lets its peer reach, and the check of what the peer lets us reach.
//!
//! The exposer writes a table in the connection's memory, the initiator of a Read or Write looks a
//! key up there before it copies. A real device checks at the exposer's end; here the initiator
//! does, so a hostile one can skip the check - it then reaches only this connection's own arena, and for
//! reading the slabs that this connection was lent, which is all it has mapped. What is read from the table is
//! checked against what is mapped.

use super::super::{Access, ExposeError, RemoteSlice, WrError};
use super::window::Window;
use crate::mem::{KeyGenerator, KeyTable, Lease, RegionId};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::words::{WORD_BYTES, Words};
use crate::sys::mmap::BorrowedMemory;
use std::ptr::NonNull;

/// Keys one side of a connection may have alive.
pub(super) const EXPOSURES_MAX: usize = 512;

/// Places for keys that a connection makes with its first one.
const PLACES_MIN: usize = 64;

pub(super) const TABLE_WORDS: usize = EXPOSURES_MAX * ENTRY_WORDS;

const ENTRY_WORDS: usize = 4;
const STATE: usize = 0;
const OFFSET: usize = 1;
const LENGTH: usize = 2;
/// 0 for the arena, else the number of a slab, from one.
const MEMORY: usize = 3;

const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;

fn state_word(handle: u32, access: Access) -> u64 {
    let right = match access {
        Access::RemoteRead => RIGHT_READ,
        Access::RemoteWrite => RIGHT_WRITE,
    };
    right | u64::from(handle)
}

#[derive(Debug)]
pub(super) struct Exposures {
    window: Window,
    table: usize,
    arena: RegionId,
    /// Slabs that the peer has mapped for reading, in that order.
    slabs: Box<[RegionId]>,
    /// Grows to as many as are alive at a time.
    held: KeyTable<Held>,
}

#[derive(Debug)]
struct Held {
    /// There while the key is alive.
    exposed: Option<Exposed>,
    /// Bytes that came home, counted from the first without a gap, once there was an order. Known until this side
    /// revokes the key, dead or alive.
    home_bytes: Option<u32>,
}

#[derive(Debug)]
struct Exposed {
    access: Access,
    /// Kept so that the memory is not reused while the peer can reach it.
    memory: Lease,
    /// Where bytes go that this side fetches, if not to `memory`; as long as that.
    home: Option<Lease>,
}

impl Exposures {
    pub(super) fn new(
        window: Window,
        table: usize,
        arena: RegionId,
        slabs: Box<[RegionId]>,
    ) -> std::io::Result<Self> {
        let held = KeyTable::new(KeyGenerator::new(EXPOSURES_MAX)?, 0);
        Ok(Self { window, table, arena, slabs, held })
    }

    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        let writable = memory.writable() || access == Access::RemoteRead;
        let length = u32::try_from(memory.len()).map_err(|_| ExposeError::Foreign)?;
        let number = self.number(memory.region_id(), access).filter(|_| writable);
        let number = number.ok_or(ExposeError::Foreign)?;
        let places = self.held.places();
        if self.held.alive() == places && places < EXPOSURES_MAX {
            self.grow();
        }
        let offset = memory.region_offset() as u64;
        let exposed = Some(Exposed { access, memory, home: None });
        let handle = self.held.insert(Held { exposed, home_bytes: None });
        let handle = handle.ok_or(ExposeError::NoKey)?;
        let entry = self.entry(self.held.place_of(handle));
        self.window.store(entry + OFFSET, offset, Ordering::Relaxed);
        self.window.store(entry + LENGTH, u64::from(length), Ordering::Relaxed);
        self.window.store(entry + MEMORY, number, Ordering::Relaxed);
        // Release pairs with the Acquire of `PeerTable::find`: offset and length are there before
        // the key. They reach the peer with the message that names the key, at the latest.
        self.window.store(entry + STATE, state_word(handle, access), Ordering::Release);
        Ok(RemoteSlice { handle, length, offset })
    }

    /// More keys are alive than ever before: makes as many places again, up to the table's end, so that a connection
    /// allocates a few times in all and one that exposes nothing does not.
    #[cold]
    fn grow(&mut self) {
        let before = self.held.places();
        let places = (2 * before).clamp(PLACES_MIN, EXPOSURES_MAX);
        self.held.grow(places);
        let entries = self.entry(before) * WORD_BYTES..self.entry(places) * WORD_BYTES;
        // Without it keys take page faults; nothing else is lost.
        let _ = self.window.memory.prefault(entries);
    }

    fn number(&self, region: RegionId, access: Access) -> Option<u64> {
        if region == self.arena {
            return Some(0);
        }
        let slab = self.slabs.iter().position(|slab| *slab == region);
        Some(slab.filter(|_| access == Access::RemoteRead)? as u64 + 1)
    }

    /// False if it is none of ours or dead already.
    pub(super) fn revoke(&mut self, handle: u32) -> bool {
        let killed = self.kill(handle);
        self.held.remove(handle);
        killed
    }

    /// Kills a key; false if it is none of ours or dead already. It keeps its place until [`Exposures::revoke`], as a
    /// message of the peer may kill it long before the reactor gets to that message and asks what came home.
    pub(super) fn kill(&mut self, handle: u32) -> bool {
        let Some(exposed) = self.held.get_mut(handle).and_then(|held| held.exposed.take()) else {
            return false;
        };
        self.window.store(self.entry(self.held.place_of(handle)) + STATE, 0, Ordering::Relaxed);
        // The fence pairs with those in `PeerTable::find` and `read`: a thread that reads what the next owner of
        // the place or of the memory writes sees that this key is dead.
        fence(Ordering::Release);
        // Only now may others have the memory.
        drop(exposed);
        true
    }

    /// Bytes that this side fetches go to `home`, not to the exposed memory, which must be as long. True if they will.
    pub(super) fn set_home(&mut self, handle: u32, home: Lease) -> bool {
        let Some(exposed) = self.held.get_mut(handle).and_then(|held| held.exposed.as_mut()) else {
            return false;
        };
        let fits = exposed.access == Access::RemoteWrite && exposed.memory.len() == home.len();
        if fits && home.writable() {
            exposed.home = Some(home);
            return true;
        }
        false
    }

    /// Number of the bytes under `handle`, dead or alive but not yet revoked, that were fetched to where
    /// [`Exposures::set_home`] said: from the first on, without a gap. `None` if none were.
    pub(super) fn home_bytes(&self, handle: u32) -> Option<u32> {
        self.held.get(handle)?.home_bytes
    }

    pub(super) fn note_fetched(&mut self, handle: u32, offset: u64, bytes: usize) {
        let Some(held) = self.held.get_mut(handle) else { return };
        let Some(exposed) = held.exposed.as_ref().filter(|exposed| exposed.home.is_some()) else {
            return;
        };
        let start = offset.saturating_sub(exposed.memory.region_offset() as u64);
        let end = start.saturating_add(bytes as u64);
        let before = held.home_bytes.unwrap_or(0);
        let after = if start <= u64::from(before) { u32::try_from(end).ok() } else { None };
        held.home_bytes = Some(after.unwrap_or(0).max(before));
    }

    /// Where `length` bytes from `offset` on under `handle` are to be fetched to. The first of as many bytes that this
    /// side may write as long as the key lives.
    pub(super) fn target(&self, handle: u32, offset: u64, length: u32) -> Option<NonNull<u8>> {
        let exposed = self.held.get(handle)?.exposed.as_ref();
        let exposed = exposed.filter(|exposed| exposed.access == Access::RemoteWrite)?;
        let at = offset.checked_sub(exposed.memory.region_offset() as u64)?;
        let at = usize::try_from(at).ok()?;
        let fits = at.checked_add(length as usize)? <= exposed.memory.len();
        let target = exposed.home.as_ref().unwrap_or(&exposed.memory);
        // SAFETY: at most its length behind the start of a lease that the peer, or this side for it, may write. A home
        // is as long as the memory in whose place it is.
        fits.then(|| unsafe { target.as_ptr().add(at) })
    }

    pub(super) fn slab_of(&self, memory: &Lease) -> Option<u32> {
        let slab = self.slabs.iter().position(|slab| *slab == memory.region_id())?;
        u32::try_from(slab).ok()
    }

    pub(super) fn kill_all(&mut self) {
        for place in 0..self.held.places() {
            if let Some(handle) = self.held.key_at(place) {
                self.kill(handle);
            }
        }
    }

    fn entry(&self, place: usize) -> usize {
        self.table + place * ENTRY_WORDS
    }
}

#[derive(Debug)]
pub(super) struct PeerTable {
    window: Window,
    table: usize,
    arena: Window,
    slabs: Box<[BorrowedMemory]>,
}

/// As the peer's table says; perhaps of memory that is not there.
struct Found {
    memory: u64,
    offset: usize,
    bytes: usize,
}

impl PeerTable {
    pub(super) fn new(
        window: Window,
        table: usize,
        arena: Window,
        slabs: Box<[BorrowedMemory]>,
    ) -> Self {
        Self { window, table, arena, slabs }
    }

    /// The slabs, for a thread that has the time to unmap them.
    pub(super) fn into_slabs(self) -> Box<[BorrowedMemory]> {
        self.slabs
    }

    pub(super) fn has_slabs(&self) -> bool {
        !self.slabs.is_empty()
    }

    pub(super) fn in_slab(&self, slab: u32, offset: u64, length: u32) -> Option<NonNull<u8>> {
        let slab = self.slabs.get(usize::try_from(slab).ok()?)?;
        slab.bytes(usize::try_from(offset).ok()?, length as usize)
    }

    pub(super) fn check(&self, slice: RemoteSlice, access: Access) -> Result<NonNull<u8>, WrError> {
        let found = self.find(slice, access).ok_or(WrError::RemoteAccess)?;
        self.place(&found, access).ok_or(WrError::RemoteAccess)
    }

    /// Has `read` copy bytes of `slice`. Fails if the key died meanwhile: the memory may have had another owner by then.
    pub(super) fn read(
        &self,
        slice: RemoteSlice,
        read: impl FnOnce(NonNull<u8>),
    ) -> Result<(), WrError> {
        read(self.check(slice, Access::RemoteRead)?);
        // Pairs with the fence of `Exposures::kill`: a thread that has read what the next owner wrote sees that the key
        // is dead.
        fence(Ordering::Acquire);
        self.check(slice, Access::RemoteRead).map(drop)
    }

    /// Slabs are there for reading only, whatever the peer's table says.
    fn place(&self, found: &Found, access: Access) -> Option<NonNull<u8>> {
        let Found { memory, offset, bytes } = *found;
        let Some(slab) = memory.checked_sub(1) else {
            return self.arena.bytes(offset..offset.checked_add(bytes)?);
        };
        let slab = self.slabs.get(usize::try_from(slab).ok()?);
        slab.filter(|_| access == Access::RemoteRead)?.bytes(offset, bytes)
    }

    fn find(&self, slice: RemoteSlice, access: Access) -> Option<Found> {
        let entry = self.table + (slice.handle as usize % EXPOSURES_MAX) * ENTRY_WORDS;
        let state = state_word(slice.handle, access);
        // Acquire pairs with the Release of `Exposures::expose`.
        if self.window.load(entry + STATE, Ordering::Acquire) != state {
            return None;
        }
        let offset = self.window.load(entry + OFFSET, Ordering::Relaxed);
        let length = self.window.load(entry + LENGTH, Ordering::Relaxed);
        let memory = self.window.load(entry + MEMORY, Ordering::Relaxed);
        // Pairs with the fence of `Exposures::kill`: if the place was used again, the key is dead by now.
        fence(Ordering::Acquire);
        if self.window.load(entry + STATE, Ordering::Relaxed) != state {
            return None;
        }
        let end = slice.offset.checked_add(u64::from(slice.length))?;
        let exposed_end = offset.checked_add(length)?;
        let covered = offset <= slice.offset && end <= exposed_end;
        let (offset, bytes) = (usize::try_from(slice.offset).ok()?, slice.length as usize);
        covered.then_some(Found { memory, offset, bytes })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::mem::{Bulk, BulkClass, BulkPool, Region};
    use crate::sys::mmap::{LendableMemory, SharedMemory};
    use crate::tests::slab;
    use std::sync::Arc;

    const TABLE: usize = 3;
    const HANDLE: u32 = 0xabcd_0005;
    const ARENA_BYTES: usize = 4096;

    fn window(bytes: usize) -> Window {
        let (memory, _fd) = SharedMemory::create("exposure", bytes).unwrap();
        Window::new(Arc::new(memory))
    }

    /// A peer that says it exposes `length` bytes from `offset` on, and its table.
    fn peer(offset: u64, length: u64, access: Access) -> (PeerTable, Window) {
        let words = window((TABLE + TABLE_WORDS) * 8);
        let entry = TABLE + (HANDLE as usize % EXPOSURES_MAX) * ENTRY_WORDS;
        words.store(entry + OFFSET, offset, Ordering::Relaxed);
        words.store(entry + LENGTH, length, Ordering::Relaxed);
        words.store(entry + STATE, state_word(HANDLE, access), Ordering::Relaxed);
        (PeerTable::new(words.clone(), TABLE, window(ARENA_BYTES), Box::default()), words)
    }

    fn slice(offset: u64, length: u32) -> RemoteSlice {
        RemoteSlice { handle: HANDLE, length, offset }
    }

    #[test]
    fn a_peer_is_reached_within_what_it_exposes_and_not_a_byte_beyond() {
        let (peer, _words) = peer(100, 60, Access::RemoteRead);
        let at = |offset, length| peer.check(slice(offset, length), Access::RemoteRead);
        let start = peer.arena.bytes(0..0).unwrap().addr().get();
        for (offset, length) in [(100, 60), (100, 1), (159, 1), (130, 0), (100, 0), (160, 0)] {
            let found = at(offset, length).unwrap().addr().get();
            assert_eq!(found - start, offset as usize, "{offset} {length}");
        }
        for (offset, length) in [
            (99, 1),
            (99, 61),
            (100, 61),
            (159, 2),
            (160, 1),
            (0, 4096),
            (0, 0),
            (u64::MAX, 1),
            (u64::MAX - 8, 9),
            (u64::MAX - 8, 200),
        ] {
            assert!(at(offset, length).is_err(), "{offset} {length}");
        }
    }

    #[test]
    fn a_key_has_one_right_and_dies() {
        for (exposed, other) in
            [(Access::RemoteRead, Access::RemoteWrite), (Access::RemoteWrite, Access::RemoteRead)]
        {
            let (peer, words) = peer(0, 8, exposed);
            assert!(peer.check(slice(0, 8), exposed).is_ok());
            assert!(peer.check(slice(0, 8), other).is_err());
            for handle in [HANDLE + EXPOSURES_MAX as u32, HANDLE + 1, HANDLE ^ (1 << 31)] {
                assert!(peer.check(RemoteSlice { handle, ..slice(0, 8) }, exposed).is_err());
            }
            let entry = TABLE + (HANDLE as usize % EXPOSURES_MAX) * ENTRY_WORDS;
            words.store(entry + STATE, 0, Ordering::Relaxed);
            assert!(peer.check(slice(0, 8), exposed).is_err());
        }
    }

    #[test]
    fn a_key_that_dies_during_a_read_fails_it() {
        let (peer, words) = peer(0, 8, Access::RemoteRead);
        assert_eq!(peer.read(slice(0, 8), |_| ()), Ok(()));
        let entry = TABLE + (HANDLE as usize % EXPOSURES_MAX) * ENTRY_WORDS;
        let kill = |_| words.store(entry + STATE, 0, Ordering::Relaxed);
        assert_eq!(peer.read(slice(0, 8), kill), Err(WrError::RemoteAccess));
    }

    #[test]
    fn a_place_without_a_key_exposes_nothing_be_it_to_key_zero() {
        let (_, _, peer) = both_ends();
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            for handle in [0, 1, EXPOSURES_MAX as u32] {
                let nothing = RemoteSlice { handle, length: 0, offset: 0 };
                assert!(peer.check(nothing, access).is_err(), "{handle} {access:?}");
            }
        }
    }

    #[test]
    fn what_a_peer_says_it_exposes_ends_with_its_arena() {
        let arena = ARENA_BYTES as u64;
        let (beyond, _words) = peer(arena - 8, 100, Access::RemoteWrite);
        assert!(beyond.check(slice(arena - 8, 8), Access::RemoteWrite).is_ok());
        assert!(beyond.check(slice(arena - 8, 9), Access::RemoteWrite).is_err());
        assert!(beyond.check(slice(arena, 1), Access::RemoteWrite).is_err());
        let (all, _words) = peer(0, u64::MAX, Access::RemoteRead);
        assert!(all.check(slice(arena, 8), Access::RemoteRead).is_err());
        let (wrapped, _words) = peer(u64::MAX, 2, Access::RemoteWrite);
        assert!(wrapped.check(slice(u64::MAX, 1), Access::RemoteWrite).is_err());
        assert!(wrapped.check(slice(0, 1), Access::RemoteWrite).is_err());
    }

    /// An arena whose owner exposes parts of it, the owner's table, and the peer's view of both.
    fn both_ends() -> (BulkPool, Exposures, PeerTable) {
        let words = window((TABLE + TABLE_WORDS) * 8);
        let (memory, _fd) = SharedMemory::create("arena", ARENA_BYTES).unwrap();
        let memory = Arc::new(memory);
        let region = Region::from_shared(Arc::clone(&memory));
        let pool = BulkPool::new(region, &[BulkClass { block_bytes: 64, count: 8 }]).unwrap();
        let exposures =
            Exposures::new(words.clone(), TABLE, pool.region_id(), Box::default()).unwrap();
        (pool, exposures, PeerTable::new(words, TABLE, Window::new(memory), Box::default()))
    }

    fn lease(bulk: &mut Bulk) -> Lease {
        bulk.lease(8..40)
    }

    #[test]
    fn memory_is_reached_from_its_exposure_until_its_key_is_revoked() {
        let (pool, mut exposures, peer) = both_ends();
        let mut bulks: Vec<Bulk> = (0..4).map(|_| pool.take(64).unwrap()).collect();
        let slices: Vec<RemoteSlice> = bulks
            .iter_mut()
            .map(|bulk| exposures.expose(lease(bulk), Access::RemoteWrite).unwrap())
            .collect();
        let is_reached = |at: usize| peer.check(slices[at], Access::RemoteWrite).is_ok();
        assert!((0..4).all(is_reached));
        let start = |at: usize| peer.check(slices[at], Access::RemoteWrite).unwrap().addr().get();
        for (at, slice) in slices.iter().enumerate() {
            assert_eq!(slice.length, 32);
            assert_eq!(start(at) - start(0), (slice.offset - slices[0].offset) as usize);
            assert!(peer.check(*slice, Access::RemoteRead).is_err());
            let more = RemoteSlice { length: 33, ..*slice };
            assert!(peer.check(more, Access::RemoteWrite).is_err());
        }
        for ended in [2, 0] {
            let handle = slices[ended].handle;
            assert!(exposures.revoke(handle) && !exposures.revoke(handle), "once only");
            assert!(!is_reached(ended) && !bulks[ended].is_leased());
        }
        assert!(!exposures.revoke(slices[1].handle ^ 1 << 31), "a key that was never given");
        assert!(is_reached(1) && is_reached(3) && bulks[1].is_leased() && bulks[3].is_leased());
        let again = exposures.expose(lease(&mut bulks[0]), Access::RemoteWrite).unwrap();
        assert_ne!(again.handle, slices[0].handle);
        assert!(!is_reached(0), "its key names the place, and is dead");
    }

    /// The table of a peer is its own to write: it cannot have a slab written, or reach beyond it.
    #[test]
    fn a_slab_is_reached_for_reading_within_its_bytes_whatever_the_table_says() {
        let words = window((TABLE + TABLE_WORDS) * 8);
        let request = crate::sys::mmap::PageRequest::default();
        let owner = LendableMemory::create("slab", 4096, request).unwrap();
        let slabs = [BorrowedMemory::from_fd(&owner, 4096).unwrap()];
        let peer = PeerTable::new(words.clone(), TABLE, window(ARENA_BYTES), slabs.into());
        let entry = TABLE + (HANDLE as usize % EXPOSURES_MAX) * ENTRY_WORDS;
        let say = |access, memory, offset, length| {
            words.store(entry + MEMORY, memory, Ordering::Relaxed);
            words.store(entry + OFFSET, offset, Ordering::Relaxed);
            words.store(entry + LENGTH, length, Ordering::Relaxed);
            words.store(entry + STATE, state_word(HANDLE, access), Ordering::Relaxed);
        };
        say(Access::RemoteRead, 1, 0, 1 << 40);
        let is_reached = |offset, length, access| peer.check(slice(offset, length), access).is_ok();
        assert!(is_reached(0, 4096, Access::RemoteRead) && is_reached(4096, 0, Access::RemoteRead));
        assert!(
            !is_reached(1, 4096, Access::RemoteRead) && !is_reached(1 << 39, 1, Access::RemoteRead)
        );
        for memory in [2, 3, u64::MAX] {
            say(Access::RemoteRead, memory, 0, 4096);
            assert!(!is_reached(0, 1, Access::RemoteRead), "{memory}");
        }
        say(Access::RemoteWrite, 1, 0, 4096);
        assert!(!is_reached(0, 1, Access::RemoteWrite) && !is_reached(0, 0, Access::RemoteWrite));
        say(Access::RemoteWrite, 0, 0, 4096);
        assert!(is_reached(0, 1, Access::RemoteWrite), "the arena");
    }

    #[test]
    fn blocks_of_lent_slabs_are_exposed_for_reading_only() {
        let words = window((TABLE + TABLE_WORDS) * 8);
        let (lent, kept) = (slab(4096, 2), slab(4096, 1));
        let (pool, ..) = both_ends();
        let slabs = [lent.region_id()].into();
        let mut exposures = Exposures::new(words.clone(), TABLE, pool.region_id(), slabs).unwrap();
        let mut block = lent.take(4096).unwrap();
        let exposed = exposures.expose(block.lease(0..4096), Access::RemoteRead).unwrap();
        let borrowed = BorrowedMemory::from_fd(lent.fd(), lent.bytes()).unwrap();
        let base = borrowed.bytes(0, 0).unwrap().addr().get();
        let peer = PeerTable::new(words, TABLE, window(ARENA_BYTES), [borrowed].into());
        let found = peer.check(exposed, Access::RemoteRead).unwrap().addr().get();
        assert_eq!((found - base) as u64, exposed.offset);
        let written = exposures.expose(lent.take(8).unwrap().lease(0..8), Access::RemoteWrite);
        assert_eq!(written, Err(ExposeError::Foreign));
        let foreign = exposures.expose(kept.take(8).unwrap().lease(0..8), Access::RemoteRead);
        assert_eq!(foreign, Err(ExposeError::Foreign));
        assert!(exposures.revoke(exposed.handle) && !block.is_leased());
        assert!(peer.check(exposed, Access::RemoteRead).is_err());
    }

    #[test]
    fn memory_of_others_and_shared_memory_to_write_to_are_refused() {
        let ((_, mut exposures, _), (elsewhere, ..)) = (both_ends(), both_ends());
        let mut foreign = elsewhere.take(64).unwrap();
        let refused = exposures.expose(lease(&mut foreign), Access::RemoteRead);
        assert_eq!(refused, Err(ExposeError::Foreign));
        // An arena that only this process maps: its blocks are not shared memory.
        let arena = Region::from_boxed(vec![0; ARENA_BYTES].into());
        let pool = BulkPool::new(arena, &[BulkClass { block_bytes: 64, count: 1 }]).unwrap();
        let words = window((TABLE + TABLE_WORDS) * 8);
        let mut exposures = Exposures::new(words, TABLE, pool.region_id(), Box::default()).unwrap();
        let shared = pool.take(64).unwrap().freeze();
        let refused = exposures.expose(shared.lease(0..64), Access::RemoteWrite);
        assert_eq!(refused, Err(ExposeError::Foreign));
        assert!(exposures.expose(shared.lease(0..64), Access::RemoteRead).is_ok());
    }

    #[test]
    fn as_many_keys_are_alive_as_there_are_places_and_all_are_revoked_at_once() {
        let (pool, mut exposures, peer) = both_ends();
        let mut bulk = pool.take(64).unwrap();
        for _ in 0..2 {
            let mut expose = || exposures.expose(bulk.lease(0..0), Access::RemoteRead);
            let slices: Vec<_> = (0..EXPOSURES_MAX).map(|_| expose().unwrap()).collect();
            assert_eq!(expose(), Err(ExposeError::NoKey));
            let is_reached = |slice: &RemoteSlice| peer.check(*slice, Access::RemoteRead).is_ok();
            assert!(slices.iter().all(is_reached));
            exposures.kill_all();
            assert!(!slices.iter().any(is_reached) && !bulk.is_leased());
            slices.iter().for_each(|slice| assert!(!exposures.revoke(slice.handle), "dead"));
        }
    }
}
