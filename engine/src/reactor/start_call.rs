//! Starting calls: arguments are encoded before any other state is accessed, and short calls leave through the lane.
//! Called by the api.
//!
//! A call that the lane cannot send, or not now, takes the general path with the encoded arguments.

use crate::fabric::{ConnId, Head, LINE_PAIRS, LineHead, LongHead, Short, ShortEndpointOps};
use crate::reactor::lane::put_head;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{
    Backpressure, CallId, CallSpec, CallTarget, Deadline, HeaderTemplate,
};
use crate::reactor::types::encode_buffer::{EncodeError, MessageMemory};
use crate::reactor::types::encoded_stream::{EncodeOnce, EncodedStream, once};
use crate::reactor::types::header_bytes::{ITEMS_DIFFER, NESTED};
use crate::reactor::types::lane_gate::LaneWay;
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::ids::{Instant, Procedure, Xid};
use spinrpc_proto::plain::{CALL_BYTES, PlainCall, call_head};
use spinrpc_proto::rdma::v1::MSG_HEADER_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::rc::Rc;

impl CoreCell {
    /// Sends a short message as a call without a credential, if it can leave now; otherwise does nothing.
    #[inline(always)]
    fn emit_without_credential(
        &self,
        conn_lane: &ConnLane,
        header: &HeaderTemplate,
        (procedure, token): (Procedure, u64),
        spec: &CallSpec,
        (message, bytes): (&Short, usize),
    ) -> Option<CallId> {
        self.emit_short_call(conn_lane, token, spec, (message, bytes), |xid, credits, _| {
            let (program, version) = header.called();
            let (first, pairs) = PlainCall { xid, credits, program, version, procedure }.emit();
            LongHead::new(first, pairs)
        })
    }

    /// The same for a call whose RPC header is in the message.
    fn emit_with_credential(
        &self,
        conn_lane: &ConnLane,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        (message, bytes): (&Short, usize),
    ) -> Option<CallId> {
        let token = target.token;
        self.emit_short_call(conn_lane, token, spec, (message, bytes), |xid, credits, message| {
            let (first, [a, b, c, d]) = call_head(xid, credits);
            let [.., e, f] = message.pairs::<LINE_PAIRS>();
            LineHead::new(first, [a, b, c, d, e, f])
        })
    }

    /// Sends the call in `message`; `head` makes its first words from its XID and credits.
    #[inline(always)]
    fn emit_short_call<const HEAD: usize, H: Into<Head<HEAD>>>(
        &self,
        conn_lane: &ConnLane,
        token: u64,
        spec: &CallSpec,
        (message, bytes): (&Short, usize),
        head: impl FnOnce(Xid, u32, &Short) -> H,
    ) -> Option<CallId> {
        let endpoint =
            conn_lane.short_endpoint().filter(|_| self.may_use(conn_lane, LaneWay::SendCalls))?;
        let mut proto = conn_lane.proto();
        let next = proto.requester.next_call().ok()?;
        if !endpoint.send(head(next.xid, next.requested(), message), message, bytes) {
            return None;
        }
        // After the message, so that it does not wait for the clock.
        let deadline = self.lane_deadline(spec);
        let (call, is_earliest) = next.start(token, deadline);
        if is_earliest {
            self.core_lane().note_deadline(deadline);
        }
        self.core_lane().counts().count_call_sent(bytes);
        Some(CallId(call))
    }

    /// Deadline of a call that starts now.
    #[inline(always)]
    fn lane_deadline(&self, spec: &CallSpec) -> Instant {
        let other = || self.other_deadline(spec);
        if spec.deadline == Deadline::Default {
            return self.core_lane().default_deadline_or(other);
        }
        other()
    }

    /// A deadline that is not as configured, or where the processor has no counter or time is simulated.
    #[inline(never)]
    fn other_deadline(&self, spec: &CallSpec) -> Instant {
        let by_clock = match spec.deadline {
            Deadline::Default => self.core_lane().deadline_by_clock(),
            _ => None,
        };
        by_clock.unwrap_or_else(|| self.reactor().deadline(spec))
    }
}

impl Reactor {
    /// Sends the call in `message` as [`CoreCell::emit_short_call`] does, whatever its length.
    fn emit_long_call(
        &mut self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        message: &mut [u8],
    ) -> Option<CallId> {
        let deadline = self.deadline(spec);
        let bytes = message.len();
        let (c, core) = self.conn_for_lane(conn)?;
        if !c.may_use(LaneWay::SendCalls)
            || bytes > c.negotiated.unpadded_bytes_max(TransportVersion::One)
        {
            return None;
        }
        let mut proto = c.lane.proto();
        let next = proto.requester.next_call().ok()?;
        target.header.write_without_credential(target.procedure, &mut message[MSG_HEADER_BYTES..]);
        let (first, pairs) = call_head(next.xid, next.requested());
        put_head(message, first, &pairs);
        if !core.fabric_mut().send_copied(conn, message) {
            return None;
        }
        let (call, _) = next.start(target.token, deadline);
        core.wake_by(deadline);
        core.stats().calls_sent += 1;
        core.stats().bytes_inline += bytes as u64;
        Some(CallId(call))
    }
}

