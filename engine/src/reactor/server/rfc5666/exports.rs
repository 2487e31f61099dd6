//! Replies that the client fetches (RFC 5666 sections 3.4, 3.8, 5.2 and 11). Their memory is exposed for reading,
//! byte for byte and under keys of their own, until RDMA_DONE arrives or its window is over (`Config::done_timeout`).
//! Exposures hold the memory meanwhile, whatever its owner does, and end with the connection at the latest.
//!
//! Used by `replies` when a reply fits nowhere else, and by the core when RDMA_DONE arrived or time has passed. The
//! responder decides how many replies may be exported, and which are kept back.

use crate::fabric::{Access, ConnId, ExposeError, RemoteSlice};
use crate::mem::Buf;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::rfc5666::ExportHold;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{ReplyTarget, RpcRefusal};
use crate::reactor::types::header_bytes::xid_of;
use crate::reactor::types::reply_plan::{EncodedReply, ReplyItem, ReplyPlan};
use spinrpc_proto::chunking::{CallChunks, ChunkOffer, Reduced};
use spinrpc_proto::events::{SlotId, WriteRequest};
use spinrpc_proto::exports::ReadReply;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::{CALL_SEGMENTS_MAX, ITEMS_MAX};
use spinrpc_proto::rdma::{HeaderRepr, HeaderView, RdmaError, ReadSegment};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape, Responder, ServeSlot};

/// Exposed memory of one reply.
pub(in crate::reactor::server) struct Exported {
    pub(in crate::reactor::server) hold: ExportHold,
    chunks: CallChunks,
    bytes: u64,
    deadline: Instant,
}

impl Exported {
    /// Answers the call with a header that names it.
    pub(in crate::reactor::server) fn reply(
        &self,
        responder: &mut Responder<Box<[ServeSlot]>>,
        (slot, view): (SlotId, &HeaderView<'_>),
        shape: &ReplyShape<'_>,
        header: &mut [u8],
        write: impl FnMut(WriteRequest),
    ) -> Result<ReadReply, ReplyRefused> {
        let mut reads = [ReadSegment::default(); CALL_SEGMENTS_MAX];
        let count = self.chunks.read_segments(&mut reads);
        responder.reply_by_read(slot, view, shape, &reads[..count], self.deadline, header, write)
    }
}

impl Reactor {
    /// Exposes what the client fetches, as the call brought no room for it: the items without a Write chunk, or, if the
    /// rest is too long for a message, the whole reply as a Position-Zero Read chunk (RFC 5666 sections 5.1 and 5.2).
    pub(in crate::reactor::server) fn export_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        (message, plan): (&mut [u8], &ReplyPlan),
        reply: &mut EncodedReply,
        place: &mut Option<Exported>,
    ) -> Result<(usize, usize), RpcRefusal> {
        let takes_reads = |c: &mut Conn| {
            c.negotiated.takes_read_chunks() && c.lane.proto().responder.may_export()
        };
        if !plan.allows_reads(reply.data()) || !self.conn(to.conn).is_some_and(takes_reads) {
            return Err(RpcRefusal::NoRoom);
        }
        if !self.admits_reply(to.conn, reply) {
            return Err(RpcRefusal::NoMemory);
        }
        let (hold, deadline) = (ExportHold::default(), self.export_deadline());
        let exported =
            place.insert(Exported { hold, chunks: CallChunks::EMPTY, bytes: 0, deadline });
        let placed = match plan.has_reads(reply.encoded(), reply.data()) {
            true => self.export_items(to.conn, (message, plan), reply, exported),
            false => self.export_whole(to, plan, reply, exported),
        };
        if placed.is_err() {
            self.revoke_exports(to.conn, &exported.hold);
        }
        placed
    }

