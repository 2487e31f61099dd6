//! NFS by another implementation, the crate `nfs3_types`, so that the data that tests send and
//! check do not depend on the code under test.

use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Pack, Unpack};
use spinrpc::{DecodeError, Decoder, Encoder};

/// A value encoded by its own crate's codec.
pub(crate) trait ToXdr {
    fn encode(&self, to: &mut Encoder<'_>);
}

impl<T: Pack> ToXdr for T {
    fn encode(&self, to: &mut Encoder<'_>) {
        let mut bytes = Vec::new();
        self.pack(&mut bytes).unwrap();
        to.fixed(&bytes);
    }
}

/// A value decoded by its own crate's codec.
pub(crate) trait FromXdr: Sized {
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

fn unpacked<T: Unpack>(from: &mut Decoder<'_>) -> Result<T, DecodeError> {
    let mut value = None;
    let unpack = |mut bytes: &[u8]| {
        let (unpacked, length) = T::unpack(&mut bytes).ok()?;
        value = Some(unpacked);
        Some(length)
    };
    let is_passed = from.pass_plain(unpack).is_some();
    let malformed = DecodeError::LimitExceeded { what: "bytes, says nfs3_types" };
    value.filter(|_| is_passed).ok_or(malformed)
}

macro_rules! from_xdr {
    ($($type:ty),+ $(,)?) => {$(
        impl FromXdr for $type {
            fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                unpacked(from)
            }
        }
    )+};
}

from_xdr! {
    ACCESS3resok, COMMIT3args, COMMIT3resok, CREATE3args<'static>, CREATE3resok, FSINFO3args, FSINFO3resok,
    FSSTAT3resok, GETATTR3args, LOOKUP3args<'static>, LOOKUP3resok, PATHCONF3resok, READ3args, READDIR3args,
    READDIR3resok<'static>, READDIRPLUS3args, READDIRPLUS3resok<'static>, READLINK3args, WRITE3resok, fattr3,
    nfs_fh3, nfsstat3, post_op_attr, stable_how, wcc_data, bool, u32, u64,
}

impl FromXdr for () {
    fn decode(_: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<A: FromXdr, B: FromXdr> FromXdr for (A, B) {
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

/// Arguments of WRITE, without the data behind them.
#[derive(Clone, Debug)]
pub(crate) struct WriteHead {
    pub(crate) file: nfs_fh3,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) stable: stable_how,
}

impl ToXdr for WriteHead {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.file.encode(to);
        self.offset.encode(to);
        self.count.encode(to);
        self.stable.encode(to);
    }
}

impl FromXdr for WriteHead {
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let ((file, offset), (count, stable)) = FromXdr::decode(from)?;
        Ok(Self { file, offset, count, stable })
    }
}

/// Results of READ, without the data behind them.
#[derive(Clone, Debug)]
pub(crate) struct ReadHead {
    pub(crate) file_attributes: post_op_attr,
    pub(crate) count: u32,
    pub(crate) eof: bool,
}

impl ToXdr for ReadHead {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.file_attributes.encode(to);
        self.count.encode(to);
        self.eof.encode(to);
    }
}

impl FromXdr for ReadHead {
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (file_attributes, (count, eof)) = FromXdr::decode(from)?;
        Ok(Self { file_attributes, count, eof })
    }
}

/// The bytes that `write` writes.
pub(crate) fn to_bytes(write: impl Fn(&mut Encoder<'_>)) -> Vec<u8> {
    spinrpc_xdr::bytes_of(write)
}
