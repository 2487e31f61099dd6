//! Calls and replies as the api and a core pass them to each other: requests of the application, and their outcomes.
//! Made by both, and by all layers above.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
#[cfg(feature = "gss")]
use crate::reactor::types::resend_source::Kept;
use crate::reactor::types::rfc5666::{Padded, PulledChunks};
use spinrpc_proto::chunking::StreamWriter;
use spinrpc_proto::events::{CallFailure, DeliveredReply, SlotId};
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::{INLINE_THRESHOLD_MIN_BYTES, ITEMS_MAX};
use spinrpc_proto::plain::CALL_BYTES;
use spinrpc_proto::rdma::v1::MSG_HEADER_BYTES;
use spinrpc_proto::requester::CallNumber;
use spinrpc_proto::rpc::{AcceptStatus, CallHeader, OpaqueAuth, RejectStatus};
use std::time::Duration;

/// Identifies a call that was started, for the [`Client`](crate::Client) that started it and its clones. It stays
/// unique after the call has ended and over reconnects, until the client has started 2^32 more calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(in crate::reactor) CallNumber);

impl CallId {
    pub(in crate::reactor) fn of(slot: SlotId) -> Self {
        Self(slot.into())
    }

    /// Its place at the requester.
    pub(crate) fn slot(self) -> SlotId {
        self.0.slot()
    }
}

/// A call that was started, by the requester's name and by the application's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotToken {
    pub(crate) slot: SlotId,
    pub(crate) token: u64,
}

impl SlotToken {
    /// The call that was answered.
    pub(crate) fn of(reply: &DeliveredReply) -> Self {
        Self { slot: reply.slot, token: reply.token }
    }
}

/// Procedure that a call goes to, with the RPC header of its client and the token of the call.
pub(crate) struct CallTarget<'a> {
    pub(crate) header: &'a HeaderTemplate,
    pub(crate) procedure: Procedure,
    pub(crate) token: u64,
}

/// The RPC header of one client's calls, written once: only the XID and the procedure are filled in per call.
pub(crate) struct HeaderTemplate {
    bytes: Vec<u8>,
    /// The calls have no credential.
    has_no_credential: bool,
    program: Program,
    version: Version,
}

impl HeaderTemplate {
    pub(crate) fn new(program: Program, version: Version, credential: OpaqueAuth<'_>) -> Self {
        let (xid, procedure, verifier) = (Xid(0), Procedure(0), OpaqueAuth::NONE);
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        Self { bytes, has_no_credential: credential == OpaqueAuth::NONE, program, version }
    }

    #[inline(always)]
    pub(in crate::reactor) fn has_no_credential(&self) -> bool {
        self.has_no_credential
    }

    /// Program and version.
    #[inline(always)]
    pub(in crate::reactor) fn called(&self) -> (Program, Version) {
        (self.program, self.version)
    }

    /// Puts the header before arguments that lie behind room for a header without a credential. Does nothing if this
    /// header has a credential, because it is then already in the stream.
    pub(crate) fn write_without_credential(&self, procedure: Procedure, stream: &mut [u8]) {
        const BYTES: usize = CALL_BYTES - MSG_HEADER_BYTES;
        if self.has_no_credential
            && let Some(place) = stream.first_chunk_mut::<BYTES>()
            && let Some(header) = self.bytes.first_chunk::<BYTES>()
        {
            *place = *header;
            place[20..24].copy_from_slice(&procedure.0.to_be_bytes());
        }
    }

    /// Writes the header. Its words stand where RFC 5531 section 9 has them: the version is the
    /// fifth, the procedure the sixth.
    #[inline]
    pub(crate) fn write(&self, procedure: Procedure, stream: &mut StreamWriter<'_>) {
        let Some((head, behind)) = self.bytes.split_first_chunk::<24>() else { return };
        let mut head = *head;
        head[20..].copy_from_slice(&procedure.0.to_be_bytes());
        stream.fixed(&head);
        stream.fixed(behind);
    }
}

