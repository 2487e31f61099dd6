//! Deadline propagation, the extension of [`spinrpc_proto::deadlines`]: calls that say how much time
//! they have, and those that come too late to their service.
//!
//! As a client: the first call of a connection that is to name its time tries whether the server knows
//! the extension. It is kept until its answer, because a server that does not know it has executed
//! nothing, and the call is sent again without; meanwhile all others go without.
//!
//! As a server: the time counts from where the call is taken from the driver, by this side's clock.
//! Whether it is over is looked at before its Read chunks are asked for, and again where the call is
//! handed to its service: when they are here, and it has waited for memory and room. Called by the
//! client and the server half of a core.

use super::connection::Conn;
use super::core::{CoreCell, Reactor};
use super::ops::{CallFrame, CallOutcome, ReplyTarget, Upcalls};
use super::replies::release;
use super::versions::Offered;
use crate::fabric::{ConnId, Fabric};
use crate::mem::Buf;
use spinrpc_proto::deadlines::{LATE_HEADER_BYTES, Support};
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::CallChunks;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rdma::v2::DEADLINE_EXTRA_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::time::Duration;

/// When the time of a call is over, and which call of its slot that is.
#[derive(Clone, Copy)]
pub(super) struct Expiry {
    generation: u32,
    at: Instant,
}

impl Expiry {
    /// Of no call: the first of a slot has generation one.
    pub(super) const NONE: Self = Self { generation: 0, at: Instant(u64::MAX) };

    /// That of the call in this slot: the one that is known, or this one from now on.
    pub(super) fn of(&mut self, slot: SlotId, at: Instant) -> Instant {
        if self.generation != slot.generation {
            *self = Self { generation: slot.generation, at };
        }
        self.at
    }
}

impl Conn {
    /// Whether a call that starts now may say how much time it has.
    pub(super) fn may_name_time(&self) -> bool {
        let requester = &self.proto.requester;
        let speaks_two = requester.negotiation().version() == TransportVersion::Two;
        speaks_two
            && match requester.deadlines() {
                Support::Known => true,
                Support::Unknown => self.trial.is_none(),
                Support::Refused => false,
            }
    }

    /// The time that a call names, in microseconds: none if its message would be longer than
    /// `room_bytes`, and none if it would have to be sent again and has chunks, which cannot be kept.
    pub(super) fn time_to_name(
        &self,
        left_us: Option<u64>,
        chunks: &CallChunks,
        stream_bytes: usize,
        room_bytes: usize,
    ) -> Option<u64> {
        let header_bytes = chunks.header_bytes_in(TransportVersion::Two) + DEADLINE_EXTRA_BYTES;
        let is_sure = self.proto.requester.deadlines() == Support::Known;
        let may = (is_sure || chunks.is_empty()) && header_bytes + stream_bytes <= room_bytes;
        left_us.filter(|_| may)
    }

    /// A call was started, with the RPC message `stream`: one that offers a version, or tries the
    /// extension, may have to be sent again.
    pub(super) fn keep_to_resend(&mut self, stream: &[u8], names_time: bool) {
        if let Some(offer) = &mut self.offer {
            offer.keep(stream);
        }
        if names_time && self.proto.requester.deadlines() == Support::Unknown {
            self.trial.get_or_insert_with(Offered::new).keep(stream);
        }
    }

    fn expiry_of(&self, slot: SlotId) -> Option<Instant> {
        let expiry = self.serves.get(usize::from(slot.index))?.expiry;
        (expiry.generation == slot.generation).then_some(expiry.at)
    }
}

impl<F: Fabric> CoreCell<F> {
    /// A call that has chunks, says how much time it has, or is one of an extension.
    #[inline(never)]
    pub(super) fn deliver_other_call(&self, mut frame: CallFrame, up: &mut impl Upcalls) {
        let late_by = self.reactor().lateness(frame.conn, frame.slot);
        let outcome = match late_by {
            None => match self.deliver_option(&frame, up) {
                Some(outcome) => outcome,
                None => up.on_call(&mut frame),
            },
            Some(late_us) => {
                self.reactor().refuse_late(frame.conn, frame.slot, &frame.message, late_us);
                CallOutcome::Done
            }
        };
        self.reactor().finish_call(frame, outcome);
    }
}

