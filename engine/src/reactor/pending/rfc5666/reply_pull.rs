//! A reply with a Read list, from its arrival until its chunks were fetched (RFC 5666 section 3.8).

use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use crate::reactor::pending::sinks::Sinks;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::DeliveredReply;

/// A reply that is being fetched.
pub(crate) struct ReplyPull {
    message: Buf,
    reply: DeliveredReply,
    /// The memory of its call, whose keys are dead.
    hold: Option<Box<CallHold>>,
    sinks: Sinks,
    waits: bool,
    /// Deadline of the wait for memory, once it has begun to wait.
    patience: Option<Instant>,
}

impl ReplyPull {
    pub(in crate::reactor) fn new(
        message: Buf,
        reply: DeliveredReply,
        hold: Option<Box<CallHold>>,
    ) -> Self {
        Self { message, reply, hold, sinks: Sinks::default(), waits: false, patience: None }
    }

    /// The message, and memory for its chunks.
    pub(in crate::reactor) fn fetched(&mut self) -> (&Buf, &mut Sinks) {
        (&self.message, &mut self.sinks)
    }

    /// Message, reply, memory of the call and of the chunks.
    pub(in crate::reactor) fn into_parts(
        self,
    ) -> (Buf, DeliveredReply, Option<Box<CallHold>>, Sinks) {
        (self.message, self.reply, self.hold, self.sinks)
    }

    /// It begins to wait in the queue of the core; returns false if it does already.
    pub(in crate::reactor) fn begin_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    pub(in crate::reactor) fn end_wait(&mut self) {
        self.waits = false;
    }

    /// End of its wait for memory, which is `ends` if it begins now.
    pub(in crate::reactor) fn wait_ends(&mut self, ends: Instant) -> Instant {
        *self.patience.get_or_insert(ends)
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
