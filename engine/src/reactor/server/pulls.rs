//! Fetching the Read chunks of arriving calls (RFC 5666 section 3.4): memory first, then RDMA
//! Reads, never more than the queue pair may have outstanding. What cannot go on now is put off
//! and tried again in whole turns; the calls in progress bound how much that can be.

use crate::fabric::ConnId;
use crate::mem::Buf;
use crate::reactor::pending::pulling::{Pulling, ReadSink};
use crate::reactor::pending::sinks::SinkPools;
use crate::reactor::pending::upcalls::CallFrame;
use crate::reactor::state::core::Reactor;
use crate::reactor::words::calls::ReplyTarget;
use crate::reactor::words::messages::SYSTEM_ERR;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::{Output, SlotId};
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::responder::Pulled;

impl Reactor {
    /// A call with Read chunks arrived: its message waits in its slot while they are fetched.
    pub(in crate::reactor) fn begin_pull(&mut self, conn: ConnId, slot: SlotId, message: Buf) {
        self.note_arrival_of(conn, slot, message.bytes());
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].message = Some(message);
        self.pull(conn, slot);
    }

    /// A call cannot go on now; it is tried again in whole turns. It stands in the list once.
    pub(in crate::reactor) fn put_off(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        let hold = &mut c.serves[usize::from(slot.index)];
        if !std::mem::replace(&mut hold.put_off, true) {
            self.put_off.push_back((conn, Pulling::Call(slot)));
        }
    }

    /// Finds memory for the chunks of a call, unless it has it, and posts the next RDMA Reads.
    fn pull(&mut self, conn: ConnId, slot: SlotId) {
        if self.peer_takes_no_reads(conn) {
            return self.refuse_pull(conn, slot);
        }
        if let Some(late_us) = self.late_before_pull(conn, slot) {
            return self.refuse_late_pull(conn, slot, late_us);
        }
        if !self.find_memory(conn, slot) {
            return self.wait_for_memory(conn, slot);
        }
        let Some(c) = self.conns.find(conn) else { return };
        let room = usize::from(c.reads_room()).min(c.send_room(&self.fabric)) as u16;
        let hold = &mut c.serves[usize::from(slot.index)];
        let (Some(message), Some(sinks)) = (&hold.message, &mut hold.sinks) else { return };
        let Ok(view) = HeaderView::new_checked(message.bytes(), c.lane.proto().limits()) else {
            return;
        };
        let fabric = &mut self.fabric;
        let mut sink = ReadSink::new(fabric, conn, Pulling::Call, sinks);
        let asked = c.lane.proto().responder.pull(slot, &view, room, &mut sink);
        let (bytes, overrun) = (sink.bytes, sink.overrun);
        c.reads_outstanding += asked;
        c.moved.read += bytes;
        self.stats.bytes_read += bytes;
        if overrun {
            return self.close_overrun(conn, "send queue");
        }
        if asked == 0 && c.lane.proto().responder.wants_reads(slot) {
            self.put_off(conn, slot);
        }
    }

    /// A call whose chunks can be held waits until others give memory back, for so long
    /// (`rpc.memory_wait_ms`): what they hold may wait for an answer of the peer, which waits for this
    /// one. One whose chunks cannot be held by all the memory there is gets ERR_CHUNK
    /// (`mem.arena_mib`, over iWARP `verbs.arena_mib`).
    #[cold]
    fn wait_for_memory(&mut self, conn: ConnId, slot: SlotId) {
        self.stats.no_buffer += 1;
        let Some(c) = self.conns.find(conn) else { return };
        let proto = c.lane.proto();
        let Some(plan) = proto.responder.pull_plan(slot) else { return };
        let pools = SinkPools::of(&self.fabric, conn, &self.bulk);
        let could_hold = pools.could_hold(plan.chunks().iter().map(|chunk| chunk.length as usize));
        drop(proto);
        if !could_hold {
            return self.refuse_pull(conn, slot);
        }
        if self.has_patience(conn, slot) {
            return self.put_off(conn, slot);
        }
        self.refuse_starved(conn, slot);
    }

    /// Says if a call may wait for memory any longer.
    fn has_patience(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let now = self.read_clock();
        let ends = Instant(now.0.saturating_add(self.memory_wait_ticks));
        let Some(c) = self.conns.find(conn) else { return false };
        Instant(now.0) < c.serves[usize::from(slot.index)].patience.of(slot, ends)
    }

    /// A call that has waited for memory for too long is answered, or put off while there is no room
    /// for that.
    #[cold]
    fn refuse_starved(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        if c.send_room(&self.fabric) == 0 || !c.has_spare_send() {
            return self.put_off(conn, slot);
        }
        let Some(message) = c.serves[usize::from(slot.index)].message.take() else { return };
        let limits = *c.lane.proto().limits();
        if let Ok(view) = HeaderView::new_checked(message.bytes(), &limits) {
            let (xid, version) = (view.xid(), view.transport_version());
            c.lane.proto().responder.abandon(slot);
            self.send_refusal(conn, xid, version, &SYSTEM_ERR);
        }
        self.repost(conn, message);
    }

    /// The peer has said that zero RDMA Reads may be active at it (RFC 5666 section 6.2).
    fn peer_takes_no_reads(&mut self, conn: ConnId) -> bool {
        self.conns.find(conn).is_some_and(|c| c.negotiated.reads_max() == 0)
    }

    /// The Read chunks of this call can never be fetched: ERR_CHUNK. RDMA Reads posted before that
    /// was known come to their end first, so that the memory of the call is nobody's any more; and
    /// a call that was put off is refused when its turn comes, so that no free slot is put off.
    #[cold]
    fn refuse_pull(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        let hold = &mut c.serves[usize::from(slot.index)];
        if c.reads_outstanding > 0 || hold.put_off {
            return self.put_off(conn, slot);
        }
        if let Some(sinks) = &mut hold.sinks {
            sinks.clear();
        }
        let Some(message) = hold.message.take() else { return };
        self.refuse_chunk(&ReplyTarget { conn, slot, message: message.bytes(), plain: false });
        self.repost(conn, message);
    }

    /// Whether the call has memory for all its Read chunks.
    fn find_memory(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some(c) = self.conns.find(conn) else { return false };
        let proto = c.lane.proto();
        let Some(plan) = proto.responder.pull_plan(slot) else { return false };
        let Some(sinks) = &mut c.serves[usize::from(slot.index)].sinks else { return false };
        sinks.fill(plan.chunks(), SinkPools::of(&self.fabric, conn, &self.bulk))
    }
}

