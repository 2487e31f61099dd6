//! Bodies under RPCSEC_GSS that take several turns, of both halves: a part of one in each turn; and calls whose arguments
//! were opened go to their handler. Called by the api's dispatch.

use crate::fabric::ConnId;
use crate::reactor::in_flight::gss_work::{Finished, Then};
use crate::reactor::in_flight::server_call::Serving;
use crate::reactor::in_flight::upcalls::{CallFrame, CoreEvent, Upcalls};
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{Admitted, CallOutcome, ReplyTarget};
use spinrpc_proto::events::SlotId;

impl CoreCell {
    /// Sends the calls that are sealed, of which a long one is work enough for a turn; returns true if it has sent such a one.
    pub(crate) fn begin_steps(&self) -> bool {
        let has_sent = self.go_on_with_sealed();
        self.reactor().gss_work().begin_steps(has_sent);
        has_sent
    }

    /// Returns true if this turn is to process another part of a body.
    pub(crate) fn goes_on_with_steps(&self) -> bool {
        self.reactor().gss_work().goes_on()
    }

    /// Processes a part of one body; returns the body if it was the last part. Replies are sent.
    pub(crate) fn step_work(&self) -> Option<Finished> {
        let finished = self.reactor().gss_work().step();
        let (body, end) = finished?;
        match body.then {
            Then::Reply { .. } => self.finish_sealed(body, end.is_ok()),
            Then::Send { slot, .. } => self.take_sealed_call(body, slot, end.is_ok()),
            Then::Serve { .. } | Then::Deliver { .. } => return Some((body, end)),
        }
        None
    }

    /// Tells the dispatch of work that an application has made outside of it.
    #[cold]
    pub(in crate::reactor) fn tell_of_work(&self, up: &mut impl Upcalls) {
        let is_new = self.reactor().gss_work().take_news();
        if is_new {
            up.on_event(CoreEvent::Context);
        }
    }

    /// Serves a call that was deferred until now; does nothing if its connection is gone.
    pub(crate) fn serve_opened(
        &self,
        (conn, slot): (ConnId, SlotId),
        serve: impl FnOnce(&Serving<'_>) -> CallOutcome,
    ) {
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        let serving = Serving::placed(&to);
        let outcome = self.serve_in_place(conn, || serve(&serving));
        let admitted = Admitted { header_bytes: 0, plain: false, long: false };
        let frame = CallFrame { conn, slot, message, admitted, sinks: None };
        self.reactor().finish_call(frame, outcome);
        self.close_if_asked();
    }
}
