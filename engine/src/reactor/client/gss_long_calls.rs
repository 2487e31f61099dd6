//! Calls under RPCSEC_GSS whose bodies are sealed. A long one is sealed in several turns (`Config::gss_step_bytes`), so
//! that a core whose application makes one does not keep its other connections waiting. Such a call has its slot at
//! once, because the XID is a part of what is signed, and its sequence number; it is sent when it is sealed. Until then its end by a deadline or its owner
//! leaves nothing behind, as nothing of it was lent.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::client::chunked_calls::Start;
use crate::reactor::client::gss::{Numbered, protected_reply_bytes};
use crate::reactor::in_flight::call_table::CallHold;
use crate::reactor::in_flight::gss_work::{Body, BodyStage, Then};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallEnd, CallSpec, Resend, SlotToken};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::protection::{
    CALL_HEAD_BYTES, ClientContext, FRAME_BYTES, LaidOut, Unprotected, cost, finish_sealing,
};
use crate::sys::journal::event;
use spinrpc_proto::chunking::{Encoded, Placement};
use spinrpc_proto::events::{CallFailure, SlotId};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use std::mem::take;
use std::sync::Arc;

/// Arguments and results of a call.
type Buffers<'b> = (&'b mut [Option<Bulk>; ITEMS_MAX], &'b mut [Option<Bulk>; ITEMS_MAX]);

impl CoreCell {
    /// The body of this call takes more than one turn, and may have them. A connection that offers no Read chunks sends no
    /// long calls: those are refused where they are made.
    fn is_call_sealed_in_steps(
        &self,
        conn: ConnId,
        spec: &CallSpec,
        draft: &Draft<'_>,
        context: &ClientContext,
    ) -> bool {
        let items = spec.arguments.iter().flatten().map(Bulk::len).sum::<usize>();
        let bytes = draft.stream().len() + items;
        let mut reactor = self.reactor();
        reactor.gss_work().is_long(cost(&context.context, bytes))
            && reactor.gss_work().has_room(conn)
            && reactor.may_be_chunks(bytes, protected_reply_bytes(spec))
            && reactor.conn(conn).is_some_and(|c| c.negotiated.takes_read_chunks())
    }

    /// Starts a call whose body is sealed: one that takes more than one turn is sent when that is done. On success the buffers
    /// of the spec have moved out of it; they wait for the reply, which has its data in it.
    pub(in crate::reactor) fn protect_body(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
        numbered: Numbered<'_>,
    ) -> Result<SlotId, Backpressure> {
        let Numbered { context, xid, sequence, .. } = numbered;
        let items = spec.arguments.iter().flatten().map(Bulk::bytes);
        let memory = |bytes| {
            let mut memory = self.private_bulk(conn, bytes).ok_or(Unprotected::NoMemory(bytes))?;
            memory.set_len(bytes);
            Ok(memory)
        };
        let begun = context.begin_call(memory, (xid, sequence), items, draft);
        let (mut laid_out, mut sealing) = begun.map_err(|why| self.not_protected(why))?;
        let deadline = self.reactor().deadline(spec);
        let mut own = CallSpec {
            is_special: true,
            reply_bytes_max: protected_reply_bytes(spec),
            is_reply_assumed: spec.is_reply_assumed,
            resend: spec.resend,
            deadline: spec.deadline,
            ..Default::default()
        };
        let slot = match start {
            Start::New(token) if self.is_call_sealed_in_steps(conn, spec, draft, context) => {
                let mut reactor = self.reactor();
                let slot = reactor.reserve_call(conn, (token, deadline), spec)?;
                let LaidOut { message, at, .. } = laid_out;
                let then = Then::Send { slot, context: Arc::clone(context), deadline, spec: own };
                let stage = BodyStage::Seal(sealing);
                reactor.gss_work().push(Body { conn, message, at, stage, then });
                reactor.announce_work();
                slot
            }
            _ => {
                let secured = (&context.context, context.service);
                let body = &mut laid_out.message.bytes_mut()[laid_out.at..];
                let sealed = finish_sealing(secured, &mut sealing, body, &self.crypto);
                sealed.map_err(|why| self.not_protected(why))?;
                self.place_sealed_call(conn, start, &mut Some(laid_out.message), &mut own)?
            }
        };
        let mut reactor = self.reactor();
        reactor.hold_buffers(conn, slot, (&mut spec.arguments, &mut spec.results));
        spec.is_special = spec.resend != Resend::Never;
        reactor.note_sent((conn, slot), numbered, deadline);
        Ok(slot)
    }

