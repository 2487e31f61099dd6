//! Memory that messages are encoded in, before any other state of a core is accessed. A core has two such memories,
//! for calls and for replies; threads that answer deferred calls borrow others (`in_flight/mailbox.rs`), and threads
//! that make calls have their own (`api/handle`).

use crate::fabric::Short;
use crate::reactor::types::calls::Backpressure;
use crate::reactor::types::encoded_stream::{EncodeOnce, EncodedStream, ItemOffsets};
use crate::reactor::types::header_bytes::ITEMS_DIFFER;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Encoded, StreamWriter};
use spinrpc_proto::plain::CALL_BYTES;

/// Memory for one message. A short message is written directly to the place that it is sent from; a longer one is
/// moved to a buffer with enough room.
pub(in crate::reactor) struct MessageMemory {
    short: Short,
    long: Box<[u8]>,
    /// Length of the message written last to `long`, its head included.
    drafted: Result<usize, EncodeError>,
}

/// A stream that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodeError {
    /// It is longer than any memory for it; this many bytes are needed.
    TooLong(usize),
    /// It names more data items than exist.
    ItemsMissing,
}

impl EncodeError {
    /// The error for a call with such a stream.
    #[cold]
    pub(in crate::reactor) fn refusal(self) -> Backpressure {
        match self {
            Self::ItemsMissing => ITEMS_DIFFER,
            // Longer than any block, too.
            Self::TooLong(needed_bytes) => Backpressure::TooLarge { needed_bytes },
        }
    }
}

/// The arguments of a call that another thread has written: in memory of its own if they are long or have data items,
/// which is used again and grows to the longest; else in memory that comes with the call.
#[derive(Default)]
pub(crate) struct StoredDraft {
    stream: Vec<u8>,
    cuts: ItemOffsets,
}

impl StoredDraft {
    /// Encodes into `short`, and returns the length; or by way of `memory` what is longer or has items, with all
    /// items taken out, which must be `items`.
    ///
    /// # Errors
    /// [`Backpressure::TooLarge`] if it is too long for the memory, [`Backpressure::Misuse`] if it has another
    /// number of items.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        (short, memory): (&mut [u8], &mut [u8]),
        items: usize,
        encode: impl FnOnce(&mut StreamWriter<'_>),
    ) -> Result<Option<usize>, Backpressure> {
        if items > 0 {
            return self.encode_items(memory, items, encode).map(|()| None);
        }
        let mut writer = StreamWriter::with_more(short, memory);
        encode(&mut writer);
        if let Some(bytes) = writer.itemless_bytes() {
            return Ok(Some(bytes));
        }
        let bytes = check(&writer.finish()).map_err(EncodeError::refusal)?;
        self.keep(&memory[..bytes], ItemOffsets::default());
        Ok(None)
    }

    fn encode_items(
        &mut self,
        memory: &mut [u8],
        items: usize,
        encode: impl FnOnce(&mut StreamWriter<'_>),
    ) -> Result<(), Backpressure> {
        let (encoded, cuts) = ItemOffsets::encode(memory, items, Alignment::NONE, encode);
        let bytes = check(&encoded).map_err(EncodeError::refusal)?;
        if cuts.count() != items {
            return Err(ITEMS_DIFFER);
        }
        self.keep(&memory[..bytes], cuts);
        Ok(())
    }

    fn keep(&mut self, stream: &[u8], cuts: ItemOffsets) {
        self.stream.clear();
        self.stream.extend_from_slice(stream);
        self.cuts = cuts;
    }

    /// Writes the stream, and the items given to `writer` where they belong.
    pub(crate) fn write(&self, writer: &mut StreamWriter<'_>) {
        EncodedStream::new(&self.stream, self.cuts).write(writer);
    }

    /// Writes one that was encoded to short memory.
    #[inline]
    pub(crate) fn write_short(stream: &[u8], writer: &mut StreamWriter<'_>) {
        // As `ItemOffsets::write`: where data are padded, none of these are.
        writer.xdr().stop_padding();
        writer.fixed(stream);
    }
}

impl MessageMemory {
    /// `longest_bytes`: of a stream. The memory for it is not touched before it is used.
    pub(in crate::reactor) fn with_capacity(longest_bytes: usize) -> Self {
        let long = vec![0; CALL_BYTES + longest_bytes].into_boxed_slice();
        Self { short: Short::EMPTY, long, drafted: Ok(0) }
    }

    /// The short message that was written last.
    #[inline(always)]
    pub(in crate::reactor) fn short(&self) -> &Short {
        &self.short
    }

    #[inline(always)]
    pub(in crate::reactor) fn short_mut(&mut self) -> &mut Short {
        &mut self.short
    }

