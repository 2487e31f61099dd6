//! Instructions of x86-64.

use super::{BLOCK_BYTES, Block, copy_blocks};
use crate::sync::words::LINE_BYTES;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __m128i, _MM_HINT_T0, _mm_prefetch, _rdtsc};
use std::ptr::NonNull;

/// Length in bytes from which a processor with fast strings copies faster by one instruction than by blocks (Zen 4: 512
/// bytes in 12 ns by blocks and 15 by the instruction, 1 KiB in 23 and 15).
const STRING_FROM: usize = 1024;

/// Copies `len` bytes, of which either side may be written by others meanwhile: by instructions that
/// the compiler cannot look into, so that a race tears the copy and is not undefined behaviour.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and no Rust reference to either
/// exists. The two do not overlap.
#[inline]
pub(crate) unsafe fn copy_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let is_long = len >= STRING_FROM && std::arch::is_x86_feature_detected!("ermsb");
        if is_long || len < BLOCK_BYTES {
            copy_short(from.as_ptr(), to.as_ptr(), len);
        } else {
            copy_blocks(from.as_ptr(), to.as_ptr(), len);
        }
    }
}

/// By the instruction for strings, which copies a byte at a time where it is not a fast one.
///
/// # Safety
/// As [`copy_bytes`].
#[inline]
pub(super) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises; the compiler sees an opaque instruction, so a race on the
    // bytes is one of the hardware's memory, where it only tears the copy. Stores after `rep movs`
    // are not seen before its own, so a later Release store publishes them.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Block number `AT` of those at `from`, which others may write at the same time: as [`copy_bytes`], by one
/// load.
///
/// # Safety
/// `from` is valid for reads of more than `AT` blocks, and no Rust reference to them exists.
#[inline(always)]
pub(crate) unsafe fn load_block<const AT: usize>(from: *const Block) -> Block {
    // SAFETY: as in `copy_bytes`; any address is aligned enough for this instruction. A vector has the
    // bytes of a block.
    unsafe {
        let block: __m128i;
        asm!(
            "movups {block}, [{from} + {offset}]",
            block = out(xmm_reg) block,
            from = in(reg) from,
            offset = const AT * BLOCK_BYTES,
            options(nostack, preserves_flags, readonly)
        );
        std::mem::transmute(block)
    }
}

/// Sets block number `AT` of those at `to`, which others may access at the same time: as [`copy_bytes`], by one
/// store.
///
/// # Safety
/// `to` is valid for writes of more than `AT` blocks, and no Rust reference to them exists.
#[inline(always)]
pub(crate) unsafe fn store_block<const AT: usize>(block: Block, to: *mut Block) {
    // SAFETY: as in `load_block`; the compiler takes it that memory changes, so that a later Release store
    // stays behind it, as it does in the processor.
    unsafe {
        let block: __m128i = std::mem::transmute(block);
        asm!(
            "movups [{to} + {offset}], {block}",
            block = in(xmm_reg) block,
            to = in(reg) to,
            offset = const AT * BLOCK_BYTES,
            options(nostack, preserves_flags)
        );
    }
}

/// Fetches the cache line `LINE` lines behind an address, to be written to. Harmless if that is not mapped.
#[inline(always)]
pub(crate) fn prefetch_write<const LINE: usize>(address: usize) {
    // SAFETY: a hint, which faults on no address and changes nothing.
    unsafe {
        asm!(
            "prefetchw [{address} + {offset}]",
            address = in(reg) address,
            offset = const LINE * LINE_BYTES,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// Fetches a cache line. Harmless if it is not mapped.
#[inline(always)]
pub(crate) fn prefetch<T>(line: *const T) {
    // SAFETY: a hint, which faults on no address and changes nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
}

/// The time-stamp counter runs at one rate in all cores, whatever their frequency and sleep state.
pub(crate) fn counter_is_usable() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    is_trusted(std::fs::read_to_string(path).unwrap_or_default().trim(), is_invariant)
}

/// The kernel watches the counter and leaves it for a slower source when cores disagree; then
/// the processor's word ("invariant TSC") counts for nothing. Sources of hypervisors say nothing
/// about it.
fn is_trusted(kernel_source: &str, is_invariant: fn() -> bool) -> bool {
    match kernel_source {
        "tsc" => true,
        "hpet" | "acpi_pm" | "refined-jiffies" | "jiffies" => false,
        _ => is_invariant(),
    }
}

#[allow(unused_unsafe, reason = "unsafe to call in the oldest Rust we build with only")]
fn is_invariant() -> bool {
    const EXTENDED: u32 = 0x8000_0000;
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;
    // SAFETY: CPUID exists on every x86-64 processor and has no other effect.
    let (highest, power) = unsafe { (__cpuid(EXTENDED), __cpuid(POWER_MANAGEMENT)) };
    highest.eax >= POWER_MANAGEMENT && power.edx & INVARIANT_TSC != 0
}

#[inline]
pub(crate) fn read_counter() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor and has no other effect.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

    #[test]
    fn a_counter_that_the_kernel_gave_up_is_not_used() {
        let (yes, no) = (|| true, || false);
        assert!(is_trusted("tsc", no));
        assert!(is_trusted("kvm-clock", yes) && !is_trusted("kvm-clock", no));
        assert!(!is_trusted("hpet", yes));
        assert!(is_trusted("", yes));
    }
}
