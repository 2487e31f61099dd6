//! Contents of a reply, and the ways to send it that its call offers: encoding is independent of the driver, and
//! other threads encode replies to deferred calls.

use crate::mem::{Bulk, BulkPool, Lease, SharedBulk};
use crate::reactor::types::calls::RpcRefusal;
use crate::reactor::types::encode_buffer::EncodeError;
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::{SUCCESS_HEADER, SYSTEM_ERR};
use crate::reactor::types::negotiate::Negotiated;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Encoded, Item, Placement, StreamWriter};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::{WriteRequest, WriteSource};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::{INLINE_THRESHOLD_MIN_BYTES, ITEMS_MAX};
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::ReplyHeader;
use spinrpc_proto::xdr::Padding;
use std::ops::Range;

/// Registered data items of a reply, in the order in which its stream names them. Each goes by its
/// Write chunk if the call offered one, else in the stream, or, if that is allowed, as a Read chunk
/// that the client fetches.
#[derive(Debug, Default)]
pub struct ReplyData {
    items: [Option<ReplyItem>; ITEMS_MAX],
    count: usize,
    pub(in crate::reactor::types) read_chunks: bool,
}

#[derive(Debug)]
pub(in crate::reactor) enum ReplyItem {
    Owned(Bulk),
    Shared(SharedBulk, Range<usize>),
}

impl ReplyItem {
    pub(in crate::reactor) fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bulk) => bulk.bytes(),
            Self::Shared(bulk, range) => &bulk.bytes()[range.clone()],
        }
    }

    pub(in crate::reactor) fn lease(&mut self, at: usize, bytes: usize) -> Lease {
        match self {
            Self::Owned(bulk) => bulk.lease(at..at + bytes),
            Self::Shared(bulk, range) => bulk.lease(range.start + at..range.start + at + bytes),
        }
    }
}

impl ReplyData {
    /// No data items.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer that goes back to its pool when it has been sent. At most four items; more
    /// are refused when the stream is written, with SYSTEM_ERR to the peer.
    #[must_use]
    pub fn bulk(self, bulk: Bulk) -> Self {
        self.push(ReplyItem::Owned(bulk))
    }

    /// Adds a range of memory that stays shared: many replies may send from it at once.
    ///
    /// # Panics
    /// If the range reaches beyond the memory.
    #[must_use]
    pub fn shared(self, bulk: &SharedBulk, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= bulk.len(), "range beyond the memory");
        self.push(ReplyItem::Shared(bulk.clone(), range))
    }

    /// Permits, on behalf of the upper layer, that the client fetches this reply if the call brought no memory for
    /// it: the items without a Write chunk, or the whole reply if it is too long and has no Reply chunk. It needs
    /// `rpc.protocol = "rfc5666"` on both ends and has no effect under `rfc8166`; the drafts allow it for every
    /// reply. RFC 5666 section 3.8 does not recommend it where speed matters. The memory stays lent until the client
    /// has sent RDMA_DONE, or `Config::done_timeout` has passed.
    #[must_use]
    pub fn allow_read_chunks(mut self) -> Self {
        self.read_chunks = true;
        self
    }

    /// Returns true if the client may fetch it, where the protocol requires that permission.
    pub(in crate::reactor) fn allows_read_chunks(&self) -> bool {
        self.read_chunks
    }

    /// The bytes of the items.
    pub(in crate::reactor) fn item_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.items().map(|(_, item)| item.bytes())
    }

    /// The same reply without its items, which are already in the stream.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn without_items(&self) -> Self {
        Self { read_chunks: self.read_chunks, ..Self::default() }
    }

    fn push(mut self, item: ReplyItem) -> Self {
        if let Some(place) = self.items.get_mut(self.count) {
            *place = Some(item);
            self.count += 1;
        }
        self
    }

    pub(in crate::reactor) fn count(&self) -> usize {
        self.count
    }

    pub(in crate::reactor::types) fn items(&self) -> impl Iterator<Item = (usize, &ReplyItem)> {
        self.items[..self.count].iter().flatten().enumerate()
    }
}

/// Results in the form in which they are sent. They are encoded on any thread, and sent by the core.
pub(crate) struct EncodedReply {
    encoded: Encoded,
    data: ReplyData,
    /// The stream, unless it is in the room for an inline reply.
    stream: Option<Bulk>,
}

impl EncodedReply {
    /// Results that are still to be encoded.
    pub(in crate::reactor) fn new(data: ReplyData) -> Self {
        Self { encoded: Encoded::without_items(0), data, stream: None }
    }

    pub(in crate::reactor) fn whole(stream: Bulk, data: ReplyData) -> Self {
        Self { encoded: Encoded::without_items(stream.len()), data, stream: Some(stream) }
    }

    getters! {
        encoded: &Encoded,
        data: &ReplyData,
    }

    /// Length of the stream, if it has memory of its own.
    pub(in crate::reactor) fn long_bytes(&self) -> Option<u32> {
        self.stream.as_ref().map(|_| self.encoded.stream_bytes as u32)
    }

