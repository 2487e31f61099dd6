//! The memory keys of one connection, and the accesses of its peer by them. Each access is checked against the right,
//! the bounds and the life of its key before a byte moves.

use super::super::{Access, ExposeError, RemoteSlice};
use super::wire::{Fault, Readable};
use crate::mem::{KeyGenerator, KeyTable, Lease, RegionId};
use std::collections::VecDeque;
use std::ops::Range;

/// Exposures of one connection; holds the leases.
#[derive(Debug)]
pub(super) struct Exposures {
    /// Memory that may be exposed.
    regions: Box<[RegionId]>,
    held: KeyTable<Exposure>,
    /// Keys whose end took time, to be told.
    pub(super) revoked: VecDeque<u32>,
    /// From the number of those whose end has taken time to that of those whose end takes or took it.
    dying: Range<u64>,
}

/// Keys are counted apart from requests.
const DYING_FROM: u64 = 1 << 63;

#[derive(Debug)]
struct Exposure {
    access: Access,
    memory: Lease,
    /// Pieces of the memory that are queued for the socket, which reads them later.
    queued: u32,
    /// The key is dead, and the memory is held for those pieces; the owner waits for its end if this is `Revoked`.
    ending: Option<Ending>,
}

/// A key that died while its memory was queued for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its owner revoked it.
    Revoked,
    /// The connection is ending.
    Dropped,
}

/// The peer's access is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// No live key, or one of another right.
    Key,
    Bounds,
}

impl Denied {
    /// DDP has no code for a right that is missing.
    pub(super) const fn fault_of_write(self) -> Fault {
        if matches!(self, Self::Key) { Fault::TaggedStag } else { Fault::TaggedBounds }
    }

    pub(super) const fn fault_of_read(self) -> Fault {
        if matches!(self, Self::Key) { Fault::ReadStag } else { Fault::ReadBounds }
    }
}

/// Result of killing a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Killed {
    /// None of ours, or dead already.
    Unknown,
    /// It is dead, and its memory is free.
    Now,
    /// It is dead, and its memory is held until the pieces in the queue have left.
    Later,
}

impl Exposures {
    pub(super) fn new(keys: KeyGenerator, places: usize, regions: Box<[RegionId]>) -> Self {
        Self {
            regions,
            held: KeyTable::new(keys, places),
            revoked: VecDeque::with_capacity(places),
            dying: DYING_FROM..DYING_FROM,
        }
    }

    /// Lets the peer reach the leased bytes; offsets count from the first of them.
    pub(super) fn expose(
        &mut self,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        let may = memory.writable() || access == Access::RemoteRead;
        let length = u32::try_from(memory.len()).map_err(|_| ExposeError::Foreign)?;
        if !self.regions.contains(&memory.region_id()) || !may {
            return Err(ExposeError::Foreign);
        }
        let handle = self.held.insert(Exposure { access, memory, queued: 0, ending: None });
        Ok(RemoteSlice { handle: handle.ok_or(ExposeError::NoKey)?, length, offset: 0 })
    }

    pub(super) fn kill(&mut self, handle: u32) -> Killed {
        match self.held.get_mut(handle).filter(|it| it.ending.is_none()) {
            None => Killed::Unknown,
            Some(it) if it.queued > 0 => {
                it.ending = Some(Ending::Revoked);
                self.dying.end += 1;
                Killed::Later
            }
            Some(_) => {
                self.held.remove(handle);
                Killed::Now
            }
        }
    }

    /// Kills all keys: the connection is ending.
    pub(super) fn kill_all(&mut self) {
        self.held.retain(|it| {
            it.ending = Some(Ending::Dropped);
            it.queued > 0
        });
    }

    /// Places all of the bytes, or none.
    pub(super) fn write(
        &mut self,
        handle: u32,
        offset: u64,
        bytes: Readable<'_>,
    ) -> Result<(), Denied> {
        let length = u32::try_from(bytes.len()).map_err(|_| Denied::Bounds)?;
        let at = self.find(RemoteSlice { handle, offset, length }, Access::RemoteWrite)?;
        let exposure = self.held.get_mut(handle).ok_or(Denied::Key)?;
        exposure.memory.write_at(at, bytes.first);
        exposure.memory.write_at(at + bytes.first.len(), bytes.second);
        Ok(())
    }

    /// Checks that the peer may read these bytes. Returns the first of them, for [`Exposures::bytes`].
    pub(super) fn readable(&self, from: RemoteSlice) -> Result<usize, Denied> {
        self.find(from, Access::RemoteRead)
    }

    /// Bytes of an exposure, also of one that is dead and held for the queue.
    pub(super) fn bytes(&self, handle: u32, at: usize, length: usize) -> &[u8] {
        let exposure = self.held.get(handle);
        let bytes = exposure.and_then(|it| it.memory.stable_bytes().get(at..at + length));
        debug_assert!(bytes.is_some(), "a piece of the queue has lost its memory");
        bytes.unwrap_or_default()
    }

