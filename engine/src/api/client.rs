//! Types that a client holds, and the trait that it implements.

use super::codec::{Decoder, Encoder};
use super::errors::{CallError, ConnectError};
use super::group::Group;
use super::service::ConnectionEvent;
use crate::fabric::{ConnId, DownCause};
use crate::mem::{Bulk, ExposedBulk};
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{CallId, CallTarget, Deadline, HeaderTemplate};
use crate::reactor::types::header_bytes::NESTED;
use crate::reactor::types::rfc5666::Padded;
use crate::reactor::types::rfc5666::PulledChunks;
use crate::reactor::{Backpressure, CallSpec, Resend};
#[cfg(feature = "gss")]
use spinrpc_proto::ids::Xid;
use spinrpc_proto::ids::{Procedure, Program, Version};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rpc::{AUTH_BODY_MAX_BYTES, AuthFlavor, AuthSys, OpaqueAuth};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Number that the application chooses for a call and gets back with the reply, like the `wr_id` of a work request.
/// The engine does not interpret it: any number is valid, and tokens may be equal. [`CallId`] identifies one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The call has ended: there is nothing to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call has ended")]
pub struct CallEnded;

/// Longest results: lengths on the wire have 32 bits.
const RESULTS_BYTES_MAX: usize = u32::MAX as usize;

const IN_AN_ENCODER: Backpressure =
    Backpressure::Misuse("an encoder changes the credential of its call");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    /// Between two attempts to make the first connection.
    Pausing,
    /// Connected, and the first call is out.
    Probing(ConnId),
    Up(ConnId),
    /// This connection was lost.
    Reconnecting(ConnId),
    /// Calls of an earlier connection are being sent again.
    Resending(ConnId),
    Down,
}

impl LinkState {
    /// The connection that calls in flight belong to, or belonged to.
    fn of_calls(self) -> Option<ConnId> {
        match self {
            Self::Up(conn) | Self::Probing(conn) => Some(conn),
            Self::Reconnecting(conn) | Self::Resending(conn) => Some(conn),
            Self::Connecting | Self::Pausing | Self::Down => None,
        }
    }
}

/// RPC header and send path of a client's calls.
struct Route {
    header: HeaderTemplate,
    /// Lane of the connection, while that is up.
    conn_lane: Option<Rc<ConnLane>>,
}

/// State that the clones of a client share with the core's dispatch. Fields that short calls need come first.
#[repr(C)]
pub(super) struct ClientLink {
    pub(super) state: Cell<LinkState>,
    pub(super) ops: Rc<CoreCell>,
    pub(super) is_closed: Cell<bool>,
    /// The call that destroys its security context; the answer is ignored.
    #[cfg(feature = "gss")]
    pub(super) destroying: Cell<Option<Xid>>,
    route: RefCell<Route>,
    pub(super) failure: RefCell<Option<ConnectError>>,
    pub(super) was_up: Cell<bool>,
    reconnects: bool,
    program: Program,
    version: Version,
    /// Some for a client with several connections: this link is none of them, and never up.
    group: OnceCell<Rc<Group>>,
}

impl ClientLink {
    pub(super) fn new(
        ops: Rc<CoreCell>,
        program: Program,
        version: Version,
        reconnects: bool,
    ) -> Rc<Self> {
        Rc::new(Self {
            ops,
            state: Cell::new(LinkState::Connecting),
            failure: RefCell::new(None),
            is_closed: Cell::new(false),
            #[cfg(feature = "gss")]
            destroying: Cell::new(None),
            was_up: Cell::new(false),
            reconnects,
            program,
            version,
            route: RefCell::new(Route {
                header: HeaderTemplate::new(program, version, OpaqueAuth::NONE),
                conn_lane: None,
            }),
            group: OnceCell::new(),
        })
    }

    /// Its client has these connections.
    pub(super) fn join(&self, group: Rc<Group>) {
        // Once, when the client is made.
        let _ = self.group.set(group);
    }

