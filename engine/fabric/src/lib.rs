//! The narrow waist between the reactor and a driver: fabrics, the memory that they register, and what both need of the machine.
//!
//! A driver moves bytes and knows nothing of RPC; the reactor is its only caller. [`Fabric`] is the data plane, owned by one
//! core: nothing in it blocks or allocates. [`Connector`] is the control plane: it may block, and runs on the control thread.
//!
//! `sys`, `sync` <- `mem` <- drivers: each module's head states its purpose, the modules it may use, and its callers.
//! This crate and its bindings are the engine's only place for `unsafe`. It is for the engine, which exports what users
//! need of it: anything else here may change in any version.

// Output may block its thread: events go by `sys::journal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod adapters;
mod address;
mod any;
pub mod capture;
mod connector_common;
mod core_sleep;
mod first_message;
pub mod iwarp;
mod limit_scope;
#[doc(hidden)]
pub mod mem;
mod peer;
#[cfg(any(feature = "sim", feature = "verbs"))]
mod send_queue;
pub mod shm;
mod short;
mod short_endpoint;
#[cfg(feature = "sim")]
pub mod sim;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod sys;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wr;

pub use address::{Address, AddressError, RDMA_PORT, RdmaAddress, Transport, check_address};
pub use any::AnyFabric;
// The shapes of the short lane, and of ring slots, are the engine's: hidden where they are defined, as a crate that exports this
// module shows what only its uses hide.
pub use limit_scope::LimitScope;
pub use peer::Peer;
pub use short::{Head, LINE_PAIRS, LineHead, LongHead, SHORT_BYTES_MAX, Short};
pub use short_endpoint::{
    NextShort, ShortEndpoint, ShortEndpointOps, ShortMessages, SingleConnPoll,
};
pub use wr::{
    Completion, CompletionKind, Completions, ConnId, Full, QpId, Received, RemoteSlice, SendWr,
    WrError, WrId,
};

use crate::mem::{Buf, Bulk, BulkPool, Lease, Region, Slab};
use crate::sys::clock::{Clock, Ticks};
use crate::sys::random::Random;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Capabilities of a driver, known before the first connection; sizes in bytes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// Longest message of one Send.
    pub message_bytes_max: usize,
    /// RDMA Reads one queue pair may have outstanding (ORD).
    pub reads_max: u16,
    /// Work requests the send queue of one queue pair holds.
    pub send_queue_depth: u16,
    /// Receives one queue pair may have posted.
    pub recv_queue_depth: u16,
    /// Send With Invalidate is understood by this driver.
    pub remote_invalidate: bool,
    /// Short messages are sent by value ([`ShortEndpoint`]).
    pub sends_shorts: bool,
    /// Short messages come by value if the core wants it ([`Fabric::begin`], [`ShortMessages::next_short`]).
    pub takes_shorts: bool,
    /// The clock of the cores on a driver that simulates time; `None` where they share that of the processor.
    pub simulated_clock: Option<Clock>,
}

/// Rights a remote peer gets on exposed memory: exactly one, never both (RFC 5042 section 6.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The peer may RDMA Read: memory behind a Read chunk.
    RemoteRead,
    /// The peer may RDMA Write: memory behind a Write or Reply chunk.
    RemoteWrite,
}

