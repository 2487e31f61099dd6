//! Fetches the Read chunks of arriving calls (RFC 5666 section 3.4): memory first, then RDMA Reads, never more than
//! the queue pair may have outstanding. Calls that cannot continue now are deferred and retried in whole turns; their
//! number is bounded by the calls in progress.

use crate::fabric::ConnId;
use crate::mem::{Buf, BulkPool, Share};
use crate::reactor::in_flight::read_buffers::SinkPools;
use crate::reactor::in_flight::read_ids::{Pulling, ReadSink};
use crate::reactor::in_flight::retry_entry::Waiting;
use crate::reactor::in_flight::upcalls::CallFrame;
#[cfg(feature = "gss")]
use crate::reactor::server::gss::Starved;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{ReplyTarget, RpcRefusal};
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use spinrpc_proto::events::{Output, SlotId};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::pull::PullChunk;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::responder::Pulled;

impl Reactor {
    /// A call with Read chunks arrived: its message waits in its slot while they are fetched.
    pub(in crate::reactor) fn begin_pull(&mut self, conn: ConnId, slot: SlotId, message: Buf) {
        let Some(c) = self.conn(conn) else { return };
        c.serves.put_message(slot, message);
        self.pull(conn, slot);
    }

    /// Defers a call, which is retried in whole turns. It is in the list at most once.
    pub(in crate::reactor) fn put_off(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        if !std::mem::replace(&mut c.serves.of(slot).waits, true) {
            self.wait(conn, Waiting::Message(Pulling::Call(slot)));
        }
    }

    /// Finds memory for the chunks of a call, unless it has it, and posts the next RDMA Reads.
    fn pull(&mut self, conn: ConnId, slot: SlotId) {
        if self.peer_takes_no_reads(conn) {
            return self.refuse_pull(conn, slot);
        }
        if !self.find_memory(conn, slot) {
            return self.wait_for_memory(conn, slot);
        }
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let room = usize::from(c.reads_room()).min(c.queue_room(core.fabric())) as u16;
        let Some((message, sinks)) = c.serves.fetched(slot) else { return };
        let Ok(view) = HeaderView::new_checked(message.bytes(), c.lane.proto().limits()) else {
            return;
        };
        let mut sink = ReadSink::new(core.fabric_mut(), conn, Pulling::Call, sinks);
        let asked = c.lane.proto().responder.pull(slot, &view, room, &mut sink);
        let (bytes, overrun) = sink.end();
        c.reads_outstanding += asked;
        c.count_read(bytes);
        core.stats().bytes_read += bytes;
        if overrun {
            return self.close_overrun(conn, "send queue");
        }
        if asked == 0 && c.lane.proto().responder.wants_reads(slot) {
            self.put_off(conn, slot);
        }
    }

    /// A call whose chunks fit into memory waits until others release memory, for at most `Config::memory_wait`, or until
    /// calls of its own peer do, which hold their share, without that limit: the
    /// holders may wait for an answer of the peer, which waits for this one. A call whose chunks exceed the whole
    /// memory gets ERR_CHUNK (`mem.arena_mib`).
    #[cold]
    fn wait_for_memory(&mut self, conn: ConnId, slot: SlotId) {
        self.stats().no_buffer += 1;
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let proto = c.lane.proto();
        let Some(plan) = proto.responder.pull_plan(slot) else { return };
        let pools = SinkPools::of(core.fabric(), conn, core.arena());
        let could_hold = pools.could_hold(plan.chunks().iter().map(|chunk| chunk.length as usize));
        drop(proto);
        if !could_hold {
            return self.refuse_pull(conn, slot);
        }
        let waits_for_own = self.is_beyond_share(conn, slot) || self.fills_own_sinks(conn);
        if waits_for_own || self.has_patience(conn, slot) {
            return self.put_off(conn, slot);
        }
        self.refuse_starved(conn, slot);
    }

