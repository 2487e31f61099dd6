//! Graceful shutdown of a core, from the letter that requests it until the core is shut down.
//!
//! Arriving calls are ignored, new connections refused. Calls that a service has deferred are answered, and each
//! connection to a client is closed as soon as its replies were sent, which ends reverse calls on it. Connections
//! that this side opened stay, because services may need them, but their replies to reverse calls are sent first. The
//! core checks the progress when it reads its mail and, while calls are left, periodically.

use crate::fabric::DownCause;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::ReplyTarget;
use spinrpc_proto::connection::Side;
use std::time::Duration;

/// Interval at which the core checks if replies were sent.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Reactor {
    /// Closes the connections whose replies were sent, and reports the number of unfinished calls. Replies that a
    /// device still has are sent before the connection is down. The report comes before any connection is closed, so
    /// that a thread that has seen one end can rely on it.
    #[cold]
    pub(in crate::reactor) fn go_on_leaving(&mut self) {
        if self.leaving().is_none() {
            return;
        }
        self.fabric_mut().flush();
        let (mut unfinished, mut is_over, mut done) = (self.deferred(), true, Vec::new());
        let (conns, core) = self.split();
        for place in 0..conns.places() {
            let Some(c) = conns.at(place) else { continue };
            let is_client = c.lane.proto().side() == Side::Client;
            if is_client && !c.lane.proto().is_two_way() {
                continue;
            }
            is_over &= is_client;
            if c.closing.is_some() {
                continue;
            }
            let (id, held) =
                (c.id, c.replies_held() + usize::from(core.fabric().outstanding(c.id).is_unsent));
            unfinished += held;
            if !is_client && held == 0 && c.sends_promised() == 0 {
                done.push(id);
            }
        }
        let Some(leaving) = self.leaving() else { return };
        leaving.tell(unfinished);
        if is_over && unfinished == 0 {
            leaving.end();
        } else {
            let look_at = self.in_ticks(self.ticks(LOOK_EVERY));
            self.wake_by(look_at);
        }
        for id in done {
            self.begin_close(id, DownCause::Local);
        }
    }
}

impl CoreCell {
    /// Leaves a call unexecuted and unanswered: its connection will close.
    pub(crate) fn abandon_call(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        let Some((c, core)) = reactor.conn_and_core(to.conn) else { return };
        if c.lane.proto().responder.abandon(to.slot) {
            c.release(to.slot);
            core.stats().calls_left += 1;
        }
    }
}