    /// Sends the calls that are sealed, as far as there is room, up to the first long one: that is copied to memory that the
    /// server can read. Those that find no room wait. Returns true if a long one was sent, and there may be more to send.
    pub(in crate::reactor) fn go_on_with_sealed(&self) -> bool {
        let count = self.reactor().gss_work().sealed();
        for _ in 0..count {
            let next = self.reactor().gss_work().take_sealed();
            let Some(call) = next else { return false };
            let bytes = call.message.len();
            match self.emit_sealed_call(call) {
                Some(waits) => self.reactor().gss_work().push_sealed(waits),
                None if self.reactor().gss_work().is_long(bytes) => return true,
                None => {}
            }
        }
        let mut reactor = self.reactor();
        if reactor.gss_work().sealed() > 0 {
            // What they wait for, such as the end of another call, need not be a message.
            let pause_ends = reactor.pause_ends();
            reactor.wake_by(pause_ends);
        }
        false
    }

    /// The last part of a call was sealed: it is sent in the next turn.
    pub(in crate::reactor) fn take_sealed_call(&self, call: Body, slot: SlotId, is_sealed: bool) {
        let mut reactor = self.reactor();
        match is_sealed {
            true => reactor.gss_work().push_sealed(call),
            false => reactor.end_unsent(call.conn, slot),
        }
    }

    /// Gives the call back if there is no room for it yet.
    fn emit_sealed_call(&self, mut call: Body) -> Option<Body> {
        let Body { conn, then: Then::Send { slot, deadline, ref mut spec, .. }, .. } = call else {
            return None;
        };
        // A key of an earlier try to send it may not be dead yet.
        if call.message.is_leased() {
            return Some(call);
        }
        let reserved = self.reactor().take_reserved(conn, slot);
        let Some(hold) = reserved else {
            // It was cancelled in this turn: its number holds up no later ones.
            self.forget_sent(conn, slot.xid());
            return None;
        };
        spec.deadline = self.reactor().rest_of(deadline);
        let mut message = Some(call.message);
        let sent = self.place_sealed_call(conn, Start::Reserved(slot), &mut message, spec);
        let mut reactor = self.reactor();
        match sent {
            Ok(_) => {
                if let Some(mut held) = hold {
                    reactor.hold_buffers(conn, slot, (&mut held.arguments, &mut held.results));
                    reactor.recycle_hold(conn, Some(held));
                }
                None
            }
            Err(refused) => {
                if let (Some(held), Some(c)) = (hold, reactor.conn(conn)) {
                    c.calls.put(slot, held);
                }
                // Of a connection that goes down it is sent again, or ends, with all others.
                if refused.is_transient() || refused == Backpressure::Down {
                    call.message = message?;
                    return Some(call);
                }
                event!(WARN, %refused, "a call that was sealed cannot be sent");
                reactor.end_unsent(conn, slot);
                None
            }
        }
    }

    /// Sends it from where it lies: inline if that is short enough, else as a chunk of its own.
    fn place_sealed_call(
        &self,
        conn: ConnId,
        start: Start,
        message: &mut Option<Bulk>,
        spec: &mut CallSpec,
    ) -> Result<SlotId, Backpressure> {
        let mut reactor = self.reactor();
        let mut stage = reactor.stage_call(conn, start, spec)?;
        let segment_bytes = reactor.config().segment_bytes();
        let bytes = message.as_ref().map_or(&[][..], Bulk::bytes);
        if stage.header_bytes + bytes.len() <= stage.threshold_bytes {
            let encoded = stage.encode(spec, &Draft::plain(bytes), Placement::Inline);
            if stage.fits(&encoded, segment_bytes) {
                return reactor.emit_call(conn, stage, &encoded, &mut None, start, spec);
            }
        }
        let encoded = Encoded::plain(bytes.len());
        stage.check_reads(&encoded)?;
        reactor.emit_call(conn, stage, &encoded, message, start, spec)
    }

