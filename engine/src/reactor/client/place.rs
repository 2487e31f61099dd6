//! Places a call: encodes it for its connection, inline, with chunks, or as a chunk of its own (RFC 8166 section 3.5).

use crate::fabric::ConnId;
use crate::mem::{Buf, Bulk};
use crate::reactor::client::emit::Start;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::roles::ReverseClient;
use crate::reactor::state::core::Reactor;
use crate::reactor::types::calls::{Backpressure, CallId, CallSpec, REPLY_HEADER_BYTES_MAX};
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::resend_source::Terms;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Encoded, Item, Placement, StreamWriter};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
use spinrpc_proto::version::{Stage as Negotiating, TransportVersion};
use spinrpc_proto::xdr::{Padding, roundup4};

/// Bytes of one segment in the Read list.
const READ_SEGMENT_BYTES: usize = 24;
/// Bytes of one segment in the Write list or the Reply chunk.
const WRITE_SEGMENT_BYTES: usize = 16;

/// A call whose stream is being written; nothing but the buffer is taken yet.
pub(in crate::reactor) struct Stage {
    pub(in crate::reactor::client) message: Buf,
    /// Offset of the stream in the buffer; the transport header will end there.
    pub(in crate::reactor::client) stream_at: usize,
    /// Longest message, transport header included.
    pub(in crate::reactor::client) threshold_bytes: usize,
    pub(in crate::reactor::client) version: TransportVersion,
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

impl Reactor {
    /// Starts a call with this RPC message, with whatever its spec asks for. On success the buffers of the spec have moved out
    /// of it.
    pub(in crate::reactor) fn send_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &mut CallSpec,
        draft: &EncodedStream<'_>,
    ) -> Result<CallId, Backpressure> {
        if spec.needs_no_chunks()
            && let Some(slot) =
                self.emit_chunkless_call(conn, token, spec, draft.stream(), || *draft)?
        {
            return Ok(CallId::of(slot));
        }
        self.send_other_call(conn, token, spec, draft)
    }

    /// The same, for one that is more than an inline stream on its connection.
    pub(in crate::reactor) fn send_other_call(
        &mut self,
        conn: ConnId,
        token: u64,
        spec: &mut CallSpec,
        draft: &EncodedStream<'_>,
    ) -> Result<CallId, Backpressure> {
        // A call that cannot start anyway is not stored.
        drop(self.take_send_buffer(conn)?.0);
        let reply_bytes_max = self.reply_bytes_max(conn, spec);
        let terms = Terms::of(spec, self.deadline(spec), reply_bytes_max);
        let call = self.conn(conn).and_then(|c| c.calls.spare());
        let mut call = call.ok_or(Backpressure::NoBuffer)?;
        call.take_items(spec, terms);
        let started = self
            .keep_call(conn, &mut call, draft)
            .and_then(|()| self.protect_call(conn, Start::New(token), &mut call, draft));
        call.return_items(spec, started.is_ok());
        let c = self.conn(conn).ok_or(Backpressure::Down)?;
        match started {
            Ok(slot) => c.calls.put(slot, call),
            Err(_) => c.calls.recycle(call),
        }
        started.map(CallId::of)
    }

    /// Keeps a call that may outlive its connection, or that may have to be sent in another version: the first one, while the
    /// version is not settled.
    fn keep_call(
        &mut self,
        conn: ConnId,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
    ) -> Result<(), Backpressure> {
        let Some(c) = self.conn(conn) else { return Err(Backpressure::Down) };
        let is_lasting = c.calls.is_lasting(call);
        let negotiation = *c.lane.proto().requester.negotiation();
        if !is_lasting && negotiation.stage() == Negotiating::Settled {
            return Ok(());
        }
        if is_lasting && call.arguments.iter().flatten().any(Bulk::is_exposed) {
            return Err(Backpressure::Misuse(
                "an exposed argument in a call that may be sent again",
            ));
        }
        let order = self.stats().calls_sent;
        match call.keep(self.arena(), draft, order) {
            true => Ok(()),
            false => Err(no_block(draft.stream().len(), longest_block_bytes(self.config()))),
        }
    }

