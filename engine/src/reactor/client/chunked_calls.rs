//! The client half of a core: starting calls, and bringing their replies back to the application.

use crate::config::BulkView;
use crate::fabric::ConnId;
use crate::mem::{Buf, Bulk, BulkPool, ExposedBulk};
use crate::reactor::client::chunk_exposure::ChunkExposure;
#[cfg(feature = "gss")]
use crate::reactor::client::gss::Under;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::call_table::{CallHold, private_bytes};
use crate::reactor::in_flight::read_buffers::Sinks;
use crate::reactor::in_flight::upcalls::Upcalls;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{
    Backpressure, CallId, CallSpec, Deadline, REPLY_HEADER_BYTES_MAX, ReplyBuffers, ReplyFrame,
    Resend,
};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::{is_plain, no_block, put_xid, version_of};
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::rfc5666::{Padded, PulledChunks};
use crate::reactor::types::stats::StatsSnapshot;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{CallChunks, Encoded, Item, Placement, StreamWriter};
use spinrpc_proto::events::{CallFailure, DeliveredReply, PeerMisbehaved, ReplyStream, SlotId};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
use spinrpc_proto::requester::{CallRefused, CallSlot, Requester, StartedCall};
use spinrpc_proto::version::TransportVersion;
use spinrpc_proto::xdr::{Padding, roundup4};
use std::cell::Cell;

/// Bytes of one segment in the Read list.
const READ_SEGMENT_BYTES: usize = 24;
/// Bytes of one segment in the Write list or the Reply chunk.
const WRITE_SEGMENT_BYTES: usize = 16;

/// Slot of a call that is not plain.
#[derive(Clone, Copy)]
pub(in crate::reactor) enum Start {
    /// A new one, for a call with this token.
    New(u64),
    /// The one it has kept.
    Again(SlotId),
    /// The one it has, with a credit.
    #[cfg(feature = "gss")]
    Reserved(SlotId),
}

impl Start {
    /// The slot that the call has already.
    fn slot(self) -> Option<SlotId> {
        match self {
            Self::New(_) => None,
            Self::Again(slot) => Some(slot),
            #[cfg(feature = "gss")]
            Self::Reserved(slot) => Some(slot),
        }
    }

    /// Before anything of the call is lent.
    fn check(self, requester: &Requester<Box<[CallSlot]>>) -> Result<(), CallRefused> {
        match self {
            #[cfg(feature = "gss")]
            Self::Reserved(slot) => requester.check_reserved(slot),
            Self::New(_) | Self::Again(_) => requester.check_room(),
        }
    }

    /// The call needs no other credit, nor a slot.
    const fn has_credit(self) -> bool {
        #[cfg(feature = "gss")]
        return matches!(self, Self::Reserved(_));
        #[cfg(not(feature = "gss"))]
        return false;
    }
}

/// A call whose stream is being written; nothing but the buffer is taken yet.
pub(in crate::reactor) struct Stage {
    pub(in crate::reactor::client) message: Buf,
    /// Offset of the stream in the buffer; the transport header will end there.
    stream_at: usize,
    /// Longest message, transport header included.
    pub(in crate::reactor::client) threshold_bytes: usize,
    version: TransportVersion,
    /// Transport header with what the spec offers for the reply, and without Read chunks.
    pub(in crate::reactor::client) header_bytes: usize,
    /// Padding of inline data on the connection.
    pub(in crate::reactor::client) alignment: Alignment,
    /// The header for which the padding was written.
    pub(in crate::reactor::client) padded_header_bytes: usize,
    /// Read chunks may be offered (RFC 5666 section 6.2).
    pub(in crate::reactor::client) takes_read_chunks: bool,
    /// No chunks at all may be offered.
    is_inline: bool,
}

