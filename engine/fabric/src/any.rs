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
    Acceptor, Access, Caps, Completions, ConnMemory, ConnectRequest, Connector, Endpoint, Ends,
    ExposeError, Fabric, FabricError, Full, InFlight, ListenRequest, NextShort, QpId, RemoteSlice,
    Revoked, SendWr, Short, ShortLane, Wake,
};
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sys::clock::{Clock, Ticks};
use crate::sys::random::Random;
use std::sync::Arc;
use std::time::Duration;

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

/// The data plane of one driver: see [`Fabric`] and [`ShortLane`] for its methods.
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

/// Makes an operation of [`AnyFabric`]: that of its driver.
///
/// * `per_message`: in place over shared memory, else by a call.
/// * `per_turn`: in place over shared memory and over devices, some of whose operations are short or none.
/// * `general`: of the general path.
macro_rules! operation {
    (per_message [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {
        #[inline]
        pub fn $name(&$($mutable)? self, $($arg: $type),*) $(-> $out)? {
            operation!(elsewhere [$($mutable)?] $name($($arg: $type),*) $(-> $out)?);
            match self {
                Self::Shm(fabric) => fabric.$name($($arg),*),
                _ => elsewhere(self, $($arg),*),
            }
        }
    };
    (per_turn [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {
        #[inline(always)]
        pub fn $name(&$($mutable)? self, $($arg: $type),*) $(-> $out)? {
            operation!(elsewhere [$($mutable)?] $name($($arg: $type),*) $(-> $out)?);
            match self {
                Self::Shm(fabric) => fabric.$name($($arg),*),
                #[cfg(feature = "verbs")]
                Self::Verbs(fabric) => fabric.$name($($arg),*),
                _ => elsewhere(self, $($arg),*),
            }
        }
    };
    (general [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {
        pub fn $name(&$($mutable)? self, $($arg: $type),*) $(-> $out)? {
            each!(Self: self, fabric => fabric.$name($($arg),*))
        }
    };
    (elsewhere [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {
        #[inline(never)]
        fn elsewhere(any: &$($mutable)? AnyFabric, $($arg: $type),*) $(-> $out)? {
            each!(AnyFabric: any, fabric => fabric.$name($($arg),*))
        }
    };
}

macro_rules! operations {
    ($($class:ident [$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {
        impl AnyFabric {
            $(operation!($class [$($mutable)?] $name($($arg: $type),*) $(-> $out)?);)*
        }
    };
}

operations! {
    per_message [mut] post_recv(qp: QpId, buf: Buf) -> Result<(), Full<Buf>>;
    per_message [mut] send_copied(qp: QpId, message: &[u8]) -> bool;
    per_message [mut] post(qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>>;
    per_message [] room(qp: QpId) -> usize;
    per_turn [] now(clock: &Clock) -> Ticks;
    per_turn [mut] poll(out: &mut Completions) -> usize;
    per_turn [mut] next_short(message: &mut Short) -> Option<NextShort>;
    per_turn [mut] skip_poll(is_idle: bool) -> bool;
    per_turn [mut] flush();
    general [] caps() -> &Caps;
    general [mut] begin(lent: Option<&BulkPool>, takes_shorts: bool) -> Arc<dyn Wake>;
    general [] ends(qp: QpId) -> Option<Ends>;
    general [mut] rests() -> bool;
    general [mut] receive_of_short(qp: QpId) -> Option<Buf>;
    general [] outstanding(qp: QpId) -> InFlight;
    general [mut] adopt(endpoint: Endpoint) -> Result<QpId, FabricError>;
    general [mut] message_memory(qp: QpId, bytes: usize) -> Option<Region>;
    general [] memory(qp: QpId) -> ConnMemory<'_>;
    general [mut] close(qp: QpId);
    general [mut] bulk(qp: QpId, bytes: usize) -> Option<Bulk>;
    general [mut] expose(qp: QpId, memory: Lease, access: Access, home: Option<Lease>)
        -> Result<RemoteSlice, ExposeError>;
    general [mut] revoke(qp: QpId, handle: u32) -> Revoked;
    general [mut] park(at_most: Duration);
    general [mut] end();
}
