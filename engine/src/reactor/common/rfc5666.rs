//! RDMA_DONE, which both halves send (RFC 5666 section 3.8).

use crate::fabric::{ConnId, SendWr};
use crate::mem::Buf;
use crate::reactor::state::core::Reactor;

impl Reactor {
    /// Posts an RDMA_DONE.
    pub(in crate::reactor) fn post_done(&mut self, conn: ConnId, message: Buf) {
        self.stats().dones_sent += 1;
        self.stats().bytes_inline += message.len() as u64;
        if self.fabric_mut().post(conn, SendWr::Send { message, invalidate: None }).is_err() {
            self.close_overrun(conn, "send queue");
        }
    }
}