/// Layout of a stream: places of its items, and its padding.
pub(in crate::reactor) struct Shape {
    pub(in crate::reactor::client) placements: [Placement; ITEMS_MAX],
    pub(in crate::reactor::client) alignment: Alignment,
    /// The transport header before it.
    pub(in crate::reactor::client) header_bytes: usize,
}

impl Shape {
    fn unpadded(placement: Placement) -> Self {
        let placements = [placement; ITEMS_MAX];
        Self { placements, alignment: Alignment::NONE, header_bytes: 0 }
    }
}

impl CoreCell {
    /// Starts a call with this RPC message, with whatever its spec asks for.
    pub(in crate::reactor) fn place_or_keep_call(
        &self,
        conn: ConnId,
        token: u64,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
    ) -> Result<CallId, Backpressure> {
        let given = spec.reply_bytes_max;
        spec.reply_bytes_max = self.reactor().reply_bytes_max(conn, spec);
        let started = if spec.resend != Resend::Never && self.reactor().is_lasting(conn) {
            self.keep_call(conn, token, spec, draft)
        } else {
            self.protect_call(conn, Start::New(token), spec, draft).map(CallId::of)
        };
        spec.reply_bytes_max = given;
        started
    }

    /// As [`CoreCell::place_or_keep_call`], for a call that is not kept.
    pub(in crate::reactor) fn protect_call(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
    ) -> Result<SlotId, Backpressure> {
        #[cfg(feature = "gss")]
        match self.under(conn) {
            // One that prepares another context goes without.
            Under::Context(context) if !spec.is_opening => {
                return self.protect_under(conn, start, spec, draft, context);
            }
            Under::Missing if !spec.is_opening => {
                return Err(Backpressure::Connecting);
            }
            Under::Context(_) | Under::Missing | Under::Nothing => {}
        }
        self.place_call(conn, start, spec, draft)
    }

    /// The same, with the message as it is. Data items that do not fit inline become Read chunks; if the rest does not fit
    /// either, the whole message becomes a Read chunk (RFC 8166 section 3.5).
    pub(in crate::reactor) fn place_call(
        &self,
        conn: ConnId,
        start: Start,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
    ) -> Result<SlotId, Backpressure> {
        let mut stage = self.reactor().stage_call(conn, start, spec)?;
        let segment_bytes = self.reactor().config().segment_bytes();
        let padded = stage.encode_padded(spec, draft, segment_bytes);
        let mut encoded =
            padded.unwrap_or_else(|| stage.encode(spec, draft, Placement::InlineIfRoom));
        stage.check_reads(&encoded)?;
        if !stage.fits(&encoded, segment_bytes) {
            encoded = stage.encode(spec, draft, Placement::Chunk);
        }
        if stage.fits(&encoded, segment_bytes) {
            return self.reactor().emit_call(conn, stage, &encoded, &mut None, start, spec);
        }
        let needed_bytes = encoded.stream_bytes + spec.argument_bytes();
        let mut whole = self
            .private_bulk(conn, needed_bytes)
            .ok_or_else(|| no_block(needed_bytes, longest_block_bytes(self.reactor().config())))?;
        let shape = Shape::unpadded(Placement::Inline);
        let encoded = encode_call(whole.bytes_mut(), spec, draft, &shape);
        if !encoded.fits {
            return Err(Backpressure::TooLarge { needed_bytes: encoded.stream_bytes });
        }
        if !encoded.reduced().is_empty() {
            return Err(Backpressure::Misuse(
                "an exposed argument with others too long to be inline",
            ));
        }
        whole.set_len(encoded.stream_bytes);
        self.reactor().emit_call(conn, stage, &encoded, &mut Some(whole), start, spec)
    }

