//! A call in the hands of its handler.

use super::codec::{Decoder, Encoder};
use super::identity::Identity;
use super::reverse::Reverse;
use super::service::ConnectionId;
use crate::mem::Bulk;
use crate::reactor::in_flight::reply_cache::ReplyKeeper;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{CallOutcome, ReplyTarget, RpcRefusal};
use crate::reactor::types::encoded_stream::{EncodeOnce, once};
use crate::reactor::types::rfc5666::Padded;
use crate::reactor::{Deferred, ReplyData};
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{AcceptStatus, AuthStat, CallHeader, OpaqueAuth, RejectStatus};
use spinrpc_proto::xdr::Reader;
use std::cell::Cell;
use std::rc::Rc;

/// One call, to be answered once: [`reply`](Call::reply), [`reject`](Call::reject) or
/// [`defer`](Call::defer). Dropping it unanswered sends SYSTEM_ERR and counts it
/// (`calls_dropped`).
pub struct Call<'a>(pub(super) &'a CallState<'a>);

pub(super) struct CallEnvironment {
    pub(super) ops: Rc<CoreCell>,
    pub(super) reverse: Rc<Reverse>,
}

/// State of one call. It is owned by the dispatch, so that a call is passed on as a single pointer.
pub(super) struct CallState<'a> {
    pub(super) home: &'a CallEnvironment,
    /// Stores the reply in the cache, if the call is [served once](crate::Engine::serve_once).
    pub(super) keeper: Option<&'a Cell<Option<ReplyKeeper>>>,
    pub(super) serving: &'a Serving<'a>,
    pub(super) called: Called,
    pub(super) credential: Option<OpaqueAuth<'a>>,
    pub(super) arguments: Cell<Option<Arguments<'a>>>,
    pub(super) outcome: Cell<Option<CallOutcome>>,
    /// Set if the call came under RPCSEC_GSS and its verifier has been checked.
    #[cfg(feature = "gss")]
    pub(super) caller: Option<GssCaller<'a>>,
}

/// The user that a call under RPCSEC_GSS comes from.
#[cfg(feature = "gss")]
#[derive(Clone, Copy)]
pub(super) struct GssCaller<'a> {
    pub(super) context: &'a std::sync::Arc<spinrpc_gss::context::Context>,
    pub(super) service: spinrpc_proto::rpc::GssService,
}

impl<'a> CallState<'a> {
    /// Returns the target of an answer that is not a short reply, after taking a slot if the call has none.
    pub(super) fn target(&self) -> Option<ReplyTarget<'a>> {
        self.ops().target(self.serving)
    }

    pub(super) fn ops(&self) -> &'a CoreCell {
        &self.home.ops
    }

    fn take_keeper(&self) -> Option<ReplyKeeper> {
        self.keeper.and_then(Cell::take)
    }

    /// The reply is SYSTEM_ERR.
    #[cold]
    fn leave_unanswered(&self) {
        self.outcome.set(Some(CallOutcome::Done));
        if let Some(to) = self.target() {
            // Before the caller can send it again.
            drop(self.take_keeper());
            self.ops().reject(&to, &RpcRefusal::Dropped);
        }
    }

    #[inline(never)]
    fn reply(&self, data: ReplyData, encode: EncodeOnce<'_>) {
        if let Some(to) = self.target() {
            self.ops().reply(&to, data, self.take_keeper(), encode);
        }
    }
}

/// The fields of a call's RPC header that handlers see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    pub(super) xid: Xid,
    pub(super) program: Program,
    pub(super) version: Version,
    pub(super) procedure: Procedure,
}

impl Called {
    /// The call that came with this XID in its transport header. That of the RPC message is the same, or, under the
    /// drafts of RFC 5666, counts less (section 4.1).
    pub(super) fn of(xid: Xid, header: &CallHeader<'_>) -> Self {
        let CallHeader { program, version, procedure, .. } = *header;
        Self { xid, program, version, procedure }
    }
}