/// A driver's data plane. One core owns it; no method blocks, allocates or makes a system call,
/// except where it says so. The [`ShortMessages`] of a driver is its second, shorter way for messages.
///
/// The reactor has an [`AnyFabric`], by which the methods of each message are called without the table, over shared memory.
pub trait Fabric: ShortMessages + 'static {
    /// Capabilities of this driver.
    fn caps(&self) -> &Caps;

    /// Now, in ticks of `clock`: that of [`Caps::simulated_clock`], or the shared one. Time is the
    /// driver's, so that simulated time costs the others nothing: for a driver that leaves this
    /// alone it is the counter, read in place.
    #[inline(always)]
    fn now(&self, clock: &Clock) -> Ticks {
        clock.now()
    }

    /// Begins the work of a core, before its first connection, and returns its waker, which ends a [`Fabric::park`]
    /// from any thread. `lent` is the core's private memory, if it has some: a driver that registers memory makes it
    /// known to the device with each connection, and may take the memory that it exposes from there. `takes_shorts`:
    /// short messages come by value, where the driver can ([`Caps::takes_shorts`]).
    fn begin(&mut self, lent: Option<&BulkPool>, takes_shorts: bool) -> Arc<dyn Wake>;

    /// Moves completions into `out`, at most as many as it has room for, and returns their number.
    fn poll(&mut self, out: &mut Completions) -> usize;

    /// Gives `buf` to the receive queue; a [`CompletionKind::Received`] gives it back.
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>>;

    /// Queues one work request. Requests of a queue pair take effect in the order of posting: data
    /// that a Write placed are there when a later Send arrives (RFC 5666 section 2).
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>>;

    /// Makes everything posted visible: receives first, then sends, one doorbell for each queue. A few receives, at most
    /// [`RECVS_BEHIND_MAX`](crate::mem::budget::RECVS_BEHIND_MAX) of a queue pair, may come behind the sends.
    /// Work requests that find no room at the peer stay queued, and later calls go on with them.
    fn flush(&mut self);

    /// Number of further work requests that `post` takes on this queue pair now.
    fn room(&self, qp: QpId) -> usize;

    /// Requests of a queue pair that have not completed. For a timer, or when a connection ends; no message pays for
    /// it.
    fn outstanding(&self, qp: QpId) -> InFlight;

    /// Takes over a new connection (slow path: may allocate and map).
    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError>;

    /// Memory for the messages of a connection that is registered already; `None` if the driver has
    /// none, or not so much: then the caller maps its own (slow path, when a connection opens).
    fn message_memory(&mut self, _qp: QpId, _bytes: usize) -> Option<Region> {
        None
    }

    /// Pools of a connection's own.
    fn memory(&self, _qp: QpId) -> ConnMemory<'_> {
        ConnMemory::default()
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
    ///
    /// Bytes that this side fetches for the peer, in the place of an RDMA Write, go to `home`, which is as long, and
    /// not to the exposed memory. A driver that never fetches, or not for this peer, drops the lease. The peer may
    /// write the exposed memory all the same: [`Revoked::Fetched`] tells.
    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError>;

    /// Ends an exposure, once for each key: one that the peer has invalidated keeps its place until then. A key that is
    /// dead already is fine. Keys that were made since the last flush,
    /// which no peer can know, are dead at once if they are revoked in the opposite order, with
    /// nothing else posted in between.
    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked;

    /// Sleeps until something may have arrived, the waker was used, or `at_most` is over (system
    /// call). Returns at once when there is work that would be missed.
    fn park(&mut self, at_most: Duration);

    /// The core has stopped polling, although this may be kept alive from outside. Does the part of
    /// closing connections that goes beyond [`Fabric::close`], so that the peers notice the end.
    /// Blocks for that long; data that arrive meanwhile are dropped. Does nothing where closing is
    /// immediate.
    fn end(&mut self) {}
}

/// Requests of a queue pair that have not completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Numbers of the Sends, Writes and Reads, in the order of posting, that hold memory of this side until the peer
    /// lets them complete; if there are none, those of revoked keys that do so, counted from another number. `None` if there are none,
    /// or none whose completion is reported.
    pub numbers: Option<Range<u64>>,
    /// A posted request is still at this end, for lack of room at the peer or in the device: [`Fabric::close`] would
    /// take it back. A request that has left arrives before the end.
    pub is_unsent: bool,
}

/// Pools of a connection's own, in place of the core's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnMemory<'a> {
    /// The memory that [`Fabric::bulk`] takes from, if the connection has a separate arena; `None` if it is the core's.
    pub arena: Option<&'a BulkPool>,
    /// The pool that must provide the memory that RDMA Reads of this connection fill; `None`: any registered memory
    /// will do. Over iWARP a Read tells the peer a key of that memory, which lets the peer write there (RFC 5040
    /// section 4.4), so it must be memory that this peer may spoil.
    pub read_sinks: Option<&'a BulkPool>,
}

/// Progress of ending an exposure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The key is dead.
    Now,
    /// The same, and this many bytes under it, from the first on without a gap, are in the home that
    /// [`Fabric::expose`] was given, whichever end has killed the key.
    Fetched(u32),
    /// The device is at it; [`CompletionKind::Revoked`] tells when the key is dead, in the order of
    /// revoking on a queue pair, or [`CompletionKind::Down`] does.
    Soon,
}

/// Wakes a parked core.
pub trait Wake: Send + Sync {
    /// Cheap when the core is not parked; one system call when it is. Returns true if it was, as far as is known. A
    /// `fence(SeqCst)` for its caller, too.
    fn wake(&self) -> bool;
}

/// A connection that a [`Connector`] has made, on its way to the core that adopts it. Dropping it closes the connection.
#[derive(Debug)]
pub struct Endpoint {
    /// Private data that the peer sent with its connection request or acceptance (RFC 8797), padded
    /// with zeroes.
    pub peer_private_data: Box<[u8]>,
    /// Identity of the peer, as stated by the kernel and not by the peer.
    pub peer: Peer,
    /// A number that stands for the peer on each of its connections: of its user and process, or of
    /// its address without the port. Zero if the driver knows nothing that lasts so long.
    pub peer_identity: u64,
    /// RDMA Reads that both ends agreed may be outstanding from this side (ORD): no more than
    /// [`Caps::reads_max`].
    pub reads_max: u16,
    /// The driver's part, whose type the driver knows. Boxed also because letters are moved often.
    link: Box<dyn Any + Send>,
}