    /// Memory for the application's arguments and results: memory of the connection if its peer cannot write it at
    /// any time and the configuration allows it; otherwise private memory, which is copied to and from the
    /// connection's memory.
    pub(crate) fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        if self.reactor().config().bulk_view() == BulkView::Lent {
            return self.private_bulk(conn, bytes);
        }
        self.reactor().arena().take(bytes)
    }

    /// Memory of the connection for the application, if the configuration allows it.
    pub(crate) fn exposed_bulk(&self, conn: ConnId, bytes: usize) -> Option<ExposedBulk> {
        let is_lent = self.reactor().config().bulk_view() == BulkView::Lent;
        self.bulk_of(conn, bytes).filter(|_| is_lent).map(ExposedBulk::new)
    }

    /// The same memory as a pool, for other threads.
    pub(crate) fn exposed_memory(&self, conn: ConnId) -> Option<BulkPool> {
        let mut reactor = self.reactor();
        reactor.conn(conn)?;
        let memory = reactor.fabric().memory(conn).arena.unwrap_or(reactor.arena());
        Some(memory.clone()).filter(|_| reactor.config().bulk_view() == BulkView::Lent)
    }

    pub(in crate::reactor) fn bulk_of(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let mut reactor = self.reactor();
        reactor.conn(conn)?;
        reactor.fabric_mut().bulk(conn, bytes)
    }

    /// Passes a reply to its handler, then frees its memory.
    #[inline]
    pub(in crate::reactor) fn deliver_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        match reply.stream {
            ReplyStream::Inline { header_bytes } if hold.is_none() && is_plain(header_bytes) => {
                let (token, xid, placed) = (reply.token, reply.slot.xid(), &reply.placed);
                let stream = &message.bytes()[header_bytes..];
                let (buffers, padded) = (None, None);
                up.on_reply(ReplyFrame { conn, token, xid, stream, placed, buffers, padded });
                self.reactor().finish_reply(conn, message, None);
            }
            _ => self.deliver_other_reply(conn, message, reply, (hold, None), up),
        }
    }

    /// Delivers a reply with buffers, chunks or padding, and its Read chunks that were fetched.
    #[inline(never)]
    pub(in crate::reactor) fn deliver_other_reply(
        &self,
        conn: ConnId,
        mut message: Buf,
        reply: &DeliveredReply,
        (mut hold, fetched): (Option<Box<CallHold>>, Option<&mut Sinks>),
        up: &mut impl Upcalls,
    ) {
        #[cfg(feature = "gss")]
        let whole = match fetched {
            None => self.reactor().take_whole(conn, reply, hold.as_deref_mut()),
            Some(_) => None,
        };
        let brought = message.bytes().first_chunk::<8>().copied().unwrap_or_default();
        let (has_buffers, own) = (hold.is_some() || fetched.is_some(), Cell::new(false));
        let mut pulled = PulledChunks::default();
        let mut joined = &own;
        if let Some(sinks) = fetched {
            let (chunks, bulks) = (&sinks.chunks[..sinks.count], &mut sinks.bulks[..sinks.count]);
            pulled = PulledChunks { chunks, bulks, base: 0 };
            joined = &sinks.joined;
        }
        let (mut arguments, mut results): (&mut [Option<Bulk>], &mut [Option<Bulk>]) =
            (&mut [], &mut []);
        let mut from_chunk: &[u8] = &[];
        if let Some(hold) = hold.as_deref_mut() {
            from_chunk = private_bytes(hold.reply.as_ref());
            (arguments, results) = (&mut hold.arguments, &mut hold.results);
        }
        let mut padded = None;
        let stream = match reply.stream {
            ReplyStream::Inline { header_bytes } => {
                let (head, said) = Padded::of(&mut message, header_bytes, joined);
                padded = said;
                &head[header_bytes..]
            }
            #[cfg(feature = "gss")]
            ReplyStream::ReplyChunk { .. } if whole.is_some() => &[],
            ReplyStream::ReplyChunk { length } => &from_chunk[..length as usize],
            ReplyStream::Pulled => pulled.take_stream(),
        };
        #[cfg(feature = "gss")]
        let begins = whole.as_ref().map_or(stream, Bulk::bytes);
        #[cfg(not(feature = "gss"))]
        let begins = stream;
        if !self.is_of(&brought, begins) {
            return self.refuse_foreign_reply(conn, message, reply, hold, up);
        }
        let mut buffers = ReplyBuffers {
            arguments,
            results,
            pulled,
            #[cfg(feature = "gss")]
            whole,
        };
        let (token, xid, placed) = (reply.token, reply.slot.xid(), &reply.placed);
        let buffers = has_buffers.then_some(&mut buffers);
        up.on_reply(ReplyFrame { conn, token, xid, stream, placed, buffers, padded });
        let mut reactor = self.reactor();
        reactor.stats().joins += u64::from(joined.get());
        reactor.finish_reply(conn, message, hold);
    }
}

