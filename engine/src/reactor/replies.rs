//! The server half of a core: bringing calls to their service, fetching their Read chunks, and
//! sending replies.

use super::connection::{Conn, Sinks};
use super::core::{CoreCell, Reactor};
use super::deferred::{DeferTicket, Room};
use super::mailbox::{DeferredAnswer, DeferredReply, PostReply};
use super::memory::DEFERRED_MAX;
use super::negotiate::Negotiated;
use super::ops::{Admitted, CallFrame, CallOutcome, Encode, ReplyTarget, RpcRefusal, Upcalls};
use super::reply_plan::{Form, ReplyData, ReplyPlan};
use crate::config::Config;
use crate::fabric::{ConnId, Fabric, RemoteSlice, SendWr};
use crate::mem::{Buf, Bulk};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::{Output, SlotId, WriteRequest, WriteSource};
use spinrpc_proto::payload::{Encoded, StreamWriter};
use spinrpc_proto::profile::Profile;
use spinrpc_proto::rdma::v1::{HeaderView, MessageType, insert_alignment};
use spinrpc_proto::rdma::{RdmaError, Segment};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape};
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::version::TransportVersion;
use std::sync::Arc;

/// The RPC header of a successful reply without verifier (RFC 5531 section 9): XID (put in when it
/// is posted), REPLY, MSG_ACCEPTED, AUTH_NONE of length zero, SUCCESS.
const SUCCESS_HEADER: [u8; 24] = {
    let mut header = [0; 24];
    header[7] = 1;
    header
};

/// A reply whose stream is being written. It holds the send buffer of its call: dropped before the
/// call is answered in another way, which takes one.
pub(super) struct Stage {
    pub(super) message: Buf,
    pub(super) plan: ReplyPlan,
}

/// Where the stream of a finished reply is.
enum StreamAt {
    /// In the message, behind the room for the header.
    Message(Buf),
    /// In memory that goes by Reply chunk; the message carries the header only.
    Long(Buf, Bulk),
}

impl<F: Fabric> CoreCell<F> {
    /// Runs the service of a call, then gives its receive buffer back to the driver.
    #[inline]
    pub(super) fn deliver_call(&self, mut frame: CallFrame, up: &mut impl Upcalls) {
        if !frame.admitted.plain {
            return self.deliver_other_call(frame, up);
        }
        let outcome = up.on_call(&mut frame);
        let CallFrame { conn, slot, message, .. } = frame;
        self.reactor().finish_plain_call(conn, slot, message, outcome);
    }

    /// The common case: the call had no chunks, and the reply has no data items.
    #[inline]
    pub(super) fn send_plain_reply(&self, to: &ReplyTarget<'_>, encode: Encode<'_>) {
        match version_of(to.message) {
            TransportVersion::One if self.send_short_reply(to, encode) => {}
            // In place, where all lengths are constant.
            TransportVersion::One => self.send_plain_reply_in(TransportVersion::One, to, encode),
            TransportVersion::Two => self.send_plain_reply_in_two(to, encode),
        }
    }

    #[inline(never)]
    fn send_plain_reply_in_two(&self, to: &ReplyTarget<'_>, encode: Encode<'_>) {
        self.send_plain_reply_in(TransportVersion::Two, to, encode);
    }

    #[inline(always)]
    fn send_plain_reply_in(
        &self,
        version: TransportVersion,
        to: &ReplyTarget<'_>,
        encode: Encode<'_>,
    ) {
        let staged = self.reactor().stage_plain_reply(to, version);
        let Some((mut message, threshold_bytes)) = staged else { return };
        let header_bytes = version.plain_header_bytes();
        let stream = &mut message.whole_mut()[header_bytes..threshold_bytes];
        let mut writer = StreamWriter::new(stream, &[]);
        writer.fixed(&SUCCESS_HEADER);
        encode(&mut writer);
        if let Some(stream_bytes) = writer.plain_bytes() {
            if version == TransportVersion::One {
                self.note_reply(to.conn, header_bytes + stream_bytes);
            }
            return self.reactor().post_plain_reply(to, message, header_bytes, stream_bytes);
        }
        // It does not fit inline, or names a data item: errors both, which the general case knows.
        drop(message);
        self.send_reply(to, ReplyData::new(), encode);
    }