impl<F: Fabric> Reactor<F> {
    /// Microseconds until a deadline of this side's; none for a call that has none.
    pub(super) fn time_left(&self, deadline: Instant) -> Option<u64> {
        let ticks = deadline.0.saturating_sub(self.read_clock().0);
        (deadline.0 != u64::MAX).then(|| self.clock.to_ns(ticks) / 1000)
    }

    /// A call is here that goes to its service later: its time counts from now, if it names one.
    pub(super) fn note_arrival_of(&mut self, conn: ConnId, slot: SlotId, message: &[u8]) {
        let Some(c) = self.conns.find(conn) else { return };
        let view = HeaderView::new_checked(message, c.proto.limits());
        if let Some(remaining_us) = view.ok().and_then(|view| view.remaining_us()) {
            self.note_arrival(conn, slot, remaining_us);
        }
    }

    /// A call that has so much time is here. Nothing happens if that is known.
    #[cold]
    pub(super) fn note_arrival(&mut self, conn: ConnId, slot: SlotId, remaining_us: u64) {
        let now = self.read_clock();
        let ticks = self.clock.from_duration(Duration::from_micros(remaining_us));
        let Some(c) = self.conns.find(conn) else { return };
        if c.expiry_of(slot).is_none() {
            let at = Instant(now.0.saturating_add(ticks));
            c.serves[usize::from(slot.index)].expiry = Expiry { generation: slot.generation, at };
        }
    }

    /// For how many microseconds the time of a call has been over, if it is.
    pub(super) fn lateness(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let expiry = self.conns.find(conn)?.expiry_of(slot)?;
        let now = self.read_clock();
        let ticks = now.0.checked_sub(expiry.0)?;
        Some(self.clock.to_ns(ticks) / 1000)
    }

    /// How much time a call has left that named it.
    pub(super) fn remaining(&mut self, to: &ReplyTarget<'_>) -> Option<Duration> {
        let expiry = self.conns.find(to.conn)?.expiry_of(to.slot)?;
        let ticks = expiry.0.saturating_sub(self.read_clock().0);
        Some(Duration::from_nanos(self.clock.to_ns(ticks)))
    }

    /// Answers a call that is too late, and frees its slot.
    #[cold]
    fn refuse_late(&mut self, conn: ConnId, slot: SlotId, call: &Buf, late_us: u64) {
        let Some(c) = self.conns.find(conn) else { return };
        release(c, slot);
        // A call is admitted only while there is one for its answer.
        let Some(mut answer) = c.sends.take() else {
            return self.close_overrun(conn, "send buffers");
        };
        let xid = call.bytes().first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let header = &mut answer.whole_mut()[..LATE_HEADER_BYTES];
        let written = c.proto.responder.reply_late(slot, Xid(xid), late_us, header);
        if let Ok(length) = written {
            answer.set_range(0..length);
            self.stats.calls_late += 1;
            self.post_answer(conn, answer, None);
        }
    }

    /// For how long a call has been late of whose Read chunks nothing was asked for: nothing will be.
    pub(super) fn late_before_pull(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let hold = &self.conns.find(conn)?.serves[usize::from(slot.index)];
        let is_begun = hold.sinks.as_ref().is_some_and(|sinks| sinks.count > 0);
        if is_begun { None } else { self.lateness(conn, slot) }
    }

    /// Such a call is answered, or put off while there is no room for that.
    #[cold]
    pub(super) fn refuse_late_pull(&mut self, conn: ConnId, slot: SlotId, late_us: u64) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            return self.put_off(conn, slot);
        }
        let Some(message) = c.serves[usize::from(slot.index)].message.take() else { return };
        self.refuse_late(conn, slot, &message, late_us);
        self.repost(conn, message);
    }
}
