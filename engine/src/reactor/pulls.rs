//! Fetching the Read chunks of arriving calls (RFC 5666 section 3.4): memory first, then RDMA
//! Reads, never more than the queue pair may have outstanding. What cannot go on now is put off
//! and tried again each turn; the calls in progress bound how much that can be.

use super::connection::{SinkPools, Sinks};
use super::core::{CoreCell, Reactor};
use super::ops::{CallFrame, ReplyTarget, Upcalls};
use super::replies::SYSTEM_ERR;
use crate::fabric::{ConnId, Fabric, RemoteSlice, SendWr, WrError, WrId};
use crate::mem::Buf;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::{Output, ReadRequest, SlotId};
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::responder::Pulled;

impl<F: Fabric> CoreCell<F> {
    /// Goes on with everything that was put off.
    pub(super) fn resume(&self, up: &mut impl Upcalls) {
        let waiting = self.reactor().put_off.len();
        for _ in 0..waiting {
            let resumed = self.reactor().resume_next();
            self.go_on(resumed, up);
        }
    }

    /// Goes on with a message that has arrived as far as it was asked for.
    pub(super) fn go_on(&self, message: Option<Arrived>, up: &mut impl Upcalls) {
        match message {
            Some(Arrived::Call(frame)) => self.deliver_call(frame, up),
            Some(Arrived::Reply(conn, slot)) => self.go_on_with_reply(conn, slot, up),
            None => {}
        }
    }
}

/// A message that can go on.
pub(super) enum Arrived {
    /// A call that is whole.
    Call(CallFrame),
    /// A reply.
    Reply(ConnId, SlotId),
}