    /// Makes a link that is down ready for another connection.
    pub(super) fn begin(&self) {
        self.state.set(LinkState::Connecting);
        self.is_closed.set(false);
        self.was_up.set(false);
        self.failure.take();
        #[cfg(feature = "gss")]
        self.destroying.take();
    }

    pub(super) fn up(
        ops: Rc<CoreCell>,
        program: Program,
        version: Version,
        conn: ConnId,
    ) -> Rc<Self> {
        let link = Self::new(ops, program, version, false);
        link.go_up(conn);
        link
    }

    /// Marks the connection as up; calls are accepted from now on.
    pub(super) fn go_up(&self, conn: ConnId) {
        self.route.borrow_mut().conn_lane = self.ops.lane_of(conn);
        self.state.set(LinkState::Up(conn));
        if !self.was_up.replace(true) {
            self.failure.take();
        }
    }

    /// The connection that calls in flight belong to, or belonged to.
    pub(super) fn conn_of_calls(&self) -> Option<ConnId> {
        self.state.get().of_calls()
    }

    fn in_flight(&self) -> usize {
        self.conn_of_calls().and_then(|conn| self.ops.in_flight(conn)).unwrap_or(0)
    }

    /// The connection, while it is up.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self.state.get() {
            LinkState::Up(conn) => Some(conn),
            _ => None,
        }
    }

    /// The connection of the reply that the handler has, while it is up.
    pub(super) fn conn_of_reply(&self) -> Option<ConnId> {
        self.group.get().map_or_else(|| self.conn(), |group| group.conn_of_reply())
    }

    pub(super) fn lose(&self, state: LinkState) {
        // Already borrowed if an encoder drops its own core.
        if let Ok(mut route) = self.route.try_borrow_mut() {
            route.conn_lane = None;
        }
        self.state.set(state);
    }

    pub(super) fn called(&self) -> (Program, Version) {
        (self.program, self.version)
    }

    /// Starts a call without arguments on a connection that is not up yet. By value where that can be: a connection that
    /// is never used so has no page of its buffers.
    #[cold]
    pub(super) fn call_before_up(
        &self,
        conn: ConnId,
        procedure: Procedure,
        token: u64,
        spec: &mut CallSpec,
    ) -> Result<CallId, Backpressure> {
        let Ok(route) = self.route.try_borrow_mut() else { return Err(NESTED) };
        let target = CallTarget { header: &route.header, procedure, token };
        self.ops.start_call((conn, &self.ops.lane_of(conn)), target, spec, |_| {}, |_| {})
    }

    #[inline]
    fn call(
        &self,
        (conn, procedure, token): (ConnId, Procedure, u64),
        spec: &mut CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
        explain: impl FnOnce(&mut Result<CallId, Backpressure>),
    ) -> Result<CallId, Backpressure> {
        let Ok(route) = self.route.try_borrow_mut() else { return Err(NESTED) };
        let target = CallTarget { header: &route.header, procedure, token };
        self.ops.start_call((conn, &route.conn_lane), target, spec, encode, explain)
    }

    #[inline(always)]
    fn conn_for_call(&self) -> Result<ConnId, Backpressure> {
        match self.state.get() {
            LinkState::Up(conn) if !self.is_closed.get() => Ok(conn),
            other => Err(self.refusal(other)),
        }
    }

    /// The connection for the next call, and its link: this one, unless its client has several.
    fn pick(&self) -> Option<(&Self, ConnId)> {
        match self.group.get() {
            None => Some((self, self.conn()?)),
            Some(group) => group.pick().filter(|_| !self.is_closed.get()),
        }
    }

    /// A call of a client with several connections. Apart from those with one, whose way is not to be longer, and compiled
    /// once. `None` without one that is up.
    #[inline(never)]
    fn call_in_group(
        &self,
        (procedure, token): (Procedure, u64),
        spec: &mut CallSpec,
        encode: &mut dyn FnMut(&mut Encoder<'_>),
    ) -> Option<Result<CallId, Backpressure>> {
        self.group.get()?;
        let (link, conn) = self.pick()?;
        let call = (conn, procedure, token);
        Some(link.call(call, spec, encode, |outcome| link.explain(outcome)))
    }

    #[cold]
    fn refusal(&self, state: LinkState) -> Backpressure {
        if let Some(group) = self.group.get() {
            return match group.is_down() || self.is_closed.get() {
                true => Backpressure::Down,
                false if self.was_up.get() => Backpressure::Reconnecting,
                false => Backpressure::Connecting,
            };
        }
        match state {
            LinkState::Down => Backpressure::Down,
            // The application has closed it.
            LinkState::Up(_) => Backpressure::Down,
            _ if !self.was_up.get() => Backpressure::Connecting,
            // Another security context is being established.
            #[cfg(feature = "gss")]
            LinkState::Probing(_) if !self.is_closed.get() && !self.reconnects => {
                Backpressure::Connecting
            }
            _ => self.refusal_when_down(),
        }
    }

    /// Distinguishes a connection that is down permanently from one that another connection will replace.
    #[inline(always)]
    fn explain(&self, outcome: &mut Result<CallId, Backpressure>) {
        if let Err(Backpressure::Down) = outcome {
            *outcome = Err(self.refusal_when_down());
        }
    }

    /// The connection is going down, even if the state does not show it yet.
    #[cold]
    fn refusal_when_down(&self) -> Backpressure {
        match self.reconnects && !self.is_closed.get() {
            true => Backpressure::Reconnecting,
            false => Backpressure::Down,
        }
    }

    /// Fails inside an encoder, because the header of its call is already written.
    fn set_credential(&self, credential: OpaqueAuth<'_>) -> Result<(), Backpressure> {
        let header = HeaderTemplate::new(self.program, self.version, credential);
        self.route.try_borrow_mut().map_err(|_| IN_AN_ENCODER)?.header = header;
        Ok(())
    }

    fn is_in_encoder(&self) -> bool {
        self.route.try_borrow_mut().is_err()
    }

    fn reconnect(&self) {
        if let LinkState::Up(conn) | LinkState::Resending(conn) = self.state.get() {
            if self.reconnects {
                self.state.set(LinkState::Reconnecting(conn));
            }
            self.ops.close(conn);
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.set(true);
        match self.state.get() {
            LinkState::Up(conn) | LinkState::Probing(conn) | LinkState::Resending(conn) => {
                #[cfg(feature = "gss")]
                self.destroying.set(self.ops.destroy_context(conn, self.called()));
                self.ops.close(conn);
            }
            // Down, or going down.
            LinkState::Reconnecting(lost) => self.ops.give_up(lost, DownCause::Local),
            // A connection that a thread still delivers is closed on arrival.
            LinkState::Connecting | LinkState::Pausing => {
                self.state.set(LinkState::Down);
                self.ops.set_alarm(Duration::ZERO);
            }
            LinkState::Down => {}
        }
    }
}

/// Makes calls to one program over one connection, over successive connections
/// ([`ConnectOptions::reconnect`](crate::ConnectOptions::reconnect)), or over several at a time
/// ([`ConnectOptions::connections`](crate::ConnectOptions::connections)). A client belongs to its core's thread; clones
/// are the same client. No method blocks.
#[derive(Clone)]
pub struct Client(pub(super) Rc<ClientLink>);

impl Client {
    /// Starts a call. Its handler gets `token` with the reply, in a later turn of the core. Until then
    /// [`Client::cancel`] can cancel the call by its id.
    ///
    /// `encode` writes the arguments. It runs at most once, and may have run even if the call is then refused, so
    /// wait for a reply before you encode long arguments again. Neither `encode` nor the `Drop` of values it owns can
    /// start a call. Registered buffers move out of `spec` into the call, so the spec can be reused.
    ///
    /// # Errors
    /// [`Backpressure`]: nothing was sent, and the spec keeps its buffers.
    #[inline]
    pub fn call(
        &self,
        procedure: Procedure,
        token: Token,
        spec: &mut CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<CallId, Backpressure> {
        let refused = match self.0.conn_for_call() {
            Ok(conn) => {
                let call = (conn, procedure, token.0);
                return self.0.call(call, spec, encode, |outcome| self.0.explain(outcome));
            }
            Err(refused) => refused,
        };
        let mut encode = Some(encode);
        let mut encode = |to: &mut Encoder<'_>| {
            if let Some(encode) = encode.take() {
                encode(to);
            }
        };
        let called = self.0.call_in_group((procedure, token.0), spec, &mut encode);
        called.unwrap_or(Err(refused))
    }

    /// Sets the user of all later calls (AUTH_SYS, RFC 5531 appendix A); `None` selects AUTH_NONE.
    ///
    /// # Errors
    /// [`Backpressure::Misuse`] if the user does not fit into a credential, or inside the encoder of a call; nothing
    /// changes then.
    pub fn set_auth_sys(&self, user: Option<&AuthSys<'_>>) -> Result<(), Backpressure> {
        self.set_credential(credential_of(user, &mut [0; AUTH_BODY_MAX_BYTES])?)
    }

    pub(super) fn set_credential(&self, credential: OpaqueAuth<'_>) -> Result<(), Backpressure> {
        let Some(group) = self.0.group.get() else { return self.0.set_credential(credential) };
        if group.links().any(ClientLink::is_in_encoder) {
            return Err(IN_AN_ENCODER);
        }
        group.links().try_for_each(|link| link.set_credential(credential))
    }

    pub(super) fn is_group(&self) -> bool {
        self.0.group.get().is_some()
    }

    /// Memory for arguments and results of this connection, `bytes` long. It is not cleared: it still contains the
    /// bytes of its previous user. If the server can write the connection's memory at any time (shared memory, iWARP,
    /// RDMA without memory windows), or with `bulk = copy`, it is private memory of the core, and its bytes are
    /// copied to and from the connection's memory; [`Client::exposed_bulk`] avoids that copy. Returns `None` while
    /// not connected, if `bytes` exceeds the longest block, or if all blocks are lent out.
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        let (_, conn) = self.0.pick()?;
        self.0.ops.conn_bulk(conn, bytes)
    }

    /// As [`Client::bulk`], in memory of the connection, which the server can write at any time: there is no copy,
    /// and no reference to the bytes. Also returns `None` if `mem.bulk` is not `lent`, and for a client with several
    /// connections, whose calls may go by any of them.
    pub fn exposed_bulk(&self, bytes: usize) -> Option<ExposedBulk> {
        self.0.ops.exposed_bulk(self.0.conn()?, bytes)
    }

    /// Cancels a call: its handler gets [`CallError::Cancelled`] within 16 turns, and in the next one if no message
    /// arrives. The server may still execute the call; its buffers stay with the connection until the server answers.
    /// A call that waits for another connection ends at once.
    ///
    /// # Errors
    /// [`CallEnded`]: its handler was already notified, or is notified in this turn. A call whose deadline has
    /// expired, or that was cancelled, has ended.
    pub fn cancel(&self, call: CallId) -> Result<(), CallEnded> {
        let link = match self.0.group.get() {
            None => &*self.0,
            Some(group) => group.link_of(call).ok_or(CallEnded)?,
        };
        let conn = link.conn_of_calls().ok_or(CallEnded)?;
        if link.ops.cancel(conn, call) { Ok(()) } else { Err(CallEnded) }
    }

    pub(super) fn is_connecting(&self) -> bool {
        match self.0.group.get() {
            None => self.0.state.get() == LinkState::Connecting,
            Some(group) => group.is_connecting(),
        }
    }

    /// Returns true if calls can be started: with several connections, if one is up.
    pub fn is_up(&self) -> bool {
        self.0.group.get().map_or_else(|| self.0.conn().is_some(), |group| group.is_up())
    }

    /// Reason why the last attempt to make the first connection failed, also while further ones follow
    /// ([`Reconnect::retry_first`](crate::Reconnect::retry_first)). `None` before that, and once it has been up.
    pub fn failure(&self) -> Option<ConnectError> {
        self.0.failure.borrow().clone()
    }

    /// Number of calls sent whose replies have not arrived, including those that wait for another connection.
    pub fn in_flight(&self) -> usize {
        let of_group = |group: &Rc<Group>| group.links().map(ClientLink::in_flight).sum();
        self.0.group.get().map_or_else(|| self.0.in_flight(), of_group)
    }

    /// Treats the connection, or all of several, as lost: a client with reconnect opens another one, any other client goes
    /// down. For applications that detect an unresponsive server before the fabric does.
    pub fn reconnect(&self) {
        match self.0.group.get() {
            None => self.0.reconnect(),
            Some(group) => group.links().for_each(ClientLink::reconnect),
        }
    }

    /// Closes the connection, or all of several. The handler gets [`ConnectionEvent::Down`] in a later turn.
    pub fn close(&self) {
        match self.0.group.get() {
            None => self.0.close(),
            Some(group) => {
                self.0.is_closed.set(true);
                group.close();
            }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("state", &self.0.state.get()).finish_non_exhaustive()
    }
}

impl CallSpec {
    /// Creates a spec with the configured deadline, results of unknown length and no buffers. Such a call offers memory
    /// for `rpc.max_read_bytes` of results, so that a server never executes a call whose results it cannot return. That
    /// memory limits the calls in flight, and offering it takes time: [`CallSpec::short`] or
    /// [`CallSpec::reply_bytes_max`] avoids both. Stubs give the length that their description has. Calls in reverse offer
    /// none ([`ReverseOptions::new`](crate::ReverseOptions::new)).
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`CallSpec::new`], for results of at most [`CallSpec::SHORT_RESULTS_BYTES_MAX`]: their reply fits into any
    /// message, so that the call needs no memory for it (under RPCSEC_GSS, into messages of 2 KiB). These calls are the fastest. If the results are longer after
    /// all, see [`CallError::Rdma`].
    pub fn short() -> Self {
        Self::new().reply_bytes_max(Self::SHORT_RESULTS_BYTES_MAX)
    }

    /// Ends the call after `time`: its handler gets [`CallError::TimedOut`].
    #[must_use]
    pub fn deadline(mut self, time: Duration) -> Self {
        self.deadline = Deadline::After(time);
        self
    }

    /// Waits without a time limit.
    #[must_use]
    pub fn no_deadline(mut self) -> Self {
        self.deadline = Deadline::None;
        self
    }

    /// Sets the behavior of the call when the connection is lost; [`Resend::Never`] by default. A call that can be
    /// sent again keeps its arguments in a block of the core's memory until it ends (`mem.arena_mib`).
    #[must_use]
    pub fn resend(mut self, resend: Resend) -> Self {
        self.resend = resend;
        self.is_special |= resend != Resend::Never;
        self
    }

    /// Longest results in bytes, without those in `result_into`. Results that may not fit inline get a Reply chunk;
    /// the server cannot send results that exceed both this value and the inline size. Values above `u32::MAX` count
    /// as `u32::MAX`, the largest that the protocol can express. Without this, see [`CallSpec::new`]; of a call with
    /// `result_into`, the other results must then fit inline.
    #[must_use]
    pub fn reply_bytes_max(mut self, bytes: usize) -> Self {
        self.reply_bytes_max = bytes.min(RESULTS_BYTES_MAX);
        self.is_reply_assumed = false;
        self
    }

    /// Sets the longest results of this call, in bytes, unless [`CallSpec::reply_bytes_max`] has set them; `None` if the
    /// length is unknown. For stubs, which know it from a description. The call offers memory for `rpc.max_read_bytes`
    /// at most, however long the results may be.
    #[inline]
    pub fn assume_reply_bytes_max(&mut self, bytes: Option<usize>) -> &mut Self {
        if self.is_reply_assumed {
            self.reply_bytes_max = bytes.unwrap_or(usize::MAX);
        }
        self
    }

    /// Adds a data item of the arguments; the stream names it with [`Encoder::bulk`]. It is sent inline if it fits;
    /// otherwise the server fetches it: directly from memory of the connection, from other memory through a copy
    /// (counted in `copies`). At most four items: a spec with more starts no call ([`Backpressure::Misuse`]).
    #[must_use]
    pub fn argument(mut self, bulk: Bulk) -> Self {
        self.add_argument(bulk);
        self
    }

    /// Adds a buffer in which the server places a data item of the results; its length is the available room. Items and
    /// buffers pair in order. An item without bytes leaves its buffer to the next one (RFC 8166; by the older documents the
    /// buffer stays unused), so that each buffer needs room for every item from its own on.
    /// The server writes directly into memory of the connection, into other memory through a copy. At most four
    /// buffers: a spec with more starts no call ([`Backpressure::Misuse`]).
    #[must_use]
    pub fn result_into(mut self, bulk: Bulk) -> Self {
        self.add_result_into(bulk);
        self
    }

    /// As [`CallSpec::argument`], from memory of [`Client::exposed_bulk`]. The server fetches it, however short it
    /// is. The rest of the arguments must fit inline, and the call cannot be sent again ([`CallSpec::resend`]);
    /// otherwise it is not started ([`Backpressure::Misuse`]).
    #[must_use]
    pub fn exposed_argument(self, bulk: ExposedBulk) -> Self {
        self.argument(bulk.into_bulk())
    }

    /// As [`CallSpec::result_into`], into memory of [`Client::exposed_bulk`].
    /// [`Decoder::exposed_data`] or [`Reply::take_exposed_result`] gives it back.
    #[must_use]
    pub fn exposed_result_into(self, bulk: ExposedBulk) -> Self {
        self.result_into(bulk.into_bulk())
    }

    /// As [`CallSpec::exposed_argument`], for a spec that is reused.
    pub fn add_exposed_argument(&mut self, bulk: ExposedBulk) -> &mut Self {
        self.add_argument(bulk.into_bulk())
    }

    /// As [`CallSpec::exposed_result_into`], for a spec that is reused.
    pub fn add_exposed_result_into(&mut self, bulk: ExposedBulk) -> &mut Self {
        self.add_result_into(bulk.into_bulk())
    }

    /// As [`CallSpec::argument`], for a spec that is reused.
    pub fn add_argument(&mut self, bulk: Bulk) -> &mut Self {
        self.is_special = true;
        self.overfull |= put(&mut self.arguments, bulk).is_none();
        self
    }

    /// As [`CallSpec::result_into`], for a spec that is reused.
    pub fn add_result_into(&mut self, bulk: Bulk) -> &mut Self {
        self.is_special = true;
        self.overfull |= put(&mut self.results, bulk).is_none();
        self
    }
}

