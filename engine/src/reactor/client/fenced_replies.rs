//! Replies that arrived before the keys of their calls were dead, because some devices need a work request to kill a
//! key. A call is complete only when its memory is no longer reachable (RFC 8166 section 8.1), so such a reply waits,
//! and others overtake it.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::client::chunked_calls::Undelivered;
use crate::reactor::in_flight::call_table::{CallHold, FencedReply};
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{CallEnd, SlotToken};
use spinrpc_proto::events::{CallFailure, DeliveredReply, PeerMisbehaved};

impl CoreCell {
    /// A key is dead; a reply may have waited for it.
    #[cold]
    pub(in crate::reactor) fn on_revoked(&self, conn: ConnId, handle: u32, up: &mut impl Upcalls) {
        let freed = self.reactor().free_fenced(conn, handle);
        if let Some(fenced) = freed {
            self.go_on_with_fenced(conn, fenced, up);
        }
    }

    /// The queue pair is gone, and all keys with it: waiting replies are delivered.
    pub(in crate::reactor) fn end_fences(&self, conn: ConnId, up: &mut impl Upcalls) {
        loop {
            let next = self.reactor().conn(conn).and_then(|c| c.fenced.pop_front());
            let Some(fenced) = next else { return };
            self.go_on_with_fenced(conn, fenced, up);
        }
    }

    fn go_on_with_fenced(&self, conn: ConnId, fenced: FencedReply, up: &mut impl Upcalls) {
        let FencedReply { message, reply, hold, invalidated, is_partial } = fenced;
        if is_partial {
            if self.reactor().hold_reply(conn, message, reply, Some(hold), invalidated) {
                self.go_on_with_reply(conn, reply.slot, up);
            }
            return;
        }
        self.reactor().release_credit(conn);
        let checked = self.reactor().check_memory(conn, &reply, Some(hold), invalidated);
        match checked {
            Ok(hold) => self.deliver_reply(conn, message, &reply, hold, up),
            Err(failure) => self.lose_reply(conn, message, SlotToken::of(&reply), failure, up),
        }
    }
}

impl Reactor {
    /// A whole reply keeps its receive, and so its credit; the credit of a reply with more to fetch stays taken
    /// anyway, for RDMA_DONE.
    pub(in crate::reactor) fn fence(&mut self, conn: ConnId, fenced: FencedReply) {
        let Some(c) = self.conn(conn) else { return };
        if !fenced.is_partial {
            c.lane.proto().requester.keep_credit();
        }
        if c.fenced.capacity() == 0 {
            // Most connections have none; the first one takes memory for all that there may be.
            c.fenced.reserve_exact(c.calls.slots());
        }
        c.fenced.push_back(fenced);
    }

    /// The application gets the reply in this turn, and the driver its receive, before any message that the
    /// application sends now is posted.
    fn release_credit(&mut self, conn: ConnId) {
        if let Some(c) = self.conn(conn) {
            c.lane.proto().requester.release_credit();
        }
    }

    /// The reply that waited for this key only.
    fn free_fenced(&mut self, conn: ConnId, handle: u32) -> Option<FencedReply> {
        let c = self.conn(conn)?;
        let at = c.fenced.iter().position(|fenced| fenced.hold.handles().contains(&handle))?;
        if c.fenced[at].hold.key_died() { c.fenced.remove(at) } else { None }
    }
}

impl CoreCell {
    /// Handles an arrived reply that is not delivered, or not yet.
    #[cold]
    pub(in crate::reactor) fn put_aside(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        (why, invalidated): (Undelivered, Option<u32>),
        up: &mut impl Upcalls,
    ) {
        match why {
            Undelivered::Failed(failure) => {
                self.lose_reply(conn, message, SlotToken::of(reply), failure, up);
            }
            Undelivered::Fenced(hold) => {
                let (reply, is_partial) = (*reply, false);
                let fenced = FencedReply { message, reply, hold, invalidated, is_partial };
                self.reactor().fence(conn, fenced);
            }
        }
    }

    /// The reply in a chunk belongs to another call: a handler would take it for its own.
    #[cold]
    pub(in crate::reactor) fn refuse_foreign_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        let why = PeerMisbehaved::ForeignReply;
        self.reactor().recycle_hold(conn, hold);
        self.reactor().close_misbehaving(conn, why);
        self.lose_reply(conn, message, SlotToken::of(reply), CallFailure::Misbehaved(why), up);
    }

    /// A reply arrived whose call fails anyway: its receive goes back to the driver.
    pub(in crate::reactor) fn lose_reply(
        &self,
        conn: ConnId,
        message: Buf,
        call: SlotToken,
        failure: CallFailure,
        up: &mut impl Upcalls,
    ) {
        self.reactor().repost(conn, message);
        #[cfg(feature = "gss")]
        self.forget_sent(conn, call.slot.xid());
        up.on_event(CoreEvent::CallFailed(conn, call, CallEnd::Failed(failure)));
    }
}
