//! The protocol core of spinrpc: ONC RPC (RFC 5531) over RPC-over-RDMA (RFC 5666, RFC 8166;
//! version two: draft-cel-nfsv4-rpcrdma-version-two-01), without I/O, clock, thread or allocation.
//!
//! Inputs are `on_*` methods with `now` and bytes; outputs are values of [`events`], on which
//! the caller acts. Nothing here panics on bytes of a peer.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

/// Adds to a header, which has a function `write`, those that write it into a buffer.
macro_rules! emit_methods {
    ($header:ident) => {
        impl $header<'_> {
            /// Bytes which [`Self::emit`] writes.
            #[inline]
            pub fn buffer_len(&self) -> usize {
                self.emit(&mut [])
            }

            /// Writes the header at the start of `buffer`; returns its length, that of
            /// [`Self::buffer_len`].
            ///
            /// Never panics, except that debug builds assert that the credits of a transport header are
            /// not zero. A `buffer` shorter than that is left with part of a header, which the returned
            /// length tells.
            #[inline]
            pub fn emit(&self, buffer: &mut [u8]) -> usize {
                let mut writer = crate::xdr::Writer::new(buffer);
                self.write(&mut writer);
                writer.len()
            }
        }
    };
}

// In the folder of the dialects, and at the root for those who name its types: the engine's interface does.
#[path = "rfc5666/alignment.rs"]
pub mod alignment;
pub mod chunking;
#[path = "rfc5666/config_proto.rs"]
pub mod config_proto;
pub mod connection;
pub mod credit;
pub mod dialect;
pub mod events;
pub mod ids;
pub mod limits;
pub mod plain;
pub mod pull;
pub mod rdma;
pub mod requester;
pub mod responder;
mod rfc5666;
pub mod rpc;
pub mod version;
pub mod xdr;

pub use rfc5666::{exports, reply_pull};
