//! Ends connections whose peers do not let a request complete. Called by the turn, when the timer is due.

use crate::fabric::{ConnId, DownCause};
use crate::reactor::state::core::Reactor;
use spinrpc_proto::ids::Instant;

impl Reactor {
    /// Looks at the outstanding requests of each connection, if that is due, and closes the connections with a request that
    /// has been outstanding for too long.
    pub(in crate::reactor) fn end_stalled(&mut self, now: Instant) {
        if !self.stalls.take_due(now) {
            return;
        }
        let (conns, core) = self.split();
        let mut stalled: Vec<ConnId> = Vec::new();
        for c in conns.iter_mut().filter(|c| c.closing.is_none()) {
            core.stalls.begin(now);
            if c.is_stalled(core.fabric()) {
                stalled.push(c.id);
            }
        }
        self.stats().connections_stalled += stalled.len() as u64;
        for conn in stalled {
            self.begin_close(conn, DownCause::Stalled);
        }
    }
}