/// Stores the buffer in the first free place; `None` if there is none.
fn put(places: &mut [Option<Bulk>; ITEMS_MAX], bulk: Bulk) -> Option<()> {
    let place = places.iter_mut().find(|place| place.is_none())?;
    *place = Some(bulk);
    Some(())
}

/// Receives the replies of one client, on its core's thread.
pub trait ReplyHandler {
    /// Called when a call has ended. The handler may start calls with the [`Client`] it was made for.
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>);

    /// Called when the connection came up, was lost, went down, or failed to come up.
    fn on_event(&mut self, event: &ConnectionEvent) {
        let _ = event;
    }
}

/// A successful reply.
#[derive(Debug)]
pub struct Reply<'a> {
    pub(super) stream: &'a [u8],
    /// `None` for most replies.
    pub(super) beside: Option<BesideReply<'a>>,
}

/// Chunks and buffers of a reply that has any.
#[derive(Debug)]
pub(super) struct BesideReply<'a> {
    /// Bytes placed in each Write chunk.
    pub(super) placed: &'a [u32],
    pub(super) arguments: &'a mut [Option<Bulk>],
    pub(super) results: &'a mut [Option<Bulk>],
    /// Set if the reply came in an RDMA_MSGP.
    pub(super) padded: Option<Padded>,
    /// Its Read chunks, if it had any.
    pub(super) pulled: Option<&'a mut PulledChunks<'a>>,
}

