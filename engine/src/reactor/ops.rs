//! What the api may ask of a core, without the driver's type: the seam where generics end.

use super::chains::Padded;
use super::connection::Sinks;
use super::deferred::DeferTicket;
use super::instance::Instance;
use super::negotiate::Negotiated;
use super::options::OptionMessage;
use super::panics::PanicPlace;
use super::reply_plan::ReplyData;
use super::reverse::NoReverse;
pub(crate) use super::versions::Settled;
use crate::fabric::{ConnId, DownCause, FabricError, Peer};
use crate::mem::{Buf, Bulk, BulkPool, ExposedBulk};
use spinrpc_proto::config_proto::{ConfigReply, ConfigRequest};
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::{CallFailure, SlotId};
use spinrpc_proto::payload::StreamWriter;
use spinrpc_proto::plain::PlainCall;
use spinrpc_proto::rpc::{AcceptStatus, CallHeader, OpaqueAuth, RejectStatus};
use spinrpc_proto::version::{Negotiation, Verdict};
use std::any::Any;
use std::time::Duration;

/// Writes a stream; may be asked to do it again with more room.
pub(crate) type Encode<'e> = &'e dyn Fn(&mut StreamWriter<'_>);

/// Answers calls. Every method returns at once.
pub(crate) trait ReplyOps {
    /// Answers a call.
    fn reply(&self, to: &ReplyTarget<'_>, encode: Encode<'_>);
    /// Answers a call with results and data items.
    fn reply_with(&self, to: &ReplyTarget<'_>, data: ReplyData, encode: Encode<'_>);
    /// Answers a call that its handler dropped.
    fn drop_call(&self, to: &ReplyTarget<'_>);
    /// Answers a call with an RPC error.
    fn reject(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal);
    /// What answers this call later; `None` when too many are out.
    fn defer(&self, to: &ReplyTarget<'_>) -> Option<DeferTicket>;
    /// Counts a call that is answered with a kept reply.
    fn count_replay(&self);
    /// How much time a call has left that named it; zero when that is over.
    fn remaining(&self, to: &ReplyTarget<'_>) -> Option<Duration>;
}

/// A core's reactor as handlers see it. Every method returns at once.
pub(crate) trait CoreOps: ReplyOps {
    /// Starts a call; on success the buffers of `spec` have moved out of it.
    fn call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: Encode<'_>,
    ) -> Result<(), Backpressure>;
    /// Starts a call of an extension.
    fn call_option(
        &self,
        conn: ConnId,
        token: u64,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure>;
    /// Answers a call of an extension; one whose answer is too long is refused.
    fn reply_option(
        &self,
        to: &ReplyTarget<'_>,
        option: &OptionMessage<'_>,
    ) -> Result<(), Backpressure>;
    /// Answers a call of an extension with an error of the transport.
    fn refuse_option(&self, to: &ReplyTarget<'_>);
    /// Counts and logs the panic of a handler.
    ///
    /// # Panics
    /// With the same, if `rpc.on_panic` says so.
    fn take_panic(&self, place: PanicPlace, payload: Box<dyn Any + Send>);
    /// Answers a call whose handler panicked with SYSTEM_ERR, unless it was answered before.
    fn fail_call(&self, to: &ReplyTarget<'_>);
    /// A call of an extension is answered later: by the next.
    fn defer_option(&self);
    /// As [`CoreOps::reply_option`], or without an answer as [`CoreOps::refuse_option`], of a call that
    /// was deferred.
    fn finish_option(
        &self,
        conn: ConnId,
        slot: SlotId,
        xid: Xid,
        answer: Option<&OptionMessage<'_>>,
    ) -> Result<(), Backpressure>;
    /// Gives up the call that carries `token`.
    fn cancel(&self, conn: ConnId, token: u64) -> bool;
    /// Memory for arguments and results of calls to the peer of `conn`.
    fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk>;
    /// The memory of the connection itself, where the configuration allows it.
    fn exposed_bulk(&self, conn: ConnId, bytes: usize) -> Option<ExposedBulk>;
    /// The core's own registered memory.
    fn pool(&self) -> BulkPool;
    /// Calls of `conn` that wait for their replies; `None` when it is down.
    fn in_flight(&self, conn: ConnId) -> Option<usize>;
    /// Forgets a call without an answer: its connection will go.
    fn leave_call(&self, to: &ReplyTarget<'_>);
    /// Begins to close a connection.
    fn close(&self, conn: ConnId);
    /// A client of this connection said its limits: they bind this side from now on. Returns what
    /// the client is told.
    fn configure(&self, conn: ConnId, request: &ConfigRequest) -> ConfigReply;
    /// What the server of this connection is told.
    fn config_request(&self) -> ConfigRequest;
    /// The server said its limits: they bind this side from now on. `None` when it is down.
    fn take_config(&self, conn: ConnId, reply: &ConfigReply) -> Option<Negotiated>;
    /// Asks the control thread for a connection of a client that is known by `instance`;
    /// `Upcalls::on_connected` gets the same number.
    fn connect(&self, address: &str, timeout: Duration, instance: Instance) -> u64;
    /// The peer of the connection asked for under this number may call in reverse.
    fn take_reverse_calls(&self, request: u64);
    /// A client calls in reverse on this accepted connection from now on, inline only if so asked.
    fn begin_reverse(&self, conn: ConnId, is_inline: bool) -> Result<(), NoReverse>;
    /// How a new connection finds its version; before its first call.
    fn negotiate(&self, conn: ConnId, negotiation: Negotiation);
    /// The first call of a connection was answered. `None` when it is down.
    fn settle(&self, conn: ConnId) -> Option<Settled>;
    /// Has the calls of a connection outlive it, as far as their specs say; each is sent again so
    /// many times at most.
    fn make_lasting(&self, conn: ConnId, resends_max: u8);
    /// Asks for `Upcalls::on_retry` after a time.
    fn retry_after(&self, lost: ConnId, after: Duration);
    /// As [`CoreOps::connect`]: for another connection in the place of `lost`.
    fn reconnect(&self, lost: ConnId, address: &str, timeout: Duration, instance: Instance) -> u64;
    /// Sends the held calls of a new connection. `true` when all are out; else
    /// `Upcalls::on_resent` will say so.
    fn resume(&self, conn: ConnId) -> bool;
    /// Ends the held calls of a lost connection, then `Upcalls::on_gone`.
    fn give_up(&self, lost: ConnId, cause: DownCause);
    /// The core's time, from any start.
    fn time(&self) -> Duration;
}

/// Which procedure a call goes to, and who calls.
pub(crate) struct CallTarget<'a> {
    pub(crate) header: &'a HeaderTemplate,
    pub(crate) procedure: Procedure,
    pub(crate) token: u64,
}

/// The RPC header of one client's calls, written once: per call only the XID and the procedure
/// are put in.
pub(crate) struct HeaderTemplate {
    bytes: Vec<u8>,
    /// Program and version, if the header has no credential and can be sent as a plain call.
    plain: Option<(Program, Version)>,
}

impl HeaderTemplate {
    pub(crate) fn new(program: Program, version: Version, credential: OpaqueAuth<'_>) -> Self {
        let (xid, procedure, verifier) = (Xid(0), Procedure(0), OpaqueAuth::NONE);
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        let mut bytes = vec![0; header.buffer_len()];
        header.emit(&mut bytes);
        let plain = (credential == OpaqueAuth::NONE).then_some((program, version));
        Self { bytes, plain }
    }

    /// Program and version, if the calls have no credential.
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<(Program, Version)> {
        self.plain
    }

    /// Writes the header. Its words stand where RFC 5531 section 9 has them: the version is the
    /// fifth, the procedure the sixth.
    #[inline]
    pub(crate) fn write(&self, procedure: Procedure, stream: &mut StreamWriter<'_>) {
        let (before, behind) = self.bytes.split_at(16);
        let (pair, behind) = behind.split_at(8);
        stream.fixed(before);
        stream.u64(u64::from(word_at(pair)) << 32 | u64::from(procedure.0));
        stream.fixed(behind);
    }
}

#[inline]
fn word_at(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

/// A call being answered: where it is and its message, whose chunk lists the reply echoes.
#[derive(Clone, Copy)]
pub(crate) struct ReplyTarget<'a> {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) message: &'a [u8],
    /// The call has no chunk lists, so that the reply has none to echo.
    pub(crate) plain: bool,
}

/// An RPC-level answer that carries no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcRefusal {
    /// The call was understood, its execution not possible.
    Accepted(AcceptStatus),
    /// The call was denied.
    Denied(RejectStatus),
}

/// What the application gives with a call besides its stream: the deadline, the room for its reply,
/// and registered buffers for direct data placement.
#[derive(Debug, Default)]
pub struct CallSpec {
    pub(crate) deadline: Deadline,
    pub(crate) reply_bytes_max: usize,
    pub(crate) arguments: [Option<Bulk>; ITEMS_MAX],
    pub(crate) results: [Option<Bulk>; ITEMS_MAX],
    pub(crate) resend: Resend,
    /// It is to say how much time it has, whatever is configured.
    pub(crate) names_time: bool,
    /// Whether it has buffers, or is to be kept: most calls are plain.
    pub(crate) is_special: bool,
    /// A builder was given more than there are places for: such a spec starts no call.
    pub(crate) overfull: bool,
}

/// What becomes of a call in flight when the connection is lost, on a client that reconnects
/// ([`ConnectOptions::reconnect`](crate::ConnectOptions::reconnect)). Whether the server has
/// executed it cannot be known then (RFC 5531 section 4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resend {
    /// It ends with [`CallError::Disconnected`](crate::CallError::Disconnected), or
    /// [`CallError::NotExecuted`](crate::CallError::NotExecuted) where that is known.
    #[default]
    Never,
    /// It is sent again with the XID it had, to a server that keeps replies by that
    /// ([`Engine::serve_once`](crate::Engine::serve_once)), and so executes it once at most. If
    /// another server has taken its place, or it says that it keeps none, the call ends as with
    /// `Never`, unless the server before has said that it did not execute it, as one that shuts down
    /// gracefully does ([`Engine::drain`](crate::Engine::drain)). Of another implementation's server the caller knows that it keeps replies. So it does of the
    /// program: an engine says that it keeps replies, not for which of its programs, and one served
    /// by [`Engine::serve`](crate::Engine::serve) executes the call again.
    AtMostOnce,
    /// It is sent again: executing it twice does no harm.
    AtLeastOnce,
}

/// When a call is given up.
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

/// Why a call was not started. Nothing was sent, the application keeps its buffers and tries again
/// when replies have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Backpressure {
    /// As many calls are in flight as the server granted credits.
    #[error("no credit: as many calls are in flight as the server grants")]
    NoCredit,
    /// Every buffer, memory key or slot of the connection is lent out.
    #[error("no buffer: everything lent to calls in flight")]
    NoBuffer,
    /// The send queue is full.
    #[error("the send queue is full")]
    SendQueueFull,
    /// The connection is not up yet.
    #[error("still connecting")]
    Connecting,
    /// The connection was lost and another one is being made, or the calls that were in flight are
    /// being sent again, which goes first.
    #[error("the connection was lost and is being made anew")]
    Reconnecting,
    /// The connection is down.
    #[error("the connection is down")]
    Down,
    /// The call needs more memory or segments than can be offered at all: do not try again.
    #[error("the call is too large: {needed_bytes} bytes")]
    TooLarge {
        /// What its encoding needs.
        needed_bytes: usize,
    },
    /// The call needs a Read chunk, and one end lets no RDMA Read be active: do not try again on
    /// this connection.
    #[error("{needed_bytes} bytes do not fit inline, and the connection has no RDMA Read")]
    NoRdmaRead {
        /// Bytes of the message, transport header and data items included.
        needed_bytes: usize,
    },
    /// The connection does not speak version two, which alone has options: do not try again on it.
    #[error("the connection speaks version one, which has no options")]
    NotVersionTwo,
    /// The call needs chunks, and those of its client are to stay inline
    /// ([`ReverseOptions::inline_only`](crate::ReverseOptions::inline_only)): do not try again.
    #[error("the call does not fit inline, and its client is to offer no chunks")]
    InlineOnly,
    /// The stream has another number of data items than the spec, or more chunks or segments than
    /// are configured, or the token is not for applications: do not try again.
    #[error("misuse: {0}")]
    Misuse(&'static str),
}

/// A call on its way to its handler; everything in it comes back to the reactor.
pub(crate) struct CallFrame {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) message: Buf,
    pub(crate) admitted: Admitted,
    /// `None` for a plain call.
    pub(crate) sinks: Option<Box<Sinks>>,
}

/// What of a call's header decides how it is served and answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    /// Length of the transport header at the start of the message.
    pub(crate) header_bytes: u32,
    /// The call has no chunk lists.
    pub(crate) plain: bool,
    /// The RPC message is in the first sink, not behind the header.
    pub(crate) long: bool,
}

/// What a handler did with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// Answered.
    Done,
    /// It will be answered later, perhaps by another thread.
    Deferred,
}

/// What a turn, or a service in it, got done of its own work, and what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many things were done: none is an idle turn, as far as this service goes.
    pub events: usize,
    /// Something is under way whose end no event of the core will announce, so that it has to be
    /// polled for: an idle core may let other threads run, but not sleep.
    pub is_waiting: bool,
}

