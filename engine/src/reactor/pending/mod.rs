//! Layer 2: state of calls and replies in progress, and the letters between threads. Knows the words.

pub(crate) mod call_table;
pub(crate) mod deferred;
pub(crate) mod drain;
pub(crate) mod expiry;
#[cfg(feature = "gss")]
pub(crate) mod gss_calls;
#[cfg(feature = "gss")]
pub(crate) mod gss_work;
pub(crate) mod interrupted;
pub(crate) mod lasting;
pub(crate) mod latency;
pub(crate) mod mailbox;
pub(crate) mod observation;
pub(crate) mod origins;
pub(crate) mod panic_log;
pub(crate) mod pulling;
pub(crate) mod reply_cache;
pub(crate) mod rfc5666;
pub(crate) mod roles;
pub(crate) mod serving;
pub(crate) mod sinks;
pub(crate) mod spares;
pub(crate) mod stalls;
pub(crate) mod upcalls;
pub(crate) mod waiting;
