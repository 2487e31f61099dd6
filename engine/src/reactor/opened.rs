//! Calls under RPCSEC_GSS whose arguments took several turns to open go to their handler. Called by the api's dispatch.

use crate::fabric::ConnId;
use crate::reactor::pending::serving::Serving;
use crate::reactor::pending::upcalls::CallFrame;
use crate::reactor::state::core::CoreCell;
use crate::reactor::words::calls::{Admitted, CallOutcome, ReplyTarget};
use spinrpc_proto::output::SlotId;

impl CoreCell {
    /// Has a call served that was deferred until now; nothing, if its connection has gone.
    pub(crate) fn serve_opened(
        &self,
        (conn, slot): (ConnId, SlotId),
        serve: impl FnOnce(&Serving<'_>) -> CallOutcome,
    ) {
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        let serving = Serving::placed(&to);
        // Its time may have ended while it was opened.
        let late_by = self.reactor().lateness(conn, slot);
        let outcome = match late_by {
            None => self.serve_in_place(conn, || serve(&serving)),
            Some(late_us) => {
                self.reactor().refuse_late(conn, slot, message.bytes(), late_us);
                CallOutcome::Done
            }
        };
        let admitted = Admitted { header_bytes: 0, plain: false, long: false };
        let frame = CallFrame { conn, slot, message, admitted, sinks: None };
        self.reactor().finish_call(frame, outcome);
        self.close_if_asked();
    }
}
