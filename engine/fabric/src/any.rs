//! The driver of an engine: one of all drivers, chosen when the engine is created. The reactor and
//! the layers above it are compiled once, for this type; the choice costs each operation of a data
//! plane a comparison.
//!
//! A captured driver is one more choice, around any of the others. Knows all drivers, and nothing of them but the
//! traits of this module's parent.

use super::capture::{Capture, CaptureConnector, Opening};
use super::shm::{ShmConnector, ShmFabric, ShmLink};
#[cfg(feature = "sim")]
use super::sim::{SimConnector, SimFabric, SimLink};
#[cfg(feature = "verbs")]
use super::verbs::{VerbsConnector, VerbsFabric, VerbsLink};
use super::{
    Acceptor, Access, Completions, ConnMemory, ConnectRequest, Connector, Endpoint, ExposeError,
    Fabric, FabricError, Full, ListenRequest, NextShort, QpId, RemoteSlice, Revoked, SendWr, Short,
    ShortLane,
};
use crate::mem::{Buf, Bulk, Lease};
use crate::sys::clock::{Clock, Ticks};
use crate::sys::random::Random;
use std::ops::{Deref, DerefMut};

/// The control plane of one driver: see [`Connector`] for its methods.
#[doc(hidden)]
pub enum AnyConnector {
    Shm(ShmConnector),
    #[cfg(feature = "verbs")]
    Verbs(VerbsConnector),
    #[cfg(feature = "sim")]
    Sim(SimConnector),
    Captured(Box<CaptureConnector>),
}

/// The data plane of one driver. The methods of each message and each turn are chosen here; the others are those of
/// the [`Fabric`] that it derefs to.
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for each core, and the commonest is in place"
)]
#[doc(hidden)]
pub enum AnyFabric {
    Shm(ShmFabric),
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsFabric>),
    #[cfg(feature = "sim")]
    Sim(SimFabric),
    Captured(Box<Capture>),
}

/// The driver's part of an [`Endpoint`]. Boxed where it is large, as letters are moved often.
#[derive(Debug)]
pub(super) enum DriverLink {
    Shm(Box<ShmLink>),
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsLink>),
    #[cfg(feature = "sim")]
    Sim(SimLink),
    Captured(Box<Self>, Opening),
}

impl DriverLink {
    pub(super) fn foreign() -> FabricError {
        FabricError::because("adopt a connection", "another driver made it", None)
    }
}

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

impl AnyConnector {
    pub fn remote_invalidate(&self) -> bool {
        each!(Self: self, connector => connector.remote_invalidate())
    }

    pub fn random(&self) -> Result<Random, FabricError> {
        each!(Self: self, connector => connector.random())
    }

    pub fn fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(match self {
            Self::Shm(connector) => AnyFabric::Shm(connector.fabric(core)?),
            #[cfg(feature = "verbs")]
            Self::Verbs(connector) => AnyFabric::Verbs(connector.fabric(core)?.into()),
            #[cfg(feature = "sim")]
            Self::Sim(connector) => AnyFabric::Sim(connector.fabric(core)?),
            Self::Captured(connector) => AnyFabric::Captured(connector.fabric(core)?.into()),
        })
    }

    pub fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        each!(Self: self, connector => connector.connect(request))
    }

    pub fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        each!(Self: self, connector => connector.listen(request, accept))
    }
}

impl Deref for AnyFabric {
    type Target = dyn Fabric;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Shm(fabric) => fabric,
            #[cfg(feature = "verbs")]
            Self::Verbs(fabric) => &**fabric,
            #[cfg(feature = "sim")]
            Self::Sim(fabric) => fabric,
            Self::Captured(fabric) => &**fabric,
        }
    }
}

impl DerefMut for AnyFabric {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Shm(fabric) => fabric,
            #[cfg(feature = "verbs")]
            Self::Verbs(fabric) => &mut **fabric,
            #[cfg(feature = "sim")]
            Self::Sim(fabric) => fabric,
            Self::Captured(fabric) => &mut **fabric,
        }
    }
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

/// Operations of each message and each turn.
impl AnyFabric {
    #[inline(always)]
    pub fn now(&self, clock: &Clock) -> Ticks {
        in_each_turn!(self, fabric => fabric.now(clock), self.now_elsewhere(clock))
    }

    #[inline(always)]
    pub fn poll(&mut self, out: &mut Completions) -> usize {
        in_each_turn!(self, fabric => fabric.poll(out), self.poll_elsewhere(out))
    }

    #[inline]
    pub fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        in_place!(self, fabric => fabric.post_recv(qp, buf), self.post_recv_elsewhere(qp, buf))
    }

    #[inline(always)]
    pub fn next_short(&mut self, message: &mut Short) -> Option<NextShort> {
        in_each_turn!(self, fabric => fabric.next_short(message), self.next_short_elsewhere(message))
    }

    #[inline(always)]
    pub fn skip_poll(&mut self, is_idle: bool) -> bool {
        in_each_turn!(self, fabric => fabric.skip_poll(is_idle), self.skip_poll_elsewhere(is_idle))
    }

    #[inline]
    pub fn send_copied(&mut self, qp: QpId, message: &[u8]) -> bool {
        let elsewhere = |this: &mut Self| this.send_copied_elsewhere(qp, message);
        in_place!(self, fabric => fabric.send_copied(qp, message), elsewhere(self))
    }

    #[inline]
    pub fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        in_place!(self, fabric => fabric.post(qp, wr), self.post_elsewhere(qp, wr))
    }

    #[inline(always)]
    pub fn flush(&mut self) {
        in_each_turn!(self, fabric => fabric.flush(), self.flush_elsewhere());
    }

    #[inline]
    pub fn send_room(&self, qp: QpId) -> usize {
        in_place!(self, fabric => fabric.send_room(qp), self.send_room_elsewhere(qp))
    }
}

/// Operations of the general path: a comparison, and the driver's own.
impl AnyFabric {
    pub fn rests(&mut self) -> bool {
        each!(Self: self, fabric => fabric.rests())
    }

    pub fn receive_of_short(&mut self, qp: QpId) -> Option<Buf> {
        each!(Self: self, fabric => fabric.receive_of_short(qp))
    }

    pub fn memory(&self, qp: QpId) -> ConnMemory<'_> {
        each!(Self: self, fabric => fabric.memory(qp))
    }

    pub fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        each!(Self: self, fabric => fabric.bulk(qp, bytes))
    }

    pub fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
        home: Option<Lease>,
    ) -> Result<RemoteSlice, ExposeError> {
        each!(Self: self, fabric => fabric.expose(qp, memory, access, home))
    }

    pub fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        each!(Self: self, fabric => fabric.revoke(qp, handle))
    }
}
