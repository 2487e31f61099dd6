//! A copy of memory that others may write at the same time.
#![allow(unsafe_code)]

#[cfg(any(not(target_arch = "x86_64"), all(test, not(loom))))]
use super::atomic::{Ordering, mapped::AtomicU64};
#[cfg(target_arch = "x86_64")]
use super::words::BLOCK_BYTES;
use super::words::Block;
#[cfg(any(not(target_arch = "x86_64"), all(test, not(loom))))]
use super::words::WORD_BYTES;
use std::ptr::NonNull;

/// Length in bytes from which a processor with fast strings copies faster by one instruction than by blocks (Zen 4: 512
/// bytes in 12 ns by blocks and 15 by the instruction, 1 KiB in 23 and 15).
#[cfg(target_arch = "x86_64")]
const STRING_FROM: usize = 1024;

/// Copies `len` bytes, of which either side may be written by others meanwhile: by instructions that
/// the compiler cannot look into, so that a race tears the copy and is not undefined behaviour.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and no Rust reference to either
/// exists. The two do not overlap.
#[inline]
pub(crate) unsafe fn copy_bytes(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller promises.
    unsafe {
        let is_long = len >= STRING_FROM && std::arch::is_x86_feature_detected!("ermsb");
        if is_long || len < BLOCK_BYTES {
            copy_string(from.as_ptr(), to.as_ptr(), len);
        } else {
            copy_blocks(from.as_ptr(), to.as_ptr(), len);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: as the caller promises.
    unsafe {
        copy_bytes_atomically(from, to, len);
    }
}

/// By the instruction for strings, which copies a byte at a time where it is not a fast one.
///
/// # Safety
/// As [`copy_bytes`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller promises; the compiler sees an opaque instruction, so a race on the
    // bytes is one of the hardware's memory, where it only tears the copy. Stores after `rep movs`
    // are not seen before its own, so a later Release store publishes them.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Four at a time. The last one may overlap the one before, whose end is then copied twice.
///
/// # Safety
/// As [`copy_bytes`]; `len` is at least that of a block.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every block ends at `len` at the latest; any address is aligned enough here.
    unsafe {
        let mut at = 0;
        while len - at >= 4 * BLOCK_BYTES {
            let (from, to) = (from.add(at).cast(), to.add(at).cast());
            let blocks = (
                load_block::<0>(from),
                load_block::<1>(from),
                load_block::<2>(from),
                load_block::<3>(from),
            );
            store_block::<0>(blocks.0, to);
            store_block::<1>(blocks.1, to);
            store_block::<2>(blocks.2, to);
            store_block::<3>(blocks.3, to);
            at += 4 * BLOCK_BYTES;
        }
        while at < len {
            let here = at.min(len - BLOCK_BYTES);
            store_block::<0>(load_block::<0>(from.add(here).cast()), to.add(here).cast());
            at += BLOCK_BYTES;
        }
    }
}

/// By one load, as [`copy_bytes`]: others may write the blocks at the same time.
///
/// # Safety
/// `from` is valid for reads of more than `AT` blocks, and aligned to a word unless on x86_64, and no Rust reference to them
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

/// By one store, as [`copy_bytes`]: others may access the blocks at the same time.
///
/// # Safety
/// `to` is valid for writes of more than `AT` blocks, and aligned to a word unless on x86_64, and no Rust reference to them
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
    fn each_copy_copies_every_length_at_every_alignment() {
        let from: Vec<u8> = (0..300).map(|number| number as u8).collect();
        for (start, at, len) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b, 170 - a * b))) {
            copies_agree(&from, start, at, len);
        }
        (0..=280).for_each(|len| copies_agree(&from, 3, 10, len));
    }

    /// By blocks or by the instruction: that depends on the length and the processor.
    #[test]
    fn long_copies_agree_too() {
        let from: Vec<u8> = (0..2000_u32).map(|number| number as u8).collect();
        for len in [1000, 1023, 1024, 1025, 1100, 1990] {
            copies_agree(&from, 1, 2, len);
        }
    }

    fn copies_agree(from: &[u8], start: usize, at: usize, len: usize) {
        type Copy = unsafe fn(NonNull<u8>, NonNull<u8>, usize);
        #[cfg(target_arch = "x86_64")]
        let of_words: [Copy; 2] = [
            // SAFETY: as its caller promises.
            |from, to, len| unsafe { copy_string(from.as_ptr(), to.as_ptr(), len) },
            |from, to, len| match len {
                // SAFETY: as its caller promises.
                0..BLOCK_BYTES => unsafe { copy_bytes(from, to, len) },
                // SAFETY: as its caller promises; there is a block.
                _ => unsafe { copy_blocks(from.as_ptr(), to.as_ptr(), len) },
            },
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let of_words: [Copy; 0] = [];
        for copy in of_words.into_iter().chain([copy_bytes as Copy, copy_bytes_atomically]) {
            let mut copied = vec![0; from.len() + 10];
            let source = NonNull::from(&from[start..start + len]).cast();
            let target = NonNull::from(&mut copied[at..at + len]).cast();
            // SAFETY: both ranges are `len` bytes of different live vectors.
            unsafe { copy(source, target, len) };
            assert_eq!(copied[at..at + len], from[start..start + len], "{len}");
            assert!(copied[at + len..].iter().chain(&copied[..at]).all(|byte| *byte == 0), "{len}");
        }
    }
}