fn link_of<L: 'static>(link: Box<dyn Any + Send>) -> Result<Box<L>, FabricError> {
    let foreign = "another driver made it";
    link.downcast().map_err(|_| FabricError::because("adopt a connection", foreign, None))
}

/// A connection that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The address to connect to, in the form of the driver.
    pub address: &'a str,
    /// Number of the core on whose behalf to connect.
    pub core: usize,
    /// Bytes that the peer gets with the request.
    pub private_data: &'a [u8],
    /// Maximum wait for the connection.
    pub timeout: Duration,
    /// The peer may read all of these slabs by the connection, where the driver lets a call use them in place. Where
    /// it does not, they are memory as any other.
    pub lent: &'a [Slab],
}

impl<'a> ConnectRequest<'a> {
    /// Request to connect to this address, within this time, on behalf of core number 0, without
    /// private data.
    pub fn new(address: &'a str, timeout: Duration) -> Self {
        Self { address, core: 0, private_data: &[], timeout, lent: &[] }
    }
}

/// An address to accept connections at.
#[derive(Clone, Copy, Debug)]
pub struct ListenRequest<'a> {
    /// The address.
    pub address: &'a str,
    /// Bytes that each peer gets with its acceptance.
    pub private_data: &'a [u8],
    /// Peers that accept these slabs may read all of them, where the driver lets peers fetch results from there. Where
    /// it does not, they are memory as any other.
    pub lent: &'a [Slab],
}

impl<'a> ListenRequest<'a> {
    /// At this address, without private data.
    pub fn new(address: &'a str) -> Self {
        Self { address, private_data: &[], lent: &[] }
    }
}

/// A driver's control plane: shared by all threads of an engine, may block.
pub trait Connector: Send + Sync + 'static {
    /// The data plane it makes connections for.
    type Fabric: Fabric
    where
        Self: Sized;

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
    fn fabric(&self, core: usize) -> Result<Self::Fabric, FabricError>
    where
        Self: Sized;

    /// The same, for callers that do not know the driver.
    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError>;

    /// Makes a connection; blocks for the request's timeout at most.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError>;

    /// Accepts connections as `request` says until the returned guard is dropped. `accept` picks the
    /// core for each one before the handshake is answered, and gets the endpoint after it.
    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError>;
}

/// Decides where an accepted connection lives.
pub trait Acceptor: Send {
    /// Returns true if the peer may connect. Asked first, with nothing but the address of a request: a stranger gets no
    /// memory, and no place among those that shake hands. Called on the thread of all handshakes; must not block.
    fn admits(&mut self, _peer: &Peer) -> bool {
        true
    }
    /// The core for the next connection, none of `full`, which have no room for it; `None` refuses it (limits.conns).
    fn pick_core(&mut self, full: &[usize]) -> Option<usize>;
    /// The finished connection, for that core.
    fn accepted(&mut self, core: usize, endpoint: Endpoint);
}

/// A driver's error: which operation failed and why.
#[derive(Debug, thiserror::Error)]
#[error("{op}: {reason}")]
pub struct FabricError {
    /// The attempted operation, in the words of the caller: "connect shm:echo".
    pub op: String,
    /// Reason for the failure and, where one is known, the remedy.
    pub reason: String,
    /// The operating system's error, if it was one. For a wrong address one that contains the [`AddressError`].
    #[source]
    pub source: Option<std::io::Error>,
}

impl FabricError {
    /// `op` failed for `reason`, which is reported together with the error of the system.
    #[doc(hidden)]
    pub fn because(
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

    pub(crate) fn of_address(op: &str, error: AddressError) -> Self {
        let reason = error.to_string();
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, error);
        Self { op: op.into(), reason, source: Some(source) }
    }

    /// True if no attempt with this address can end otherwise.
    #[doc(hidden)]
    pub fn is_of_address(&self) -> bool {
        let inner = self.source.as_ref().and_then(std::io::Error::get_ref);
        inner.is_some_and(|error| error.is::<AddressError>())
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
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
    /// The peer did not let a Send, Write or Read complete for too long (`rpc.stall_timeout_ms`).
    #[error(
        "the peer did not let a Send, Write or Read complete for too long (rpc.stall_timeout_ms)"
    )]
    Stalled,
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
