//! Lock-free building blocks.
//!
//! Between processes: a ring of messages, a bell of ready bits, and the words under both, which may be plain heap memory, memory
//! shared with another process, or the model of a checker. Their algorithms assume that the other side may write anything at any
//! time; each method documents what that can break.
//!
//! Between threads of a process, which trust each other: queues and lists of boxes, and the place where an answer is handed over.
//!
//! `mem`, `fabric` and `reactor` are the callers. The one lock is separate, for work that is not done per message.

pub(crate) mod arch;
pub mod atomic;
pub mod box_queue;
pub mod cache_lines;
pub mod doorbell;
pub mod free_boxes;
pub mod free_list;
pub mod handoff;
mod lock;
pub mod ring;
pub mod wake_request;
pub mod words;

#[cfg(all(test, loom))]
mod tests;

use atomic::{AtomicU64, Ordering};
pub use crossbeam::utils::CachePadded;
pub use lock::lock;
pub use lock::wait_for_change;
use std::sync::OnceLock;

/// A number that this process has not used before, from 1 on.
pub fn next_number() -> u64 {
    // In a cell, as the model checker's atomics cannot be made at compile time.
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    // Relaxed: only that it is unique matters.
    NEXT.get_or_init(|| AtomicU64::new(1)).fetch_add(1, Ordering::Relaxed)
}
