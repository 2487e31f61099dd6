//! An XDR stream that is stored to be written again: its data items are taken out, and remembered is
//! only where they stood. Each time it is written they go where that message has room for them, into
//! the stream or into chunks, whose addresses are never stored. It is written without padding: it no
//! longer says where its counted data stand, and RFC 5666 section 3.9 pads all of them or none.
//!
//! Used for calls that may be sent again, and for replies that are kept.

use super::ops::Encode;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::payload::{Encoded, Item, Placement, StreamWriter};
use spinrpc_proto::xdr::roundup4;

/// Bytes of the count before an item: what stands in the stored stream for an item.
const COUNT_BYTES: usize = 4;

/// Where the data items of a stored stream stand, in bytes from its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cuts {
    at: [u32; ITEMS_MAX],
    count: u8,
}

impl Cuts {
    /// Encodes into `stream` with all of `items` taken out.
    pub(super) fn encode<'a>(
        stream: &mut [u8],
        items: impl Iterator<Item = &'a [u8]>,
        encode: Encode<'_>,
    ) -> (Encoded, Self) {
        // An empty item would stay in the stream and leave no mark.
        const EMPTY: &[u8] = &[0];
        let mut places = [Item { bytes: &[], placement: Placement::Chunk }; ITEMS_MAX];
        let mut count = 0;
        for (bytes, place) in items.zip(&mut places) {
            place.bytes = if bytes.is_empty() { EMPTY } else { bytes };
            count += 1;
        }
        let mut writer = StreamWriter::new(stream, &places[..count]);
        encode(&mut writer);
        let encoded = writer.finish();
        (encoded, Self::of(&encoded))
    }

    fn of(encoded: &Encoded) -> Self {
        let mut cuts = Self::default();
        let mut removed_bytes = 0;
        for (item, at) in encoded.reduced().iter().zip(&mut cuts.at) {
            *at = (item.position as usize - removed_bytes - COUNT_BYTES) as u32;
            removed_bytes += roundup4(item.length as usize);
            cuts.count += 1;
        }
        cuts
    }

    /// How many items were taken out.
    pub(super) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Writes the stored stream, and the items given to `writer` where they belong.
    pub(super) fn write(&self, stream: &[u8], writer: &mut StreamWriter<'_>) {
        writer.xdr().stop_padding();
        let mut from = 0;
        for at in &self.at[..self.count()] {
            let at = *at as usize;
            writer.fixed(&stream[from..at]);
            writer.bulk();
            from = at + COUNT_BYTES;
        }
        writer.fixed(&stream[from..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc_proto::alignment::Alignment;
    use spinrpc_proto::xdr::Padding;

    /// Writes as the application would, stores, and writes again with everything inline.
    fn stored_and_written(items: &[&[u8]], encode: Encode<'_>) -> (Vec<u8>, Vec<u8>) {
        let placed: Vec<_> =
            items.iter().map(|bytes| Item { bytes, placement: Placement::Inline }).collect();
        let write = |encode: Encode<'_>| {
            let mut stream = vec![0; 4096];
            let mut writer = StreamWriter::new(&mut stream, &placed);
            encode(&mut writer);
            let length = writer.finish().stream_bytes;
            stream.truncate(length);
            stream
        };
        let mut kept = vec![0; 4096];
        let (encoded, cuts) = Cuts::encode(&mut kept, items.iter().copied(), encode);
        kept.truncate(encoded.stream_bytes);
        (write(encode), write(&|writer| cuts.write(&kept, writer)))
    }

    /// A receiver of padded data expects padding before each of them (RFC 5666 section 3.9).
    #[test]
    fn a_stored_stream_is_written_without_padding() {
        let items = [Item { bytes: &[7; 100], placement: Placement::Inline }];
        let mut kept = vec![0; 4096];
        let (encoded, cuts) = Cuts::encode(&mut kept, items.iter().map(|i| i.bytes), &|writer| {
            writer.opaque(&[1; 100]);
            writer.bulk();
        });
        let mut padding = Padding::new(Alignment::new(64, 50), 0);
        let mut stream = vec![0; 4096];
        let mut writer = StreamWriter::aligned(&mut stream, &items, &mut padding);
        cuts.write(&kept[..encoded.stream_bytes], &mut writer);
        let written = writer.finish();
        assert_eq!((written.padded, written.stream_bytes), (false, 2 * 104));
    }

    #[test]
    fn a_stored_stream_is_written_again_byte_by_byte() {
        let bytes: Vec<u8> = (0..100).collect();
        for items in [&[][..], &[5], &[0], &[3, 4, 0, 99], &[0, 0], &[7, 0, 8]] {
            let items: Vec<&[u8]> = items.iter().map(|length| &bytes[..*length]).collect();
            let count = items.len();
            let (first, again) = stored_and_written(&items, &|writer| {
                writer.u32(1);
                for _ in 0..count {
                    writer.bulk();
                    writer.u64(2);
                }
                writer.opaque(b"tail");
            });
            assert_eq!(first, again, "{count} items");
        }
    }
}
