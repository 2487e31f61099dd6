//! Arrays of items that may own registered memory.

use crate::bytes::{TooLong, bounded};
use crate::codec::{Decode, Encode};
use crate::source::Source;
use spinrpc::{DecodeError, Encoder};
use std::ops::Deref;

/// `T x<MAX>` whose items have data for direct placement ([`Placed`](crate::Placed)), such as the operations of a
/// COMPOUND of NFS version 4 (RFC 8267). All other arrays are an [`Array`](crate::Array).
///
/// Registered memory can be handed out once, so items are decoded once, into a `Vec`. This is the only type of this
/// crate that allocates. An item takes at least four bytes of the message; a description that bounds the array
/// bounds the memory.
///
/// ```
/// use spinrpc::Decoder;
/// use spinrpc_xdr::{Decode, Placed, PlacedArray, to_bytes};
///
/// let blocks = [b"one", b"two"].map(|bytes| Placed::<'_, 4096>::Inline(bytes));
/// let bytes = to_bytes(&PlacedArray::<_, 2>::new(Vec::from(blocks))?);
/// let read = PlacedArray::<Placed<'_, 4096>, 2>::decode(&mut Decoder::plain(&bytes))?;
/// assert_eq!(read[1].bytes(), b"two");
/// for block in read {
///     assert!(matches!(block, Placed::Inline(_)), "a message of bytes alone");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct PlacedArray<T, const MAX: u32 = { u32::MAX }>(Vec<T>);

impl<T, const MAX: u32> PlacedArray<T, MAX> {
    /// These items.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than `MAX`.
    pub fn new(items: Vec<T>) -> Result<Self, TooLong> {
        bounded(items.len(), MAX).map(|()| Self(items))
    }

    /// The items, and the memory that they own.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: u32> Default for PlacedArray<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: u32> Deref for PlacedArray<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const MAX: u32> IntoIterator for PlacedArray<T, MAX> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T: Decode<'a>, const MAX: u32> Decode<'a> for PlacedArray<T, MAX> {
    fn decode<S: Source<'a>>(from: &mut S) -> Result<Self, DecodeError> {
        const { assert!(!matches!(T::FIXED_BYTES, Some(0)), "items of no bytes cannot be counted") };
        let at = from.position();
        let count = from.u32()?;
        if count > MAX {
            let (length, max) = (count as usize, MAX as usize);
            return Err(DecodeError::TooLong { at, length, max });
        }
        // Grows as items are read: the count alone says nothing of the message.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::decode(from)?);
        }
        Ok(Self(items))
    }
}

impl<T: Encode, const MAX: u32> Encode for PlacedArray<T, MAX> {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.u32(self.len() as u32);
        self.iter().for_each(|item| item.encode(to));
    }
}
