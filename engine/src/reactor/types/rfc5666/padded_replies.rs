//! Padding of inline replies (RFC 5666 section 3.9).

use crate::reactor::types::draft::Draft;
use crate::reactor::types::reply_plan::{Form, ReplyData, ReplyPlan};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::Encoded;
use spinrpc_proto::rdma::v1::MSGP_FIELDS_BYTES;
use spinrpc_proto::xdr::Padding;

impl ReplyPlan {
    /// Offset of the stream of an inline reply in its buffer. It leaves room for the header of an RDMA_MSGP if one
    /// may be needed.
    pub(in crate::reactor) fn stream_at(&self) -> usize {
        self.header_bytes()
            + if self.alignment() == Alignment::NONE { 0 } else { MSGP_FIELDS_BYTES }
    }

    /// Writes an inline reply with padding. `None` if there is none, or the reply only fits without.
    #[inline]
    pub(in crate::reactor::types) fn encode_padded(
        &self,
        stream: &mut [u8],
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> Option<Encoded> {
        // A reply with a verifier of RPCSEC_GSS is never padded.
        if self.alignment() == Alignment::NONE || draft.head().is_some() {
            return None;
        }
        let start = self.stream_at();
        let room = stream.len().min(self.threshold_bytes().saturating_sub(start));
        let mut padding = Padding::new(self.alignment(), start);
        let stream = &mut stream[..room];
        let encoded = self.encode_as(stream, data, Form::Direct, draft, Some(&mut padding));
        encoded.fits.then_some(encoded)
    }
}