impl<'a> Reply<'a> {
    /// The results. They can be taken once; after that this is a reader at its end.
    #[inline]
    pub fn results(&mut self) -> Decoder<'a> {
        let stream = std::mem::take(&mut self.stream);
        match &mut self.beside {
            None => Decoder::results(stream, &NOTHING_PLACED, &mut []),
            Some(beside) => beside.results(stream),
        }
    }

    /// Takes the next argument buffer of the call, for use in another call. Buffers that are not taken go back to the
    /// connection.
    pub fn take_argument(&mut self) -> Option<Bulk> {
        take_private(self.beside.as_mut()?.arguments)
    }

    /// Takes the next result buffer, if [`Reply::results`] was not called. Its length is the number of bytes placed.
    pub fn take_result(&mut self) -> Option<Bulk> {
        take_private(self.beside.as_mut()?.results)
    }

    /// As [`Reply::take_argument`], for buffers of either kind.
    pub fn take_exposed_argument(&mut self) -> Option<ExposedBulk> {
        take_any(self.beside.as_mut()?.arguments)
    }

    /// As [`Reply::take_result`], for buffers of either kind.
    pub fn take_exposed_result(&mut self) -> Option<ExposedBulk> {
        take_any(self.beside.as_mut()?.results)
    }
}

/// Nothing placed in any Write chunk that a call offered.
pub(super) static NOTHING_PLACED: [u32; ITEMS_MAX] = [0; ITEMS_MAX];

