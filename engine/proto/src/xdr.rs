//! XDR (RFC 4506) without allocation: a bounded cursor to read with, a counting cursor to write with.
//!
//! Every decoder and encoder of this crate goes through these two types, and so do the arguments and
//! results of procedures. Nothing here panics, whatever the bytes and lengths.

use core::fmt;

use crate::rfc5666::alignment::Alignment;
pub use crate::rfc5666::padding::{COUNTED_MAX, Counted, Padding};

/// Bytes of padding after an item of `length` bytes: XDR items end on a multiple of 4 (RFC 4506
/// section 3).
#[inline]
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// `length` and its padding. Saturates, at a value which no buffer has.
#[inline]
pub const fn roundup4(length: usize) -> usize {
    length.saturating_add(padding(length))
}

/// Error in received bytes, with its offset from where decoding began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The item at offset `at` needs `wanted` bytes; fewer were received.
    Truncated {
        /// Offset of the item in bytes.
        at: usize,
        /// Bytes which the item needs, padding included.
        wanted: usize,
    },
    /// The counted item at `at` says it is longer than its type allows.
    TooLong {
        /// Offset of the count word in bytes.
        at: usize,
        /// The count received.
        length: usize,
        /// The count allowed.
        max: usize,
    },
    /// The padding at `at` is not there in full.
    BadPadding {
        /// Offset of the first padding byte.
        at: usize,
    },
    /// The boolean (or list link) at `at` is neither 0 nor 1.
    BadBool {
        /// Offset of the word in bytes.
        at: usize,
        /// The word received.
        value: u32,
    },
    /// The enumeration or union discriminant at `at` has a value that is not defined.
    BadEnum {
        /// Offset of the word in bytes.
        at: usize,
        /// The word received.
        value: u32,
    },
    /// The string at `at` is not UTF-8.
    BadUtf8 {
        /// Offset of the first byte of the string that is not valid.
        at: usize,
    },
    /// Bytes are left over at `at`, where the message ought to end.
    TrailingBytes {
        /// Offset of the first byte too many.
        at: usize,
    },
    /// A limit of this end is exceeded.
    LimitExceeded {
        /// The limit, in words.
        what: &'static str,
    },
    /// Offset plus length of the segment at `at` runs past the 64-bit address space.
    SegmentWraps {
        /// Offset of the segment in bytes.
        at: usize,
    },
    /// A call that carries its message inline also has a Position-Zero Read chunk.
    UnexpectedPositionZero,
    /// The chunk that carries the item at `at` has neither its length nor that rounded up (RFC 5666
    /// sections 3.4 and 3.7).
    ChunkMismatch {
        /// Offset of the count word in bytes.
        at: usize,
        /// The count received.
        length: usize,
        /// Bytes the chunk has.
        chunk: usize,
    },
    /// No item of the stream stands where this Read chunk belongs, or the stream has no item for
    /// the bytes that were placed in this Write chunk.
    ChunkUnused {
        /// Index of the chunk: a Read chunk by rising position, a Write chunk in the order of its
        /// list.
        index: usize,
    },
    /// A call of type RDMA_NOMSG has no Position-Zero Read chunk, so it has no message at all.
    MissingPositionZero,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { at, wanted } => {
                write!(f, "item at offset {at} needs {wanted} bytes, the message ends before")
            }
            Self::TooLong { at, length, max } => {
                write!(f, "item at offset {at} has length {length}, at most {max} is allowed")
            }
            Self::BadPadding { at } => write!(f, "padding at offset {at} is cut short"),
            Self::BadBool { at, value } => write!(f, "boolean at offset {at} is {value}"),
            Self::BadEnum { at, value } => write!(f, "undefined value {value} at offset {at}"),
            Self::BadUtf8 { at } => write!(f, "string is not UTF-8 at offset {at}"),
            Self::TrailingBytes { at } => write!(f, "bytes left over from offset {at}"),
            Self::LimitExceeded { what } => write!(f, "too many {what}"),
            Self::SegmentWraps { at } => {
                write!(f, "segment at offset {at} runs past the 64-bit address space")
            }
            Self::ChunkMismatch { at, length, chunk } => {
                write!(f, "item at offset {at} has length {length}, its chunk {chunk}")
            }
            Self::ChunkUnused { index } => {
                write!(f, "chunk {index} belongs to no item of the stream")
            }
            Self::UnexpectedPositionZero => f.write_str("Position-Zero Read chunk in an RDMA_MSG"),
            Self::MissingPositionZero => f.write_str("RDMA_NOMSG without Position-Zero Read chunk"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Reads XDR items from bytes of a peer, one after the other.
///
/// A failed read leaves the position where it was, so that the error and [`position`] agree.
/// Padding bytes are skipped whatever their value: RFC 4506 section 3 asks the sender for zeros, but
/// a receiver gains nothing by refusing others, and RFC 5666 section 3.7 lets senders take them from
/// memory as it is.
///
/// [`position`]: Self::position
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    pub(crate) rest: &'a [u8],
    pub(crate) total: usize,
    pub(crate) alignment: Alignment,
    /// Position of the first byte in the Send.
    pub(crate) start: usize,
    /// Bytes of padding passed.
    pub(crate) skipped: usize,
}