    /// The stream is in memory of its own, or else in `room`, which becomes that.
    pub(in crate::reactor) fn settle_stream(&mut self, room: impl FnOnce() -> Option<Bulk>) {
        self.stream = self.stream.take().or_else(room);
        if let Some(stream) = &mut self.stream {
            stream.set_len(self.encoded.stream_bytes);
        }
    }

    pub(in crate::reactor) fn take_stream(&mut self) -> Option<Bulk> {
        self.stream.take()
    }

    /// Copies the stream to where it is sent from. Returns false if it is there.
    pub(in crate::reactor) fn move_stream(&mut self, to: &mut [u8]) -> bool {
        let Some(stream) = self.stream.take() else { return false };
        to[..stream.len()].copy_from_slice(stream.bytes());
        true
    }

    /// Puts the XID into the stream, which is `inline` unless it has memory of its own.
    #[inline]
    pub(in crate::reactor) fn put_xid(&mut self, inline: &mut [u8], xid: Xid) {
        let stream = self.stream.as_mut().map_or(inline, Bulk::bytes_mut);
        if let Some(place) = stream.first_chunk_mut() {
            *place = xid.0.to_be_bytes();
        }
    }

    pub(in crate::reactor) fn item_mut(&mut self, index: u8) -> Option<&mut ReplyItem> {
        self.data.items.get_mut(usize::from(index))?.as_mut()
    }

    /// Memory that an RDMA Write sends.
    #[inline]
    pub(in crate::reactor) fn lease(&mut self, write: &WriteRequest) -> Option<Lease> {
        let (at, bytes) = (write.at as usize, write.to.length as usize);
        match write.source {
            WriteSource::Item(index) => self.item_mut(index).map(|item| item.lease(at, bytes)),
            WriteSource::Stream => self.stream.as_mut().map(|bulk| bulk.lease(at..at + bytes)),
        }
    }

    /// The blocks that are given away with it.
    pub(in crate::reactor) fn owned(&self) -> impl Iterator<Item = &Bulk> {
        let items = self.data.items[..self.data.count].iter().flatten();
        let owned = items.filter_map(|item| match item {
            ReplyItem::Owned(bulk) => Some(bulk),
            ReplyItem::Shared(..) => None,
        });
        owned.chain(&self.stream)
    }
}

/// Destination of the items of a reply that have no Write chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Into the stream.
    Direct,
    /// The client fetches them.
    ByRead,
}

/// Properties of a call's lists that decide how its reply is encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyPlan {
    header_bytes: usize,
    threshold_bytes: usize,
    /// Room in each Write chunk; zero where the call offers none.
    write_bytes: [u64; ITEMS_MAX],
    reply_chunk_bytes: u64,
    pub(in crate::reactor::types) profile: Profile,
    /// Longest segment of a Read chunk.
    pub(in crate::reactor::types) segment_bytes: usize,
    /// Padding of inline items.
    alignment: Alignment,
}

impl ReplyPlan {
    pub(in crate::reactor) fn of(
        view: &HeaderView<'_>,
        negotiated: &Negotiated,
        profile: Profile,
        segment_bytes: usize,
    ) -> Self {
        let version = view.transport_version();
        let threshold_bytes = negotiated.inline_bytes_max_in(version);
        let alignment = negotiated.alignment(version);
        let (mut write_bytes, mut reply_chunk_bytes) = ([0; ITEMS_MAX], 0);
        if !view.is_chunkless() {
            for (chunk, room) in view.writes().zip(&mut write_bytes) {
                *room = chunk.total_length();
            }
            reply_chunk_bytes = view.reply_chunk().map_or(0, |chunk| chunk.total_length());
        }
        let header_bytes = spinrpc_proto::rdma::ReplyRepr::bytes_of(view, 0);
        Self {
            header_bytes,
            threshold_bytes,
            write_bytes,
            reply_chunk_bytes,
            profile: profile.under(version),
            segment_bytes,
            alignment,
        }
    }

    getters! {
        /// Bytes of the transport header of an inline reply.
        header_bytes: usize,
        /// Longest message.
        threshold_bytes: usize,
        alignment: Alignment,
    }

