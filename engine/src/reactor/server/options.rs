//! Calls of extensions of version two that the application knows (version two section 3), on their way to their
//! handler, and its answers. Such a call is admitted, deferred and passed on like any call; this is the place where
//! it differs from RPC calls. Its contents are defined by the application.

use crate::fabric::ConnId;
use crate::reactor::pending::upcalls::{CallFrame, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{Backpressure, CallOutcome, ReplyTarget};
use crate::reactor::words::option_message::{OptionMessage, is_optional, xid_of};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rdma::v2::optional_header_bytes;
use spinrpc_proto::version::TransportVersion;

impl CoreCell {
    /// A call of an extension goes to its handler, which answers it, or will. `None` for other calls.
    pub(in crate::reactor) fn deliver_option(
        &self,
        frame: &CallFrame,
        up: &mut impl Upcalls,
    ) -> Option<CallOutcome> {
        let message = frame.message.bytes();
        let limits = match self.reactor().conns.find(frame.conn) {
            Some(c) if is_optional(message) => *c.lane.proto().limits(),
            _ => return None,
        };
        let view = HeaderView::new_checked(message, &limits).ok();
        let option = view.as_ref().and_then(OptionMessage::of)?;
        let to = ReplyTarget { conn: frame.conn, slot: frame.slot, message, plain: false };
        Some(up.on_option(&to, option))
    }
}

impl Reactor {
    /// Answers a call of an extension that was deferred, or refuses it. Nothing happens if its
    /// connection has gone.
    pub(in crate::reactor) fn finish_option(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        xid: Xid,
        answer: Option<&OptionMessage<'_>>,
    ) -> Result<(), Backpressure> {
        self.options_deferred = self.options_deferred.saturating_sub(1);
        let c = self.conns.find(conn).filter(|c| c.lane.proto().responder.is_delivered(slot));
        let Some(c) = c else {
            self.stats.stale += 1;
            return Ok(());
        };
        // While the call is in its handler, the caller of the handler holds the message, and nothing is promised yet.
        let is_kept = c.serves[usize::from(slot.index)].message.is_some();
        let message = if is_kept { c.take_deferred(slot) } else { None };
        let word = xid.0.to_be_bytes();
        let to = ReplyTarget { conn, slot, message: &word, plain: false };
        let answered = match answer {
            Some(option) => self.reply_option(&to, option),
            None => {
                self.refuse_option(&to);
                Ok(())
            }
        };
        if let Some(message) = message {
            self.repost(conn, message);
        }
        answered
    }

    /// Answers a call of an extension with RDMA2_ERR_BAD_HEADER and frees its slot. Of its message the
    /// first word is enough.
    pub(in crate::reactor) fn refuse_option(&mut self, to: &ReplyTarget<'_>) {
        let Some(c) = self.conns.find(to.conn) else { return };
        if c.lane.proto().responder.abandon(to.slot) {
            c.release(to.slot);
            let version = TransportVersion::Two;
            let error = RdmaError::of_header(version);
            self.send_error(to.conn, xid_of(to.message), version.to_wire(), error);
        }
    }

    /// Answers a call of an extension by another message of one. If that is too long, the call is
    /// refused. Of its message the first word is enough.
    pub(in crate::reactor) fn reply_option(
        &mut self,
        to: &ReplyTarget<'_>,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure> {
        let carries = self.options.find(option.option);
        let Some(c) = self.conns.find(to.conn) else {
            self.stats.stale += 1;
            return Ok(());
        };
        let checked = option.check(c.negotiated.send_bytes_max_in(TransportVersion::Two));
        if checked.is_err() {
            self.refuse_option(to);
            return checked;
        }
        c.release(to.slot);
        // A call is admitted only while there is one for its answer.
        let Some(mut message) = c.sends.take() else {
            self.close_overrun(to.conn, "send buffers");
            return Ok(());
        };
        let header = &mut message.whole_mut()[..optional_header_bytes(option.info.len())];
        let xid = xid_of(to.message);
        let (number, info) = (option.option, option.info);
        let written = c.lane.proto().responder.reply_optional(to.slot, xid, number, info, header);
        match written {
            Ok(_) => {
                option.put_payload(xid, carries, &mut message);
                self.post_answer(to.conn, message, None);
            }
            Err(_) => self.stats.stale += 1,
        }
        Ok(())
    }
}
