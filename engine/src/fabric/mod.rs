//! The narrow waist between the reactor and a driver.
//!
//! A driver moves bytes and knows nothing of RPC. It may use `mem`, `sync` and `sys`; the reactor
//! is its only caller. [`Fabric`] is the data plane, owned by one core: nothing in it blocks or
//! allocates. [`Connector`] is the control plane: it may block, and runs on the control thread.

mod address;
mod any;
pub mod capture;
#[cfg(all(test, not(loom)))]
mod conformance;
mod ends;
mod origin;
mod peer;
#[cfg(any(feature = "sim", feature = "verbs"))]
mod send_queue;
pub mod shm;
mod short;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wr;

pub use address::{Address, AddressError, RDMA_PORT, RdmaAddress, check_address};
pub(crate) use any::{AnyConnector, AnyEndpoint, AnyFabric};
pub use ends::{Alone, Ends, NextShort, ShortEnds};
pub use origin::Origin;
pub use peer::Peer;
pub use short::{Head, LINE_PAIRS, LineHead, LongHead, SHORT_BYTES_MAX, Short};
pub use wr::{
    Completion, CompletionKind, Completions, ConnId, Full, QpId, Received, RemoteSlice, SendWr,
    WrError, WrId,
};

use crate::mem::{Buf, Bulk, BulkPool, Lease, Region, Slab};
use crate::sys::clock::{Clock, Ticks};
use crate::sys::random::Random;
use std::sync::Arc;
use std::time::Duration;

/// Capabilities of a driver, known before the first connection; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Longest message of one Send.
    pub message_bytes_max: usize,
    /// Longest transfer of one RDMA Read or Write.
    pub transfer_bytes_max: usize,
    /// RDMA Reads one queue pair may have outstanding (ORD).
    pub reads_max: u16,
    /// Work requests the send queue of one queue pair holds.
    pub send_queue_depth: u16,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Buffers one receive may chain: 1, or 2 with a tail ([`Buf::chain`]).
    pub recv_buffers_max: u8,
    /// Send With Invalidate is understood by this driver.
    pub remote_invalidate: bool,
}

/// Rights a remote peer gets on exposed memory: exactly one, never both (RFC 5042 section 6.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The peer may RDMA Read: memory behind a Read chunk.
    RemoteRead,
    /// The peer may RDMA Write: memory behind a Write or Reply chunk.
    RemoteWrite,
}

