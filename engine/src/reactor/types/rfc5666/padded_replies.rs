//! Padding of inline replies (RFC 5666 section 3.9).

use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::reply_plan::ReplyPlan;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
use spinrpc_proto::xdr::Padding;

impl ReplyPlan {
    /// Offset of the stream of an inline reply in its buffer. It leaves room for the header of an RDMA_MSGP if one
    /// may be needed.
    pub(in crate::reactor) fn stream_at(&self) -> usize {
        self.header_bytes()
            + if self.alignment() == Alignment::NONE { 0 } else { MSGP_FIELDS_BYTES }
    }

    /// The padding of an inline reply, and the length of its stream, in a buffer of `room` bytes; `None` if it has no
    /// padding, as with a verifier of RPCSEC_GSS.
    pub(in crate::reactor::types) fn padding(
        &self,
        room: usize,
        draft: &EncodedStream<'_>,
    ) -> Option<(usize, Padding)> {
        if self.alignment() == Alignment::NONE || draft.has_head() {
            return None;
        }
        let start = self.stream_at();
        let room = room.min(self.threshold_bytes().saturating_sub(start));
        Some((room, Padding::new(self.alignment(), start)))
    }
}