    /// Encodes a stream without data items behind a head of `HEAD` bytes. Returns the bytes of both if that is a short
    /// message.
    #[inline(always)]
    pub(in crate::reactor) fn encode<const HEAD: usize>(
        &mut self,
        encode: impl FnOnce(&mut StreamWriter<'_>),
    ) -> Option<usize> {
        let Self { short, long, drafted } = self;
        let long = long.get_mut(HEAD..).unwrap_or_default();
        let mut writer = StreamWriter::with_more(&mut short.whole_mut()[HEAD..], long);
        encode(&mut writer);
        let bytes = writer.itemless_bytes().map(|bytes| HEAD + bytes);
        match bytes {
            Some(bytes) => short.set_len(bytes),
            None => *drafted = check(&writer.finish()).map(|bytes| HEAD + bytes),
        }
        bytes
    }

    /// The message that [`MessageMemory::encode`] has written last, its head included; `is_short` if that
    /// said so.
    pub(in crate::reactor) fn written_mut(
        &mut self,
        is_short: bool,
    ) -> Result<&mut [u8], EncodeError> {
        match is_short {
            true => {
                let bytes = self.short.length();
                Ok(&mut self.short.whole_mut()[..bytes])
            }
            false => {
                let bytes = self.drafted?;
                Ok(&mut self.long[..bytes])
            }
        }
    }

    /// Encodes a stream with all items taken out, which are `items` at most, for connections that pad like
    /// this.
    pub(in crate::reactor) fn draft(
        &mut self,
        items: usize,
        alignment: Alignment,
        encode: EncodeOnce<'_>,
    ) -> Result<EncodedStream<'_>, EncodeError> {
        let (encoded, cuts) = ItemOffsets::encode(&mut self.long, items, alignment, encode);
        let bytes = check(&encoded)?;
        Ok(EncodedStream::new(&self.long[..bytes], cuts))
    }
}

/// Bytes of a stream that was encoded.
pub(in crate::reactor) fn check(encoded: &Encoded) -> Result<usize, EncodeError> {
    match encoded.items_missing {
        true => Err(EncodeError::ItemsMissing),
        false if !encoded.fits => Err(EncodeError::TooLong(encoded.stream_bytes)),
        false => Ok(encoded.stream_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::SHORT_BYTES_MAX;

    const ROOM: usize = SHORT_BYTES_MAX - CALL_BYTES;

    /// Bytes of a message in words of different values, and its first word behind the head.
    fn encoded(memory: &mut MessageMemory, bytes: usize) -> (bool, Result<Vec<u8>, EncodeError>) {
        let short_bytes = memory.encode::<CALL_BYTES>(|stream| {
            (0..bytes / 4).for_each(|word| stream.u32(word as u32));
        });
        let is_short = short_bytes.is_some();
        assert!(short_bytes.is_none_or(|short| short == CALL_BYTES + bytes));
        (is_short, memory.written_mut(is_short).map(|message| message[CALL_BYTES..].to_vec()))
    }

    #[test]
    fn a_stream_moves_to_longer_memory_whole_as_soon_as_it_is_not_short() {
        let mut memory = MessageMemory::with_capacity(1024);
        let longest = 1024;
        for bytes in [0, 4, ROOM, ROOM + 4, longest / 4 * 4, 8, longest / 4 * 4 + 4] {
            let (is_short, written) = encoded(&mut memory, bytes);
            assert_eq!(is_short, bytes <= ROOM, "{bytes}");
            let words = (0..bytes as u32 / 4).flat_map(u32::to_be_bytes);
            match bytes <= longest {
                true => assert_eq!(written, Ok(words.collect()), "{bytes}"),
                false => assert_eq!(written, Err(EncodeError::TooLong(bytes)), "{bytes}"),
            }
        }
    }

    #[test]
    fn an_item_that_does_not_fit_moves_with_its_roundup() {
        let mut memory = MessageMemory::with_capacity(4096);
        memory.long.fill(0xee);
        for length in ROOM - 8..ROOM + 8 {
            let data = vec![7; length];
            let is_short = memory.encode::<CALL_BYTES>(|stream| stream.opaque(&data)).is_some();
            assert_eq!(is_short, length.next_multiple_of(4) + 4 <= ROOM, "{length}");
            let message = memory.written_mut(is_short).unwrap();
            let (count, stored) = message[CALL_BYTES..].split_at(4);
            assert_eq!(count, (length as u32).to_be_bytes());
            assert_eq!(stored[..length], data);
            assert_eq!(stored[length..], [0; 3][..length.next_multiple_of(4) - length]);
        }
    }

    #[test]
    #[allow(clippy::redundant_closure_for_method_calls, reason = "of any lifetime")]
    fn a_stream_that_asks_for_an_item_expect_no_message() {
        let mut memory = MessageMemory::with_capacity(1024);
        let is_short = memory.encode::<CALL_BYTES>(|stream| stream.bulk()).is_some();
        assert!(!is_short);
        assert_eq!(memory.written_mut(is_short).err(), Some(EncodeError::ItemsMissing));
        let draft = memory.draft(1, Alignment::NONE, &mut |stream| {
            stream.bulk();
            stream.bulk();
        });
        assert_eq!(draft.err().map(|why| format!("{why:?}")), Some("ItemsMissing".into()));
    }
}
