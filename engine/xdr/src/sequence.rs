//! Arrays of variable length, lists, and branches of trees: decoded item by item when they are iterated, encoded from a
//! slice.

use crate::bytes::{TooLong, bounded};
use crate::codec::{Decode, Encode, counted};
use crate::source::{Extent, Passed, Place, Source, Words};
use spinrpc::{DecodeError, Encoder, Span};
use std::cell::Cell;
use std::fmt;

#[derive(Clone, Copy)]
enum Held<'a, T> {
    /// Of the application.
    Slice(&'a [T]),
    /// Of a message.
    Message { items: Stored<'a>, count: usize },
}

#[derive(Clone, Copy)]
enum Stored<'a> {
    /// Of one length each.
    Plain(Words<'a>),
    /// Of any length.
    Array(Words<'a>),
    /// Of any length, each behind a link.
    List(Words<'a>),
    /// Of any length, with padding before data. Rare, so it is not made to be fast.
    Padded { span: Span<'a>, is_list: bool },
}

impl<'a, T: Decode<'a> + Copy> Held<'a, T> {
    #[inline]
    fn decode<S: Source<'a>>(from: &mut S, extent: Extent) -> Result<Self, DecodeError> {
        let Passed { items, count } = from.pass::<T>(extent)?;
        let items = match (items, extent) {
            (Place::Words(words), Extent::Counted(_)) => Stored::Array(words),
            (Place::Words(words), Extent::Linked) => Stored::List(words),
            (Place::Padded(span), _) => {
                Stored::Padded { span, is_list: matches!(extent, Extent::Linked) }
            }
        };
        Ok(Self::Message { items, count })
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Slice(items) => items.len(),
            Self::Message { count, .. } => *count,
        }
    }

    #[inline]
    fn iter(&self) -> Items<'a, T> {
        Items(match *self {
            Self::Slice(items) => Rest::Slice(items.iter()),
            Self::Message { items, count } => Rest::Message { items, left: count },
        })
    }
}

/// Iterator over the items of an [`Array`], a [`List`] or a [`Branch`]. Items of a message were checked when the array or
/// list was decoded, so that none is missing here.
#[derive(Clone)]
pub struct Items<'a, T>(Rest<'a, T>);

#[derive(Clone)]
enum Rest<'a, T> {
    Slice(std::slice::Iter<'a, T>),
    Message { items: Stored<'a>, left: usize },
}

impl<'a> Stored<'a> {
    #[inline(always)]
    fn next<T: Decode<'a>>(&mut self) -> Option<T> {
        match self {
            Self::Plain(words) => plain(words),
            Self::Array(words) => T::decode(words).ok(),
            Self::List(words) => linked(words),
            Self::Padded { span, is_list } => padded(span, *is_list),
        }
    }
}

/// The length of the item's words is a constant, so that it is compared once.
#[inline(always)]
fn plain<'a, T: Decode<'a>>(words: &mut Words<'a>) -> Option<T> {
    T::decode(&mut words.split(T::FIXED_BYTES?)?).ok()
}

#[inline(always)]
fn linked<'a, T: Decode<'a>>(words: &mut Words<'a>) -> Option<T> {
    words.u32().ok()?;
    T::decode(words).ok()
}

#[cold]
fn padded<'a, T: Decode<'a>>(span: &mut Span<'a>, is_list: bool) -> Option<T> {
    let item = span.read(|from| {
        if is_list {
            from.bool()?;
        }
        T::decode(from)
    });
    item.ok()
}

#[inline(always)]
fn fold<T, B>(
    left: usize,
    init: B,
    mut take: impl FnMut(B, T) -> B,
    mut next: impl FnMut() -> Option<T>,
) -> B {
    let mut folded = init;
    for _ in 0..left {
        let Some(item) = next() else { break };
        folded = take(folded, item);
    }
    folded
}

impl<'a, T: Decode<'a> + Copy> Iterator for Items<'a, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Rest::Slice(items) => items.next().copied(),
            Rest::Message { items, left } => {
                *left = left.checked_sub(1)?;
                items.next()
            }
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match &self.0 {
            Rest::Slice(items) => items.len(),
            Rest::Message { left, .. } => *left,
        };
        (left, Some(left))
    }

    /// Looks once at where the items are, not with each.
    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(self, init: B, take: F) -> B {
        match self.0 {
            Rest::Slice(items) => items.copied().fold(init, take),
            Rest::Message { items, left } => match items {
                Stored::Plain(mut words) => fold(left, init, take, || plain(&mut words)),
                Stored::Array(mut words) => fold(left, init, take, || T::decode(&mut words).ok()),
                Stored::List(mut words) => fold(left, init, take, || linked(&mut words)),
                Stored::Padded { mut span, is_list } => {
                    fold(left, init, take, || padded(&mut span, is_list))
                }
            },
        }
    }
}

impl<'a, T: Decode<'a> + Copy> ExactSizeIterator for Items<'a, T> {}

impl<'a, T: Decode<'a> + Copy> std::iter::FusedIterator for Items<'a, T> {}

/// `T x<MAX>`: a slice of the application, or the items of a message.
#[derive(Clone, Copy)]
pub struct Array<'a, T, const MAX: u32 = { u32::MAX }>(Held<'a, T>);

impl<'a, T: Decode<'a> + Copy, const MAX: u32> Array<'a, T, MAX> {
    /// These items.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than `MAX`.
    pub fn new(items: &'a [T]) -> Result<Self, TooLong> {
        bounded(items.len(), MAX)?;
        Ok(Self(Held::Slice(items)))
    }

    /// The item at `index`, found from the first one on.
    pub fn get(&self, index: usize) -> Option<T> {
        self.iter().nth(index)
    }
}