/// A driver's data plane. One core owns it; no method blocks, allocates or makes a system call,
/// except where it says so.
pub trait Fabric: Sized + 'static {
    /// A connection that the [`Connector`] made and no core has adopted yet. Dropping it closes it.
    type Endpoint: Endpoint;

    /// True if short messages are sent by value ([`Ends`]), and perhaps come so ([`Fabric::take_shorts`]).
    fn has_shorts(&self) -> bool {
        false
    }

    /// Capabilities of this driver.
    fn caps(&self) -> &Caps;

    /// The clock of the cores on this driver. A driver that simulates time has a separate one, in
    /// whose ticks [`Fabric::now`] counts.
    fn clock(&self) -> Clock {
        Clock::shared()
    }

    /// True if [`Fabric::now`] does not simply read that clock.
    fn simulates_time(&self) -> bool {
        false
    }

    /// Now, in ticks of [`Fabric::clock`], which the caller keeps and gives back. Time is the
    /// driver's, so that simulated time costs the others nothing: for a driver that leaves this
    /// alone it is the counter, read in place.
    #[inline(always)]
    fn now(&self, clock: &Clock) -> Ticks {
        clock.now()
    }

    /// Moves completions into `out`, at most as many as it has room for, and returns their number.
    fn poll(&mut self, out: &mut Completions) -> usize;

    /// Gives `buf` to the receive queue; a [`CompletionKind::Received`] gives it back. A chained
    /// buffer ([`Buf::chain`], where [`Caps::recv_buffers_max`] allows two) takes a message as long
    /// as both: bytes that its head does not hold are placed at the start of its tail
    /// ([`Buf::set_received`]).
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>>;

    /// Makes the memory of a receive known to the device, and with it that of all others in its region, before the first
    /// one is posted: [`Fabric::post_recv`] ends a connection for which it cannot do so (slow path: system call).
    ///
    /// # Errors
    /// The device takes no more memory. The connection is as it was.
    fn prepare_recv(&mut self, _qp: QpId, _buf: &Buf) -> Result<(), FabricError> {
        Ok(())
    }

    /// True if receives of several connections may come from one pool. A device needs them registered with each connection.
    fn shares_receives(&self) -> bool {
        true
    }

    /// Takes back a receive that is posted, or was used for a short message; `None` if the driver can give none back,
    /// as a device cannot.
    fn withdraw_recv(&mut self, _qp: QpId) -> Option<Buf> {
        None
    }

    /// From now on messages of at most [`SHORT_BYTES_MAX`] bytes that invalidate no key come by
    /// value ([`Fabric::next_short`]), where the driver can: each as if its receive were posted
    /// again at once. The receives are not chained. The caller then asks for short messages before
    /// each poll: a driver may then collect the events of the poll. `false` where the driver
    /// cannot.
    fn take_shorts(&mut self) -> bool {
        false
    }

    /// Takes a short message of the next connection on which one waits; its [`Ends`] take those behind it. `None` ends
    /// the scan of this turn. Messages that arrive later, follow a long message, or end a silence are delivered by the
    /// next poll or a later turn.
    #[inline(always)]
    fn next_short(&mut self, _message: &mut Short) -> Option<NextShort> {
        None
    }

    /// Ends the scan of this turn as a poll does, where that turn is to have none. `false`, and nothing has happened,
    /// where something waits for a poll that the driver knows of already; if the turn is idle, as it had no short
    /// message, also where a peer has rung.
    #[inline(always)]
    fn skip_poll(&mut self, _is_idle: bool) -> bool {
        false
    }

    /// Looks for what [`Fabric::skip_poll`] may not know of, such as silent peers. `false` if a poll is due. To be called
    /// at least once in a few turns that skip it.
    fn rests(&mut self) -> bool {
        true
    }

    /// The ends of a connection; `None` where messages do not go by value.
    fn ends(&self, _qp: QpId) -> Option<Ends> {
        None
    }

    /// The receive of the last short message of a connection, for a message that is to stay: once, also of
    /// a connection that has gone down meanwhile. Not posted any more.
    fn receive_of_short(&mut self, _qp: QpId) -> Option<Buf> {
        None
    }

    /// As [`Ends::send`], of a message of any length the driver takes, which it copies now.
    fn send_copied(&mut self, _qp: QpId, _message: &[u8]) -> bool {
        false
    }

    /// Queues one work request. Requests of a queue pair take effect in the order of posting: data
    /// that a Write placed are there when a later Send arrives (RFC 5666 section 2).
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>>;

    /// Makes everything posted visible: receives first, then sends, one doorbell for each queue. A few receives, at most
    /// [`RECVS_BEHIND_MAX`](crate::mem::budget::RECVS_BEHIND_MAX) of a queue pair, may come behind the sends.
    /// Work requests that find no room at the peer stay queued, and later calls go on with them.
    fn flush(&mut self);

    /// Number of further work requests that `post` takes on this queue pair now.
    fn send_room(&self, qp: QpId) -> usize;

    /// True if a posted request is still at this end, for lack of room at the peer or in the
    /// device: [`Fabric::close`] would take it back. A request that has left arrives before the
    /// end.
    fn has_unsent(&self, qp: QpId) -> bool;

    /// Takes over a new connection (slow path: may allocate and map).
    fn adopt(&mut self, endpoint: Self::Endpoint) -> Result<QpId, FabricError>;

    /// Memory for the messages of a connection that is registered already; `None` if the driver has
    /// none, or not so much: then the caller maps its own (slow path, when a connection opens).
    fn message_memory(&mut self, _qp: QpId, _bytes: usize) -> Option<Region> {
        None
    }

    /// The core's private memory, before the first connection: a driver that registers memory makes
    /// it known to the device with each connection, and may take the memory that it exposes from
    /// there.
    fn lend(&mut self, _pool: &BulkPool) {}

    /// The pool that must provide the memory that RDMA Reads of this connection fill; `None`: any
    /// registered memory will do. Over iWARP a Read tells the peer a key of that memory, which lets
    /// the peer write there (RFC 5040 section 4.4), so it must be memory that this peer may spoil.
    fn read_sinks(&self, _qp: QpId) -> Option<&BulkPool> {
        None
    }

    /// The memory that [`Fabric::bulk`] takes from, for observers of the core, if the connection
    /// has a separate arena; `None` if it is the core's.
    fn connection_memory(&self, _qp: QpId) -> Option<&BulkPool> {
        None
    }

    /// Ends a connection. Every posted work request completes with [`WrError::Flushed`] in later
    /// polls, then one [`CompletionKind::Down`] is the last completion of this queue pair.
    fn close(&mut self, qp: QpId);

    /// Memory of this connection that may be exposed to its peer, its length set to `bytes`; `None`
    /// when all blocks are too short or all are lent out. A peer that has it mapped
    /// ([`Bulk::is_exposed`]) reaches the memory without a key, too: that peer itself checks the
    /// rights of a key.
    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk>;

    /// Lets the peer reach the leased bytes with one right, under a key never used before.
    /// The exposure holds the lease until [`Fabric::revoke`] or a remote invalidation ends it.
    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError>;

    /// Ends an exposure, once for each key: one that the peer has invalidated keeps its place until then. A key that is
    /// dead already is fine. Keys that were made since the last flush,
    /// which no peer can know, are dead at once if they are revoked in the opposite order, with
    /// nothing else posted in between.
    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked;

    /// Redirects bytes that this side fetches for the peer, in the place of an RDMA Write, to
    /// `home` and not to the memory that is exposed under `handle`, which is as long. False,
    /// without the lease, where the driver never does that, or this peer. The peer may write the
    /// exposed memory all the same: [`Fabric::home_bytes`] tells.
    fn set_home(&mut self, _qp: QpId, _handle: u32, _home: Lease) -> bool {
        false
    }

    /// Number of bytes under this key, from the first on without a gap, that are where
    /// [`Fabric::set_home`] said; `None` if there was nothing to fetch. Known until
    /// [`Fabric::revoke`], whichever end has killed the key.
    fn home_bytes(&self, _qp: QpId, _handle: u32) -> Option<u32> {
        None
    }

    /// Sleeps until something may have arrived, the waker was used, or `at_most` is over (system
    /// call). Returns at once when there is work that would be missed.
    fn park(&mut self, at_most: Duration);

    /// Wakes this core from [`Fabric::park`], from any thread.
    fn waker(&self) -> Arc<dyn Wake>;

    /// The core has stopped polling, although this may be kept alive from outside. Does the part of
    /// closing connections that goes beyond [`Fabric::close`], so that the peers notice the end.
    /// Blocks for that long; data that arrive meanwhile are dropped. Does nothing where closing is
    /// immediate.
    fn end(&mut self) {}
}

