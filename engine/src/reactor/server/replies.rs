//! Admitting calls when they are here, and sending their replies when they are answered, in the handler or later.

use crate::config::Config;
use crate::fabric::{AnyFabric, ConnId, RemoteSlice, SendWr};
use crate::mem::Buf;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::deferred::{Deferred, DeferredReply, Room};
use crate::reactor::in_flight::mailbox::DeferredAnswer;
use crate::reactor::in_flight::read_buffers::ReadBuffers;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::reply_cache::ReplyKeeper;
use crate::reactor::in_flight::upcalls::CallFrame;
use crate::reactor::server::rfc5666::exports::Exported;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Admitted, CallOutcome, ReplyTarget, RpcRefusal};
use crate::reactor::types::encode_buffer::EncodeError;
use crate::reactor::types::encoded_stream::{EncodeOnce, EncodedStream};
use crate::reactor::types::header_bytes::{
    SUCCESS_HEADER, SYSTEM_ERR, chunkless_header_bytes, version_of, xid_of,
};
use crate::reactor::types::negotiate::Negotiated;
use crate::reactor::types::reply_plan::{EncodedReply, ReplyData, ReplyPlan};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::{SlotId, WriteRequest, WriteSource};
use spinrpc_proto::exports::ReadReply;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rdma::Segment;
use spinrpc_proto::rdma::v1::{HeaderView, MessageType, insert_alignment};
use spinrpc_proto::responder::{ReplyRefused, ReplyShape};
use std::sync::Arc;

/// The send buffer of a reply, and the ways that its call leaves. Dropped before the call is answered in another way,
/// which takes a buffer, too.
struct ReplyBuffer {
    message: Buf,
    plan: ReplyPlan,
}

/// Writes the RPC header of a reply without a verifier.
#[inline(always)]
fn put_success_header(xid: Xid, head: &mut [u8]) {
    head.copy_from_slice(&SUCCESS_HEADER);
    // With the word behind it, which says REPLY: as the pair that will be copied on.
    head[..8].copy_from_slice(&(u64::from(xid.0) << 32 | 1).to_be_bytes());
}

impl CoreCell {
    /// Answers a call with results, which `keep` stores.
    pub(crate) fn reply(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        keep: Option<ReplyKeeper>,
        encode: EncodeOnce<'_>,
    ) {
        // Only in use by an encoder, which has no other call of this core to answer.
        let Ok(mut memory) = self.core_lane().reply().try_borrow_mut() else {
            return self.reactor().refuse(to, &SYSTEM_ERR);
        };
        let draft = memory.draft(data.count(), self.core_lane().alignment(), encode);
        if let Some(keep) = keep {
            keep.record(&data, draft.as_ref().ok());
        }
        match draft {
            Ok(draft) => self.answer_with(to, data, &draft),
            Err(why) => self.reactor().refuse_undrafted(to, &data, why),
        }
    }

    /// Answers a call with these results.
    pub(crate) fn answer_with(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        draft: &EncodedStream<'_>,
    ) {
        #[cfg(feature = "gss")]
        if let Some(protection) = self.protection_of(to) {
            return self.answer_protected(to, &protection, data, draft);
        }
        let is_chunkless = to.is_chunkless && data.count() == 0;
        let head = (SUCCESS_HEADER.len(), put_success_header);
        if !is_chunkless || !self.reactor().emit_chunkless_reply(to, head, draft.stream()) {
            self.place_reply(to, data, draft);
        }
    }

    /// Encodes results where they are sent from, and sends them.
    pub(in crate::reactor) fn place_reply(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        draft: &EncodedStream<'_>,
    ) {
        let mut reactor = self.reactor();
        let Some(ReplyBuffer { mut message, plan }) = reactor.stage_reply(to) else { return };
        let room = &mut message.whole_mut()[plan.stream_at()..][..plan.inline_bytes()];
        let mut reply = EncodedReply::new(data);
        let encoded = plan.encode_reply(room, &mut reply, draft, reactor.arena());
        reactor.send_reply(to, (message, &plan), encoded.map(|()| &mut reply));
    }
}

