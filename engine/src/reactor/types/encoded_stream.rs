//! An XDR stream as its encoder has written it, once. Its data items are taken out, and only their positions are
//! remembered. Messages are written from it as often as necessary: an item goes into the stream or into a chunk,
//! depending on the message; addresses of chunks are never stored.
//!
//! Made for every call and reply that is not written by the lane; kept for calls that may be sent again, and for replies
//! that may be requested again.

use crate::reactor::types::rfc5666::Marks;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Encoded, Item, Placement, StreamWriter};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::xdr::{Padding, roundup4};

/// Bytes of the count before an item: what stands in the stored stream for an item.
const COUNT_BYTES: usize = 4;

/// An encoder of the application's, to be run once. The second run of one made by [`once`] writes nothing.
pub(crate) type EncodeOnce<'e> = &'e mut dyn FnMut(&mut StreamWriter<'_>);

/// An encoder as one that can be called by reference.
#[inline]
pub(crate) fn once(
    encode: impl FnOnce(&mut StreamWriter<'_>),
) -> impl FnMut(&mut StreamWriter<'_>) {
    let mut encode = Some(encode);
    move |stream: &mut StreamWriter<'_>| {
        if let Some(encode) = encode.take() {
            encode(stream);
        }
    }
}

/// A stream and where its items stood.
#[derive(Clone, Copy)]
pub(crate) struct EncodedStream<'a> {
    stream: &'a [u8],
    cuts: ItemOffsets,
    /// RPC header with a verifier, in the place of the one without protection.
    #[cfg(feature = "gss")]
    head: Option<&'a [u8]>,
}

impl<'a> EncodedStream<'a> {
    /// A draft of a stream without data items, whose counted data are at unknown positions.
    pub(in crate::reactor) fn without_items(stream: &'a [u8]) -> Self {
        Self::new(stream, ItemOffsets::NONE)
    }

    pub(in crate::reactor) fn new(stream: &'a [u8], cuts: ItemOffsets) -> Self {
        Self {
            stream,
            cuts,
            #[cfg(feature = "gss")]
            head: None,
        }
    }

    /// It has an RPC header in the place of the one without protection.
    #[inline(always)]
    pub(in crate::reactor) fn has_head(&self) -> bool {
        #[cfg(feature = "gss")]
        return self.head.is_some();
        #[cfg(not(feature = "gss"))]
        return false;
    }

    /// The part from this offset on, which is before all items, without padding.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn from(&self, offset: usize) -> Self {
        Self::new(&self.stream[offset..], self.cuts.from(offset))
    }

    /// The same arguments or results behind the RPC header `head`.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn behind(self, head: &'a [u8]) -> Self {
        Self { head: Some(head), ..self }
    }

    /// The stream without its items.
    pub(in crate::reactor) fn stream(&self) -> &'a [u8] {
        self.stream
    }

    /// The places of its items.
    pub(in crate::reactor) fn cuts(&self) -> &ItemOffsets {
        &self.cuts
    }

    /// Writes the stream behind its header, if it has one, and the items given to `writer` where they belong.
    pub(in crate::reactor) fn write(&self, writer: &mut StreamWriter<'_>) {
        #[cfg(feature = "gss")]
        if let Some(head) = self.head {
            writer.fixed(head);
        }
        self.cuts.write(self.stream, writer);
    }
}

/// The places of the data items of a stored stream, in bytes from its start.
#[derive(Clone, Copy, Debug)]
pub(in crate::reactor) struct ItemOffsets {
    at: [u32; ITEMS_MAX],
    count: u8,
    /// Places that padding may go to.
    marks: Marks,
}

impl Default for ItemOffsets {
    fn default() -> Self {
        Self::NONE
    }
}

impl ItemOffsets {
    /// No items, and counted data in places that are not known.
    const NONE: Self = Self { at: [0; ITEMS_MAX], count: 0, marks: Marks::NONE };

