//! Without instructions of one processor: for tests on s390x, whose bytes have the other order (`--cfg byte_order`).
//! Rings of shared memory are not ready for that order. `x86_64.rs` has the contracts of the functions.

use super::{BLOCK_BYTES, Block, copy_blocks};
use std::ptr::NonNull;

/// # Safety
/// As on x86-64.
#[inline]
pub(crate) unsafe fn copy_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match len {
            0..BLOCK_BYTES => copy_short(from.as_ptr(), to.as_ptr(), len),
            _ => copy_blocks(from.as_ptr(), to.as_ptr(), len),
        }
    }
}

/// By bytes.
///
/// # Safety
/// As [`copy_bytes`].
#[inline]
pub(super) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: as the caller promises. A later Release store is behind these.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// # Safety
/// As on x86-64.
#[inline]
pub(crate) unsafe fn load_block<const AT: usize>(from: *const Block) -> Block {
    // SAFETY: as the caller promises; a block needs no alignment.
    unsafe { from.add(AT).read_volatile() }
}

/// # Safety
/// As on x86-64.
#[inline]
pub(crate) unsafe fn store_block<const AT: usize>(block: Block, to: *mut Block) {
    // SAFETY: as the caller promises; a block needs no alignment.
    unsafe { to.add(AT).write_volatile(block) };
}

#[inline]
pub(crate) fn prefetch_write<const LINE: usize>(_address: usize) {}

#[inline]
pub(crate) fn prefetch<T>(_line: *const T) {}

/// The clock is the kernel's.
pub(crate) fn counter_is_usable() -> bool {
    false
}

pub(crate) fn read_counter() -> u64 {
    0
}
