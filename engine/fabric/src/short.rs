//! Short messages, which most messages are: they go by value between a driver and the reactor's lane,
//! and their receives stay posted.
//!
//! In memory a short message lies as in a slot of a ring over shared memory, so that whole blocks of it
//! are copied.

use crate::mem::Buf;
use crate::sync::ring::{FIRST_PAYLOAD_BYTES, SLOT_MESSAGE_AT, SlotImage};
use crate::sync::words::{BLOCK_BYTES, LINE_REST_WORDS, WORD_BYTES};

/// Length of the longest short message in bytes: the capacity of one ring slot over shared memory.
#[doc(hidden)]
pub const SHORT_BYTES_MAX: usize = FIRST_PAYLOAD_BYTES;

const SLOT_BYTES: usize = size_of::<SlotImage>();
/// Offset of the words behind the first one, in pairs: a transport header of version one is seven words.
const PAIRS_AT: usize = SLOT_MESSAGE_AT + 4;

const _: () = assert!(SLOT_MESSAGE_AT + SHORT_BYTES_MAX == SLOT_BYTES && PAIRS_AT == BLOCK_BYTES);

/// The first words of a short message, which lie in registers: the first one, with the bytes before
/// it in a slot, and those behind it in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Head<const WORDS: usize>([u64; WORDS]);

/// The head in the first cache line: the first word of a message and six pairs.
#[doc(hidden)]
pub type LineHead = Head<LINE_REST_WORDS>;

/// Two pairs more, which are in the next line.
#[doc(hidden)]
pub type LongHead = Head<{ LINE_REST_WORDS + 2 }>;

/// Pairs of a [`LineHead`].
#[doc(hidden)]
pub const LINE_PAIRS: usize = LINE_REST_WORDS - 1;

const LINE_HEAD_BYTES: usize = 4 + LINE_PAIRS * WORD_BYTES;

pub(super) const LONG_PAIRS: usize = LINE_PAIRS + 2;

impl LineHead {
    /// Builds it from words as they lie in memory.
    #[inline(always)]
    pub const fn new(first: [u8; 4], [a, b, c, d, e, f]: [u64; LINE_PAIRS]) -> Self {
        Self([first_pair(first), a, b, c, d, e, f])
    }
}

impl LongHead {
    /// Builds it from words as they lie in memory.
    #[inline(always)]
    pub const fn new(first: [u8; 4], [a, b, c, d, e, f, g, h]: [u64; LONG_PAIRS]) -> Self {
        Self([first_pair(first), a, b, c, d, e, f, g, h])
    }
}

/// As it lies in memory.
#[inline(always)]
const fn half(block: [u8; BLOCK_BYTES], at: usize) -> u64 {
    let from_lowest = if cfg!(target_endian = "little") { at } else { 1 - at };
    (u128::from_ne_bytes(block) >> (64 * from_lowest)) as u64
}

/// The bytes before the word are zero.
#[inline(always)]
const fn first_pair(first: [u8; 4]) -> u64 {
    u64::from_be(u32::from_be_bytes(first) as u64)
}

impl<const WORDS: usize> Head<WORDS> {
    #[inline(always)]
    pub(super) const fn words(&self) -> &[u64; WORDS] {
        &self.0
    }
}

/// A message of at most [`SHORT_BYTES_MAX`] bytes in separate memory.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
#[doc(hidden)]
pub struct Short {
    /// Bytes of a slot and one block more, which is not sent.
    bytes: [u8; SLOT_BYTES + BLOCK_BYTES],
    length: usize,
}

impl Short {
    /// An empty message.
    pub const EMPTY: Self = Self { bytes: [0; SLOT_BYTES + BLOCK_BYTES], length: 0 };

