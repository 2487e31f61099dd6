//! Layer 5: the half that answers calls. Works on the state, and does not know the other half.

#[cfg(feature = "gss")]
pub(crate) mod gss;
pub(crate) mod pulls;
pub(crate) mod refusals;
pub(crate) mod replies;
mod rfc5666;
