//! A simulated fabric: every node in one process, on virtual time, decided by a seed. For tests.
//!
//! A [`World`] is a network and its clock. Nodes get a [`SimConnector`] each; the seed decides how
//! long their cores' messages travel, RDMA Writes overtake each other but never a Send behind them
//! (RFC 5666 section 2), receivers are not ready, queues and key tables run out, peers die. Time
//! passes only when a core polls or the world is told to go on, so that the same seed gives the
//! same run: nothing here depends on addresses, hashing, threads or the time of day.
//!
//! The world sees everything that happens on the wire: it checks each RDMA access against the
//! exposures at that moment, and lists its observations ([`Observed`]) for checks that know the
//! protocol. It works from several threads, too, but then the order is theirs.
//!
//! May use `mem`, `sync` and `sys`; tests and the `sim` example make worlds.

mod config;
mod connector;
mod driver;
mod early_completion;
mod endpoint;
mod exposure;
mod rng;
mod short_endpoint;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;
mod trace;
mod world;

pub use config::{Device, EarlyCompletion, Network};
pub use connector::{SimConnector, Waker};
pub use driver::SimFabric;
pub use rng::Rng;
pub use short_endpoint::SimShortEndpoint;
pub use trace::{NO_RECEIVE, Observed, SideId, Violation, What};
pub use world::{Holding, World};
