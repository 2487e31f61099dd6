//! Addresses side by side for mappings of one kind. The kernel puts each mapping where the last one ends, here between the
//! arenas of connections: each then needs page tables of its own, and a core that goes from one connection to the next
//! waits for them. With 256 connections and both ends on one thread that was 40 % of the time of a call.
//!
//! Nothing is reserved: the kernel is asked for each address, and puts the mapping elsewhere if that is taken. So no
//! mapping ever replaces another one, whatever fails.
//!
//! Called where shared memory is mapped and unmapped, which is never on the data path.

use crate::sync::lock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

/// Distance from other mappings of the process, which the kernel makes one below the other.
const DISTANCE_BYTES: usize = 1 << 40;

/// No pool lies below this address, where a program and its heap are.
const FLOOR: usize = 0x6000_0000_0000;

/// Beginning of the last pool, which is below all others. Addresses of a pool that is gone are not used again: there are
/// 30 TiB.
static LOWEST: Mutex<Option<usize>> = Mutex::new(None);

#[derive(Debug)]
pub(crate) struct AddressPool {
    base: usize,
    block_bytes: usize,
    /// Numbers of blocks that no mapping has. The lowest is taken first, so that few connections lie close together.
    free: Mutex<BinaryHeap<Reverse<usize>>>,
}

impl AddressPool {
    /// Empty where no such addresses are left, or mappings lie low (`ulimit -s unlimited`, valgrind).
    pub(crate) fn new(bytes: usize, count: usize) -> Arc<Self> {
        // One page at least between mappings of different peers. An odd number of pages in all: a TLB then keeps the
        // same page of several mappings in different sets.
        let pages = (bytes.div_ceil(param::page_size()) + 1) | 1;
        let block_bytes = pages.saturating_mul(param::page_size());
        let base = place_below_others(block_bytes.saturating_mul(count));
        let free = (0..base.map_or(0, |_| count)).map(Reverse).collect();
        Arc::new(Self { base: base.unwrap_or(0), block_bytes, free: Mutex::new(free) })
    }

    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Block> {
        if len >= self.block_bytes {
            return None;
        }
        let Reverse(number) = lock(&self.free).pop()?;
        Some(Block { pool: Arc::clone(self), number })
    }
}

fn place_below_others(bytes: usize) -> Option<usize> {
    let mut lowest = lock(&LOWEST);
    let below = lowest.or_else(middle_of_a_hole)?;
    let base = below.checked_sub(bytes)? & !(param::page_size() - 1);
    if base < FLOOR {
        return None;
    }
    *lowest = Some(base);
    Some(base)
}

/// Address with much room above and below, which the kernel finds: some programs reserve terabytes. A process with few
/// addresses (`RLIMIT_AS`) has none.
fn middle_of_a_hole() -> Option<usize> {
    let (bytes, flags) = (2 * DISTANCE_BYTES, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let hole = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }.ok()?;
    // SAFETY: mapped just now, and no other code knows the address.
    let _ = unsafe { munmap(hole, bytes) };
    hole.addr().checked_add(DISTANCE_BYTES)
}

#[derive(Debug)]
pub(super) struct Block {
    pool: Arc<AddressPool>,
    number: usize,
}

impl Block {
    pub(super) fn hint(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.pool.base + self.number * self.pool.block_bytes)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.pool.free).push(Reverse(self.number));
    }
}
