//! The data plane of a captured core: the driver's own, with notes taken on the way.

use super::super::{
    Access, AnyFabric, Caps, CompletionKind, Completions, ConnMemory, Endpoint, ExposeError,
    Fabric, FabricError, Full, InFlight, QpId, RemoteSlice, Revoked, SendWr, ShortMessages, Wake,
};
use super::connector::Opening;
use super::session::Tape;
use super::wire::Wire;
use crate::mem::{Buf, Bulk, BulkPool, Lease, Region};
use crate::sys::clock::{Clock, Ticks};
use std::sync::Arc;
use std::time::Duration;

/// A driver whose traffic is captured. It behaves like the driver, but hands no message over by
/// value.
pub struct Capture {
    inner: AnyFabric,
    caps: Caps,
    tape: Tape,
    wires: Vec<Option<Wire>>,
}

impl Capture {
    pub(super) fn new(inner: AnyFabric, tape: Tape) -> Self {
        let caps = Caps { sends_shorts: false, takes_shorts: false, ..*inner.caps() };
        Self { inner, caps, tape, wires: Vec::new() }
    }

    #[inline]
    fn wire(wires: &mut [Option<Wire>], qp: QpId) -> Option<&mut Wire> {
        wires.get_mut(qp.index() as usize)?.as_mut().filter(|wire| wire.qp == qp)
    }

    fn note_posted(&mut self, qp: QpId, wr: &SendWr) {
        if let Some(wire) = Self::wire(&mut self.wires, qp) {
            wire.open(&mut self.tape);
            wire.note(&mut self.tape, wr);
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

// No lane: each message is captured where it is posted or polled.
impl ShortMessages for Capture {}

macro_rules! forward {
    ($([$($mutable:tt)?] $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?;)*) => {$(
        #[inline]
        fn $name(&$($mutable)? self, $($arg: $type),*) $(-> $out)? {
            self.inner.$name($($arg),*)
        }
    )*};
}

impl Fabric for Capture {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn begin(&mut self, lent: Option<&BulkPool>, _takes_shorts: bool) -> Arc<dyn Wake> {
        self.inner.begin(lent, false)
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

    /// A work request that does not fit is neither sent nor noted.
    #[inline]
    fn post(&mut self, qp: QpId, wr: SendWr) -> Result<(), Full<SendWr>> {
        if self.inner.room(qp) > 0 {
            self.note_posted(qp, &wr);
        }
        self.inner.post(qp, wr)
    }

    fn adopt(&mut self, endpoint: Endpoint) -> Result<QpId, FabricError> {
        let (endpoint, opening) = Opening::take(endpoint)?;
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

    forward! {
        [] now(clock: &Clock) -> Ticks;
        [mut] post_recv(qp: QpId, buf: Buf) -> Result<(), Full<Buf>>;
        [mut] flush();
        [] room(qp: QpId) -> usize;
        [] outstanding(qp: QpId) -> InFlight;
        [mut] message_memory(qp: QpId, bytes: usize) -> Option<Region>;
        [] memory(qp: QpId) -> ConnMemory<'_>;
        [mut] close(qp: QpId);
        [mut] bulk(qp: QpId, bytes: usize) -> Option<Bulk>;
        [mut] expose(qp: QpId, memory: Lease, access: Access, home: Option<Lease>) -> Result<RemoteSlice, ExposeError>;
        [mut] revoke(qp: QpId, handle: u32) -> Revoked;
        [mut] park(at_most: Duration);
        [mut] end();
    }
}
