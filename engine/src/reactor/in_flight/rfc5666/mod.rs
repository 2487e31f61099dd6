//! State that only the dialects of RFC 5666 need: replies by Read list at both ends, and chained receives. Other code
//! names it by this module alone.

mod exported;
mod receive_chains;
mod reply_pull;

pub(crate) use exported::{ExportHold, KeptReply};
pub(crate) use receive_chains::ReceiveChains;
pub(crate) use reply_pull::ReplyPull;
