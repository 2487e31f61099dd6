//! The control plane of captured cores: the driver's own; it marks connections with how they were
//! made.

use super::super::{
    Acceptor, AnyFabric, ConnectRequest, Connector, Endpoint, FabricError, ListenRequest, Peer,
    link_of,
};
use super::driver::Capture;
use super::record::Kind;
use super::session::{CaptureSink, Session};
use super::wire::BothPrivateData;
use crate::connector_common::{PrivateData, padded};
use crate::sys::random::Random;
use std::any::Any;
use std::sync::Arc;

/// A driver's control plane whose cores are captured, all into one file.
pub struct CaptureConnector {
    inner: Arc<dyn Connector>,
    session: Arc<Session>,
}

impl CaptureConnector {
    /// Wraps `inner` and starts the thread that writes to the sink, which ends when this and every
    /// data plane it made are dropped. Dropping a data plane waits until its records are written.
    ///
    /// # Errors
    /// [`FabricError`] if there can be no thread.
    pub fn new(inner: Arc<dyn Connector>, sink: CaptureSink) -> Result<Self, FabricError> {
        Ok(Self { inner, session: Arc::new(Session::new(sink)?) })
    }
}

impl Connector for CaptureConnector {
    type Fabric = Capture;

    fn remote_invalidate(&self) -> bool {
        self.inner.remote_invalidate()
    }

    fn random(&self) -> Result<Random, FabricError> {
        self.inner.random()
    }

    fn fabric(&self, core: usize) -> Result<Capture, FabricError> {
        let inner = self.inner.any_fabric(core)?;
        Ok(Capture::new(inner, Session::tape(&self.session, core)?))
    }

    fn any_fabric(&self, core: usize) -> Result<AnyFabric, FabricError> {
        Ok(AnyFabric::Other(Box::new(self.fabric(core)?)))
    }

    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Endpoint, FabricError> {
        let own_private_data = padded(request.private_data);
        let opening = Opening { kind: Kind::CONNECTED, own_private_data };
        self.inner.connect(request).map(|endpoint| opening.mark(endpoint))
    }

    fn listen(
        &self,
        request: &ListenRequest<'_>,
        accept: Box<dyn Acceptor>,
    ) -> Result<Box<dyn Send>, FabricError> {
        let own_private_data = padded(request.private_data);
        let opening = Opening { kind: Kind::ACCEPTED, own_private_data };
        self.inner.listen(request, Box::new(Marking { accept, opening }))
    }
}

type Marked = (Box<dyn Any + Send>, Opening);

#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    kind: Kind,
    own_private_data: PrivateData,
}

impl Opening {
    fn mark(self, endpoint: Endpoint) -> Endpoint {
        Endpoint { link: Box::new((endpoint.link, self)), ..endpoint }
    }

    pub(super) fn take(
        endpoint: Endpoint,
    ) -> Result<(Endpoint, (Kind, BothPrivateData)), FabricError> {
        let (link, Self { kind, own_private_data }) = *link_of::<Marked>(endpoint.link)?;
        let private_data = [own_private_data, padded(&endpoint.peer_private_data)];
        Ok((Endpoint { link, ..endpoint }, (kind, private_data)))
    }
}

struct Marking {
    accept: Box<dyn Acceptor>,
    opening: Opening,
}

impl Acceptor for Marking {
    fn admits(&mut self, peer: &Peer) -> bool {
        self.accept.admits(peer)
    }

    fn pick_core(&mut self, full: &[usize]) -> Option<usize> {
        self.accept.pick_core(full)
    }

    fn accepted(&mut self, core: usize, endpoint: Endpoint) {
        self.accept.accepted(core, self.opening.mark(endpoint));
    }
}
