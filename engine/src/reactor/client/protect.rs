//! Calls under RPCSEC_GSS: each is protected when it is sent, with a sequence number of its own, so that a call that
//! is sent again has another (RFC 2203 section 5.3.3.1). What is kept of calls is not protected.

use crate::fabric::{ConnId, DownCause, Fabric};
use crate::mem::Bulk;
use crate::reactor::client::calls::Start;
use crate::reactor::pending::gss_calls::{DeniedCall, GssCalls, InUse, SentCall};
use crate::reactor::pending::lasting::Kept;
use crate::reactor::state::core::CoreCell;
use crate::reactor::words::calls::{Backpressure, CallSpec, Deadline, Resend};
use crate::reactor::words::draft::Draft;
use crate::reactor::words::gate::Gate;
use crate::reactor::words::memory::longest_block_bytes;
use crate::reactor::words::messages::no_block;
use crate::reactor::words::protection::{CALL_HEAD_BYTES, ClientContext, FRAME_BYTES, Unprotected};
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::INLINE_THRESHOLD_MIN_BYTES;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::requester::CallRefused;
use spinrpc_proto::rpc::{CallHeader, OpaqueAuth};
use spinrpc_proto::xdr::roundup4;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

/// What a call goes under.
pub(in crate::reactor) enum Under {
    /// The connection has no context, and needs none.
    Nothing,
    /// It needs one, which is not there.
    Missing,
    Context(Arc<ClientContext>),
}

impl CoreCell {
    /// The calls of a connection go under a context from now on, and none go without, but for those that make it
    /// ready.
    pub(crate) fn require_context(&self, conn: ConnId) {
        self.set_context(conn, None);
    }

