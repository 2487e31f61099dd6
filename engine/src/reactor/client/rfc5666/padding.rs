//! Sending padded messages (RFC 5666 section 3.9): data that go inline and are long enough begin at a
//! multiple of the connection's alignment.
//!
//! Padding counts from the start of the Send, so the transport header has to be known before the stream is written.
//! Padding is never the reason for a chunk: a message that fits inline only without padding is not padded.

use crate::reactor::client::place::{Shape, Stage};
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::types::calls::Backpressure;
use crate::reactor::types::encoded_stream::EncodedStream;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{CallChunks, Encoded, Placement};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rdma::v1::{MSGP_FIELDS_BYTES, insert_alignment};

impl Stage {
    /// Encodes a call whose inline data are padded. `None` if it is to be encoded without: the
    /// connection has no padding, or the call fits inline without it only.
    pub(in crate::reactor) fn encode_padded(
        &mut self,
        call: &Outgoing,
        draft: &EncodedStream<'_>,
        segment_bytes: usize,
    ) -> Option<Encoded> {
        if self.alignment == Alignment::NONE {
            return None;
        }
        self.padded_header_bytes = self.header_bytes + MSGP_FIELDS_BYTES;
        let first = self.encode_as(call, draft, &self.shape([Placement::InlineIfRoom; 4]));
        if first.fits && first.reduced().is_empty() {
            return Some(first);
        }
        let fits_without = self.header_bytes + first.unreduced_bytes <= self.threshold_bytes;
        if fits_without || !first.padded || first.items_missing {
            return None;
        }
        // Some items have to go in chunks anyway: the same ones again, with the header that names
        // them.
        let mut placements = [Placement::Inline; ITEMS_MAX];
        for item in first.reduced() {
            placements[usize::from(item.index)] = Placement::Chunk;
        }
        self.padded_header_bytes += Self::read_list_bytes(&first, segment_bytes);
        let second = self.encode_as(call, draft, &self.shape(placements));
        (second.fits && second.padded).then_some(second)
    }

    fn shape(&self, placements: [Placement; ITEMS_MAX]) -> Shape {
        Shape { placements, alignment: self.alignment, header_bytes: self.padded_header_bytes }
    }

    /// Checks that the padding matches the header before it.
    pub(in crate::reactor) fn check_padding(
        &self,
        encoded: &Encoded,
        chunks: &CallChunks,
    ) -> Result<(), Backpressure> {
        let header_bytes = chunks.header_bytes() + MSGP_FIELDS_BYTES;
        if encoded.padded && header_bytes != self.padded_header_bytes {
            return Err(Backpressure::Misuse(
                "a header of another length than its stream was padded for",
            ));
        }
        Ok(())
    }

    /// Makes the header that begins at `at` that of an RDMA_MSGP, if the stream behind it is padded;
    /// returns where it begins now.
    pub(in crate::reactor) fn finish_header(&mut self, encoded: &Encoded, at: usize) -> usize {
        if !encoded.padded {
            return at;
        }
        insert_alignment(self.message.whole_mut(), at, self.alignment)
    }
}
