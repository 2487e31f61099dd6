//! Calls under RPCSEC_GSS. Each is protected when it is sent, with a sequence number of its own, so that a repeated
//! call has another one (RFC 2203 section 5.3.3.1). Stored calls are not protected.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
use crate::reactor::client::chunked_calls::Start;
use crate::reactor::in_flight::gss_calls::{DeniedCall, GssCalls, InUse, SentCall};
use crate::reactor::in_flight::retransmit_table::Retransmit;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallEnd, CallSpec, Deadline, Resend, SlotToken};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::protection::{
    CALL_HEAD_BYTES, ClientContext, FRAME_BYTES, PlainHead, Unprotected,
};
use spinrpc_proto::events::{CallFailure, SlotId};
use spinrpc_proto::ids::{Instant, Program, Version, Xid};
use spinrpc_proto::limits::INLINE_THRESHOLD_MIN_BYTES;
use spinrpc_proto::requester::CallRefused;
use spinrpc_proto::rpc::GssProcedure;
use spinrpc_proto::xdr::roundup4;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Context and numbers of a call that may start.
pub(in crate::reactor) struct Numbered<'a> {
    pub(in crate::reactor::client) context: &'a Arc<ClientContext>,
    pub(in crate::reactor::client) xid: Xid,
    pub(in crate::reactor::client) sequence: u32,
    /// State needed to retransmit it.
    pub(in crate::reactor::client) kept: Option<Retransmit>,
}

/// Security context of a call.
pub(in crate::reactor) enum Under {
    /// The connection has no context, and needs none.
    Nothing,
    /// The connection needs a context and has none.
    Missing,
    Context(Arc<ClientContext>),
}

impl Reactor {
    /// The time that a call has left, in whole microseconds.
    pub(in crate::reactor) fn rest_of(&self, deadline: Instant) -> Deadline {
        let ticks = deadline.0.saturating_sub(self.read_clock().0);
        match deadline.0 {
            u64::MAX => Deadline::None,
            _ => Deadline::After(Duration::from_micros(self.ns(ticks) / 1000)),
        }
    }
}

impl CoreCell {
    /// From now on the calls of a connection need a context, except those that prepare the connection.
    pub(crate) fn require_context(&self, conn: ConnId) {
        self.set_context(conn, None);
    }

