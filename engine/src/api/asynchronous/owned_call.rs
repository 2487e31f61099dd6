//! A call handed to another thread: its state, in recycled memory.

use super::stream::Shared;
use crate::api::call::{Arguments, Call, CallState};
use crate::api::codec::{Decoder, Encoder};
use crate::api::identity::Identity;
use crate::api::service::ConnectionId;
use crate::mem::Bulk;
use crate::reactor::Deferred;
use crate::reactor::ReplyData;
use crate::reactor::types::rfc5666::Padded;
use spinrpc_proto::ids::{Procedure, Xid};
use spinrpc_proto::rpc::{AcceptStatus, AuthFlavor, OpaqueAuth};
use std::sync::Arc;

/// Size of memory that is kept for the arguments of a call; longer arguments get separate memory.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Memory for one call, used again.
#[derive(Default)]
pub(super) struct CallMemory {
    call: Option<Header>,
    arguments: KeptArguments,
    credential: Vec<u8>,
    /// Context of the caller, and the protection of the call.
    #[cfg(feature = "gss")]
    caller: Option<(Arc<spinrpc_gss::context::Context>, spinrpc_proto::rpc::GssService)>,
}

struct Header {
    deferred: Deferred,
    connection: ConnectionId,
    procedure: Procedure,
    xid: Xid,
    flavor: AuthFlavor,
}

/// Arguments as received: the stream, and the data items that came with it. They outlive the call's turn, for a handler
/// that goes on later; see [`Call::keep_args`].
#[derive(Default)]
pub struct KeptArguments {
    stream: Vec<u8>,
    base: usize,
    padded: Option<Padded>,
    chunks: Vec<(u32, u32)>,
    bulks: Vec<Option<Bulk>>,
}

impl CallMemory {
    /// Takes a call over; it comes back if it cannot be deferred.
    pub(super) fn keep<'a>(&mut self, call: Call<'a>) -> Result<(), Call<'a>> {
        let state: &CallState<'a> = call.0;
        let connection = call.connection();
        let OpaqueAuth { flavor, body } = call.credential();
        let (procedure, xid) = (call.procedure(), call.xid());
        #[cfg(feature = "gss")]
        let caller = state.caller.map(|caller| (Arc::clone(caller.context), caller.service));
        let deferred = call.try_defer()?;
        #[cfg(feature = "gss")]
        {
            self.caller = caller;
        }
        self.credential.extend_from_slice(body);
        self.arguments.keep(state.arguments.take());
        self.call = Some(Header { deferred, connection, procedure, xid, flavor });
        Ok(())
    }

    /// Makes it ready for another call. One that was not answered is answered with SYSTEM_ERR.
    fn clear(&mut self) {
        self.call = None;
        self.credential.clear();
        #[cfg(feature = "gss")]
        self.caller.take();
        self.arguments.clear();
    }
}

impl KeptArguments {
    fn keep(&mut self, arguments: Option<Arguments<'_>>) {
        let Some(Arguments { stream, base, beside }) = arguments else { return };
        self.base = base;
        self.stream.extend_from_slice(stream);
        if let Some(beside) = beside {
            self.padded = beside.padded;
            self.chunks.extend_from_slice(beside.chunks);
            self.bulks.extend(beside.bulks.iter_mut().map(Option::take));
        }
    }

    /// The arguments, from the beginning. Data items that [`Decoder::data`] has taken are there for the first reader.
    pub fn args(&mut self) -> Decoder<'_> {
        let (chunks, bulks) = (&self.chunks, &mut self.bulks);
        Decoder::arguments(&self.stream, self.base, chunks, bulks).padded(self.padded)
    }

    fn clear(&mut self) {
        self.stream.clear();
        // One long call must not make all memory long that goes round.
        self.stream.shrink_to(KEPT_BYTES_MAX);
        self.chunks.clear();
        self.bulks.clear();
        self.padded = None;
    }
}

impl std::fmt::Debug for KeptArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptArguments").field("bytes", &self.stream.len()).finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// Takes the arguments out of the call, for a handler that reads them later: a copy of the message, which it allocates,
    /// and the registered memory of data items. [`Call::args`] is a reader at its end after that.
    ///
    /// ```
    /// use spinrpc::{AcceptStatus, Call, KeptArguments};
    ///
    /// /// For `AsyncService::request`: the handler decodes.
    /// fn request(call: &mut Call<'_>) -> Result<KeptArguments, AcceptStatus> {
    ///     Ok(call.keep_args())
    /// }
    ///
    /// fn number(mut arguments: KeptArguments) -> Result<u32, AcceptStatus> {
    ///     arguments.args().u32().map_err(|_| AcceptStatus::GarbageArgs)
    /// }
    /// ```
    pub fn keep_args(&mut self) -> KeptArguments {
        let mut kept = KeptArguments::default();
        kept.keep(self.0.arguments.take());
        kept
    }
}