impl Reactor {
    /// Longest results that a call offers room for, in bytes, beside its buffers for data items. If nobody knows their length,
    /// that is as much as one call may return; but the rest of results that have buffers is short. A call in reverse offers
    /// no chunk that the application has not asked for: its client need not take any (RFC 8167 section 5), and that of Linux
    /// refuses a call for an offer that it does not even need.
    fn reply_bytes_max(&mut self, conn: ConnId, spec: &CallSpec) -> usize {
        if !spec.is_reply_assumed {
            return spec.reply_bytes_max;
        }
        let (known, most) = (spec.reply_bytes_max, self.config().read_bytes_max());
        let reverse = self.conn(conn).map(|c| c.reverse);
        let is_unknown = known == usize::MAX;
        if reverse.is_some_and(|it| it.is_inline || it.has_client && is_unknown) {
            return 0;
        }
        match spec.results.iter().flatten().map(|room| room.len()).reduce(usize::saturating_add) {
            None => known.min(most),
            Some(_) if known == usize::MAX => 0,
            Some(placed) => known.saturating_sub(placed).min(most),
        }
    }

    #[inline]
    pub(in crate::reactor) fn take_send_buffer(
        &mut self,
        conn: ConnId,
    ) -> Result<(Buf, &mut Conn), Backpressure> {
        self.take_buffer(conn, false)
    }

