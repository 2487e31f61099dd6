//! The driver of an engine: one of all drivers, chosen when the engine is created. The reactor and
//! the layers above it are compiled once, for this type; the choice costs each operation of a data
//! plane a comparison.
//!
//! A captured driver is one more choice, around any of the others. Knows all drivers, and nothing of them but the
//! traits of this module's parent.

use super::capture::{Capture, CaptureConnector, CaptureEndpoint};
use super::shm::{ShmConnector, ShmEndpoint, ShmFabric};
#[cfg(feature = "sim")]
use super::sim::{SimConnector, SimEndpoint, SimFabric};
#[cfg(feature = "verbs")]
use super::verbs::{VerbsConnector, VerbsEndpoint, VerbsFabric};
use super::{
    Acceptor, Access, Caps, Completions, ConnectRequest, Connector, Endpoint, Ends, ExposeError,
    Fabric, FabricError, Full, ListenRequest, NextShort, Peer, QpId, RemoteSlice, Revoked, SendWr,
    Short, Wake,
};
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sys::clock::{Clock, Ticks};
use crate::sys::random::Random;
use std::sync::Arc;
use std::time::Duration;

/// The control plane of one driver.
pub(crate) enum AnyConnector {
    Shm(ShmConnector),
    #[cfg(feature = "verbs")]
    Verbs(VerbsConnector),
    #[cfg(feature = "sim")]
    Sim(SimConnector),
    Captured(Box<CaptureConnector<Self>>),
}

/// The data plane of one driver.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each core, and the commonest is in place"
)]
pub(crate) enum AnyFabric {
    Shm(ShmFabric),
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsFabric>),
    #[cfg(feature = "sim")]
    Sim(SimFabric),
    Captured(Box<Capture<Self>>),
}

/// A connection that a driver has made.
#[allow(clippy::large_enum_variant, reason = "the large one is what there is in most builds")]
pub(crate) enum AnyEndpoint {
    /// Boxed because it is large, and smaller letters are moved often.
    Shm(Box<ShmEndpoint>),
    #[cfg(feature = "verbs")]
    Verbs(VerbsEndpoint),
    #[cfg(feature = "sim")]
    Sim(SimEndpoint),
    Captured(Box<CaptureEndpoint<Self>>),
}

/// The same expression for whichever it is.
macro_rules! each {
    ($of:ident: $it:expr, $inner:ident => $do:expr) => {
        match $it {
            $of::Shm($inner) => $do,
            #[cfg(feature = "verbs")]
            $of::Verbs($inner) => $do,
            #[cfg(feature = "sim")]
            $of::Sim($inner) => $do,
            $of::Captured($inner) => $do,
        }
    };
}

/// The same for operations on each short message: over shared memory in place, else by a call.
macro_rules! in_place {
    ($it:expr, $fabric:ident => $do:expr, $elsewhere:expr) => {
        match $it {
            AnyFabric::Shm($fabric) => $do,
            _ => $elsewhere,
        }
    };
}

/// The same for operations of each turn, of which verbs has some that are short or none.
macro_rules! in_each_turn {
    ($it:expr, $fabric:ident => $do:expr, $elsewhere:expr) => {
        match $it {
            AnyFabric::Shm($fabric) => $do,
            #[cfg(feature = "verbs")]
            AnyFabric::Verbs($fabric) => $do,
            _ => $elsewhere,
        }
    };
}

impl Endpoint for AnyEndpoint {
    fn peer_private_data(&self) -> &[u8] {
        each!(Self: self, endpoint => endpoint.peer_private_data())
    }

    fn peer(&self) -> Peer {
        each!(Self: self, endpoint => endpoint.peer())
    }

    fn peer_identity(&self) -> u64 {
        each!(Self: self, endpoint => endpoint.peer_identity())
    }

    fn reads_max(&self) -> u16 {
        each!(Self: self, endpoint => endpoint.reads_max())
    }
}

/// Hands the connections of a driver on as those of any.
struct Wrapping<E> {
    accept: Box<dyn Acceptor<AnyEndpoint>>,
    wrap: fn(E) -> AnyEndpoint,
}

impl<E> Acceptor<E> for Wrapping<E> {
    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.accept.pick_core(full)
    }

    fn accepted(&mut self, core: usize, endpoint: E) {
        self.accept.accepted(core, (self.wrap)(endpoint));
    }
}

impl Connector for AnyConnector {
    type Fabric = AnyFabric;

    fn remote_invalidate(&self) -> bool {
        each!(Self: self, connector => connector.remote_invalidate())
    }

    fn random(&self) -> Result<Random, FabricError> {
        each!(Self: self, connector => connector.random())
    }

