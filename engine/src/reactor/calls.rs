//! The client half of a core: starting calls, and bringing their replies back to the application.

use super::connection::{CallHold, Conn};
use super::core::{CoreCell, Reactor};
use super::memory::longest_block_bytes;
use super::ops::{
    Backpressure, CallSpec, CallTarget, Deadline, Encode, PulledChunks, ReplyBuffers, ReplyFrame,
    Upcalls,
};
use crate::config::{BulkView, Config};
use crate::fabric::{Access, ConnId, ExposeError, Fabric, SendWr};
use crate::mem::{Buf, Bulk};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::limits::{INLINE_THRESHOLD_MIN_BYTES, ITEMS_MAX};
use spinrpc_proto::output::{CallFailure, DeliveredReply, PeerMisbehaved, ReplyStream};
use spinrpc_proto::payload::{
    CallChunks, ChunkOffer, Encoded, Item, PLAIN_HEADER_BYTES, Placement, StreamWriter,
};
use spinrpc_proto::rdma::v1::{MSGP_FIELDS_BYTES, alignment_of};
use spinrpc_proto::requester::CallRefused;
use spinrpc_proto::xdr::Padding;
use spinrpc_proto::xdr::roundup4;

/// Bytes of one segment in the Read list.
pub(super) const READ_SEGMENT_BYTES: usize = 24;
/// Bytes of one segment in the Write list or the Reply chunk.
const WRITE_SEGMENT_BYTES: usize = 16;
/// RPC header of a reply with the longest verifier (RFC 5531 section 8.2).
const REPLY_HEADER_BYTES_MAX: usize = 24 + 400;

static NO_CHUNKS: CallChunks = CallChunks::EMPTY;

/// A call whose stream is being written; nothing but the buffer is taken yet.
pub(super) struct Stage {
    pub(super) message: Buf,
    /// Where the stream starts in the buffer; the transport header will end there.
    stream_at: usize,
    /// Longest message, transport header included.
    pub(super) threshold_bytes: usize,
    /// Transport header with what the spec offers for the reply, and without Read chunks.
    pub(super) header_bytes: usize,
    /// How the connection pads inline data.
    pub(super) alignment: Alignment,
    /// The header for which the padding was written.
    pub(super) padded_header_bytes: usize,
    /// Read chunks may be offered (RFC 5666 section 6.2).
    takes_read_chunks: bool,
}

/// How a stream is written: where its items go, and its padding.
pub(super) struct Shape {
    pub(super) placements: [Placement; ITEMS_MAX],
    pub(super) alignment: Alignment,
    /// The transport header before it.
    pub(super) header_bytes: usize,
}

impl Shape {
    fn unpadded(placement: Placement) -> Self {
        let placements = [placement; ITEMS_MAX];
        Self { placements, alignment: Alignment::NONE, header_bytes: 0 }
    }
}

