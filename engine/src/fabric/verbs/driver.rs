//! The data plane of a core.

use super::super::*;
use super::config::VerbsConfig;
use super::control::Control;
use super::core::CoreShared;
use super::device::DeviceCaps;
use super::endpoint::VerbsEndpoint;
use crate::mem::*;

/// A core's data plane over RDMA devices.
#[derive(Debug)]
pub struct VerbsFabric {
    shared: Arc<CoreShared>,
}

impl VerbsFabric {
    pub(super) fn new(
        shared: Arc<CoreShared>,
        _control: Arc<Control>,
        _config: &VerbsConfig,
        _caps: &DeviceCaps,
        _remote_invalidate: bool,
    ) -> Self {
        Self { shared }
    }
}

impl Fabric for VerbsFabric {
    type Endpoint = VerbsEndpoint;
    fn caps(&self) -> &Caps {
        unimplemented!()
    }
    fn poll(&mut self, _out: &mut Completions) -> usize {
        0
    }
    fn post_recv(&mut self, _qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        Err(Full(buf))
    }
    fn post(&mut self, _qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        Err(Full(wr))
    }
    fn flush(&mut self) {}
    fn send_room(&self, _qp: QpId) -> usize {
        0
    }
    fn adopt(&mut self, _endpoint: VerbsEndpoint) -> Result<QpId, FabricError> {
        Ok(QpId::new(0, 0))
    }
    fn close(&mut self, _qp: QpId) {}
    fn bulk(&mut self, _qp: QpId, _bytes: usize) -> Option<Bulk> {
        None
    }
    fn expose(
        &mut self,
        _qp: QpId,
        _memory: Lease,
        _access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        Err(ExposeError::Down)
    }
    fn revoke(&mut self, _qp: QpId, _handle: u32) -> Revoked {
        Revoked::Now
    }
    fn park(&mut self, _at_most: Duration) {}
    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.shared) as Arc<dyn Wake>
    }
}
