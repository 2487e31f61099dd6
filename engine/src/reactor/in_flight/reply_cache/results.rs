//! The form in which the results of a call are stored.

use crate::mem::Bulk;
use crate::reactor::types::calls::RpcRefusal;
use crate::reactor::types::encoded_stream::{EncodedStream, ItemOffsets};
use crate::reactor::types::header_bytes::SYSTEM_ERR;
use crate::reactor::types::reply_plan::ReplyData;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::xdr::roundup4;

/// Bytes of results in one place.
pub(super) const PLACE_BYTES: usize = 512;

/// Longest results that are kept, with their data items.
pub(super) const REPLY_BYTES_MAX: usize = 64 << 10;

/// Results of a call, apart from their bytes.
pub(crate) struct Results {
    stream_bytes: usize,
    cuts: ItemOffsets,
    /// Lengths of the data items, which stand behind the stream, each at a multiple of four.
    items: [u32; ITEMS_MAX],
    allows_read_chunks: bool,
}

/// A stored reply.
pub(crate) enum Stored<'a> {
    /// Results whose bytes begin like this.
    Results(&'a [u8], &'a Results),
    Refusal(RpcRefusal),
}

impl Results {
    /// `None` if they are too long.
    pub(super) fn of(data: &ReplyData, draft: &EncodedStream<'_>) -> Option<Self> {
        let (stream_bytes, cuts) = (draft.stream().len(), *draft.cuts());
        let mut items = [0; ITEMS_MAX];
        for (item, length) in data.item_bytes().take(cuts.count()).zip(&mut items) {
            *length = u32::try_from(item.len()).ok()?;
        }
        let allows_read_chunks = data.allows_read_chunks();
        let results = Self { stream_bytes, cuts, items, allows_read_chunks };
        (results.bytes() <= REPLY_BYTES_MAX).then_some(results)
    }

    /// Length of the stream and its items.
    pub(super) fn bytes(&self) -> usize {
        let items = self.items.iter().map(|length| roundup4(*length as usize));
        roundup4(self.stream_bytes) + items.sum::<usize>()
    }

    /// Writes the stream and its items into as many bytes as they have.
    pub(super) fn write(&self, into: &mut [u8], data: &ReplyData, draft: &EncodedStream<'_>) {
        into[..self.stream_bytes].copy_from_slice(draft.stream());
        let mut at = roundup4(self.stream_bytes);
        for item in data.item_bytes().take(self.cuts.count()) {
            into[at..at + item.len()].copy_from_slice(item);
            at += roundup4(item.len());
        }
    }

    /// The data items, in memory from `take`, and the stream; `None` if there is no memory.
    fn read<'a>(
        &self,
        bytes: &'a [u8],
        take: impl Fn(usize) -> Option<Bulk>,
    ) -> Option<(ReplyData, EncodedStream<'a>)> {
        let mut data = ReplyData::new();
        let mut at = roundup4(self.stream_bytes);
        for length in &self.items[..self.cuts.count()] {
            let length = *length as usize;
            let mut bulk = take(length)?;
            bulk.bytes_mut().copy_from_slice(&bytes[at..at + length]);
            data = data.bulk(bulk);
            at += roundup4(length);
        }
        let data = if self.allows_read_chunks { data.allow_read_chunks() } else { data };
        Some((data, EncodedStream::new(&bytes[..self.stream_bytes], self.cuts)))
    }
}

impl Stored<'_> {
    /// The results, with their data items in memory from `take`; SYSTEM_ERR if that has none.
    pub(crate) fn reply(
        &self,
        take: impl Fn(usize) -> Option<Bulk>,
    ) -> Result<(ReplyData, EncodedStream<'_>), RpcRefusal> {
        match self {
            Self::Results(bytes, results) => results.read(bytes, take).ok_or(SYSTEM_ERR),
            Self::Refusal(why) => Err(*why),
        }
    }
}