impl<F: Fabric> CoreCell<F> {
    pub(super) fn start_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: Encode<'_>,
    ) -> Result<(), Backpressure> {
        if spec.is_plain() && self.start_plain_call(conn, target, spec, encode)? {
            return Ok(());
        }
        self.start_any_call(conn, target, spec, encode)
    }

    /// The common case: no data items, and a reply that fits inline anywhere. `false` when the
    /// arguments do not; then nothing has happened.
    #[inline]
    fn start_plain_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
    ) -> Result<bool, Backpressure> {
        let (mut message, threshold_bytes) = self.reactor().take_call_buffer(conn)?;
        let stream = &mut message.whole_mut()[PLAIN_HEADER_BYTES..threshold_bytes];
        let mut writer = StreamWriter::new(stream, &[]);
        target.header.write(target.procedure, &mut writer);
        encode(&mut writer);
        let Some(stream_bytes) = writer.plain_bytes() else { return Ok(false) };
        self.reactor().send_plain_call(conn, message, stream_bytes, target, spec)?;
        Ok(true)
    }

    fn start_any_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: Encode<'_>,
    ) -> Result<(), Backpressure> {
        if spec.overfull {
            return Err(Backpressure::Misuse("more than four data items in one direction"));
        }
        let mut stage = self.reactor().stage_call(conn, spec)?;
        let segment_bytes = self.reactor().config.segment_bytes();
        let encoded = stage
            .encode_padded(target, spec, encode, segment_bytes)
            .unwrap_or_else(|| stage.encode(target, spec, encode, Placement::InlineIfRoom));
        if encoded.items_missing || usize::from(encoded.items_used) != spec.argument_count() {
            return Err(Backpressure::Misuse("stream and spec differ in their data items"));
        }
        self.start_chunked_call(conn, stage, encoded, target, spec, encode)
    }

    /// If the data items do not fit beside the rest they become Read chunks; if the rest does not
    /// fit either, the whole message does (RFC 8166 section 3.5).
    fn start_chunked_call(
        &self,
        conn: ConnId,
        mut stage: Stage,
        mut encoded: Encoded,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: Encode<'_>,
    ) -> Result<(), Backpressure> {
        let segment_bytes = self.reactor().config.segment_bytes();
        stage.check_reads(&encoded)?;
        if !stage.fits(&encoded, segment_bytes) {
            encoded = stage.encode(target, spec, encode, Placement::Chunk);
        }
        if stage.fits(&encoded, segment_bytes) {
            return self.reactor().send_call(conn, stage, &encoded, None, target, spec);
        }
        let needed_bytes = encoded.stream_bytes + spec.argument_bytes();
        let mut whole = self
            .bulk_of(conn, needed_bytes)
            .ok_or_else(|| no_block(needed_bytes, longest_block_bytes(&self.reactor().config)))?;
        let shape = Shape::unpadded(Placement::Inline);
        let encoded = encode_call(whole.bytes_mut(), target, spec, encode, &shape);
        if !encoded.fits {
            return Err(Backpressure::Misuse("the stream changed while it was encoded again"));
        }
        whole.set_len(encoded.stream_bytes);
        self.reactor().send_call(conn, stage, &encoded, Some(whole), target, spec)
    }

    /// Memory for the application's arguments and results: that of the connection, or with
    /// `shm.bulk = copy` private memory that is copied into and out of it.
    pub(super) fn application_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        if self.reactor().config.shm_bulk() == BulkView::Lent {
            return self.bulk_of(conn, bytes);
        }
        self.reactor().bulk.take(bytes)
    }

    pub(super) fn bulk_of(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        let mut reactor = self.reactor();
        reactor.conns.find(conn)?;
        reactor.fabric.bulk(conn, bytes)
    }

    /// Hands a reply to its handler, then frees what it lay in.
    #[inline]
    pub(super) fn deliver_reply(
        &self,
        conn: ConnId,
        message: Buf,
        reply: &DeliveredReply,
        mut hold: Option<Box<CallHold>>,
        up: &mut impl Upcalls,
    ) {
        if let ReplyStream::Inline { header_bytes } = reply.stream
            && header_bytes != PLAIN_HEADER_BYTES
            && alignment_of(message.bytes()) != Alignment::NONE
        {
            return self.deliver_padded_reply(conn, message, header_bytes, reply, hold, up);
        }
        let mut from_chunk: &[u8] = &[];
        let mut buffers = None;
        if let Some(hold) = hold.as_deref_mut() {
            from_chunk = hold.reply.as_ref().map_or(&[], Bulk::bytes);
            let (arguments, results) = (&mut hold.arguments[..], &mut hold.results[..]);
            let pulled = PulledChunks::default();
            buffers = Some(ReplyBuffers { arguments, results, pulled });
        }
        let stream = match reply.stream {
            ReplyStream::Inline { header_bytes } => &message.bytes()[header_bytes..],
            ReplyStream::ReplyChunk { length } => &from_chunk[..length as usize],
            // Not without Read chunks, which come another way.
            ReplyStream::Pulled => &[],
        };
        up.on_reply(ReplyFrame {
            conn,
            token: reply.token,
            stream,
            placed: &reply.placed,
            buffers: buffers.as_mut(),
            padded: None,
        });
        self.reactor().finish_reply(conn, message, hold);
    }
}

impl<F: Fabric> Reactor<F> {
    #[inline]
    fn take_call_buffer(&mut self, conn: ConnId) -> Result<(Buf, usize), Backpressure> {
        self.take_send_buffer(conn).map(|(message, c)| (message, c.negotiated.plain_bytes_max()))
    }

