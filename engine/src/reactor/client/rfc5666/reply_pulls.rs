//! Replies by Read list (RFC 5666 sections 3.5, 3.8 and 5.1): such a reply waits in its slot while RDMA Reads
//! bring its chunks into private memory of the core. Then RDMA_DONE is sent and the application gets the reply, with
//! its items in buffers of their own.
//!
//! RDMA_DONE is sent once, whatever the outcome of the call. After a deadline or a cancel nothing more is requested,
//! but RDMA Reads in flight complete first.

use crate::fabric::ConnId;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::upcalls::Upcalls;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::state::rfc5666::PulledReply;
use spinrpc_proto::events::{CallFailure, SlotId};
use spinrpc_proto::pull::Pulled;
use spinrpc_proto::rdma::v1::DONE_BYTES;
use spinrpc_proto::reply_pull::PullEnd;

impl CoreCell {
    /// Begins with a reply that has to be fetched. The responder has finished with the memory of the call.
    #[cold]
    pub(in crate::reactor) fn begin_reply(
        &self,
        conn: ConnId,
        reply: PulledReply,
        fetched: Result<(), CallFailure>,
        up: &mut impl Upcalls,
    ) {
        let slot = reply.1.slot;
        if self.reactor().hold_reply(conn, reply, fetched) {
            self.go_on_with_reply(conn, slot, up);
        }
    }

    /// Continues with a reply: it arrived, an RDMA Read of it completed, or it was deferred.
    pub(in crate::reactor) fn go_on_with_reply(
        &self,
        conn: ConnId,
        slot: SlotId,
        up: &mut impl Upcalls,
    ) {
        let whole = self.reactor().step_reply(conn, slot);
        if let Some(pull) = whole {
            self.deliver_pulled(conn, pull, up);
        }
    }

    fn deliver_pulled(
        &self,
        conn: ConnId,
        ((message, reply, call), mut sinks): (PulledReply, ReadBuffers),
        up: &mut impl Upcalls,
    ) {
        self.reactor().stats().copies += sinks.take_home();
        self.deliver_other_reply(conn, message, &reply, (call, Some(&mut sinks)), up);
    }
}

impl Reactor {
    /// Stores a reply in its place; returns false if there is none to continue with.
    fn hold_reply(
        &mut self,
        conn: ConnId,
        reply: PulledReply,
        fetched: Result<(), CallFailure>,
    ) -> bool {
        let slot = reply.1.slot;
        let Some(c) = self.conn(conn) else { return false };
        if !c.put_pull(reply) {
            return false;
        }
        let proto = self.conn(conn).map(|c| c.lane.proto());
        let plan = proto.as_ref().and_then(|proto| proto.requester.pull_plan(slot));
        let too_long = plan.is_some_and(|plan| plan.chunks().is_empty());
        drop(proto);
        match fetched {
            Ok(()) if too_long => {
                self.give_up_reply(conn, slot, CallFailure::NoMemory);
                true
            }
            Ok(()) => true,
            // The connection ends, and the call with it.
            Err(CallFailure::Misbehaved(_)) => false,
            Err(failure) => {
                self.give_up_reply(conn, slot, failure);
                true
            }
        }
    }

    /// Requests the missing chunks of a reply, or ends it; returns the reply if the application gets it now.
    fn step_reply(&mut self, conn: ConnId, slot: SlotId) -> Option<(PulledReply, ReadBuffers)> {
        if self.conn(conn)?.lane.proto().requester.wants_reads(slot) {
            // A reply that exceeds the whole memory, or has waited for some too long, fails.
            if self.fetch(conn, ReadOwner::Reply(slot)).is_err() {
                self.give_up_reply(conn, slot, CallFailure::NoMemory);
            }
        }
        let is_pulled = self.conn(conn)?.lane.proto().requester.is_pulled(slot);
        if is_pulled { self.end_reply(conn, slot) } else { None }
    }

    /// Sends RDMA_DONE, as soon as there is room for it, and takes the reply out of its place; `None` if it is not to
    /// be delivered, or not yet.
    fn end_reply(&mut self, conn: ConnId, slot: SlotId) -> Option<(PulledReply, ReadBuffers)> {
        let (c, core) = self.conn_and_core(conn)?;
        let room = c.queue_room(core.fabric()) > 0 && c.has_spare_send();
        let Some(mut done) = c.sends.take().filter(|_| room) else {
            self.put_off(conn, ReadOwner::Reply(slot));
            return None;
        };
        let end = c.lane.proto().requester.end_pull(slot, done.whole_mut())?;
        let pull = c.take_pull(slot);
        done.set_range(0..DONE_BYTES);
        self.post(conn, done, Posted::Done);
        match end {
            PullEnd::Deliver { .. } => pull,
            PullEnd::Release => {
                let ((message, _, call), _) = pull?;
                self.finish_reply(conn, message, call);
                None
            }
        }
    }

    /// An RDMA Read of a reply completed: returns true if the reply can continue. A failed one means that the queue
    /// pair goes down, which ends the call.
    pub(in crate::reactor) fn on_reply_read(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some(c) = self.conn(conn) else { return false };
        let requester = &mut c.lane.proto().requester;
        match requester.on_read_done(slot) {
            Pulled::Stale => false,
            Pulled::More => requester.wants_reads(slot),
            Pulled::Complete => true,
        }
    }
}
