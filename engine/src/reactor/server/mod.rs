//! Layer 5: the half that answers calls. Works on the state, and does not know the other half.

pub(crate) mod call_times;
#[cfg(feature = "gss")]
pub(crate) mod in_place;
pub(crate) mod options;
#[cfg(feature = "gss")]
pub(crate) mod protect;
pub(crate) mod pulls;
pub(crate) mod refusals;
pub(crate) mod replies;
mod rfc5666;