    fn fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(match self {
            Self::Shm(connector) => AnyFabric::Shm(connector.fabric(core)?),
            #[cfg(feature = "verbs")]
            Self::Verbs(connector) => AnyFabric::Verbs(connector.fabric(core)?.into()),
            #[cfg(feature = "sim")]
            Self::Sim(connector) => AnyFabric::Sim(connector.fabric(core)?),
            Self::Captured(connector) => AnyFabric::Captured(connector.fabric(core)?.into()),
        })
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<AnyEndpoint, FabricError> {
        Ok(match self {
            Self::Shm(connector) => AnyEndpoint::Shm(connector.connect(request)?.into()),
            #[cfg(feature = "verbs")]
            Self::Verbs(connector) => AnyEndpoint::Verbs(connector.connect(request)?),
            #[cfg(feature = "sim")]
            Self::Sim(connector) => AnyEndpoint::Sim(connector.connect(request)?),
            Self::Captured(connector) => AnyEndpoint::Captured(connector.connect(request)?.into()),
        })
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor<AnyEndpoint>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        match self {
            Self::Shm(it) => {
                let wrap = |endpoint| AnyEndpoint::Shm(Box::new(endpoint));
                it.listen(request, wrapping(accept, wrap))
            }
            #[cfg(feature = "verbs")]
            Self::Verbs(it) => it.listen(request, wrapping(accept, AnyEndpoint::Verbs)),
            #[cfg(feature = "sim")]
            Self::Sim(it) => it.listen(request, wrapping(accept, AnyEndpoint::Sim)),
            Self::Captured(it) => {
                let wrap = |endpoint| AnyEndpoint::Captured(Box::new(endpoint));
                it.listen(request, wrapping(accept, wrap))
            }
        }
    }
}

fn wrapping<E: 'static>(
    accept: Box<dyn Acceptor<AnyEndpoint>>,
    wrap: fn(E) -> AnyEndpoint,
) -> Box<dyn Acceptor<E>> {
    Box::new(Wrapping { accept, wrap })
}

impl AnyFabric {
    #[inline(never)]
    fn now_elsewhere(&self, clock: &Clock) -> Ticks {
        each!(Self: self, fabric => fabric.now(clock))
    }

    #[inline(never)]
    fn poll_elsewhere(&mut self, out: &mut Completions) -> usize {
        each!(Self: self, fabric => fabric.poll(out))
    }

    #[inline(never)]
    fn next_short_elsewhere(&mut self, message: &mut Short) -> Option<NextShort> {
        each!(Self: self, fabric => fabric.next_short(message))
    }

    #[inline(never)]
    fn skip_poll_elsewhere(&mut self, is_idle: bool) -> bool {
        each!(Self: self, fabric => fabric.skip_poll(is_idle))
    }

    #[inline(never)]
    fn send_copied_elsewhere(&mut self, qp: QpId, message: &[u8]) -> bool {
        each!(Self: self, fabric => fabric.send_copied(qp, message))
    }

    #[inline(never)]
    fn flush_elsewhere(&mut self) {
        each!(Self: self, fabric => fabric.flush());
    }

    #[inline(never)]
    fn post_elsewhere(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        each!(Self: self, fabric => fabric.post(qp, wr))
    }

    #[inline(never)]
    fn post_recv_elsewhere(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        each!(Self: self, fabric => fabric.post_recv(qp, buf))
    }

    #[inline(never)]
    fn send_room_elsewhere(&self, qp: QpId) -> usize {
        each!(Self: self, fabric => fabric.send_room(qp))
    }
}

impl Fabric for AnyFabric {
    type Endpoint = AnyEndpoint;

    fn has_shorts(&self) -> bool {
        each!(Self: self, fabric => fabric.has_shorts())
    }

    fn caps(&self) -> &Caps {
        each!(Self: self, fabric => fabric.caps())
    }

    fn clock(&self) -> Clock {
        each!(Self: self, fabric => fabric.clock())
    }

    fn simulates_time(&self) -> bool {
        each!(Self: self, fabric => fabric.simulates_time())
    }

    #[inline(always)]
    fn now(&self, clock: &Clock) -> Ticks {
        in_each_turn!(self, fabric => fabric.now(clock), self.now_elsewhere(clock))
    }

    #[inline(always)]
    fn poll(&mut self, out: &mut Completions) -> usize {
        in_each_turn!(self, fabric => fabric.poll(out), self.poll_elsewhere(out))
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        in_place!(self, fabric => fabric.post_recv(qp, buf), self.post_recv_elsewhere(qp, buf))
    }