    /// Room for the stream of an inline reply.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.threshold_bytes.saturating_sub(self.header_bytes)
    }

    /// Returns true if a stream of this size may go by Reply chunk instead, and the header for that fits the peer's
    /// receives.
    pub(crate) fn takes_long(&self, bytes: usize) -> bool {
        bytes as u64 <= self.reply_chunk_bytes && self.header_bytes <= self.long_header_bytes_max()
    }

    /// Longest header of a reply whose message is elsewhere: the size that a peer takes of inline messages does not limit
    /// long ones, and it has a receive of 1 KB in any case (RFC 5666 sections 6.1 and 6.2).
    pub(in crate::reactor) fn long_header_bytes_max(&self) -> usize {
        self.threshold_bytes.max(INLINE_THRESHOLD_MIN_BYTES as usize)
    }

    /// Write chunk of a data item: that of the same number, or under RFC 8166 the first that is left. An item without bytes
    /// leaves a chunk with room to the next item.
    pub(in crate::reactor) fn entry_of(&self, index: usize, data: &ReplyData) -> usize {
        if self.profile.has_entry_for_each_item() {
            return index;
        }
        data.item_bytes().take(index).fold(0, |entry, bytes| {
            entry + usize::from(!bytes.is_empty() || self.write_bytes[entry] == 0)
        })
    }

    /// "MUST deliver matching results by RDMA Write when a write list was given" (RFC 5666
    /// section 3.6). One that is too small has room for nothing; unless there is another way, that
    /// is for the responder to refuse.
    pub(in crate::reactor) fn goes_by_write(
        &self,
        index: usize,
        bytes: usize,
        data: &ReplyData,
    ) -> bool {
        let room = self.write_bytes.get(self.entry_of(index, data)).copied().unwrap_or(0);
        room > 0 && (bytes as u64 <= room || !self.allows_reads(data))
    }

    fn placement(&self, index: usize, bytes: usize, data: &ReplyData, form: Form) -> Placement {
        match form {
            Form::ByRead => Placement::Chunk,
            Form::Direct if self.goes_by_write(index, bytes, data) => Placement::Chunk,
            Form::Direct => Placement::Inline,
        }
    }

    /// Encodes results, inline into `room` if they fit. Longer ones go into memory of `pool` for a Reply chunk, if the
    /// call offered a fitting one; else, if that is allowed, for the client to fetch: their items if the rest fits
    /// inline.
    pub(in crate::reactor) fn encode_reply(
        &self,
        room: &mut [u8],
        EncodedReply { encoded, data, stream }: &mut EncodedReply,
        draft: &EncodedStream<'_>,
        pool: &BulkPool,
    ) -> Result<(), RpcRefusal> {
        *encoded = match self.encode_padded(room, data, draft) {
            Some(padded) => padded,
            None => self.encode(room, data, Form::Direct, draft),
        };
        if encoded.fits {
            return Ok(());
        }
        if !self.takes_long(encoded.stream_bytes) {
            if !self.allows_reads(data) {
                return Err(RpcRefusal::NoRoom);
            }
            // With short segments the list alone may be longer than a message.
            let room_bytes = room.len().saturating_sub(self.read_list_bytes(data));
            let by_read = self.encode(&mut room[..room_bytes], data, Form::ByRead, draft);
            if by_read.fits {
                *encoded = by_read;
                return Ok(());
            }
        }
        let memory = pool.take(encoded.stream_bytes).ok_or(RpcRefusal::NoMemory)?;
        *encoded = self.encode(stream.insert(memory).bytes_mut(), data, Form::Direct, draft);
        Ok(())
    }

    /// The answer in the place of results that could not be encoded.
    pub(in crate::reactor) fn refusal(&self, why: EncodeError, data: &ReplyData) -> RpcRefusal {
        let takes = |bytes| self.takes_long(bytes) || self.allows_reads(data);
        match why {
            EncodeError::TooLong(bytes) if takes(bytes + SUCCESS_HEADER.len()) => {
                RpcRefusal::NoMemory
            }
            EncodeError::TooLong(_) => RpcRefusal::NoRoom,
            EncodeError::ItemsMissing => SYSTEM_ERR,
        }
    }

    /// Writes the RPC header of a successful reply and the results.
    #[inline]
    fn encode(
        &self,
        stream: &mut [u8],
        data: &ReplyData,
        form: Form,
        draft: &EncodedStream<'_>,
    ) -> Encoded {
        self.encode_as(stream, data, form, draft, None)
    }

    /// The same with padding. `None` if there is none, or the reply only fits without.
    fn encode_padded(
        &self,
        stream: &mut [u8],
        data: &ReplyData,
        draft: &EncodedStream<'_>,
    ) -> Option<Encoded> {
        let (room, mut padding) = self.padding(stream.len(), draft)?;
        let stream = &mut stream[..room];
        let encoded = self.encode_as(stream, data, Form::Direct, draft, Some(&mut padding));
        encoded.fits.then_some(encoded)
    }

    #[inline]
    fn encode_as(
        &self,
        stream: &mut [u8],
        data: &ReplyData,
        form: Form,
        draft: &EncodedStream<'_>,
        padding: Option<&mut Padding>,
    ) -> Encoded {
        let mut items = [Item { bytes: &[], placement: Placement::Inline }; ITEMS_MAX];
        for (index, item) in data.items() {
            let bytes = item.bytes();
            items[index] =
                Item { bytes, placement: self.placement(index, bytes.len(), data, form) };
        }
        let items = &items[..data.count];
        let mut writer = match padding {
            None => StreamWriter::new(stream, items),
            Some(padding) => StreamWriter::aligned(stream, items, padding),
        };
        if !draft.has_head() {
            ReplyHeader::success(Xid(0)).write(writer.xdr());
        }
        draft.write(&mut writer);
        writer.finish()
    }
}
