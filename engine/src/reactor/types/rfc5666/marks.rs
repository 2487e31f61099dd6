//! Places of counted data in a stored stream, which padding would go before (RFC 5666 section 3.9).

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::xdr::{Counted, Padding, Reader, roundup4};

/// Bytes of the count before counted data.
const COUNT_BYTES: usize = 4;

/// Places that padding may go to under an alignment.
#[derive(Clone, Copy, Debug)]
pub(in crate::reactor) struct Marks {
    counted: Counted,
    alignment: Alignment,
}

impl Marks {
    /// Places that are not known.
    pub(in crate::reactor::types) const NONE: Self =
        Self { counted: Counted::NONE, alignment: Alignment::NONE };

    /// Places that were noted while a stream was written.
    #[inline]
    pub(in crate::reactor::types) fn of(padding: &Padding) -> Self {
        Self { counted: padding.noted(), alignment: padding.alignment() }
    }

    /// Places of the counted data that `writer` pads: none, and no padding either, if they are not known, because all
    /// counted data have padding or none.
    #[inline]
    pub(in crate::reactor::types) fn places(&self, writer: &mut StreamWriter<'_>) -> &[u32] {
        let threshold_bytes = writer.xdr().alignment().threshold_bytes();
        let is_known = threshold_bytes == self.alignment.threshold_bytes();
        let counted = self.counted.places().filter(|_| is_known);
        if counted.is_none() {
            writer.xdr().stop_padding();
        }
        counted.unwrap_or_default()
    }

    /// Writes counted data that a stream begins with; returns the number of bytes of the stream that they take.
    pub(in crate::reactor::types) fn write_counted(
        stream: &[u8],
        writer: &mut StreamWriter<'_>,
    ) -> usize {
        let Ok(data) = Reader::new(stream).opaque(usize::MAX) else { return 0 };
        writer.opaque(data);
        COUNT_BYTES + roundup4(data.len())
    }
}
