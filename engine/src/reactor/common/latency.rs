//! Measures how long handlers take to answer calls. Runs only while latencies are requested: the api then runs each
//! handler between `begin_timer` and `end_timer`.

use crate::fabric::ConnId;
use crate::reactor::pending::latency::Latencies;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::latency::{CallTimer, Row};
use spinrpc_proto::output::SlotId;
use std::sync::Arc;

impl CoreCell {
    /// A handler begins with a call.
    pub(crate) fn begin_timer(&self, row: Row) {
        let mut reactor = self.reactor();
        let start = reactor.read_clock();
        reactor.timer = Some(CallTimer { start, row });
    }

    /// The handler has returned or panicked: the call is counted, unless it was deferred.
    pub(crate) fn end_timer(&self) {
        let mut reactor = self.reactor();
        if let Some(timer) = reactor.timer.take() {
            reactor.count_duration(timer);
        }
    }
}

impl Reactor {
    /// Obeys a letter of the control socket's thread; returns true if latencies are to be measured.
    pub(in crate::reactor) fn measure(&mut self, latencies: &Arc<Latencies>) -> bool {
        self.latencies = Some(Arc::clone(latencies));
        latencies.obey()
    }

    /// A deferred call has been answered.
    #[cold]
    pub(in crate::reactor) fn count_deferred(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        if let Some(timer) = c.serves[usize::from(slot.index)].timer.take() {
            self.count_duration(timer);
        }
    }

    /// A call that was measured has been answered.
    #[cold]
    pub(in crate::reactor) fn count_duration(&self, timer: CallTimer) {
        if let Some(latencies) = &self.latencies {
            // The counters of two CPUs may differ by some ticks: the thread of a core may move, where it is not pinned.
            let ticks = self.read_clock().0.saturating_sub(timer.start.0);
            latencies.record(timer.row, self.clock.to_ns(ticks));
        }
    }
}
