//! Rust of real descriptions, generated when this crate is built, and a table of all their types. For
//! tests only.
#![forbid(unsafe_code)]
#![allow(clippy::too_many_lines, reason = "generated functions have a branch for each procedure")]

use spinrpc_xdr::{Decode, DecodeError, Decoder, Encode, Words, to_bytes};

/// The example in the README of spinrpc-xdr.
pub mod hello {
    include!(concat!(env!("OUT_DIR"), "/hello.rs"));
}

/// Every form of the language of RFC 4506.
pub mod language {
    include!(concat!(env!("OUT_DIR"), "/language.rs"));
}

/// MOUNT version 3.
pub mod mount {
    include!(concat!(env!("OUT_DIR"), "/mount.rs"));
}

/// NFS version 4.0 and its callbacks.
pub mod nfs4 {
    include!(concat!(env!("OUT_DIR"), "/nfs4.rs"));
}

/// A part of NFS version 4.1: sessions, delegations and their callbacks.
pub mod nfs41 {
    include!(concat!(env!("OUT_DIR"), "/nfs41.rs"));
}

/// NFS version 3.
pub mod nfs_prot {
    include!(concat!(env!("OUT_DIR"), "/nfs_prot.rs"));
}

/// NLM version 4.
pub mod nlm_prot {
    include!(concat!(env!("OUT_DIR"), "/nlm_prot.rs"));
}

/// A small store of values.
pub mod store {
    include!(concat!(env!("OUT_DIR"), "/store.rs"));
}

/// Forms that rpcgen takes and RFC 4506 does not have.
#[expect(clippy::use_self, reason = "generated types that contain themselves by their names")]
pub mod unusual {
    include!(concat!(env!("OUT_DIR"), "/unusual.rs"));
}

/// A type of a description.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the file, without `.x`.
    pub description: &'static str,
    /// Name of the type there.
    pub name: &'static str,
    /// Decodes a value and encodes it again.
    pub again: fn(&[u8]) -> Result<Again, DecodeError>,
    /// The same, read as the items of arrays and lists are.
    pub words: fn(&[u8]) -> Result<Again, DecodeError>,
}

/// A value that was decoded and encoded again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// Bytes that were decoded.
    pub read: usize,
    /// Its encoding.
    pub written: Vec<u8>,
}

/// All types of all descriptions.
pub static TYPES: &[Row] = include!(concat!(env!("OUT_DIR"), "/rows.rs"));

fn again<'a, T: Decode<'a> + Encode>(bytes: &'a [u8]) -> Result<Again, DecodeError> {
    let mut from = Decoder::plain(bytes);
    let value = T::decode(&mut from)?;
    Ok(Again { read: from.position(), written: to_bytes(&value) })
}

fn words<'a, T: Decode<'a> + Encode>(bytes: &'a [u8]) -> Result<Again, DecodeError> {
    let mut from = Words::new(bytes);
    let value = T::decode(&mut from)?;
    Ok(Again { read: bytes.len() - from.remaining(), written: to_bytes(&value) })
}