    /// Returns true if the Read chunks of a call wait for other calls of its peer, which hold their share of memory: it
    /// waits as long as they do, because an error would end calls of a client whose server is merely slow.
    fn is_beyond_share(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return false };
        let proto = c.lane.proto();
        let Some(plan) = proto.responder.pull_plan(slot) else { return false };
        !admits_chunks(core.arena(), &c.share, plan.chunks())
    }

    /// Returns true if Reads of the connection are on their way to memory of its own (iWARP), which is free after them.
    fn fills_own_sinks(&mut self, conn: ConnId) -> bool {
        let has_own = self.fabric().memory(conn).read_sinks.is_some();
        has_own && self.conn(conn).is_some_and(|c| c.reads_outstanding > 0)
    }

    /// Returns true if a call may keep waiting for memory.
    fn has_patience(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let (now, ends) = (self.read_clock(), self.memory_wait_ends());
        self.conn(conn).is_some_and(|c| Instant(now.0) < c.serves.of(slot).patience.of(slot, ends))
    }

    /// Answers a call that has waited for memory too long.
    #[cold]
    fn refuse_starved(&mut self, conn: ConnId, slot: SlotId) {
        #[cfg(feature = "gss")]
        match self.starved(conn, slot) {
            Starved::Unprotected => {}
            Starved::Verifiable => {
                if let Some(c) = self.conn(conn) {
                    c.serves.of(slot).is_starved = true;
                }
                return self.put_off(conn, slot);
            }
            Starved::Hidden => return self.refuse_pull(conn, slot),
        }
        self.refuse_unread(conn, slot, &SYSTEM_ERR);
    }

    /// The peer has stated that zero RDMA Reads may be active at it (RFC 5666 section 6.2).
    fn peer_takes_no_reads(&mut self, conn: ConnId) -> bool {
        self.conn(conn).is_some_and(|c| c.negotiated.reads_max() == 0)
    }

    /// The Read chunks of this call can never be fetched: ERR_CHUNK. RDMA Reads posted earlier complete first, so
    /// that the memory of the call is no longer in use. A deferred call is refused when its turn comes, so that the
    /// list of deferred calls never names a free slot.
    #[cold]
    fn refuse_pull(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        if c.reads_outstanding > 0 || c.serves.of(slot).waits {
            return self.put_off(conn, slot);
        }
        self.refuse_unread(conn, slot, &RpcRefusal::NoRoom);
    }

    /// Answers a call that was not fetched.
    fn refuse_unread(&mut self, conn: ConnId, slot: SlotId, answer: &RpcRefusal) {
        let Some(c) = self.conn(conn) else { return };
        c.serves.clear_sinks(slot);
        let Some(message) = c.serves.take_message(slot) else { return };
        self.refuse(&ReplyTarget { conn, slot, message: message.bytes(), plain: false }, answer);
        self.repost(conn, message);
    }

    /// Finds memory for all Read chunks of the call; returns true if it has that.
    fn find_memory(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return false };
        let Conn { serves, share, lane, .. } = c;
        let proto = lane.proto();
        let Some(plan) = proto.responder.pull_plan(slot) else { return false };
        let Some(sinks) = serves.sinks(slot) else { return false };
        if sinks.count == plan.chunks().len() {
            return true;
        }
        let has_all = admits_chunks(core.arena(), share, plan.chunks())
            && sinks.fill(plan.chunks(), SinkPools::of(core.fabric(), conn, core.arena()));
        sinks.charge(core.arena(), share);
        has_all
    }
}

/// Returns true if a call that counts in this share may take memory for all of its Read chunks.
fn admits_chunks(bulk: &BulkPool, share: &Share, chunks: &[PullChunk]) -> bool {
    let lengths = chunks.iter().map(|chunk| chunk.length as usize);
    bulk.admits_all(std::iter::empty(), lengths, share)
}

/// Returns true if a call that counts in this share may take memory for its reply: the longest item that it takes back by
/// Write chunk, or a long reply.
pub(in crate::reactor) fn may_take(bulk: &BulkPool, share: &Share, view: &HeaderView<'_>) -> bool {
    let chunks = view.writes().chain(view.reply_chunk());
    let bytes = chunks.map(|chunk| chunk.segments().map(|s| s.length as usize).sum());
    bytes.max().is_none_or(|bytes| bulk.admits(bytes, share))
}

/// Ignores all output: the caller acts on the return value of the state machine.
struct Quiet;

impl Output for Quiet {}

impl Reactor {
    /// Continues with a deferred call. Returns it if it has everything it waited for.
    pub(in crate::reactor) fn resume_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let c = self.conn(conn)?;
        c.serves.of(slot).waits = false;
        #[cfg(feature = "gss")]
        if c.serves.of(slot).is_starved {
            return self.frame_starved(conn, slot);
        }
        let c = self.conn(conn)?;
        if c.lane.proto().responder.pull_plan(slot).is_some() {
            self.pull(conn, slot);
            return None;
        }
        if !c.lane.proto().responder.is_delivered(slot) {
            return None;
        }
        if !self.has_share_for_reply(conn, slot) {
            self.stats().no_buffer += 1;
            self.put_off(conn, slot);
            return None;
        }
        let c = self.conn(conn)?;
        let message = c.serves.take_message(slot)?;
        self.frame_call(conn, slot, message)
    }

    /// Returns true if the connection may take memory for the reply of a call whose message is in its slot.
    fn has_share_for_reply(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return true };
        let Some(message) = c.serves.message(slot).filter(|_| !c.serves.has_sinks(slot)) else {
            return true;
        };
        let proto = c.lane.proto();
        let view = HeaderView::new_checked(message.bytes(), proto.limits());
        view.is_ok_and(|view| may_take(core.arena(), &c.share, &view))
    }

    /// An RDMA Read of a call is done. Returns the call if that was the last one.
    pub(in crate::reactor) fn on_call_read(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let c = self.conn(conn)?;
        let message = c.serves.take_message(slot)?;
        let pulled = c.lane.proto().responder.on_read_done(slot, &mut Quiet);
        if pulled == Pulled::Complete {
            return self.frame_call(conn, slot, message);
        }
        c.serves.put_message(slot, message);
        if c.lane.proto().responder.wants_reads(slot) {
            self.pull(conn, slot);
        }
        None
    }
}
