//! Consequences of inputs to the state machines: of a message an [`Arrival`], on which the caller acts when the state machine has
//! returned. RDMA Reads and Writes go to functions of the caller, which post them at once.

use crate::ids::Xid;
use crate::limits::ITEMS_MAX;
use crate::rdma::RdmaError;
use crate::rdma::Segment;
use crate::rpc::AcceptStatus;
use crate::version::TransportVersion;

/// Names a transaction's place in a requester's or responder's table: index and generation, so
/// that a stale name is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// Place in the table.
    pub index: u16,
    /// Raised each time the place is used again.
    pub generation: u32,
}

/// One RDMA Read of a call at the responder, or of a reply at the requester: `from` the peer's memory
/// into a Read chunk's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The call it belongs to.
    pub slot: SlotId,
    /// Index of the message's Read chunk, counted by rising position.
    pub chunk: u8,
    /// Offset in that chunk's buffer, in bytes.
    pub at: u32,
    /// The peer's memory; its length is that of the transfer.
    pub from: Segment,
}

/// Source of the bytes that an RDMA Write of a reply places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSource {
    /// The data item that goes into the Write chunk of this number.
    Item(u8),
    /// The reply's XDR stream, into the Reply chunk.
    Stream,
}

/// One RDMA Write of a reply, to be posted before the reply's Send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// Source of the bytes.
    pub source: WriteSource,
    /// First byte of the source.
    pub at: u32,
    /// The requester's memory; its length is that of the transfer.
    pub to: Segment,
}

/// Location of the XDR stream of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStream {
    /// In the message, behind a transport header of this many bytes.
    Inline {
        /// Length of the transport header.
        header_bytes: usize,
    },
    /// In the memory of the Reply chunk.
    ReplyChunk {
        /// Bytes the responder placed.
        length: u32,
    },
    /// In the first of its Read chunks, at position zero.
    Pulled,
}

/// A reply that matched a call in flight and kept the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredReply {
    /// The call's place, free again after this.
    pub slot: SlotId,
    /// The application's name of the call.
    pub token: u64,
    /// Location of the RPC reply.
    pub stream: ReplyStream,
    /// Bytes placed in each offered Write chunk, in order.
    pub placed: [u32; ITEMS_MAX],
}

/// Reason why a call ended without an RPC reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallFailure {
    /// The deadline passed.
    TimedOut,
    /// The application cancelled it.
    Cancelled,
    /// The responder answered with RDMA_ERROR (RFC 8166 section 4.5): permanent.
    Rdma(RdmaError),
    /// The reply broke the rules; says which.
    Misbehaved(PeerMisbehaved),
    /// The reply came, and no memory was available for it.
    NoMemory,
}

/// Violation by the peer that closes the connection, or another reason why the connection cannot be
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// A reply with a Read list (RFC 8166 section 4.3.1).
    ReadListInReply,
    /// A reply's Write list differs from the one offered (RFC 8166 section 4.3.2).
    WriteListChanged,
    /// A reply's Reply chunk differs from the one offered (RFC 8166 section 4.3.3).
    ReplyChunkChanged,
    /// A reply's Read list contradicts itself or the message: overlapping chunks, positions beyond
    /// the stream, a Position-Zero chunk together with an RPC message that is elsewhere.
    ReadListBroken,
    /// RDMA_NOMSG without anything in a Reply chunk, or in a Position-Zero Read chunk where such
    /// are allowed.
    NoReplyStream,
    /// Too many messages that could not be parsed.
    MalformedHeaders,
    /// A message invalidated a key of another call than the one it answers (RFC 8797 section 4.1).
    ForeignKey,
    /// A reply in a chunk that begins with another XID than the message that brought it.
    ForeignReply,
    /// A reply places more of a result than the peer had this side fetch of it.
    ResultNotFetched,
    /// It speaks no version of RPC-over-RDMA that this side speaks (RFC 5666 section 4.2, version two
    /// section 5.2).
    NoCommonVersion,
}

