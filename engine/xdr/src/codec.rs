//! The two traits of a codec, and those types of the standard library that have one.

use crate::source::Source;
use spinrpc::{DecodeError, Decoder, Encoder};
use std::convert::identity;

/// A type that can be read from a message, borrowing from it for `'a`.
pub trait Decode<'a>: Sized {
    /// Length in bytes, if every encoding has this length and all bytes of it are valid: arrays of such
    /// items are passed over without a look at them.
    const PLAIN_BYTES: Option<usize> = None;

    /// Length in bytes, if every encoding has this length, though not all bytes of it may be valid: the length is
    /// compared once for all fields of a struct.
    const FIXED_BYTES: Option<usize> = Self::PLAIN_BYTES;

    /// Length in bytes of the longest encoding, items for direct placement included; `None` if the description does not
    /// bound it, or the type contains itself. Stubs offer memory for results of this length.
    const BYTES_MAX: Option<usize> = Self::FIXED_BYTES;

    /// Reads a value, from a [`Decoder`](spinrpc::Decoder) mostly.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not an encoding of the type: [`DecodeError::BadEnum`] for
    /// values of an enum, discriminants of a union, and words for a `char` or `short`, that the type does not have,
    /// [`DecodeError::TooLong`] beyond a bound, [`DecodeError::LimitExceeded`] deeper than
    /// [`DEPTH_MAX`](crate::DEPTH_MAX).
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError>;
}

/// Decodes a value, to the last byte.
#[inline]
pub(crate) fn whole<'a, T: Decode<'a>>(mut from: Decoder<'a>) -> Result<T, DecodeError> {
    let value = T::decode(&mut from)?;
    from.finish().map(|()| value)
}

/// A type that can be written to a message.
pub trait Encode {
    /// Writes the value.
    fn encode(&self, to: &mut Encoder<'_>);
}

/// The discriminant of a union: one word.
pub trait Discriminant: Copy {
    /// The discriminant that stands in a message as `word`, at offset `at` in bytes.
    ///
    /// # Errors
    /// [`DecodeError::BadEnum`] or [`DecodeError::BadBool`] if it is not a value of the type.
    fn from_word(word: u32, at: usize) -> Result<Self, DecodeError>;
}

/// The sum of the lengths of the parts, if all have one. For the constants of types that are made of others.
pub const fn sum(parts: &[Option<usize>]) -> Option<usize> {
    let (mut total, mut index) = (0usize, 0);
    while index < parts.len() {
        match parts[index] {
            Some(bytes) => total = total.saturating_add(bytes),
            None => return None,
        }
        index += 1;
    }
    Some(total)
}

/// The greatest of the lengths, if all have one; zero of none. For [`Decode::BYTES_MAX`] of a union.
pub const fn longest(parts: &[Option<usize>]) -> Option<usize> {
    let (mut longest, mut index) = (0, 0);
    while index < parts.len() {
        match parts[index] {
            Some(bytes) if bytes > longest => longest = bytes,
            Some(_) => {}
            None => return None,
        }
        index += 1;
    }
    Some(longest)
}

/// Length of the longest array of items of this length: of at most `max` items, whose number precedes them. `None` if
/// `max` is [`u32::MAX`], as in a description without a bound.
pub(crate) const fn counted(item_bytes: Option<usize>, max: u32) -> Option<usize> {
    match max {
        u32::MAX => None,
        _ => sum(&[Some(4), times(item_bytes, max as usize)]),
    }
}

/// Length of the longest bytes of a length of at most `max`, which precedes them; otherwise as [`counted`].
pub(crate) const fn padded(max: u32) -> Option<usize> {
    match max {
        u32::MAX => None,
        _ => Some(4 + (max as usize).next_multiple_of(4)),
    }
}

const fn times(bytes: Option<usize>, count: usize) -> Option<usize> {
    match bytes {
        Some(bytes) => Some(bytes.saturating_mul(count)),
        None => None,
    }
}

/// The encoding of `value`, outside of a message: for tests, tools, and other transports. Registered buffers
/// ([`Placed::Beside`](crate::Placed::Beside)) are missing in it.
pub fn to_bytes<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    bytes_of(|to| value.encode(to))
}

/// The bytes that `write` writes, as [`to_bytes`]. It runs a second time if there are any.
pub fn bytes_of(write: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
    encoding(write).0
}

/// As [`bytes_of`], and whether registered buffers are missing in them.
pub(crate) fn encoding(write: impl Fn(&mut Encoder<'_>)) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    loop {
        let mut to = Encoder::new(&mut bytes, &[]);
        write(&mut to);
        let encoded = to.finish();
        if encoded.fits {
            bytes.truncate(encoded.stream_bytes);
            return (bytes, encoded.items_missing);
        }
        bytes.resize(encoded.stream_bytes, 0);
    }
}

macro_rules! plain {
    ($($type:ty: $bytes:literal $method:ident, $from:path, $to:path;)*) => {$(
        impl<'a> Decode<'a> for $type {
            const PLAIN_BYTES: Option<usize> = Some($bytes);

            #[inline(always)]
            fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
                from.$method().map($from)
            }
        }

        impl Encode for $type {
            #[inline(always)]
            fn encode(&self, to: &mut Encoder<'_>) {
                to.$method($to(*self));
            }
        }
    )*};
}