    /// The message.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[SLOT_MESSAGE_AT..][..self.length]
    }

    /// Bytes of the message.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The message from byte `BYTES` on, if it is that long.
    #[inline(always)]
    pub fn behind<const BYTES: usize>(&self) -> Option<&[u8]> {
        // More than there are where the message is shorter.
        let length = self.length.wrapping_sub(BYTES);
        self.bytes[SLOT_MESSAGE_AT + BYTES..].get(..length)
    }

    /// Becomes a copy of a message, if that is a short one that has all words of a [`LineHead`].
    #[inline(always)]
    pub fn copy_from(&mut self, message: &[u8]) -> bool {
        if !(LINE_HEAD_BYTES..=SHORT_BYTES_MAX).contains(&message.len()) {
            return false;
        }
        self.whole_mut()[..message.len()].copy_from_slice(message);
        self.set_len(message.len());
        true
    }

    /// Its first word, as it lies in memory; the earlier content of that memory if the message is
    /// empty.
    #[inline(always)]
    pub fn first_word(&self) -> [u8; 4] {
        let before = self.bytes.first_chunk::<PAIRS_AT>();
        before.and_then(|before| before.last_chunk()).map_or([0; 4], |word| *word)
    }

    /// The pairs of words behind its first word, as they lie in memory. Behind the end of the
    /// message are earlier contents of that memory.
    #[inline(always)]
    pub fn pairs<const N: usize>(&self) -> [u64; N] {
        let mut pairs = [0; N];
        // By blocks, as they were stored: a load of two halves of different blocks, which a compiler may choose,
        // waits until both stores have left the processor's store buffer.
        let blocks = self.bytes[PAIRS_AT..].as_chunks().0.get(..N.div_ceil(2)).unwrap_or_default();
        for (two, block) in pairs.chunks_mut(2).zip(blocks) {
            for (at, pair) in two.iter_mut().enumerate() {
                *pair = half(*block, at);
            }
        }
        pairs
    }

    /// The message in a buffer, which has room for any short one.
    pub fn put_into(&self, mut buffer: Buf) -> Buf {
        buffer.set_range(0..self.length);
        buffer.bytes_mut().copy_from_slice(self.bytes());
        buffer
    }

    /// Sets its first words.
    pub fn set_head<const WORDS: usize>(&mut self, head: &Head<WORDS>) {
        let room = self.bytes[WORD_BYTES..].as_chunks_mut().0.iter_mut();
        room.zip(head.0).for_each(|(to, word)| *to = word.to_ne_bytes());
    }

    /// Puts a word that is zero behind the first `AT` bytes of a message that has those. Returns false, and does
    /// nothing, if it is too long for that.
    #[inline(always)]
    pub fn insert_word<const AT: usize>(&mut self) -> bool {
        let end = self.length;
        if !(AT..=SHORT_BYTES_MAX - 4).contains(&end) {
            return false;
        }
        let whole = self.whole_mut();
        whole.copy_within(AT..end, AT + 4);
        whole[AT..AT + 4].fill(0);
        self.set_len(end + 4);
        true
    }

    /// All that a message has room in.
    #[inline(always)]
    pub fn whole_mut(&mut self) -> &mut [u8; SHORT_BYTES_MAX] {
        let slot = self.bytes.first_chunk_mut::<SLOT_BYTES>();
        // The arrays' lengths are constants, so the compiler removes this check.
        slot.and_then(|slot| slot.last_chunk_mut()).unwrap_or_else(|| unreachable!())
    }

    /// Sets the length and zeroes the rest of the last block. Blocks are sent whole, and must not leak an
    /// earlier message of another connection.
    ///
    /// # Panics
    /// If that is longer than [`SHORT_BYTES_MAX`].
    #[inline(always)]
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= SHORT_BYTES_MAX, "a short message of {bytes} bytes");
        self.length = bytes;
        let behind = &mut self.bytes[SLOT_MESSAGE_AT + bytes..];
        if let Some(behind) = behind.first_chunk_mut::<BLOCK_BYTES>() {
            *behind = [0; BLOCK_BYTES];
        }
    }

    /// Becomes a copy of a message of `bytes` bytes, with these first words in the place of its own.
    #[cfg(feature = "verbs")]
    #[inline(always)]
    pub(super) fn copy_with_head<const WORDS: usize>(
        &mut self,
        head: &Head<WORDS>,
        message: &Self,
        bytes: usize,
    ) {
        // The head fills whole blocks before these.
        let first = (1 + WORDS) * WORD_BYTES / BLOCK_BYTES;
        let end = (SLOT_MESSAGE_AT + bytes).div_ceil(BLOCK_BYTES);
        let blocks = self.slot_mut().iter_mut().zip(message.slot()).take(end).skip(first);
        blocks.for_each(|(to, from)| *to = *from);
        self.set_head(head);
        self.set_taken(bytes);
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> &SlotImage {
        self.bytes.as_chunks().0.first_chunk().unwrap_or_else(|| unreachable!())
    }

    #[inline(always)]
    pub(super) fn slot_mut(&mut self) -> &mut SlotImage {
        self.bytes.as_chunks_mut().0.first_chunk_mut().unwrap_or_else(|| unreachable!())
    }

    /// The slot holds a message of `bytes` bytes, and behind it anything.
    #[inline(always)]
    pub(super) fn set_taken(&mut self, bytes: usize) {
        debug_assert!(bytes <= SHORT_BYTES_MAX, "a short message of {bytes} bytes");
        self.length = bytes;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HEAD_BYTES: usize = 4 + 8 * LONG_PAIRS;

    impl Short {
        /// Its first words. Behind the end of the message they are zero.
        pub(crate) fn head(&self) -> LineHead {
            let end = SLOT_MESSAGE_AT + self.length;
            let mut head = [0; LINE_REST_WORDS];
            let words = self.bytes[..end].chunks(WORD_BYTES).skip(1);
            for (to, word) in head.iter_mut().zip(words) {
                let mut whole = [0; WORD_BYTES];
                whole[..word.len()].copy_from_slice(word);
                *to = u64::from_ne_bytes(whole);
            }
            Head(head)
        }
    }

    #[test]
    fn the_blocks_of_a_message_hold_nothing_of_an_earlier_one() {
        for bytes in 0..=SHORT_BYTES_MAX {
            let mut short = Short::EMPTY;
            short.whole_mut().fill(0xee);
            short.set_len(SHORT_BYTES_MAX);
            short.set_len(bytes);
            let blocks = (SLOT_MESSAGE_AT + bytes).div_ceil(BLOCK_BYTES);
            let sent = short.slot()[..blocks].as_flattened();
            assert!(sent[..SLOT_MESSAGE_AT].iter().all(|byte| *byte == 0), "before {bytes} bytes");
            let (message, behind) = sent[SLOT_MESSAGE_AT..].split_at(bytes);
            assert!(message.iter().all(|byte| *byte == 0xee), "{bytes} bytes");
            assert!(behind.iter().all(|byte| *byte == 0), "behind {bytes} bytes");
            assert_eq!(short.bytes(), message);
        }
    }

    #[test]
    fn a_word_is_inserted_unless_the_message_is_too_short_or_too_long() {
        for bytes in [0, 51, 52, 53, 100, SHORT_BYTES_MAX - 4, SHORT_BYTES_MAX - 3] {
            let mut short = Short::EMPTY;
            short.whole_mut().iter_mut().zip(1..).for_each(|(to, byte)| *to = byte);
            short.set_len(bytes);
            let before = short.bytes().to_vec();
            let is_inserted = short.insert_word::<52>();
            assert_eq!(is_inserted, (52..=SHORT_BYTES_MAX - 4).contains(&bytes), "{bytes}");
            let expected = match is_inserted {
                true => [&before[..52], &[0; 4], &before[52..]].concat(),
                false => before,
            };
            assert_eq!(short.bytes(), expected, "{bytes}");
        }
    }

    #[test]
    fn the_head_is_what_was_set_and_the_rest_stays() {
        let mut short = Short::EMPTY;
        short.whole_mut().fill(7);
        short.set_len(HEAD_BYTES + 20);
        short.set_head(&LongHead::new([1, 2, 3, 4], [5, 6, 8, 9, 10, 11, 12, 13]));
        assert_eq!(short.first_word(), [1, 2, 3, 4]);
        assert_eq!(short.pairs(), [5, 6, 8, 9, 10, 11, 12, 13, u64::from_ne_bytes([7; 8])]);
        assert_eq!(short.head(), LineHead::new([1, 2, 3, 4], [5, 6, 8, 9, 10, 11]));
        assert_eq!(short.bytes()[HEAD_BYTES..], [7; 20]);
        short.set_len(5);
        assert_eq!(short.head().words()[1].to_ne_bytes(), [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(short.head().words()[2..], [0; 5], "nothing of the message before");
        assert_eq!(short.slot()[0][..SLOT_MESSAGE_AT], [0; SLOT_MESSAGE_AT]);
        assert_eq!(short.pairs::<40>(), [0; 40], "more than there are");
    }
}
