//! The reactor: one per core, between the drivers below and the api above.
//!
//! May use everything below it and `proto`, never the api: it reaches the application through
//! [`ops::Upcalls`], and the api reaches it through [`ops::CoreOps`], where the driver's type ends.

mod calls;
pub(crate) mod chains;
pub(crate) mod connection;
pub(crate) mod core;
mod exports;
pub(crate) mod idle;
pub(crate) mod mailbox;
pub(crate) mod memory;
mod negotiate;
pub(crate) mod ops;
mod padding;
mod pulls;
mod replies;
pub(crate) mod reply_plan;
mod reply_pulls;
mod seam;
mod sink;
mod stats;

pub use negotiate::Negotiated;
#[cfg(any(test, fuzzing))]
pub(crate) use negotiate::fuzz as fuzz_private_data;
pub use ops::{Backpressure, CallSpec};
pub use reply_plan::ReplyData;
pub(crate) use reply_plan::ReplyPlan;
pub(crate) use stats::StatsCells;
pub use stats::StatsSnapshot;