pub(super) struct Arguments<'a> {
    pub(super) stream: &'a [u8],
    pub(super) base: usize,
    /// What came with the stream; `None` for most calls.
    pub(super) beside: Option<BesideArguments<'a>>,
}

/// Read chunks of a call: position and length of each, and where its bytes are.
#[derive(Default)]
pub(super) struct BesideArguments<'a> {
    pub(super) chunks: &'a [(u32, u32)],
    pub(super) bulks: &'a mut [Option<Bulk>],
    /// Set if the call came in an RDMA_MSGP.
    pub(super) padded: Option<Padded>,
}

impl<'a> Arguments<'a> {
    #[inline]
    pub(super) fn new(stream: &'a [u8], base: usize, beside: BesideArguments<'a>) -> Self {
        let has_nothing = beside.chunks.is_empty() && beside.padded.is_none();
        Self { stream, base, beside: (!has_nothing).then_some(beside) }
    }

    /// Arguments behind the RPC header, which `reader` has read.
    #[inline]
    pub(super) fn behind(reader: &Reader<'a>, beside: BesideArguments<'a>) -> Self {
        let padded = beside.padded.map(|padded| padded.behind(reader));
        let beside = BesideArguments { padded, ..beside };
        Self::new(reader.rest(), reader.stream_position(), beside)
    }
}

impl<'a> Call<'a> {
    /// The program called.
    pub fn program(&self) -> Program {
        self.0.called.program
    }

    /// The version called.
    pub fn version(&self) -> Version {
        self.0.called.version
    }

    /// The procedure called.
    #[inline]
    pub fn procedure(&self) -> Procedure {
        self.0.called.procedure
    }

    /// The transaction id, unique among the calls of this connection in progress.
    pub fn xid(&self) -> Xid {
        self.0.called.xid
    }