    fn export_items(
        &mut self,
        conn: ConnId,
        (message, plan): (&mut [u8], &ReplyPlan),
        reply: &mut EncodedReply,
        exported: &mut Exported,
    ) -> Result<(usize, usize), RpcRefusal> {
        let (encoded, data) = (reply.encoded(), reply.data());
        let (at, bytes) = (plan.header_bytes() + plan.read_list_bytes(data), encoded.stream_bytes);
        // The client may have lowered its size since the call was deferred (RFC 5666 section 6.2).
        if at + bytes > plan.threshold_bytes() {
            return Err(RpcRefusal::NoRoom);
        }
        let mut reads = [Reduced::default(); ITEMS_MAX];
        let count = plan.reads_of(encoded, data).zip(&mut reads).map(|(r, p)| *p = r).count();
        for read in &reads[..count] {
            let Some(item) = reply.item_mut(read.index) else { continue };
            self.export(conn, read.position, item, exported)?;
        }
        if !reply.move_stream(&mut message[at..]) {
            message.copy_within(plan.stream_at()..plan.stream_at() + bytes, at);
        }
        Ok((at, bytes))
    }

    fn export_whole(
        &mut self,
        to: &ReplyTarget<'_>,
        plan: &ReplyPlan,
        reply: &mut EncodedReply,
        exported: &mut Exported,
    ) -> Result<(usize, usize), RpcRefusal> {
        let mut whole = reply.take_stream().ok_or(RpcRefusal::NoRoom)?;
        let at = plan.header_bytes() + plan.read_chunk_bytes(whole.len());
        if at > plan.long_header_bytes_max() {
            return Err(RpcRefusal::NoRoom);
        }
        whole.bytes_mut()[..4].copy_from_slice(&xid_of(to.message).0.to_be_bytes());
        self.export(to.conn, 0, &mut ReplyItem::Owned(whole), exported)?;
        Ok((at, 0))
    }

    /// Exposes memory where it lies, or, outside of the connection's memory, through a copy there, and names it in the
    /// Read list. A client with the same configuration would drop a reply with more segments or bytes than that allows.
    fn export(
        &mut self,
        conn: ConnId,
        position: u32,
        memory: &mut ReplyItem,
        exported: &mut Exported,
    ) -> Result<(), RpcRefusal> {
        let bytes = memory.bytes().len();
        let lease = memory.lease(0, bytes);
        let mut exposed = self.fabric_mut().expose(conn, lease, Access::RemoteRead, None);
        if let Err(ExposeError::Foreign) = exposed {
            let copy = self.fabric_mut().bulk(conn, bytes);
            let mut copy = copy.ok_or(RpcRefusal::NoMemory)?;
            copy.copy_from(0, memory.bytes());
            self.stats().copies += 1;
            let lease = copy.lease(0..bytes);
            exposed = self.fabric_mut().expose(conn, lease, Access::RemoteRead, None);
        }
        let RemoteSlice { handle, length, offset } = exposed.map_err(|_| RpcRefusal::NoMemory)?;
        exported.hold.add(handle);
        let segment_bytes = self.config().segment_bytes() as u32;
        let offer = ChunkOffer { handle, length, offset, segment_bytes };
        exported.bytes += u64::from(length);
        let limits = self.config().peer_limits();
        let taken = exported.chunks.push_read(position, offer)
            && exported.chunks.segment_count() <= usize::from(limits.segments_max)
            && exported.bytes <= u64::from(limits.payload_bytes_max);
        taken.then_some(()).ok_or(RpcRefusal::NoRoom)
    }

    /// Sends a reply that the client fetches, unless an earlier RDMA_DONE has to come first.
    pub(in crate::reactor::server) fn post_exported(
        &mut self,
        to: &ReplyTarget<'_>,
        exported: &mut Exported,
        (message, invalidate): (Buf, Option<u32>),
        is_kept: bool,
    ) {
        let Some(c) = self.conn(to.conn) else { return };
        c.put_export(to.slot, std::mem::take(&mut exported.hold));
        if !is_kept {
            return self.post_read_list(to.conn, message, invalidate);
        }
        c.keep_back(to.slot, (message, invalidate), exported.deadline);
        self.stats().replies_kept_back += 1;
        self.wake_by(exported.deadline);
    }