/// Hears nothing: the caller acts on what the state machine returns.
struct Quiet;

impl Output for Quiet {}

impl Reactor {
    /// Goes on with a call that was put off. Returns it if that is all it waited for.
    pub(in crate::reactor) fn resume_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let c = self.conns.find(conn)?;
        c.serves[usize::from(slot.index)].put_off = false;
        if c.lane.proto().responder.pull_plan(slot).is_some() {
            self.pull(conn, slot);
            return None;
        }
        if !c.lane.proto().responder.is_delivered(slot) {
            return None;
        }
        let message = c.serves[usize::from(slot.index)].message.take()?;
        self.frame_call(conn, slot, message)
    }

    /// An RDMA Read of a call is done. Returns the call if that was the last one.
    pub(in crate::reactor) fn on_call_read(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let c = self.conns.find(conn)?;
        let message = c.serves.get_mut(usize::from(slot.index))?.message.take()?;
        let pulled = c.lane.proto().responder.on_read_done(slot, &mut Quiet);
        if pulled == Pulled::Complete {
            return self.frame_call(conn, slot, message);
        }
        c.serves[usize::from(slot.index)].message = Some(message);
        if c.lane.proto().responder.wants_reads(slot) {
            self.pull(conn, slot);
        }
        None
    }
}
