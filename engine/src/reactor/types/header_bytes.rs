//! Properties of message bytes that every part of a core needs.

use crate::reactor::types::calls::{Backpressure, RpcRefusal};
use spinrpc_proto::chunking::CallChunks;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::{AcceptStatus, AuthFlavor};
use spinrpc_proto::version::TransportVersion;

pub(in crate::reactor) static NO_CHUNKS: CallChunks = CallChunks::EMPTY;

/// A transport header of this length has no chunks, in either version: that of an RDMA_MSGP is longer,
/// and so is one with chunks.
#[inline]
pub(in crate::reactor) const fn is_chunkless(header_bytes: usize) -> bool {
    header_bytes <= TransportVersion::Two.chunkless_header_bytes()
}

#[inline]
pub(in crate::reactor) fn put_xid(stream: &mut [u8], xid: Xid) {
    // With the word behind it, which says CALL: as the pair that will be copied on.
    if let Some(pair) = stream.first_chunk_mut::<8>() {
        *pair = (u64::from(xid.0) << 32).to_be_bytes();
    }
}

/// An encoder may not start another call.
pub(crate) const NESTED: Backpressure =
    Backpressure::Misuse("the encoder of a call has started another one");

/// The encoder is the application's mistake.
pub(in crate::reactor) const ITEMS_DIFFER: Backpressure =
    Backpressure::Misuse("stream and spec differ in their data items");

/// The error if the connection has no block of this size: none is that long, or all are lent out.
pub(in crate::reactor) fn no_block(needed_bytes: usize, longest_bytes: usize) -> Backpressure {
    if needed_bytes > longest_bytes {
        return Backpressure::TooLarge { needed_bytes };
    }
    Backpressure::NoBuffer
}

/// The RPC header of a successful reply without verifier (RFC 5531 section 9): XID (put in when it
/// is posted), REPLY, MSG_ACCEPTED, AUTH_NONE of length zero, SUCCESS.
pub(in crate::reactor) const SUCCESS_HEADER: [u8; 24] = {
    let mut header = [0; 24];
    header[7] = 1;
    header
};

/// The answer to a call whose handler failed to answer it.
pub(crate) const SYSTEM_ERR: RpcRefusal = RpcRefusal::Accepted(AcceptStatus::SystemErr);

/// The credential of this call is of flavor RPCSEC_GSS. Its flavor stands before all counted data (RFC 5531 section 9), so that
/// padding moves it nowhere.
pub(crate) fn is_under_gss(message: &[u8]) -> bool {
    const FLAVOR_AT: usize = 24;
    message.get(FLAVOR_AT..FLAVOR_AT + 4) == Some(&AuthFlavor::Gss.to_wire().to_be_bytes())
}

/// The version of a call whose header was checked when it came.
#[inline]
pub(in crate::reactor) fn version_of(call: &[u8]) -> TransportVersion {
    const TWO: u8 = TransportVersion::Two as u8;
    match call.get(7) {
        Some(&TWO) => TransportVersion::Two,
        _ => TransportVersion::One,
    }
}

/// The XID of a message, which is the first word of every header.
pub(in crate::reactor) fn xid_of(message: &[u8]) -> Xid {
    Xid(message.first_chunk().map_or(0, |word| u32::from_be_bytes(*word)))
}

/// Length of a transport header that was checked when it came, if it has no lists.
#[inline]
pub(in crate::reactor) fn chunkless_header_bytes(message: &[u8]) -> Option<u32> {
    let view = HeaderView::chunkless(message).or_else(|| HeaderView::chunkless_two(message))?;
    Some(view.header_bytes() as u32)
}
