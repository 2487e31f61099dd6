//! Tests that more than one driver runs, and what they share.
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod conformance;

use crate::mem::{Slab, SlabLayout};
use crate::sys::mmap::PageRequest;

pub(crate) fn slab(block_bytes: usize, blocks: usize) -> Slab {
    let layout = SlabLayout::new().block_bytes(block_bytes).blocks(blocks);
    Slab::new(layout, PageRequest::default()).unwrap()
}