    /// The user that the call comes from, and how it was authenticated.
    pub fn identity(&self) -> Identity<'a> {
        #[cfg(feature = "gss")]
        if let Some(GssCaller { context, service }) = self.0.caller {
            return Identity::Gss { principal: context.peer(), service };
        }
        Identity::stated(&self.credential())
    }

    /// The caller's credential, as received. For a call under RPCSEC_GSS only the flavor: [`Call::identity`] names
    /// the caller.
    pub fn credential(&self) -> OpaqueAuth<'a> {
        self.0.credential.unwrap_or(OpaqueAuth::NONE)
    }

    /// The connection that the call arrived on.
    pub fn connection(&self) -> ConnectionId {
        ConnectionId(self.0.serving.conn)
    }

    /// The arguments. They can be taken once; after that this is a reader at its end.
    #[inline]
    pub fn args(&mut self) -> Decoder<'a> {
        match self.0.arguments.take() {
            Some(Arguments { stream, base, beside: None }) => {
                Decoder::arguments(stream, base, &[], &mut [])
            }
            Some(Arguments { stream, base, beside: Some(beside) }) => {
                let BesideArguments { chunks, bulks, padded } = beside;
                Decoder::arguments(stream, base, chunks, bulks).padded(padded)
            }
            None => Decoder::exhausted(),
        }
    }

    /// Answers with results. `encode` writes them; it runs once. The answer is sent when the handler returns, or
    /// later in the turn: after reverse calls that the handler starts, and before the connection ends if the handler
    /// closes it.
    #[inline]
    pub fn reply(self, encode: impl FnOnce(&mut Encoder<'_>)) {
        self.0.outcome.set(Some(CallOutcome::Done));
        match self.0.serving.reply(encode) {
            Err(encode) => self.0.reply(ReplyData::new(), &mut once(encode)),
            Ok(written) => self.0.outcome.set(Some(written)),
        }
    }

    /// Answers with results and registered data items, which `encode` names with
    /// [`Encoder::bulk`] in the same order. Each goes straight into the caller's memory if the call
    /// offered a Write chunk for it.
    #[inline]
    pub fn reply_with(self, data: ReplyData, encode: impl FnOnce(&mut Encoder<'_>)) {
        self.0.outcome.set(Some(CallOutcome::Done));
        self.0.reply(data, &mut once(encode));
    }

    /// Answers with an RPC error: [`AcceptStatus::ProcUnavail`], [`AcceptStatus::GarbageArgs`] or
    /// [`AcceptStatus::SystemErr`].
    pub fn reject(self, status: AcceptStatus) {
        self.refuse(&RpcRefusal::Accepted(status));
    }

    /// Denies the call for its credential (RFC 5531 section 9).
    ///
    /// ```
    /// use spinrpc::{AuthFlavor, AuthStat, Call, CallError, Identity, OpaqueAuth, Procedure, RejectStatus, Xid};
    ///
    /// /// Serves members of group 100 only, as far as a machine's word for that is enough.
    /// fn handle(call: Call<'_>) {
    ///     let (Xid(xid), OpaqueAuth { flavor, .. }) = (call.xid(), call.credential());
    ///     match call.identity() {
    ///         _ if call.procedure() == Procedure(0) => call.reply(|_| {}),
    ///         Identity::Sys(user) if user.groups.as_slice().contains(&100) => call.reply(|_| {}),
    ///         _ => {
    ///             eprintln!("call {xid} is denied: {flavor:?}");
    ///             let is_none = flavor == AuthFlavor::None;
    ///             call.deny(if is_none { AuthStat::TooWeak } else { AuthStat::RejectedCred });
    ///         }
    ///     }
    /// }
    ///
    /// /// The caller is to state a user.
    /// fn wants_user(outcome: &CallError) -> bool {
    ///     *outcome == CallError::Rejected(RejectStatus::AuthError(AuthStat::TooWeak))
    /// }
    /// ```
    pub fn deny(self, why: AuthStat) {
        self.refuse(&RpcRefusal::Denied(RejectStatus::AuthError(why)));
    }

    fn refuse(&self, answer: &RpcRefusal) {
        self.0.outcome.set(Some(CallOutcome::Done));
        if let Some(to) = self.0.target() {
            if let Some(keeper) = self.0.take_keeper() {
                keeper.refuse(*answer);
            }
            self.0.ops().reject(&to, answer);
        }
    }

    /// Registered memory of the core for the results of this call, `bytes` long; `None` as
    /// [`Core::bulk`](crate::Core::bulk), and beyond the share of the call's peer. Unlike memory from there it counts
    /// from now on in that share, which holds only so many blocks that others get some: further calls of a peer whose calls hold more wait
    /// before they reach a handler.
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.0.ops().bulk(self.0.serving.conn, bytes)
    }

    /// Takes the call out of the handler, to be answered later or by another thread. Returns `None` if no memory for
    /// its reply is left or too many calls are deferred; the call is then answered with SYSTEM_ERR. Arguments that
    /// are needed later must be copied, or taken with [`Decoder::data`], before this call.
    pub fn defer(self) -> Option<Deferred> {
        self.try_defer().ok()
    }

    /// As [`Call::defer`], for a service whose results can express that it is overloaded.
    ///
    /// # Errors
    /// The call itself comes back, to be answered at once, if no memory for its reply is left, or too many calls are
    /// deferred.
    pub fn try_defer(self) -> Result<Deferred, Self> {
        let deferred = self.0.target().and_then(|to| self.0.ops().defer(&to));
        let Some(mut deferred) = deferred else { return Err(self) };
        if let Some(keeper) = self.0.take_keeper() {
            deferred.keep_by(keeper);
        }
        self.0.outcome.set(Some(CallOutcome::Deferred));
        Ok(deferred)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.0.outcome.get().is_none() {
            self.0.leave_unanswered();
        }
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Call");
        shown.field("called", &self.0.called).field("credential", &self.credential());
        shown.finish_non_exhaustive()
    }
}
