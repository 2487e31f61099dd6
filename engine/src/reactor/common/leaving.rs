//! Graceful shutdown of a core, from the letter that requests it until the core is shut down.
//!
//! Arriving calls are ignored, new connections refused. Calls that a service has deferred are answered, and each
//! connection to a client is closed as soon as its replies were sent, which ends reverse calls on it. Connections
//! that this side opened stay, because services may need them, but their replies to reverse calls are sent first. The
//! core checks the progress when it reads its mail and, while calls are left, periodically.

use crate::fabric::{ConnId, DownCause, Fabric, SendWr};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::calls::ReplyTarget;
use crate::reactor::words::instance::Instance;
use crate::reactor::words::messages::version_of;
use spinrpc_proto::connection::Side;
use spinrpc_proto::goodbye;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::{Dropped, SlotId};
use spinrpc_proto::version::TransportVersion;
use std::time::Duration;

/// Interval at which the core checks if replies were sent.
pub(in crate::reactor) const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Reactor {
    /// Closes the connections whose replies were sent, and reports the number of unfinished calls. Replies that a
    /// device still has are sent before the connection is down. The report comes before any connection is closed, so
    /// that a thread that has seen one end can rely on it.
    #[cold]
    pub(in crate::reactor) fn go_on_leaving(&mut self) {
        if self.leaving.is_none() {
            return;
        }
        self.fabric.flush();
        let (mut unfinished, mut is_over, mut done) = (self.all_deferred(), true, Vec::new());
        for place in 0..self.conns.places() {
            let Some(c) = self.conns.at(place) else { continue };
            let is_client = c.lane.proto().side() == Side::Client;
            if is_client && !c.lane.proto().is_two_way() {
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
            leaving.request = None;
        } else {
            let look_at = self.read_clock().0.saturating_add(self.clock.from_duration(LOOK_EVERY));
            self.next_deadline = self.next_deadline.min(Instant(look_at));
        }
        for id in done {
            if self.say_goodbye(id) {
                self.begin_close(id, DownCause::Local);
            }
        }
    }

    pub(in crate::reactor) fn close_all(&mut self) {
        self.ending = true;
        for conn in self.conns.ids() {
            self.begin_close(conn, DownCause::Local);
        }
    }

    /// Tells a client whose calls are all answered that no other one was executed. Returns true when the connection
    /// may be closed: the message was sent, or cannot be sent.
    pub(in crate::reactor) fn say_goodbye(&mut self, conn: ConnId) -> bool {
        let Some(c) = self.conns.find(conn) else { return false };
        // The message is in no standard: only our own ends know it.
        let is_understood = c.negotiated.peer().instance != Instance::Unknown;
        if !is_understood || c.goodbye.is_sent || c.goodbye.is_false {
            return true;
        }
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            return false;
        }
        let Some(mut message) = c.sends.take() else { return false };
        let only_two = !c.lane.proto().limits().versions.speaks(TransportVersion::One);
        let spoken = if only_two { TransportVersion::Two } else { TransportVersion::One };
        let version = c.goodbye.version.unwrap_or(spoken);
        let length = goodbye::emit(message.whole_mut(), version, c.lane.proto().responder.grant());
        message.set_range(0..length);
        c.goodbye.is_sent = true;
        if self.fabric.post(conn, SendWr::Send { message, invalidate: None }).is_err() {
            return true;
        }
        self.fabric.flush();
        !self.fabric.has_unsent(conn)
    }

    /// Takes a message that the protocol core has dropped. Returns true if it states that the calls in flight are not
    /// executed on this connection; any other message may have been the answer to one of them.
    pub(in crate::reactor) fn hear_goodbye(
        &mut self,
        conn: ConnId,
        message: &[u8],
        why: Dropped,
    ) -> bool {
        let Some(c) = self.conns.find(conn) else { return false };
        let is_heard = c.lane.proto().side() == Side::Client && goodbye::is_goodbye(message);
        c.goodbye.is_heard |= is_heard;
        c.goodbye.is_doubtful |= !is_heard && why.may_be_answer();
        is_heard
    }

    /// Deferred calls of any kind that are not answered.
    pub(in crate::reactor) fn all_deferred(&self) -> usize {
        self.deferred + self.options_deferred
    }

    /// Leaves a call for its client to send again, to the next server.
    pub(in crate::reactor) fn leave_call(&mut self, to: &ReplyTarget<'_>) {
        let Some(c) = self.conns.find(to.conn) else { return };
        if c.lane.proto().responder.abandon(to.slot) {
            c.release(to.slot);
            c.goodbye.version = Some(version_of(to.message));
            self.stats.calls_left += 1;
        }
    }
}

impl Conn {
    /// Returns true if a call lost with the connection, without any part of a reply, was executed neither on this
    /// connection nor on an earlier one.
    pub(in crate::reactor) fn proves_unexecuted(&self, slot: SlotId) -> bool {
        let is_unknown = self.calls.lasting.as_ref().is_some_and(|before| before.is_unknown(slot));
        self.goodbye.is_believed() && !self.dialect.is_pulling(slot) && !is_unknown
    }

    /// Replies that wait for more than the send queue: errors wait for a buffer, replies that the client fetches for
    /// their RDMA_DONE, or for an earlier one.
    pub(in crate::reactor) fn replies_held(&self) -> usize {
        self.answers_owed
            + self.dialect.kept.len()
            + self.lane.proto().responder.dones_owed() as usize
    }
}