plain! {
    u32: 4 u32, identity, identity;
    i32: 4 i32, identity, identity;
    u64: 8 u64, identity, identity;
    i64: 8 i64, identity, identity;
    f32: 4 u32, f32::from_bits, f32::to_bits;
    f64: 8 u64, f64::from_bits, f64::to_bits;
}

impl<'a> Decode<'a> for bool {
    const FIXED_BYTES: Option<usize> = Some(4);

    #[inline(always)]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        from.bool()
    }
}

impl Encode for bool {
    #[inline(always)]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.bool(*self);
    }
}

impl Discriminant for bool {
    #[inline]
    fn from_word(word: u32, at: usize) -> Result<Self, DecodeError> {
        match word {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadBool { at, value }),
        }
    }
}

impl Discriminant for u32 {
    #[inline]
    fn from_word(word: u32, _: usize) -> Result<Self, DecodeError> {
        Ok(word)
    }
}

impl Discriminant for i32 {
    #[inline]
    fn from_word(word: u32, _: usize) -> Result<Self, DecodeError> {
        Ok(word.cast_signed())
    }
}

/// `unsigned char`: a word of its own in a message, whereas a `u8` is a byte of `opaque`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnsignedChar(pub u8);

impl From<u8> for UnsignedChar {
    fn from(value: u8) -> Self {
        Self(value)
    }
}

impl From<UnsignedChar> for u8 {
    fn from(value: UnsignedChar) -> Self {
        value.0
    }
}

macro_rules! narrow {
    ($($type:ident from $narrow:ident by $wide:ident;)*) => {$(
        impl<'a> Decode<'a> for $type {
            const FIXED_BYTES: Option<usize> = Some(4);

            #[inline(always)]
            fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
                let at = from.position();
                let word = from.$wide()?;
                match $narrow::try_from(word) {
                    Ok(value) => Ok(value.into()),
                    Err(_) => Err(DecodeError::BadEnum { at, value: word as u32 }),
                }
            }
        }

        impl Encode for $type {
            #[inline(always)]
            fn encode(&self, to: &mut Encoder<'_>) {
                to.$wide($narrow::from(*self).into());
            }
        }
    )*};
}

narrow! {
    i8 from i8 by i32;
    i16 from i16 by i32;
    u16 from u16 by u32;
    UnsignedChar from u8 by u32;
}

impl<'a, const N: usize> Decode<'a> for [u8; N] {
    const PLAIN_BYTES: Option<usize> = Some(N.next_multiple_of(4));

    #[inline(always)]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        let at = from.position();
        match from.fixed(N)?.first_chunk() {
            Some(bytes) => Ok(*bytes),
            None => Err(DecodeError::Truncated { at, wanted: N }),
        }
    }
}

impl<const N: usize> Encode for [u8; N] {
    #[inline(always)]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.fixed(self);
    }
}

impl<'a, T: Decode<'a> + Copy, const N: usize> Decode<'a> for [T; N] {
    const PLAIN_BYTES: Option<usize> = times(T::PLAIN_BYTES, N);
    const FIXED_BYTES: Option<usize> = times(T::FIXED_BYTES, N);
    const BYTES_MAX: Option<usize> = times(T::BYTES_MAX, N);

    #[inline(always)]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        const { assert!(N > 0, "an array has items") };
        let first = T::decode(from)?;
        let mut items = [first; N];
        for item in items.iter_mut().skip(1) {
            *item = T::decode(from)?;
        }
        Ok(items)
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    #[inline(always)]
    fn encode(&self, to: &mut Encoder<'_>) {
        self.iter().for_each(|item| item.encode(to));
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    const BYTES_MAX: Option<usize> = sum(&[Some(4), T::BYTES_MAX]);

    #[inline(always)]
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        match from.bool()? {
            true => T::decode(from).map(Some),
            false => Ok(None),
        }
    }
}

impl<T: Encode> Encode for Option<T> {
    #[inline(always)]
    fn encode(&self, to: &mut Encoder<'_>) {
        to.bool(self.is_some());
        if let Some(item) = self {
            item.encode(to);
        }
    }
}

macro_rules! tuple {
    ($($name:ident)*) => {
        impl<'a, $($name: Decode<'a>),*> Decode<'a> for ($($name,)*) {
            const PLAIN_BYTES: Option<usize> = sum(&[$($name::PLAIN_BYTES),*]);
            const FIXED_BYTES: Option<usize> = sum(&[$($name::FIXED_BYTES),*]);
            const BYTES_MAX: Option<usize> = sum(&[$($name::BYTES_MAX),*]);

            #[inline(always)]
            fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
                let _ = &from;
                Ok(($($name::decode(from)?,)*))
            }
        }

        impl<$($name: Encode),*> Encode for ($($name,)*) {
            #[inline]
            #[allow(non_snake_case, reason = "a variable has the name of its type")]
            fn encode(&self, to: &mut Encoder<'_>) {
                let _ = &to;
                let ($($name,)*) = self;
                $($name.encode(to);)*
            }
        }
    };
}

tuple!();
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);
