//! Protects calls under RPCSEC_GSS. Each is protected when it is sent, with a sequence number of its own, so that a repeated
//! call has another one (RFC 2203 section 5.3.3.1).
//!
//! A thread of the core seals a long body. Such a call has its slot at once, because the XID is a part of what is signed, and its
//! sequence number; it is sent when it is sealed. Until then its end by a deadline or its owner leaves nothing behind, as nothing
//! of it was lent.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
use crate::reactor::client::emit::Start;
use crate::reactor::in_flight::gss_bodies::{Body, Purpose};
use crate::reactor::in_flight::gss_calls::{GssCalls, InUse, SentCall};
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallSpec};
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::protection::{
    CALL_HEAD_BYTES, CallWords, ClientContext, LaidOut, ProtectError, seal,
};
use crate::reactor::types::resend_source::{Kept, Terms};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Program, Version, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::requester::CallRefused;
use spinrpc_proto::rpc::GssProcedure;
use std::sync::Arc;

/// Security context of a call.
enum ContextState {
    /// The connection has no context, and needs none.
    Nothing,
    /// The connection needs a context and has none.
    Missing,
    Context(Arc<ClientContext>),
}

/// The context has a handle that does not fit into a credential.
const NOT_SIGNED: Backpressure = Backpressure::Misuse("a call that cannot be protected");

impl CoreCell {
    /// Sets the context that the calls of a connection need from now on, except those that prepare it; `None` while one is
    /// established.
    pub(crate) fn set_context(&self, conn: ConnId, context: Option<Arc<ClientContext>>) {
        if let Some(c) = self.reactor().conn(conn) {
            c.set_context(context);
        }
    }

    /// Tells the server of a connection that is about to close that its context is no longer needed. Does not wait
    /// for the answer, and does nothing if there is no room for the call: the server forgets idle contexts.
    pub(crate) fn destroy_context(&self, conn: ConnId, called: (Program, Version)) -> Option<Xid> {
        let mut reactor = self.reactor();
        let ContextState::Context(context) = reactor.under(conn) else { return None };
        reactor.conn(conn)?.set_context(None);
        let last_words = reactor.destroy(conn, &context, called).ok().flatten();
        // A driver discards messages that it has not sent when the connection closes. In a handler, the receive of
        // the reply is posted after that, which matters to this connection only.
        reactor.fabric_mut().flush();
        last_words
    }

    /// The same for a replaced context, once no call in flight uses it; the call leaves with the turn's messages. `Err`
    /// while some use it, or have all credits.
    pub(crate) fn destroy_replaced(
        &self,
        conn: ConnId,
        context: &Arc<ClientContext>,
        called: (Program, Version),
    ) -> Result<Option<Xid>, InUse> {
        let mut reactor = self.reactor();
        let gss = reactor.conn(conn).and_then(|c| c.gss());
        match gss.is_some_and(|gss| gss.is_used(context)) {
            true => Err(InUse),
            false => reactor.destroy(conn, context, called),
        }
    }

    /// Takes the protection that the reply with this XID must have.
    #[inline]
    pub(crate) fn take_sent(&self, conn: ConnId, xid: Xid) -> Option<SentCall> {
        self.reactor().conn(conn)?.gss_mut()?.take(xid)
    }

    /// Cause of the loss of the previous connection, which may have executed a call.
    pub(crate) fn lost_by(&self, conn: ConnId) -> DownCause {
        self.reactor().conn(conn).map_or(DownCause::Local, |c| c.calls.lost_by())
    }
}

impl Reactor {
    /// `Ok(None)` where the call cannot be made.
    fn destroy(
        &mut self,
        conn: ConnId,
        context: &ClientContext,
        (program, version): (Program, Version),
    ) -> Result<Option<Xid>, InUse> {
        let not_now = |refused| match refused {
            Backpressure::NoCredit => Err(InUse),
            _ => Ok(None),
        };
        let xid = match self.take_send_buffer(conn) {
            Ok((_, c)) => c.lane.proto().requester.next_xid(),
            Err(refused) => return not_now(refused),
        };
        let Ok(sequence) = context.context.peek_sequence(context.window) else { return Ok(None) };
        let (procedure, words) = (GssProcedure::Destroy, CallWords::null(program, version));
        let mut bytes = [0; CALL_HEAD_BYTES];
        let emitted = context.emit_head(procedure, (xid, sequence), words, &mut bytes);
        let Ok(length) = emitted else { return Ok(None) };
        let mut spec = CallSpec::short();
        spec.mark_setup();
        match self.send_call(conn, 0, &mut spec, &EncodedStream::without_items(&bytes[..length])) {
            Ok(_) => {
                context.context.take_sequence(sequence);
                Ok(Some(xid))
            }
            Err(refused) => not_now(refused),
        }
    }

