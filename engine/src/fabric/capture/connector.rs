//! The control plane of captured cores: the driver's own; it marks connections with how they were
//! made.

use super::super::{
    Acceptor, ConnectRequest, Connector, Endpoint, Fabric, FabricError, ListenRequest, Peer,
};
use super::driver::Capture;
use super::record::Kind;
use super::session::{CaptureSink, Session};
use super::wire::{PRIVATE_BYTES, PrivateData};
use crate::sys::random::Random;
use std::sync::Arc;

type EndpointOf<C> = CaptureEndpoint<<<C as Connector>::Fabric as Fabric>::Endpoint>;

/// A driver's control plane whose cores are captured, all into one file.
pub struct CaptureConnector<C: Connector> {
    inner: C,
    session: Arc<Session>,
}

impl<C: Connector> CaptureConnector<C> {
    /// Wraps `inner` and starts the thread that writes to the sink, which ends when this and every
    /// data plane it made are dropped. Dropping a data plane waits until its records are written.
    ///
    /// # Errors
    /// [`FabricError`] if there can be no thread.
    pub fn new(inner: C, sink: CaptureSink) -> Result<Self, FabricError> {
        Ok(Self { inner, session: Arc::new(Session::start(sink)?) })
    }
}

impl<C: Connector> Connector for CaptureConnector<C> {
    type Fabric = Capture<C::Fabric>;

    fn remote_invalidate(&self) -> bool {
        self.inner.remote_invalidate()
    }

    fn random(&self) -> Result<Random, FabricError> {
        self.inner.random()
    }

    fn fabric(&self, core: usize) -> Result<Self::Fabric, FabricError> {
        let inner = self.inner.fabric(core)?;
        Ok(Capture::new(inner, Session::tape(&self.session, core)?))
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<EndpointOf<C>, FabricError> {
        let inner = self.inner.connect(request)?;
        let own_private_data = padded(request.private_data);
        Ok(CaptureEndpoint { inner, kind: Kind::CONNECTED, own_private_data })
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor<EndpointOf<C>>>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let marking = Marking { accept, own_private_data: padded(request.private_data) };
        self.inner.listen(request, Box::new(marking))
    }
}

/// A connection of a captured core that is not adopted yet.
pub struct CaptureEndpoint<E> {
    inner: E,
    kind: Kind,
    own_private_data: [u8; PRIVATE_BYTES],
}

impl<E: Endpoint> CaptureEndpoint<E> {
    /// The driver's own endpoint, and how the connection began.
    pub(super) fn into_parts(self) -> (E, (Kind, PrivateData)) {
        let private_data = [self.own_private_data, padded(self.inner.peer_private_data())];
        (self.inner, (self.kind, private_data))
    }
}

impl<E: Endpoint> Endpoint for CaptureEndpoint<E> {
    fn peer_private_data(&self) -> &[u8] {
        self.inner.peer_private_data()
    }

    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn peer_identity(&self) -> u64 {
        self.inner.peer_identity()
    }

    fn reads_max(&self) -> u16 {
        self.inner.reads_max()
    }
}

/// Marks connections that a listener accepts.
struct Marking<E> {
    accept: Box<dyn Acceptor<CaptureEndpoint<E>>>,
    own_private_data: [u8; PRIVATE_BYTES],
}

impl<E: Endpoint> Acceptor<E> for Marking<E> {
    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.accept.pick_core(full)
    }

    fn accepted(&mut self, core: usize, inner: E) {
        let own_private_data = self.own_private_data;
        let endpoint = CaptureEndpoint { inner, kind: Kind::ACCEPTED, own_private_data };
        self.accept.accepted(core, endpoint);
    }
}

/// As much as a capture shows, zeroes behind it.
fn padded(bytes: &[u8]) -> [u8; PRIVATE_BYTES] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}
