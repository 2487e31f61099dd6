//! The header of RPC-over-RDMA version one (RFC 5666 section 4, RFC 8166 section 4).
//!
//! ```text
//! xid | version = 1 | credits | type | body
//! RDMA_MSG:   Read list, Write list, Reply chunk; then the RPC message
//! RDMA_NOMSG: Read list, Write list, Reply chunk
//! RDMA_MSGP:  align, thresh, Read list, Write list, Reply chunk; then the RPC message
//! RDMA_DONE:  nothing
//! RDMA_ERROR: error code, for ERR_VERS also the lowest and highest version
//! ```
//!
//! [`HeaderView`] is a received header, [`super::HeaderRepr`] one to send, and [`super::ReplyRepr`] sends the
//! chunks of a call back, in the version of that call. The requester and the responder use them.

use super::chunk_list::read_entries_bytes;
pub use super::header::{HeaderError, HeaderView, MessageType};
use super::header::{LINK_BYTES, START_BYTES};
use super::segment::Segment;
use crate::ids::Xid;
use crate::limits::{SEGMENTS_MAX, WRITE_CHUNKS_MAX};
pub use crate::rfc5666::padding::{alignment_of, insert_alignment, strip_padding};

/// The version word of this header.
pub const VERSION: u32 = 1;

/// Bytes of a header of type RDMA_MSG or RDMA_NOMSG with no chunks. A shorter message is dropped
/// unless it is RDMA_DONE or RDMA_ERROR (RFC 8166 section 4.5).
pub const MSG_HEADER_BYTES: usize = 28;

/// Offset of the Read list in a header without padding words.
pub(crate) const LISTS_AT: usize = START_BYTES;

/// Bytes of an RDMA_DONE.
pub const DONE_BYTES: usize = START_BYTES;
/// Bytes by which the header of an RDMA_MSGP is longer than that of an RDMA_MSG.
pub const MSGP_FIELDS_BYTES: usize = 8;

/// Bytes of the largest header with chunk lists, of either version, that any
/// [`Limits`](crate::limits::Limits) let through.
pub const HEADER_BYTES_MAX: usize = START_BYTES
    + MSGP_FIELDS_BYTES
    + read_entries_bytes(SEGMENTS_MAX)
    + (WRITE_CHUNKS_MAX + 1) * (LINK_BYTES + 4)
    + 2 * SEGMENTS_MAX * Segment::WIRE_BYTES
    + 2 * LINK_BYTES;

// Offsets in a checked header are kept in 16 bits.
const _: () = assert!(HEADER_BYTES_MAX <= u16::MAX as usize);

/// Writes the header of an RDMA_MSG without chunks at the start of `buffer`: the same bytes as
/// [`super::HeaderRepr::emit`], at the price of seven stores. Returns [`MSG_HEADER_BYTES`].
///
/// Never panics, except that debug builds assert that `credits` is not zero. Nothing is written
/// into a `buffer` that is too short.
#[inline]
pub fn emit_msg_header(buffer: &mut [u8], xid: Xid, credits: u32) -> usize {
    if let Some(header) = buffer.first_chunk_mut::<MSG_HEADER_BYTES>() {
        debug_assert!(credits != 0, "zero credits in a header to send");
        // In the pairs in which a driver with words of eight bytes copies it on, see there.
        let (xid_word, rest) = header.split_at_mut(4);
        xid_word.copy_from_slice(&xid.0.to_be_bytes());
        rest[..8].copy_from_slice(&(u64::from(VERSION) << 32 | u64::from(credits)).to_be_bytes());
        rest[8..].fill(0);
    }
    MSG_HEADER_BYTES
}

/// True if this is a version-one RDMA_MSG with three empty lists.
#[inline]
pub(super) fn is_chunkless(header: &[u8; MSG_HEADER_BYTES]) -> bool {
    // The type word and the three links, all zero.
    let no_lists = header.last_chunk() == Some(&[0; 4 + 3 * LINK_BYTES]);
    let [_, _, _, _, v0, v1, v2, v3, ..] = *header;
    no_lists && u32::from_be_bytes([v0, v1, v2, v3]) == VERSION
}
