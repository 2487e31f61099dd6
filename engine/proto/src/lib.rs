//! The protocol core of spinrpc: ONC RPC (RFC 5531) over RPC-over-RDMA (RFC 5666, RFC 8166;
//! version two: draft-cel-nfsv4-rpcrdma-version-two-01), without I/O, clock, thread or allocation.
//!
//! Inputs are `on_*` methods with `now` and bytes; outputs go to an [`output::Output`] sink that
//! the caller implements. Nothing here panics on bytes of a peer.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

// In the folder of the dialects, and at the root for those who name its types: the engine's interface does.
#[path = "rfc5666/alignment.rs"]
pub mod alignment;
#[path = "rfc5666/config_proto.rs"]
pub mod config_proto;
pub mod connection;
pub mod credit;
pub mod ids;
pub mod limits;
pub mod output;
pub mod payload;
pub mod plain;
pub mod profile;
pub mod pull;
pub mod rdma;
pub mod requester;
pub mod responder;
mod rfc5666;
pub mod rpc;
pub mod version;
pub mod xdr;

pub use rfc5666::{exports, reply_pull};
