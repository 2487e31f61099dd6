//! Input of codecs: a message, or bytes of a message that were checked before. Called by the codecs
//! of all types; may use the engine's decoder only.

use crate::codec::{Decode, Discriminant};
use spinrpc::{Data, DecodeError, Decoder, Span};

mod sealed {
    pub trait Sealed {}

    impl Sealed for spinrpc::Decoder<'_> {}
    impl Sealed for super::Words<'_> {}
}

/// A place that values are read from: the [`Decoder`] of a message, or [`Words`]. Codecs are generic over it,
/// so that the items of arrays and lists are read without the bookkeeping for chunks. This trait is sealed.
///
/// The methods are those of [`Decoder`], with its errors.
pub trait Source<'a>: sealed::Sealed {
    /// Bytes read, for errors; as [`Decoder::position`].
    fn position(&mut self) -> usize;

    /// Reads an `unsigned int`.
    fn u32(&mut self) -> Result<u32, DecodeError>;

    /// Reads an `int`.
    #[inline(always)]
    fn i32(&mut self) -> Result<i32, DecodeError> {
        self.u32().map(u32::cast_signed)
    }

    /// Reads an `unsigned hyper`.
    fn u64(&mut self) -> Result<u64, DecodeError>;

    /// Reads a `hyper`.
    #[inline(always)]
    fn i64(&mut self) -> Result<i64, DecodeError> {
        self.u64().map(u64::cast_signed)
    }

    /// Reads a `bool`.
    fn bool(&mut self) -> Result<bool, DecodeError>;

    /// Reads `opaque[length]`.
    fn fixed(&mut self, length: usize) -> Result<&'a [u8], DecodeError>;

    /// Reads `opaque<max_bytes>`.
    fn opaque(&mut self, max_bytes: usize) -> Result<&'a [u8], DecodeError>;

    /// Reads `string<max_bytes>`.
    fn string(&mut self, max_bytes: usize) -> Result<&'a str, DecodeError>;

    /// Reads `opaque<max_bytes>` that may have been placed directly.
    fn data(&mut self, max_bytes: usize) -> Result<Data<'a>, DecodeError>;

    /// Reads encodings that take `length` bytes together, a multiple of 4.
    fn words(&mut self, length: usize) -> Result<Words<'a>, DecodeError>;

    /// Checks items of a sequence and passes over them. The error is that of the first item that is not an encoding of `T`,
    /// or as of [`Decoder::span`].
    #[doc(hidden)]
    fn pass<T: Decode<'a>>(&mut self, extent: Extent) -> Result<Passed<'a>, DecodeError>;
}

/// End of a sequence.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// After this number of items.
    Counted(usize),
    /// At a link that says so; a link precedes each item.
    Linked,
}

/// Items that were checked.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    pub(crate) items: Place<'a>,
    pub(crate) count: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Words(Words<'a>),
    /// With padding before data, as in an RDMA_MSGP.
    Padded(Span<'a>),
}

#[inline(always)]
fn walk<'a, T: Decode<'a>, S: Source<'a>>(
    from: &mut S,
    extent: Extent,
) -> Result<usize, DecodeError> {
    match extent {
        Extent::Counted(count) => {
            for _ in 0..count {
                T::decode(from)?;
            }
            Ok(count)
        }
        Extent::Linked => {
            let mut count = 0;
            while from.bool()? {
                T::decode(from)?;
                count += 1;
            }
            Ok(count)
        }
    }
}

macro_rules! of_decoder {
    ($($method:ident($($length:ident)?) -> $type:ty;)+) => {$(
        #[inline(always)]
        fn $method(&mut self, $($length: usize)?) -> Result<$type, DecodeError> {
            self.$method($($length)?)
        }
    )+};
}