    fn post_read_list(&mut self, conn: ConnId, message: Buf, invalidate: Option<u32>) {
        self.stats().replies_exported += 1;
        let deadline = self.export_deadline();
        self.wake_by(deadline);
        self.post(conn, message, Posted::Answer(invalidate));
    }

    /// Sends the replies that were kept back, as far as their turn has come.
    fn go_on_with_kept(&mut self, conn: ConnId) {
        let deadline = self.export_deadline();
        while let Some((message, invalidate)) = self.conn(conn).and_then(|c| c.take_kept(deadline))
        {
            self.post_read_list(conn, message, invalidate);
        }
    }

    /// Gives up the replies that were kept back for too long, as clients may never say RDMA_DONE: ERR_CHUNK.
    fn give_up_kept(&mut self, conn: ConnId, now: Instant) {
        while let Some((slot, xid)) = self.conn(conn).and_then(|c| c.give_up_kept(now)) {
            self.end_export(conn, slot);
            self.emit_error(conn, xid, 1, RdmaError::Chunk);
        }
        let next = self.conn(conn).and_then(|c| c.kept_deadline());
        self.wake_by(next.unwrap_or(Instant(u64::MAX)));
    }

    /// Reads the clock: the turn's time stamp may be old, and a client that reads after its window loses its
    /// connection.
    fn export_deadline(&self) -> Instant {
        self.in_ticks(self.done_timeout_ticks())
    }

    pub(in crate::reactor::server) fn revoke_exports(&mut self, conn: ConnId, hold: &ExportHold) {
        for handle in hold.handles().iter().rev() {
            // The driver has the memory for as long as the peer can reach it.
            self.fabric_mut().revoke(conn, *handle);
        }
    }

    /// The client has fetched a reply, or its window is over.
    fn end_export(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        if let Some(hold) = c.take_export(slot) {
            self.revoke_exports(conn, &hold);
        }
    }

    /// RDMA_DONE came for a reply.
    #[cold]
    pub(in crate::reactor) fn on_done(&mut self, conn: ConnId, slot: SlotId) {
        self.stats().dones_received += 1;
        self.end_export(conn, slot);
        self.go_on_with_kept(conn);
    }

    /// Ends exports that have lasted too long (RFC 5666 section 11): a client that still reads one loses its
    /// connection; other clients are not affected.
    pub(in crate::reactor) fn expire_exports(&mut self, now: Instant) {
        if self.config().exports_max() == 0 {
            return;
        }
        for index in 0..self.conns().places() {
            let Some(c) = self.conns().at(index) else { continue };
            let conn = c.id;
            while let Some(slot) = self.overdue_export(conn, now) {
                self.stats().exports_expired += 1;
                self.end_export(conn, slot);
            }
            self.go_on_with_kept(conn);
            self.give_up_kept(conn, now);
            if let Some(c) = self.conns().at(index) {
                let next = c.lane.proto().responder.next_export_deadline();
                self.wake_by(next);
            }
        }
    }

    fn overdue_export(&mut self, conn: ConnId, now: Instant) -> Option<SlotId> {
        self.conn(conn)?.lane.proto().responder.overdue_export(now)
    }

    /// Sends RDMA_DONE for the Read chunks of a call. The caller has checked that there is room.
    #[cold]
    pub(in crate::reactor) fn emit_done_after_call(&mut self, conn: ConnId, xid: Xid) {
        let Some(c) = self.conn(conn) else { return };
        let credits = c.lane.proto().responder.grant();
        match c.done_message(&HeaderRepr::done(xid, credits)) {
            Some(message) => self.post(conn, message, Posted::Done),
            None => self.close_overrun(conn, "send buffers"),
        }
    }
}

impl Conn {
    fn done_message(&mut self, header: &HeaderRepr<'_>) -> Option<Buf> {
        let mut message = self.sends.take()?;
        let length = header.emit(message.whole_mut());
        message.set_range(0..length);
        Some(message)
    }
}
