//! Decoding of a peer's bytes, and the bytes that this end sends, byte by byte.
//!
//! Tests of one message use the specification's words: receive X, expect Y. Properties of all
//! messages are those of the fuzz targets (`../fuzz.rs`).
// The helpers of tests are tests as well; clippy's exception for tests does not see that.
#![allow(clippy::unwrap_used, clippy::panic)]

mod boundary;
mod config_proto;
mod gss;
mod plain;
mod rpc;
mod sent;
mod v1_received;
mod v2_received;
mod window;
mod xdr;

mod prelude {
    pub(super) use super::wire;
    pub(super) use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
    pub(super) use spinrpc_proto::limits::*;
    pub(super) use spinrpc_proto::rdma::*;
    pub(super) use spinrpc_proto::rpc::*;
    pub(super) use spinrpc_proto::version::{TransportVersion, Versions};
    pub(super) use spinrpc_proto::xdr::*;
}

fn wire(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
