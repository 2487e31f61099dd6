//! Short messages, which most messages are: a driver hands them over by value, and their receives
//! stay posted. Filled by drivers and by the reactor's lane, which alone asks for them
//! ([`super::Fabric::take_shorts`]).

/// Bytes of the longest short message: what one slot of a ring over shared memory holds.
pub const SHORT_BYTES_MAX: usize = ROOM_BYTES - LEAD_BYTES;

const ROOM_BYTES: usize = 248;
/// Where the message begins, so that a transport header of seven XDR words, the XID in front, has
/// pairs of words at multiples of eight.
const LEAD_BYTES: usize = 4;
const PAIR_BYTES: usize = 8;

/// A message of at most [`SHORT_BYTES_MAX`] bytes in memory of its own.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Short {
    bytes: [u8; ROOM_BYTES],
    /// That of the message and of what is before it.
    end: usize,
}

impl Short {
    /// An empty message.
    pub const EMPTY: Self = Self { bytes: [0; ROOM_BYTES], end: LEAD_BYTES };

    /// The message.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[LEAD_BYTES..self.end]
    }

    /// Its first word, as it lies in memory; what was there before if it has none.
    #[inline(always)]
    pub fn first_word(&self) -> [u8; 4] {
        let [_, _, _, _, a, b, c, d, ..] = self.bytes;
        [a, b, c, d]
    }

    /// The pairs of words behind its first word, as they lie in memory. Behind the end of the message is
    /// what was there before.
    #[inline(always)]
    pub fn pairs<const N: usize>(&self) -> [u64; N] {
        let pairs = self.bytes[PAIR_BYTES..].as_chunks().0.first_chunk::<N>();
        pairs.map_or([0; N], |pairs| pairs.map(u64::from_ne_bytes))
    }

    /// Sets the first word and the pairs behind it.
    #[inline(always)]
    pub fn set_head<const N: usize>(&mut self, first: [u8; 4], pairs: &[u64; N]) {
        self.bytes[LEAD_BYTES..PAIR_BYTES].copy_from_slice(&first);
        let room = self.bytes[PAIR_BYTES..].as_chunks_mut().0.iter_mut();
        room.zip(pairs).for_each(|(to, pair)| *to = pair.to_ne_bytes());
    }

    /// All that a message has room in.
    #[inline(always)]
    pub fn whole_mut(&mut self) -> &mut [u8; SHORT_BYTES_MAX] {
        // The arrays' lengths are constants, so that this is no check.
        self.bytes.last_chunk_mut().unwrap_or_else(|| unreachable!())
    }

    /// Says how long the message is. What its last word has too much becomes zero: words go out whole, and
    /// an earlier message, of another connection perhaps, may have been there.
    ///
    /// # Panics
    /// If that is longer than [`SHORT_BYTES_MAX`].
    #[inline(always)]
    pub fn set_len(&mut self, bytes: usize) {
        assert!(bytes <= SHORT_BYTES_MAX, "a short message of {bytes} bytes");
        self.end = LEAD_BYTES + bytes;
        let used_bytes = self.end % PAIR_BYTES;
        let last = self.bytes.as_chunks_mut().0.get_mut(self.end / PAIR_BYTES);
        if let Some(last) = last.filter(|_| used_bytes > 0) {
            let keep = !(u64::MAX << (8 * used_bytes));
            *last = (u64::from_le_bytes(*last) & keep).to_le_bytes();
        }
    }

    /// Whole words that hold the message, the word before it first.
    #[inline(always)]
    pub(super) fn words(&self) -> &[u8] {
        &self.bytes[..self.end.next_multiple_of(PAIR_BYTES).min(ROOM_BYTES)]
    }

    /// As [`Short::words`], of a message of so many bytes, to be filled.
    #[inline(always)]
    pub(super) fn words_mut(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= SHORT_BYTES_MAX, "a short message of {bytes} bytes");
        self.end = LEAD_BYTES + bytes;
        &mut self.bytes[..self.end.next_multiple_of(PAIR_BYTES).min(ROOM_BYTES)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_message_hold_nothing_of_an_earlier_one() {
        for bytes in 0..=SHORT_BYTES_MAX {
            let mut short = Short::EMPTY;
            short.whole_mut().fill(0xee);
            short.set_len(SHORT_BYTES_MAX);
            short.set_len(bytes);
            let words = short.words();
            assert_eq!((words.len() - LEAD_BYTES).saturating_sub(bytes) / PAIR_BYTES, 0);
            assert!(words[..LEAD_BYTES].iter().all(|byte| *byte == 0), "before {bytes} bytes");
            let (message, behind) = words[LEAD_BYTES..].split_at(bytes);
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
        assert_eq!(short.pairs::<31>(), [0; 31], "more than there are");
    }
}