/// Progress of ending an exposure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The key is dead.
    Now,
    /// The device is at it; [`CompletionKind::Revoked`] tells when the key is dead, in the order of
    /// revoking on a queue pair, or [`CompletionKind::Down`] does.
    Soon,
}

/// Wakes a parked core.
pub trait Wake: Send + Sync {
    /// Cheap when the core is not parked; one system call when it is. Returns true if it was, as far as is known.
    fn wake(&self) -> bool;
}

/// A connection on its way from the control thread to its core.
pub trait Endpoint: Send + 'static {
    /// Private data that the peer sent with its connection request or acceptance (RFC 8797), padded
    /// with zeroes.
    fn peer_private_data(&self) -> &[u8];
    /// Identity of the peer, as stated by the kernel and not by the peer.
    fn peer(&self) -> Peer;
    /// A number that stands for the peer on each of its connections: of its user and process, or of
    /// its address without the port. Zero if the driver knows nothing that lasts so long.
    fn peer_identity(&self) -> u64 {
        0
    }
    /// RDMA Reads that both ends agreed may be outstanding from this side (ORD): no more than
    /// [`Caps::reads_max`].
    fn reads_max(&self) -> u16 {
        u16::MAX
    }
}

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    pub(crate) address: &'a str,
    pub(crate) core: usize,
    pub(crate) private_data: &'a [u8],
    pub(crate) timeout: Duration,
    pub(crate) lent: &'a [Slab],
}