    /// Sets the context of calls from now on; `None` while another one is established.
    pub(crate) fn set_context(&self, conn: ConnId, context: Option<Arc<ClientContext>>) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(conn) else { return };
        c.set_context(context);
        if let Some(lasting) = c.calls.lasting.as_mut() {
            lasting.keeps_ended = true;
        }
    }

    /// Tells the server of a connection that is about to close that its context is no longer needed. Does not wait
    /// for the answer, and does nothing if there is no room for the call: the server forgets idle contexts.
    pub(crate) fn destroy_context(
        &self,
        conn: ConnId,
        (program, version): (Program, Version),
    ) -> Option<(SlotId, Xid)> {
        let Under::Context(context) = self.under(conn) else { return None };
        self.set_context(conn, None);
        let last_words = self.destroy(conn, &context, (program, version)).ok().flatten();
        // A driver discards messages that it has not sent when the connection closes. In a handler, the receive of
        // the reply is posted after that, which matters to this connection only.
        self.reactor().fabric_mut().flush();
        last_words
    }

    /// The same for a replaced context, once no call in flight uses it; the call leaves with the turn's messages. `Err`
    /// while some use it, or have all credits.
    pub(crate) fn destroy_replaced(
        &self,
        conn: ConnId,
        context: &Arc<ClientContext>,
        called: (Program, Version),
    ) -> Result<Option<(SlotId, Xid)>, InUse> {
        let is_used = {
            let mut reactor = self.reactor();
            let gss = reactor.conn(conn).and_then(|c| c.gss());
            gss.is_some_and(|gss| gss.is_used(context))
        };
        if is_used { Err(InUse) } else { self.destroy(conn, context, called) }
    }

    /// `Ok(None)` where the call cannot be made.
    fn destroy(
        &self,
        conn: ConnId,
        context: &ClientContext,
        (program, version): (Program, Version),
    ) -> Result<Option<(SlotId, Xid)>, InUse> {
        let not_now = |refused| match refused {
            Backpressure::NoCredit => Err(InUse),
            _ => Ok(None),
        };
        let start = Start::New(0);
        let xid = match self.next_xid(conn, start) {
            Ok(xid) => xid,
            Err(refused) => return not_now(refused),
        };
        let Ok(sequence) = context.context.peek_sequence(context.window) else { return Ok(None) };
        let (procedure, plain) = (GssProcedure::Destroy, PlainHead::null(program, version));
        let mut bytes = [0; CALL_HEAD_BYTES];
        let emitted = context.emit_head(procedure, (xid, sequence), plain, &mut bytes);
        let Ok(length) = emitted else { return Ok(None) };
        let draft = Draft::plain(&bytes[..length]);
        let slot = match self.place_call(conn, start, &mut CallSpec::short(), &draft) {
            Ok(slot) => slot,
            Err(refused) => return not_now(refused),
        };
        context.context.take_sequence(sequence);
        Ok(Some((slot, xid)))
    }

    /// Takes the protection that the reply with this XID must have.
    #[inline]
    pub(crate) fn take_sent(&self, conn: ConnId, xid: Xid) -> Option<SentCall> {
        let mut reactor = self.reactor();
        let c = reactor.conn(conn)?;
        let mut sent = c.gss_mut()?.take(xid)?;
        let ended = c.calls.lasting.as_mut().and_then(|lasting| lasting.ended.take());
        if let Some((_, kept)) = ended.filter(|(slot, _)| slot.xid() == xid) {
            sent.kept = Some(kept);
        }
        Some(sent)
    }

    /// Cause of the loss of the previous connection, which may have executed a call.
    pub(crate) fn lost_by(&self, conn: ConnId) -> DownCause {
        let mut reactor = self.reactor();
        let lasting = reactor.conn(conn).and_then(|c| c.calls.lasting.as_ref());
        lasting.map_or(DownCause::Local, |lasting| lasting.lost_by.clone())
    }

    /// Keeps a denied call that waits for a context, until its deadline at the latest.
    pub(crate) fn await_context(&self, denied: DeniedCall) {
        let mut reactor = self.reactor();
        reactor.wake_by(denied.deadline);
        reactor.gss_work().push_denied(denied);
    }

    /// The denied calls of a connection.
    pub(crate) fn take_denied(&self, conn: ConnId) -> Vec<DeniedCall> {
        self.reactor().gss_work().take_denied(|call| call.conn == conn)
    }

    /// Ends denied calls whose time is over.
    pub(in crate::reactor) fn end_denied(&self) {
        let mut reactor = self.reactor();
        let soon = reactor.in_ticks(reactor.ticks(Duration::from_micros(1)).max(1));
        for call in reactor.gss_work().take_denied(|call| call.deadline < soon) {
            let end = CallEnd::Failed(CallFailure::TimedOut);
            reactor.end_call(call.conn, call.key, end);
        }
        if let Some(until) = reactor.gss_work().denied_until() {
            reactor.wake_by(until);
        }
    }

    /// Sends a denied call again, with another XID and sequence number. On failure returns its token, and true if its
    /// time is over.
    pub(crate) fn retry_denied(&self, conn: ConnId, denied: DeniedCall) -> Result<(), (u64, bool)> {
        let SlotToken { slot: denied_as, token } = denied.key;
        let deadline = self.reactor().rest_of(denied.deadline);
        if deadline == Deadline::After(Duration::ZERO) {
            return Err((token, true));
        }
        let (mut spec, kept) = denied.into_spec(deadline);
        let started = self.protect_call(conn, Start::New(token), &mut spec, &kept.draft());
        let slot = started.map_err(|_| (token, false))?;
        let mut reactor = self.reactor();
        reactor.stats().calls_resent += 1;
        let Some(c) = reactor.conn(conn) else { return Ok(()) };
        if let Some(gss) = c.gss_mut() {
            gss.note_denied(slot, denied_as);
        }
        let is_lasting = kept.resend() != Resend::Never;
        if let Some(lasting) = c.calls.lasting.as_mut().filter(|_| is_lasting) {
            lasting.put(slot, kept);
        }
        Ok(())
    }

    pub(in crate::reactor) fn under(&self, conn: ConnId) -> Under {
        let mut reactor = self.reactor();
        let gss = reactor.conn(conn).and_then(|c| c.gss());
        match gss.map(GssCalls::context) {
            None => Under::Nothing,
            Some(None) => Under::Missing,
            Some(Some(context)) => Under::Context(Arc::clone(context)),
        }
    }

    /// Starts a call under `context`. Results intended for direct placement in buffers come in the reply.
    pub(in crate::reactor) fn protect_under(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
        mut context: Arc<ClientContext>,
    ) -> Result<SlotId, Backpressure> {
        if let Start::New(token) = start
            && !context.service.protects_body()
            && spec.is_plain()
        {
            let started = self.reactor().emit_signed_call(conn, token, spec, draft, context)?;
            match started {
                ControlFlow::Break(slot) => return Ok(slot),
                ControlFlow::Continue(unused) => context = unused,
            }
        }
        let context = &context;
        let xid = self.next_xid(conn, start)?;
        let sequence = self.next_sequence(conn, context)?;
        if context.service.protects_body() && spec.arguments.iter().flatten().any(Bulk::is_exposed)
        {
            return Err(Backpressure::Misuse("an exposed argument in a call that is protected"));
        }
        let kept = self.reactor().keep_for_denial(conn, start, spec, draft, context);
        let numbered = Numbered { context, xid, sequence, kept };
        match context.service.protects_body() {
            true => self.protect_body(conn, start, spec, draft, numbered),
            false => self.sign_call(conn, start, spec, draft, numbered),
        }
    }

    /// The same under a context that protects no bodies.
    fn sign_call(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
        numbered: Numbered<'_>,
    ) -> Result<SlotId, Backpressure> {
        let deadline = self.reactor().deadline(spec);
        let Numbered { context, xid, sequence, .. } = numbered;
        let pool = self.reactor().arena().clone();
        let started = context
            .sign(&pool, (xid, sequence), draft, |draft| self.place_call(conn, start, spec, draft));
        let slot = started.map_err(|why| self.not_protected(why))??;
        self.reactor().note_sent((conn, slot), numbered, deadline);
        Ok(slot)
    }

    /// Sequence number of the next call. It is used up once the call has been sent: refused attempts use none.
    fn next_sequence(&self, conn: ConnId, context: &ClientContext) -> Result<u32, Backpressure> {
        let number = context.context.peek_sequence(context.window);
        let number = number.map_err(|_| Backpressure::Connecting)?;
        let mut reactor = self.reactor();
        // The most frequent refusal is checked before anything is signed.
        drop(reactor.take_send_buffer(conn)?);
        let gss = reactor.conn(conn).and_then(|c| c.gss_mut());
        if gss.is_some_and(|gss| gss.has_room(context, number)) {
            return Ok(number);
        }
        Err(reactor.stats().refuse(CallRefused::NoCredit))
    }

    /// A call ended without a checked reply: its protection is no longer needed.
    pub(in crate::reactor) fn forget_sent(&self, conn: ConnId, xid: Xid) {
        if let Some(gss) = self.reactor().conn(conn).and_then(|c| c.gss_mut()) {
            gss.forget(xid);
        }
    }

    /// The application is notified that a call has ended: if it is denied later, it is not sent again.
    pub(in crate::reactor) fn keep_no_more(&self, conn: ConnId, slot: SlotId) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(conn) else { return };
        if let Some(gss) = c.gss_mut() {
            gss.keep_no_more(slot.xid());
        }
        if let Some(lasting) = c.calls.lasting.as_mut() {
            lasting.forget_ended(slot);
        }
    }

    /// The XID that the next call gets, if one can be started.
    fn next_xid(&self, conn: ConnId, start: Start) -> Result<Xid, Backpressure> {
        let mut reactor = self.reactor();
        let (c, core) = reactor.conn_and_core(conn).ok_or(Backpressure::Down)?;
        let requester = &c.lane.proto().requester;
        match start {
            Start::Again(slot) | Start::Reserved(slot) => Ok(slot.xid()),
            Start::New(_) => match requester.check_room() {
                Ok(()) => Ok(requester.next_xid()),
                Err(refused) => Err(core.stats().refuse(refused)),
            },
        }
    }

    pub(in crate::reactor) fn not_protected(&self, why: Unprotected) -> Backpressure {
        match why {
            Unprotected::NoMemory(bytes) => {
                no_block(bytes, longest_block_bytes(self.reactor().config()))
            }
            _ => NOT_SIGNED,
        }
    }
}