    #[inline(always)]
    fn take_buffer(
        &mut self,
        conn: ConnId,
        has_credit: bool,
    ) -> Result<(Buf, &mut Conn), Backpressure> {
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(Backpressure::Down) };
        if c.closing.is_some() {
            return Err(Backpressure::Down);
        }
        if !has_credit && let Err(refused) = c.lane.proto().requester.check_room() {
            return Err(core.stats().refuse(refused));
        }
        if c.queue_room(core.fabric()) == 0 {
            core.stats().queue_full += 1;
            return Err(Backpressure::SendQueueFull);
        }
        let Some(message) = c.take_for_call() else {
            core.stats().no_buffer += 1;
            return Err(Backpressure::NoBuffer);
        };
        Ok((message, c))
    }

    pub(in crate::reactor) fn stage_call(
        &mut self,
        conn: ConnId,
        start: Start,
        spec: &CallSpec,
    ) -> Result<Stage, Backpressure> {
        let (stream_at, segment_bytes) =
            (self.config().headroom_bytes(), self.config().segment_bytes());
        let (message, c) = self.take_buffer(conn, start.has_credit())?;
        let (negotiated, reverse) = (&c.negotiated, c.reverse);
        let negotiation = *c.lane.proto().requester.negotiation();
        let version = negotiation.version();
        let lists_bytes = spec.lists_bytes(segment_bytes, negotiated.reply_bytes_max(version));
        if reverse.is_inline && lists_bytes > 0 {
            return Err(Backpressure::InlineOnly);
        }
        Ok(Stage {
            message,
            stream_at,
            threshold_bytes: negotiation.send_bytes_max(negotiated.thresholds()) as usize,
            version,
            header_bytes: version.plain_header_bytes() + lists_bytes,
            alignment: negotiated.alignment(version),
            padded_header_bytes: 0,
            takes_read_chunks: negotiated.takes_read_chunks() && !reverse.is_inline,
            is_inline: reverse.is_inline,
        })
    }

    /// Deadline of a call that starts now. The turn's time stamp is not used: it may be old if the application was
    /// busy for long.
    #[inline(always)]
    pub(in crate::reactor) fn deadline(&self, spec: &CallSpec) -> Instant {
        let ticks = match spec.deadline {
            Deadline::Default => self.default_timeout_ticks(),
            Deadline::After(time) => self.ticks(time),
            Deadline::None => return Instant(u64::MAX),
        };
        self.in_ticks(ticks)
    }

    /// Sends a call with buffers. On an error the buffers are back in the spec, and the message, if it is to be a chunk of
    /// its own, is still in `whole`.
    pub(in crate::reactor) fn emit_call(
        &mut self,
        conn: ConnId,
        mut stage: Stage,
        encoded: &Encoded,
        whole: &mut Option<Bulk>,
        start: Start,
        spec: &mut CallSpec,
    ) -> Result<SlotId, Backpressure> {
        let deadline = self.deadline(spec);
        let Some((c, core)) = self.conn_and_core(conn) else { return Err(Backpressure::Down) };
        let may_start = start.check(&c.lane.proto().requester);
        may_start.map_err(|refused| core.stats().refuse(refused))?;
        let Some(mut hold) = c.calls.spare() else { return Err(Backpressure::NoBuffer) };
        let mut offering = ChunkExposure::new(core, conn, stage.version, &mut hold);
        let next_xid = || c.lane.proto().requester.next_xid();
        let xid = start.slot().map_or_else(next_xid, SlotId::xid);
        let offered = offering
            .offer_all(xid, c.negotiated.reply_bytes_max(stage.version), encoded, whole, spec)
            .and_then(|()| offering.check(stage.threshold_bytes))
            .and_then(|()| stage.check_padding(encoded, offering.chunks()));
        let chunks = *offering.chunks();
        if let Err(refused) = offered {
            // The peer does not know them yet: each is killed at once, if the last one goes first.
            for handle in hold.handles().iter().rev() {
                core.fabric_mut().revoke(conn, *handle);
            }
            c.calls.recycle(hold);
            return Err(refused);
        }
        let message = whole.take();
        hold.message = hold.message.take().or(message);
        spec.move_into(&mut hold);
        core.stats().copies += inlined_items(encoded, &hold);
        let stream_bytes = if hold.message.is_some() { 0 } else { encoded.stream_bytes };
        let (header, stream) = stage.message.whole_mut().split_at_mut(stage.stream_at);
        let started =
            take_slot_for(&mut c.lane.proto().requester, start, deadline, &chunks, header);
        let (started, header_bytes) = started.map_err(|refused| core.stats().refuse(refused))?;
        put_xid(stream, started.xid);
        if let Some(offer) = &mut c.offer {
            // The one before has ended.
            offer.clear();
            offer.extend_from_slice(&stream[..stream_bytes]);
        }
        let header_at = stage.finish_header(encoded, stage.stream_at - header_bytes);
        let mut message = stage.message;
        message.set_range(header_at..stage.stream_at + stream_bytes);
        c.lane.proto().requester.lend(started.slot);
        c.calls.put(started.slot, hold);
        core.wake_by(c.lane.proto().requester.next_deadline());
        self.post(conn, message, Posted::Call);
        Ok(started.slot)
    }

    /// A reply matched a call: kills the keys of the call and takes its memory, if it has any, out
    /// of the slot. If the peer invalidated a key of another call, the call fails and the
    /// connection ends (RFC 8797 section 4.1).
    #[inline]
    pub(in crate::reactor) fn arrive_reply(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        invalidated: Option<u32>,
    ) -> Result<Option<Box<CallHold>>, Undelivered> {
        let hold = self
            .conn_and_core(conn)
            .and_then(|(c, core)| c.end_call(reply.slot, core.fabric_mut()));
        self.stats().replies_received += 1;
        if hold.is_none() && invalidated.is_none() {
            return Ok(None);
        }
        match hold {
            Some(hold) if hold.is_dying() => Err(Undelivered::Fenced(hold)),
            hold => self.check_memory(conn, reply, hold, invalidated).map_err(Undelivered::Failed),
        }
    }

    /// On a failure the memory has been released.
    pub(in crate::reactor) fn check_memory(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        mut hold: Option<Box<CallHold>>,
        invalidated: Option<u32>,
    ) -> Result<Option<Box<CallHold>>, CallFailure> {
        let fetched = self.fetch_results(conn, reply, hold.as_deref_mut(), invalidated);
        if let Err(failure) = fetched {
            self.recycle_hold(conn, hold);
            return Err(failure);
        }
        Ok(hold)
    }

    pub(in crate::reactor) fn fetch_results(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        hold: Option<&mut CallHold>,
        invalidated: Option<u32>,
    ) -> Result<(), CallFailure> {
        if let Some(handle) = invalidated
            && !hold.as_ref().is_some_and(|hold| hold.handles().contains(&handle))
        {
            self.close_misbehaving(conn, PeerMisbehaved::ForeignKey);
            return Err(CallFailure::Misbehaved(PeerMisbehaved::ForeignKey));
        }
        let Some(hold) = hold else { return Ok(()) };
        let Some(copies) = hold.take_results(&reply.placed) else {
            self.close_misbehaving(conn, PeerMisbehaved::ResultNotFetched);
            return Err(CallFailure::Misbehaved(PeerMisbehaved::ResultNotFetched));
        };
        self.stats().copies += copies;
        let is_exposed = hold.reply.as_ref().is_some_and(Bulk::is_exposed);
        if is_exposed || self.config().bulk_view() == BulkView::Copy {
            return self.copy_reply_chunk(hold, reply);
        }
        Ok(())
    }

    pub(in crate::reactor) fn recycle_hold(&mut self, conn: ConnId, hold: Option<Box<CallHold>>) {
        if let (Some(c), Some(hold)) = (self.conn(conn), hold) {
            c.calls.recycle(hold);
        }
    }

    /// Copies a reply from memory that the peer can still write to memory that it cannot.
    fn copy_reply_chunk(
        &mut self,
        hold: &mut CallHold,
        reply: &DeliveredReply,
    ) -> Result<(), CallFailure> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return Ok(()) };
        let Some(shared) = hold.reply.take() else { return Ok(()) };
        let length = (length as usize).min(shared.len());
        let Some(mut private) = self.arena().take(length) else {
            self.stats().no_buffer += 1;
            return Err(CallFailure::NoMemory);
        };
        private.copy_from_bulk(&shared, length);
        self.stats().copies += 1;
        hold.reply = Some(private);
        Ok(())
    }

    #[inline(always)]
    pub(in crate::reactor) fn finish_reply(
        &mut self,
        conn: ConnId,
        message: Buf,
        hold: Option<Box<CallHold>>,
    ) {
        let Some(c) = self.conn(conn) else { return };
        if let Some(hold) = hold {
            c.calls.recycle(hold);
        }
        self.repost(conn, message);
    }
}