    pub(super) fn send_reply(&self, to: &ReplyTarget<'_>, data: ReplyData, encode: Encode<'_>) {
        let Some(mut stage) = self.reactor().stage_reply(to) else { return };
        let plan = stage.plan;
        let room = &mut stage.message.whole_mut()[plan.stream_at()..][..plan.inline_bytes()];
        let encoded = plan.encode_inline(room, &data, encode);
        if encoded.items_missing {
            drop(stage);
            return self.reactor().refuse(to, &SYSTEM_ERR);
        }
        if encoded.fits {
            return self.reactor().post_reply(to, StreamAt::Message(stage.message), encoded, data);
        }
        self.send_long_reply(to, stage, &encoded, data, encode);
    }

    /// The results do not fit inline: they go by Reply chunk, if the call offered one that is long
    /// enough (RFC 8166 section 4.3.3), or are left to be fetched, if that is allowed.
    fn send_long_reply(
        &self,
        to: &ReplyTarget<'_>,
        stage: Stage,
        first: &Encoded,
        data: ReplyData,
        encode: Encode<'_>,
    ) {
        if !stage.plan.takes_long(first.stream_bytes) {
            return self.send_read_reply(to, stage, first, data, encode);
        }
        let pool = self.reactor().bulk.clone();
        let Some(mut stream) = pool.take(first.stream_bytes) else {
            drop(stage);
            let mut reactor = self.reactor();
            reactor.stats.no_buffer += 1;
            return reactor.refuse(to, &SYSTEM_ERR);
        };
        let encoded = stage.plan.encode(stream.bytes_mut(), &data, Form::Direct, encode);
        if !encoded.fits {
            drop(stage);
            return self.reactor().refuse(to, &SYSTEM_ERR);
        }
        stream.set_len(encoded.stream_bytes);
        self.reactor().post_reply(to, StreamAt::Long(stage.message, stream), encoded, data);
    }
}

/// The answer to a call whose handler failed to answer it.
pub(crate) const SYSTEM_ERR: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::SystemErr);