    /// Gives up a call of which the requester knows nothing, or knows by another slot. Its memory is private.
    pub(in crate::reactor) fn cancel_secured(&self, conn: ConnId, slot: SlotId) -> bool {
        let mut reactor = self.reactor();
        let work = reactor.gss_work();
        let token = work.forget_denied(conn, slot).or_else(|| work.forget_reply(conn, slot));
        if let Some(token) = token {
            let (call, end) = (SlotToken { slot, token }, CallEnd::Failed(CallFailure::Cancelled));
            reactor.end_call(conn, call, end);
            return true;
        }
        let gss = reactor.conn(conn).and_then(|c| c.gss());
        let again = gss.and_then(|gss| gss.sent_again(slot)).filter(|again| *again != slot);
        drop(reactor);
        again.is_some_and(|again| self.cancel_requested(conn, again))
    }
}

impl Reactor {
    /// A call with a body of this length, and its reply, are within all limits as chunks. One that is not is refused where it
    /// is made.
    fn may_be_chunks(&self, bytes: usize, reply_bytes: usize) -> bool {
        let config = self.config();
        let call_bytes = bytes + CALL_HEAD_BYTES + FRAME_BYTES;
        let reply_bytes = reply_bytes + CALL_HEAD_BYTES;
        let longest = call_bytes.max(reply_bytes);
        call_bytes <= config.read_list_bytes_max()
            && reply_bytes <= config.write_list_bytes_max()
            && longest <= config.chunk_bytes_max().min(longest_block_bytes(config))
    }

    /// Takes a slot for a call that is sent later, with its buffers' place.
    fn reserve_call(
        &mut self,
        conn: ConnId,
        (token, deadline): (u64, Instant),
        spec: &CallSpec,
    ) -> Result<SlotId, Backpressure> {
        // What would be refused later is refused now.
        drop(self.stage_call(conn, Start::New(token), spec)?);
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(Backpressure::Down) };
        let Some(hold) = c.calls.spare() else { return Err(Backpressure::NoBuffer) };
        let reserved = c.lane.proto().requester.reserve(token, deadline);
        match reserved {
            Ok(slot) => {
                c.calls.put(slot, hold);
                core.wake_by(deadline);
                Ok(slot)
            }
            Err(refused) => {
                c.calls.recycle(hold);
                Err(self.stats().refuse(refused))
            }
        }
    }

    /// The buffers of a call lie in its slot from now on.
    fn hold_buffers(&mut self, conn: ConnId, slot: SlotId, (arguments, results): Buffers<'_>) {
        let hold = self.conn(conn).and_then(|c| c.calls.hold(slot));
        let Some(hold) = hold else { return };
        (hold.arguments, hold.results) = (take(arguments), take(results));
    }

    /// The buffers of a call that is not sent yet; `None` if it has ended.
    #[expect(clippy::option_option, reason = "a call that goes on may have no buffers")]
    fn take_reserved(&mut self, conn: ConnId, slot: SlotId) -> Option<Option<Box<CallHold>>> {
        let c = self.conn(conn)?;
        let is_reserved = c.lane.proto().requester.is_reserved(slot);
        is_reserved.then(|| c.calls.take_hold(slot))
    }

    /// A call ends that cannot be sent.
    fn end_unsent(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        let token = c.lane.proto().requester.release_reserved(slot);
        c.calls.free(slot);
        if let Some(gss) = c.gss_mut() {
            gss.forget(slot.xid());
        }
        let end = CallEnd::Failed(CallFailure::NoMemory);
        if let Some(token) = token {
            self.end_call(conn, SlotToken { slot, token }, end);
        }
    }

    /// The dispatch is to hear in this turn, or the next one, that there is work.
    pub(in crate::reactor) fn announce_work(&mut self) {
        self.gss_work().announce();
        self.wake_by(Instant(0));
    }
}
