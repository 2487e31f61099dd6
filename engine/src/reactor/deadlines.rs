//! Deadline propagation, the extension of [`spinrpc_proto::deadlines`]: calls that say how much time
//! they have, and those that come too late to their service.
//!
//! As a client: the first call of a connection that is to name its time tries whether the server knows
//! the extension. It is kept until its answer, because a server that does not know it has executed
//! nothing, and the call is sent again without; meanwhile all others go without.
//!
//! As a server: the time counts from where the call is taken from the driver, by this side's clock.
//! Whether it is over is looked at where the call is handed to its service: when its Read chunks are
//! here, and it has waited for memory and room. Called by the client and the server half of a core.

use super::connection::Conn;
use super::core::{CoreCell, Reactor};
use super::ops::{CallFrame, CallOutcome, ReplyTarget, Upcalls};
use super::replies::release;
use super::versions::Offered;
use crate::fabric::{ConnId, Fabric};
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
        let late_by = self.reactor().lateness(&frame);
        let outcome = match late_by {
            None if self.deliver_option(&frame, up) => CallOutcome::Done,
            None => up.on_call(&mut frame),
            Some(late_us) => {
                self.reactor().refuse_late(&frame, late_us);
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
    fn lateness(&mut self, frame: &CallFrame) -> Option<u64> {
        let expiry = self.conns.find(frame.conn)?.expiry_of(frame.slot)?;
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
    fn refuse_late(&mut self, frame: &CallFrame, late_us: u64) {
        let Some(c) = self.conns.find(frame.conn) else { return };
        release(c, frame.slot);
        // A call is admitted only while there is one for its answer.
        let Some(mut answer) = c.sends.take() else {
            return self.close_overrun(frame.conn, "send buffers");
        };
        let xid = frame.message.bytes().first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let header = &mut answer.whole_mut()[..LATE_HEADER_BYTES];
        let written = c.proto.responder.reply_late(frame.slot, Xid(xid), late_us, header);
        if let Ok(length) = written {
            answer.set_range(0..length);
            self.stats.calls_late += 1;
            self.post_answer(frame.conn, answer, None);
        }
    }
}