    #[cfg(not(feature = "gss"))]
    pub(in crate::reactor) fn protect_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
    ) -> Result<SlotId, Backpressure> {
        self.place_call(conn, start, call, draft)
    }

    /// Places a call that is not protected, or whose protection is in the draft. Data items that do not fit inline become Read
    /// chunks; if the rest does not fit either, the whole message becomes a Read chunk.
    pub(in crate::reactor) fn place_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
        draft: &EncodedStream<'_>,
    ) -> Result<SlotId, Backpressure> {
        let mut stage = self.stage_call(conn, start, call)?;
        let segment_bytes = self.config().segment_bytes();
        let padded = stage.encode_padded(call, draft, segment_bytes);
        let mut encoded =
            padded.unwrap_or_else(|| stage.encode(call, draft, Placement::InlineIfRoom));
        stage.check_reads(&encoded)?;
        if !stage.fits(&encoded, segment_bytes) {
            encoded = stage.encode(call, draft, Placement::Chunk);
        }
        if stage.fits(&encoded, segment_bytes) {
            return self.emit_call(conn, stage, &encoded, &mut None, start, call);
        }
        let arguments_bytes: usize = call.arguments().map(|argument| argument.len() + 3).sum();
        let needed_bytes = encoded.stream_bytes + arguments_bytes;
        let mut whole = self
            .private_bulk(conn, needed_bytes)
            .ok_or_else(|| no_block(needed_bytes, longest_block_bytes(self.config())))?;
        let shape = Shape::unpadded(Placement::Inline);
        let encoded = encode_call(whole.bytes_mut(), call, draft, &shape);
        if !encoded.fits {
            return Err(Backpressure::TooLarge { needed_bytes: encoded.stream_bytes });
        }
        if !encoded.reduced().is_empty() {
            return Err(Backpressure::Misuse(
                "an exposed argument with others too long to be inline",
            ));
        }
        whole.set_len(encoded.stream_bytes);
        self.emit_call(conn, stage, &encoded, &mut Some(whole), start, call)
    }

    /// Places a call whose message is complete, from where it lies: inline if that is short enough, else as a chunk of its own.
    /// On an error it is still there.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn place_sealed_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &mut Outgoing,
    ) -> Result<SlotId, Backpressure> {
        let mut stage = self.stage_call(conn, start, call)?;
        let segment_bytes = self.config().segment_bytes();
        let mut message = call.set_sealed(None);
        let bytes = message.as_ref().map_or(&[][..], Bulk::bytes);
        let mut encoded = Encoded::without_items(bytes.len());
        let mut is_inline = stage.header_bytes + bytes.len() <= stage.threshold_bytes;
        if is_inline {
            encoded = stage.encode(call, &EncodedStream::without_items(bytes), Placement::Inline);
            is_inline = stage.fits(&encoded, segment_bytes);
        }
        let placed = match is_inline {
            true => self.emit_call(conn, stage, &encoded, &mut None, start, call),
            false => stage
                .check_reads(&encoded)
                .and_then(|()| self.emit_call(conn, stage, &encoded, &mut message, start, call)),
        };
        call.set_sealed(message.filter(|_| placed.is_err()));
        placed
    }

    /// Longest results that a call offers room for, in bytes, beside its buffers for data items. If nobody knows their length,
    /// that is as much as one call may return; but the rest of results that have buffers is short. A call in reverse offers
    /// no chunk that the application has not asked for: its client need not take any (RFC 8167 section 5), and that of Linux
    /// refuses a call for an offer that it does not even need.
    fn reply_bytes_max(&mut self, conn: ConnId, spec: &CallSpec) -> usize {
        if !spec.is_reply_assumed {
            return spec.reply_bytes_max;
        }
        let (known, most) = (spec.reply_bytes_max, self.config().read_bytes_max());
        match self.conn(conn).map(|c| c.reverse()) {
            Some(ReverseClient::Inline) => return 0,
            Some(ReverseClient::Any) if known == usize::MAX => return 0,
            _ => {}
        }
        match spec.results.iter().flatten().map(|room| room.len()).reduce(usize::saturating_add) {
            None => known.min(most),
            Some(_) if known == usize::MAX => 0,
            Some(placed) => known.saturating_sub(placed).min(most),
        }
    }

    pub(in crate::reactor) fn stage_call(
        &mut self,
        conn: ConnId,
        start: Start,
        call: &Outgoing,
    ) -> Result<Stage, Backpressure> {
        let (stream_at, segment_bytes) =
            (self.config().headroom_bytes(), self.config().segment_bytes());
        let (message, c) = self.take_buffer(conn, start)?;
        let (negotiated, is_inline) = (&c.negotiated, c.reverse() == ReverseClient::Inline);
        let negotiation = *c.lane.proto().requester.negotiation();
        let version = negotiation.version();
        let lists_bytes = call.lists_bytes(segment_bytes, negotiated.reply_bytes_max(version));
        if is_inline && lists_bytes > 0 {
            return Err(Backpressure::InlineOnly);
        }
        Ok(Stage {
            message,
            stream_at,
            threshold_bytes: negotiation.send_bytes_max(negotiated.thresholds()) as usize,
            version,
            header_bytes: version.chunkless_header_bytes() + lists_bytes,
            alignment: negotiated.alignment(version),
            padded_header_bytes: 0,
            takes_read_chunks: negotiated.takes_read_chunks() && !is_inline,
            is_inline,
        })
    }
}

