//! Replies that have arrived and cannot be delivered yet: their keys are alive, or there is more to fetch.

use crate::mem::Buf;
use crate::reactor::pending::call_table::CallHold;
use spinrpc_proto::output::DeliveredReply;

/// A reply whose call has keys that are being killed.
pub(crate) struct FencedReply {
    message: Buf,
    reply: DeliveredReply,
    hold: Box<CallHold>,
    /// The key that the peer invalidated with it.
    invalidated: Option<u32>,
    /// It has a Read list: there is more to fetch.
    is_partial: bool,
}

impl FencedReply {
    pub(in crate::reactor) fn new(
        message: Buf,
        reply: DeliveredReply,
        hold: Box<CallHold>,
        (invalidated, is_partial): (Option<u32>, bool),
    ) -> Self {
        Self { message, reply, hold, invalidated, is_partial }
    }

    pub(in crate::reactor) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns true if it waits for this key.
    pub(in crate::reactor) fn has_key(&self, handle: u32) -> bool {
        self.hold.handles().contains(&handle)
    }

    /// One of its keys is dead; true if it was the last.
    pub(in crate::reactor) fn key_died(&mut self) -> bool {
        self.hold.key_died()
    }

    /// Message, reply and memory of the call; the invalidated key, and true if there is more to fetch.
    pub(in crate::reactor) fn into_parts(
        self,
    ) -> (Buf, DeliveredReply, Box<CallHold>, (Option<u32>, bool)) {
        (self.message, self.reply, self.hold, (self.invalidated, self.is_partial))
    }
}