impl<'a> ConnectRequest<'a> {
    /// Request to connect to this address, within this time, on behalf of core number 0, without
    /// private data.
    pub fn new(address: &'a str, timeout: Duration) -> Self {
        Self { address, core: 0, private_data: &[], timeout, lent: &[] }
    }

    /// Sets the number of the core on whose behalf to connect.
    #[must_use]
    pub fn core(self, core: usize) -> Self {
        Self { core, ..self }
    }

    /// Bytes that the peer gets with the request.
    #[must_use]
    pub fn private_data(self, private_data: &'a [u8]) -> Self {
        Self { private_data, ..self }
    }

    /// The peer may read all of these slabs by the connection, where the driver lets a call use them in place. Where
    /// it does not, they are memory as any other.
    #[must_use]
    pub fn lend(self, lent: &'a [Slab]) -> Self {
        Self { lent, ..self }
    }

    /// Address to connect to.
    pub fn address(&self) -> &'a str {
        self.address
    }

    /// Number of the core on whose behalf to connect.
    pub fn core_index(&self) -> usize {
        self.core
    }

    /// Bytes for the peer.
    pub fn own_private_data(&self) -> &'a [u8] {
        self.private_data
    }

    /// Time limit.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Slabs that the peer may read.
    pub fn lent(&self) -> &'a [Slab] {
        self.lent
    }
}

/// An address to accept connections at.
#[derive(Clone, Copy, Debug)]
pub struct ListenRequest<'a> {
    pub(crate) address: &'a str,
    pub(crate) private_data: &'a [u8],
    pub(crate) lent: &'a [Slab],
}

impl<'a> ListenRequest<'a> {
    /// At this address, without private data.
    pub fn new(address: &'a str) -> Self {
        Self { address, private_data: &[], lent: &[] }
    }

    /// Bytes that each peer gets with its acceptance.
    #[must_use]
    pub fn private_data(self, private_data: &'a [u8]) -> Self {
        Self { private_data, ..self }
    }

    /// Peers that accept these slabs may read all of them, where the driver lets peers fetch results from there. Where
    /// it does not, they are memory as any other.
    #[must_use]
    pub fn lend(self, lent: &'a [Slab]) -> Self {
        Self { lent, ..self }
    }

    /// Address to listen at.
    pub fn address(&self) -> &'a str {
        self.address
    }

    /// Bytes for each peer.
    pub fn own_private_data(&self) -> &'a [u8] {
        self.private_data
    }

    /// Slabs that peers may read.
    pub fn lent(&self) -> &'a [Slab] {
        self.lent
    }
}