    fn prepare_recv(&mut self, qp: QpId, buf: &Buf) -> Result<(), FabricError> {
        each!(Self: self, fabric => fabric.prepare_recv(qp, buf))
    }

    fn take_shorts(&mut self) -> bool {
        each!(Self: self, fabric => fabric.take_shorts())
    }

    #[inline(always)]
    fn next_short(&mut self, message: &mut Short) -> Option<NextShort> {
        in_each_turn!(self, fabric => fabric.next_short(message), self.next_short_elsewhere(message))
    }

    #[inline(always)]
    fn skip_poll(&mut self, is_idle: bool) -> bool {
        in_each_turn!(self, fabric => fabric.skip_poll(is_idle), self.skip_poll_elsewhere(is_idle))
    }

    fn rests(&mut self) -> bool {
        each!(Self: self, fabric => fabric.rests())
    }

    fn ends(&self, qp: QpId) -> Option<Ends> {
        each!(Self: self, fabric => fabric.ends(qp))
    }

    fn shares_receives(&self) -> bool {
        each!(Self: self, fabric => fabric.shares_receives())
    }

    fn withdraw_recv(&mut self, qp: QpId) -> Option<Buf> {
        each!(Self: self, fabric => fabric.withdraw_recv(qp))
    }

    fn receive_of_short(&mut self, qp: QpId) -> Option<Buf> {
        each!(Self: self, fabric => fabric.receive_of_short(qp))
    }

    #[inline]
    fn send_copied(&mut self, qp: QpId, message: &[u8]) -> bool {
        let elsewhere = |this: &mut Self| this.send_copied_elsewhere(qp, message);
        in_place!(self, fabric => fabric.send_copied(qp, message), elsewhere(self))
    }

    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        in_place!(self, fabric => fabric.post(qp, wr), self.post_elsewhere(qp, wr))
    }

    #[inline(always)]
    fn flush(&mut self) {
        in_each_turn!(self, fabric => fabric.flush(), self.flush_elsewhere());
    }

    #[inline]
    fn send_room(&self, qp: QpId) -> usize {
        in_place!(self, fabric => fabric.send_room(qp), self.send_room_elsewhere(qp))
    }

    fn has_unsent(&self, qp: QpId) -> bool {
        each!(Self: self, fabric => fabric.has_unsent(qp))
    }

    fn adopt(&mut self, endpoint: AnyEndpoint) -> Result<QpId, FabricError> {
        match (self, endpoint) {
            (Self::Shm(fabric), AnyEndpoint::Shm(endpoint)) => fabric.adopt(*endpoint),
            #[cfg(feature = "verbs")]
            (Self::Verbs(fabric), AnyEndpoint::Verbs(endpoint)) => fabric.adopt(endpoint),
            #[cfg(feature = "sim")]
            (Self::Sim(fabric), AnyEndpoint::Sim(endpoint)) => fabric.adopt(endpoint),
            (Self::Captured(fabric), AnyEndpoint::Captured(endpoint)) => fabric.adopt(*endpoint),
            _ => Err(FabricError::because("adopt a connection", "another driver made it", None)),
        }
    }

    fn message_memory(&mut self, qp: QpId, bytes: usize) -> Option<Region> {
        each!(Self: self, fabric => fabric.message_memory(qp, bytes))
    }

    fn lend(&mut self, pool: &BulkPool) {
        each!(Self: self, fabric => fabric.lend(pool));
    }

    fn read_sinks(&self, qp: QpId) -> Option<&BulkPool> {
        each!(Self: self, fabric => fabric.read_sinks(qp))
    }

    fn connection_memory(&self, qp: QpId) -> Option<&BulkPool> {
        each!(Self: self, fabric => fabric.connection_memory(qp))
    }

    fn close(&mut self, qp: QpId) {
        each!(Self: self, fabric => fabric.close(qp));
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        each!(Self: self, fabric => fabric.bulk(qp, bytes))
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        each!(Self: self, fabric => fabric.expose(qp, memory, access))
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        each!(Self: self, fabric => fabric.revoke(qp, handle))
    }

    fn set_home(&mut self, qp: QpId, handle: u32, home: Lease) -> bool {
        each!(Self: self, fabric => fabric.set_home(qp, handle, home))
    }

    fn home_bytes(&self, qp: QpId, handle: u32) -> Option<u32> {
        each!(Self: self, fabric => fabric.home_bytes(qp, handle))
    }

    fn park(&mut self, at_most: Duration) {
        each!(Self: self, fabric => fabric.park(at_most));
    }

    fn waker(&self) -> Arc<dyn Wake> {
        each!(Self: self, fabric => fabric.waker())
    }

    fn end(&mut self) {
        each!(Self: self, fabric => fabric.end());
    }
}
