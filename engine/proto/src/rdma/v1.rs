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
//! [`HeaderView`] is a received header, [`HeaderRepr`] one to send, and [`emit_reply`] sends the
//! chunks of a call back, in the version of that call. The requester and the responder use them.

use super::chunk_list::{read_entries_bytes, write_chunk, write_reads};
use super::error::RdmaError;
pub use super::header::{HeaderError, HeaderView, MessageType};
use super::header::{LINK_BYTES, START_BYTES};
use super::reply::ReplyRepr;
use super::segment::{ReadSegment, Segment};
use crate::ids::Xid;
use crate::limits::{SEGMENTS_MAX, WRITE_CHUNKS_MAX};
pub use crate::rfc5666::padding::{alignment_of, insert_alignment, strip_padding};
use crate::xdr::Writer;

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

/// A header to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRepr<'a> {
    /// XID of the RPC message.
    pub xid: Xid,
    /// Credits requested in a call, granted in a reply; never zero (RFC 8166 section 3.3.1).
    pub credits: u32,
    /// The type and its fields.
    pub body: Body<'a>,
}

/// The part of a header that depends on its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// RDMA_MSG.
    Msg(Lists<'a>),
    /// RDMA_NOMSG.
    Nomsg(Lists<'a>),
    /// RDMA_MSGP.
    Msgp {
        /// Alignment of padded data in bytes.
        align: u32,
        /// Size in bytes from which data is padded.
        thresh: u32,
        /// The chunk lists.
        lists: Lists<'a>,
    },
    /// RDMA_DONE.
    Done,
    /// RDMA_ERROR in answer to a version-one message; [`emit_error`] answers other versions.
    Error(RdmaError),
}

/// The chunk lists of a header to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists<'a> {
    /// Read list: the segments of a chunk next to each other, in stream order.
    pub reads: &'a [ReadSegment],
    /// Write list: one slice of segments per chunk.
    pub writes: &'a [&'a [Segment]],
    /// Reply chunk.
    pub reply: Option<&'a [Segment]>,
}

impl Lists<'_> {
    /// No chunks at all.
    pub const EMPTY: Self = Self { reads: &[], writes: &[], reply: None };

    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        write_reads(writer, self.reads);
        for chunk in self.writes {
            write_chunk(writer, chunk.iter().copied());
        }
        writer.bool(false);
        match self.reply {
            Some(chunk) => write_chunk(writer, chunk.iter().copied()),
            None => writer.bool(false),
        }
    }
}

emit_methods!(HeaderRepr);

impl HeaderRepr<'_> {
    fn write(&self, writer: &mut Writer<'_>) {
        write_start(writer, self.xid, VERSION, self.credits, self.body.message_type());
        match &self.body {
            Body::Msg(lists) | Body::Nomsg(lists) => lists.write(writer),
            Body::Msgp { align, thresh, lists } => {
                writer.u32(*align);
                writer.u32(*thresh);
                lists.write(writer);
            }
            Body::Done => {}
            Body::Error(error) => error.write(writer),
        }
    }
}

impl Body<'_> {
    /// The type of a message with this body.
    #[must_use]
    pub const fn message_type(&self) -> MessageType {
        match self {
            Body::Msg(_) => MessageType::Msg,
            Body::Nomsg(_) => MessageType::Nomsg,
            Body::Msgp { .. } => MessageType::Msgp,
            Body::Done => MessageType::Done,
            Body::Error(_) => MessageType::Error,
        }
    }
}

/// Writes the four words that begin every header.
#[inline]
pub(super) fn write_start(
    writer: &mut Writer<'_>,
    xid: Xid,
    version: u32,
    credits: u32,
    message_type: MessageType,
) {
    debug_assert!(credits != 0, "zero credits in a header to send");
    writer.u32(xid.0);
    writer.u32(version);
    writer.u32(credits);
    writer.u32(message_type.to_wire());
}

/// Writes the header of an RDMA_MSG without chunks at the start of `buffer`: the same bytes as
/// [`HeaderRepr::emit`], at the price of seven stores. Returns [`MSG_HEADER_BYTES`].
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
pub(super) fn is_plain(header: &[u8; MSG_HEADER_BYTES]) -> bool {
    // The type word and the three links, all zero.
    let no_lists = header.last_chunk() == Some(&[0; 4 + 3 * LINK_BYTES]);
    let [_, _, _, _, v0, v1, v2, v3, ..] = *header;
    no_lists && u32::from_be_bytes([v0, v1, v2, v3]) == VERSION
}

/// Writes an RDMA_ERROR in answer to a message with the given `version` word, which is sent back
/// because it is the one version that the peer is known to take (RFC 5666 section 4.2: "any value
/// otherwise valid at the receiver"). Returns the length in bytes, at most [`MSG_HEADER_BYTES`] for
/// the errors of version one.
///
/// Never panics, except that debug builds assert that `credits` is not zero. A `buffer` that is too
/// short is left with part of a message, which the returned length tells.
pub fn emit_error(
    buffer: &mut [u8],
    xid: Xid,
    version: u32,
    credits: u32,
    error: RdmaError,
) -> usize {
    let mut writer = Writer::new(buffer);
    write_start(&mut writer, xid, version, credits, MessageType::Error);
    error.write(&mut writer);
    writer.len()
}

/// Bytes which [`emit_reply`] writes for a reply to `call`, whatever the lengths.
#[must_use]
#[inline]
pub const fn reply_header_bytes(call: &HeaderView<'_>) -> usize {
    // The Write list and the Reply chunk come back as they are; the Read list is one link word.
    call.transport_version().lists_at() + LINK_BYTES + call.results_bytes()
}

/// Writes the header of a reply at the start of `buffer`: the Write list and the Reply chunk of
/// `call` come back with the same chunks, segments, handles and offsets, and the lengths that were
/// placed (RFC 8166 sections 4.3.2 and 4.3.3). The Read list is empty (section 4.3.1). Returns the
/// length, that of [`reply_header_bytes`].
///
/// * `message_type`: [`MessageType::Msg`], or [`MessageType::Nomsg`] if the RPC message is in the
///   Reply chunk.
/// * `write_lengths`: bytes placed in each Write chunk, in order; chunks beyond are unused.
/// * `reply_length`: bytes placed in the Reply chunk; `None` if unused.
///
/// `call` is the header of a call, thus not of type Done or Error. Never panics, except that debug
/// builds assert that, that `credits` is not zero and that each length fits its chunk. A `buffer`
/// that is too short is left with part of a header, which the returned length tells.
pub fn emit_reply(
    buffer: &mut [u8],
    xid: Xid,
    credits: u32,
    message_type: MessageType,
    call: &HeaderView<'_>,
    write_lengths: &[u32],
    reply_length: Option<u32>,
) -> usize {
    let repr = ReplyRepr {
        xid,
        credits,
        message_type,
        reads: &[],
        write_lengths,
        reply_length,
        counts_roundup: false,
    };
    repr.emit(buffer, call)
}
