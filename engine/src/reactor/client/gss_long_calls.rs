//! Calls under RPCSEC_GSS whose bodies are sealed. A thread of the core seals a long one. Such a call has its slot at once, because
//! the XID is a part of what is signed, and its sequence number; it is sent when it is sealed. Until then its end by a deadline
//! or its owner leaves nothing behind, as nothing of it was lent.

use crate::fabric::ConnId;
use crate::mem::Bulk;
use crate::reactor::client::chunked_calls::Start;
use crate::reactor::client::gss::{Numbered, protected_reply_bytes};
use crate::reactor::in_flight::call_table::CallHold;
use crate::reactor::in_flight::gss_work::{Body, Then};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallEnd, CallSpec, Resend, SlotToken};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::protection::{CALL_HEAD_BYTES, LaidOut, Unprotected, seal};
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
    /// Starts a call whose body is sealed: a long one is sent when that is done. On success the buffers of the spec have moved
    /// out of it; they wait for the reply, which has its data in it.
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
        let laid_out = context.lay_out(memory, (xid, sequence), items, draft);
        let LaidOut { mut message, at } = laid_out.map_err(|why| self.not_protected(why))?;
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
            Start::New(token) if self.reactor().leaves_call(conn, spec, message.len()) => {
                let mut reactor = self.reactor();
                let slot = reactor.reserve_call(conn, (token, deadline), spec)?;
                let context = Arc::clone(context);
                let then = Then::Send { slot, context, sequence, deadline, spec: own };
                reactor.process_body(Body { conn, message, at, then });
                slot
            }
            _ => {
                let (secured, body) =
                    ((&context.context, context.service), &mut message.bytes_mut()[at..]);
                let sealed = seal(secured, body, sequence, &self.crypto);
                sealed.map_err(|why| self.not_protected(why))?;
                self.place_sealed_call(conn, start, &mut Some(message), &mut own)?
            }
        };
        let mut reactor = self.reactor();
        reactor.hold_buffers(conn, slot, (&mut spec.arguments, &mut spec.results));
        spec.is_special = spec.resend != Resend::Never;
        reactor.note_sent((conn, slot), numbered, deadline);
        Ok(slot)
    }

    /// Sends the first call that is sealed and finds room: one in a turn, as it may be copied, and is long. The others wait.
    pub(in crate::reactor) fn go_on_with_sealed(&self) {
        let count = self.reactor().gss_work().sealed();
        let is_sent = (0..count).any(|_| {
            let next = self.reactor().gss_work().take_sealed();
            let waits = next.and_then(|call| self.emit_sealed_call(call));
            waits.map(|waits| self.reactor().gss_work().push_sealed(waits)).is_none()
        });
        let mut reactor = self.reactor();
        if reactor.gss_work().sealed() > 0 {
            // What they wait for, such as the end of another call, need not be a message.
            let pause_ends = if is_sent { Instant(0) } else { reactor.pause_ends() };
            reactor.wake_by(pause_ends);
        }
    }

    /// The body of a call is sealed: it is sent as soon as there is room.
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
        if call.message.is_leased() || self.reactor().is_overdue(conn, slot, deadline) {
            return Some(call);
        }
        let reserved = self.reactor().take_reserved(conn, slot);
        let Some(hold) = reserved else {
            // It has ended meanwhile: its number holds up no later ones.
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
        let token = work.forget_denied(conn, slot).or_else(|| work.take_opening(conn, slot));
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
    /// Returns true if a thread seals a call of this length. One that is not within all limits as a chunk, as its reply is, is
    /// refused where it is made; so is each where the connection offers no Read chunks.
    fn leaves_call(&mut self, conn: ConnId, spec: &CallSpec, call_bytes: usize) -> bool {
        self.gss_work().takes(conn, call_bytes)
            && self.may_be_chunks(call_bytes, protected_reply_bytes(spec))
            && self.conn(conn).is_some_and(|c| c.negotiated.takes_read_chunks())
    }

    fn may_be_chunks(&self, call_bytes: usize, reply_bytes: usize) -> bool {
        let config = self.config();
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

    /// Returns true if the time of a call that is not sent yet is over: the timers end it.
    fn is_overdue(&mut self, conn: ConnId, slot: SlotId, deadline: Instant) -> bool {
        let is_late = deadline.0 <= self.read_clock().0;
        is_late && self.conn(conn).is_some_and(|c| c.lane.proto().requester.is_reserved(slot))
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
        if let Some(gss) = c.gss_mut() {
            gss.forget(slot.xid());
        }
        let released = c.lane.proto().requester.release_reserved(slot);
        // One that has ended meanwhile has no slot: another call may have it.
        let Some(token) = released else { return };
        c.calls.free(slot);
        let end = CallEnd::Failed(CallFailure::NoMemory);
        self.end_call(conn, SlotToken { slot, token }, end);
    }
}