/// Starts a call with chunks, or one that is sent again, in the state of the protocol.
fn take_slot_for(
    requester: &mut Requester<Box<[CallSlot]>>,
    start: Start,
    deadline: Instant,
    chunks: &CallChunks,
    header: &mut [u8],
) -> Result<(StartedCall, usize), CallRefused> {
    match start {
        Start::New(token) => requester.start_call(token, deadline, chunks, header),
        Start::Again(slot) => requester.resend(slot, chunks, header),
        #[cfg(feature = "gss")]
        Start::Reserved(slot) => requester.send_reserved(slot, chunks, header),
    }
}

impl Stage {
    #[inline]
    pub(in crate::reactor) fn encode(
        &mut self,
        spec: &CallSpec,
        draft: &Draft<'_>,
        placement: Placement,
    ) -> Encoded {
        let shape = Shape { header_bytes: self.header_bytes, ..Shape::unpadded(placement) };
        self.encode_as(spec, draft, &shape)
    }

    #[inline]
    pub(in crate::reactor) fn encode_as(
        &mut self,
        spec: &CallSpec,
        draft: &Draft<'_>,
        shape: &Shape,
    ) -> Encoded {
        let room = self.threshold_bytes.saturating_sub(shape.header_bytes);
        let stream = &mut self.message.whole_mut()[self.stream_at..][..room];
        encode_call(stream, spec, draft, shape)
    }

