//! Layer 5: the half that makes calls, including reverse calls. Works on the state, and does not know the other half.

pub(crate) mod cancel;
pub(crate) mod chunk_exposure;
pub(crate) mod chunked_calls;
pub(crate) mod fenced_replies;
#[cfg(feature = "gss")]
pub(crate) mod gss;
#[cfg(feature = "gss")]
pub(crate) mod gss_long_calls;
#[cfg(feature = "gss")]
pub(crate) mod gss_long_replies;
pub(crate) mod plain_calls;
pub(crate) mod retransmit;
pub(crate) mod reverse;
mod rfc5666;
pub(crate) mod version_fallback;
