//! Long bodies under RPCSEC_GSS, of both halves, that the threads of the core have sealed or unsealed. Called by the turn, and by
//! the api's dispatch.

use crate::fabric::ConnId;
use crate::reactor::in_flight::gss_bodies::{Awaited, Body, Finished, Purpose};
use crate::reactor::in_flight::gss_pool::Spawn;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::{CallFrame, CoreEvent, Upcalls};
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{Admitted, CallOutcome, ReplyTarget};
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Instant;

impl CoreCell {
    /// The core has threads for long bodies.
    pub(crate) fn start_threads_by(&self, spawn: Spawn) {
        self.reactor().gss_work().start_threads_by(spawn);
    }

    /// Returns true if a body of this length is left to a thread by [`CoreCell::offload_unseal`].
    pub(crate) fn takes_body(&self, conn: ConnId, bytes: usize) -> bool {
        self.reactor().gss_work().takes(conn, bytes)
    }

    /// Has a thread unseal a body, which comes back as [`CoreEvent::Unsealed`].
    pub(crate) fn offload_unseal(&self, body: Body) {
        let mut reactor = self.reactor();
        if let Purpose::Serve { slot, .. } = body.then {
            let times = reactor.unseal_times();
            let c = reactor.conn(body.conn);
            c.into_iter().for_each(|c| c.serves.put_times(slot, times));
        }
        reactor.offload_body(body);
    }

    /// Waits for the next reply of a connection that a thread unseals.
    pub(crate) fn wait_for_reply(&self, conn: ConnId) -> Option<Finished> {
        self.reactor().gss_work().wait_for(Some(conn), Awaited::Deliver)
    }

    /// Goes on with the bodies that are finished, and with calls that wait; returns the number of bodies.
    pub(in crate::reactor) fn go_on_with_bodies(&self, up: &mut impl Upcalls) -> usize {
        let mut count = 0;
        if self.reactor().gss_work().is_empty() {
            return count;
        }
        let budget = self.reactor().config().poll_budget();
        while count < budget {
            let finished = self.reactor().gss_work().next_finished();
            let Some((body, end)) = finished else { break };
            count += 1;
            match body.then {
                Purpose::Reply { .. } => self.finish_sealed(body, end.is_ok()),
                Purpose::Send { slot, .. } => {
                    let message = Some(body.message).filter(|_| end.is_ok());
                    self.reactor().take_sealed_call((body.conn, slot), message);
                }
                Purpose::Serve { .. } | Purpose::Deliver { .. } => {
                    up.on_event(CoreEvent::Unsealed(&mut Some((body, end))));
                }
            }
        }
        if count == budget {
            self.reactor().wake_by(Instant(0));
        }
        self.reactor().go_on_with_sealed();
        count
    }

    /// Serves a call that was deferred until now; does nothing if its connection is gone.
    pub(crate) fn serve_unsealed(
        &self,
        (conn, slot): (ConnId, SlotId),
        serve: impl FnOnce(&Serving<'_>) -> CallOutcome,
    ) {
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        self.reactor().end_wait(conn, slot);
        let to = ReplyTarget { conn, slot, message: message.bytes(), is_chunkless: false };
        let serving = Serving::placed(&to);
        let outcome = self.serve_in_place(conn, || serve(&serving));
        self.reactor().end_resumed(conn, serving.xid());
        let admitted = Admitted { header_bytes: 0, is_chunkless: false, long: false };
        let frame = CallFrame { conn, slot, message, admitted, sinks: None };
        self.reactor().finish_call(frame, outcome);
        self.close_if_asked();
    }
}