impl PeerMisbehaved {
    /// Describes the violation in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadListInReply => "reply with a Read list",
            Self::WriteListChanged => "reply whose Write list is not the one offered",
            Self::ReplyChunkChanged => "reply whose Reply chunk is not the one offered",
            Self::ReadListBroken => "reply whose Read list cannot be",
            Self::NoReplyStream => "RDMA_NOMSG reply without a Reply chunk",
            Self::MalformedHeaders => "too many malformed transport headers",
            Self::ForeignKey => "invalidated a key of another call",
            Self::ForeignReply => "reply in a chunk that is that of another call",
            Self::ResultNotFetched => "reply that places more than could be fetched",
            Self::NoCommonVersion => "speaks no version of RPC-over-RDMA that is spoken here",
        }
    }
}

impl core::fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for PeerMisbehaved {}

/// Reason why a message was dropped without an answer (RFC 8166 sections 4.5 and 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// Shorter than any header.
    TooShort,
    /// A reply header that cannot be parsed, or of another version.
    MalformedReply,
    /// No call in flight has this XID.
    UnmatchedReply,
    /// RDMA_DONE that nothing is owed for: under RFC 8166 any, and on the requester's side those of
    /// draft-ietf-nfsv4-rpcrdma-00, where the reply says as much.
    Done,
    /// RDMA_MSGP on the requester's side.
    UnexpectedType,
    /// RDMA_ERROR on the responder's side.
    UnexpectedError,
    /// RDMA2_OPTIONAL of direction REPLY: no option is known (version two section 3.1).
    UnknownOption,
    /// A call to a side that serves nothing, or a reply to one that called nothing.
    WrongDirection,
}

/// A call that ended without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCall {
    /// The call's place.
    pub slot: SlotId,
    /// The application's name of the call.
    pub token: u64,
    /// Reason for the end.
    pub failure: CallFailure,
    /// Its memory stays exposed and its slot taken until [`Event::Released`].
    pub is_fenced: bool,
}

/// Event caused by a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// Nothing is to be done.
    #[default]
    None,
    /// A call is whole.
    Call(SlotId),
    /// A call waits for its Read chunks: find memory for them, then
    /// [`crate::responder::Responder::pull`].
    Pull(SlotId),
    /// A call in flight has its reply; its keys must be dead before the application sees it.
    Reply(DeliveredReply),
    /// A reply, which is [`Arrival::to_pull`], waits for its Read chunks, or a late one only for its RDMA_DONE: its keys must be dead
    /// from now on; find memory for the chunks, then [`crate::requester::Requester::pull`], and
    /// [`crate::requester::Requester::end_pull`] in the end.
    PullReply,
    /// The requester has fetched a reply: the memory that the reply named is no longer exported.
    FreeExports(SlotId),
    /// A call ended without a reply.
    Failed(FailedCall),
    /// The late end of a call that had failed before: its memory is free now.
    Released(SlotId),
    /// The responder does not speak the version of this call, but another one that is spoken here. The
    /// call is held: send it again on this connection, with
    /// [`crate::requester::Requester::resend`], in the version that
    /// [`crate::requester::Requester::negotiation`] says now.
    Resend(SlotId),
    /// Answer a message with this version word with RDMA_ERROR.
    Error(Xid, u32, RdmaError),
    /// Answer a call with an RPC error in the version in which it came: SYSTEM_ERR beyond the grant (RFC 5666 section 3.3),
    /// PROG_UNAVAIL for one in reverse where this end takes none
    /// ([`crate::connection::Connection::refusing_reverse`]).
    Refused(Xid, TransportVersion, AcceptStatus),
    /// Count a message that gets no answer.
    Dropped(Dropped),
}

/// Everything that follows from a message: one event at the most, and perhaps the end of the connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The event.
    pub event: Event,
    /// Set with [`Event::PullReply`]. A separate field, because an event with two kinds of
    /// replies would need one more word to tell them apart, and each reply would be copied around it.
    pub to_pull: Option<DeliveredReply>,
    /// Reason to close the connection.
    pub close: Option<PeerMisbehaved>,
}

impl Arrival {
    #[inline(always)]
    pub(crate) fn set(&mut self, event: Event) {
        debug_assert_eq!(self.event, Event::None, "a second event of one message");
        self.event = event;
    }
}
