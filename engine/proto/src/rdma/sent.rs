//! A transport header to send, of either version; [`super::v1`] and [`super::v2`] have the layouts. Replies are written by
//! [`super::ReplyRepr`], from the header of their call. Used by the requester.

use super::chunk_list::{write_chunk, write_reads};
use super::error::RdmaError;
use super::header::MessageType;
use super::segment::{ReadSegment, Segment};
use crate::ids::Xid;
use crate::rpc::Direction;
use crate::version::TransportVersion;
use crate::xdr::Writer;

/// A header to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRepr<'a> {
    start: Start,
    body: Body<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) xid: Xid,
    /// That of an RDMA_ERROR may be any.
    pub(super) version_word: u32,
    pub(super) credits: u32,
    /// In version two only, and not in an RDMA_ERROR.
    pub(super) direction: Option<Direction>,
}

impl Start {
    #[inline]
    pub(super) fn new(
        version: TransportVersion,
        direction: Direction,
        xid: Xid,
        credits: u32,
    ) -> Self {
        let direction = (version == TransportVersion::Two).then_some(direction);
        Self { xid, version_word: version.to_wire(), credits, direction }
    }

    #[inline]
    pub(super) fn write(&self, message_type: MessageType, writer: &mut Writer<'_>) {
        debug_assert!(self.credits != 0, "zero credits in a header to send");
        writer.u32(self.xid.0);
        writer.u32(self.version_word);
        writer.u32(self.credits);
        writer.u32(message_type.to_wire());
        if let Some(direction) = self.direction {
            writer.u32(direction.to_wire());
        }
    }
}

/// The part of a header that depends on its type. The types of one version are not for the other.
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
    /// RDMA2_OPTIONAL.
    Optional {
        /// Number of the operation (`rdma_opttype`).
        option: u32,
        /// Parameters of the operation (`rdma_optinfo`).
        info: &'a [u8],
    },
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

    fn write(&self, writer: &mut Writer<'_>) {
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

impl<'a> HeaderRepr<'a> {
    /// The header of a message with this XID. Version one does not say the direction. `credits` are requested in a call and
    /// granted in a reply, and never zero (RFC 8166 section 3.3.1).
    pub fn new(
        version: TransportVersion,
        direction: Direction,
        xid: Xid,
        credits: u32,
        body: Body<'a>,
    ) -> Self {
        Self { start: Start::new(version, direction, xid, credits), body }
    }

    /// An RDMA_DONE (RFC 5666 section 3.8).
    pub fn done(xid: Xid, credits: u32) -> Self {
        Self::new(TransportVersion::One, Direction::Call, xid, credits, Body::Done)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        self.start.write(self.body.message_type(), writer);
        match &self.body {
            Body::Msg(lists) | Body::Nomsg(lists) => lists.write(writer),
            Body::Msgp { align, thresh, lists } => {
                writer.u32(*align);
                writer.u32(*thresh);
                lists.write(writer);
            }
            Body::Done => {}
            Body::Optional { option, info } => {
                writer.u32(*option);
                writer.opaque(info);
            }
        }
    }
}

impl Body<'_> {
    const fn message_type(&self) -> MessageType {
        match self {
            Body::Msg(_) => MessageType::Msg,
            Body::Nomsg(_) => MessageType::Nomsg,
            Body::Msgp { .. } => MessageType::Msgp,
            Body::Done => MessageType::Done,
            Body::Optional { .. } => MessageType::Optional,
        }
    }
}

/// Writes an RDMA_ERROR in answer to a message with the given `version` word, which is sent back
/// because it is the one version that the peer is known to take (RFC 5666 section 4.2: "any value
/// otherwise valid at the receiver"). Returns the length in bytes, at most
/// [`MSG_HEADER_BYTES`](super::v1::MSG_HEADER_BYTES) for the errors of version one.
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
    let start = Start { xid, version_word: version, credits, direction: None };
    start.write(MessageType::Error, &mut writer);
    error.write(&mut writer);
    writer.len()
}
