//! Short messages, which most messages are: they go by value between a driver and the reactor's lane,
//! and their receives stay posted.
//!
//! In memory a short message lies as in a slot of a ring over shared memory, so that whole blocks of it
//! are copied.

use crate::sync::ring::{FIRST_PAYLOAD_BYTES, SLOT_MESSAGE_AT, SlotImage};
use crate::sync::words::BLOCK_BYTES;

/// Bytes of the longest short message: what one slot of a ring over shared memory holds.
pub const SHORT_BYTES_MAX: usize = FIRST_PAYLOAD_BYTES;

const SLOT_BYTES: usize = size_of::<SlotImage>();
/// Offset of the words behind the first one, in pairs: a transport header of version one is seven words.
const PAIRS_AT: usize = SLOT_MESSAGE_AT + 4;

const _: () = assert!(SLOT_MESSAGE_AT + SHORT_BYTES_MAX == SLOT_BYTES && PAIRS_AT == BLOCK_BYTES);

/// A message of at most [`SHORT_BYTES_MAX`] bytes in memory of its own.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Short {
    /// With a block more, which is not sent.
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
        let length = self.length.checked_sub(BYTES)?;
        self.bytes[SLOT_MESSAGE_AT + BYTES..].get(..length)
    }

    /// Its first word, as it lies in memory; what was there before if it has none.
    #[inline(always)]
    pub fn first_word(&self) -> [u8; 4] {
        let before = self.bytes.first_chunk::<PAIRS_AT>();
        before.and_then(|before| before.last_chunk()).map_or([0; 4], |word| *word)
    }

    /// The pairs of words behind its first word, as they lie in memory. Behind the end of the message is
    /// what was there before.
    #[inline(always)]
    pub fn pairs<const N: usize>(&self) -> [u64; N] {
        let pairs = self.bytes[PAIRS_AT..].as_chunks().0.first_chunk::<N>();
        pairs.map_or([0; N], |pairs| pairs.map(u64::from_ne_bytes))
    }

    /// Sets the first word and the pairs behind it.
    #[inline(always)]
    pub fn set_head<const N: usize>(&mut self, first: [u8; 4], pairs: &[u64; N]) {
        // With what is before it, which is zero, as one word: the word that is copied on.
        let word = u64::from(u32::from_be_bytes(first)).to_be_bytes();
        self.bytes[PAIRS_AT - word.len()..PAIRS_AT].copy_from_slice(&word);
        let room = self.bytes[PAIRS_AT..].as_chunks_mut().0.iter_mut();
        room.zip(pairs).for_each(|(to, pair)| *to = pair.to_ne_bytes());
    }

    /// All that a message has room in.
    #[inline(always)]
    pub fn whole_mut(&mut self) -> &mut [u8; SHORT_BYTES_MAX] {
        let slot = self.bytes.first_chunk_mut::<SLOT_BYTES>();
        // The arrays' lengths are constants, so that this is no check.
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

    /// The slot that holds the message.
    #[inline(always)]
    pub(super) fn slot(&self) -> &SlotImage {
        self.bytes.as_chunks().0.first_chunk().unwrap_or_else(|| unreachable!())
    }

    /// As [`Short::slot`], to be filled with a message of `bytes` bytes.
    #[inline(always)]
    pub(super) fn slot_mut(&mut self, bytes: usize) -> &mut SlotImage {
        self.length = bytes.min(SHORT_BYTES_MAX);
        self.bytes.as_chunks_mut().0.first_chunk_mut().unwrap_or_else(|| unreachable!())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
    fn the_head_is_what_was_set_and_the_rest_stays() {
        let mut short = Short::EMPTY;
        short.whole_mut().fill(7);
        short.set_len(40);
        short.set_head([1, 2, 3, 4], &[5, 6]);
        assert_eq!(short.first_word(), [1, 2, 3, 4]);
        assert_eq!(short.pairs(), [5, 6, u64::from_ne_bytes([7; 8])]);
        assert_eq!(short.bytes()[20..], [7; 20]);
        assert_eq!(short.pairs::<40>(), [0; 40], "more than there are");
    }
}
