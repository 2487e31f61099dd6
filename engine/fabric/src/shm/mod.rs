//! The shared-memory driver: two processes (or threads) of one host, no device, no privileges.
//!
//! A connection is one sealed memfd with a ring per direction and a table of memory keys per side,
//! and one arena per side for what the peer may RDMA Read and Write. Each core has a bell, on which
//! peers ring for connections that the core does not look at all the time. Slabs that a side lends are mapped by the
//! other for reading: it reads arguments there, and fetches results from there (`fetch`). There are no locks and no
//! pointers in shared memory, and nothing that outlives the processes: a crash at any instruction
//! ends one connection.
//!
//! Everything read from shared memory is copied out once and then checked. May use `mem`, `sync`
//! and `sys`; the reactor calls it through the traits of [`fabric`](super).
#![allow(unsafe_code)]

mod address;
mod budget;
mod cold_poll;
mod config;
mod connector;
mod control;
mod copy_order;
mod core;
mod driver;
mod endpoint;
mod exposure;
mod handshake;
mod layout;
mod queue_pair;
mod short_endpoint;
mod socket;
#[cfg(all(test, not(loom)))]
pub(super) mod tests;
mod window;

pub use address::check_address;
pub use config::ShmConfig;
pub use connector::ShmConnector;
pub use driver::ShmFabric;
#[doc(hidden)]
pub use handshake::fuzz as fuzz_handshake;
pub use short_endpoint::ShmShortEndpoint;
