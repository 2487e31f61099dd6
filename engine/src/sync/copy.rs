//! A copy of memory that others may write at the same time.
#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), all(test, not(loom))))]
use super::atomic::{Ordering, mapped::AtomicU64};
use super::words::Block;
#[cfg(any(not(target_arch = "x86_64"), all(test, not(loom))))]
use super::words::WORD_BYTES;
use std::ptr::NonNull;

/// Copies `len` bytes, of which either side may be written by others meanwhile: by an instruction that
/// the compiler cannot look into, so that a race tears the copy and is not undefined behaviour.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and no Rust reference to either
/// exists. The two do not overlap.
#[inline]
pub(crate) unsafe fn copy_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises; the compiler sees an opaque instruction, so a race on the
    // bytes is one of the hardware's memory, where it only tears the copy. Stores after `rep movs`
    // are not seen before its own, so a later Release store publishes them.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        copy_bytes_atomically(from, to, len);
    }
}

/// Block number `AT` of those at `from`, which others may write at the same time: as [`copy_bytes`], by one
/// load.
///
/// # Safety
/// `from` is valid for reads of more than `AT` blocks and aligned to a word, and no Rust reference to them
/// exists.
#[inline(always)]
pub(crate) unsafe fn load_block<const AT: usize>(from: *const Block) -> Block {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `copy_bytes`; any address is aligned enough for this instruction. A vector has the
    // bytes of a block.
    unsafe {
        let block: std::arch::x86_64::__m128i;
        std::arch::asm!(
            "movups {block}, [{from} + {offset}]",
            block = out(xmm_reg) block,
            from = in(reg) from,
            offset = const AT * size_of::<Block>(),
            options(nostack, preserves_flags, readonly)
        );
        std::mem::transmute(block)
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises; a block is two words.
    unsafe {
        let words = from.add(AT).cast::<AtomicU64>();
        let (first, second) = (&*words, &*words.add(1));
        let words = [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)];
        std::mem::transmute(words)
    }
}

/// Sets block number `AT` of those at `to`, which others may access at the same time: as [`copy_bytes`], by one
/// store.
///
/// # Safety
/// `to` is valid for writes of more than `AT` blocks and aligned to a word, and no Rust reference to them
/// exists.
#[inline(always)]
pub(crate) unsafe fn store_block<const AT: usize>(block: Block, to: *mut Block) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `load_block`; the compiler takes it that memory changes, so that a later Release store
    // stays behind it, as it does in the processor.
    unsafe {
        let block: std::arch::x86_64::__m128i = std::mem::transmute(block);
        std::arch::asm!(
            "movups [{to} + {offset}], {block}",
            block = in(xmm_reg) block,
            to = in(reg) to,
            offset = const AT * size_of::<Block>(),
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises; a block is two words.
    unsafe {
        let words = to.add(AT).cast::<AtomicU64>();
        let [first, second]: [u64; 2] = std::mem::transmute(block);
        (*words).store(first, Ordering::Relaxed);
        (*words.add(1)).store(second, Ordering::Relaxed);
    }
}

/// The same by relaxed atomics: words where both sides are aligned to each other, else bytes.
///
/// # Safety
/// As [`copy_bytes`].
#[cfg(any(not(target_arch = "x86_64"), all(test, not(loom))))]
unsafe fn copy_bytes_atomically(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    use super::atomic::mapped::AtomicU8;
    let byte = |at: usize| {
        // SAFETY: `at` is below `len`, for which the caller vouches.
        let (from, to) = unsafe {
            (&*from.as_ptr().add(at).cast::<AtomicU8>(), &*to.as_ptr().add(at).cast::<AtomicU8>())
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let skew = (from.as_ptr() as usize ^ to.as_ptr() as usize) % WORD_BYTES;
    let lead = if skew == 0 { from.as_ptr().align_offset(WORD_BYTES).min(len) } else { len };
    (0..lead).for_each(byte);
    let words = (len - lead) / WORD_BYTES;
    for index in 0..words {
        let at = lead + index * WORD_BYTES;
        // SAFETY: within `len`; both are aligned, as the lead made one and the skew is zero.
        let (from, to) = unsafe {
            (&*from.as_ptr().add(at).cast::<AtomicU64>(), &*to.as_ptr().add(at).cast::<AtomicU64>())
        };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    (lead + words * WORD_BYTES..len).for_each(byte);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn both_copies_copy_every_length_at_every_alignment() {
        let from: Vec<u8> = (0..200).collect();
        for (start, at, len) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b, 170 - a * b))) {
            let (mut by_string, mut by_atomics) = (vec![0; 200], vec![0; 200]);
            for (to, atomics) in [(&mut by_string, false), (&mut by_atomics, true)] {
                let source = NonNull::from(&from[start..start + len]).cast();
                let target = NonNull::from(&mut to[at..at + len]).cast();
                // SAFETY: both ranges are `len` bytes of different live vectors.
                unsafe {
                    if atomics {
                        copy_bytes_atomically(source, target, len);
                    } else {
                        copy_bytes(source, target, len);
                    }
                }
            }
            assert_eq!(by_string[at..at + len], from[start..start + len]);
            assert!(by_string[at + len..].iter().chain(&by_string[..at]).all(|byte| *byte == 0));
            assert_eq!(by_string, by_atomics);
        }
    }
}