    #[inline]
    fn take_send_buffer(&mut self, conn: ConnId) -> Result<(Buf, &Conn), Backpressure> {
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        if c.closing.is_some() {
            return Err(Backpressure::Down);
        }
        if let Err(refused) = c.proto.requester.check_room() {
            return Err(self.stats.refuse(refused));
        }
        if c.send_room(&self.fabric) == 0 {
            self.stats.queue_full += 1;
            return Err(Backpressure::SendQueueFull);
        }
        let Some(message) = c.sends.take() else {
            self.stats.no_buffer += 1;
            return Err(Backpressure::NoBuffer);
        };
        Ok((message, c))
    }

    fn stage_call(&mut self, conn: ConnId, spec: &CallSpec) -> Result<Stage, Backpressure> {
        let (stream_at, segment_bytes) =
            (self.config.headroom_bytes(), self.config.segment_bytes());
        let (message, Conn { negotiated, .. }) = self.take_send_buffer(conn)?;
        Ok(Stage {
            message,
            stream_at,
            threshold_bytes: negotiated.send_bytes_max(),
            header_bytes: spec.header_bytes(segment_bytes, negotiated.recv_bytes_max()),
            alignment: negotiated.alignment(),
            padded_header_bytes: 0,
            takes_read_chunks: negotiated.takes_read_chunks(),
        })
    }

    /// A deadline that the call names counts from now. The configured one, which is long, counts
    /// from the turn's time stamp, which is as old as the application was away.
    fn deadline(&self, spec: &CallSpec) -> Instant {
        let (from, ticks) = match spec.deadline {
            Deadline::Default => (self.time(), self.default_timeout_ticks),
            Deadline::After(time) => (self.read_clock(), self.clock.from_duration(time)),
            Deadline::None => return Instant(u64::MAX),
        };
        Instant(from.0.saturating_add(ticks))
    }

    #[inline]
    fn send_plain_call(
        &mut self,
        conn: ConnId,
        mut message: Buf,
        stream_bytes: usize,
        target: &CallTarget<'_>,
        spec: &CallSpec,
    ) -> Result<(), Backpressure> {
        let deadline = self.deadline(spec);
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        let (header, stream) = message.whole_mut().split_at_mut(PLAIN_HEADER_BYTES);
        let (started, _) = c
            .proto
            .requester
            .start_call(target.token, deadline, &NO_CHUNKS, header)
            .map_err(|refused| self.stats.refuse(refused))?;
        put_xid(stream, started.xid);
        message.set_range(0..PLAIN_HEADER_BYTES + stream_bytes);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(())
    }

    #[inline]
    fn post_call(&mut self, conn: ConnId, message: Buf) {
        self.stats.calls_sent += 1;
        self.stats.bytes_inline += message.len() as u64;
        if self.fabric.post(conn, SendWr::Send { message, invalidate: None }).is_err() {
            // There was room before the encoder ran: it has closed the connection, or filled the
            // queue. The call is in flight by now, and ends with the connection: once.
            self.close_overrun(conn, "send queue");
        }
    }

    /// Sends a call with buffers. On an error the buffers are back in the spec.
    fn send_call(
        &mut self,
        conn: ConnId,
        mut stage: Stage,
        encoded: &Encoded,
        whole: Option<Bulk>,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
    ) -> Result<(), Backpressure> {
        let deadline = self.deadline(spec);
        let segment_bytes = self.config.segment_bytes();
        let Some(c) = self.conns.find(conn) else { return Err(Backpressure::Down) };
        c.proto.requester.check_room().map_err(|refused| self.stats.refuse(refused))?;
        let Some(mut hold) = c.spare_holds.pop() else { return Err(Backpressure::NoBuffer) };
        let mut offering = Offering {
            fabric: &mut self.fabric,
            conn,
            segment_bytes,
            longest_block_bytes: longest_block_bytes(&self.config),
            chunks: CallChunks::EMPTY,
            hold: &mut hold,
            copies: 0,
        };
        let offered = offering
            .offer_all(c, encoded, whole, spec)
            .and_then(|()| offering.check(&self.config, stage.threshold_bytes))
            .and_then(|()| stage.check_padding(encoded, &offering.chunks));
        let chunks = offering.chunks;
        self.stats.copies += offering.copies;
        if let Err(refused) = offered {
            for handle in hold.handles() {
                self.fabric.revoke(conn, *handle);
            }
            c.recycle_hold(hold);
            return Err(refused);
        }
        spec.move_into(&mut hold);
        self.stats.copies += inlined_items(encoded, &hold);
        let stream_bytes = if hold.message.is_some() { 0 } else { encoded.stream_bytes };
        let (header, stream) = stage.message.whole_mut().split_at_mut(stage.stream_at);
        let (started, header_bytes) = c
            .proto
            .requester
            .start_call(target.token, deadline, &chunks, header)
            .map_err(|refused| self.stats.refuse(refused))?;
        put_xid(stream, started.xid);
        let header_at = stage.finish_header(encoded, stage.stream_at - header_bytes);
        let mut message = stage.message;
        message.set_range(header_at..stage.stream_at + stream_bytes);
        c.calls[usize::from(started.slot.index)] = Some(hold);
        self.next_deadline = self.next_deadline.min(deadline);
        self.post_call(conn, message);
        Ok(())
    }

