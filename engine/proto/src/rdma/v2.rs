//! The header of RPC-over-RDMA version two (draft-cel-nfsv4-rpcrdma-version-two-01, called "version
//! two" in the comments of this crate). Its XDR is in `xdr/rpcrdma_v2.x`.
//!
//! ```text
//! xid | version = 2 | credits | type | body
//! RDMA2_MSG:      direction, Read list, Write list, Reply chunk; then the RPC message
//! RDMA2_NOMSG:    direction, Read list, Write list, Reply chunk
//! RDMA2_ERROR:    error code, for ERR_VERS also the lowest and highest version
//! RDMA2_OPTIONAL: direction, number of the option, opaque<>; then all, part or nothing of an RPC
//!                 message
//! ```
//!
//! Lists, segments and RDMA_ERROR are those of version one. A header received is a
//! [`super::HeaderView`]. Decisions that the document leaves open are in [`crate::version`]. Used
//! by the requester and the responder.

use super::header::{LINK_BYTES, START_BYTES};
use crate::ids::Xid;
use crate::rpc::Direction;
use crate::xdr::{DecodeError, Reader};

/// The version word of this header.
pub const VERSION: u32 = 2;

const DIRECTION_BYTES: usize = 4;

pub(crate) const LISTS_AT: usize = START_BYTES + DIRECTION_BYTES;

/// Bytes of a header of type RDMA2_MSG or RDMA2_NOMSG with no chunks.
pub const MSG_HEADER_BYTES: usize = LISTS_AT + 3 * LINK_BYTES;

/// True if this is an RDMA2_MSG with three empty lists, in one direction or the other.
#[inline]
pub(super) fn is_chunkless(header: &[u8; MSG_HEADER_BYTES]) -> bool {
    let [_, _, _, _, rest @ ..] = header;
    let (version, rest) = (&rest[..4], &rest[8..]);
    // The type, and the direction but for its last bit.
    let start = rest.first_chunk::<8>().map_or(u64::MAX, |words| u64::from_be_bytes(*words));
    version == VERSION.to_be_bytes() && start <= 1 && rest[8..] == [0; 3 * LINK_BYTES]
}

pub(super) fn read_direction(reader: &mut Reader<'_>) -> Result<Direction, DecodeError> {
    let at = reader.position();
    let value = reader.u32()?;
    Direction::from_wire(value).ok_or(DecodeError::BadEnum { at, value })
}

/// Direction of a message of which nothing else may be readable.
pub(super) fn direction_of(message: &[u8]) -> Option<Direction> {
    let mut reader = Reader::new(message);
    reader.skip(START_BYTES).and_then(|()| read_direction(&mut reader)).ok()
}

/// Writes the header of an RDMA2_MSG without chunks at the start of `buffer`: the same bytes as
/// [`super::HeaderRepr::emit`], at the price of eight stores. Returns [`MSG_HEADER_BYTES`].
///
/// Never panics, except that debug builds assert that `credits` is not zero. Nothing is written
/// into a `buffer` that is too short.
#[inline]
pub fn emit_msg_header(buffer: &mut [u8], xid: Xid, credits: u32, direction: Direction) -> usize {
    if let Some(header) = buffer.first_chunk_mut::<MSG_HEADER_BYTES>() {
        debug_assert!(credits != 0, "zero credits in a header to send");
        let start = u64::from(xid.0) << 32 | u64::from(VERSION);
        header[..8].copy_from_slice(&start.to_be_bytes());
        header[8..16].copy_from_slice(&(u64::from(credits) << 32).to_be_bytes());
        header[16..24].copy_from_slice(&(u64::from(direction.to_wire()) << 32).to_be_bytes());
        header[24..].fill(0);
    }
    MSG_HEADER_BYTES
}

/// Passes over the body of an RDMA2_OPTIONAL (`rpcrdma2_optional`): direction, number of the operation, and its parameters, which
/// may be as long as the received message. What they mean is defined by the document of the extension that the number belongs to.
pub(super) fn pass_optional(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    read_direction(reader)?;
    reader.u32()?;
    reader.opaque(usize::MAX).map(drop)
}
