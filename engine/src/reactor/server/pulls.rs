//! Read chunks of arriving calls, and calls that wait: what follows when the chunks are there, and the answers to calls
//! whose chunks are not fetched.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::common::pulls::NotFetched;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::upcalls::CallFrame;
#[cfg(feature = "gss")]
use crate::reactor::server::gss::UnfetchedCall;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{ReplyTarget, RpcRefusal};
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::responder::Pulled;

impl Reactor {
    /// A call with Read chunks arrived: its message waits in its slot while they are fetched.
    pub(in crate::reactor) fn begin_pull(&mut self, conn: ConnId, slot: SlotId, message: Buf) {
        let Some(c) = self.conn(conn) else { return };
        c.serves.put_message(slot, message);
        self.begin_wait(conn, slot);
        self.pull(conn, slot);
    }

    /// Fetches the chunks of a call: as many as may be now.
    fn pull(&mut self, conn: ConnId, slot: SlotId) {
        // It may state that zero RDMA Reads may be active at it (RFC 5666 section 6.2).
        if self.conn(conn).is_some_and(|c| c.negotiated.reads_max() == 0) {
            return self.refuse_pull(conn, slot);
        }
        match self.fetch(conn, ReadOwner::Call(slot)) {
            Ok(()) => {}
            Err(NotFetched::TooLong) => self.refuse_pull(conn, slot),
            Err(NotFetched::Late) => self.refuse_starved(conn, slot),
        }
    }

    /// Answers a call that has waited for memory too long.
    #[cold]
    fn refuse_starved(&mut self, conn: ConnId, slot: SlotId) {
        #[cfg(feature = "gss")]
        match self.starved(conn, slot) {
            UnfetchedCall::Unprotected => {}
            UnfetchedCall::Verifiable => {
                if let Some(c) = self.conn(conn) {
                    c.serves.set_starved(slot, true);
                }
                return self.put_off(conn, ReadOwner::Call(slot));
            }
            UnfetchedCall::Hidden => return self.refuse_pull(conn, slot),
        }
        self.refuse_unread(conn, slot, &SYSTEM_ERR);
    }

    /// The Read chunks of this call can never be fetched: ERR_CHUNK. RDMA Reads posted earlier complete first, so
    /// that the memory of the call is no longer in use. A postponed call is refused when its turn comes, so that the
    /// queue never names a free slot.
    #[cold]
    fn refuse_pull(&mut self, conn: ConnId, slot: SlotId) {
        let call = ReadOwner::Call(slot);
        let waits = |c: &mut Conn| c.wait_of(call).is_some_and(|wait| wait.is_queued());
        if self.conn(conn).is_some_and(|c| c.reads_outstanding > 0 || waits(c)) {
            return self.put_off(conn, call);
        }
        self.refuse_unread(conn, slot, &RpcRefusal::NoRoom);
    }

    /// Answers a call that was not fetched.
    fn refuse_unread(&mut self, conn: ConnId, slot: SlotId, answer: &RpcRefusal) {
        self.end_unread((conn, slot));
        let Some(c) = self.conn(conn) else { return };
        c.serves.clear_sinks(slot);
        let Some(message) = c.serves.take_message(slot) else { return };
        self.refuse(
            &ReplyTarget { conn, slot, message: message.bytes(), is_chunkless: false },
            answer,
        );
        self.repost(conn, message);
    }
}

impl Reactor {
    /// Continues with a postponed call. Returns it if it has everything it waited for.
    pub(in crate::reactor) fn resume_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        #[cfg(feature = "gss")]
        if self.conn(conn)?.serves.set_starved(slot, false) {
            return self.frame_starved(conn, slot);
        }
        let c = self.conn(conn)?;
        if c.lane.proto().responder.pull_plan(slot).is_some() {
            self.pull(conn, slot);
            return None;
        }
        if !c.lane.proto().responder.is_delivered(slot) {
            return None;
        }
        if !self.has_share_for_reply(conn, slot) {
            self.stats().no_buffer += 1;
            self.put_off(conn, ReadOwner::Call(slot));
            return None;
        }
        let c = self.conn(conn)?;
        let message = c.serves.take_message(slot)?;
        self.frame_call(conn, slot, message)
    }

    /// Returns true if the connection may take memory for the reply of a call whose message is in its slot.
    fn has_share_for_reply(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return true };
        let Some(message) = c.serves.message(slot).filter(|_| !c.serves.has_sinks(slot)) else {
            return true;
        };
        let proto = c.lane.proto();
        let view = HeaderView::new_checked(message.bytes(), proto.limits());
        view.is_ok_and(|view| c.may_take(core.arena(), &view))
    }

    /// An RDMA Read of a call is done. Returns the call if that was the last one.
    pub(in crate::reactor) fn on_call_read(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let c = self.conn(conn)?;
        let message = c.serves.take_message(slot)?;
        let pulled = c.lane.proto().responder.on_read_done(slot);
        if pulled == Pulled::Complete {
            return self.frame_call(conn, slot, message);
        }
        c.serves.put_message(slot, message);
        if c.lane.proto().responder.wants_reads(slot) {
            self.pull(conn, slot);
        }
        None
    }
}
