//! A message with padded data (RDMA_MSGP) in the hands of the application. Made by both halves of a core,
//! decoded by the api.

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::rdma::v1::alignment_of;
use spinrpc_proto::xdr::Reader;

/// An RDMA_MSGP in the hands of the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padded {
    /// Padding that the message states.
    pub(crate) alignment: Alignment,
    /// Offset in the message of the stream that belongs to it.
    pub(crate) start: usize,
}

impl Padded {
    /// A message whose stream begins behind `header_bytes`, and whose header has been checked; `None` if it is not an
    /// RDMA_MSGP.
    pub(crate) fn of(message: &[u8], header_bytes: usize) -> Option<Self> {
        let alignment = alignment_of(message);
        (alignment != Alignment::NONE).then_some(Self { alignment, start: header_bytes })
    }

    /// A reader of a stream, which is that of an RDMA_MSGP if `padded` is set.
    #[inline]
    pub(crate) fn reader(padded: Option<Self>, stream: &[u8]) -> Reader<'_> {
        match padded {
            Some(Self { alignment, start }) => Reader::aligned(stream, alignment, start),
            None => Reader::new(stream),
        }
    }

    /// The rest of the message behind what `reader` has read.
    pub(crate) fn behind(mut self, reader: &Reader<'_>) -> Self {
        self.start += reader.position();
        self
    }
}
