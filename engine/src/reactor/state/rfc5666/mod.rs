//! The part of a connection that only the dialects of RFC 5666 need. Under RFC 8166 it is empty.

mod configuration;
mod dialect;

pub(crate) use dialect::Dialect;
pub(in crate::reactor) use dialect::PulledReply;
pub(super) use dialect::ReplyPull;