impl Reactor {
    /// Admits a complete call and reserves a place in the send queue for its reply. Returns `None` when the queue has
    /// no place now, or every buffer is still in flight: a requester may have its reply, and call again, before a
    /// device reports that the message was sent.
    #[inline]
    fn admit_call(&mut self, conn: ConnId, slot: SlotId, message: &Buf) -> Option<Admitted> {
        let Some(header_bytes) = chunkless_header_bytes(message.bytes()) else {
            return self.admit_other_call(conn, slot, message);
        };
        let send_room = self.fabric().room(conn);
        self.reserve(conn, slot, (1, 0), send_room)?;
        Some(Admitted { header_bytes, is_chunkless: true, long: false })
    }

    /// Admits a call with chunks or padding.
    #[inline(never)]
    fn admit_other_call(&mut self, conn: ConnId, slot: SlotId, message: &Buf) -> Option<Admitted> {
        let (c, core) = self.conn_and_core(conn)?;
        let view = HeaderView::new_checked(message.bytes(), c.lane.proto().limits()).ok()?;
        // A call that was fetched has been admitted.
        let is_fetched = c.serves.has_sinks(slot);
        if !is_fetched && !c.may_take(core.arena(), &view) {
            core.stats().no_buffer += 1;
            return None;
        }
        let owes_done = owes_done(c.lane.proto().profile().under(view.transport_version()), &view);
        let send_room = core.fabric().room(conn);
        let places = (1 + reply_writes(&view), usize::from(owes_done));
        self.reserve(conn, slot, places, send_room)?;
        // Bytes behind the header of an RDMA_NOMSG have no meaning (RFC 5666 section 4.1).
        let long = view.message_type() == MessageType::Nomsg;
        if owes_done {
            self.emit_done_after_call(conn, view.xid());
        }
        Some(Admitted { header_bytes: view.header_bytes() as u32, is_chunkless: false, long })
    }

    /// Reserves places in the send queue of a driver with so much room, for the reply of a call. Its RDMA_DONE needs none
    /// any more, but has to find one.
    #[inline(always)]
    pub(in crate::reactor) fn reserve(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        (needed, dones): (usize, usize),
        send_room: usize,
    ) -> Option<()> {
        let (c, core) = self.conn_and_core(conn)?;
        if send_room < c.lane.reserved() + needed + dones || c.spare_sends() <= dones {
            core.stats().queue_full += 1;
            return None;
        }
        c.lane.reserve(needed);
        c.serves.reserve(slot, needed);
        self.stats().calls_received += 1;
        Some(())
    }

