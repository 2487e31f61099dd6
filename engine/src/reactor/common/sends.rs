//! Outgoing messages: counts each kind, and ends a connection whose queue is full. Called by both halves.

use crate::fabric::{ConnId, SendWr};
use crate::mem::Buf;
use crate::reactor::state::core::Reactor;

/// Kind of a message that is posted.
#[derive(Clone, Copy)]
pub(in crate::reactor) enum Posted {
    Call,
    /// A reply, or another answer to a call, and the key that it invalidates.
    Answer(Option<u32>),
    /// RDMA_DONE (RFC 5666 section 3.8).
    Done,
}

impl Reactor {
    /// Posts a message. There was room when it was written: without room the connection ends, and a call, which is in
    /// flight by now, with it. In place in replies without chunks, of either version.
    #[inline(always)]
    pub(in crate::reactor) fn post(&mut self, conn: ConnId, message: Buf, what: Posted) {
        let bytes = message.len() as u64;
        let stats = self.stats();
        stats.bytes_inline += bytes;
        let (is_copied, invalidate) = match what {
            Posted::Call => {
                stats.calls_sent += 1;
                (true, None)
            }
            Posted::Answer(invalidate) => {
                stats.replies_sent += 1;
                (invalidate.is_none(), invalidate)
            }
            Posted::Done => {
                stats.dones_sent += 1;
                (false, None)
            }
        };
        if is_copied && self.fabric_mut().send_copied(conn, message.bytes()) {
            return;
        }
        if self.fabric_mut().post(conn, SendWr::Send { message, invalidate }).is_err() {
            self.close_overrun(conn, "send queue");
        }
    }
}
