//! Instructions of 64-bit Arm. `x86_64.rs` has the contracts of the functions.

use super::{BLOCK_BYTES, Block, copy_blocks};
use crate::sync::words::LINE_BYTES;
use std::arch::aarch64::uint8x16_t;
use std::arch::asm;
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
        // SAFETY: as the caller promises. A later Release store is behind these: the compiler takes it that memory
        // changes, and the processor orders that store behind all before it.
        unsafe {
            asm!(
                "ldrb {byte:w}, [{from}, {at}]",
                "strb {byte:w}, [{to}, {at}]",
                byte = out(reg) _,
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// # Safety
/// As on x86-64.
#[inline(always)]
pub(crate) unsafe fn load_block<const AT: usize>(from: *const Block) -> Block {
    // SAFETY: as the caller promises; any address is aligned enough in memory that is no device's. A vector has the
    // bytes of a block.
    unsafe {
        let block: uint8x16_t;
        asm!(
            "ldr {block:q}, [{from}, #{offset}]",
            block = out(vreg) block,
            from = in(reg) from,
            offset = const AT * BLOCK_BYTES,
            options(nostack, preserves_flags, readonly)
        );
        std::mem::transmute(block)
    }
}

/// # Safety
/// As on x86-64.
#[inline(always)]
pub(crate) unsafe fn store_block<const AT: usize>(block: Block, to: *mut Block) {
    // SAFETY: as in `load_block`, and in `copy_short` for the order.
    unsafe {
        let block: uint8x16_t = std::mem::transmute(block);
        asm!(
            "str {block:q}, [{to}, #{offset}]",
            block = in(vreg) block,
            to = in(reg) to,
            offset = const AT * BLOCK_BYTES,
            options(nostack, preserves_flags)
        );
    }
}

#[inline(always)]
pub(crate) fn prefetch_write<const LINE: usize>(address: usize) {
    // SAFETY: a hint, which faults on no address and changes nothing.
    unsafe {
        asm!(
            "prfm pstl1keep, [{address}, #{offset}]",
            address = in(reg) address,
            offset = const LINE * LINE_BYTES,
            options(nostack, preserves_flags, readonly)
        );
    }
}

#[inline(always)]
pub(crate) fn prefetch<T>(line: *const T) {
    // SAFETY: a hint, which faults on no address and changes nothing.
    unsafe {
        asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
    }
}

/// All cores see one counter, whose rate the architecture fixes. Firmware that has not set it up has left its rate at
/// zero. Otherwise the rate that it states is not relied on: the clock measures it. Where a kernel works around a
/// counter that jumps, it emulates the read.
pub(crate) fn counter_is_usable() -> bool {
    let hertz: u64;
    // SAFETY: Linux lets every process read this register, which has no other effect.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nostack, preserves_flags)) };
    hertz != 0
}

#[inline]
pub(crate) fn read_counter() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets every process read this register, which has no other effect.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}