/// A call's id, or the reason why it was not started.
type Started = Result<CallId, Backpressure>;

impl CoreCell {
    /// Starts a call; on success the buffers of `spec` have moved out of it. The call is encoded before any state is
    /// checked, because most calls can leave.
    ///
    /// `explain` gets the outcome of calls that do not leave at once, not of most calls.
    /// Inlined into the crate that makes the call, so that the compiler sees the encoder.
    #[inline]
    pub(crate) fn start_call(
        &self,
        (conn, conn_lane): (ConnId, &Option<Rc<ConnLane>>),
        CallTarget { header, procedure, token }: CallTarget<'_>,
        spec: &mut CallSpec,
        encode: impl FnOnce(&mut StreamWriter<'_>),
        explain: impl FnOnce(&mut Started),
    ) -> Started {
        let Ok(mut memory) = self.core_lane().call().try_borrow_mut() else { return Err(NESTED) };
        let may_be_short = spec.needs_no_chunks() && self.core_lane().takes_calls();
        let (Some(conn_lane), true) = (conn_lane, may_be_short && header.has_no_credential())
        else {
            let to = (conn, conn_lane.as_deref());
            let (target, encode) = (CallTarget { header, procedure, token }, &mut once(encode));
            let mut outcome = self.place_other_call(to, &target, spec, &mut memory, encode);
            explain(&mut outcome);
            return outcome;
        };
        let call = (procedure, token);
        let short_bytes = memory.encode::<CALL_BYTES>(encode);
        if let Some(bytes) = short_bytes
            && let Some(call) =
                self.emit_without_credential(conn_lane, header, call, spec, (memory.short(), bytes))
        {
            return Ok(call);
        }
        drop(memory);
        let memory = &mut self.core_lane().call().borrow_mut();
        let (target, is_short) = (CallTarget { header, procedure, token }, short_bytes.is_some());
        let mut outcome = self.place_written_call(conn, &target, spec, memory, is_short);
        explain(&mut outcome);
        outcome
    }

    /// Starts a call with encoded arguments that the lane cannot send, or not now.
    #[inline(never)]
    fn place_written_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        memory: &mut MessageMemory,
        is_short: bool,
    ) -> Result<CallId, Backpressure> {
        let message = memory.written_mut(is_short).map_err(EncodeError::refusal)?;
        if !is_short && let Some(call) = self.reactor().emit_long_call(conn, target, spec, message)
        {
            return Ok(call);
        }
        let stream = &mut message[MSG_HEADER_BYTES..];
        target.header.write_without_credential(target.procedure, stream);
        let token = target.token;
        let mut reactor = self.reactor();
        let draft = || EncodedStream::without_items(stream);
        match reactor.emit_chunkless_call(conn, token, spec, stream, draft)? {
            Some(slot) => Ok(CallId::of(slot)),
            None => reactor.send_other_call(conn, token, spec, &draft()),
        }
    }

    /// Starts a call that may need chunks or has a credential, or whose driver sends nothing by value.
    #[inline(never)]
    fn place_other_call(
        &self,
        (conn, conn_lane): (ConnId, Option<&ConnLane>),
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        memory: &mut MessageMemory,
        encode: EncodeOnce<'_>,
    ) -> Result<CallId, Backpressure> {
        let write = |stream: &mut StreamWriter<'_>| {
            target.header.write(target.procedure, stream);
            encode(stream);
        };
        if spec.needs_no_chunks() && self.core_lane().takes_calls() {
            let short_bytes = memory.encode::<MSG_HEADER_BYTES>(write);
            if let Some(conn_lane) = conn_lane
                && let Some(bytes) = short_bytes
                && let Some(call) =
                    self.emit_with_credential(conn_lane, target, spec, (memory.short(), bytes))
            {
                return Ok(call);
            }
            return self.place_written_call(conn, target, spec, memory, short_bytes.is_some());
        }
        if spec.overfull {
            return Err(Backpressure::Misuse("more than four data items in one direction"));
        }
        let items = spec.argument_count();
        let draft = memory.draft(items, self.core_lane().alignment(), &mut once(write));
        let draft = draft.map_err(EncodeError::refusal)?;
        if draft.cuts().count() != items {
            return Err(ITEMS_DIFFER);
        }
        self.reactor().send_call(conn, target.token, spec, &draft)
    }
}