/// A reply on its way to its handler.
pub(crate) struct ReplyFrame<'a> {
    pub(crate) conn: ConnId,
    pub(crate) token: u64,
    /// The RPC reply.
    pub(crate) stream: &'a [u8],
    /// Bytes placed in each Write chunk.
    pub(crate) placed: &'a [u32],
    /// Buffers that come back to the application.
    pub(crate) buffers: Option<&'a mut ReplyBuffers<'a>>,
    /// It is an RDMA_MSGP.
    pub(crate) padded: Option<&'a mut Padded<'a>>,
}

/// The registered buffers of an ended call.
pub(crate) struct ReplyBuffers<'a> {
    pub(crate) arguments: &'a mut [Option<Bulk>],
    pub(crate) results: &'a mut [Option<Bulk>],
    /// None but of a reply that had to be fetched.
    pub(crate) pulled: PulledChunks<'a>,
}

/// The Read chunks of a reply: position and length of each, and where its bytes are.
#[derive(Debug, Default)]
pub(crate) struct PulledChunks<'a> {
    pub(crate) chunks: &'a [(u32, u32)],
    pub(crate) bulks: &'a mut [Option<Bulk>],
    /// Where the results start in the RPC message.
    pub(crate) base: usize,
}

/// What ends a call without a reply.
#[derive(Clone, Debug)]
pub(crate) enum CallEnd {
    /// Its deadline, its owner, or the responder's transport.
    Failed(CallFailure),
    /// The connection went down.
    Down(DownCause),
    /// So it did, and the server said before that it did not execute the call.
    NotExecuted(DownCause),
}