impl<F: Fabric> Reactor<F> {
    /// A call is whole: keeps a place in the send queue for its reply. `None` when the queue has no
    /// place now, or every buffer is still on its way: a requester has its reply, and calls again,
    /// before a device says that the message has left.
    #[inline]
    pub(super) fn admit_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: &Buf,
    ) -> Option<Admitted> {
        let Some(header_bytes) = plain_header_bytes(message.bytes()) else {
            return self.admit_other_call(conn, slot, message);
        };
        self.reserve(conn, slot, 1, 0)?;
        Some(Admitted { header_bytes, plain: true, long: false })
    }

    /// A call with chunks, padding or a time of its own.
    #[inline(never)]
    fn admit_other_call(&mut self, conn: ConnId, slot: SlotId, message: &Buf) -> Option<Admitted> {
        let c = self.conns.find(conn)?;
        let view = HeaderView::new_checked(message.bytes(), c.proto.limits()).ok()?;
        let owes_done = owes_done(c.proto.profile().under(view.transport_version()), &view);
        self.reserve(conn, slot, 1 + reply_writes(&view), usize::from(owes_done))?;
        // Bytes behind the header of an RDMA_NOMSG mean nothing (RFC 5666 section 4.1).
        let long = view.message_type() == MessageType::Nomsg;
        if let Some(remaining_us) = view.remaining_us() {
            self.note_arrival(conn, slot, remaining_us);
        }
        if owes_done {
            self.send_done_after_call(conn, view.xid());
        }
        Some(Admitted { header_bytes: view.header_bytes() as u32, plain: false, long })
    }

    /// Keeps so many places in the send queue for the reply of a call; its RDMA_DONE needs none any
    /// more, but has to find one.
    #[inline(always)]
    pub(super) fn reserve(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        needed: usize,
        dones: usize,
    ) -> Option<()> {
        let c = self.conns.find(conn)?;
        let spare_sends = c.sends.available().saturating_sub(c.sends_promised);
        if c.send_room(&self.fabric) < needed + dones || spare_sends <= dones {
            self.stats.queue_full += 1;
            return None;
        }
        c.send_reserved += needed;
        c.serves[usize::from(slot.index)].reserved = needed as u16;
        self.stats.calls_received += 1;
        Some(())
    }

    /// There is no place or buffer for the reply of this call: it is tried again each turn.
    #[cold]
    pub(super) fn put_off_call(&mut self, conn: ConnId, slot: SlotId, message: Buf) {
        self.note_arrival_of(conn, slot, message.bytes());
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].message = Some(message);
        self.put_off(conn, slot);
    }

    /// What the Read chunks of an admitted call came to lie in.
    #[inline]
    pub(super) fn take_sinks(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        admitted: Admitted,
    ) -> Option<Box<Sinks>> {
        if admitted.plain {
            return None;
        }
        let mut sinks = self.conns.find(conn)?.serves[usize::from(slot.index)].sinks.take()?;
        self.stats.copies += sinks.take_home();
        Some(sinks)
    }

    /// A call that waited goes to its handler, if there is room now.
    pub(super) fn frame_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: Buf,
    ) -> Option<CallFrame> {
        let Some(admitted) = self.admit_call(conn, slot, &message) else {
            self.put_off_call(conn, slot, message);
            return None;
        };
        let sinks = self.take_sinks(conn, slot, admitted);
        Some(CallFrame { conn, slot, message, admitted, sinks })
    }

    /// The handler is done with a call for now. An answered one gives its buffers back; the
    /// message of a deferred one stays, because the reply echoes its lists.
    pub(super) fn finish_call(&mut self, mut frame: CallFrame, outcome: CallOutcome) {
        let Some(c) = self.conns.find(frame.conn) else { return };
        if let Some(mut sinks) = frame.sinks.take() {
            self.stats.joins += u64::from(sinks.joined.replace(false));
            if outcome != CallOutcome::Deferred {
                sinks.clear();
            }
            c.serves[usize::from(frame.slot.index)].sinks = Some(sinks);
        }
        self.finish_plain_call(frame.conn, frame.slot, frame.message, outcome);
    }

    /// The same of a call that has nothing beside its message.
    #[inline(always)]
    fn finish_plain_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: Buf,
        outcome: CallOutcome,
    ) {
        match outcome {
            CallOutcome::Done => self.repost(conn, message),
            CallOutcome::Deferred => {
                let Some(c) = self.conns.find(conn) else { return };
                if !c.proto.responder.is_delivered(slot) {
                    // Answered within its handler, as an option may be.
                    return self.repost(conn, message);
                }
                c.serves[usize::from(slot.index)].message = Some(message);
                c.promise_send();
            }
        }
    }

    #[inline(always)]
    fn stage_plain_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        version: TransportVersion,
    ) -> Option<(Buf, usize)> {
        let Some(c) = self.conns.find(to.conn) else {
            self.stats.stale += 1;
            return None;
        };
        let threshold_bytes = c.negotiated.plain_bytes_max(version);
        let message = c.sends.take();
        if message.is_none() {
            self.close_overrun(to.conn, "send buffers");
        }
        message.map(|message| (message, threshold_bytes))
    }

    #[inline(always)]
    fn post_plain_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        mut message: Buf,
        header_bytes: usize,
        stream_bytes: usize,
    ) {
        let Some(c) = self.conns.find(to.conn) else { return };
        release(c, to.slot);
        let (header, stream) = message.whole_mut().split_at_mut(header_bytes);
        let Some(xid) = to.message.first_chunk::<4>() else { return };
        let xid = u32::from_be_bytes(*xid);
        // With the word behind it, which says REPLY: as the pair that will be copied on.
        stream[..8].copy_from_slice(&(u64::from(xid) << 32 | 1).to_be_bytes());
        if c.proto.responder.reply_plain(to.slot, Xid(xid), header).is_err() {
            self.stats.stale += 1;
            return;
        }
        message.set_range(0..header_bytes + stream_bytes);
        self.post_answer(to.conn, message, None);
    }

    fn stage_reply(&mut self, to: &ReplyTarget<'_>) -> Option<Stage> {
        let Some(c) = self.conns.find(to.conn) else {
            self.stats.stale += 1;
            return None;
        };
        let view = HeaderView::new_checked(to.message, c.proto.limits()).ok()?;
        let plan = self.config.reply_plan(&c.negotiated, &view);
        // A call is admitted only while there is one for it.
        let message = c.sends.take();
        if message.is_none() {
            self.close_overrun(to.conn, "send buffers");
        }
        message.map(|message| Stage { message, plan })
    }

    /// Posts the RDMA Writes of a reply and then its Send, and frees the slot.
    fn post_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        stream: StreamAt,
        encoded: Encoded,
        data: ReplyData,
    ) {
        let Some(c) = self.conns.find(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.proto.limits()) else { return };
        release(c, to.slot);
        let plan = self.config.reply_plan(&c.negotiated, &view);
        let (header_bytes, stream_at) = (plan.header_bytes, plan.stream_at());
        let (mut message, mut long) = match stream {
            StreamAt::Message(message) => (message, None),
            StreamAt::Long(message, stream) => (message, Some(stream)),
        };
        let xid = view.xid().0.to_be_bytes();
        let stream_bytes = if long.is_some() { 0 } else { encoded.stream_bytes };
        match &mut long {
            Some(stream) => stream.bytes_mut()[..4].copy_from_slice(&xid),
            None => message.whole_mut()[stream_at..][..4].copy_from_slice(&xid),
        }
        let mut placed = [0; ITEMS_MAX];
        for item in encoded.reduced() {
            placed[usize::from(item.index)] = item.length;
        }
        self.stats.copies += (usize::from(encoded.items_used) - encoded.reduced().len()) as u64;
        let long_bytes = long.as_ref().map(|_| encoded.stream_bytes as u32);
        let shape = ReplyShape { placed: &placed[..data.count()], long_bytes };
        let mut sink = WriteSink::new(&mut self.fabric, to.conn, data, long);
        let is_padded = encoded.padded && long_bytes.is_none();
        let header = &mut message.whole_mut()[stream_at - header_bytes..stream_at];
        let written = c.proto.responder.reply(to.slot, &view, &shape, header, &mut sink);
        let (bytes_written, overrun) = (sink.bytes_written, sink.overrun);
        self.stats.bytes_written += bytes_written;
        c.moved.written += bytes_written;
        match written {
            _ if overrun => self.close_overrun(to.conn, "send queue"),
            Err(ReplyRefused::Stale) => self.stats.stale += 1,
            Err(ReplyRefused::ChunkTooSmall) => {
                drop(message);
                let version = view.transport_version();
                let error = RdmaError::of_header(version);
                self.send_error(to.conn, view.xid(), version.to_wire(), error)
            }
            Ok(length) => {
                let mut header_at = stream_at - length;
                if is_padded {
                    header_at = insert_alignment(message.whole_mut(), header_at, plan.alignment);
                }
                message.set_range(header_at..stream_at + stream_bytes);
                let invalidate = self.key_to_invalidate(to.conn, &view);
                self.post_answer(to.conn, message, invalidate);
            }
        }
    }

    /// A key of this call to kill with the reply, if both ends agreed to that and the call names
    /// exactly one, so that no other key would have to be invalidated by the requester anyway.
    pub(super) fn key_to_invalidate(&mut self, conn: ConnId, view: &HeaderView<'_>) -> Option<u32> {
        let c = self.conns.find(conn)?;
        if view.is_plain() || !c.negotiated.remote_invalidate() {
            return None;
        }
        let reads = view.reads().map(|read| read.target.handle);
        let writes = view.writes().chain(view.reply_chunk());
        let mut all = reads.chain(writes.flat_map(|chunk| chunk.segments()).map(|s| s.handle));
        let first = all.next()?;
        all.all(|handle| handle == first).then_some(first)
    }

    /// Answers a call with an RPC error and frees its slot.
    pub(super) fn refuse(&mut self, to: &ReplyTarget<'_>, answer: &RpcRefusal) {
        let Some(c) = self.conns.find(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.proto.limits()) else { return };
        let (xid, version) = (view.xid(), view.transport_version());
        if !c.proto.responder.abandon(to.slot) {
            self.stats.stale += 1;
            return;
        }
        release(c, to.slot);
        self.send_refusal(to.conn, xid, version, answer);
    }

    /// Answers a call whose reply fits nowhere with ERR_CHUNK and frees its slot.
    pub(super) fn refuse_chunk(&mut self, to: &ReplyTarget<'_>) {
        let Some(c) = self.conns.find(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.proto.limits()) else { return };
        let (xid, version) = (view.xid(), view.transport_version());
        if c.proto.responder.abandon(to.slot) {
            release(c, to.slot);
            self.send_error(to.conn, xid, version.to_wire(), RdmaError::of_header(version));
        }
    }

    // In place in plain replies of either version.
    #[inline(always)]
    pub(super) fn post_answer(&mut self, conn: ConnId, message: Buf, invalidate: Option<u32>) {
        self.stats.replies_sent += 1;
        self.stats.bytes_inline += message.len() as u64;
        if self.fabric.post(conn, SendWr::Send { message, invalidate }).is_err() {
            self.close_overrun(conn, "send queue");
        }
    }

    /// What another thread needs to answer a call; `None` when as many calls are deferred as the
    /// mailbox has room for, or no memory for the reply is left.
    pub(super) fn defer_call(&mut self, to: &ReplyTarget<'_>) -> Option<DeferTicket> {
        let c = self.conns.find(to.conn)?;
        let view = HeaderView::new_checked(to.message, c.proto.limits()).ok()?;
        let plan = self.config.reply_plan(&c.negotiated, &view);
        if self.deferred >= DEFERRED_MAX {
            return None;
        }
        let stage = self.bulk.take(plan.inline_bytes())?;
        self.deferred += 1;
        let room = Room { pool: self.bulk.clone(), stage, plan };
        let inbox = Arc::clone(&self.inbox) as Arc<dyn PostReply>;
        Some(DeferTicket::new(inbox, to.conn, to.slot, room))
    }

    /// The answer of a deferred call came by mail.
    pub(super) fn finish_deferred(&mut self, reply: DeferredReply) {
        self.deferred = self.deferred.saturating_sub(1);
        let (conn, slot) = (reply.conn, reply.slot);
        let Some(message) = self.conns.find(conn).and_then(|c| c.take_deferred(slot)) else {
            self.stats.stale += 1;
            return;
        };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        match reply.answer {
            DeferredAnswer::Reject(status) => self.refuse(&to, &RpcRefusal::Accepted(status)),
            DeferredAnswer::Results { stream, encoded, data } => {
                self.post_deferred(&to, stream, encoded, data);
            }
        }
        self.repost(conn, message);
    }

    fn post_deferred(
        &mut self,
        to: &ReplyTarget<'_>,
        mut stream: Bulk,
        encoded: Encoded,
        data: ReplyData,
    ) {
        let Some(mut stage) = self.stage_reply(to) else { return };
        let (is_short, bytes) =
            (encoded.stream_bytes <= stage.plan.inline_bytes(), encoded.stream_bytes);
        let by_read = stage.plan.reads_of(&encoded, &data).next().is_some();
        if by_read || (!is_short && !stage.plan.takes_long(bytes)) {
            return self.post_deferred_read(to, stage, stream, encoded, data);
        }
        if encoded.items_missing || !encoded.fits {
            drop(stage);
            return self.refuse(to, &SYSTEM_ERR);
        }
        stream.set_len(bytes);
        if !is_short {
            return self.post_reply(to, StreamAt::Long(stage.message, stream), encoded, data);
        }
        let at = stage.plan.stream_at();
        stage.message.whole_mut()[at..][..bytes].copy_from_slice(stream.bytes());
        self.stats.copies += 1;
        self.post_reply(to, StreamAt::Message(stage.message), encoded, data);
    }
}

