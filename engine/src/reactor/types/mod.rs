//! Layer 1: values. What travels between the parts of a core, and what is computed from it alone; nothing here
//! knows a connection.

pub(crate) mod calls;
#[cfg(feature = "gss")]
pub(crate) mod crypto_counts;
pub(crate) mod encode_buffer;
pub(crate) mod encoded_stream;
pub(crate) mod header_bytes;
pub(crate) mod idle;
pub(crate) mod lane_gate;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod negotiate;
pub(crate) mod peer_id;
#[cfg(feature = "gss")]
pub(crate) mod protection;
pub(crate) mod reply_plan;
pub(crate) mod resend_source;
pub(crate) mod rfc5666;
pub(crate) mod stats;
