//! Bytes of variable length: strings, opaque data, and opaque data that may be placed directly.

use crate::codec::{Decode, Encode, padded};
use crate::source::Source;
use spinrpc::{Bulk, Data, DecodeError, Encoder};
use std::fmt;
use std::ops::Deref;

/// A value is longer than its type allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes or items, of at most {max}; shorten the value")]
pub struct TooLong {
    /// Its length, in bytes or items.
    pub length: usize,
    /// The longest allowed.
    pub max: usize,
}

pub(crate) fn bounded(length: usize, max: u32) -> Result<(), TooLong> {
    match length <= max as usize {
        true => Ok(()),
        false => Err(TooLong { length, max: max as usize }),
    }
}

/// `opaque<MAX>`, borrowed.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opaque<'a, const MAX: u32 = { u32::MAX }>(&'a [u8]);

impl<'a, const MAX: u32> Opaque<'a, MAX> {
    /// These bytes.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than `MAX`.
    pub const fn new(bytes: &'a [u8]) -> Result<Self, TooLong> {
        match bytes.len() <= MAX as usize {
            true => Ok(Self(bytes)),
            false => Err(TooLong { length: bytes.len(), max: MAX as usize }),
        }
    }

    /// The bytes, for as long as the message lives.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<const MAX: u32> fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// `string<MAX>` of UTF-8, borrowed.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a, const MAX: u32 = { u32::MAX }>(&'a str);

impl<'a, const MAX: u32> Text<'a, MAX> {
    /// This text.
    ///
    /// # Errors
    /// [`TooLong`] if it has more than `MAX` bytes.
    pub const fn new(text: &'a str) -> Result<Self, TooLong> {
        match text.len() <= MAX as usize {
            true => Ok(Self(text)),
            false => Err(TooLong { length: text.len(), max: MAX as usize }),
        }
    }

    /// The text, for as long as the message lives.
    pub const fn text(self) -> &'a str {
        self.0
    }
}

impl<const MAX: u32> fmt::Debug for Text<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

impl<const MAX: u32> fmt::Display for Text<'_, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

macro_rules! borrowed {
    ($($name:ident: $target:ty, $method:ident;)+) => {$(
        impl<const MAX: u32> Deref for $name<'_, MAX> {
            type Target = $target;

            fn deref(&self) -> &$target {
                self.0
            }
        }

        impl<'a, const MAX: u32> Decode<'a> for $name<'a, MAX> {
            const BYTES_MAX: Option<usize> = padded(MAX);

            #[inline(always)]
            fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
                from.$method(MAX as usize).map(Self)
            }
        }

        impl<const MAX: u32> Encode for $name<'_, MAX> {
            #[inline(always)]
            fn encode(&self, to: &mut Encoder<'_>) {
                to.$method(self.0);
            }
        }
    )+};
}

borrowed! {
    Opaque: [u8], opaque;
    Text: str, string;
}

/// `opaque<MAX>` that is eligible for direct placement (RFC 8267): annotated `ddp` in its description.
#[derive(Debug)]
pub enum Placed<'a, const MAX: u32 = { u32::MAX }> {
    /// The bytes are in the message, or are to be copied into it. When written, those beyond `MAX` are
    /// left out.
    Inline(&'a [u8]),
    /// The bytes were placed in registered memory. When written, they are copied.
    Bulk(Bulk),
    /// The next registered buffer given with the message: an argument of the
    /// [`CallSpec`](spinrpc::CallSpec), or a result of the [`ReplyData`](spinrpc::ReplyData). Never
    /// read from a message.
    Beside,
}

impl<const MAX: u32> Placed<'_, MAX> {
    /// The bytes, wherever they are; none for [`Placed::Beside`].
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Bulk(bulk) => bulk.bytes(),
            Self::Beside => &[],
        }
    }
}

impl<const MAX: u32> PartialEq for Placed<'_, MAX> {
    fn eq(&self, other: &Self) -> bool {
        let is_beside = |item: &Self| matches!(item, Self::Beside);
        is_beside(self) == is_beside(other) && self.bytes() == other.bytes()
    }
}

impl<'a, const MAX: u32> Decode<'a> for Placed<'a, MAX> {
    const BYTES_MAX: Option<usize> = padded(MAX);

    #[inline(always)]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        Ok(match from.data(MAX as usize)? {
            Data::Inline(bytes) => Self::Inline(bytes),
            Data::Bulk(bulk) => Self::Bulk(bulk),
        })
    }
}

impl<const MAX: u32> Encode for Placed<'_, MAX> {
    #[inline(always)]
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Beside => to.bulk(),
            _ => {
                let bytes = self.bytes();
                to.opaque(bytes.get(..MAX as usize).unwrap_or(bytes));
            }
        }
    }
}