    fn under(&mut self, conn: ConnId) -> ContextState {
        let gss = self.conns().find_for_lane(conn).and_then(|c| c.gss());
        match gss.map(GssCalls::context) {
            None => ContextState::Nothing,
            Some(None) => ContextState::Missing,
            Some(Some(context)) => ContextState::Context(Arc::clone(context)),
        }
    }

    /// Protects a call as its connection needs, and places it. Results intended for direct placement in buffers come in a reply
    /// that is sealed.
    pub(in crate::reactor) fn protect_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
    ) -> Result<SlotId, Backpressure> {
        call.seal(false);
        let context = match self.under(conn) {
            // One that prepares another context goes without.
            ContextState::Context(context) if !call.terms().is_setup() => context,
            ContextState::Missing if !call.terms().is_setup() => {
                return Err(Backpressure::Connecting);
            }
            _ => return self.place_call(conn, start, call, draft),
        };
        let sequence = self.next_sequence(conn, &context)?;
        let c = self.conn(conn).ok_or(Backpressure::Down)?;
        let numbers = (start.xid(&c.lane.proto().requester), sequence);
        self.keep_for_denial(conn, start, call, draft, &context);
        let slot = match context.service.protects_body() {
            true => self.seal_call(conn, start, call, draft, &context, numbers)?,
            false => {
                let mut head = [0; CALL_HEAD_BYTES];
                let signed = context.sign(numbers, draft, &mut head).map_err(|_| NOT_SIGNED)?;
                self.place_call(conn, start, call, &signed)?
            }
        };
        self.use_sequence(conn, (slot, sequence), context, None);
        Ok(slot)
    }

    /// Starts a call that is only signed, and goes inline: header and verifier are written where the message is sent from. `None`
    /// for any other; then nothing has happened.
    pub(in crate::reactor) fn emit_signed_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &CallSpec,
        draft: &EncodedStream<'_>,
    ) -> Result<Option<SlotId>, Backpressure> {
        let ContextState::Context(context) = self.under(conn) else { return Ok(None) };
        let Some((words, arguments)) = CallWords::split(draft.stream()) else { return Ok(None) };
        if context.service.protects_body() || spec.is_setup {
            return Ok(None);
        }
        let sequence = self.next_sequence(conn, &context)?;
        let started = self.emit_stream(conn, token, spec, |c, place| {
            if context.head_bytes() + arguments.len() > place.len() {
                return Ok(None);
            }
            let numbers = (c.lane.proto().requester.next_xid(), sequence);
            let at = context.emit_head(GssProcedure::Data, numbers, words, place);
            let at = at.map_err(|_| NOT_SIGNED)?;
            place[at..][..arguments.len()].copy_from_slice(arguments);
            Ok(Some(at + arguments.len()))
        })?;
        let Some(slot) = started else { return Ok(None) };
        let may_keep = self.has_room_to_keep(draft.stream().len(), &context);
        let terms = Terms::of(spec, self.deadline(spec), spec.reply_bytes_max);
        let order = self.stats().calls_sent;
        let none = [const { None }; ITEMS_MAX];
        let kept = may_keep.then(|| Kept::new(self.arena(), draft, order, terms, &none)).flatten();
        self.use_sequence(conn, (slot, sequence), context, kept);
        Ok(Some(slot))
    }

    /// Seals the body of a call, or has a thread do that, and places the call when it is sealed.
    fn seal_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
        context: &Arc<ClientContext>,
        (xid, sequence): (Xid, u32),
    ) -> Result<SlotId, Backpressure> {
        if call.arguments.iter().flatten().any(Bulk::is_exposed) {
            return Err(Backpressure::Misuse("an exposed argument in a call that is protected"));
        }
        let (_, core) = self.conn_and_core(conn).ok_or(Backpressure::Down)?;
        let memory = |bytes| {
            let mut memory = core.private_bulk(conn, bytes).ok_or(ProtectError::NoMemory(bytes))?;
            memory.set_len(bytes);
            Ok(memory)
        };
        let items = call.arguments().map(Bulk::bytes);
        let laid_out = context.lay_out(memory, (xid, sequence), items, draft);
        let LaidOut { mut message, at } = laid_out.map_err(|why| self.not_protected(why))?;
        call.seal(true);
        if let Start::New(token) = start
            && self.offloads_seal(conn, call, message.len())
        {
            // What would be refused later is refused now.
            drop(self.stage_call(conn, start, call)?);
            let (c, core) = self.conn_and_core(conn).ok_or(Backpressure::Down)?;
            let reserved = c.lane.proto().requester.reserve(token, call.terms().deadline());
            let slot = reserved.map_err(|refused| core.stats().refuse(refused))?;
            core.wake_by(call.terms().deadline());
            let then = Purpose::Send { slot, context: Arc::clone(context), sequence };
            self.offload_body(Body { conn, message, at, then });
            return Ok(slot);
        }
        let (secured, body) = ((&context.context, context.service), &mut message.bytes_mut()[at..]);
        let sealed = seal(secured, body, sequence, self.gss_work().crypto());
        sealed.map_err(|why| self.not_protected(why))?;
        call.set_sealed(Some(message));
        self.place_sealed_call(conn, start, call).inspect_err(|_| drop(call.set_sealed(None)))
    }

    /// Returns true if a thread seals a call of this length. One that is not within all limits as a chunk, as its reply is, is
    /// refused where it is made; so is each where the connection offers no Read chunks.
    fn offloads_seal(&mut self, conn: ConnId, call: &Outgoing, call_bytes: usize) -> bool {
        let reply_bytes = call.reply_bytes_max() + CALL_HEAD_BYTES;
        let longest = call_bytes.max(reply_bytes);
        let config = self.config();
        let may_be_chunks = call_bytes <= config.read_list_bytes_max()
            && reply_bytes <= config.write_list_bytes_max()
            && longest <= config.chunk_bytes_max().min(longest_block_bytes(config));
        may_be_chunks
            && self.gss_work().takes(conn, call_bytes)
            && self.conn(conn).is_some_and(|c| c.negotiated.takes_read_chunks())
    }

    /// Sequence number of the next call. It is used up once the call has been sent: refused attempts use none.
    fn next_sequence(
        &mut self,
        conn: ConnId,
        context: &ClientContext,
    ) -> Result<u32, Backpressure> {
        let number = context.context.peek_sequence(context.window);
        let number = number.map_err(|_| Backpressure::Connecting)?;
        let gss = self.conn(conn).and_then(|c| c.gss_mut());
        if gss.is_some_and(|gss| gss.has_room(context, number)) {
            return Ok(number);
        }
        Err(self.stats().refuse(CallRefused::NoCredit))
    }

    /// A call has its slot: its sequence number is used up, and its reply is checked with this context.
    fn use_sequence(
        &mut self,
        conn: ConnId,
        (slot, sequence): (SlotId, u32),
        context: Arc<ClientContext>,
        kept: Option<Kept>,
    ) {
        if let Some(gss) = self.conn(conn).and_then(|c| c.gss_mut()) {
            context.context.take_sequence(sequence);
            gss.note((slot, sequence), context, kept);
        }
    }

    /// Keeps a call that may be denied because the server has lost its context, unless it is kept anyway. Keeps nothing if memory
    /// is short: the call then ends when it is denied.
    fn keep_for_denial(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
        context: &ClientContext,
    ) {
        let is_kept = self.conn(conn).is_some_and(|c| c.calls.is_lasting(call));
        let is_exposed = call.arguments.iter().flatten().any(Bulk::is_exposed);
        let is_new = matches!(start, Start::New(_));
        if is_kept || is_exposed || !is_new || !self.has_room_to_keep(draft.stream().len(), context)
        {
            return;
        }
        let order = self.stats().calls_sent;
        call.keep(self.arena(), draft, order);
    }

    fn has_room_to_keep(&self, bytes: usize, context: &ClientContext) -> bool {
        let mut classes = self.arena().classes();
        context.keeps_call(bytes)
            && classes
                .find(|class| class.block_bytes >= bytes)
                .is_some_and(|class| class.free * 2 > class.total)
    }

    fn not_protected(&self, why: ProtectError) -> Backpressure {
        match why {
            ProtectError::NoMemory(bytes) => no_block(bytes, longest_block_bytes(self.config())),
            _ => NOT_SIGNED,
        }
    }
}
