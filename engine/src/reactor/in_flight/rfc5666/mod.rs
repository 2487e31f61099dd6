//! State that only the dialects of RFC 5666 need: replies by Read list at both ends, and chained receives. Other code
//! names it by this module alone.

mod exported;
mod receive_chains;

pub(crate) use exported::ExportHold;
pub(crate) use receive_chains::ReceiveChains;
