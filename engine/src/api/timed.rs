//! A service whose calls are measured. Stands between the dispatch and the service while latencies
//! are asked for ([`control`](crate::control)); otherwise it is not there, and costs nothing.

use super::call::Call;
use super::service::{ConnectionEvent, ConnectionId, Service};
use crate::reactor::Progress;
use crate::reactor::pending::latency::row_of;
use crate::reactor::state::core::CoreCell;
use spinrpc_proto::ids::Procedure;
use std::cell::RefCell;
use std::mem::replace;
use std::rc::Rc;

/// Holds the service while it is measured; otherwise empty.
type Within = Rc<RefCell<Option<Box<dyn Service>>>>;

/// Puts the measuring service in the place of a service, and takes it away again. Both are made before, so that
/// neither allocates.
pub(super) struct TimedSwitch {
    within: Within,
    /// The measuring service, while it is not in use.
    timed: Option<Box<dyn Service>>,
}

impl TimedSwitch {
    pub(super) fn new(ops: &Rc<CoreCell>, index: usize) -> Self {
        let within = Within::default();
        let timed = Timed { ops: Rc::clone(ops), index, within: Rc::clone(&within) };
        Self { within, timed: Some(Box::new(timed)) }
    }

    /// Starts or stops measuring the service at `place`. Must not be called while the service runs.
    pub(super) fn set(&mut self, is_on: bool, place: &mut Box<dyn Service>) {
        match (is_on, self.timed.take()) {
            (true, Some(timed)) => *self.within.borrow_mut() = Some(replace(place, timed)),
            (false, None) => {
                let service = self.within.take();
                self.timed = service.map(|service| replace(place, service));
            }
            (_, unchanged) => self.timed = unchanged,
        }
    }
}

struct Timed {
    ops: Rc<CoreCell>,
    index: usize,
    within: Within,
}

impl Timed {
    fn with<T: Default>(&self, run: impl FnOnce(&mut dyn Service) -> T) -> T {
        match &mut *self.within.borrow_mut() {
            Some(service) => run(&mut **service),
            None => T::default(),
        }
    }
}

impl Service for Timed {
    fn call(&mut self, call: Call<'_>) {
        self.ops.begin_timer(row_of(self.index, call.procedure()));
        // A panic ends the call, too.
        let _timing = Timing(&self.ops);
        self.with(|service| service.call(call));
    }

    fn is_idempotent(&self, procedure: Procedure) -> bool {
        self.with(|service| service.is_idempotent(procedure))
    }

    fn keeps_replies_for(&mut self, connection: ConnectionId) -> bool {
        self.with(|service| service.keeps_replies_for(connection))
    }

    fn too_many(&mut self, call: Call<'_>) {
        self.with(|service| service.too_many(call));
    }

    fn polls(&self) -> bool {
        self.with(|service| service.polls())
    }

    fn poll(&mut self) -> Progress {
        self.with(|service| service.poll())
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        self.with(|service| service.on_event(event));
    }
}

/// A call is measured until this is dropped.
struct Timing<'a>(&'a CoreCell);

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.0.end_timer();
    }
}
