//! Credits, and the receives that they need.

use super::{Config, to_usize};
use crate::mem::budget::{Budget, RECVS_BEHIND_MAX, RecvBudget};
use std::time::Duration;

impl Config {
    /// Calls a requester may have outstanding on one connection: requested as a client, granted as
    /// a server (RFC 8166 section 3.3.1).
    pub fn credits(&self) -> usize {
        to_usize(self.raw.rpc.credits)
    }

    /// Calls that a server grants a connection that makes few. Where requesters fetch replies, and say so by RDMA_DONE,
    /// all of them always: the grant follows from what is owed.
    pub fn credits_idle(&self) -> usize {
        match self.protocol().has_reads_in_replies() || self.protocol().has_done_after_calls() {
            true => self.credits(),
            false => to_usize(self.raw.rpc.credits_idle).min(self.credits()),
        }
    }

    /// The grants of accepted connections follow their use.
    pub(crate) fn changes_grants(&self) -> bool {
        self.credits_idle() < self.credits()
    }

    /// Calls that the busy connections of a server's core are granted beyond those, all together.
    pub fn credits_shared(&self) -> usize {
        to_usize(self.raw.rpc.credits_shared)
    }

    /// Time in which a busy connection makes as many calls as it is granted.
    pub fn credits_period(&self) -> Duration {
        Duration::from_millis(self.raw.rpc.credits_period_ms)
    }

    /// Receive buffers of one connection; of one with calls in reverse, if there may be any. A
    /// buffer is posted again before anything leaves that lets the peer send another message, so
    /// those in the hands of handlers are among `credits` and `reverse`. An exception is a connection that its
    /// client closes in a handler, with the destruction of its RPCSEC_GSS context.
    pub fn recv_budget(&self) -> RecvBudget {
        self.recv_budget_with(self.reverse_calls().max(usize::from(self.refuses_reverse())))
    }

    /// The same with this number of calls in reverse: their receives come on top of those of the forward
    /// direction (RFC 8167 section 4).
    pub(crate) fn recv_budget_with(&self, reverse_calls: usize) -> RecvBudget {
        let (forward, reverse) = (self.credits(), reverse_calls);
        RecvBudget {
            credits: forward as u32,
            reverse: reverse as u32,
            behind_sends: RECVS_BEHIND_MAX,
            slack: 1,
            dones: self.dones_received_max(forward) + self.dones_received_max(reverse),
        }
    }

    /// Receives of an accepted connection for anything but the calls that it is granted.
    pub(crate) fn receives_beyond_calls(&self) -> usize {
        let budget = self.recv_budget_with(self.reverse_calls());
        budget.total() as usize - self.credits()
    }

    /// Receives that the accepted connections of a core share, if its grants change.
    pub(crate) fn shared_receives(&self) -> Option<usize> {
        let of_each = self.credits_idle() + self.receives_beyond_calls();
        self.changes_grants().then(|| self.conns_max() * of_each + self.credits_shared())
    }
}
