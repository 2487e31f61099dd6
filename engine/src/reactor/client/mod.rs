//! Layer 5: the half that makes calls, including reverse calls, one module for each stage of a call. Works on the state, and does
//! not know the other half.

pub(crate) mod chunk_exposure;
pub(crate) mod emit;
pub(crate) mod place;
#[cfg(feature = "gss")]
pub(crate) mod protect;
pub(crate) mod replies;
pub(crate) mod resend;
pub(crate) mod reverse;
mod rfc5666;