impl Conn {
    /// The message of a deferred call, and its sinks emptied, if the call is still open.
    pub(super) fn take_deferred(&mut self, slot: SlotId) -> Option<Buf> {
        if !self.proto.responder.is_delivered(slot) {
            return None;
        }
        self.redeem_send();
        let hold = &mut self.serves[usize::from(slot.index)];
        if let Some(sinks) = &mut hold.sinks {
            sinks.clear();
        }
        hold.message.take()
    }
}

/// The version of a call whose header was checked when it came.
#[inline]
pub(super) fn version_of(call: &[u8]) -> TransportVersion {
    const TWO: u8 = TransportVersion::Two as u8;
    match call.get(7) {
        Some(&TWO) => TransportVersion::Two,
        _ => TransportVersion::One,
    }
}

/// Length of a transport header that was checked when it came, if it has no lists.
#[inline]
pub(super) fn plain_header_bytes(message: &[u8]) -> Option<u32> {
    let view = HeaderView::plain(message).or_else(|| HeaderView::plain_two(message))?;
    Some(view.header_bytes() as u32)
}

/// Gives up the send-queue places that were kept for a reply.
#[inline]
pub(super) fn release(c: &mut Conn, slot: SlotId) {
    let hold = &mut c.serves[usize::from(slot.index)];
    c.send_reserved = c.send_reserved.saturating_sub(usize::from(hold.reserved));
    hold.reserved = 0;
}

