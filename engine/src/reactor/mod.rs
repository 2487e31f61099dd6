//! The reactor: one per core, between the drivers below and the api above.
//!
//! May use everything below it and `proto`, never the api: it reaches the application through
//! [`ops::Upcalls`], and the api reaches it through [`ops::CoreOps`], where the driver's type ends.

mod call_table;
mod calls;
pub(crate) mod chains;
mod conn_table;
pub(crate) mod connection;
pub(crate) mod core;
mod cuts;
mod deadlines;
pub(crate) mod deferred;
mod exports;
mod fenced;
mod given_up;
pub(crate) mod idle;
pub(crate) mod instance;
mod lane;
pub(crate) mod leaving;
pub(crate) mod mailbox;
pub(crate) mod memory;
mod negotiate;
pub(crate) mod observe;
mod offering;
pub(crate) mod ops;
mod options;
mod padding;
pub(crate) mod panics;
mod plain_calls;
mod pulls;
mod refusals;
mod replies;
pub(crate) mod reply_cache;
pub(crate) mod reply_plan;
mod reply_pulls;
mod resend;
mod reverse;
mod seam;
mod sink;
mod stats;
mod versions;

pub use negotiate::Negotiated;
#[cfg(any(test, fuzzing))]
pub(crate) use negotiate::fuzz as fuzz_private_data;
pub use ops::{Backpressure, CallSpec, Progress, Resend};
pub use options::OptionMessage;
pub use panics::{HandlerKind, HandlerPanic};
pub use reply_plan::ReplyData;
pub use reverse::NoReverse;
pub(crate) use stats::StatsCells;
pub use stats::StatsSnapshot;
