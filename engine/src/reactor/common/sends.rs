//! Outgoing messages: counts each kind, and ends a connection whose queue is full. Called by both halves.

use crate::fabric::{ConnId, SendWr};
use crate::mem::Buf;
use crate::reactor::state::core::Reactor;

impl Reactor {
    /// Posts a call.
    #[inline]
    pub(in crate::reactor) fn post_call(&mut self, conn: ConnId, message: Buf) {
        self.stats().calls_sent += 1;
        self.stats().bytes_inline += message.len() as u64;
        if self.fabric_mut().send_copied(conn, message.bytes()) {
            return;
        }
        if self.fabric_mut().post(conn, SendWr::Send { message, invalidate: None }).is_err() {
            // There was room when it was written. The call is in flight by now, and ends once, with the connection.
            self.close_overrun(conn, "send queue");
        }
    }

    /// Posts a reply, or another answer to a call. In place in plain replies of either version.
    #[inline(always)]
    pub(in crate::reactor) fn post_answer(
        &mut self,
        conn: ConnId,
        message: Buf,
        invalidate: Option<u32>,
    ) {
        self.stats().replies_sent += 1;
        self.stats().bytes_inline += message.len() as u64;
        if invalidate.is_none() && self.fabric_mut().send_copied(conn, message.bytes()) {
            return;
        }
        if self.fabric_mut().post(conn, SendWr::Send { message, invalidate }).is_err() {
            self.close_overrun(conn, "send queue");
        }
    }
}
