//! Arrays of variable length, and lists: decoded item by item when they are iterated, encoded from a
//! slice.

use crate::bytes::{TooLong, bounded};
use crate::codec::{Decode, Encode};
use spinrpc::{DecodeError, Decoder, Encoder, Span};
use std::fmt;

/// Items of a message, or of the application.
#[derive(Clone, Copy)]
enum Source<'a, T> {
    /// Of the application.
    Slice(&'a [T]),
    /// Of a message, of one length each.
    Plain { bytes: &'a [u8], count: usize },
    /// Of a message, of any length. In a list, each stands behind a link.
    Walked { span: Span<'a>, count: usize, is_list: bool },
}

impl<'a, T: Decode<'a> + Copy> Source<'a, T> {
    fn len(&self) -> usize {
        match self {
            Self::Slice(items) => items.len(),
            Self::Plain { count, .. } | Self::Walked { count, .. } => *count,
        }
    }

    fn iter(&self) -> Items<'a, T> {
        let left = self.len();
        let (rest, is_list) = match self {
            Self::Slice(items) => (Rest::Slice(items.iter()), false),
            Self::Plain { bytes, .. } => (Rest::Message(Decoder::plain(bytes)), false),
            Self::Walked { span, is_list, .. } => (Rest::Message(span.decoder()), *is_list),
        };
        Items { rest, left, is_list }
    }
}

/// Iterator over the items of an [`Array`] or a [`List`].
pub struct Items<'a, T> {
    rest: Rest<'a, T>,
    left: usize,
    is_list: bool,
}

enum Rest<'a, T> {
    Slice(std::slice::Iter<'a, T>),
    Message(Decoder<'a>),
}

impl<'a, T: Decode<'a> + Copy> Iterator for Items<'a, T> {
    type Item = T;

    /// The next item. Items of a message were checked when the array or list was decoded, so that none
    /// is missing here.
    #[inline]
    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        match &mut self.rest {
            Rest::Slice(items) => items.next().copied(),
            Rest::Message(from) => {
                if self.is_list {
                    from.bool().ok()?;
                }
                T::decode(from).ok()
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'a, T: Decode<'a> + Copy> ExactSizeIterator for Items<'a, T> {}

/// `T x<MAX>`: a slice of the application, or the items of a message.
#[derive(Clone, Copy)]
pub struct Array<'a, T, const MAX: u32 = { u32::MAX }>(Source<'a, T>);

impl<'a, T: Decode<'a> + Copy, const MAX: u32> Array<'a, T, MAX> {
    /// These items.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than `MAX`.
    pub fn new(items: &'a [T]) -> Result<Self, TooLong> {
        bounded(items.len(), MAX)?;
        Ok(Self(Source::Slice(items)))
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items, in order.
    pub fn iter(&self) -> Items<'a, T> {
        self.0.iter()
    }

    /// The item at `index`, found from the first one on.
    pub fn get(&self, index: usize) -> Option<T> {
        self.iter().nth(index)
    }
}

impl<'a, T: Decode<'a> + Copy, const MAX: u32> Decode<'a> for Array<'a, T, MAX> {
    #[inline]
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        const { assert!(!matches!(T::PLAIN_BYTES, Some(0)), "items of no bytes cannot be counted") };
        let at = from.position();
        let count = from.u32()?;
        if count > MAX {
            let (length, max) = (count as usize, MAX as usize);
            return Err(DecodeError::TooLong { at, length, max });
        }
        let count = count as usize;
        Ok(Self(match T::PLAIN_BYTES {
            Some(bytes) => Source::Plain { bytes: from.fixed(bytes.saturating_mul(count))?, count },
            None => {
                let walk = |ahead: &mut Decoder<'a>| {
                    (0..count).try_for_each(|_| T::decode(ahead).map(drop))
                };
                Source::Walked { span: from.span(walk)?, count, is_list: false }
            }
        }))
    }
}

impl<'a, T: Decode<'a> + Encode + Copy, const MAX: u32> Encode for Array<'a, T, MAX> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.u32(self.len() as u32);
        match self.0 {
            Source::Slice(items) => items.iter().for_each(|item| item.encode(to)),
            _ => self.iter().for_each(|item| item.encode(to)),
        }
    }
}

/// A list: optional data of a struct whose last field is optional data of the same type, and so on. The
/// links are not among the fields of `T`.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Source<'a, T>);

impl<'a, T: Decode<'a> + Copy> List<'a, T> {
    /// These nodes.
    pub const fn new(nodes: &'a [T]) -> Self {
        Self(Source::Slice(nodes))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There are no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes, in order.
    pub fn iter(&self) -> Items<'a, T> {
        self.0.iter()
    }
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for List<'a, T> {
    #[inline]
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let count = std::cell::Cell::new(0);
        let walk = |ahead: &mut Decoder<'a>| {
            count.set(0);
            while ahead.bool()? {
                T::decode(ahead)?;
                count.set(count.get() + 1);
            }
            Ok(())
        };
        let span = from.span(walk)?;
        Ok(Self(Source::Walked { span, count: count.get(), is_list: true }))
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for List<'a, T> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        let mut put = |node: &T| {
            to.bool(true);
            node.encode(to);
        };
        match self.0 {
            Source::Slice(nodes) => nodes.iter().for_each(put),
            _ => self.iter().for_each(|node| put(&node)),
        }
        to.bool(false);
    }
}

/// A node of a list, and those behind it: a list that is not empty, where a description uses the struct
/// itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain<'a, T: Decode<'a> + Copy> {
    /// The first node.
    pub first: T,
    /// The nodes behind it.
    pub rest: List<'a, T>,
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for Chain<'a, T> {
    #[inline]
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let first = T::decode(from)?;
        Ok(Self { first, rest: List::decode(from)? })
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for Chain<'a, T> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        self.first.encode(to);
        self.rest.encode(to);
    }
}

macro_rules! sequence {
    ($($name:ident $([$($bound:tt)*] [$($argument:tt)*])?;)*) => {$(
        impl<'a, T $($($bound)*)?> Default for $name<'a, T $($($argument)*)?> {
            fn default() -> Self {
                Self(Source::Slice(&[]))
            }
        }

        impl<'a, T: Decode<'a> + Copy $($($bound)*)?> IntoIterator for $name<'a, T $($($argument)*)?> {
            type Item = T;
            type IntoIter = Items<'a, T>;

            fn into_iter(self) -> Items<'a, T> {
                self.iter()
            }
        }

        impl<'a, T: Decode<'a> + Copy + PartialEq $($($bound)*)?> PartialEq
            for $name<'a, T $($($argument)*)?>
        {
            fn eq(&self, other: &Self) -> bool {
                self.iter().eq(other.iter())
            }
        }

        impl<'a, T: Decode<'a> + Copy + fmt::Debug $($($bound)*)?> fmt::Debug
            for $name<'a, T $($($argument)*)?>
        {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.iter()).finish()
            }
        }
    )*};
}

sequence! {
    Array [, const MAX: u32] [, MAX];
    List;
}