    /// Passes a call to its handler, with the memory that its Read chunks were fetched to. Without a place or a buffer for
    /// its reply it is retried in whole turns.
    #[inline]
    pub(in crate::reactor) fn frame_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: Buf,
    ) -> Option<CallFrame> {
        let Some(admitted) = self.admit_call(conn, slot, &message) else {
            let c = self.conn(conn)?;
            c.serves.put_message(slot, message);
            if !c.serves.has_times(slot) {
                self.begin_wait(conn, slot);
            }
            self.put_off(conn, ReadOwner::Call(slot));
            return None;
        };
        let sinks = if admitted.is_chunkless { None } else { self.take_sinks(conn, slot) };
        Some(CallFrame { conn, slot, message, admitted, sinks })
    }

    fn take_sinks(&mut self, conn: ConnId, slot: SlotId) -> Option<Box<ReadBuffers>> {
        let (c, core) = self.conn_and_core(conn)?;
        let mut sinks = c.serves.take_sinks(slot)?;
        core.stats().copies += sinks.take_home();
        Some(sinks)
    }

    /// The handler has returned. An answered call releases its buffers; a deferred call keeps its message, because
    /// the reply echoes its lists.
    pub(in crate::reactor) fn finish_call(&mut self, mut frame: CallFrame, outcome: CallOutcome) {
        #[cfg(feature = "gss")]
        let outcome = self.outcome_of(frame.conn, frame.slot, outcome);
        let Some(c) = self.conn(frame.conn) else { return };
        if let Some(sinks) = frame.sinks.take() {
            let goes_on = outcome == CallOutcome::Deferred;
            // The handler of a call whose body is protected has seen a copy of the fetched data.
            #[cfg(feature = "gss")]
            let goes_on = goes_on
                && c.serves.protection(frame.slot).is_none_or(|own| !own.service.protects_body());
            c.serves.put_sinks(frame.slot, sinks);
            if !goes_on {
                c.serves.clear_sinks(frame.slot);
            }
        }
        self.finish_chunkless_call(frame.conn, frame.slot, frame.message, outcome);
    }

    /// The same for a call without chunks.
    #[inline(always)]
    pub(in crate::reactor) fn finish_chunkless_call(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        message: Buf,
        outcome: CallOutcome,
    ) {
        if outcome != CallOutcome::Deferred {
            return self.repost(conn, message);
        }
        let Some(c) = self.conn(conn) else { return };
        if !c.lane.proto().responder.is_delivered(slot) {
            // Answered within its handler, as an option may be.
            return self.repost(conn, message);
        }
        c.serves.put_message(slot, message);
        c.promise_send();
    }

    /// Refuses results that could not be encoded.
    pub(in crate::reactor) fn refuse_undrafted(
        &mut self,
        to: &ReplyTarget<'_>,
        data: &ReplyData,
        why: EncodeError,
    ) {
        if let Some(ReplyBuffer { message, plan }) = self.stage_reply(to) {
            self.send_reply(to, (message, &plan), Err(plan.refusal(why, data)));
        }
    }

    /// Handles the common case: the call had no chunks, and the reply has no data items. Writes it where it is sent from,
    /// with this head in front of its results. Returns `false`, and does nothing, if the reply does not fit inline.
    pub(in crate::reactor::server) fn emit_chunkless_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        (head_bytes, put_head): (usize, impl FnOnce(Xid, &mut [u8])),
        results: &[u8],
    ) -> bool {
        let Some(c) = self.conn(to.conn) else {
            self.stats().stale += 1;
            return true;
        };
        let version = version_of(to.message);
        let header_bytes = version.chunkless_header_bytes();
        let bytes = header_bytes + head_bytes + results.len();
        if bytes > c.negotiated.unpadded_bytes_max(version) {
            return false;
        }
        let Some(mut message) = c.sends.take() else {
            self.close_overrun(to.conn, "send buffers");
            return true;
        };
        c.release(to.slot);
        message.set_range(0..bytes);
        let xid = xid_of(to.message);
        let (header, stream) = message.bytes_mut().split_at_mut(header_bytes);
        let (head, place) = stream.split_at_mut(head_bytes);
        put_head(xid, head);
        place.copy_from_slice(results);
        if c.lane.proto().responder.reply_chunkless(to.slot, xid, header).is_err() {
            self.stats().stale += 1;
            return true;
        }
        self.post(to.conn, message, Posted::Answer(None));
        true
    }

    fn stage_reply(&mut self, to: &ReplyTarget<'_>) -> Option<ReplyBuffer> {
        let Some((c, core)) = self.conn_and_core(to.conn) else {
            self.stats().stale += 1;
            return None;
        };
        let view = HeaderView::new_checked(to.message, c.lane.proto().limits()).ok()?;
        let plan = core.config().reply_plan(&c.negotiated, &view);
        // A call is admitted only while there is one for it.
        let message = c.sends.take();
        if message.is_none() {
            self.close_overrun(to.conn, "send buffers");
        }
        message.map(|message| ReplyBuffer { message, plan })
    }

    /// Sends results, or refuses the call. They are not moved, as they are large.
    fn send_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        (mut message, plan): (Buf, &ReplyPlan),
        reply: Result<&mut EncodedReply, RpcRefusal>,
    ) {
        let mut exported = None;
        let placed = reply.and_then(|reply| {
            let at = self.place_stream(to, (message.whole_mut(), plan), reply, &mut exported)?;
            Ok((at, reply))
        });
        match placed {
            Ok((at, reply)) => self.post_reply(to, (message, plan), at, reply, &mut exported),
            Err(why) => {
                drop(message);
                self.refuse(to, &why);
            }
        }
    }

    /// Brings the stream to where it is sent from: inline if it is short, else in memory of its own, for a Reply chunk
    /// that is long enough (RFC 8166 section 4.3.3), or for the client to fetch, if that is allowed. Returns its offset
    /// in the message, where the transport header ends, and its length there.
    fn place_stream(
        &mut self,
        to: &ReplyTarget<'_>,
        (message, plan): (&mut [u8], &ReplyPlan),
        reply: &mut EncodedReply,
        exported: &mut Option<Exported>,
    ) -> Result<(usize, usize), RpcRefusal> {
        let (at, bytes) = (plan.stream_at(), reply.encoded().stream_bytes);
        let is_short = bytes <= plan.inline_bytes();
        let has_reads = plan.has_reads(reply.encoded(), reply.data());
        if has_reads || !(is_short || plan.takes_long(bytes)) {
            return self.export_reply(to, (message, plan), reply, exported);
        }
        self.charge_reply(to.conn, reply);
        if !is_short {
            return Ok((at, 0));
        }
        reply.move_stream(&mut message[at..]);
        Ok((at, bytes))
    }

    /// Posts the RDMA Writes of a reply and then its Send, and frees the slot.
    fn post_reply(
        &mut self,
        to: &ReplyTarget<'_>,
        (mut message, plan): (Buf, &ReplyPlan),
        (at, bytes): (usize, usize),
        reply: &mut EncodedReply,
        exported: &mut Option<Exported>,
    ) {
        let Some((c, core)) = self.conn_and_core(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.lane.proto().limits()) else { return };
        c.release(to.slot);
        let (mut placed, mut sources) = ([0; ITEMS_MAX], [0; ITEMS_MAX]);
        let encoded = reply.encoded();
        for item in encoded.reduced() {
            let (index, bytes) = (usize::from(item.index), item.length as usize);
            if plan.goes_by_write(index, bytes, reply.data()) {
                let entry = plan.entry_of(index, reply.data());
                (placed[entry], sources[entry]) = (item.length, item.index);
            }
        }
        core.stats().copies += (usize::from(encoded.items_used) - encoded.reduced().len()) as u64;
        let (items, long_bytes) = (reply.data().count(), reply.long_bytes());
        let shape = ReplyShape { placed: &placed[..items], long_bytes };
        let (header, stream) = message.whole_mut().split_at_mut(at);
        reply.put_xid(&mut stream[..bytes], view.xid());
        let mut sink = WriteSink::new(core.fabric_mut(), to.conn, reply, sources);
        let mut proto = c.lane.proto();
        let write = |write| sink.write(write);
        let replied = match exported {
            None => {
                let header_bytes = proto.responder.reply(to.slot, &view, &shape, header, write);
                header_bytes.map(|header_bytes| ReadReply { header_bytes, kept: false })
            }
            Some(exported) => {
                let call = (to.slot, &view);
                exported.reply(&mut proto.responder, call, &shape, header, write)
            }
        };
        drop(proto);
        let (bytes_written, overrun) = sink.end();
        core.stats().bytes_written += bytes_written;
        c.count_written(bytes_written);
        if overrun {
            return self.close_overrun(to.conn, "send queue");
        }
        let ReadReply { header_bytes, kept } = match replied {
            Ok(replied) => replied,
            Err(why) => {
                drop(message);
                return self.lose_reply(to.conn, &view, why, exported.as_ref());
            }
        };
        let mut header_at = at - header_bytes;
        if reply.encoded().padded && bytes > 0 {
            header_at = insert_alignment(message.whole_mut(), header_at, plan.alignment());
        }
        message.set_range(header_at..at + bytes);
        let invalidate = self.key_to_invalidate(to.conn, &view);
        match exported {
            None => self.post(to.conn, message, Posted::Answer(invalidate)),
            Some(exported) => self.post_exported(to, exported, (message, invalidate), kept),
        }
    }

    /// The protocol has refused a reply: the call is gone, or room that it stated is less than it was.
    #[cold]
    fn lose_reply(
        &mut self,
        conn: ConnId,
        view: &HeaderView<'_>,
        why: ReplyRefused,
        exported: Option<&Exported>,
    ) {
        if let Some(exported) = exported {
            self.revoke_exports(conn, &exported.hold);
        }
        match why {
            ReplyRefused::Stale => self.stats().stale += 1,
            ReplyRefused::ChunkTooSmall => {
                let call = (view.xid(), view.transport_version());
                self.emit_refusal(conn, call, None, &RpcRefusal::NoRoom);
            }
        }
    }

    /// A key of this call to invalidate with the reply, if both ends agreed to that and the call names exactly one
    /// key, so that the requester need not invalidate others anyway.
    pub(in crate::reactor) fn key_to_invalidate(
        &mut self,
        conn: ConnId,
        view: &HeaderView<'_>,
    ) -> Option<u32> {
        let c = self.conn(conn)?;
        if view.is_chunkless() || !c.negotiated.remote_invalidate() {
            return None;
        }
        let reads = view.reads().map(|read| read.target.handle);
        let writes = view.writes().chain(view.reply_chunk());
        let mut all = reads.chain(writes.flat_map(|chunk| chunk.segments()).map(|s| s.handle));
        let first = all.next()?;
        all.all(|handle| handle == first).then_some(first)
    }

    /// Answers a call with an error, and frees its slot.
    pub(in crate::reactor) fn refuse(&mut self, to: &ReplyTarget<'_>, answer: &RpcRefusal) {
        let Some((c, core)) = self.conn_and_core(to.conn) else { return };
        let Ok(view) = HeaderView::new_checked(to.message, c.lane.proto().limits()) else { return };
        if !c.lane.proto().responder.abandon(to.slot) {
            core.stats().stale += 1;
            return;
        }
        let answer = answer.counted(core.stats());
        #[cfg(feature = "gss")]
        let protection = c.serves.protection(to.slot).cloned();
        c.release(to.slot);
        #[cfg(feature = "gss")]
        if let Some(protection) = protection
            && let RpcRefusal::Accepted(status) = answer
        {
            return self.emit_protected_refusal(to.conn, &view, (&protection, status));
        }
        let call = (view.xid(), view.transport_version());
        self.emit_refusal(to.conn, call, Some(&view), &answer);
    }

    /// The call, for another thread to answer; `None` when the connection or its origin has its share of
    /// the places for deferred calls, or no memory for the reply is left.
    pub(in crate::reactor) fn defer_call(&mut self, to: &ReplyTarget<'_>) -> Option<Deferred> {
        let (c, core) = self.conn_and_core(to.conn)?;
        let caller = Arc::clone(c.caller()?);
        let view = HeaderView::new_checked(to.message, c.lane.proto().limits()).ok()?;
        let plan = core.config().reply_plan(&c.negotiated, &view);
        let share = c.share().clone();
        #[cfg(feature = "gss")]
        let protection = c.serves.protection(to.slot).cloned();
        let bytes = plan.inline_bytes();
        let stage = self.reply_block(to.conn, bytes)?;
        let room = Room::new((self.arena().clone(), share), stage, plan);
        #[cfg(feature = "gss")]
        let room = room.under(protection, self.gss_work());
        let mut reply = self.deferred_replies().take()?;
        let is_timed = self.has_timer();
        reply.begin((to.conn, to.slot), room, is_timed);
        if is_timed {
            self.defer_times(to.conn, to.slot);
        }
        Some(Deferred::new(caller, reply))
    }

    /// The answer of a deferred call arrived by mail.
    pub(in crate::reactor) fn finish_deferred(&mut self, mut reply: Box<DeferredReply>) {
        self.place_deferred(&mut reply);
        reply.clear();
        self.deferred_replies().give(reply);
    }

    fn place_deferred(&mut self, reply: &mut DeferredReply) {
        let (conn, slot) = (reply.conn(), reply.slot());
        #[cfg(feature = "gss")]
        if self.try_offload_seal(reply) {
            return;
        }
        if let Some(noted) = reply.noted() {
            self.end_deferred((conn, slot), noted);
        }
        self.answer_deferred(conn, slot, |reactor, to| {
            // In front of the others: a large answer is moved to be taken.
            if matches!(reply.answer(), DeferredAnswer::Staged) {
                return reactor.answer_from_stage(to, reply);
            }
            match reply.take_answer() {
                DeferredAnswer::Results(mut results) => {
                    results.settle_stream(|| reply.take_stage());
                    reactor.send_encoded(to, &mut results);
                }
                #[cfg(feature = "gss")]
                DeferredAnswer::ToSeal { protection, reply, data } => {
                    reactor.seal_and_answer(to, &protection, reply, data);
                }
                DeferredAnswer::Staged => {}
                DeferredAnswer::Refused(why) => reactor.refuse(to, &why),
            }
        });
    }

    /// Answers a deferred call, if it is not answered yet.
    #[inline(always)]
    pub(in crate::reactor) fn answer_deferred(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        answer: impl FnOnce(&mut Self, &ReplyTarget<'_>),
    ) {
        let Some(message) = self.take_deferred(conn, slot) else { return };
        answer(self, &ReplyTarget { conn, slot, message: message.bytes(), is_chunkless: false });
        self.repost(conn, message);
    }

    /// The message of a deferred call, whose sinks are emptied, if it is not answered yet.
    #[inline]
    pub(in crate::reactor) fn take_deferred(&mut self, conn: ConnId, slot: SlotId) -> Option<Buf> {
        let conn = self.conn(conn).filter(|c| c.lane.proto().responder.is_delivered(slot));
        let Some(c) = conn else {
            self.stats().stale += 1;
            return None;
        };
        c.redeem_send();
        c.serves.take_deferred(slot)
    }

    /// The results are where they were encoded, and are not moved.
    fn answer_from_stage(&mut self, to: &ReplyTarget<'_>, reply: &mut DeferredReply) {
        let head = (SUCCESS_HEADER.len(), put_success_header);
        if chunkless_header_bytes(to.message).is_some()
            && let Some(stream) = reply.stage()
            && self.emit_chunkless_reply(to, head, &stream.bytes()[SUCCESS_HEADER.len()..])
        {
            return;
        }
        if let Some(stream) = reply.take_stage() {
            self.send_encoded(to, &mut EncodedReply::whole(stream, ReplyData::new()));
        }
    }

    /// Sends results that are encoded already.
    pub(in crate::reactor::server) fn send_encoded(
        &mut self,
        to: &ReplyTarget<'_>,
        reply: &mut EncodedReply,
    ) {
        if let Some(ReplyBuffer { message, plan }) = self.stage_reply(to) {
            self.send_reply(to, (message, &plan), Ok(reply));
        }
    }
}