    /// "If zero, the peer MUST NOT issue requests that require RDMA Read to satisfy" (RFC 5666
    /// section 6.2): then the call goes inline, all of it, or not at all.
    pub(in crate::reactor::client) fn check_reads(
        &self,
        encoded: &Encoded,
    ) -> Result<(), Backpressure> {
        if self.takes_read_chunks {
            return Ok(());
        }
        let items = encoded.reduced().iter();
        let items_bytes: usize = items.map(|item| roundup4(item.length as usize)).sum();
        let needed_bytes = self.header_bytes + encoded.stream_bytes + items_bytes;
        if needed_bytes <= self.threshold_bytes && encoded.reduced().is_empty() {
            return Ok(());
        }
        match self.is_inline {
            true => Err(Backpressure::InlineOnly),
            false => Err(Backpressure::NoRdmaRead { needed_bytes }),
        }
    }

    /// Returns true if the message, with the Read chunks it needs, stays within the threshold.
    pub(in crate::reactor) fn fits(&self, encoded: &Encoded, segment_bytes: usize) -> bool {
        let alignment_bytes = if encoded.padded { MSGP_FIELDS_BYTES } else { 0 };
        let read_list_bytes = Self::read_list_bytes(encoded, segment_bytes);
        let header_bytes = self.header_bytes + alignment_bytes + read_list_bytes;
        encoded.fits && header_bytes + encoded.stream_bytes <= self.threshold_bytes
    }

    /// Bytes of the Read list entries of what was taken out of a stream.
    pub(in crate::reactor) fn read_list_bytes(encoded: &Encoded, segment_bytes: usize) -> usize {
        let items = encoded.reduced().iter();
        let reads = items.map(|item| (item.length as usize).div_ceil(segment_bytes).max(1));
        reads.sum::<usize>() * READ_SEGMENT_BYTES
    }
}

/// Writes the RPC call header and the arguments. The XID is put in when the call has its slot.
#[inline]
fn encode_call(stream: &mut [u8], spec: &CallSpec, draft: &Draft<'_>, shape: &Shape) -> Encoded {
    if !spec.is_special {
        return encode_items(stream, &[], draft, shape);
    }
    let mut items = shape.placements.map(|placement| Item { bytes: &[], placement });
    let mut count = 0;
    for (argument, item) in spec.arguments.iter().flatten().zip(&mut items) {
        if argument.is_exposed() {
            item.placement = Placement::Unseen(argument.len() as u32);
        } else {
            item.bytes = argument.bytes();
        }
        count += 1;
    }
    encode_items(stream, &items[..count], draft, shape)
}

