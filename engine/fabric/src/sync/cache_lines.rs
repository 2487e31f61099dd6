//! Layout of what cores share with other threads: what one of them writes has cache lines without anything that another one
//! reads. The assertions here are about the types and fields that they name, and no others: a new field
//! has to be named. `bench/sharing/run` looks at memory in use.

use super::CachePadded;
use super::words::{PADDED_WORDS, WORD_BYTES};

/// Two cache lines, which processors fetch together. Half of one on s390x, where only the order of bytes is tested.
pub const APART_BYTES: usize = if cfg!(byte_order) { 128 } else { align_of::<CachePadded<u8>>() };

// Shared memory is laid out in words.
const _: () = assert!(APART_BYTES <= PADDED_WORDS * WORD_BYTES);

/// Returns true if the field of a type has lines without any other field. A size is a multiple of the alignment.
pub const fn has_lines<T, F>(_field: fn(&T) -> &F) -> bool {
    align_of::<F>().is_multiple_of(APART_BYTES)
}

/// Asserts that these fields of a type have lines without any other field.
#[doc(hidden)]
#[macro_export]
macro_rules! assert_lines {
    ($type:ty: $($field:ident),+) => {
        const _: () = {
            $(assert!($crate::sync::cache_lines::has_lines(|shared: &$type| &shared.$field));)+
        };
    };
}

/// Asserts that values of a type have lines without anything else, wherever they are.
#[doc(hidden)]
#[macro_export]
macro_rules! assert_alone {
    ($type:ty) => {
        const _: () =
            assert!(align_of::<$type>().is_multiple_of($crate::sync::cache_lines::APART_BYTES));
    };
}

pub use {assert_alone, assert_lines};