impl<'a, T: Decode<'a> + Copy, const MAX: u32> Decode<'a> for Array<'a, T, MAX> {
    const BYTES_MAX: Option<usize> = counted(T::BYTES_MAX, MAX);

    #[inline]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        const { assert!(!matches!(T::PLAIN_BYTES, Some(0)), "items of no bytes cannot be counted") };
        let at = from.position();
        let count = from.u32()?;
        if count > MAX {
            let (length, max) = (count as usize, MAX as usize);
            return Err(DecodeError::TooLong { at, length, max });
        }
        let count = count as usize;
        match T::PLAIN_BYTES {
            Some(bytes) => {
                let items = Stored::Plain(Words::new(from.fixed(bytes.saturating_mul(count))?));
                Ok(Self(Held::Message { items, count }))
            }
            None => Held::decode(from, Extent::Counted(count)).map(Self),
        }
    }
}

impl<'a, T: Decode<'a> + Encode + Copy, const MAX: u32> Encode for Array<'a, T, MAX> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.u32(self.len() as u32);
        match self.0 {
            Held::Slice(items) => {
                for item in items {
                    item.encode(to);
                }
            }
            Held::Message { .. } => self.iter().for_each(|item| item.encode(to)),
        }
    }
}

/// A list: optional data of a struct whose last field is optional data of the same type, and so on. The
/// links are not among the fields of `T`.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Held<'a, T>);

impl<'a, T: Decode<'a> + Copy> List<'a, T> {
    /// These nodes.
    pub const fn new(nodes: &'a [T]) -> Self {
        Self(Held::Slice(nodes))
    }
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for List<'a, T> {
    #[inline]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        Held::decode(from, Extent::Linked).map(Self)
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for List<'a, T> {
    #[inline]
    fn encode(&self, to: &mut Encoder<'_>) {
        match self.0 {
            Held::Slice(nodes) => {
                for node in nodes {
                    to.u32(1);
                    node.encode(to);
                }
            }
            Held::Message { .. } => self.iter().for_each(|node| {
                to.u32(1);
                node.encode(to);
            }),
        }
        to.u32(0);
    }
}

/// A node of a list, and those behind it: a list that is not empty, where a description uses the struct
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a, T: Decode<'a> + Copy> {
    /// The first node.
    pub first: T,
    /// The nodes behind it.
    pub rest: List<'a, T>,
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for Chain<'a, T> {
    #[inline]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
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

/// Most branches in each other that are decoded. Deeper messages are refused, as they would exhaust the stack.
pub const DEPTH_MAX: u32 = 64;

/// Optional data of a type that contains itself, such as a branch of a tree. Those of a message are checked when they are
/// decoded, to a depth of [`DEPTH_MAX`], and decoded one level at a time by [`Branch::get`]. A visit of a whole tree takes time in
/// proportion to its size times its depth.
///
/// ```
/// use spinrpc_xdr::{Branch, Decode, Decoder, Xdr, to_bytes};
///
/// #[derive(Clone, Copy, Debug, PartialEq, Xdr)]
/// struct Tree<'a> {
///     value: i32,
///     left: Branch<'a, Tree<'a>>,
///     right: Branch<'a, Tree<'a>>,
/// }
///
/// let leaf = Tree { value: 1, left: Branch::default(), right: Branch::default() };
/// let bytes = to_bytes(&Tree { value: 2, left: Branch::new(&leaf), right: Branch::default() });
/// let tree = Tree::decode(&mut Decoder::plain(&bytes))?;
/// assert_eq!(tree.left.get(), Some(leaf));
/// assert_eq!(tree.right.get(), None);
/// # Ok::<(), spinrpc_xdr::DecodeError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Branch<'a, T>(Held<'a, T>);

impl<'a, T: Decode<'a> + Copy> Branch<'a, T> {
    /// These data. A peer refuses more than [`DEPTH_MAX`] branches in each other.
    pub const fn new(data: &'a T) -> Self {
        Self(Held::Slice(std::slice::from_ref(data)))
    }

    /// The data, if there are any.
    pub fn get(&self) -> Option<T> {
        self.iter().next()
    }
}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for Branch<'a, T> {
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        if !from.bool()? {
            return Ok(Self::default());
        }
        let _level = Level::enter()?;
        Held::decode(from, Extent::Counted(1)).map(Self)
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for Branch<'a, T> {
    fn encode(&self, to: &mut Encoder<'_>) {
        let data = self.get();
        to.bool(data.is_some());
        if let Some(data) = data {
            data.encode(to);
        }
    }
}

thread_local! {
    /// Branches that this thread is decoding, each within the one before. A count of the thread, as neither a message nor
    /// the bytes of its items know which branch they are read for.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

struct Level;

impl Level {
    fn enter() -> Result<Self, DecodeError> {
        let depth = DEPTH.get();
        if depth >= DEPTH_MAX {
            return Err(DecodeError::LimitExceeded { what: "branches in each other" });
        }
        DEPTH.set(depth + 1);
        Ok(Self)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

macro_rules! sequence {
    ($($name:ident $([$($bound:tt)*] [$($argument:tt)*])?;)*) => {$(
        impl<'a, T: Decode<'a> + Copy $($($bound)*)?> $name<'a, T $($($argument)*)?> {
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
        }

        impl<'a, T $($($bound)*)?> Default for $name<'a, T $($($argument)*)?> {
            fn default() -> Self {
                Self(Held::Slice(&[]))
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

        impl<'a, T: Decode<'a> + Copy + Eq $($($bound)*)?> Eq for $name<'a, T $($($argument)*)?> {}

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
    Branch;
    List;
}
