//! Long replies under RPCSEC_GSS whose bodies are protected. The client gets the memory that they lie in and opens them there.
//! From memory that the server can still write to they are copied before that, a part in each turn, so that other
//! connections do not wait for the copy of a mebibyte.

use crate::config::BulkView;
use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::in_flight::call_table::CallHold;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{PartCopied, WholeReply};
use crate::reactor::types::protection::take;
use spinrpc_proto::events::{DeliveredReply, ReplyStream};

impl Reactor {
    /// Copies the first part of such a reply, in which its RPC header is, to private memory. Without a place for the work, or
    /// memory, this does nothing, and the reply is copied at once, or fails.
    pub(in crate::reactor) fn begin_copy(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        hold: &mut CallHold,
    ) {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return };
        let is_exposed = hold.reply.as_ref().is_some_and(Bulk::is_exposed);
        let is_copied = is_exposed || self.config().bulk_view() == BulkView::Copy;
        if !is_copied || !self.has_protected_body(conn, reply) {
            return;
        }
        let Some(from) = hold.reply.take() else { return };
        let bytes = (length as usize).min(from.len());
        let work = self.gss_work();
        let (takes_steps, step_bytes) =
            (work.is_long(bytes) && work.has_room(conn), work.step_bytes());
        let private = if takes_steps { take(self.arena(), bytes).ok() } else { None };
        let Some(mut private) = private else {
            hold.reply = Some(from);
            return;
        };
        let mut rest = PartCopied::new(from);
        rest.copy(private.bytes_mut(), step_bytes);
        self.stats().copies += 1;
        (hold.reply, hold.rest) = (Some(private), Some(rest));
    }

    /// Takes such a reply out of the memory of its call.
    pub(in crate::reactor) fn take_whole(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        hold: Option<&mut CallHold>,
    ) -> Option<WholeReply> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return None };
        let hold =
            hold.filter(|hold| hold.rest.is_some() || self.has_protected_body(conn, reply))?;
        let mut message = hold.reply.take_if(|memory| !memory.is_exposed())?;
        message.set_len(message.len().min(length as usize));
        Some(WholeReply { message, rest: hold.rest.take() })
    }

    fn has_protected_body(&mut self, conn: ConnId, reply: &DeliveredReply) -> bool {
        let gss = self.conn(conn).and_then(|c| c.gss());
        gss.is_some_and(|gss| gss.protects_body(reply.slot.xid()))
    }
}
