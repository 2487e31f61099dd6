//! Credits, and the receives that they need.

use super::Config;
use crate::mem::budget::{Budget, RECVS_BEHIND_MAX};

impl Config {
    /// Receive buffers of one connection; of one with calls in reverse, if there may be any. A
    /// buffer is posted again before anything leaves that lets the peer send another message, so
    /// those in the hands of handlers are among `credits` and `reverse`. An exception is a connection that its
    /// client closes in a handler, with the destruction of its RPCSEC_GSS context.
    pub fn recv_budget(&self) -> Budget {
        self.recv_budget_with(self.reverse_calls().max(usize::from(self.refuses_reverse())))
    }

    /// The same with this number of calls in reverse: their receives come on top of those of the forward
    /// direction (RFC 8167 section 4).
    pub(crate) fn recv_budget_with(&self, reverse_calls: usize) -> Budget {
        let (forward, reverse) = (self.credits(), reverse_calls);
        Budget([
            // Calls and replies that our grants and our own calls let the peer send.
            ("credits", forward as u32),
            ("reverse", reverse as u32),
            // Those that a driver posts behind sends.
            ("behind_sends", RECVS_BEHIND_MAX),
            // A call beyond the credits, from a client that gave up an earlier one; it gets an error.
            ("slack", 1),
            // RDMA_DONEs, of peers that do not count them among their credits (section 3.8).
            ("dones", self.dones_received_max(forward) + self.dones_received_max(reverse)),
        ])
    }
}
