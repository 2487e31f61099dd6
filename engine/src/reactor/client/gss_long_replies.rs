//! Long replies under RPCSEC_GSS whose bodies are protected. The client gets the memory that they lie in, which the server cannot
//! write to any more, and opens them there.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::in_flight::call_table::CallHold;
use crate::reactor::state::core::Reactor;
use spinrpc_proto::events::{DeliveredReply, ReplyStream};

impl Reactor {
    /// Takes such a reply out of the memory of its call.
    pub(in crate::reactor) fn take_whole(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        hold: Option<&mut CallHold>,
    ) -> Option<Bulk> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return None };
        let hold = hold.filter(|_| self.has_protected_body(conn, reply))?;
        let mut message = hold.reply.take_if(|memory| !memory.is_exposed())?;
        message.set_len(message.len().min(length as usize));
        Some(message)
    }

    fn has_protected_body(&mut self, conn: ConnId, reply: &DeliveredReply) -> bool {
        let gss = self.conn(conn).and_then(|c| c.gss());
        gss.is_some_and(|gss| gss.protects_body(reply.slot.xid()))
    }
}