impl Config {
    #[inline]
    fn reply_plan(&self, negotiated: &Negotiated, view: &HeaderView<'_>) -> ReplyPlan {
        ReplyPlan::of(view, negotiated, self.protocol(), self.segment_bytes())
    }
}

/// The responder, too, reports when it has fetched Read chunks (draft-ietf-nfsv4-rpcrdma-00 section 3.6).
fn owes_done(profile: Profile, view: &HeaderView<'_>) -> bool {
    profile.has_done_after_calls() && !view.reads().is_empty()
}

/// RDMA Writes the reply may need: one for each segment offered.
fn reply_writes(view: &HeaderView<'_>) -> usize {
    if view.is_chunkless() {
        return 0;
    }
    view.writes().chain(view.reply_chunk()).map(|chunk| chunk.segment_count()).sum()
}

/// Posts the RDMA Writes of one reply.
struct WriteSink<'a> {
    fabric: &'a mut AnyFabric,
    conn: ConnId,
    reply: &'a mut EncodedReply,
    /// Number of the data item in each Write chunk.
    sources: [u8; ITEMS_MAX],
    bytes_written: u64,
    overrun: bool,
}

impl<'a> WriteSink<'a> {
    #[inline]
    fn new(
        fabric: &'a mut AnyFabric,
        conn: ConnId,
        reply: &'a mut EncodedReply,
        sources: [u8; ITEMS_MAX],
    ) -> Self {
        Self { fabric, conn, reply, sources, bytes_written: 0, overrun: false }
    }

    /// Bytes that were written, and true if the send queue had no room for a request.
    #[inline]
    fn end(self) -> (u64, bool) {
        (self.bytes_written, self.overrun)
    }

    fn write(&mut self, mut write: WriteRequest) {
        if let WriteSource::Item(entry) = &mut write.source {
            *entry = self.sources[usize::from(*entry)];
        }
        let Some(from) = self.reply.lease(&write) else { return };
        self.bytes_written += u64::from(write.to.length);
        let wr = SendWr::Write { from, to: remote(&write.to) };
        self.overrun |= self.fabric.post(self.conn, wr).is_err();
    }
}

#[inline]
fn remote(segment: &Segment) -> RemoteSlice {
    RemoteSlice { handle: segment.handle, length: segment.length, offset: segment.offset }
}