/// A call that came by a [`CallStream`](crate::CallStream), to be answered once, on any thread and at any time. Dropped
/// unanswered, it is answered with SYSTEM_ERR. An answer to a connection that has gone down meanwhile goes nowhere.
pub struct IncomingCall {
    /// Some until this is dropped.
    kept: Option<Box<CallMemory>>,
    shared: Arc<Shared>,
}

impl IncomingCall {
    /// `kept` has a call.
    pub(super) fn new(kept: Box<CallMemory>, shared: Arc<Shared>) -> Self {
        Self { kept: Some(kept), shared }
    }

    fn header(&self) -> Option<&Header> {
        self.kept.as_ref()?.call.as_ref()
    }

    /// The procedure called.
    pub fn procedure(&self) -> Procedure {
        self.header().map_or(Procedure(0), |header| header.procedure)
    }

    /// The transaction id, unique among the calls of its connection in progress.
    pub fn xid(&self) -> Xid {
        self.header().map_or(Xid(0), |header| header.xid)
    }

    /// The connection that it came by; of two cores, both may have one of this name.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.header().map(|header| header.connection)
    }

    /// The user that the call comes from, and how far that is known.
    pub fn identity(&self) -> Identity<'_> {
        #[cfg(feature = "gss")]
        if let Some((context, service)) = self.kept.as_ref().and_then(|kept| kept.caller.as_ref()) {
            return Identity::Gss { principal: context.peer(), service: *service };
        }
        Identity::stated(&self.credential())
    }

    /// The caller's credential, as it came. Of a call under RPCSEC_GSS the flavor only.
    pub fn credential(&self) -> OpaqueAuth<'_> {
        match (self.header(), &self.kept) {
            (Some(header), Some(kept)) => {
                OpaqueAuth { flavor: header.flavor, body: &kept.credential }
            }
            _ => OpaqueAuth::NONE,
        }
    }

    /// The arguments, from the beginning. Data items that [`Decoder::data`] has taken are there for the first reader.
    pub fn args(&mut self) -> Decoder<'_> {
        self.kept.as_mut().map_or_else(Decoder::exhausted, |kept| kept.arguments.args())
    }

    /// Answers with results. `encode` writes them on this thread; it runs once.
    pub fn reply(self, encode: impl FnOnce(&mut Encoder<'_>)) {
        self.reply_with(ReplyData::new(), encode);
    }

    /// Answers with results and registered data items, as [`Call::reply_with`](crate::Call::reply_with).
    pub fn reply_with(mut self, data: ReplyData, encode: impl FnOnce(&mut Encoder<'_>)) {
        if let Some(deferred) = self.take() {
            // Its memory is free before the caller can learn of it.
            drop(self);
            deferred.reply_with(data, encode);
        }
    }

    /// Answers with an RPC error.
    pub fn reject(mut self, status: AcceptStatus) {
        if let Some(deferred) = self.take() {
            drop(self);
            deferred.reject(status);
        }
    }

    /// As [`Deferred::too_late`](crate::Deferred::too_late).
    pub fn too_late(mut self) {
        if let Some(deferred) = self.take() {
            drop(self);
            deferred.too_late();
        }
    }

    /// As [`Deferred::is_unheard`](crate::Deferred::is_unheard).
    pub fn is_unheard(&self) -> bool {
        self.header().is_some_and(|header| header.deferred.is_unheard())
    }

    fn take(&mut self) -> Option<Deferred> {
        Some(self.kept.as_mut()?.call.take()?.deferred)
    }
}

impl Drop for IncomingCall {
    fn drop(&mut self) {
        if let Some(mut kept) = self.kept.take() {
            kept.clear();
            self.shared.give_back(kept);
        }
    }
}

impl std::fmt::Debug for IncomingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("IncomingCall");
        shown.field("procedure", &self.procedure()).field("xid", &self.xid());
        shown.finish_non_exhaustive()
    }
}
