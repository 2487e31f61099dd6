//! Layer 5: the half that makes calls, including reverse calls. Works on the state, and does not know the other half.

pub(crate) mod calls;
pub(crate) mod chunk_exposure;
pub(crate) mod fenced;
pub(crate) mod given_up;
pub(crate) mod plain_calls;
#[cfg(feature = "gss")]
pub(crate) mod protect;
pub(crate) mod resend;
pub(crate) mod reverse;
mod rfc5666;
#[cfg(feature = "gss")]
pub(crate) mod seal;
pub(crate) mod versions;
#[cfg(feature = "gss")]
pub(crate) mod whole_replies;