impl Stage {
    #[inline]
    pub(in crate::reactor) fn encode(
        &mut self,
        call: &Outgoing,
        draft: &EncodedStream<'_>,
        placement: Placement,
    ) -> Encoded {
        let shape = Shape { header_bytes: self.header_bytes, ..Shape::unpadded(placement) };
        self.encode_as(call, draft, &shape)
    }

    #[inline]
    pub(in crate::reactor) fn encode_as(
        &mut self,
        call: &Outgoing,
        draft: &EncodedStream<'_>,
        shape: &Shape,
    ) -> Encoded {
        let room = self.threshold_bytes.saturating_sub(shape.header_bytes);
        let stream = &mut self.message.whole_mut()[self.stream_at..][..room];
        encode_call(stream, call, draft, shape)
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
fn encode_call(
    stream: &mut [u8],
    call: &Outgoing,
    draft: &EncodedStream<'_>,
    shape: &Shape,
) -> Encoded {
    let mut items = shape.placements.map(|placement| Item { bytes: &[], placement });
    let mut count = 0;
    for (argument, item) in call.arguments().zip(&mut items) {
        if argument.is_exposed() {
            item.placement = Placement::Unseen(argument.len() as u32);
        } else {
            item.bytes = argument.bytes();
        }
        count += 1;
    }
    let mut padding = Padding::new(shape.alignment, shape.header_bytes);
    let mut writer = match shape.alignment {
        Alignment::NONE => StreamWriter::new(stream, &items[..count]),
        _ => StreamWriter::aligned(stream, &items[..count], &mut padding),
    };
    draft.write(&mut writer);
    writer.finish()
}

impl CallSpec {
    /// Returns true for a call with only a stream, whose reply fits into the shortest message of any connection.
    #[inline]
    pub(in crate::reactor) fn needs_no_chunks(&self) -> bool {
        !self.is_special && self.reply_bytes_max <= Self::SHORT_RESULTS_BYTES_MAX
    }

    pub(crate) fn argument_count(&self) -> usize {
        if !self.is_special {
            return 0;
        }
        self.arguments.iter().flatten().count()
    }
}

impl Outgoing {
    /// Room that a Reply chunk must have if the reply may not fit inline: "requester MUST give one" then (RFC 8166
    /// section 4.3.3). The reply's header returns the Write list; behind a header without lists, streams of
    /// `inline_bytes_max` fit.
    #[inline]
    pub(in crate::reactor) fn reply_chunk_bytes(
        &self,
        write_list_bytes: usize,
        inline_bytes_max: usize,
    ) -> Option<usize> {
        let results_bytes = self.reply_bytes_max();
        let longest = write_list_bytes + REPLY_HEADER_BYTES_MAX + results_bytes;
        let needed = results_bytes > 0 && longest > inline_bytes_max;
        needed.then_some(results_bytes + REPLY_HEADER_BYTES_MAX)
    }

    /// Bytes that a call's results and Reply chunk add to the transport header.
    fn lists_bytes(&self, segment_bytes: usize, inline_bytes_max: usize) -> usize {
        let writes = self.write_list_bytes(segment_bytes);
        let reply = self.reply_chunk_bytes(writes, inline_bytes_max);
        writes + reply.map_or(0, |bytes| 4 + segments_bytes(bytes, segment_bytes))
    }

    pub(in crate::reactor) fn write_list_bytes(&self, segment_bytes: usize) -> usize {
        self.results().map(|result| 8 + segments_bytes(result.len(), segment_bytes)).sum()
    }
}

/// The segments of a chunk in a Write list.
fn segments_bytes(bytes: usize, segment_bytes: usize) -> usize {
    WRITE_SEGMENT_BYTES * bytes.div_ceil(segment_bytes).max(1)
}
