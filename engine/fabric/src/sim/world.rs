//! The handle on a world that tests hold.

use super::config::{Device, Network};
use super::connector::SimConnector;
use super::endpoint::Side;
use super::state::State;
use super::trace::{Observed, SideId, Violation};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::lock;
use std::sync::{Arc, Mutex, MutexGuard};

/// A simulated network and its clock; clones are the same one.
#[derive(Clone, Debug)]
pub struct World(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    /// Nanoseconds.
    clock: Arc<AtomicU64>,
    state: Mutex<State>,
}

impl Shared {
    /// The state. Nothing that may come back here is called while it is held.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is the test's failure, and told there.
        lock(&self.state)
    }

    pub(super) fn now(&self) -> u64 {
        // Relaxed: a thread that must not see an old time is the one that advances it.
        self.clock.load(Ordering::Relaxed)
    }
}

/// Resources that one end of a connection still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The end.
    pub side: SideId,
    /// The end went down.
    pub is_down: bool,
    /// Receives posted and not used, ...
    pub receives: usize,
    /// ... of this number, which its owner posted at first.
    pub first_receives: usize,
    /// Keys alive.
    pub keys: usize,
    /// Blocks of the connection's memory that are lent out.
    pub blocks: usize,
    /// Work requests of it on their way.
    pub flying: usize,
    /// Messages that wait for a receive of it.
    pub stalled: usize,
}

impl World {
    /// A world without nodes, at time zero.
    pub fn new(network: Network) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let state = Mutex::new(State::new(network, Arc::clone(&clock)));
        Self(Arc::new(Shared { clock, state }))
    }

    /// A node with this device.
    pub fn connector(&self, device: Device) -> SimConnector {
        SimConnector::new(Arc::clone(&self.0), device)
    }

    /// Virtual nanoseconds since the world began.
    pub fn now_ns(&self) -> u64 {
        self.0.now()
    }

    /// Time of the next scheduled event; `None` when nothing is in flight.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.state().next_at()
    }

    /// Goes on to this time, at which and before which everything due happens. A time that is over
    /// is now.
    pub fn advance_to(&self, at_ns: u64) {
        let mut state = self.0.state();
        let ns = at_ns.saturating_sub(state.now());
        state.pass(ns);
    }

    /// The owner of this end dies: both ends go down with `PeerDied`, its peer's a little later.
    pub fn kill(&self, side: SideId) {
        let mut state = self.0.state();
        if side.0 < state.sides.len() {
            state.kill(side);
        }
    }

    /// Connections to this address fail from now on, or are possible again.
    pub fn set_reachable(&self, address: &str, is_reachable: bool) {
        let unreachable = &mut self.0.state().unreachable;
        match is_reachable {
            true => unreachable.remove(address),
            false => unreachable.insert(address.to_owned()),
        };
    }

    /// Moves the observations since the last call to the end of `into`. Returns the rules broken
    /// since then between nodes that should keep them.
    pub fn take_observed(&self, into: &mut Vec<Observed>) -> Vec<Violation> {
        let mut state = self.0.state();
        into.append(&mut state.observed);
        std::mem::take(&mut state.violations)
    }

    /// A digest of everything that happened so far.
    pub fn digest(&self) -> u64 {
        self.0.state().digest()
    }

    /// Resources held by every end, including ends of connections long gone.
    pub fn holdings(&self) -> Vec<Holding> {
        let state = self.0.state();
        state.sides.iter().enumerate().map(Holding::of).collect()
    }

    /// The first of [`World::holdings`] that `is_sought` accepts, which must not call the world.
    pub fn find_holding(&self, is_sought: impl FnMut(&Holding) -> bool) -> Option<Holding> {
        let state = self.0.state();
        state.sides.iter().enumerate().map(Holding::of).find(is_sought)
    }
}

impl Holding {
    fn of((index, side): (usize, &Side)) -> Self {
        Self {
            side: SideId(index),
            is_down: side.is_down(),
            receives: side.receives.len(),
            first_receives: side.first_receives.unwrap_or(0),
            keys: side.exposures.alive(),
            blocks: side.pool.classes().map(|class| class.total - class.free).sum(),
            flying: side.flying.len(),
            stalled: side.stalled.len(),
        }
    }
}