impl<F: Fabric> Reactor<F> {
    /// A call with Read chunks arrived: its message waits in its slot while they are fetched.
    pub(super) fn begin_pull(&mut self, conn: ConnId, slot: SlotId, message: Buf) {
        self.note_arrival_of(conn, slot, message.bytes());
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].message = Some(message);
        self.pull(conn, slot);
    }

    /// A call cannot go on now; it is tried again each turn. It stands in the list once.
    pub(super) fn put_off(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        let hold = &mut c.serves[usize::from(slot.index)];
        if !std::mem::replace(&mut hold.put_off, true) {
            self.put_off.push_back((conn, Pulling::Call(slot)));
        }
    }

    fn resume_next(&mut self) -> Option<Arrived> {
        let (conn, pulling) = self.put_off.pop_front()?;
        let slot = match pulling {
            Pulling::Call(slot) => slot,
            Pulling::Reply(slot) => {
                self.resume_reply(conn, slot);
                return Some(Arrived::Reply(conn, slot));
            }
        };
        let c = self.conns.find(conn)?;
        c.serves[usize::from(slot.index)].put_off = false;
        if c.proto.responder.pull_plan(slot).is_some() {
            self.pull(conn, slot);
            return None;
        }
        if !c.proto.responder.is_delivered(slot) {
            return None;
        }
        let message = c.serves[usize::from(slot.index)].message.take()?;
        self.frame_call(conn, slot, message).map(Arrived::Call)
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
        let Ok(view) = HeaderView::new_checked(message.bytes(), c.proto.limits()) else { return };
        let fabric = &mut self.fabric;
        let mut sink = ReadSink::new(fabric, conn, Pulling::Call, sinks);
        let asked = c.proto.responder.pull(slot, &view, room, &mut sink);
        let (bytes, overrun) = (sink.bytes, sink.overrun);
        c.reads_outstanding += asked;
        c.moved.read += bytes;
        self.stats.bytes_read += bytes;
        if overrun {
            return self.close_overrun(conn, "send queue");
        }
        if asked == 0 && c.proto.responder.wants_reads(slot) {
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
        let Some(plan) = c.proto.responder.pull_plan(slot) else { return };
        let pools = SinkPools::of(&self.fabric, conn, &self.bulk);
        if !pools.could_hold(plan.chunks().iter().map(|chunk| chunk.length as usize)) {
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
        if let Ok(view) = HeaderView::new_checked(message.bytes(), c.proto.limits()) {
            let (xid, version) = (view.xid(), view.transport_version());
            c.proto.responder.abandon(slot);
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
        let Some(plan) = c.proto.responder.pull_plan(slot) else { return false };
        let Some(sinks) = &mut c.serves[usize::from(slot.index)].sinks else { return false };
        sinks.fill(plan.chunks(), SinkPools::of(&self.fabric, conn, &self.bulk))
    }

    /// An RDMA Read completed. A failed one means that the queue pair goes down, which ends the
    /// call.
    pub(super) fn on_read(
        &mut self,
        conn: ConnId,
        id: WrId,
        result: Result<(), WrError>,
    ) -> Option<Arrived> {
        let pulling = Pulling::of(id);
        let c = self.conns.find(conn)?;
        c.reads_outstanding = c.reads_outstanding.saturating_sub(1);
        result.ok()?;
        let slot = match pulling {
            Pulling::Call(slot) => slot,
            Pulling::Reply(slot) => {
                return self.on_reply_read(conn, slot).then_some(Arrived::Reply(conn, slot));
            }
        };
        let message = c.serves.get_mut(usize::from(slot.index))?.message.take()?;
        let pulled = c.proto.responder.on_read_done(slot, &mut Quiet);
        if pulled == Pulled::Complete {
            return self.frame_call(conn, slot, message).map(Arrived::Call);
        }
        c.serves[usize::from(slot.index)].message = Some(message);
        if c.proto.responder.wants_reads(slot) {
            self.pull(conn, slot);
        }
        None
    }
}

/// Whose chunks are fetched: slots of calls and of replies are counted apart, and a connection may
/// have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulling {
    Call(SlotId),
    Reply(SlotId),
}

/// Set in the name of an RDMA Read that is of a reply; the slot is in the lower bits.
const OF_REPLY: u64 = 1 << 48;

impl Pulling {
    fn wr_id(self) -> WrId {
        let (slot, kind) = match self {
            Self::Call(slot) => (slot, 0),
            Self::Reply(slot) => (slot, OF_REPLY),
        };
        WrId(kind | u64::from(slot.generation) << 16 | u64::from(slot.index))
    }

    fn of(id: WrId) -> Self {
        let slot = SlotId { index: id.0 as u16, generation: (id.0 >> 16) as u32 };
        if id.0 & OF_REPLY == 0 { Self::Call(slot) } else { Self::Reply(slot) }
    }
}

/// Posts RDMA Reads into the memory of one message.
pub(super) struct ReadSink<'a, F: Fabric> {
    fabric: &'a mut F,
    conn: ConnId,
    kind: fn(SlotId) -> Pulling,
    sinks: &'a mut Sinks,
    pub(super) bytes: u64,
    pub(super) overrun: bool,
}

impl<'a, F: Fabric> ReadSink<'a, F> {
    pub(super) fn new(
        fabric: &'a mut F,
        conn: ConnId,
        kind: fn(SlotId) -> Pulling,
        sinks: &'a mut Sinks,
    ) -> Self {
        Self { fabric, conn, kind, sinks, bytes: 0, overrun: false }
    }
}

impl<F: Fabric> Output for ReadSink<'_, F> {
    fn read(&mut self, read: ReadRequest) {
        let Some(bulk) = &mut self.sinks.bulks[usize::from(read.chunk)] else { return };
        let at = read.at as usize;
        let length = read.from.length;
        let from = RemoteSlice { handle: read.from.handle, length, offset: read.from.offset };
        let into = bulk.lease(at..at + length as usize);
        self.bytes += u64::from(length);
        let read = SendWr::Read { id: (self.kind)(read.slot).wr_id(), from, into };
        self.overrun |= self.fabric.post(self.conn, read).is_err();
    }
}

/// Hears nothing: the caller acts on what the state machine returns.
struct Quiet;

impl Output for Quiet {}
