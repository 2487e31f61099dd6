//! Replies that came before the keys of their calls were dead: with some devices that takes a work
//! request of its own. A call is complete only when nobody can reach its memory any more (RFC 8166
//! section 8.1), so such a reply waits, and others go past it.

use super::call_table::CallHold;
use super::core::{CoreCell, Reactor};
use super::ops::Upcalls;
use crate::fabric::{ConnId, Fabric};
use crate::mem::Buf;
use spinrpc_proto::output::DeliveredReply;

/// A reply whose call has keys that are being killed.
pub(crate) struct FencedReply {
    pub(super) message: Buf,
    pub(super) reply: DeliveredReply,
    pub(super) hold: Box<CallHold>,
    /// The key that the peer invalidated with it.
    pub(super) invalidated: Option<u32>,
    /// It has a Read list: there is more to fetch.
    pub(super) is_partial: bool,
}

impl<F: Fabric> CoreCell<F> {
    /// A key is dead; perhaps the one that a reply waits for.
    #[cold]
    pub(super) fn on_revoked(&self, conn: ConnId, handle: u32, up: &mut impl Upcalls) {
        let freed = self.reactor().free_fenced(conn, handle);
        if let Some(fenced) = freed {
            self.go_on_with_fenced(conn, fenced, up);
        }
    }

    /// The queue pair is gone, and all keys with it: what is here is delivered.
    pub(super) fn end_fences(&self, conn: ConnId, up: &mut impl Upcalls) {
        loop {
            let next = self.reactor().conns.find(conn).and_then(|c| c.fenced.pop_front());
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
            Err(failure) => self.lose_reply(conn, message, reply.token, failure, up),
        }
    }
}

impl<F: Fabric> Reactor<F> {
    /// A whole reply keeps its receive, and so its credit; that of one with more to fetch stays taken
    /// anyway, for RDMA_DONE.
    pub(super) fn fence(&mut self, conn: ConnId, fenced: FencedReply) {
        let Some(c) = self.conns.find(conn) else { return };
        if !fenced.is_partial {
            c.proto.requester.keep_credit();
        }
        c.fenced.push_back(fenced);
    }

    /// The application has the reply in this turn, and the driver its receive back, before anything
    /// that it sends now leaves.
    fn release_credit(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.find(conn) {
            c.proto.requester.release_credit();
        }
    }

    /// The reply that waited for this key and no other.
    fn free_fenced(&mut self, conn: ConnId, handle: u32) -> Option<FencedReply> {
        let c = self.conns.find(conn)?;
        let at = c.fenced.iter().position(|fenced| fenced.hold.handles().contains(&handle))?;
        if c.fenced[at].hold.key_died() { c.fenced.remove(at) } else { None }
    }
}
