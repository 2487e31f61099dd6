//! Instructions that Rust has no words for: copies of memory that others may write at the same time, hints, the counter.
//! One file per processor has the same functions; the rest of the crate names no processor.
#![allow(unsafe_code)]

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(byte_order, path = "any.rs")]
mod native;

use super::words::{BLOCK_BYTES, Block};
pub(crate) use native::{copy_bytes, load_block, prefetch, prefetch_write, store_block};
pub(crate) use native::{counter_is_usable, read_counter};

/// By blocks, four at a time. The last one may overlap the one before, whose end is then copied twice.
///
/// # Safety
/// As [`copy_bytes`]; `len` is at least that of a block.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ptr::NonNull;

    #[test]
    fn each_copy_copies_every_length_at_every_alignment() {
        let from: Vec<u8> = (0..300).map(|number| number as u8).collect();
        for (start, at, len) in (0..9).flat_map(|a| (0..9).map(move |b| (a, b, 170 - a * b))) {
            copies_agree(&from, start, at, len);
        }
        (0..=280).for_each(|len| copies_agree(&from, 3, 10, len));
    }

    /// By blocks or by an instruction for strings: that depends on the length and the processor.
    #[test]
    fn long_copies_agree_too() {
        let from: Vec<u8> = (0..2000_u32).map(|number| number as u8).collect();
        for len in [1000, 1023, 1024, 1025, 1100, 1990] {
            copies_agree(&from, 1, 2, len);
        }
    }

    fn copies_agree(from: &[u8], start: usize, at: usize, len: usize) {
        type Copy = unsafe fn(NonNull<u8>, NonNull<u8>, usize);
        let copies: [Copy; 3] = [
            copy_bytes,
            // SAFETY: as its caller promises.
            |from, to, len| unsafe { native::copy_short(from.as_ptr(), to.as_ptr(), len) },
            |from, to, len| match len {
                // SAFETY: as its caller promises.
                0..BLOCK_BYTES => unsafe { copy_bytes(from, to, len) },
                // SAFETY: as its caller promises; there is a block.
                _ => unsafe { copy_blocks(from.as_ptr(), to.as_ptr(), len) },
            },
        ];
        for copy in copies {
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
