//! Layer 2: state of calls and replies in progress, and the letters between threads. Knows the types.

pub(crate) mod box_pool;
pub(crate) mod call_table;
pub(crate) mod deadlines;
pub(crate) mod deferred;
pub(crate) mod detached_clients;
pub(crate) mod drain;
#[cfg(feature = "gss")]
pub(crate) mod gss_calls;
#[cfg(feature = "gss")]
pub(crate) mod gss_jobs;
#[cfg(feature = "gss")]
pub(crate) mod gss_pool;
pub(crate) mod latency;
pub(crate) mod mailbox;
pub(crate) mod observation;
pub(crate) mod origins;
pub(crate) mod outgoing;
pub(crate) mod panic_log;
pub(crate) mod read_buffers;
pub(crate) mod read_ids;
pub(crate) mod reply_cache;
pub(crate) mod rfc5666;
pub(crate) mod roles;
pub(crate) mod serving;
pub(crate) mod stalls;
pub(crate) mod upcalls;
