//! The memory keys of one end, and the accesses of its peer through them.

use super::super::{Access, ExposeError, RemoteSlice, WrError};
use crate::mem::{KeyGenerator, Lease, RegionId};

#[derive(Debug)]
pub(super) struct Exposures {
    arena: RegionId,
    /// Added to every offset: on the wire it is an opaque number of 64 bits.
    base: u64,
    keys: KeyGenerator,
    held: Vec<Option<Held>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Held {
    handle: u32,
    offset: u64,
    access: Access,
    memory: Lease,
}

impl Exposures {
    pub(super) fn new(keys: KeyGenerator, places: usize, arena: RegionId, base: u64) -> Self {
        let held = (0..places).map(|_| None).collect();
        Self { arena, base, keys, held, free: (0..places).rev().collect() }
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
        let place = self.free.pop().ok_or(ExposeError::NoKey)?;
        let handle = self.keys.next(place);
        let offset = self.base + memory.region_offset() as u64;
        self.held[place] = Some(Held { handle, offset, access, memory });
        Ok(RemoteSlice { handle, length, offset })
    }

    pub(super) fn revoke(&mut self, handle: u32) -> bool {
        let place = self.keys.index_of(handle);
        let Some(held) = self.held.get_mut(place) else { return false };
        if held.as_ref().is_none_or(|held| held.handle != handle) {
            return false;
        }
        *held = None;
        self.free.push(place);
        true
    }

    pub(super) fn has(&self, handle: u32) -> bool {
        let held = self.held.get(self.keys.index_of(handle)).and_then(Option::as_ref);
        held.is_some_and(|held| held.handle == handle)
    }

    pub(super) fn revoke_all(&mut self) {
        for (place, held) in self.held.iter_mut().enumerate() {
            if held.take().is_some() {
                self.free.push(place);
            }
        }
    }

    pub(super) fn alive(&self) -> usize {
        self.held.len() - self.free.len()
    }

    pub(super) fn write(&mut self, to: RemoteSlice, bytes: &[u8]) -> Result<(), WrError> {
        let (memory, at) = self.find(to, Access::RemoteWrite)?;
        memory.write_at(at, bytes);
        Ok(())
    }

    pub(super) fn read(&mut self, from: RemoteSlice) -> Result<Vec<u8>, WrError> {
        let (memory, at) = self.find(from, Access::RemoteRead)?;
        let mut bytes = vec![0; from.length as usize];
        memory.read_at(at, &mut bytes);
        Ok(bytes)
    }

    fn find(&mut self, slice: RemoteSlice, access: Access) -> Result<(&mut Lease, usize), WrError> {
        let place = self.keys.index_of(slice.handle);
        let held = self.held.get_mut(place).and_then(Option::as_mut);
        let held = held.filter(|held| held.handle == slice.handle && held.access == access);
        let held = held.ok_or(WrError::RemoteAccess)?;
        let at = slice.offset.checked_sub(held.offset).ok_or(WrError::RemoteAccess)?;
        let end = at.checked_add(u64::from(slice.length)).ok_or(WrError::RemoteAccess)?;
        if end > held.memory.len() as u64 {
            return Err(WrError::RemoteAccess);
        }
        Ok((&mut held.memory, at as usize))
    }
}
