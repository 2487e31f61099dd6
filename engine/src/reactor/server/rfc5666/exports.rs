//! Replies that the client fetches (RFC 5666 sections 3.4, 3.8, 5.2 and 11). Their memory is exposed for reading,
//! byte for byte and under keys of their own, until RDMA_DONE arrives or its window is over (`Config::done_timeout`).
//! Exposures hold the memory meanwhile, whatever its owner does, and end with the connection at the latest.
//!
//! Used by `replies` when a reply fits nowhere else, and by the core when RDMA_DONE arrived or time has passed. The
//! responder decides how many replies may be exported, and which are kept back.

use crate::fabric::{Access, ConnId, ExposeError, RemoteSlice};
use crate::mem::{Buf, Bulk};
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::rfc5666::{ExportHold, KeptReply};
use crate::reactor::server::replies::{Stage, WriteSink};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::ReplyTarget;
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::{SYSTEM_ERR, xid_of};
use crate::reactor::types::reply_plan::{Form, ReplyData, ReplyItem, ReplyPlan};
use spinrpc_proto::chunking::{CallChunks, ChunkOffer, Encoded, Reduced};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::{CALL_SEGMENTS_MAX, ITEMS_MAX};
use spinrpc_proto::rdma::{HeaderRepr, HeaderView, RdmaError, ReadSegment, set_credits};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape};

/// A reply that is to be fetched, before its memory is exposed.
struct ReadStage {
    message: Buf,
    plan: ReplyPlan,
    /// Offset of the stream in the message; the transport header will end there.
    stream_at: usize,
    /// The whole RPC message, when that is fetched.
    whole: Option<ReplyItem>,
}

/// Exposed memory of one reply.
struct Exported {
    hold: ExportHold,
    chunks: CallChunks,
    bytes: u64,
}

/// Reason why a reply cannot be exported.
enum CannotExport {
    /// No key or no memory is left now.
    NoMemory,
    /// A client with the same configuration would drop the reply, because it has too many segments or bytes; or the
    /// client has stated that it reads nothing.
    TooMuch,
}

impl CoreCell {
    /// The call brought no room for a reply of this size. If the client may fetch it, it gets the items as Read
    /// chunks, or, if the rest is still too long, the whole reply as one Read chunk; otherwise ERR_CHUNK.
    pub(in crate::reactor) fn place_read_reply(
        &self,
        to: &ReplyTarget<'_>,
        mut stage: Stage,
        first: &Encoded,
        data: ReplyData,
        draft: &Draft<'_>,
    ) {
        let plan = stage.plan;
        if !plan.allows_reads(&data) || !self.may_export(to.conn) {
            drop(stage);
            return self.reactor().refuse_chunk(to);
        }
        if !self.reactor().admits_reply(to.conn, &data, None) {
            drop(stage);
            return self.reactor().refuse_for_memory(to);
        }
        let stream_at = plan.header_bytes() + plan.read_list_bytes(&data);
        // With short segments the list alone may be longer than a message.
        if let Some(room_bytes) = plan.threshold_bytes().checked_sub(stream_at) {
            let room = &mut stage.message.whole_mut()[stream_at..][..room_bytes];
            let encoded = plan.encode(room, &data, Form::ByRead, draft);
            if encoded.fits && plan.reads_of(&encoded, &data).next().is_some() {
                let stage = ReadStage { message: stage.message, plan, stream_at, whole: None };
                return self.reactor().export_and_emit(to, stage, &encoded, data);
            }
        }
        let has_share = self.reactor().admits_stream(to.conn, &data, first.stream_bytes);
        let whole = has_share.then(|| self.private_bulk(to.conn, first.stream_bytes)).flatten();
        let Some(mut whole) = whole else {
            drop(stage);
            return self.reactor().refuse_for_memory(to);
        };
        let encoded = plan.encode(whole.bytes_mut(), &data, Form::Direct, draft);
        if !encoded.fits {
            drop(stage);
            return self.reactor().refuse(to, &SYSTEM_ERR);
        }
        self.reactor().export_whole(to, stage, whole, &encoded, data);
    }