impl<'a> Source<'a> for Decoder<'a> {
    #[inline(always)]
    fn position(&mut self) -> usize {
        self.position()
    }

    of_decoder! {
        u32() -> u32;
        u64() -> u64;
        bool() -> bool;
        fixed(length) -> &'a [u8];
        opaque(max_bytes) -> &'a [u8];
        string(max_bytes) -> &'a str;
        data(max_bytes) -> Data<'a>;
    }

    #[inline(always)]
    fn words(&mut self, length: usize) -> Result<Words<'a>, DecodeError> {
        let at = self.position();
        let bytes = self.words(length)?;
        Ok(Words { bytes, end: at.wrapping_add(bytes.len()) })
    }

    /// Items that are whole in the stream are read as words. Whatever else there is in a message, and
    /// every error, takes the long way.
    #[inline]
    fn pass<T: Decode<'a>>(&mut self, extent: Extent) -> Result<Passed<'a>, DecodeError> {
        let mut count = 0;
        let measure = |bytes: &'a [u8]| {
            let mut ahead = Words::new(bytes);
            count = walk::<T, _>(&mut ahead, extent).ok()?;
            Some(bytes.len() - ahead.bytes.len())
        };
        match self.pass_plain(measure) {
            Some(bytes) => Ok(Passed { items: Place::Words(Words::new(bytes)), count }),
            None => pass_decoded::<T>(self, extent),
        }
    }
}

#[cold]
#[inline(never)]
fn pass_decoded<'a, T: Decode<'a>>(
    from: &mut Decoder<'a>,
    extent: Extent,
) -> Result<Passed<'a>, DecodeError> {
    let count = std::cell::Cell::new(0);
    let span = from.span(|ahead| {
        count.set(walk::<T, _>(ahead, extent)?);
        Ok(())
    })?;
    let items = match span.plain_bytes() {
        Some(bytes) => Place::Words(Words::new(bytes)),
        None => Place::Padded(span),
    };
    Ok(Passed { items, count: count.get() })
}

/// Bytes of a message that have neither chunks nor padding before data. Its errors do not say which bytes are
/// missing: what reads the items of a sequence has the error found again by a [`Decoder`].
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    bytes: &'a [u8],
    /// Position of their end.
    end: usize,
}

/// Bytes are missing, or have a value that their type does not have.
const BAD_WORDS: DecodeError = DecodeError::LimitExceeded { what: "bytes in an item" };

impl<'a> Words<'a> {
    /// Reads from the first of `bytes`, which has position 0.
    #[inline(always)]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, end: bytes.len() }
    }

    /// Number of bytes that are left.
    #[inline]
    pub const fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(BAD_WORDS)?;
        self.bytes = rest;
        Ok(*head)
    }

    #[inline(always)]
    pub(crate) fn split(&mut self, length: usize) -> Option<Self> {
        let (head, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(Self { bytes: head, end: self.end.wrapping_sub(rest.len()) })
    }
}

impl<'a> Source<'a> for Words<'a> {
    #[inline(always)]
    fn position(&mut self) -> usize {
        self.end.wrapping_sub(self.bytes.len())
    }

    #[inline(always)]
    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline(always)]
    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline(always)]
    fn bool(&mut self) -> Result<bool, DecodeError> {
        let at = self.position();
        let word = self.u32()?;
        Discriminant::from_word(word, at)
    }

    #[inline(always)]
    fn fixed(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let padded = length.checked_next_multiple_of(4).ok_or(BAD_WORDS)?;
        let (item, rest) = self.bytes.split_at_checked(padded).ok_or(BAD_WORDS)?;
        self.bytes = rest;
        item.get(..length).ok_or(BAD_WORDS)
    }

    #[inline(always)]
    fn opaque(&mut self, max_bytes: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        if length > max_bytes {
            return Err(BAD_WORDS);
        }
        self.fixed(length)
    }

    #[inline(always)]
    fn string(&mut self, max_bytes: usize) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.opaque(max_bytes)?).map_err(|_| BAD_WORDS)
    }

    #[inline(always)]
    fn data(&mut self, max_bytes: usize) -> Result<Data<'a>, DecodeError> {
        self.opaque(max_bytes).map(Data::Inline)
    }

    #[inline(always)]
    fn words(&mut self, length: usize) -> Result<Self, DecodeError> {
        self.split(length).ok_or(BAD_WORDS)
    }

    #[inline]
    fn pass<T: Decode<'a>>(&mut self, extent: Extent) -> Result<Passed<'a>, DecodeError> {
        let mut ahead = *self;
        let count = walk::<T, _>(&mut ahead, extent)?;
        let length = self.bytes.len() - ahead.bytes.len();
        let items = self.split(length).ok_or(BAD_WORDS)?;
        Ok(Passed { items: Place::Words(items), count })
    }
}