impl<'a> BesideReply<'a> {
    fn results(&mut self, stream: &'a [u8]) -> Decoder<'a> {
        let results = std::mem::take(&mut self.results);
        let results = match self.pulled.take() {
            None => Decoder::results(stream, self.placed, results),
            Some(pulled) => {
                let pulled = std::mem::take(pulled);
                Decoder::pulled_results(stream, self.placed, results, pulled)
            }
        };
        results.padded(self.padded.take())
    }
}

/// Takes the next buffer that no peer can write.
pub(super) fn take_private(buffers: &mut [Option<Bulk>]) -> Option<Bulk> {
    buffers.iter_mut().find_map(|buffer| buffer.take_if(|bulk| !bulk.is_exposed()))
}

pub(super) fn take_any(buffers: &mut [Option<Bulk>]) -> Option<ExposedBulk> {
    buffers.iter_mut().find_map(Option::take).map(ExposedBulk::new)
}

/// The credential of a user, in `body`.
pub(super) fn credential_of<'a>(
    user: Option<&AuthSys<'_>>,
    body: &'a mut [u8; AUTH_BODY_MAX_BYTES],
) -> Result<OpaqueAuth<'a>, Backpressure> {
    const TOO_LONG: Backpressure = Backpressure::Misuse("the credential is too long");
    let Some(user) = user else { return Ok(OpaqueAuth::NONE) };
    let length = user.emit(body).map_err(|_| TOO_LONG)?;
    Ok(OpaqueAuth { flavor: AuthFlavor::Sys, body: &body[..length] })
}