#[inline]
fn encode_items(
    stream: &mut [u8],
    items: &[Item<'_>],
    draft: &Draft<'_>,
    shape: &Shape,
) -> Encoded {
    let mut padding = Padding::new(shape.alignment, shape.header_bytes);
    let mut writer = match shape.alignment {
        Alignment::NONE => StreamWriter::new(stream, items),
        _ => StreamWriter::aligned(stream, items, &mut padding),
    };
    draft.write(&mut writer);
    writer.finish()
}

fn inlined_items(encoded: &Encoded, hold: &CallHold) -> u64 {
    let all = hold.arguments.iter().flatten().count();
    let reduced = if hold.message.is_some() { 0 } else { encoded.reduced().len() };
    (all - reduced) as u64
}

impl CoreCell {
    /// The RPC message in `stream` begins with the XID of the message that brought it (RFC 8166 section 4.2), or is one of
    /// the drafts of RFC 5666, whose XID counts less (section 4.1).
    pub(crate) fn is_of(&self, message: &[u8], stream: &[u8]) -> bool {
        let (brought, begins) = (message.first_chunk::<4>(), stream.first_chunk::<4>());
        let profile = || self.reactor().config().protocol().under(version_of(message));
        brought == begins || (begins.is_some() && profile().prefers_header_xid())
    }
}

/// Reason why an arrived reply is not delivered.
pub(in crate::reactor) enum Undelivered {
    /// The call fails despite the reply.
    Failed(CallFailure),
    /// Keys of its call are still being killed.
    Fenced(Box<CallHold>),
}

impl CallSpec {
    /// Returns true for a call with only a stream, whose reply fits into the shortest message of any connection.
    #[inline]
    pub(in crate::reactor) fn is_plain(&self) -> bool {
        !self.is_special && self.reply_bytes_max <= Self::SHORT_RESULTS_BYTES_MAX
    }

    pub(crate) fn argument_count(&self) -> usize {
        if !self.is_special {
            return 0;
        }
        self.arguments.iter().flatten().count()
    }

    fn argument_bytes(&self) -> usize {
        self.arguments.iter().flatten().map(|argument| argument.len() + 3).sum()
    }

    /// Room that a Reply chunk must have if the reply may not fit inline: "requester MUST give one" then (RFC 8166
    /// section 4.3.3). The reply's header returns the Write list; behind a header without lists, streams of
    /// `inline_bytes_max` fit.
    #[inline]
    pub(in crate::reactor) fn reply_chunk_bytes(
        &self,
        write_list_bytes: usize,
        inline_bytes_max: usize,
    ) -> Option<usize> {
        let longest = write_list_bytes + REPLY_HEADER_BYTES_MAX + self.reply_bytes_max;
        let needed = self.reply_bytes_max > 0 && longest > inline_bytes_max;
        needed.then_some(self.reply_bytes_max + REPLY_HEADER_BYTES_MAX)
    }

    /// Bytes that this spec's results and Reply chunk add to the transport header.
    fn lists_bytes(&self, segment_bytes: usize, inline_bytes_max: usize) -> usize {
        let writes = self.write_list_bytes(segment_bytes);
        let reply = self.reply_chunk_bytes(writes, inline_bytes_max);
        writes + reply.map_or(0, |bytes| 4 + segments_bytes(bytes, segment_bytes))
    }

    pub(in crate::reactor) fn write_list_bytes(&self, segment_bytes: usize) -> usize {
        let results = self.results.iter().flatten();
        results.map(|result| 8 + segments_bytes(result.len(), segment_bytes)).sum()
    }

    fn move_into(&mut self, hold: &mut CallHold) {
        hold.arguments = std::mem::take(&mut self.arguments);
        hold.results = std::mem::take(&mut self.results);
        self.is_special = self.resend != Resend::Never;
    }
}

/// The segments of a chunk in a Write list.
fn segments_bytes(bytes: usize, segment_bytes: usize) -> usize {
    WRITE_SEGMENT_BYTES * bytes.div_ceil(segment_bytes).max(1)
}

impl StatsSnapshot {
    #[cold]
    pub(in crate::reactor) fn refuse(&mut self, refused: CallRefused) -> Backpressure {
        match refused {
            CallRefused::NoCredit => {
                self.credit_stalls += 1;
                Backpressure::NoCredit
            }
            CallRefused::NoSlot => {
                self.no_buffer += 1;
                Backpressure::NoBuffer
            }
        }
    }
}
