//! The only source of atomics, so that a model checker can replace them (`--cfg loom`).
//!
//! Memory that is mapped from outside cannot hold loom's atomics; it uses the standard ones behind
//! [`Words`](super::words::Words).

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Atomics for memory that is mapped from outside: never those of a model.
pub mod mapped {
    pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
}
