//! Ending in good order: what a core does from the letter that asks for it until it is shut down.
//!
//! Calls that come are left alone, new connections refused. Those calls that a service has deferred
//! are answered, and each connection to a client is closed as soon as its replies have left, which
//! ends calls in reverse on it; those that this side asked for stay, because services may need them,
//! but replies to calls in reverse leave first. The core looks at that with its mail and, while
//! something is left, again and again.

use super::connection::Conn;
use super::core::Reactor;
use super::ops::ReplyTarget;
use super::replies::release;
use crate::fabric::{DownCause, Fabric};
use spinrpc_proto::connection::Side;
use spinrpc_proto::ids::Instant;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long replies may have left before the core notices.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Who waits for a core that ends.
pub(crate) struct Farewell {
    /// Which core it is.
    pub(crate) core: usize,
    /// Gets core and calls that it still has to finish, when they change; is dropped when there are
    /// none, and the connections of clients are down, or when the core is shut down.
    pub(crate) report: Sender<(usize, usize)>,
}

/// A core that ends in good order.
pub(super) struct Leaving {
    farewell: Option<Farewell>,
    told: Option<usize>,
}

impl Leaving {
    pub(super) fn new(farewell: Farewell) -> Self {
        Self { farewell: Some(farewell), told: None }
    }

    fn tell(&mut self, unfinished: usize) {
        if let Some(Farewell { core, report }) = &self.farewell
            && self.told.replace(unfinished) != Some(unfinished)
        {
            // An error says that nobody waits any longer.
            let _ = report.send((*core, unfinished));
        }
    }
}

impl<F: Fabric> Reactor<F> {
    /// Closes the connections whose replies have left, and says how many calls are not finished. What
    /// a device still has of a connection's replies is sent before that is down. It says so before
    /// it closes any, so that whoever has seen one end may rely on it.
    #[cold]
    pub(super) fn go_on_leaving(&mut self) {
        if self.leaving.is_none() {
            return;
        }
        self.fabric.flush();
        let (mut unfinished, mut is_over, mut done) = (self.all_deferred(), true, Vec::new());
        for place in 0..self.conns.places() {
            let Some(c) = self.conns.at(place) else { continue };
            let is_client = c.proto.side() == Side::Client;
            if is_client && !c.proto.is_two_way() {
                continue;
            }
            is_over &= is_client;
            if c.closing.is_some() {
                continue;
            }
            let (id, held) = (c.id, c.replies_held() + usize::from(self.fabric.has_unsent(c.id)));
            unfinished += held;
            if !is_client && held == 0 && c.sends_promised == 0 {
                done.push(id);
            }
        }
        let Some(leaving) = &mut self.leaving else { return };
        leaving.tell(unfinished);
        if is_over && unfinished == 0 {
            leaving.farewell = None;
        } else {
            let look_at = self.read_clock().0.saturating_add(self.clock.from_duration(LOOK_EVERY));
            self.next_deadline = self.next_deadline.min(Instant(look_at));
        }
        done.into_iter().for_each(|id| self.begin_close(id, DownCause::Local));
    }

    /// Calls deferred, of whatever kind, that are not answered.
    pub(super) fn all_deferred(&self) -> usize {
        self.deferred + self.options_deferred
    }

    /// A call that is its client's to send again, to whoever serves next.
    pub(super) fn leave_call(&mut self, to: &ReplyTarget<'_>) {
        let Some(c) = self.conns.find(to.conn) else { return };
        if c.proto.responder.abandon(to.slot) {
            release(c, to.slot);
            self.stats.calls_left += 1;
        }
    }
}

impl Conn {
    /// Replies that wait for more than the send queue: errors for a buffer, those that are left to be
    /// fetched for their RDMA_DONE, or for that of another.
    fn replies_held(&self) -> usize {
        self.errors_owed + self.kept.len() + self.proto.responder.dones_owed() as usize
    }
}
