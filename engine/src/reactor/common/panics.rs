//! Panics of the application's code: counts them, logs some of them, and, where `rpc.on_panic` says so,
//! passes them on. Called by the api, which catches them where it calls handlers; the state of the core is not
//! borrowed there, so that a panic leaves none of it half changed.

use crate::config::OnPanic;
use crate::reactor::in_flight::panic_log::{PanicPlace, message_of};
use crate::reactor::state::core::CoreCell;
use crate::sys::journal::event;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl CoreCell {
    /// A handler panicked.
    #[cold]
    pub(crate) fn take_panic(&self, place: PanicPlace, payload: Box<dyn Any + Send>) {
        let (due, policy) = {
            let mut reactor = self.reactor();
            (reactor.count_panic(), reactor.config().on_panic())
        };
        let text = message_of(&*payload);
        if let Some(panics) = due {
            let PanicPlace { handler, program, procedure } = place;
            event!(ERROR, ?handler, ?program, ?procedure, ?text, panics, "a handler panicked");
        }
        if policy == OnPanic::End {
            self.leave_turn();
            resume_unwind(payload);
        }
        // The payload is the application's, too: dropping it may panic.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
    }

    /// The turn ends here. A call that the application starts later, outside of turns, reads the clock.
    fn leave_turn(&self) {
        self.core_lane().end_turn();
        self.reactor().leave_turn();
    }
}
