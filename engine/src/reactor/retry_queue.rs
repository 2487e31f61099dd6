//! The queue of what waits for memory, credit or room, and the completed RDMA Reads: each belongs to a call or a reply,
//! whose half continues with it. Called by the turn.

use crate::fabric::{ConnId, WrError, WrId};
use crate::reactor::in_flight::deadlines::Waiting;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::upcalls::{CallFrame, CoreEvent, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::header_bytes::xid_of;
use spinrpc_proto::events::SlotId;

/// A message that can continue.
pub(super) enum Arrived {
    /// A call that is whole.
    Call(CallFrame),
    /// A reply.
    Reply(ConnId, SlotId),
}

impl CoreCell {
    /// Continues with what waits, oldest first, as many as one turn may handle (`poll.budget`).
    pub(super) fn resume(&self, up: &mut impl Upcalls) {
        let waiting = {
            let reactor = self.reactor();
            reactor.waiting().min(reactor.config().poll_budget())
        };
        for _ in 0..waiting {
            let resumed = self.reactor().resume_next();
            self.go_on(resumed, up);
        }
    }

    /// Continues with a message whose requested parts have arrived.
    pub(super) fn go_on(&self, message: Option<Arrived>, up: &mut impl Upcalls) {
        match message {
            Some(Arrived::Call(frame)) => {
                let (conn, xid) = (frame.conn, xid_of(frame.message.bytes()));
                self.reactor().end_wait(conn, frame.slot);
                up.on_event(CoreEvent::Resume);
                self.deliver_call(frame, up);
                self.reactor().end_resumed(conn, xid);
            }
            Some(Arrived::Reply(conn, slot)) => self.go_on_with_reply(conn, slot, up),
            None => {}
        }
    }
}

impl Reactor {
    fn resume_next(&mut self) -> Option<Arrived> {
        match self.next_waiting()? {
            (conn, Waiting::Message(ReadOwner::Call(slot))) => {
                self.resume_call(conn, slot).map(Arrived::Call)
            }
            (conn, Waiting::Message(ReadOwner::Reply(slot))) => Some(Arrived::Reply(conn, slot)),
            (conn, answer) => {
                self.answer(conn, answer);
                None
            }
        }
    }

    /// An RDMA Read completed. A failed one means that the queue pair goes down, which ends the
    /// call.
    pub(super) fn on_read(
        &mut self,
        conn: ConnId,
        id: WrId,
        result: Result<(), WrError>,
    ) -> Option<Arrived> {
        let c = self.conn(conn)?;
        c.reads_outstanding = c.reads_outstanding.saturating_sub(1);
        result.ok()?;
        match ReadOwner::of(id) {
            ReadOwner::Call(slot) => self.on_call_read(conn, slot).map(Arrived::Call),
            ReadOwner::Reply(slot) => {
                self.on_reply_read(conn, slot).then_some(Arrived::Reply(conn, slot))
            }
        }
    }
}
