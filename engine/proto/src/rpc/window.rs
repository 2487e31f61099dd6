//! The window of sequence numbers that a responder keeps for each RPCSEC_GSS context (RFC 2203
//! section 5.3.3.1).
//!
//! Replies leave a server out of order, and so do calls that travel over several connections. The
//! window therefore keeps more numbers than the requester is told of: see [`SequenceWindow::TOLD`].

/// Largest sequence number of a call (`MAXSEQ`, RFC 2203 section 5.3.3.1).
pub const SEQUENCE_MAX: u32 = 0x8000_0000;

/// Sequence numbers that were seen, of the most recent `WORDS` * 64.
///
/// A number enters the window only after the verifier of its call has been checked. Otherwise a
/// forged call could move the window past every call in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceWindow<const WORDS: usize> {
    /// One more than the largest number seen; 0 before the first.
    end: u32,
    /// The bit of number n is bit n % 64 of word (n / 64) % WORDS. Numbers not seen have 0.
    seen: [u64; WORDS],
}

/// Decision on the sequence number of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Not seen before: the call is to be executed.
    Fresh,
    /// Seen before, or too old to tell: neither to be executed nor answered.
    Replay,
    /// Larger than [`SEQUENCE_MAX`]: RPCSEC_GSS_CTXPROBLEM.
    TooLarge,
}

impl<const WORDS: usize> SequenceWindow<WORDS> {
    /// Sequence numbers that are told apart.
    pub const KEPT: u32 = {
        assert!(WORDS > 0 && WORDS <= 1024, "a window has 64 to 65,536 numbers");
        WORDS as u32 * 64
    };

    /// The window to tell requesters (`seq_window`): half of the numbers kept, because calls
    /// overtake each other.
    pub const TOLD: u32 = Self::KEPT / 2;

    /// A window that has seen nothing.
    pub const fn new() -> Self {
        Self { end: 0, seen: [0; WORDS] }
    }

    /// Decides on a call whose verifier is good, and notes its number.
    pub fn admit(&mut self, number: u32) -> Admission {
        if number > SEQUENCE_MAX {
            return Admission::TooLarge;
        }
        if number >= self.end {
            self.clear(self.end.max(number.saturating_sub(Self::KEPT - 1)), number);
            self.end = number + 1;
        } else if self.end - number > Self::KEPT {
            return Admission::Replay;
        }
        let word = &mut self.seen[Self::word(number)];
        let bit = 1 << (number % 64);
        if *word & bit != 0 {
            return Admission::Replay;
        }
        *word |= bit;
        Admission::Fresh
    }

    /// Both included: at most [`Self::KEPT`], word by word.
    fn clear(&mut self, first: u32, last: u32) {
        let mut from = first;
        while from <= last {
            let bits = (last - from + 1).min(64 - from % 64);
            let mask = u64::MAX >> (64 - bits) << (from % 64);
            self.seen[Self::word(from)] &= !mask;
            from += bits;
        }
    }

    const fn word(number: u32) -> usize {
        (number / 64) as usize % WORDS
    }
}

impl<const WORDS: usize> Default for SequenceWindow<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}