    /// The context of calls from now on; `None` while another one is established.
    pub(crate) fn set_context(&self, conn: ConnId, context: Option<Arc<ClientContext>>) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conns.find(conn) else { return };
        let slots = c.calls.slots();
        c.gss.get_or_insert_with(|| Box::new(GssCalls::new(slots))).change(context);
        if let Some(lasting) = &mut c.calls.lasting {
            lasting.keeps_ended = true;
        }
        c.lane.gate.set(Gate::UNKNOWN);
    }

    /// Tells the server of a connection that is to be closed that its context is not needed any more. Does not wait for the
    /// answer, and does nothing where there is no room for the call: the server forgets idle contexts.
    pub(crate) fn destroy_context(
        &self,
        conn: ConnId,
        (program, version): (Program, Version),
    ) -> Option<(SlotId, Xid)> {
        let Under::Context(context) = self.under(conn) else { return None };
        self.set_context(conn, None);
        self.destroy(conn, &context, (program, version))
    }

    /// The same of a context that another has replaced, once no call in flight is under it. `Err` if there are some.
    pub(crate) fn destroy_replaced(
        &self,
        conn: ConnId,
        context: &Arc<ClientContext>,
        called: (Program, Version),
    ) -> Result<Option<(SlotId, Xid)>, InUse> {
        let is_used = {
            let mut reactor = self.reactor();
            let gss = reactor.conns.find(conn).and_then(|c| c.gss.as_deref());
            gss.is_some_and(|gss| gss.is_used(context))
        };
        if is_used { Err(InUse) } else { Ok(self.destroy(conn, context, called)) }
    }

    fn destroy(
        &self,
        conn: ConnId,
        context: &ClientContext,
        (program, version): (Program, Version),
    ) -> Option<(SlotId, Xid)> {
        let start = Start::New(0);
        let xid = self.next_xid(conn, start).ok()?;
        let sequence = context.context.peek_sequence(context.window).ok()?;
        let (procedure, none) = (Procedure(0), OpaqueAuth::NONE);
        let header =
            CallHeader { xid, program, version, procedure, credential: none, verifier: none };
        let mut bytes = [0; CALL_HEAD_BYTES];
        let length = context.emit_destroy(sequence, &header, &mut bytes).ok()?;
        let draft = Draft::plain(&bytes[..length]);
        let slot = self.start_open_call(conn, start, &mut CallSpec::new(), &draft).ok()?;
        context.context.take_sequence(sequence);
        self.reactor().fabric.flush();
        Some((slot, xid))
    }

    /// What the reply with this XID has to be under.
    pub(crate) fn take_sent(&self, conn: ConnId, xid: Xid) -> Option<SentCall> {
        let mut reactor = self.reactor();
        let c = reactor.conns.find(conn)?;
        let mut sent = c.gss.as_mut()?.take(xid)?;
        let ended = c.calls.lasting.as_mut().and_then(|lasting| lasting.ended.take());
        if let Some((_, kept)) = ended.filter(|(slot, _)| slot.xid() == xid) {
            sent.kept = Some(kept);
        }
        Some(sent)
    }

    /// Why the connection before was lost, which may have executed a call.
    pub(crate) fn lost_by(&self, conn: ConnId) -> DownCause {
        let mut reactor = self.reactor();
        let lasting = reactor.conns.find(conn).and_then(|c| c.calls.lasting.as_deref());
        lasting.map_or(DownCause::Local, |lasting| lasting.lost_by.clone())
    }

    /// Denied calls wait for a context: the core looks at them by this time, and in each turn.
    pub(crate) fn await_context(&self, denied: &DeniedCall) {
        let mut reactor = self.reactor();
        reactor.gss_work.denied = true;
        reactor.next_deadline = reactor.next_deadline.min(denied.deadline);
    }

    /// None waits any more, until the next one does.
    pub(crate) fn forget_denied(&self) {
        self.reactor().gss_work.denied = false;
    }

    /// The time of a denied call is over.
    pub(crate) fn is_over(&self, denied: &DeniedCall) -> bool {
        self.reactor().time_left(denied.deadline) == Some(0)
    }

    /// What a call needs to be sent again if it is denied, beside what is kept of one that outlives its connection.
    /// Nothing where there is little memory: then it ends when it is denied.
    fn keep_for_denial(
        &self,
        conn: ConnId,
        start: Start,
        spec: &CallSpec,
        draft: &Draft<'_>,
        context: &ClientContext,
    ) -> Option<Kept> {
        let mut reactor = self.reactor();
        let is_kept = spec.resend != Resend::Never && reactor.is_lasting(conn);
        let bytes = draft.stream().len();
        let is_exposed = spec.arguments.iter().flatten().any(Bulk::is_exposed);
        let is_new = matches!(start, Start::New(_));
        if is_kept || is_exposed || !is_new || !context.keeps_call(bytes) {
            return None;
        }
        let mut fitting = reactor.bulk.classes().filter(|class| class.block_bytes >= bytes);
        fitting.next().filter(|class| class.free * 2 > class.total)?;
        let mut stream = reactor.bulk.take(bytes)?;
        stream.bytes_mut().copy_from_slice(draft.stream());
        Some(Kept::new(stream, *draft.cuts(), reactor.stats.calls_sent, spec))
    }

    /// Sends a call again that was denied: with another XID and sequence number. Gives its token if that cannot be, and
    /// whether that is because its time is over.
    pub(crate) fn start_denied(&self, conn: ConnId, denied: DeniedCall) -> Result<(), (u64, bool)> {
        let DeniedCall { token, kept, deadline, arguments, results } = denied;
        let left_us = self.reactor().time_left(deadline);
        let deadline =
            left_us.map_or(Deadline::None, |us| Deadline::After(Duration::from_micros(us)));
        if left_us == Some(0) {
            return Err((token, true));
        }
        let (reply_bytes_max, resend) = (kept.reply_bytes_max, kept.resend);
        let mut spec = CallSpec {
            is_special: true,
            reply_bytes_max,
            resend,
            deadline,
            arguments,
            results,
            ..CallSpec::default()
        };
        let draft = Draft::new(kept.stream.bytes(), kept.cuts);
        let started = self.start_special_call(conn, Start::New(token), &mut spec, &draft);
        let slot = started.map_err(|_| (token, false))?;
        let mut reactor = self.reactor();
        reactor.stats.calls_resent += 1;
        let Some(c) = reactor.conns.find(conn) else { return Ok(()) };
        if let Some(gss) = &mut c.gss {
            gss.note_denied(slot.xid());
        }
        if let Some(lasting) = c.calls.lasting.as_mut().filter(|_| kept.resend != Resend::Never) {
            lasting.put(slot, kept);
        }
        Ok(())
    }

    pub(in crate::reactor) fn under(&self, conn: ConnId) -> Under {
        let mut reactor = self.reactor();
        let gss = reactor.conns.find(conn).and_then(|c| c.gss.as_deref());
        match gss.map(|gss| &gss.context) {
            None => Under::Nothing,
            Some(None) => Under::Missing,
            Some(Some(context)) => Under::Context(Arc::clone(context)),
        }
    }

    /// Starts a call under `context`. Results that were to be written straight to buffers come in the reply.
    pub(in crate::reactor) fn start_protected_call(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
        context: &Arc<ClientContext>,
    ) -> Result<SlotId, Backpressure> {
        let xid = self.next_xid(conn, start)?;
        let sequence = self.next_sequence(conn, context)?;
        let kept = self.keep_for_denial(conn, start, spec, draft, context);
        let (reply_bytes_max, deadline) = (spec.reply_bytes_max, self.reactor().deadline(spec));
        let mut results = Default::default();
        let pool = self.reactor().bulk.clone();
        let protected = if context.service.protects_body() {
            if spec.arguments.iter().flatten().any(Bulk::is_exposed) {
                return Err(Backpressure::Misuse(
                    "an exposed argument in a call that is protected",
                ));
            }
            spec.reply_bytes_max = protected_reply_bytes(spec);
            results = take(&mut spec.results);
            let arguments = take(&mut spec.arguments);
            let items = arguments.iter().flatten().map(Bulk::bytes);
            let started = context.protect(&pool, (xid, sequence), items, draft, |draft| {
                self.start_open_call(conn, start, spec, draft)
            });
            spec.arguments = arguments;
            started
        } else {
            context.protect(&pool, (xid, sequence), std::iter::empty(), draft, |draft| {
                self.start_open_call(conn, start, spec, draft)
            })
        };
        spec.reply_bytes_max = reply_bytes_max;
        let started = protected.map_err(|why| self.not_protected(why)).and_then(|started| started);
        let mut reactor = self.reactor();
        let c = reactor.conns.find(conn);
        match (started, c) {
            (Ok(slot), Some(c)) => {
                if context.service.protects_body()
                    && let Some(hold) = c.calls.hold(slot)
                {
                    hold.arguments = take(&mut spec.arguments);
                    hold.results = results;
                }
                if let Some(gss) = &mut c.gss {
                    context.context.take_sequence(sequence);
                    gss.note((xid, sequence), Arc::clone(context), deadline, kept);
                }
                Ok(slot)
            }
            (started, _) => {
                if context.service.protects_body() {
                    spec.results = results;
                }
                started
            }
        }
    }

    /// The number that the next call gets, which is used up once it has left: tries that are refused take none.
    fn next_sequence(&self, conn: ConnId, context: &ClientContext) -> Result<u32, Backpressure> {
        let number = context.context.peek_sequence(context.window);
        let number = number.map_err(|_| Backpressure::Connecting)?;
        let mut reactor = self.reactor();
        // What is refused most often is refused before anything is signed.
        drop(reactor.take_send_buffer(conn)?);
        let gss = reactor.conns.find(conn).and_then(|c| c.gss.as_mut());
        if gss.is_some_and(|gss| gss.has_room(context, number)) {
            return Ok(number);
        }
        Err(reactor.stats.refuse(CallRefused::NoCredit))
    }

    /// A call ended that no reply was checked for: what it was under is not needed any more.
    pub(in crate::reactor) fn forget_sent(&self, conn: ConnId, xid: Xid) {
        if let Some(gss) = self.reactor().conns.find(conn).and_then(|c| c.gss.as_mut()) {
            gss.forget(xid);
        }
    }

    /// The application hears that a call has ended: should it be denied later, it is not sent again.
    pub(in crate::reactor) fn keep_no_more(&self, conn: ConnId, slot: SlotId) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conns.find(conn) else { return };
        if let Some(gss) = &mut c.gss {
            gss.keep_no_more(slot.xid());
        }
        if let Some(lasting) = &mut c.calls.lasting {
            lasting.ended.take_if(|(ended, _)| *ended == slot);
        }
    }

    /// The XID that the next call gets, if one can be started.
    fn next_xid(&self, conn: ConnId, start: Start) -> Result<Xid, Backpressure> {
        let mut reactor = self.reactor();
        let reactor = &mut *reactor;
        let c = reactor.conns.find(conn).ok_or(Backpressure::Down)?;
        let requester = &c.lane.proto().requester;
        match start {
            Start::Again(slot) => Ok(requester.xid(slot)),
            Start::New(_) => match requester.check_room() {
                Ok(()) => Ok(requester.next_xid()),
                Err(refused) => Err(reactor.stats.refuse(refused)),
            },
        }
    }

    fn not_protected(&self, why: Unprotected) -> Backpressure {
        match why {
            Unprotected::NoMemory(bytes) => {
                no_block(bytes, longest_block_bytes(&self.reactor().config))
            }
            _ => Backpressure::Misuse("a call that cannot be protected"),
        }
    }
}

/// Room for a reply that has its data in it, and a frame around it.
fn protected_reply_bytes(spec: &CallSpec) -> usize {
    let results = spec.results.iter().flatten();
    let data_bytes: usize = results.map(|result| 4 + roundup4(result.len())).sum();
    if spec.reply_bytes_max == 0 && data_bytes == 0 {
        return 0;
    }
    let rest_bytes = spec.reply_bytes_max.max(INLINE_THRESHOLD_MIN_BYTES as usize);
    (rest_bytes + data_bytes + FRAME_BYTES).min(u32::MAX as usize / 2)
}