impl Reactor {
    /// A call has its slot, and uses up its sequence number.
    pub(in crate::reactor) fn note_sent(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        Numbered { context, sequence, kept, .. }: Numbered<'_>,
        deadline: Instant,
    ) {
        if let Some(gss) = self.conn(conn).and_then(|c| c.gss_mut()) {
            context.context.take_sequence(sequence);
            gss.note((slot, sequence), Arc::clone(context), deadline, kept);
        }
    }

    /// Keeps the data to send a call again if it is denied, in addition to the data kept for calls that outlive their
    /// connection. Keeps nothing if memory is short: the call then ends when it is denied.
    pub(in crate::reactor) fn keep_for_denial(
        &mut self,
        conn: ConnId,
        start: Start,
        spec: &CallSpec,
        draft: &Draft<'_>,
        context: &ClientContext,
    ) -> Option<Retransmit> {
        let is_kept = spec.resend != Resend::Never && self.is_lasting(conn);
        let bytes = draft.stream().len();
        let is_exposed = spec.arguments.iter().flatten().any(Bulk::is_exposed);
        let is_new = matches!(start, Start::New(_));
        if is_kept || is_exposed || !is_new || !context.keeps_call(bytes) {
            return None;
        }
        let fitting = self.arena().classes().find(|class| class.block_bytes >= bytes);
        fitting.filter(|class| class.free * 2 > class.total)?;
        let order = self.stats().calls_sent;
        Retransmit::new(self.arena(), draft, order, spec)
    }
}

/// The context has a handle that does not fit into a credential.
pub(in crate::reactor) const NOT_SIGNED: Backpressure =
    Backpressure::Misuse("a call that cannot be protected");

/// Room for a reply that has its data in it, and a frame around it.
pub(in crate::reactor) fn protected_reply_bytes(spec: &CallSpec) -> usize {
    let results = spec.results.iter().flatten();
    let data_bytes: usize = results.map(|result| 4 + roundup4(result.len())).sum();
    if spec.reply_bytes_max == 0 && data_bytes == 0 {
        return 0;
    }
    let rest_bytes = spec.reply_bytes_max.max(INLINE_THRESHOLD_MIN_BYTES as usize);
    (rest_bytes + data_bytes + FRAME_BYTES).min(u32::MAX as usize / 2)
}