/// A call being answered: where it is and its message, whose chunk lists the reply echoes.
#[derive(Clone, Copy)]
pub(crate) struct ReplyTarget<'a> {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) message: &'a [u8],
    /// The call has no chunk lists, so that the reply has none to echo.
    pub(crate) is_chunkless: bool,
}

/// An answer that carries no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcRefusal {
    /// The call was understood but cannot be executed.
    Accepted(AcceptStatus),
    /// The call was denied.
    Denied(RejectStatus),
    /// The call offers no room for its results: RDMA_ERROR.
    NoRoom,
    /// There is no memory for the results: SYSTEM_ERR, and it is counted.
    NoMemory,
    /// Not executed, because it had waited for too long: SYSTEM_ERR, and it is counted.
    Late,
    /// Its handler has dropped it: SYSTEM_ERR, and it is counted.
    Dropped,
}

/// Options of a call in addition to its stream: the deadline, the room for its reply, and registered buffers for
/// direct data placement.
///
/// ```no_run
/// use spinrpc::{Backpressure, CallSpec, Client, Procedure, Resend, Token};
/// use std::time::Duration;
///
/// /// Sends a block, and has the answer placed into another one. Each of them goes without a copy.
/// fn exchange(client: &Client) -> Result<(), Backpressure> {
///     let mut block = client.bulk(64 << 10).ok_or(Backpressure::NoBuffer)?;
///     block.bytes_mut().fill(7);
///     let room = client.bulk(64 << 10).ok_or(Backpressure::NoBuffer)?;
///     let mut spec = CallSpec::new()
///         .deadline(Duration::from_millis(5))
///         .resend(Resend::AtMostOnce)
///         .reply_bytes_max(4096)
///         .argument(block)
///         .result_into(room);
///     match client.call(Procedure(3), Token(1), &mut spec, |args| args.bulk()) {
///         Err(refused) if refused.is_transient() => println!("{refused}; try again after a reply"),
///         started => println!("{:?}, {} calls in flight", started?, client.in_flight()),
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
// Fields of calls without buffers are adjacent: threads that make calls send them to their core.
#[repr(C)]
pub struct CallSpec {
    pub(crate) deadline: Deadline,
    pub(crate) reply_bytes_max: usize,
    /// The caller did not give `reply_bytes_max`: the call offers room for `rpc.max_read_bytes` at most.
    pub(crate) is_reply_assumed: bool,
    pub(crate) resend: Resend,
    /// Set if it has buffers, or is to be kept, unlike most calls.
    pub(crate) is_special: bool,
    /// A builder was given more items than fit: such a spec starts no call.
    pub(crate) overfull: bool,
    /// The call prepares a connection, so that it may go without a security context.
    #[cfg(feature = "gss")]
    pub(crate) is_setup: bool,
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
}

/// RPC header of a reply with the longest verifier (RFC 5531 section 8.2).
pub(in crate::reactor) const REPLY_HEADER_BYTES_MAX: usize = 24 + 400;

impl Default for CallSpec {
    fn default() -> Self {
        Self {
            deadline: Deadline::Default,
            reply_bytes_max: usize::MAX,
            is_reply_assumed: true,
            resend: Resend::Never,
            is_special: false,
            overfull: false,
            #[cfg(feature = "gss")]
            is_setup: false,
            arguments: [const { None }; ITEMS_MAX],
            results: [const { None }; ITEMS_MAX],
        }
    }
}

impl CallSpec {
    /// Longest results, in bytes, whose reply fits into the shortest message of any connection.
    pub const SHORT_RESULTS_BYTES_MAX: usize =
        INLINE_THRESHOLD_MIN_BYTES as usize - MSG_HEADER_BYTES - REPLY_HEADER_BYTES_MAX;

    /// Replaces the spec of an earlier call. Buffers are only checked if one of the two may have any. An equal one is not written:
    /// its lines stay in the caches of all CPUs that have read them.
    #[inline]
    pub(crate) fn replace(&mut self, new: Self) {
        if self.is_special || new.is_special {
            *self = new;
            return;
        }
        let Self { deadline, reply_bytes_max, is_reply_assumed, resend, overfull, .. } = self;
        let old = (deadline, reply_bytes_max, is_reply_assumed, resend, overfull);
        let Self { deadline, reply_bytes_max, is_reply_assumed, resend, overfull, .. } = new;
        let new = (deadline, reply_bytes_max, is_reply_assumed, resend, overfull);
        if (*old.0, *old.1, *old.2, *old.3, *old.4) != new {
            (*old.0, *old.1, *old.2, *old.3, *old.4) = new;
        }
    }

