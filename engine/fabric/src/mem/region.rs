//! A stretch of memory that is registered once and outlives everything carved from it.

use super::LINE_BYTES;
use crate::sync::next_number;
use crate::sys::mmap::{LendableMemory, Mapping, SharedMemory};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Names a region within this process; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

/// A part of memory at a fixed address that is registered once; at first it is all of it. Every byte
/// is initialised, and freed when the last part is dropped.
///
/// A part has one owner and overlaps no other, so that the pool it is given to has its bytes alone.
#[derive(Debug)]
pub struct Region {
    memory: Arc<Memory>,
    /// Shared by all parts of a whole, and by nothing else.
    parts: Arc<()>,
    offset: usize,
    len: usize,
}

/// The whole, which a driver registers.
#[derive(Debug)]
struct Memory {
    id: RegionId,
    base: NonNull<u8>,
    len: usize,
    is_exposed: bool,
    backing: Backing,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
enum Backing {
    Mapping(Mapping),
    Shared(Arc<SharedMemory>),
    /// Peers may read it, and only this process can write it.
    Lendable(Arc<LendableMemory>),
    /// A box in raw form: moving a `Box` would claim that there are no other pointers into it.
    Boxed(*mut [u8]),
}

// SAFETY: it is an address range and its owner; it reads and writes none of the bytes. The code
// that does (pools) ensures that each byte has one writer or only readers.
unsafe impl Send for Memory {}
// SAFETY: as above; no method with `&self` touches the bytes.
unsafe impl Sync for Memory {}

#[expect(clippy::len_without_is_empty, reason = "nothing asks")]
impl Region {
    pub fn from_mapping(mapping: Mapping) -> Self {
        let (base, len) = (mapping.as_ptr(), mapping.len());
        Self::new(base, len, false, Backing::Mapping(mapping))
    }

    /// A mapping that a device lets a peer write at any time, by a key that outlives its purpose: it is [exposed](Region::is_exposed).
    #[cfg(feature = "verbs")]
    pub(crate) fn from_reachable_mapping(mapping: Mapping) -> Self {
        let (base, len) = (mapping.as_ptr(), mapping.len());
        Self::new(base, len, true, Backing::Mapping(mapping))
    }

    pub(super) fn from_lendable(memory: Arc<LendableMemory>) -> Self {
        let (base, len) = (memory.mapping().as_ptr(), memory.mapping().len());
        Self::new(base, len, false, Backing::Lendable(memory))
    }

    /// An application's own memory as a region.
    pub fn from_boxed(bytes: Box<[u8]>) -> Self {
        let len = bytes.len();
        let raw = Box::into_raw(bytes);
        // SAFETY: `Box::into_raw` never gives null.
        let base = unsafe { NonNull::new_unchecked(raw.cast::<u8>()) };
        Self::new(base, len, false, Backing::Boxed(raw))
    }

    /// All of memory that another process has mapped, too, and can write at any time: it is
    /// [exposed](Region::is_exposed).
    pub fn from_shared(memory: Arc<SharedMemory>) -> Self {
        Self::new(memory.as_ptr(), memory.len(), true, Backing::Shared(memory))
    }

    fn new(base: NonNull<u8>, len: usize, is_exposed: bool, backing: Backing) -> Self {
        let memory = Memory { id: RegionId(next_number()), base, len, is_exposed, backing };
        Self { memory: Arc::new(memory), parts: Arc::default(), offset: 0, len }
    }

    /// Splits off the first `bytes`, rounded up to whole cache lines so that the rest starts at one,
    /// too. Both parts keep the id. `None`, and nothing changes, if there are fewer.
    pub fn split_to(&mut self, bytes: usize) -> Option<Self> {
        let bytes = bytes.checked_next_multiple_of(LINE_BYTES).filter(|n| *n <= self.len)?;
        let front = Self {
            memory: Arc::clone(&self.memory),
            parts: Arc::clone(&self.parts),
            offset: self.offset,
            len: bytes,
        };
        self.offset += bytes;
        self.len -= bytes;
        Some(front)
    }

    /// The name, within the process, of the whole that was registered.
    #[inline]
    pub fn id(&self) -> RegionId {
        self.memory.id
    }

    pub(crate) fn hold(&self) -> RegionHold {
        RegionHold { memory: Arc::clone(&self.memory), parts: Arc::downgrade(&self.parts) }
    }

    /// True if a peer can write the bytes at any time. Handles to such memory never give out a
    /// reference to them: they are copied in and out
    /// ([`Bulk::copy_to`](crate::mem::Bulk::copy_to)).
    pub fn is_exposed(&self) -> bool {
        self.memory.is_exposed
    }

    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: parts lie within the whole.
        unsafe { self.memory.base.add(self.offset) }
    }

    /// Offset of this part in the whole.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Keeps memory in place for the device that it was registered with; uses none of the bytes. The range stays the same,
/// and mapped until the last hold and the last part of the memory are dropped.
#[derive(Clone, Debug)]
pub struct RegionHold {
    memory: Arc<Memory>,
    parts: Weak<()>,
}

#[expect(clippy::len_without_is_empty, reason = "nothing asks")]
impl RegionHold {
    /// True if no part of the memory is left. It then stays unused, because parts come from parts.
    /// Other holds may still exist.
    pub fn is_unused(&self) -> bool {
        self.parts.strong_count() == 0
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn id(&self) -> RegionId {
        self.memory.id
    }

    /// The first byte of the whole.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.base
    }

    /// Bytes of the whole.
    pub fn len(&self) -> usize {
        self.memory.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Backing::Boxed(raw) = self.backing {
            // SAFETY: `raw` came from `Box::into_raw` in `from_boxed`, and is given back only here.
            drop(unsafe { Box::from_raw(raw) });
        }
    }
}
