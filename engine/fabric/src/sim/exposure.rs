//! The memory keys of one end, and the accesses of its peer through them.

use super::super::{Access, ExposeError, RemoteSlice, WrError};
use crate::mem::{KeyGenerator, KeyTable, Lease, RegionId};

#[derive(Debug)]
pub(super) struct Exposures {
    arena: RegionId,
    /// Added to every offset: on the wire it is an opaque number of 64 bits.
    base: u64,
    held: KeyTable<Held>,
}

#[derive(Debug)]
struct Held {
    offset: u64,
    access: Access,
    memory: Lease,
}

impl Exposures {
    pub(super) fn new(keys: KeyGenerator, places: usize, arena: RegionId, base: u64) -> Self {
        Self { arena, base, held: KeyTable::new(keys, places) }
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
        let offset = self.base + memory.region_offset() as u64;
        let handle = self.held.insert(Held { offset, access, memory });
        Ok(RemoteSlice { handle: handle.ok_or(ExposeError::NoKey)?, length, offset })
    }

    pub(super) fn revoke(&mut self, handle: u32) -> bool {
        self.held.remove(handle).is_some()
    }

    pub(super) fn has(&self, handle: u32) -> bool {
        self.held.get(handle).is_some()
    }

    pub(super) fn revoke_all(&mut self) {
        self.held.retain(|_| false);
    }

    pub(super) fn alive(&self) -> usize {
        self.held.alive()
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
        let held = self.held.get_mut(slice.handle).filter(|held| held.access == access);
        let held = held.ok_or(WrError::RemoteAccess)?;
        let at = slice.offset.checked_sub(held.offset).ok_or(WrError::RemoteAccess)?;
        let end = at.checked_add(u64::from(slice.length)).ok_or(WrError::RemoteAccess)?;
        if end > held.memory.len() as u64 {
            return Err(WrError::RemoteAccess);
        }
        Ok((&mut held.memory, at as usize))
    }
}