    /// Marks the call as one that prepares a connection.
    #[cfg(feature = "gss")]
    pub(crate) fn mark_setup(&mut self) {
        self.is_setup = true;
    }

    /// Gives its buffers back, if it has any.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.is_special {
            *self = Self::default();
        }
    }
}

/// Behavior of a call in flight when the connection is lost, on a client that reconnects
/// ([`ConnectOptions::reconnect`](crate::ConnectOptions::reconnect)). The client cannot know then if the server has
/// executed the call (RFC 5531 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resend {
    /// The call ends with [`CallError::Disconnected`](crate::CallError::Disconnected), or with
    /// [`CallError::NotExecuted`](crate::CallError::NotExecuted) if that is known.
    #[default]
    Never,
    /// The call is sent again with the same XID, to a server that keeps replies by XID
    /// ([`Engine::serve_once`](crate::Engine::serve_once)) and so executes it at most once. If another server has
    /// taken its place, or the server states that it keeps no replies, the call ends as with `Never`. The exception
    /// is a call that was never sent. For a server of another implementation the caller must know that it
    /// keeps replies. The caller must also know that for the program: an engine states that it keeps replies, but not
    /// for which programs, and a program served by [`Engine::serve`](crate::Engine::serve) executes the call again.
    AtMostOnce,
    /// The call is sent again: executing it twice does no harm.
    AtLeastOnce,
}

/// Time at which a call is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// As configured (`rpc.timeout_ms`).
    #[default]
    Default,
    /// After this time.
    After(Duration),
    /// Never.
    None,
}

impl Deadline {
    /// Time until the call is given up, where `rpc.timeout_ms` is `default`.
    pub(crate) fn or(self, default: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Default => default,
            Self::After(time) => Some(time),
            Self::None => None,
        }
    }
}

/// Reason why a call was not started. Nothing was sent; the application keeps its buffers and can retry when replies
/// have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Backpressure {
    /// As many calls are in flight as the server granted credits.
    #[error("no credit: as many calls are in flight as the server grants")]
    NoCredit,
    /// Every buffer, memory key or slot of the connection is lent out.
    #[error("no buffer: everything lent to calls in flight")]
    NoBuffer,
    /// No memory of the connection is free for the results, whose longest length the call does not give. Give it with
    /// [`CallSpec::reply_bytes_max`] or [`CallSpec::short`], or retry after a reply.
    #[error(
        "no memory is free for results of unknown length (rpc.max_read_bytes): give their longest length \
         with CallSpec::reply_bytes_max"
    )]
    NoReplyRoom,
    /// The send queue is full.
    #[error("the send queue is full")]
    SendQueueFull,
    /// The core has as many calls of handles in flight as `Config::handle_calls` allows.
    #[error("as many calls of handles are in flight as a core takes")]
    TooManyCalls,
    /// The [`AnswerQueue`](crate::AnswerQueue) is to get as many answers as it has room for.
    #[error(
        "the answer queue has no room for another answer: take answers, or create it for more calls"
    )]
    AnswerQueueFull,
    /// The connection is not up yet.
    #[error("still connecting")]
    Connecting,
    /// The connection was lost. Another one is being made, or the calls that were in flight are being sent again
    /// first.
    #[error("the connection was lost and reconnects")]
    Reconnecting,
    /// The connection is down.
    #[error("the connection is down")]
    Down,
    /// The call needs more memory or segments than can ever be offered: do not retry.
    #[error(
        "the call is too large: {needed_bytes} bytes (rpc.max_write_bytes, rpc.max_read_bytes, rpc.inline_send_bytes)"
    )]
    TooLarge {
        /// Bytes that its encoding needs.
        needed_bytes: usize,
    },
    /// The call needs a Read chunk, and one end allows no RDMA Reads: do not retry on this connection.
    #[error("{needed_bytes} bytes do not fit inline, and the connection has no RDMA Read")]
    NoRdmaRead {
        /// Bytes of the message, transport header and data items included.
        needed_bytes: usize,
    },
    /// The call needs chunks, but calls of its client must stay inline
    /// ([`ReverseOptions::inline_only`](crate::ReverseOptions::inline_only)): do not retry.
    #[error("the call does not fit inline, and its client is to offer no chunks")]
    InlineOnly,
    /// The numbers of data items in stream and spec differ, or there are more chunks or segments than configured: do
    /// not retry.
    #[error("misuse: {0}")]
    Misuse(&'static str),
}

