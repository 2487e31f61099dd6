//! Lock-free building blocks: a ring of messages, a bell of ready bits, and the words under both.
//!
//! Nothing here depends on the memory of the words: plain heap memory, memory shared with another
//! process, or the model of a checker. The algorithms assume that the other side may write anything
//! at any time; each method documents what that can break. Uses `std` only. `mem`, `fabric` and
//! `reactor` are the callers. The one lock is separate, for work that is not done per message.

pub(crate) mod apart;
pub mod atomic;
pub(crate) mod box_queue;
pub(crate) mod copy;
pub mod doorbell;
pub mod free_list;
pub(crate) mod handoff;
mod lock;
pub mod ring;
pub mod words;

#[cfg(all(test, loom))]
mod loom_models;

pub use crossbeam::utils::CachePadded;
pub use lock::lock;
pub(crate) use lock::wait_for_change;