    /// A reply matched a call: kills the keys of the call and takes its memory, if it has any, out
    /// of the slot. If the peer invalidated a key of another call, the call fails and the
    /// connection ends (RFC 8797 section 4.1).
    #[inline]
    pub(super) fn arrive_reply(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        invalidated: Option<u32>,
    ) -> Result<Option<Box<CallHold>>, CallFailure> {
        let c = self.conns.find(conn);
        let hold = c.and_then(|c| c.end_call(reply.slot, &mut self.fabric));
        self.stats.replies_received += 1;
        if hold.is_none() && invalidated.is_none() {
            return Ok(None);
        }
        self.check_memory(conn, reply, hold, invalidated)
    }

    /// On a failure the memory has gone back.
    pub(super) fn check_memory(
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

    pub(super) fn fetch_results(
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
        self.stats.copies += hold.take_results(&reply.placed);
        match self.config.shm_bulk() {
            BulkView::Copy => self.copy_reply_chunk(hold, reply),
            BulkView::Lent => Ok(()),
        }
    }

    pub(super) fn recycle_hold(&mut self, conn: ConnId, hold: Option<Box<CallHold>>) {
        if let (Some(c), Some(hold)) = (self.conns.find(conn), hold) {
            c.recycle_hold(hold);
        }
    }

    /// Takes a reply that lies where the peer can still write to a place where it cannot.
    fn copy_reply_chunk(
        &mut self,
        hold: &mut CallHold,
        reply: &DeliveredReply,
    ) -> Result<(), CallFailure> {
        let ReplyStream::ReplyChunk { length } = reply.stream else { return Ok(()) };
        let Some(shared) = hold.reply.take() else { return Ok(()) };
        let length = (length as usize).min(shared.len());
        let Some(mut private) = self.bulk.take(length) else {
            self.stats.no_buffer += 1;
            return Err(CallFailure::NoMemory);
        };
        private.bytes_mut().copy_from_slice(&shared.bytes()[..length]);
        self.stats.copies += 1;
        hold.reply = Some(private);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn finish_reply(&mut self, conn: ConnId, message: Buf, hold: Option<Box<CallHold>>) {
        let Some(c) = self.conns.find(conn) else { return };
        if let Some(hold) = hold {
            c.recycle_hold(hold);
        }
        self.repost(conn, message);
    }
}

impl Stage {
    #[inline]
    fn encode(
        &mut self,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
        placement: Placement,
    ) -> Encoded {
        let shape = Shape { header_bytes: self.header_bytes, ..Shape::unpadded(placement) };
        self.encode_as(target, spec, encode, &shape)
    }

    #[inline]
    pub(super) fn encode_as(
        &mut self,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
        shape: &Shape,
    ) -> Encoded {
        let room = self.threshold_bytes.saturating_sub(shape.header_bytes);
        let stream = &mut self.message.whole_mut()[self.stream_at..][..room];
        encode_call(stream, target, spec, encode, shape)
    }

    /// "If zero, the peer MUST NOT issue requests that require RDMA Read to satisfy" (RFC 5666
    /// section 6.2): then the call goes inline, all of it, or not at all.
    fn check_reads(&self, encoded: &Encoded) -> Result<(), Backpressure> {
        if self.takes_read_chunks {
            return Ok(());
        }
        let items = encoded.reduced().iter();
        let items_bytes: usize = items.map(|item| roundup4(item.length as usize)).sum();
        let needed_bytes = self.header_bytes + encoded.stream_bytes + items_bytes;
        if needed_bytes <= self.threshold_bytes {
            return Ok(());
        }
        Err(Backpressure::NoRdmaRead { needed_bytes })
    }

    /// With the Read chunks it needs, the message keeps within the threshold.
    fn fits(&self, encoded: &Encoded, segment_bytes: usize) -> bool {
        let alignment_bytes = if encoded.padded { MSGP_FIELDS_BYTES } else { 0 };
        let read_list_bytes = Self::read_list_bytes(encoded, segment_bytes);
        let header_bytes = self.header_bytes + alignment_bytes + read_list_bytes;
        encoded.fits && header_bytes + encoded.stream_bytes <= self.threshold_bytes
    }
}

/// Writes the RPC call header and the arguments. The XID is put in when the call has its slot.
#[inline]
fn encode_call(
    stream: &mut [u8],
    target: &CallTarget<'_>,
    spec: &CallSpec,
    encode: Encode<'_>,
    shape: &Shape,
) -> Encoded {
    if !spec.has_buffers {
        return encode_items(stream, target, &[], encode, shape);
    }
    let mut items = shape.placements.map(|placement| Item { bytes: &[], placement });
    let mut count = 0;
    for (argument, item) in spec.arguments.iter().flatten().zip(&mut items) {
        item.bytes = argument.bytes();
        count += 1;
    }
    encode_items(stream, target, &items[..count], encode, shape)
}

#[inline]
fn encode_items(
    stream: &mut [u8],
    target: &CallTarget<'_>,
    items: &[Item<'_>],
    encode: Encode<'_>,
    shape: &Shape,
) -> Encoded {
    let mut padding = Padding::new(shape.alignment, shape.header_bytes);
    let mut writer = match shape.alignment {
        Alignment::NONE => StreamWriter::new(stream, items),
        _ => StreamWriter::aligned(stream, items, &mut padding),
    };
    target.header.write(target.procedure, &mut writer);
    encode(&mut writer);
    writer.finish()
}

#[inline]
fn put_xid(stream: &mut [u8], xid: Xid) {
    // With the word behind it, which says CALL: as the pair that will be copied on.
    if let Some(pair) = stream.first_chunk_mut::<8>() {
        *pair = (u64::from(xid.0) << 32).to_be_bytes();
    }
}

fn inlined_items(encoded: &Encoded, hold: &CallHold) -> u64 {
    let all = hold.arguments.iter().flatten().count();
    let reduced = if hold.message.is_some() { 0 } else { encoded.reduced().len() };
    (all - reduced) as u64
}

/// Makes the memory of one call reachable, chunk by chunk.
struct Offering<'a, F: Fabric> {
    fabric: &'a mut F,
    conn: ConnId,
    segment_bytes: usize,
    longest_block_bytes: usize,
    chunks: CallChunks,
    hold: &'a mut CallHold,
    /// Items copied because they lie outside of the connection's memory.
    copies: u64,
}

impl<F: Fabric> Offering<'_, F> {
    fn offer_all(
        &mut self,
        c: &Conn,
        encoded: &Encoded,
        whole: Option<Bulk>,
        spec: &mut CallSpec,
    ) -> Result<(), Backpressure> {
        match whole {
            Some(mut message) => {
                // The stream's first word is the XID, which must be right before the peer may look.
                put_xid(message.bytes_mut(), c.proto.requester.next_xid());
                let offer = self.expose(&mut message, Access::RemoteRead)?;
                require_room(self.chunks.push_read(0, offer))?;
                self.hold.message = Some(message);
            }
            None => self.offer_reads(encoded, spec)?,
        }
        for (index, result) in spec.results.iter_mut().enumerate() {
            let Some(result) = result else { continue };
            let (offer, copy) = self.expose_item(result, Access::RemoteWrite)?;
            self.hold.result_copies[index] = copy;
            require_room(self.chunks.push_write(offer))?;
        }
        let write_list_bytes = spec.write_list_bytes(self.segment_bytes);
        let recv_bytes_max = c.negotiated.recv_bytes_max();
        if let Some(bytes) = spec.reply_chunk_bytes(write_list_bytes, recv_bytes_max) {
            let mut reply = self.lend(bytes)?;
            let offer = self.expose(&mut reply, Access::RemoteWrite)?;
            require_room(self.chunks.set_reply(offer))?;
            self.hold.reply = Some(reply);
        }
        Ok(())
    }

    /// The lists keep within what is configured, for which a send buffer has headroom, and the
    /// header within the threshold, which it counts towards (RFC 8166 section 3.3.2).
    fn check(&self, config: &Config, threshold_bytes: usize) -> Result<(), Backpressure> {
        let (reads, writes) = (self.chunks.reads(), self.chunks.writes());
        let offers = reads.iter().map(|(_, offer)| offer).chain(writes).chain(self.chunks.reply());
        let segments_max = offers.map(ChunkOffer::segment_count).max().unwrap_or(0);
        if reads.len().max(writes.len()) > config.chunks_max() {
            return Err(Backpressure::Misuse("more data items than rpc.max_chunks"));
        }
        if segments_max > config.segments_max() {
            return Err(Backpressure::Misuse("more segments of a chunk than rpc.max_segments"));
        }
        let bytes_max = config.peer_limits().payload_bytes_max as usize;
        match (self.longest_list_bytes(), self.chunks.header_bytes()) {
            (needed_bytes, _) if needed_bytes > bytes_max => {
                Err(Backpressure::TooLarge { needed_bytes })
            }
            (_, needed_bytes) if needed_bytes > threshold_bytes => {
                Err(Backpressure::TooLarge { needed_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Bytes that the Read list, the Write list or the Reply chunk names, whichever names most. The
    /// reply returns the last two, and a list beyond our own limits would not be taken back.
    fn longest_list_bytes(&self) -> usize {
        let bytes = |offer: &ChunkOffer| offer.length as usize;
        let reads = self.chunks.reads().iter().map(|(_, offer)| bytes(offer)).sum();
        let writes = self.chunks.writes().iter().map(bytes).sum();
        let reply = self.chunks.reply().map_or(0, bytes);
        usize::max(reads, writes).max(reply)
    }

    fn offer_reads(&mut self, encoded: &Encoded, spec: &mut CallSpec) -> Result<(), Backpressure> {
        for item in encoded.reduced() {
            let argument = spec.arguments.iter_mut().flatten().nth(usize::from(item.index));
            let Some(argument) = argument else { continue };
            let (offer, copy) = self.expose_item(argument, Access::RemoteRead)?;
            self.hold.argument_copies[usize::from(item.index)] = copy;
            require_room(self.chunks.push_read(item.position, offer))?;
        }
        Ok(())
    }

    /// Makes an item of the application reachable. One that lies elsewhere than in memory of the
    /// connection is reached by way of a copy there, which the call keeps.
    fn expose_item(
        &mut self,
        item: &mut Bulk,
        access: Access,
    ) -> Result<(ChunkOffer, Option<Bulk>), Backpressure> {
        if let Some(offer) = self.try_expose(item, access)? {
            return Ok((offer, None));
        }
        let mut copy = self.lend(item.len())?;
        if access == Access::RemoteRead {
            copy.bytes_mut().copy_from_slice(item.bytes());
            self.copies += 1;
        }
        let offer = self.expose(&mut copy, access)?;
        Ok((offer, Some(copy)))
    }

    fn lend(&mut self, bytes: usize) -> Result<Bulk, Backpressure> {
        let bulk = self.fabric.bulk(self.conn, bytes);
        bulk.ok_or_else(|| no_block(bytes, self.longest_block_bytes))
    }

    fn expose(&mut self, memory: &mut Bulk, access: Access) -> Result<ChunkOffer, Backpressure> {
        let offer = self.try_expose(memory, access)?;
        offer.ok_or(Backpressure::Misuse("the driver does not know its own memory"))
    }

    /// `None` for memory that does not belong to the connection.
    fn try_expose(
        &mut self,
        memory: &mut Bulk,
        access: Access,
    ) -> Result<Option<ChunkOffer>, Backpressure> {
        let lease = memory.lease(0..memory.len());
        let remote = match self.fabric.expose(self.conn, lease, access) {
            Ok(remote) => remote,
            Err(ExposeError::Foreign) => return Ok(None),
            Err(ExposeError::NoKey) => return Err(Backpressure::NoBuffer),
            Err(ExposeError::Down) => return Err(Backpressure::Down),
        };
        self.hold.add_handle(remote.handle);
        let offer = ChunkOffer {
            handle: remote.handle,
            length: remote.length,
            offset: remote.offset,
            segment_bytes: self.segment_bytes as u32,
        };
        Ok(Some(offer))
    }
}

impl CallHold {
    /// Sets the lengths of the results, after fetching those that were placed in a copy. Returns
    /// how many that were.
    fn take_results(&mut self, placed: &[u32; ITEMS_MAX]) -> u64 {
        let mut copied = 0;
        let mut lengths = placed.iter();
        for (result, copy) in self.results.iter_mut().zip(&self.result_copies) {
            let Some(result) = result else { continue };
            let length = lengths.next().map_or(0, |length| *length as usize);
            result.set_len(length.min(result.capacity()));
            if let Some(copy) = copy {
                let length = result.len().min(copy.len());
                result.bytes_mut()[..length].copy_from_slice(&copy.bytes()[..length]);
                copied += 1;
            }
        }
        copied
    }
}

/// Why the connection has no block of this size: none is that long, or all are lent out.
fn no_block(needed_bytes: usize, longest_bytes: usize) -> Backpressure {
    if needed_bytes > longest_bytes {
        return Backpressure::TooLarge { needed_bytes };
    }
    Backpressure::NoBuffer
}

fn require_room(taken: bool) -> Result<(), Backpressure> {
    taken.then_some(()).ok_or(Backpressure::Misuse("more segments than one call may offer"))
}

impl CallSpec {
    /// Nothing beside the stream, and a reply that fits into the shortest message there is.
    #[inline]
    fn is_plain(&self) -> bool {
        !self.has_buffers
            && self.reply_chunk_bytes(0, INLINE_THRESHOLD_MIN_BYTES as usize).is_none()
    }

    fn argument_count(&self) -> usize {
        if !self.has_buffers {
            return 0;
        }
        self.arguments.iter().flatten().count()
    }

    fn argument_bytes(&self) -> usize {
        self.arguments.iter().flatten().map(|argument| argument.len() + 3).sum()
    }

    /// Room a Reply chunk must have, when the reply, whose header returns the Write list, may not
    /// fit inline: "requester MUST give one" then (RFC 8166 section 4.3.3).
    #[inline]
    fn reply_chunk_bytes(&self, write_list_bytes: usize, recv_bytes_max: usize) -> Option<usize> {
        let header_bytes = PLAIN_HEADER_BYTES + write_list_bytes;
        let longest = header_bytes + REPLY_HEADER_BYTES_MAX + self.reply_bytes_max;
        let needed = self.reply_bytes_max > 0 && longest > recv_bytes_max;
        needed.then_some(self.reply_bytes_max + REPLY_HEADER_BYTES_MAX)
    }

    /// Transport header that offers this spec's results and Reply chunk.
    fn header_bytes(&self, segment_bytes: usize, recv_bytes_max: usize) -> usize {
        let writes = self.write_list_bytes(segment_bytes);
        let reply = self.reply_chunk_bytes(writes, recv_bytes_max);
        let reply = reply.map_or(0, |bytes| 4 + segments_bytes(bytes, segment_bytes));
        PLAIN_HEADER_BYTES + writes + reply
    }

    fn write_list_bytes(&self, segment_bytes: usize) -> usize {
        let results = self.results.iter().flatten();
        results.map(|result| 8 + segments_bytes(result.len(), segment_bytes)).sum()
    }

    fn move_into(&mut self, hold: &mut CallHold) {
        hold.arguments = std::mem::take(&mut self.arguments);
        hold.results = std::mem::take(&mut self.results);
        self.has_buffers = false;
    }
}

/// The segments of a chunk in a Write list.
fn segments_bytes(bytes: usize, segment_bytes: usize) -> usize {
    WRITE_SEGMENT_BYTES * bytes.div_ceil(segment_bytes).max(1)
}

impl super::stats::StatsSnapshot {
    #[cold]
    fn refuse(&mut self, refused: CallRefused) -> Backpressure {
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
