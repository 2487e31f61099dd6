//! A reply with a Read list, from its arrival until its chunks were fetched (RFC 5666 section 3.8).

use crate::mem::Buf;
use crate::reactor::in_flight::deadlines::MessageWait;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use spinrpc_proto::events::DeliveredReply;

/// A reply that is being fetched.
pub(crate) struct ReplyPull {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    /// Its call, whose keys are dead.
    pub(in crate::reactor) call: Option<Box<Outgoing>>,
    /// Memory for its chunks.
    pub(in crate::reactor) sinks: ReadBuffers,
    pub(in crate::reactor) wait: MessageWait,
}

impl ReplyPull {
    /// Blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.call.as_ref().map_or(0, |call| call.blocks()) + self.sinks.blocks()
    }
}
