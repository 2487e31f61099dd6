//! Calls from any thread: the part that other threads hold of a connection, and the part of its core.
//!
//! A call is written by the thread that starts it, into recycled memory: from the free entries of
//! the core's [`pool`] to the core, which starts the call, and with the answer back to the thread
//! that waits. No step locks, and none allocates once the memory is as long as the calls are. Calls that
//! the core cannot start at once, for lack of credits or of a connection, wait there in order.
//! [`core`] is the core's side, and the only one that touches clients; everything else here runs on
//! other threads. Used by the dispatch and the runtime.

mod answer;
mod call;
mod client;
pub(super) mod core;
pub(super) mod pool;
mod queue;

pub use answer::{Answer, PendingCall};
pub use call::OnAnswer;
pub use client::ClientHandle;
pub use queue::AnswerQueue;
