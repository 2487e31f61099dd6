//! The memory keys of one connection, and the accesses of its peer by them. Each access is checked against the right,
//! the bounds and the life of its key before a byte moves.

use super::super::{Access, ExposeError, RemoteSlice};
use super::wire::{Fault, Readable};
use crate::mem::{KeyGenerator, Lease, RegionId};
use std::collections::VecDeque;
use std::ops::Range;

/// Exposures of one connection; holds the leases.
#[derive(Debug)]
pub(super) struct Exposures {
    /// Memory that may be exposed.
    regions: Box<[RegionId]>,
    keys: KeyGenerator,
    held: Box<[Place]>,
    free: Vec<u32>,
    /// Keys whose end took time, to be told.
    pub(super) revoked: VecDeque<u32>,
    /// From the number of those whose end has taken time to that of those whose end takes or took it.
    dying: Range<u64>,
}

/// Keys are counted apart from requests.
const DYING_FROM: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Place {
    exposure: Option<Exposure>,
    /// Pieces of the memory that are queued for the socket, which reads them later.
    queued: u32,
    /// The key is dead, and the memory is held for those pieces; the owner waits for its end if this is `Revoked`.
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Exposure {
    handle: u32,
    access: Access,
    memory: Lease,
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
        let held = (0..places).map(|_| Place::default()).collect();
        let free = (0..places as u32).rev().collect();
        Self {
            regions,
            keys,
            held,
            free,
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
        let place = self.free.pop().ok_or(ExposeError::NoKey)?;
        let handle = self.keys.next(place as usize);
        self.held[place as usize].exposure = Some(Exposure { handle, access, memory });
        Ok(RemoteSlice { handle, length, offset: 0 })
    }

    pub(super) fn kill(&mut self, handle: u32) -> Killed {
        let index = self.keys.index_of(handle);
        let Some(place) = self.held.get_mut(index) else { return Killed::Unknown };
        if !place.has(handle) {
            return Killed::Unknown;
        }
        if place.queued > 0 {
            place.ending = Some(Ending::Revoked);
            self.dying.end += 1;
            return Killed::Later;
        }
        place.exposure = None;
        self.free.push(index as u32);
        Killed::Now
    }

    /// Kills all keys: the connection is ending.
    pub(super) fn kill_all(&mut self) {
        for (index, place) in self.held.iter_mut().enumerate() {
            match place.queued {
                _ if place.exposure.is_none() => {}
                0 => {
                    place.exposure = None;
                    self.free.push(index as u32);
                }
                _ => place.ending = Some(Ending::Dropped),
            }
        }
    }

    /// Places all of the bytes, or none.
    pub(super) fn write(
        &mut self,
        handle: u32,
        offset: u64,
        bytes: Readable<'_>,
    ) -> Result<(), Denied> {
        let length = u32::try_from(bytes.len()).map_err(|_| Denied::Bounds)?;
        let (index, at) = self.find(RemoteSlice { handle, offset, length }, Access::RemoteWrite)?;
        let exposure = self.held[index].exposure.as_mut().ok_or(Denied::Key)?;
        exposure.memory.write_at(at, bytes.first);
        exposure.memory.write_at(at + bytes.first.len(), bytes.second);
        Ok(())
    }

    /// Checks that the peer may read these bytes. Returns their place for [`Exposures::bytes`], and the first of them.
    pub(super) fn readable(&self, from: RemoteSlice) -> Result<(u32, usize), Denied> {
        let (index, at) = self.find(from, Access::RemoteRead)?;
        Ok((index as u32, at))
    }

    /// Bytes of an exposure, also of one that is dead and held for the queue.
    pub(super) fn bytes(&self, place: u32, at: usize, length: usize) -> &[u8] {
        let exposure = self.held.get(place as usize).and_then(|place| place.exposure.as_ref());
        let bytes = exposure.and_then(|it| it.memory.stable_bytes().get(at..at + length));
        debug_assert!(bytes.is_some(), "a piece of the queue has lost its memory");
        bytes.unwrap_or_default()
    }

    /// A piece of this place's memory is in the queue: it is held until [`Exposures::left`].
    pub(super) fn queue(&mut self, place: u32) {
        self.held[place as usize].queued += 1;
    }

    /// A piece has left the queue.
    pub(super) fn left(&mut self, index: u32) {
        let place = &mut self.held[index as usize];
        place.queued -= 1;
        if place.queued == 0
            && let Some(ending) = place.ending.take()
            && let Some(exposure) = place.exposure.take()
        {
            self.free.push(index);
            if ending == Ending::Revoked {
                self.dying.start += 1;
                self.revoked.push_back(exposure.handle);
            }
        }
    }

    /// Numbers of the revoked keys that are held until the peer takes what is queued of them.
    pub(super) fn dying(&self) -> Option<Range<u64>> {
        (!self.dying.is_empty()).then(|| self.dying.clone())
    }

    /// The place of a key that is alive, has the right and covers the bytes, and the offset of the bytes in its memory.
    fn find(&self, slice: RemoteSlice, access: Access) -> Result<(usize, usize), Denied> {
        let index = self.keys.index_of(slice.handle);
        let place = self.held.get(index).filter(|place| place.has(slice.handle));
        let exposure = place.and_then(|place| place.exposure.as_ref());
        let exposure = exposure.filter(|it| it.access == access).ok_or(Denied::Key)?;
        let end = slice.offset.checked_add(u64::from(slice.length)).ok_or(Denied::Bounds)?;
        if end > exposure.memory.len() as u64 {
            return Err(Denied::Bounds);
        }
        Ok((index, slice.offset as usize))
    }
}

impl Place {
    fn has(&self, handle: u32) -> bool {
        let is_it = self.exposure.as_ref().is_some_and(|it| it.handle == handle);
        is_it && self.ending.is_none()
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
        let (place, at) = exposures.readable(slice).unwrap();
        exposures.queue(place);
        exposures.queue(place);
        assert_eq!(exposures.kill(slice.handle), Killed::Later);
        assert_eq!(exposures.kill(slice.handle), Killed::Unknown);
        assert_eq!(exposures.readable(slice), Err(Denied::Key));
        assert_eq!(exposures.bytes(place, at + 30, 2), [7; 2]);
        exposures.left(place);
        assert!(bulk.is_leased() && exposures.revoked.is_empty());
        assert_eq!(exposures.dying(), Some(DYING_FROM..DYING_FROM + 1));
        exposures.left(place);
        assert!(!bulk.is_leased());
        assert_eq!(exposures.dying(), None);
        assert_eq!(exposures.revoked, [slice.handle]);
    }

    #[test]
    fn the_end_of_a_connection_frees_all_memory_that_is_not_in_the_queue() {
        let (mut exposures, mut bulk, slice) = exposed(Access::RemoteRead);
        let other = exposures.expose(bulk.lease(40..64), Access::RemoteRead).unwrap();
        let (place, _) = exposures.readable(slice).unwrap();
        exposures.queue(place);
        exposures.kill_all();
        assert!(bulk.is_leased());
        assert_eq!(exposures.readable(other), Err(Denied::Key));
        exposures.left(place);
        assert!(!bulk.is_leased() && exposures.revoked.is_empty());
    }
}
