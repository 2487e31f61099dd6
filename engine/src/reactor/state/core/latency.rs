//! Measures how long handlers take to answer calls. Runs only while latencies are requested: the api then runs each
//! handler between `begin_timer` and `end_timer`.

use super::{Core, CoreCell};
use crate::reactor::types::latency::{CallTimer, Row};

impl CoreCell {
    /// A handler begins with a call.
    pub(crate) fn begin_timer(&self, row: Row) {
        let mut reactor = self.reactor();
        let start = reactor.read_clock();
        reactor.timer = Some(CallTimer::new(start, row));
    }

    /// The handler has returned or panicked: the call is counted, unless it was deferred.
    pub(crate) fn end_timer(&self) {
        let mut reactor = self.reactor();
        if let Some(timer) = reactor.timer.take() {
            reactor.count_duration(timer);
        }
    }
}

impl Core {
    /// The timer of a call that its handler defers, if it is measured: until the answer arrives by mail, not until the
    /// handler returns.
    pub(in crate::reactor) fn take_timer(&mut self) -> Option<CallTimer> {
        self.timer.take()
    }

    /// A call that was measured has been answered.
    #[cold]
    pub(in crate::reactor) fn count_duration(&self, timer: CallTimer) {
        let (row, ticks) = timer.end(self.read_clock());
        self.inbox.latencies().record(row, self.clock.to_ns(ticks));
    }
}
