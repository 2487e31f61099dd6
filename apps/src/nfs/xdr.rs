//! XDR of the NFS types, on the engine's [`Encoder`] and [`Decoder`].
//!
//! The types' own codec allocates what a length on the wire says before it reads; this one never
//! takes more than the message has, nor more than the type allows. Used by both ends.

use nfs3_types::nfs3::{Nfs3Option, Nfs3Result, nfsstat3};
use nfs3_types::xdr_codec::{List, Pack, Unpack};
use spinrpc::{DecodeError, Decoder, Encoder};

/// What can be written to a stream and read back. `'a` is the life of the message that is read:
/// names and paths are borrowed from it.
pub trait Xdr<'a>: Sized {
    /// Writes it.
    fn encode(&self, to: &mut Encoder<'_>);

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError>;
}

/// Implements [`Xdr`] for structures: their fields, in the order of the wire.
macro_rules! fields {
    ($($type:ty { $($field:tt),* $(,)? })+) => {$(
        impl<'a> $crate::nfs::xdr::Xdr<'a> for $type {
            fn encode(&self, to: &mut spinrpc::Encoder<'_>) {
                $($crate::nfs::xdr::Xdr::encode(&self.$field, to);)*
            }

            fn decode(
                from: &mut spinrpc::Decoder<'a>,
            ) -> Result<Self, spinrpc::DecodeError> {
                Ok(Self { $($field: $crate::nfs::xdr::Xdr::decode(from)?),* })
            }
        }
    )+};
}
pub(crate) use fields;

/// Implements [`Xdr`] for enumerations without data: a word each.
macro_rules! words {
    ($($type:ty),+) => {$(
        impl<'a> $crate::nfs::xdr::Xdr<'a> for $type {
            fn encode(&self, to: &mut spinrpc::Encoder<'_>) {
                to.u32(*self as u32);
            }

            fn decode(
                from: &mut spinrpc::Decoder<'a>,
            ) -> Result<Self, spinrpc::DecodeError> {
                $crate::nfs::xdr::enumeration(from)
            }
        }
    )+};
}
pub(crate) use words;

/// Implements [`Xdr`] for `opaque<>` in a structure of one field, with its bound.
macro_rules! opaque {
    ($($type:ty [$bytes_max:expr])+) => {$(
        impl<'a> $crate::nfs::xdr::Xdr<'a> for $type {
            fn encode(&self, to: &mut spinrpc::Encoder<'_>) {
                to.opaque(&self.0);
            }

            fn decode(
                from: &mut spinrpc::Decoder<'a>,
            ) -> Result<Self, spinrpc::DecodeError> {
                from.opaque($bytes_max).map(|bytes| Self(Opaque::borrowed(bytes)))
            }
        }
    )+};
}
pub(crate) use opaque;

/// Implements [`Xdr`] for the primitive types, which the streams know.
macro_rules! primitives {
    ($($type:ident),+) => {$(
        impl<'a> Xdr<'a> for $type {
            fn encode(&self, to: &mut Encoder<'_>) {
                to.$type(*self);
            }

            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                from.$type()
            }
        }
    )+};
}

primitives!(u32, u64, bool);

/// Verifiers, whose length is a multiple of four.
impl<'a> Xdr<'a> for [u8; 8] {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.fixed(self);
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(from.fixed(8)?);
        Ok(bytes)
    }
}

impl<'a, T: Xdr<'a> + Pack + Unpack> Xdr<'a> for Nfs3Option<T> {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.bool(self.is_some());
        if let Self::Some(value) = self {
            value.encode(to);
        }
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(if from.bool()? { Self::Some(T::decode(from)?) } else { Self::None })
    }
}

/// A status, and what belongs to it.
impl<'a, T: Xdr<'a>, E: Xdr<'a>> Xdr<'a> for Nfs3Result<T, E> {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Ok(results) => (nfsstat3::NFS3_OK.encode(to), results.encode(to)),
            Self::Err((status, failure)) => (status.encode(to), failure.encode(to)),
        };
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match nfsstat3::decode(from)? {
            nfsstat3::NFS3_OK => T::decode(from).map(Self::Ok),
            status => Ok(Self::Err((status, E::decode(from)?))),
        }
    }
}

/// `void`.
impl<'a> Xdr<'a> for () {
    fn encode(&self, _: &mut Encoder<'_>) {}

    fn decode(_: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// One behind the other.
impl<'a, A: Xdr<'a>, B: Xdr<'a>> Xdr<'a> for (A, B) {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.0.encode(to);
        self.1.encode(to);
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

/// A linked list: a boolean before each item, and one behind the last. It ends with the message at
/// the latest.
impl<'a, T: Xdr<'a>> Xdr<'a> for List<T> {
    fn encode(&self, to: &mut Encoder<'_>) {
        for item in &self.0 {
            to.bool(true);
            item.encode(to);
        }
        to.bool(false);
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        while from.bool()? {
            items.push(T::decode(from)?);
        }
        Ok(Self(items))
    }
}

/// Reads a word that must be one of an enumeration.
pub(crate) fn enumeration<T: Unpack>(from: &mut Decoder<'_>) -> Result<T, DecodeError> {
    let at = from.position();
    let value = from.u32()?;
    let (variant, _) =
        T::unpack(&mut &value.to_be_bytes()[..]).map_err(|_| DecodeError::BadEnum { at, value })?;
    Ok(variant)
}

/// What `write` writes, in memory of its own: for a transport that is not the engine's.
pub fn to_bytes(write: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
    let mut counter = Encoder::new(&mut [], &[]);
    write(&mut counter);
    let mut bytes = vec![0; counter.finish().stream_bytes];
    write(&mut Encoder::new(&mut bytes, &[]));
    bytes
}