impl CallEnd {
    /// That of a call whose connection went down.
    pub(crate) fn of(is_unexecuted: bool, cause: &DownCause) -> Self {
        if is_unexecuted { Self::NotExecuted(cause.clone()) } else { Self::Down(cause.clone()) }
    }
}

/// What the reactor tells the api; the api runs the application's handlers. No borrow of the
/// reactor is held meanwhile, so that handlers may call its operations.
pub(crate) trait Upcalls {
    /// Whether [`Upcalls::poll`] has anything to do, in any turn.
    fn polls(&self) -> bool;
    /// Lets services go on with work of their own.
    fn poll(&mut self) -> Progress;
    /// From now on no call is executed, and none answered that comes: they are left by
    /// [`CoreOps::leave_call`].
    fn on_leave(&mut self);
    /// A call arrived.
    fn on_call(&mut self, frame: &mut CallFrame) -> CallOutcome;
    /// A plain call arrived: its arguments.
    fn on_plain_call(
        &mut self,
        to: &ReplyTarget<'_>,
        call: &PlainCall,
        arguments: &[u8],
    ) -> CallOutcome;
    /// A call without chunks arrived: its RPC message.
    fn on_short_call(&mut self, to: &ReplyTarget<'_>, stream: &[u8]) -> CallOutcome;
    /// A plain reply arrived: its results. `false` where nothing has happened, because it is to come by
    /// [`Upcalls::on_reply`].
    fn on_plain_reply(&mut self, conn: ConnId, token: u64, results: &[u8]) -> bool;
    /// A call of an extension arrived. It is answered, left or deferred when this returns.
    fn on_option(&mut self, to: &ReplyTarget<'_>, option: OptionMessage<'_>) -> CallOutcome;
    /// A call was answered by a message of an extension.
    fn on_option_reply(&mut self, conn: ConnId, token: u64, option: OptionMessage<'_>);
    /// A reply arrived.
    fn on_reply(&mut self, frame: ReplyFrame<'_>);
    /// A call ended without a reply.
    fn on_call_failed(&mut self, conn: ConnId, token: u64, end: CallEnd);
    /// A connection request was answered.
    fn on_connected(&mut self, request: u64, result: Result<ConnId, FabricError>);
    /// A connection was accepted, or one that was asked for is ready.
    fn on_up(&mut self, conn: ConnId, peer: Peer, negotiated: Negotiated);
    /// A connection goes that has told something of its responder's versions.
    fn on_verdict(&mut self, conn: ConnId, verdict: Verdict);
    /// A connection went down; its calls have ended before.
    fn on_down(&mut self, conn: ConnId, cause: &DownCause);
    /// Whether the client of this connection, which goes down, wants another one in its place.
    fn wants_another(&mut self, conn: ConnId) -> bool;
    /// The connection of such a client went down; calls that are not held have ended before.
    fn on_lost(&mut self, conn: ConnId, cause: &DownCause);
    /// It is time to try another connection in the place of `lost`.
    fn on_retry(&mut self, lost: ConnId);
    /// Every held call was sent again.
    fn on_resent(&mut self, conn: ConnId);
    /// There will be no connection in the place of `lost`; its calls have ended before.
    fn on_gone(&mut self, lost: ConnId, cause: &DownCause);
}
