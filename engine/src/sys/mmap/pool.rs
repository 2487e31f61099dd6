//! Addresses side by side for mappings of one kind. The kernel would put each where the last one ended, here between the
//! arenas of connections: every mapping then needs page tables of its own, and a core that goes from one to the next
//! waits for them. With 256 connections on both ends of one thread, 40 % of the time of a call.
//!
//! Called where shared memory is mapped and unmapped, which is never on the data path.

use super::Span;
use crate::sync::lock;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::param;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

/// Reserved addresses, in blocks. No memory is behind them until something is mapped there.
#[derive(Debug)]
pub(crate) struct AddressPool {
    reserved: Option<Span>,
    block_bytes: usize,
    /// Numbers of blocks without a mapping. The first ones are taken first.
    free: Mutex<Vec<usize>>,
}

impl AddressPool {
    /// Room for `count` mappings of up to `bytes` each. A process that may not have as many addresses (`RLIMIT_AS`) gets
    /// a pool without blocks: its mappings lie where the kernel puts them.
    pub(crate) fn reserve(bytes: usize, count: usize) -> Arc<Self> {
        // An odd number of pages: translations of the same page of all mappings are kept in different sets of a TLB.
        let pages = bytes.div_ceil(param::page_size()) | 1;
        let block_bytes = pages.saturating_mul(param::page_size());
        let reserved = block_bytes.checked_mul(count).and_then(Span::reserve);
        let free = if reserved.is_some() { (0..count).rev().collect() } else { Vec::new() };
        Arc::new(Self { reserved, block_bytes, free: Mutex::new(free) })
    }

    /// A block for a mapping of `len` bytes, if it fits and one is free.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Block> {
        let reserved = self.reserved.as_ref().filter(|_| len <= self.block_bytes)?;
        let number = lock(&self.free).pop()?;
        // SAFETY: the block is within the reserved addresses: `number` is less than the count they were made for.
        let base = unsafe { reserved.base.add(number * self.block_bytes) };
        Some(Block { pool: Arc::clone(self), number, base })
    }
}

/// Addresses for one mapping, which replaces what is there. Dropping it leaves the block to nothing for ever, unless it
/// was given back.
#[derive(Debug)]
pub(super) struct Block {
    pool: Arc<AddressPool>,
    number: usize,
    pub(super) base: NonNull<u8>,
}

// SAFETY: an address, as a span is.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Unmaps the first `len` bytes, and gives the block back. The addresses are never free in between, when another
    /// thread could get them for something else: that would be replaced by the next mapping of this block.
    pub(super) fn unmap(&self, len: usize) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the caller's mapping, of which it has no pointers any more, lies within this block.
        let replaced = unsafe {
            mm::mmap_anonymous(self.base.as_ptr().cast(), len, ProtFlags::empty(), flags)
        };
        // Without it, what was mapped stays until the pool ends, and no mapping comes here again.
        if replaced.is_ok() {
            lock(&self.pool.free).push(self.number);
        }
    }
}

impl Span {
    /// Addresses without memory.
    fn reserve(len: usize) -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) }.ok()?;
        let span = Self::new(base.cast(), len, false).ok()?;
        // Of a process that locks all it maps (mlockall), they would use up RLIMIT_MEMLOCK.
        // SAFETY: the range is mapped, and has no memory.
        let _ = unsafe { mm::munlock(base, len) };
        Some(span)
    }
}
