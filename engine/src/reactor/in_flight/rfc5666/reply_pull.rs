//! A reply with a Read list, from its arrival until its chunks were fetched (RFC 5666 section 3.8).

use crate::mem::Buf;
use crate::reactor::in_flight::call_table::CallHold;
use crate::reactor::in_flight::read_buffers::Sinks;
use spinrpc_proto::events::DeliveredReply;
use spinrpc_proto::ids::Instant;

/// A reply that is being fetched.
pub(crate) struct ReplyPull {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    /// The memory of its call, whose keys are dead.
    pub(in crate::reactor) hold: Option<Box<CallHold>>,
    /// Memory for its chunks.
    pub(in crate::reactor) sinks: Sinks,
    /// It is in the queue of the core.
    pub(in crate::reactor) waits: bool,
    /// Deadline of the wait for memory, once it has begun to wait.
    pub(in crate::reactor) patience: Option<Instant>,
}

impl ReplyPull {
    /// Blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.hold.as_ref().map_or(0, |hold| hold.blocks()) + self.sinks.blocks()
    }
}