/// A driver's control plane: shared by all threads of an engine, may block.
pub trait Connector: Send + Sync + 'static {
    /// The data plane it makes connections for.
    type Fabric: Fabric;

    /// True if its data planes understand Send With Invalidate; peers are told.
    fn remote_invalidate(&self) -> bool;

    /// Random numbers that no other engine has: the identities of an engine and of each of its
    /// clients, and the pauses of clients before they reconnect. In a simulation, the simulation
    /// decides them.
    fn random(&self) -> Result<Random, FabricError> {
        Random::from_system().map_err(|error| FabricError {
            op: "draw random numbers".into(),
            reason: error.to_string(),
            source: Some(error),
        })
    }

    /// Makes the data plane of core number `core`. Called once per core, on the core's own thread,
    /// so that memory is local to it.
    fn fabric(&self, core: usize) -> Result<Self::Fabric, FabricError>;

    /// Makes a connection; blocks for the request's timeout at most.
    fn connect(
        &self,
        request: &ConnectRequest<'_>,
    ) -> Result<<Self::Fabric as Fabric>::Endpoint, FabricError>;

    /// Accepts connections as `request` says until the returned guard is dropped. `accept` picks the
    /// core for each one before the handshake is answered, and gets the endpoint after it.
    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor<<Self::Fabric as Fabric>::Endpoint>>,
    ) -> Result<Box<dyn Send>, FabricError>;
}

/// Decides where an accepted connection lives.
pub trait Acceptor<E>: Send {
    /// The core for the next connection, none of `full`, which have no room for it; `None` refuses it (limits.conns).
    fn pick_core(&mut self, full: &[usize]) -> Option<usize>;
    /// The finished connection, for that core.
    fn accepted(&mut self, core: usize, endpoint: E);
}

/// A driver's error: which operation failed and why.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {reason}")]
pub struct FabricError {
    /// The attempted operation, in the words of the caller: "connect shm:echo".
    pub op: String,
    /// Reason for the failure and, where one is known, the remedy.
    pub reason: String,
    /// The operating system's error, if it was one.
    #[source]
    pub source: Option<std::io::Error>,
}

impl FabricError {
    /// `op` failed for `reason`, which is reported together with the error of the system.
    pub(crate) fn because(
        op: &str,
        reason: impl std::fmt::Display,
        source: Option<std::io::Error>,
    ) -> Self {
        let reason = match &source {
            Some(source) => format!("{reason}: {source}"),
            None => reason.to_string(),
        };
        Self { op: op.into(), reason, source }
    }
}

/// Reason why memory could not be exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExposeError {
    /// The memory does not belong to this connection; take it from [`Fabric::bulk`].
    #[error("memory does not belong to this connection")]
    Foreign,
    /// All keys of this connection are in use.
    #[error("all memory keys of the connection are in use")]
    NoKey,
    /// The queue pair is gone.
    #[error("the connection is down")]
    Down,
}

/// Reason why a connection ended. The first cause is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownCause {
    /// This side closed it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it gracefully.
    #[error("closed by the peer")]
    Remote,
    /// The peer's process died or its socket broke.
    #[error("the peer died")]
    PeerDied,
    /// The peer does not answer any more, nor does its host.
    #[error("the peer cannot be reached any more")]
    Unreachable,
    /// The device the connection ran over was taken away.
    #[error("the device was removed")]
    DeviceRemoved,
    /// The device reported an error that no work request explains.
    #[error("the device failed")]
    DeviceFailed,
    /// A message arrived and no receive was posted for longer than the driver waits.
    #[error("no receive was posted for an arriving message (receiver not ready)")]
    ReceiverNotReady,
    /// A work request failed; on a reliable connection that is the end of it.
    #[error("a work request failed: {0}")]
    WorkRequest(WrError),
    /// The peer speaks no version of the protocol that is spoken here.
    #[error("the peer speaks versions {low} to {high} of RPC-over-RDMA, and none of those here")]
    NoCommonVersion {
        /// Its lowest version.
        low: u32,
        /// Its highest version.
        high: u32,
    },
    /// The peer broke the rules of the fabric or the protocol; says which.
    #[error("the peer broke the rules: {0}")]
    PeerMisbehaved(&'static str),
    /// The security context of the client ended, and there was no other one (RPCSEC_GSS); says why, as when the ticket of the
    /// user has expired.
    #[error("no security context: {0}")]
    Security(Arc<str>),
    /// A resource of this side that is sized never to run out did: a bug, or a configuration
    /// beyond its checks; says which resource.
    #[error("this side ran out of {0}, which is sized not to")]
    Overrun(&'static str),
}
