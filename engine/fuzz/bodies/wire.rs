//! Messages as bytes, and chunk lists that own their segments.

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::{
    Body, HeaderRepr, HeaderView, Lists, MessageType, RdmaError, ReadSegment, ReplyRepr, Segment,
    emit_error, v1,
};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::TransportVersion;

use crate::script::Script;

/// The dialect of a connection.
pub(crate) fn profile(script: &mut Script<'_>) -> Profile {
    match script.byte() % 4 {
        0 => Profile::Rfc8166,
        1 => Profile::Rfc5666,
        2 => Profile::Draft03,
        _ => Profile::Draft00,
    }
}

/// The word at `index` (in words).
pub(crate) fn word(message: &[u8], index: usize) -> Option<u32> {
    let bytes = message.get(index * 4..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

/// The bytes of `words` on the wire.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An RPC call of 40 bytes, without arguments.
pub(crate) fn rpc_call(xid: Xid) -> Vec<u8> {
    words(&[xid.0, 0, 2, 100_003, 3, 0, 0, 0, 0, 0])
}

/// An RPC reply that says success, without results.
pub(crate) fn rpc_reply(xid: Xid) -> Vec<u8> {
    words(&[xid.0, 1, 0, 0, 0, 0])
}

/// An RDMA_ERROR.
pub(crate) fn error(xid: Xid, version: u32, credits: u32, error: RdmaError) -> Vec<u8> {
    let mut buffer = vec![0; 64];
    let length = emit_error(&mut buffer, xid, version, credits, error);
    buffer.truncate(length);
    buffer
}

/// The RDMA_MSGP that this RDMA_MSG becomes, unless there is no padding; the stream behind the header
/// stays as it is.
pub(crate) fn padded(mut message: Vec<u8>, alignment: Alignment) -> Vec<u8> {
    if alignment != Alignment::NONE {
        message.splice(..0, [0; v1::MSGP_FIELDS_BYTES]);
        assert_eq!(v1::insert_alignment(&mut message, v1::MSGP_FIELDS_BYTES, alignment), 0);
    }
    message
}

/// Version and direction of a header.
pub(crate) type Form = (TransportVersion, Direction);

/// Version one does not say the direction.
pub(crate) const ONE: Form = (TransportVersion::One, Direction::Call);

pub(crate) fn header(
    (version, direction): Form,
    xid: Xid,
    credits: u32,
    body: Body<'_>,
) -> Vec<u8> {
    let repr = HeaderRepr::new(version, direction, xid, credits, body);
    let mut buffer = vec![0; repr.buffer_len()];
    assert_eq!(repr.emit(&mut buffer), buffer.len());
    buffer
}

/// A reply to `call` that grants a credit and has these lengths in its chunks.
pub(crate) fn reply(
    call: &HeaderView<'_>,
    message_type: MessageType,
    write_lengths: &[u32],
    reply_length: Option<u32>,
) -> Vec<u8> {
    let repr = ReplyRepr {
        xid: call.xid(),
        credits: 1,
        message_type,
        reads: &[],
        write_lengths,
        reply_length,
        counts_roundup: false,
    };
    let mut buffer = vec![0; ReplyRepr::bytes_of(call, 0)];
    assert_eq!(repr.emit(&mut buffer, call), buffer.len());
    buffer
}

/// A reply that fills every chunk to the brim names the same chunks and fits the same limits. Returns its version and
/// direction.
pub(crate) fn check_answer(call: &HeaderView<'_>, limits: &Limits) -> (u32, Option<Direction>) {
    let lengths: Vec<u32> = call.writes().map(|chunk| chunk.total_length() as u32).collect();
    let reply_length = call.reply_chunk().map(|chunk| chunk.total_length() as u32);
    let buffer = reply(call, MessageType::Msg, &lengths, reply_length);
    let reply = HeaderView::new_checked(&buffer, limits).unwrap();
    assert_eq!(reply.header_bytes(), buffer.len());
    let echoed = OwnedLists { reads: OwnedLists::of(call).reads, ..OwnedLists::of(&reply) };
    assert_eq!(echoed, OwnedLists::of(call));
    assert!(reply.reads().is_empty());
    (reply.version(), reply.direction())
}

/// The chunk lists of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedLists {
    pub(crate) reads: Vec<ReadSegment>,
    pub(crate) writes: Vec<Vec<Segment>>,
    pub(crate) reply: Option<Vec<Segment>>,
}

impl OwnedLists {
    /// Those of a received header.
    pub(crate) fn of(view: &HeaderView<'_>) -> Self {
        Self {
            reads: view.reads().collect(),
            writes: view.writes().map(|chunk| chunk.segments().collect()).collect(),
            reply: view.reply_chunk().map(|chunk| chunk.segments().collect()),
        }
    }

    /// A header of this type with these lists; `padding` is alignment and threshold of an RDMA_MSGP.
    pub(crate) fn header(
        &self,
        form: Form,
        message_type: MessageType,
        xid: Xid,
        credits: u32,
        padding: Option<(u32, u32)>,
    ) -> Vec<u8> {
        let writes: Vec<&[Segment]> = self.writes.iter().map(Vec::as_slice).collect();
        let lists = Lists { reads: &self.reads, writes: &writes, reply: self.reply.as_deref() };
        let (align, thresh) = padding.unwrap_or_default();
        let body = match message_type {
            MessageType::Msg => Body::Msg(lists),
            MessageType::Nomsg => Body::Nomsg(lists),
            MessageType::Msgp => Body::Msgp { align, thresh, lists },
            MessageType::Done => Body::Done,
            MessageType::Error | MessageType::Optional => panic!("it has no lists"),
        };
        header(form, xid, credits, body)
    }
}