/// Declares the functions of [`Reader`] and [`Writer`] for numbers.
macro_rules! numbers {
    ($($about:literal $type:ident)+) => {
        impl Reader<'_> {
            $(
                #[doc = $about]
                ///
                /// # Errors
                /// [`DecodeError::Truncated`] if fewer bytes than it has are left.
                #[inline]
                pub fn $type(&mut self) -> Result<$type, DecodeError> {
                    self.array().map(|bytes| $type::from_be_bytes(*bytes))
                }
            )+
        }

        impl Writer<'_> {
            $(
                #[doc = $about]
                #[inline]
                pub fn $type(&mut self, value: $type) {
                    self.array(value.to_be_bytes());
                }
            )+
        }
    };
}

numbers! {
    "An unsigned integer." u32
    "A signed integer." i32
    "An unsigned hyper integer." u64
    "A signed hyper integer." i64
}

impl<'a> Reader<'a> {
    /// A reader at the first of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self::aligned(bytes, Alignment::NONE, 0)
    }

    /// Bytes read so far.
    #[inline]
    pub const fn position(&self) -> usize {
        self.total - self.rest.len()
    }

    /// Bytes of the XDR stream read so far: those of [`Self::position`] without padding.
    #[inline]
    pub const fn stream_position(&self) -> usize {
        self.position() - self.skipped
    }

    /// Bytes not read yet.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes between this reader and `end`, a later state of it, and moves there.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if `end` does not lie behind this reader.
    #[inline]
    pub fn pass_to(&mut self, end: &Self) -> Result<&'a [u8], DecodeError> {
        let length = end.position().wrapping_sub(self.position());
        let passed = self.rest.get(..length).ok_or_else(|| self.truncated(length))?;
        *self = end.clone();
        Ok(passed)
    }

    /// The bytes not read yet; the position stays.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> DecodeError {
        DecodeError::Truncated { at: self.position(), wanted }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(self.truncated(N)),
        }
    }

    /// A boolean; also the link word before a list entry or optional item.
    ///
    /// # Errors
    /// [`DecodeError::BadBool`] for a word other than 0 and 1, or as [`Self::u32`].
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        let before = self.clone();
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => {
                *self = before;
                Err(DecodeError::BadBool { at: self.position(), value })
            }
        }
    }

    /// `length` bytes of opaque data without count word; its padding is skipped.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the data, [`DecodeError::BadPadding`] if the padding is not
    /// there in full.
    #[inline]
    pub fn fixed(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let Some((data, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.truncated(roundup4(length)));
        };
        match rest.get(padding(length)..) {
            Some(rest) => {
                self.rest = rest;
                Ok(data)
            }
            None => Err(DecodeError::BadPadding { at: self.position() + length }),
        }
    }

    /// Opaque data with its count word, of at most `max` bytes.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the count exceeds `max`, or as [`Self::fixed`].
    #[inline]
    pub fn opaque(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let Some((count, behind)) = self.rest.split_first_chunk() else {
            return Err(self.truncated(4));
        };
        let length = u32::from_be_bytes(*count) as usize;
        if length > max {
            return Err(DecodeError::TooLong { at: self.position(), length, max });
        }
        let simple = behind.split_at_checked(length).filter(|_| !self.alignment.applies_to(length));
        match simple.and_then(|(data, rest)| Some((data, rest.get(padding(length)..)?))) {
            Some((data, rest)) => {
                self.rest = rest;
                Ok(data)
            }
            None => self.opaque_behind_gap(length),
        }
    }

    /// A string of at most `max` bytes.
    ///
    /// # Errors
    /// [`DecodeError::BadUtf8`], or as [`Self::opaque`].
    #[inline]
    pub fn string(&mut self, max: usize) -> Result<&'a str, DecodeError> {
        let mut ahead = self.clone();
        let bytes = ahead.opaque(max)?;
        let text = core::str::from_utf8(bytes).map_err(|error| DecodeError::BadUtf8 {
            at: self.position() + 4 + error.valid_up_to(),
        })?;
        *self = ahead;
        Ok(text)
    }

    /// Passes over `length` bytes, without padding.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    #[inline]
    pub fn skip(&mut self, length: usize) -> Result<(), DecodeError> {
        self.rest = self.rest.get(length..).ok_or_else(|| self.truncated(length))?;
        Ok(())
    }

    /// Says that the message ends here.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`] if it does not.
    #[inline]
    pub const fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TrailingBytes { at: self.position() })
        }
    }
}

/// The buffer of a [`Writer`] was too small for the written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Bytes that would have been enough.
    pub needed_bytes: usize,
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "encoding needs {} bytes", self.needed_bytes)
    }
}

impl core::error::Error for Overflow {}