    /// A piece of this memory is in the queue: it is held until [`Exposures::left`].
    pub(super) fn queue(&mut self, handle: u32) {
        if let Some(it) = self.held.get_mut(handle) {
            it.queued += 1;
        }
    }

    /// A piece has left the queue.
    pub(super) fn left(&mut self, handle: u32) {
        let Some(it) = self.held.get_mut(handle) else { return };
        it.queued -= 1;
        if it.queued == 0
            && let Some(ending) = it.ending
        {
            self.held.remove(handle);
            if ending == Ending::Revoked {
                self.dying.start += 1;
                self.revoked.push_back(handle);
            }
        }
    }

    /// Numbers of the revoked keys that are held until the peer takes what is queued of them.
    pub(super) fn dying(&self) -> Option<Range<u64>> {
        (!self.dying.is_empty()).then(|| self.dying.clone())
    }

    /// The offset of the bytes in the memory of their key, if that is alive, has the right and covers them.
    fn find(&self, slice: RemoteSlice, access: Access) -> Result<usize, Denied> {
        let exposure = self.held.get(slice.handle);
        let exposure = exposure.filter(|it| it.access == access && it.ending.is_none());
        let exposure = exposure.ok_or(Denied::Key)?;
        let end = slice.offset.checked_add(u64::from(slice.length)).ok_or(Denied::Bounds)?;
        if end > exposure.memory.len() as u64 {
            return Err(Denied::Bounds);
        }
        Ok(slice.offset as usize)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::mem::Bulk;

    fn exposed(access: Access) -> (Exposures, Bulk, RemoteSlice) {
        let mut bulk = Bulk::from_vec(vec![7; 64]);
        let keys = KeyGenerator::with_seed(4, 1).unwrap();
        let mut exposures = Exposures::new(keys, 4, [bulk.region_id()].into());
        let slice = exposures.expose(bulk.lease(8..40), access).unwrap();
        (exposures, bulk, slice)
    }

    #[test]
    fn exactly_the_bytes_of_a_live_key_are_reached_and_only_by_its_right() {
        let (mut exposures, bulk, slice) = exposed(Access::RemoteWrite);
        let (handle, bytes) = (slice.handle, Readable::new(&[1; 5], &[2; 27]));
        assert_eq!(exposures.write(handle, 0, bytes), Ok(()));
        assert_eq!(exposures.write(handle, 1, bytes), Err(Denied::Bounds));
        assert_eq!(exposures.write(handle, 31, bytes.range(0..2)), Err(Denied::Bounds));
        assert_eq!(exposures.write(handle, u64::MAX, bytes.range(0..1)), Err(Denied::Bounds));
        assert_eq!(exposures.write(handle, u64::MAX, bytes.range(0..0)), Err(Denied::Bounds));
        assert_eq!(exposures.write(handle ^ 1, 0, bytes), Err(Denied::Key));
        assert_eq!(exposures.readable(slice), Err(Denied::Key));
        assert_eq!(exposures.kill(slice.handle), Killed::Now);
        assert_eq!(exposures.kill(slice.handle), Killed::Unknown);
        assert_eq!(exposures.write(handle, 0, bytes.range(0..1)), Err(Denied::Key));
        assert_eq!(bulk.bytes(), [&[7; 8][..], &[1; 5], &[2; 27], &[7; 24]].concat());
    }

    #[test]
    fn memory_in_the_queue_is_held_beyond_its_key_until_the_last_piece_has_left() {
        let (mut exposures, bulk, slice) = exposed(Access::RemoteRead);
        let at = exposures.readable(slice).unwrap();
        exposures.queue(slice.handle);
        exposures.queue(slice.handle);
        assert_eq!(exposures.kill(slice.handle), Killed::Later);
        assert_eq!(exposures.kill(slice.handle), Killed::Unknown);
        assert_eq!(exposures.readable(slice), Err(Denied::Key));
        assert_eq!(exposures.bytes(slice.handle, at + 30, 2), [7; 2]);
        exposures.left(slice.handle);
        assert!(bulk.is_leased() && exposures.revoked.is_empty());
        assert_eq!(exposures.dying(), Some(DYING_FROM..DYING_FROM + 1));
        exposures.left(slice.handle);
        assert!(!bulk.is_leased());
        assert_eq!(exposures.dying(), None);
        assert_eq!(exposures.revoked, [slice.handle]);
    }

    #[test]
    fn the_end_of_a_connection_frees_all_memory_that_is_not_in_the_queue() {
        let (mut exposures, mut bulk, slice) = exposed(Access::RemoteRead);
        let other = exposures.expose(bulk.lease(40..64), Access::RemoteRead).unwrap();
        exposures.queue(slice.handle);
        exposures.kill_all();
        assert!(bulk.is_leased());
        assert_eq!(exposures.readable(other), Err(Denied::Key));
        exposures.left(slice.handle);
        assert!(!bulk.is_leased() && exposures.revoked.is_empty());
    }
}
