//! Memory keys: what this side lets its peer reach, and the check of what the peer lets us reach.
//!
//! The exposer writes a table in the connection's memory, the initiator of a Read or Write looks a
//! key up there before it copies. A real device checks at the exposer's end; here the initiator
//! does, so a hostile one can skip the check - it then reaches only this connection's own arena,
//! which is all it has mapped. What is read from the table is checked against the mapped arena.

use super::super::{Access, ExposeError, RemoteSlice, WrError};
use super::window::Window;
use crate::mem::{KeyGenerator, Lease, RegionId};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::words::Words;
use std::ops::Range;

/// Keys one side of a connection may have alive.
pub(super) const EXPOSURES_MAX: usize = 512;

/// Words of one table.
pub(super) const TABLE_WORDS: usize = EXPOSURES_MAX * ENTRY_WORDS;

const ENTRY_WORDS: usize = 4;
const STATE: usize = 0;
const OFFSET: usize = 1;
const LENGTH: usize = 2;

const RIGHT_READ: u64 = 1 << 32;
const RIGHT_WRITE: u64 = 1 << 33;

fn state_word(handle: u32, access: Access) -> u64 {
    let right = match access {
        Access::RemoteRead => RIGHT_READ,
        Access::RemoteWrite => RIGHT_WRITE,
    };
    right | u64::from(handle)
}

/// What this side exposes; holds the leases.
#[derive(Debug)]
pub(super) struct Exposures {
    window: Window,
    table: usize,
    arena: RegionId,
    keys: KeyGenerator,
    /// By the place that a key names.
    held: Vec<Option<Held>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Held {
    handle: u32,
    /// Kept so that nobody gets the memory while the peer may reach it.
    _memory: Lease,
}

impl Exposures {
    /// An empty table at word `table` of `window`, for memory of the region `arena`.
    pub(super) fn new(window: Window, table: usize, arena: RegionId) -> std::io::Result<Self> {
        let places = EXPOSURES_MAX as u32;
        Ok(Self {
            window,
            table,
            arena,
            keys: KeyGenerator::new(EXPOSURES_MAX)?,
            held: (0..places).map(|_| None).collect(),
            free: (0..places).rev().collect(),
        })
    }

    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        let writable = memory.writable() || access == Access::RemoteRead;
        let length = u32::try_from(memory.len()).map_err(|_| ExposeError::Foreign)?;
        if memory.region_id() != self.arena || !writable {
            return Err(ExposeError::Foreign);
        }
        let place = self.free.pop().ok_or(ExposeError::NoKey)? as usize;
        let handle = self.keys.next(place);
        let offset = memory.region_offset() as u64;
        let entry = self.entry(place);
        self.window.store(entry + OFFSET, offset, Ordering::Relaxed);
        self.window.store(entry + LENGTH, u64::from(length), Ordering::Relaxed);
        // Release pairs with the Acquire of `PeerTable::check`: offset and length are there before
        // the key. They reach the peer with the message that names the key, at the latest.
        self.window.store(entry + STATE, state_word(handle, access), Ordering::Release);
        self.held[place] = Some(Held { handle, _memory: memory });
        Ok(RemoteSlice { handle, length, offset })
    }

    /// Kills a key; false if it is none of ours or dead already.
    pub(super) fn revoke(&mut self, handle: u32) -> bool {
        let place = self.keys.index_of(handle);
        let Some(held) = self.held.get_mut(place) else { return false };
        if held.as_ref().is_none_or(|held| held.handle != handle) {
            return false;
        }
        *held = None;
        self.window.store(self.entry(place) + STATE, 0, Ordering::Relaxed);
        // The fence pairs with the one in `PeerTable::check`: whoever reads what the next owner of
        // the place writes sees that this key is dead.
        fence(Ordering::Release);
        self.free.push(place as u32);
        true
    }

    /// Kills all keys.
    pub(super) fn revoke_all(&mut self) {
        let held: Vec<u32> = self.held.iter().flatten().map(|held| held.handle).collect();
        for handle in held {
            self.revoke(handle);
        }
    }

    fn entry(&self, place: usize) -> usize {
        self.table + place * ENTRY_WORDS
    }
}

/// What the peer exposes to us, as its table in the shared memory says, and its arena.
#[derive(Debug)]
pub(super) struct PeerTable {
    window: Window,
    table: usize,
    arena: Window,
}

impl PeerTable {
    /// The table at word `table` of `window`, for the memory in `arena`.
    pub(super) fn new(window: Window, table: usize, arena: Window) -> Self {
        Self { window, table, arena }
    }

    /// Where the bytes of `slice` lie, if its key is alive, has the right and covers them.
    pub(super) fn check(
        &self,
        slice: RemoteSlice,
        access: Access,
    ) -> Result<std::ptr::NonNull<u8>, WrError> {
        self.find(slice, access)
            .and_then(|range| self.arena.bytes(range))
            .ok_or(WrError::RemoteAccess)
    }

    fn find(&self, slice: RemoteSlice, access: Access) -> Option<Range<usize>> {
        let entry = self.table + (slice.handle as usize % EXPOSURES_MAX) * ENTRY_WORDS;
        let state = state_word(slice.handle, access);
        // Acquire pairs with the Release of `Exposures::expose`.
        if self.window.load(entry + STATE, Ordering::Acquire) != state {
            return None;
        }
        let offset = self.window.load(entry + OFFSET, Ordering::Relaxed);
        let length = self.window.load(entry + LENGTH, Ordering::Relaxed);
        // Pairs with the fence of `revoke`: if the place was used again, the key is dead by now.
        fence(Ordering::Acquire);
        if self.window.load(entry + STATE, Ordering::Relaxed) != state {
            return None;
        }
        let end = slice.offset.checked_add(u64::from(slice.length))?;
        let exposed_end = offset.checked_add(length)?;
        let covered = offset <= slice.offset && end <= exposed_end;
        covered.then_some(usize::try_from(slice.offset).ok()?..usize::try_from(end).ok()?)
    }
}
