//! Items of a reply that the client fetches because the call brought no room for them (RFC 5666 sections 3.4 and
//! 5.2): which these are, and the length of the Read list that names them.

use crate::reactor::types::reply_plan::{ReplyData, ReplyPlan};
use spinrpc_proto::chunking::{Encoded, Reduced};

/// Bytes of one segment in the Read list.
const READ_SEGMENT_BYTES: usize = 24;

impl ReplyPlan {
    /// Returns true if the client may fetch data for which the call brought no room: by RFC 5666 sections 3.4 and 5.2
    /// if the upper layer permits it, by the drafts always.
    pub(crate) fn allows_reads(&self, data: &ReplyData) -> bool {
        let allowed = data.read_chunks || self.profile.always_returns_long_replies();
        allowed && self.profile.has_reads_in_replies()
    }

    /// Items taken out of a stream that the client has to fetch.
    pub(in crate::reactor) fn reads_of<'a>(
        &'a self,
        encoded: &'a Encoded,
        data: &'a ReplyData,
    ) -> impl Iterator<Item = Reduced> + 'a {
        let reduced = encoded.reduced().iter().copied();
        reduced
            .filter(|item| !self.goes_by_write(usize::from(item.index), item.length as usize, data))
    }

    /// Returns true if there are such items.
    pub(in crate::reactor) fn has_reads(&self, encoded: &Encoded, data: &ReplyData) -> bool {
        self.reads_of(encoded, data).next().is_some()
    }

    /// Bytes of the Read list if every item that has no Write chunk goes by it.
    pub(crate) fn read_list_bytes(&self, data: &ReplyData) -> usize {
        let lengths = data.items().map(|(index, item)| (index, item.bytes().len()));
        let reads = lengths.filter(|(index, bytes)| !self.goes_by_write(*index, *bytes, data));
        reads.map(|(_, bytes)| self.read_chunk_bytes(bytes)).sum()
    }

    /// Bytes in the Read list for a chunk of this size.
    pub(in crate::reactor) fn read_chunk_bytes(&self, bytes: usize) -> usize {
        READ_SEGMENT_BYTES * bytes.div_ceil(self.segment_bytes).max(1)
    }
}