/// Writes XDR items into a buffer, one after the other.
///
/// No method fails. The first item that does not fit, and all after it, are not written but still
/// counted, so that one pass tells how many bytes are needed ([`Self::finish`]). With an empty
/// buffer a writer only counts. A writer that has more memory moves there instead
/// ([`Self::with_more`]).
#[derive(Debug)]
pub struct Writer<'a> {
    pub(crate) buffer: &'a mut [u8],
    pub(crate) len: usize,
    /// Memory to go on in when the buffer is full.
    pub(crate) more: &'a mut [u8],
    /// Elsewhere: most streams have none.
    pub(crate) padding: Option<&'a mut Padding>,
}

impl<'a> Writer<'a> {
    /// A writer at the first byte of `buffer`.
    #[inline]
    pub const fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, len: 0, more: &mut [], padding: None }
    }

    /// A writer at the first byte of `buffer`. The first item that does not fit there, and all before and
    /// behind it, are written to `more`, if that is longer.
    #[inline]
    pub const fn with_more(buffer: &'a mut [u8], more: &'a mut [u8]) -> Self {
        Self { buffer, len: 0, more, padding: None }
    }

    /// Bytes of the XDR stream so far: those of [`Self::len`] without padding.
    #[inline]
    pub fn stream_len(&self) -> usize {
        self.len - self.padding.as_ref().map_or(0, |padding| padding.skipped)
    }

    /// Bytes that counted data of this length would take here: count, padding, data, roundup.
    #[inline]
    pub fn opaque_bytes(&self, length: usize) -> usize {
        let at = self.len.saturating_add(4);
        let gap = self.padding.as_ref().map_or(0, |padding| padding.gap(at, length));
        roundup4(length).saturating_add(gap).saturating_add(4)
    }

    /// Bytes written or, past the end of the buffer, counted so far.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if nothing was written yet.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it has room for in all, those written included.
    #[inline]
    pub const fn capacity(&self) -> usize {
        self.buffer.len()
    }

    #[inline(always)]
    pub(crate) fn place(&mut self, bytes: usize) -> Option<&mut [u8]> {
        self.buffer.get_mut(self.len..)?.get_mut(..bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self, bytes: [u8; N]) {
        match self.place(N).and_then(|place| place.first_chunk_mut()) {
            Some(place) => {
                *place = bytes;
                self.len += N;
            }
            None => self.apart(|writer| writer.put_elsewhere(&bytes)),
        }
    }

    /// Does something rare to a copy, so that the writer itself can stay in registers.
    #[inline(always)]
    fn apart(&mut self, rare: impl FnOnce(&mut Self)) {
        let mut apart = core::mem::replace(self, Self::new(&mut []));
        rare(&mut apart);
        *self = apart;
    }

    /// The next item, which has no place here: goes where there is more memory, or is counted.
    #[cold]
    #[inline(never)]
    fn put_elsewhere(&mut self, data: &[u8]) {
        let bytes = roundup4(data.len());
        self.move_on();
        if let Some(place) = self.place(bytes) {
            put_rounded_up(place, data);
        }
        self.len = self.len.saturating_add(bytes);
    }

    /// All that is written moves to where there is more memory, once, unless it does not fit already.
    fn move_on(&mut self) {
        let more = core::mem::take(&mut self.more);
        if let Some(written) =
            self.buffer.get(..self.len).filter(|_| more.len() > self.buffer.len())
        {
            more[..self.len].copy_from_slice(written);
            self.buffer = more;
        }
    }

    /// A boolean; also the link word before a list entry or optional item.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Opaque data without count word, and zeros as its padding.
    #[inline]
    pub fn fixed(&mut self, data: &[u8]) {
        let bytes = roundup4(data.len());
        match self.place(bytes) {
            Some(place) => {
                put_rounded_up(place, data);
                self.len += bytes;
            }
            None => self.apart(|writer| writer.put_elsewhere(data)),
        }
    }

    /// Opaque data with its count word. More bytes than a count word can say overflow any buffer.
    #[inline]
    pub fn opaque(&mut self, data: &[u8]) {
        let bytes = roundup4(data.len()).saturating_add(4);
        let is_simple = self.padding.is_none() && data.len() <= u32::MAX as usize;
        match self.place(bytes).and_then(|place| place.split_first_chunk_mut()) {
            Some((count, place)) if is_simple => {
                *count = (data.len() as u32).to_be_bytes();
                put_rounded_up(place, data);
                self.len += bytes;
            }
            _ => self.apart(|writer| writer.put_opaque_elsewhere(data)),
        }
    }

    /// A string.
    #[inline]
    pub fn string(&mut self, text: &str) {
        self.opaque(text.as_bytes());
    }

    /// The number of bytes written.
    ///
    /// # Errors
    /// Length of the encoding, or [`Overflow`] if not all bytes fitted; the buffer then does not
    /// hold a whole encoding.
    #[inline]
    pub const fn finish(self) -> Result<usize, Overflow> {
        if self.len <= self.capacity() {
            Ok(self.len)
        } else {
            Err(Overflow { needed_bytes: self.len })
        }
    }
}

#[inline(always)]
fn put_rounded_up(place: &mut [u8], data: &[u8]) {
    // The rest of the last word is the padding.
    if let Some(last) = place.last_chunk_mut() {
        *last = [0; 4];
    }
    if let Some(place) = place.get_mut(..data.len()) {
        place.copy_from_slice(data);
    }
}