/// Fields of a call's header that decide how it is served and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    /// Length of the transport header at the start of the message.
    pub(crate) header_bytes: u32,
    /// The call has no chunks.
    pub(crate) is_chunkless: bool,
    /// The RPC message is in the first sink, not behind the header.
    pub(crate) long: bool,
}

/// Outcome of a call's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Answered.
    Done,
    /// A short answer is where [`Serving::reply`] writes it.
    Replied,
    /// An answer that is not short is there.
    RepliedAtLength,
    /// It will be answered later, perhaps by another thread.
    Deferred,
}

/// Work that a turn, or a service in it, has done, and work that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of work items done: zero is an idle turn, as far as this service is concerned.
    pub events: usize,
    /// Work is in progress whose completion no event of the core announces, so it has to be polled for: an idle core
    /// may yield to other threads, but not sleep.
    pub is_waiting: bool,
}

/// A reply on its way to its handler.
pub(crate) struct ReplyFrame<'a> {
    pub(crate) conn: ConnId,
    pub(crate) token: u64,
    /// XID of the call, regardless of the stream.
    #[cfg_attr(not(feature = "gss"), expect(dead_code, reason = "the token says enough"))]
    pub(crate) xid: Xid,
    /// The RPC reply.
    pub(crate) stream: &'a [u8],
    /// Bytes placed in each Write chunk.
    pub(crate) placed: &'a [u32],
    /// Buffers that come back to the application.
    pub(crate) buffers: Option<&'a mut ReplyBuffers<'a>>,
    /// It is an RDMA_MSGP.
    pub(crate) padded: Option<Padded>,
}

impl<'a> ReplyFrame<'a> {
    /// A reply without chunks, to the call with this token and XID.
    pub(crate) fn short(
        conn: ConnId,
        (token, xid): (u64, Xid),
        stream: &'a [u8],
        placed: &'a [u32],
    ) -> Self {
        Self { conn, token, xid, stream, placed, buffers: None, padded: None }
    }
}

/// The registered buffers of an ended call.
pub(crate) struct ReplyBuffers<'a> {
    pub(crate) arguments: &'a mut [Option<Bulk>],
    pub(crate) results: &'a mut [Option<Bulk>],
    /// Empty unless the reply had to be fetched.
    pub(crate) pulled: PulledChunks<'a>,
    /// The whole reply in private memory, in the place of the stream of the frame, if its body is to be unsealed.
    #[cfg(feature = "gss")]
    pub(crate) whole: Option<Bulk>,
    /// The source that the call is sent again from if it was denied.
    #[cfg(feature = "gss")]
    pub(crate) kept: &'a mut Option<Kept>,
}

/// Cause that ended a call without a reply.
#[derive(Clone, Debug)]
pub(crate) enum CallEnd {
    /// Its deadline, its owner, or the responder's transport.
    Failed(CallFailure),
    /// The connection went down.
    Down(DownCause),
    /// The connection went down, and the call was never sent.
    NotExecuted(DownCause),
    /// The connection went down while the call waited for another context, as its own was denied.
    Denied(DownCause),
}

impl CallEnd {
    /// The end of a call whose connection went down.
    pub(crate) fn of(is_unexecuted: bool, cause: &DownCause) -> Self {
        if is_unexecuted { Self::NotExecuted(cause.clone()) } else { Self::Down(cause.clone()) }
    }
}
