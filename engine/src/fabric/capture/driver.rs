//! The data plane of a captured core: the driver's own, with notes taken on the way.

use super::super::{
    Access, Caps, CompletionKind, Completions, ExposeError, Fabric, FabricError, Full, QpId,
    RemoteSlice, Revoked, SendWr, Wake,
};
use super::connector::CaptureEndpoint;
use super::session::Tape;
use super::wire::Wire;
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sys::clock::{Clock, Ticks};
use std::sync::Arc;
use std::time::Duration;

/// A driver whose traffic is captured. It behaves like the driver, but hands no message over by
/// value.
pub struct Capture<F: Fabric> {
    inner: F,
    tape: Tape,
    /// Wires by the index of the queue pair.
    wires: Vec<Option<Wire>>,
}

impl<F: Fabric> Capture<F> {
    pub(super) fn new(inner: F, tape: Tape) -> Self {
        Self { inner, tape, wires: Vec::new() }
    }

    #[inline]
    fn wire(wires: &mut [Option<Wire>], qp: QpId) -> Option<&mut Wire> {
        wires.get_mut(qp.index() as usize)?.as_mut().filter(|wire| wire.qp == qp)
    }

    fn note_posted(&mut self, qp: QpId, wr: &SendWr) {
        if let Some(wire) = Self::wire(&mut self.wires, qp) {
            wire.open(&mut self.tape);
            wire.posted(&mut self.tape, wr);
        }
    }

    fn note_received(&mut self, qp: QpId, message: &Buf, invalidated: Option<u32>) {
        if let Some(wire) = Self::wire(&mut self.wires, qp) {
            wire.open(&mut self.tape);
            wire.received(&mut self.tape, message, invalidated);
        }
    }

    /// The memory of a Read is let go here, before its owner hears that the Read is over.
    fn note_completed(&mut self, qp: QpId, kind: &CompletionKind) {
        let Some(wire) = Self::wire(&mut self.wires, qp) else { return };
        match kind {
            CompletionKind::Read { result, .. } => wire.read_completed(&mut self.tape, *result),
            CompletionKind::Down { .. } => {
                wire.open(&mut self.tape);
                wire.closed(&mut self.tape);
                self.wires[qp.index() as usize] = None;
            }
            CompletionKind::Received { message, invalidated } => {
                self.note_received(qp, message, *invalidated);
            }
            CompletionKind::Revoked { .. } | CompletionKind::RecvFlushed { .. } => {}
        }
    }
}

impl<F: Fabric> Fabric for Capture<F> {
    type Endpoint = CaptureEndpoint<F::Endpoint>;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn simulates_time(&self) -> bool {
        self.inner.simulates_time()
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    #[inline(always)]
    fn now(&self, clock: &Clock) -> Ticks {
        self.inner.now(clock)
    }

    #[inline]
    fn poll(&mut self, out: &mut Completions) -> usize {
        let mark = out.mark();
        let count = self.inner.poll(out);
        if count > 0 {
            for (qp, message, invalidated) in out.received_since(mark) {
                self.note_received(qp, message, invalidated);
            }
            for completion in out.others_since(mark) {
                self.note_completed(completion.qp, &completion.kind);
            }
        }
        count
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, buf: Buf) -> Result<(), Full<Buf>> {
        self.inner.post_recv(qp, buf)
    }

    fn prepare_recv(&mut self, qp: QpId, buf: &Buf) -> Result<(), FabricError> {
        self.inner.prepare_recv(qp, buf)
    }

    fn shares_receives(&self) -> bool {
        self.inner.shares_receives()
    }

    fn withdraw_recv(&mut self, qp: QpId) -> Option<Buf> {
        self.inner.withdraw_recv(qp)
    }

    /// A work request that does not fit is neither sent nor noted.
    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        if self.inner.send_room(qp) > 0 {
            self.note_posted(qp, &wr);
        }
        self.inner.post(qp, wr)
    }

    #[inline]
    fn flush(&mut self) {
        self.inner.flush();
    }

    fn send_room(&self, qp: QpId) -> usize {
        self.inner.send_room(qp)
    }

    fn has_unsent(&self, qp: QpId) -> bool {
        self.inner.has_unsent(qp)
    }

    fn adopt(&mut self, endpoint: Self::Endpoint) -> Result<QpId, FabricError> {
        let (endpoint, opening) = endpoint.into_parts();
        let qp = self.inner.adopt(endpoint)?;
        let index = qp.index() as usize;
        if self.wires.len() <= index {
            self.wires.resize_with(index + 1, || None);
        }
        let reads_max = self.inner.caps().send_queue_depth.into();
        let mut wire = Wire::new((qp, self.tape.next_connection()), opening, reads_max);
        wire.open(&mut self.tape);
        self.wires[index] = Some(wire);
        Ok(qp)
    }

    fn message_memory(&mut self, qp: QpId, bytes: usize) -> Option<Region> {
        self.inner.message_memory(qp, bytes)
    }

    fn read_sinks(&self, qp: QpId) -> Option<&BulkPool> {
        self.inner.read_sinks(qp)
    }

    fn connection_memory(&self, qp: QpId) -> Option<&BulkPool> {
        self.inner.connection_memory(qp)
    }

    fn lend(&mut self, pool: &BulkPool) {
        self.inner.lend(pool);
    }

    fn close(&mut self, qp: QpId) {
        self.inner.close(qp);
    }

    fn bulk(&mut self, qp: QpId, bytes: usize) -> Option<Bulk> {
        self.inner.bulk(qp, bytes)
    }

    fn expose(
        &mut self,
        qp: QpId,
        memory: Lease,
        access: Access,
    ) -> Result<RemoteSlice, ExposeError> {
        self.inner.expose(qp, memory, access)
    }

    fn revoke(&mut self, qp: QpId, handle: u32) -> Revoked {
        self.inner.revoke(qp, handle)
    }

    fn set_home(&mut self, qp: QpId, handle: u32, home: Lease) -> bool {
        self.inner.set_home(qp, handle, home)
    }

    fn home_bytes(&self, qp: QpId, handle: u32) -> Option<u32> {
        self.inner.home_bytes(qp, handle)
    }

    fn park(&mut self, at_most: Duration) {
        self.inner.park(at_most);
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.inner.waker()
    }

    fn end(&mut self) {
        self.inner.end();
    }
}
