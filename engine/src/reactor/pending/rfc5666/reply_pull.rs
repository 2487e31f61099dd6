//! A reply with a Read list, from its arrival until its chunks were fetched (RFC 5666 section 3.8).

use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use crate::reactor::pending::sinks::Sinks;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::DeliveredReply;

/// A reply that is being fetched.
pub(crate) struct ReplyPull {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    /// The memory of its call, whose keys are dead.
    pub(in crate::reactor) hold: Option<Box<CallHold>>,
    pub(in crate::reactor) sinks: Sinks,
    pub(in crate::reactor) put_off: bool,
    /// Deadline of the wait for memory, once it has begun to wait.
    pub(in crate::reactor) patience: Option<Instant>,
}

impl ReplyPull {
    pub(in crate::reactor) fn new(
        message: Buf,
        reply: DeliveredReply,
        hold: Option<Box<CallHold>>,
    ) -> Self {
        Self { message, reply, hold, sinks: Sinks::default(), put_off: false, patience: None }
    }

    /// Takes the memory of its call, when the connection is gone before the reply is complete.
    pub(in crate::reactor) fn into_hold(self) -> Option<Box<CallHold>> {
        self.hold
    }

    /// Blocks of registered memory that it holds.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.hold.as_ref().map_or(0, |hold| hold.blocks()) + self.sinks.blocks()
    }
}