    fn may_export(&self, conn: ConnId) -> bool {
        self.reactor().conn(conn).is_some_and(|c| c.lane.proto().responder.may_export())
    }
}

impl Reactor {
    /// A deferred reply that another thread encoded for the client to fetch.
    pub(in crate::reactor) fn place_encoded_read(
        &mut self,
        to: &ReplyTarget<'_>,
        mut stage: Stage,
        mut stream: Bulk,
        encoded: Encoded,
        data: ReplyData,
    ) {
        let plan = stage.plan;
        if !plan.allows_reads(&data) {
            drop(stage);
            return self.refuse_chunk(to);
        }
        if encoded.items_missing || !encoded.fits {
            drop(stage);
            return self.refuse(to, &SYSTEM_ERR);
        }
        if !self.admits_reply(to.conn, &data, Some(&stream)) {
            drop(stage);
            return self.refuse_for_memory(to);
        }
        stream.set_len(encoded.stream_bytes);
        if plan.reads_of(&encoded, &data).next().is_none() {
            return self.export_whole(to, stage, stream, &encoded, data);
        }
        let stream_at = plan.header_bytes() + plan.read_list_bytes(&data);
        // The client may have lowered its size since the call was deferred (RFC 5666 section 6.2).
        if stream_at + stream.len() > plan.threshold_bytes() {
            drop(stage);
            return self.refuse_chunk(to);
        }
        stage.message.whole_mut()[stream_at..][..stream.len()].copy_from_slice(stream.bytes());
        let stage = ReadStage { message: stage.message, plan, stream_at, whole: None };
        self.export_and_emit(to, stage, &encoded, data);
    }

    /// A reply that is one Position-Zero Read chunk (RFC 5666 sections 5.1 and 5.2).
    fn export_whole(
        &mut self,
        to: &ReplyTarget<'_>,
        stage: Stage,
        mut whole: Bulk,
        encoded: &Encoded,
        data: ReplyData,
    ) {
        let plan = stage.plan;
        let stream_at = plan.header_bytes() + plan.read_chunk_bytes(whole.len());
        if stream_at > plan.long_header_bytes_max() {
            drop(stage);
            return self.refuse_chunk(to);
        }
        let xid = to.message.first_chunk::<4>().copied().unwrap_or_default();
        whole.bytes_mut()[..4].copy_from_slice(&xid);
        self.charge_reply(to.conn, &ReplyData::new(), Some(&whole));
        let whole = Some(ReplyItem::Owned(whole));
        let stage = ReadStage { message: stage.message, plan, stream_at, whole };
        self.export_and_emit(to, stage, encoded, data);
    }

    /// Exposes the parts that the client fetches, and posts the RDMA Writes of a reply and its Send, unless that has
    /// to wait.
    fn export_and_emit(
        &mut self,
        to: &ReplyTarget<'_>,
        mut stage: ReadStage,
        encoded: &Encoded,
        mut data: ReplyData,
    ) {
        self.charge_reply(to.conn, &data, None);
        let exported = self.export_reply(to, &mut stage, encoded, &mut data);
        match exported {
            Ok(exported) => self.reply_by_read(to, stage, exported, encoded, data),
            Err(CannotExport::TooMuch) => {
                drop(stage);
                self.refuse_chunk(to);
            }
            Err(CannotExport::NoMemory) => {
                drop(stage);
                self.refuse_for_memory(to);
            }
        }
    }

    fn refuse_for_memory(&mut self, to: &ReplyTarget<'_>) {
        self.stats().no_buffer += 1;
        self.refuse(to, &SYSTEM_ERR);
    }

