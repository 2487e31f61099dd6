//! Layer 1: values. What travels between the parts of a core, and what is computed from it alone; nothing here
//! knows a connection.

pub(crate) mod calls;
#[cfg(feature = "gss")]
pub(crate) mod crypto_counts;
pub(crate) mod draft;
pub(crate) mod gate;
pub(crate) mod idle;
pub(crate) mod instance;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod message_memory;
pub(crate) mod messages;
pub(crate) mod negotiate;
#[cfg(feature = "gss")]
pub(crate) mod protection;
pub(crate) mod reply_plan;
pub(crate) mod rfc5666;
pub(crate) mod sink;
pub(crate) mod stats;