    /// Encodes into `stream` with all items taken out, which are `items` at most, for connections that pad
    /// like this.
    pub(in crate::reactor) fn encode(
        stream: &mut [u8],
        items: usize,
        alignment: Alignment,
        encode: impl FnOnce(&mut StreamWriter<'_>),
    ) -> (Encoded, Self) {
        // Whatever stands for an item: an empty one would leave no mark.
        const PLACES: [Item<'_>; ITEMS_MAX] =
            [Item { bytes: &[0], placement: Placement::Chunk }; ITEMS_MAX];
        let (items, mut padding) = (&PLACES[..items.min(ITEMS_MAX)], Padding::noting(alignment));
        let mut writer = match alignment {
            Alignment::NONE => StreamWriter::new(stream, items),
            _ => StreamWriter::aligned(stream, items, &mut padding),
        };
        encode(&mut writer);
        let encoded = writer.finish();
        let cuts = Self { marks: Marks::of(&padding), ..Self::of(&encoded) };
        (encoded, cuts)
    }

    fn of(encoded: &Encoded) -> Self {
        let mut cuts = Self::NONE;
        let mut removed_bytes = 0;
        for (item, at) in encoded.reduced().iter().zip(&mut cuts.at) {
            *at = (item.position as usize - removed_bytes - COUNT_BYTES) as u32;
            removed_bytes += roundup4(item.length as usize);
            cuts.count += 1;
        }
        cuts
    }

    #[cfg(feature = "gss")]
    fn from(&self, offset: usize) -> Self {
        let mut moved = Self { at: self.at, count: self.count, ..Self::NONE };
        moved.at[..self.count()].iter_mut().for_each(|at| *at -= offset as u32);
        moved
    }

    /// Number of items that were taken out.
    pub(in crate::reactor) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Writes the stored stream, and the items given to `writer` where they belong.
    fn write(&self, stream: &[u8], writer: &mut StreamWriter<'_>) {
        let (mut items, mut counted) = (&self.at[..self.count()], self.marks.places(writer));
        let mut from = 0;
        loop {
            match (items.split_first(), counted.split_first()) {
                (Some((at, rest)), next) if next.is_none_or(|(other, _)| at < other) => {
                    items = rest;
                    writer.fixed(&stream[from..*at as usize]);
                    writer.bulk();
                    from = *at as usize + COUNT_BYTES;
                }
                (_, Some((at, rest))) => {
                    counted = rest;
                    writer.fixed(&stream[from..*at as usize]);
                    from = *at as usize + Marks::write_counted(&stream[*at as usize..], writer);
                }
                (None | Some(_), None) => break,
            }
        }
        writer.fixed(&stream[from..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc_proto::xdr::COUNTED_MAX;

    const ALIGNMENT: Alignment = Alignment::new(64, 50);

    type Write<'e> = &'e dyn Fn(&mut StreamWriter<'_>);

    fn inline<'a>(items: &[&'a [u8]]) -> Vec<Item<'a>> {
        items.iter().map(|bytes| Item { bytes, placement: Placement::Inline }).collect()
    }

    fn written(items: &[&[u8]], alignment: Alignment, write: Write<'_>) -> (bool, Vec<u8>) {
        let (items, mut stream) = (inline(items), vec![0xee; 8192]);
        let mut padding = Padding::new(alignment, 28);
        let mut writer = StreamWriter::aligned(&mut stream, &items, &mut padding);
        write(&mut writer);
        let encoded = writer.finish();
        assert!(encoded.fits);
        stream.truncate(encoded.stream_bytes);
        (encoded.padded, stream)
    }

    /// Writes as the application would; and again from what a draft for `noted` has stored.
    fn first_and_again(
        items: &[&[u8]],
        noted: Alignment,
        alignment: Alignment,
        write: Write<'_>,
    ) -> [(bool, Vec<u8>); 2] {
        let mut kept = vec![0; 8192];
        let (encoded, cuts) = ItemOffsets::encode(&mut kept, items.len(), noted, write);
        let draft = EncodedStream::new(&kept[..encoded.stream_bytes], cuts);
        let again = |stream: &mut StreamWriter<'_>| draft.write(stream);
        [written(items, alignment, write), written(items, alignment, &again)]
    }

    /// A receiver of padded data expects padding before each of them (RFC 5666 section 3.9).
    #[test]
    fn a_stored_stream_whose_data_are_not_known_is_written_without_padding() {
        let write: Write<'_> = &|writer| {
            writer.opaque(&[1; 100]);
            writer.bulk();
        };
        let other = Alignment::new(64, 51);
        for noted in [Alignment::NONE, other] {
            let [_, again] = first_and_again(&[&[7; 100]], noted, ALIGNMENT, write);
            assert_eq!((again.0, again.1.len()), (false, 2 * 104), "{noted:?}");
        }
        let many = COUNTED_MAX + 1;
        let write: Write<'_> = &|writer| (0..many).for_each(|_| writer.opaque(&[1; 50]));
        let [_, again] = first_and_again(&[], ALIGNMENT, ALIGNMENT, write);
        assert_eq!((again.0, again.1.len()), (false, many * 56));
    }

    #[test]
    fn a_stored_stream_is_padded_as_it_would_have_been() {
        let write: Write<'_> = &|writer| {
            writer.opaque(&[1; 49]);
            writer.opaque(&[2; 50]);
            writer.bulk();
            writer.opaque(&[3; 333]);
            writer.u32(5);
            writer.bulk();
            writer.opaque(&[4; 64]);
        };
        // The peer may have asked for another alignment than was noted; the threshold is ours.
        for alignment in [ALIGNMENT, Alignment::new(256, 50)] {
            let items: [&[u8]; 2] = [&[7; 120], &[8; 3]];
            let [first, again] = first_and_again(&items, ALIGNMENT, alignment, write);
            assert!(first.0);
            assert_eq!(first, again, "{alignment:?}");
        }
    }

    #[test]
    fn a_stored_stream_is_written_again_byte_by_byte() {
        let bytes: Vec<u8> = (0..100).collect();
        for items in [&[][..], &[5], &[0], &[3, 4, 0, 99], &[0, 0], &[7, 0, 8]] {
            let items: Vec<&[u8]> = items.iter().map(|length| &bytes[..*length]).collect();
            let count = items.len();
            for noted in [Alignment::NONE, ALIGNMENT] {
                let [first, again] = first_and_again(&items, noted, Alignment::NONE, &|writer| {
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

    #[test]
    fn an_encoder_runs_once() {
        let mut runs = 0;
        let mut encode = once(|_| runs += 1);
        let mut writer = StreamWriter::new(&mut [], &[]);
        encode(&mut writer);
        encode(&mut writer);
        drop(encode);
        assert_eq!(runs, 1);
    }
}
