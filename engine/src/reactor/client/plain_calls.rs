//! Starts calls that consist of their stream only, and whose reply fits inline on any connection: most calls. Used
//! by `start_call` if the call is not short, or its driver sends nothing by value, and for calls under RPCSEC_GSS that are only
//! signed.

use crate::fabric::ConnId;
#[cfg(feature = "gss")]
use crate::reactor::client::{chunked_calls::Start, gss::NOT_SIGNED};
use crate::reactor::common::sends::Posted;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{Backpressure, CallId, CallSpec};
#[cfg(feature = "gss")]
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::{NO_CHUNKS, put_xid};
#[cfg(feature = "gss")]
use crate::reactor::types::protection::{ClientContext, PlainHead};
#[cfg(feature = "gss")]
use spinrpc_proto::{events::SlotId, requester::CallRefused, rpc::GssProcedure};
#[cfg(feature = "gss")]
use std::{ops::ControlFlow, sync::Arc};

impl Reactor {
    /// Starts a call with this RPC message. `None` when it does not go inline; then nothing has happened.
    pub(in crate::reactor) fn emit_plain_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        stream: &[u8],
    ) -> Result<Option<CallId>, Backpressure> {
        #[cfg(feature = "gss")]
        if self.conns().find_for_lane(conn).is_some_and(|c| c.gss().is_some()) {
            return Ok(None);
        }
        let deadline = self.deadline(spec);
        let (mut message, c) = self.take_send_buffer(conn)?;
        let version = c.lane.proto().requester.negotiation().version();
        let header_bytes = version.plain_header_bytes();
        let bytes = header_bytes + stream.len();
        if bytes > c.negotiated.plain_bytes_max(version) {
            return Ok(None);
        }
        message.set_range(0..bytes);
        let (header, place) = message.bytes_mut().split_at_mut(header_bytes);
        place.copy_from_slice(stream);
        let started = c.lane.proto().requester.start_call(token, deadline, &NO_CHUNKS, header);
        let (started, _) = started.map_err(|refused| self.stats().refuse(refused))?;
        put_xid(place, started.xid);
        self.wake_by(deadline);
        self.post(conn, message, Posted::Call);
        Ok(Some(CallId::of(started.slot)))
    }

    /// As [`Reactor::emit_plain_call`], under a context that protects no bodies: header and verifier are written where
    /// the message is sent from.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn emit_signed_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        draft: &Draft<'_>,
        context: Arc<ClientContext>,
    ) -> Result<ControlFlow<SlotId, Arc<ClientContext>>, Backpressure> {
        let Some((plain, arguments)) = PlainHead::split(draft.stream()) else {
            return Ok(ControlFlow::Continue(context));
        };
        let deadline = self.deadline(spec);
        let (mut message, c) = self.take_send_buffer(conn)?;
        let version = c.lane.proto().requester.negotiation().version();
        let header_bytes = version.plain_header_bytes();
        let room = c.negotiated.plain_bytes_max(version).saturating_sub(header_bytes);
        if context.head_bytes() + arguments.len() > room {
            return Ok(ControlFlow::Continue(context));
        }
        let Some(gss) = c.gss_mut() else { return Ok(ControlFlow::Continue(context)) };
        let next = context.context.peek_sequence(context.window);
        let sequence = next.map_err(|_| Backpressure::Connecting)?;
        if !gss.has_room(&context, sequence) {
            return Err(self.stats().refuse(CallRefused::NoCredit));
        }
        let xid = c.lane.proto().requester.next_xid();
        let (header, stream) = message.whole_mut().split_at_mut(header_bytes);
        let (procedure, numbers) = (GssProcedure::Data, (xid, sequence));
        let head_bytes = context.emit_head(procedure, numbers, plain, stream);
        let head_bytes = head_bytes.map_err(|_| NOT_SIGNED)?;
        stream[head_bytes..][..arguments.len()].copy_from_slice(arguments);
        let started = c.lane.proto().requester.start_call(token, deadline, &NO_CHUNKS, header);
        let (started, _) = started.map_err(|refused| self.stats().refuse(refused))?;
        debug_assert_eq!(started.xid, xid, "the verifier covers the XID");
        message.set_range(0..header_bytes + head_bytes + arguments.len());
        context.context.take_sequence(sequence);
        self.wake_by(deadline);
        let kept = self.keep_for_denial(conn, Start::New(token), spec, draft, &context);
        if let Some(gss) = self.conn(conn).and_then(|c| c.gss_mut()) {
            gss.note((started.slot, sequence), context, deadline, kept);
        }
        self.post(conn, message, Posted::Call);
        Ok(ControlFlow::Break(started.slot))
    }
}
