//! The reactor: one per core, between the drivers below and the api above.
//!
//! May use everything below it and `proto`, never the api: it reaches the application through
//! [`in_flight::upcalls::Upcalls`], and the api reaches it through the operations of [`state::core::CoreCell`].
//!
//! Its layers, each of which imports only those before it, and calls no method of a core or a connection that is
//! defined in a later one (`tests/architecture.rs`):
//!
//! 1. `types`: values that travel between the parts;
//! 2. `in_flight`: state of calls and replies in progress;
//! 3. `state`: a connection, and a core;
//! 4. `common`: code shared by both halves;
//! 5. `server` and `client`: the halves;
//! 6. `lane`, `start_call`, `retry_queue`, `mail`, `turn`, `gss_resume` and `operations`: short messages, starting
//!    calls, what waits and completed RDMA Reads, letters, one turn of a core, bodies that threads have sealed or
//!    unsealed, and the operations of the api.

/// Methods that return a field of the same name to the rest of the reactor, by value or by reference.
macro_rules! getters {
    () => {};
    ($(#[$meta:meta])* $field:ident: &$type:ty, $($rest:tt)*) => {
        $(#[$meta])*
        #[inline(always)]
        pub(in crate::reactor) fn $field(&self) -> &$type {
            &self.$field
        }
        getters!($($rest)*);
    };
    ($(#[$meta:meta])* $field:ident: $type:ty, $($rest:tt)*) => {
        $(#[$meta])*
        #[inline(always)]
        pub(in crate::reactor) fn $field(&self) -> $type {
            self.$field
        }
        getters!($($rest)*);
    };
}

mod client;
mod common;
#[cfg(feature = "gss")]
mod gss_resume;
pub(crate) mod in_flight;
mod lane;
mod mail;
mod operations;
mod retry_queue;
mod rfc5666;
mod server;
mod start_call;
pub(crate) mod state;
pub(crate) mod turn;
pub(crate) mod types;

pub use in_flight::deferred::Deferred;
pub use in_flight::latency::PROCEDURES_MEASURED;
pub use in_flight::roles::NoReverse;
pub use in_flight::slow_calls::{SLOW_CALLS_KEPT, SLOW_CALLS_MAX, SLOW_MINUTES};
pub use types::calls::{Backpressure, CallId, CallSpec, Progress, Resend};
pub use types::latency::{
    BUCKETS as LATENCY_BUCKETS, Durations, Histogram as LatencyHistogram, STAGES,
    bounds_ns as latency_bounds_ns,
};
pub use types::negotiate::Negotiated;
#[cfg(any(test, fuzzing))]
pub(crate) use types::negotiate::fuzz as fuzz_private_data;
pub use types::reply_plan::ReplyData;
pub(crate) use types::stats::StatsCells;
pub use types::stats::StatsSnapshot;