    fn export_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        stage: &mut ReadStage,
        encoded: &Encoded,
        data: &mut ReplyData,
    ) -> Result<Exported, CannotExport> {
        let takes_reads = self.conn(to.conn).map(|c| c.negotiated.takes_read_chunks());
        if takes_reads != Some(true) {
            return Err(CannotExport::TooMuch);
        }
        let mut exported =
            Exported { hold: ExportHold::default(), chunks: CallChunks::EMPTY, bytes: 0 };
        let done = match &mut stage.whole {
            Some(whole) => self.export(to.conn, 0, whole, &mut exported),
            None => self.export_items(to.conn, &stage.plan, encoded, data, &mut exported),
        };
        if let Err(why) = done {
            self.revoke_exports(to.conn, &exported.hold);
            return Err(why);
        }
        Ok(exported)
    }

    fn export_items(
        &mut self,
        conn: ConnId,
        plan: &ReplyPlan,
        encoded: &Encoded,
        data: &mut ReplyData,
        exported: &mut Exported,
    ) -> Result<(), CannotExport> {
        let mut reads = [Reduced::default(); ITEMS_MAX];
        let count = plan.reads_of(encoded, data).zip(&mut reads).map(|(r, p)| *p = r).count();
        for read in &reads[..count] {
            let Some(item) = data.item_mut(read.index) else { continue };
            self.export(conn, read.position, item, exported)?;
        }
        Ok(())
    }

    /// Exposes memory where it lies, or, outside of the connection's memory, through a copy there.
    fn export(
        &mut self,
        conn: ConnId,
        position: u32,
        memory: &mut ReplyItem,
        exported: &mut Exported,
    ) -> Result<(), CannotExport> {
        let bytes = memory.bytes().len();
        let lease = memory.lease(0, bytes);
        let mut exposed = self.fabric_mut().expose(conn, lease, Access::RemoteRead, None);
        if let Err(ExposeError::Foreign) = exposed {
            let copy = self.fabric_mut().bulk(conn, bytes);
            let mut copy = copy.ok_or(CannotExport::NoMemory)?;
            copy.copy_from(0, memory.bytes());
            self.stats().copies += 1;
            let lease = copy.lease(0..bytes);
            exposed = self.fabric_mut().expose(conn, lease, Access::RemoteRead, None);
        }
        self.offer(position, exposed.map_err(|_| CannotExport::NoMemory)?, exported)
    }

    /// Names exposed memory in the Read list.
    fn offer(
        &self,
        position: u32,
        remote: RemoteSlice,
        exported: &mut Exported,
    ) -> Result<(), CannotExport> {
        exported.hold.add(remote.handle);
        let RemoteSlice { handle, length, offset } = remote;
        let segment_bytes = self.config().segment_bytes() as u32;
        let offer = ChunkOffer { handle, length, offset, segment_bytes };
        exported.bytes += u64::from(length);
        let limits = self.config().peer_limits();
        let taken = exported.chunks.push_read(position, offer)
            && exported.chunks.segment_count() <= usize::from(limits.segments_max)
            && exported.bytes <= u64::from(limits.payload_bytes_max);
        taken.then_some(()).ok_or(CannotExport::TooMuch)
    }

    fn reply_by_read(
        &mut self,
        to: &ReplyTarget<'_>,
        stage: ReadStage,
        exported: Exported,
        encoded: &Encoded,
        data: ReplyData,
    ) {
        let deadline = self.export_deadline();
        let Some((c, core)) = self.conn_and_core(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.lane.proto().limits()) else { return };
        c.release(to.slot);
        let ReadStage { mut message, plan, stream_at, whole } = stage;
        let mut placed = [0; ITEMS_MAX];
        for item in encoded.reduced() {
            let (index, bytes) = (usize::from(item.index), item.length as usize);
            placed[index] = if plan.goes_by_write(index, bytes, &data) { item.length } else { 0 };
        }
        let shape = ReplyShape { placed: &placed[..data.count()], long_bytes: None };
        let mut reads = [ReadSegment::default(); CALL_SEGMENTS_MAX];
        let count = exported.chunks.read_segments(&mut reads);
        let stream_bytes = if whole.is_some() { 0 } else { encoded.stream_bytes };
        let (header, stream) = message.whole_mut().split_at_mut(stream_at);
        if whole.is_none() {
            stream[..4].copy_from_slice(&view.xid().0.to_be_bytes());
        }
        let mut sink = WriteSink::new(core.fabric_mut(), to.conn, data, None);
        let replied = c.lane.proto().responder.reply_by_read(
            to.slot,
            &view,
            &shape,
            &reads[..count],
            deadline,
            header,
            &mut sink,
        );
        let (bytes_written, overrun) = sink.end();
        core.stats().bytes_written += bytes_written;
        c.count_written(bytes_written);
        let reply = match replied {
            Ok(reply) => reply,
            Err(why) => {
                drop(message);
                self.revoke_exports(to.conn, &exported.hold);
                return self.lose_export(to, view.xid(), why);
            }
        };
        c.dialect.put_export(to.slot, exported.hold);
        message.set_range(stream_at - reply.header_bytes..stream_at + stream_bytes);
        if overrun {
            return self.close_overrun(to.conn, "send queue");
        }
        let invalidate = self.key_to_invalidate(to.conn, &view);
        match reply.kept {
            true => {
                self.keep_back(to.conn, KeptReply { slot: to.slot, message, invalidate, deadline })
            }
            false => self.post_read_list(to.conn, message, invalidate),
        }
    }

    fn lose_export(&mut self, to: &ReplyTarget<'_>, xid: Xid, why: ReplyRefused) {
        match why {
            ReplyRefused::Stale => self.stats().stale += 1,
            ReplyRefused::ChunkTooSmall => self.emit_error(to.conn, xid, 1, RdmaError::Chunk),
        }
    }

    fn keep_back(&mut self, conn: ConnId, kept: KeptReply) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        core.stats().replies_kept_back += 1;
        // It keeps its place in the send queue.
        c.serves.reserve(kept.slot, 1);
        c.lane.reserve(1);
        core.wake_by(kept.deadline);
        c.dialect.kept.push_back(kept);
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
        while let Some(c) = self.conn(conn) {
            let Some(slot) = c.dialect.kept.front().map(|kept| kept.slot) else { return };
            let Some(credits) = c.lane.proto().responder.send_kept(slot, deadline) else { return };
            let Some(kept) = c.dialect.kept.pop_front() else { return };
            c.release(slot);
            let KeptReply { mut message, invalidate, .. } = kept;
            set_credits(message.bytes_mut(), credits);
            self.post_read_list(conn, message, invalidate);
        }
    }

    /// Gives up the replies that were kept back for too long, as clients may never say RDMA_DONE: ERR_CHUNK.
    fn give_up_kept(&mut self, conn: ConnId, now: Instant) {
        while let Some(c) = self.conn(conn) {
            let is_over = |kept: &mut KeptReply| kept.deadline <= now;
            let Some(kept) = c.dialect.kept.pop_front_if(is_over) else { break };
            let KeptReply { slot, message, .. } = kept;
            let xid = xid_of(message.bytes());
            c.lane.proto().responder.give_up_kept(slot);
            c.release(slot);
            drop(message);
            self.end_export(conn, slot);
            self.emit_error(conn, xid, 1, RdmaError::Chunk);
        }
        let next = self.conn(conn).and_then(|c| c.dialect.kept.front()).map(|kept| kept.deadline);
        self.wake_by(next.unwrap_or(Instant(u64::MAX)));
    }

    /// Reads the clock: the turn's time stamp may be old, and a client that reads after its window loses its
    /// connection.
    fn export_deadline(&self) -> Instant {
        self.in_ticks(self.dialect().done_timeout_ticks())
    }

    fn revoke_exports(&mut self, conn: ConnId, hold: &ExportHold) {
        for handle in hold.handles().iter().rev() {
            // The driver has the memory for as long as the peer can reach it.
            self.fabric_mut().revoke(conn, *handle);
        }
    }

    /// The client has fetched a reply, or its window is over.
    fn end_export(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        if let Some(hold) = c.dialect.take_export(slot) {
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