impl Config {
    #[inline]
    fn reply_plan(&self, negotiated: &Negotiated, view: &HeaderView<'_>) -> ReplyPlan {
        ReplyPlan::of(view, negotiated, self.protocol(), self.segment_bytes())
    }
}

/// The responder, too, says when it has fetched Read chunks (draft-ietf-nfsv4-rpcrdma-00 section
/// 3.6).
fn owes_done(profile: Profile, view: &HeaderView<'_>) -> bool {
    profile.has_done_after_calls() && !view.reads().is_empty()
}

/// RDMA Writes the reply may need: one for each segment offered.
fn reply_writes(view: &HeaderView<'_>) -> usize {
    if view.is_plain() {
        return 0;
    }
    view.writes().chain(view.reply_chunk()).map(|chunk| chunk.segment_count()).sum()
}

/// Posts the RDMA Writes of one reply.
pub(super) struct WriteSink<'a, F: Fabric> {
    fabric: &'a mut F,
    conn: ConnId,
    data: ReplyData,
    long: Option<Bulk>,
    pub(super) bytes_written: u64,
    pub(super) overrun: bool,
}

impl<'a, F: Fabric> WriteSink<'a, F> {
    #[inline]
    pub(super) fn new(
        fabric: &'a mut F,
        conn: ConnId,
        data: ReplyData,
        long: Option<Bulk>,
    ) -> Self {
        Self { fabric, conn, data, long, bytes_written: 0, overrun: false }
    }
}

impl<F: Fabric> Output for WriteSink<'_, F> {
    fn write(&mut self, write: WriteRequest) {
        let (at, bytes) = (write.at as usize, write.to.length as usize);
        let from = match write.source {
            WriteSource::Item(index) => self.data.item_mut(index).map(|item| item.lease(at, bytes)),
            WriteSource::Stream => self.long.as_mut().map(|bulk| bulk.lease(at..at + bytes)),
        };
        let Some(from) = from else { return };
        self.bytes_written += bytes as u64;
        let wr = SendWr::Write { from, to: remote(&write.to) };
        self.overrun |= self.fabric.post(self.conn, wr).is_err();
    }
}

#[inline]
fn remote(segment: &Segment) -> RemoteSlice {
    RemoteSlice { handle: segment.handle, length: segment.length, offset: segment.offset }
}
