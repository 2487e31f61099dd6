//! Calls that have ended without an answer, and answers that found no buffer.

use crate::fabric::ConnId;
use crate::reactor::words::calls::{CallEnd, CallKey};
use spinrpc_proto::ids::Xid;
#[cfg(feature = "canary")]
use spinrpc_proto::output::SlotId;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::version::TransportVersion;

/// A call whose end was not yet reported to the application.
pub(in crate::reactor) struct GivenUp {
    pub(in crate::reactor) conn: ConnId,
    pub(in crate::reactor) call: CallKey,
    pub(in crate::reactor) end: CallEnd,
    /// The slot that keeps its memory until the responder answers.
    #[cfg(feature = "canary")]
    pub(in crate::reactor) fenced: Option<SlotId>,
}

impl GivenUp {
    pub(in crate::reactor) fn new(conn: ConnId, call: CallKey, end: CallEnd) -> Self {
        Self {
            conn,
            call,
            end,
            #[cfg(feature = "canary")]
            fenced: None,
        }
    }
}

/// An answer that found no buffer.
pub(in crate::reactor) struct OwedAnswer {
    pub(in crate::reactor) conn: ConnId,
    pub(in crate::reactor) xid: Xid,
    pub(in crate::reactor) kind: OwedKind,
}

pub(in crate::reactor) enum OwedKind {
    /// RDMA_ERROR, to a message with that version word.
    Error(u32, RdmaError),
    /// PROG_UNAVAIL.
    NoProgram(TransportVersion),
}
