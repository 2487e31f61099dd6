//! Calls that state their remaining time ([`spinrpc_proto::deadlines`]), and those that are too late for their
//! service.
//!
//! The time counts from the moment the call is taken from the driver, by this side's clock. It is checked before its
//! Read chunks are requested, and again when the call is passed to its service, after the wait for chunks, memory and
//! room.

use crate::fabric::ConnId;
use crate::reactor::pending::expiry::Expiry;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::calls::ReplyTarget;
use crate::reactor::words::messages::SYSTEM_ERR;
use spinrpc_proto::deadlines::LATE_HEADER_BYTES;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::output::SlotId;
use spinrpc_proto::rdma::v1::HeaderView;
use std::time::Duration;

impl Conn {
    fn expiry_of(&self, slot: SlotId) -> Option<Instant> {
        let expiry = self.serves.get(usize::from(slot.index))?.expiry;
        (expiry.generation == slot.generation).then_some(expiry.at)
    }
}

impl Reactor {
    /// A call has arrived that goes to its service later: its time counts from now, if stated.
    pub(in crate::reactor) fn note_arrival_of(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: &[u8],
    ) {
        let Some(c) = self.conns.find(conn) else { return };
        let view = HeaderView::new_checked(message, c.lane.proto().limits());
        if let Some(remaining_us) = view.ok().and_then(|view| view.remaining_us()) {
            self.note_arrival(conn, slot, remaining_us);
        }
    }

    /// Notes the arrival of a call with this much time. Does nothing if that is known.
    #[cold]
    pub(in crate::reactor) fn note_arrival(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        remaining_us: u64,
    ) {
        let now = self.read_clock();
        let ticks = self.clock.from_duration(Duration::from_micros(remaining_us));
        let Some(c) = self.conns.find(conn) else { return };
        if c.expiry_of(slot).is_none() {
            let at = Instant(now.0.saturating_add(ticks));
            c.serves[usize::from(slot.index)].expiry = Expiry { generation: slot.generation, at };
        }
    }

    /// Microseconds since the time of a call was over, if it is.
    pub(in crate::reactor) fn lateness(&mut self, conn: ConnId, slot: SlotId) -> Option<u64> {
        let expiry = self.conns.find(conn)?.expiry_of(slot)?;
        let now = self.read_clock();
        let ticks = now.0.checked_sub(expiry.0)?;
        Some(self.clock.to_ns(ticks) / 1000)
    }

    /// Remaining time of a call that states its time.
    pub(in crate::reactor) fn remaining(&mut self, to: &ReplyTarget<'_>) -> Option<Duration> {
        let expiry = self.conns.find(to.conn)?.expiry_of(to.slot)?;
        let ticks = expiry.0.saturating_sub(self.read_clock().0);
        Some(Duration::from_nanos(self.clock.to_ns(ticks)))
    }

    /// Answers a call that is too late, and frees its slot.
    #[cold]
    pub(in crate::reactor) fn refuse_late(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        call: &[u8],
        late_us: u64,
    ) {
        let Some(c) = self.conns.find(conn) else { return };
        c.release(slot);
        // A call is admitted only while there is one for its answer.
        let Some(mut answer) = c.sends.take() else {
            return self.close_overrun(conn, "send buffers");
        };
        let xid = call.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let header = &mut answer.whole_mut()[..LATE_HEADER_BYTES];
        let written = c.lane.proto().responder.reply_late(slot, Xid(xid), late_us, header);
        if let Ok(length) = written {
            answer.set_range(0..length);
            self.stats.calls_late += 1;
            self.post_answer(conn, answer, None);
        }
    }

    /// As [`Reactor::lateness`], for a call whose Read chunks were not requested yet; they will not be.
    pub(in crate::reactor) fn late_before_pull(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<u64> {
        let hold = &self.conns.find(conn)?.serves[usize::from(slot.index)];
        let is_begun = hold.sinks.as_ref().is_some_and(|sinks| sinks.count > 0);
        if is_begun { None } else { self.lateness(conn, slot) }
    }

    /// Answers such a call, or defers that while there is no room for the answer.
    #[cold]
    pub(in crate::reactor) fn refuse_late_pull(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        late_us: u64,
    ) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            return self.put_off(conn, slot);
        }
        let Some(message) = c.serves[usize::from(slot.index)].message.take() else { return };
        self.refuse_late(conn, slot, message.bytes(), late_us);
        self.repost(conn, message);
    }

    /// Answers a deferred call that is too late for its service. A caller that stated no time does not understand
    /// such an answer, and gets SYSTEM_ERR.
    #[cold]
    pub(in crate::reactor) fn refuse_too_late(&mut self, to: &ReplyTarget<'_>) {
        let names_time = self.conns.find(to.conn).is_some_and(|c| c.expiry_of(to.slot).is_some());
        if !names_time {
            return self.refuse(to, &SYSTEM_ERR);
        }
        let late_us = self.lateness(to.conn, to.slot).unwrap_or(0);
        self.refuse_late(to.conn, to.slot, to.message, late_us);
    }
}
