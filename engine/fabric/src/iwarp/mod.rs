//! The driver for hosts without an RDMA device: RDMAP over DDP over MPA (iWARP) over a TCP socket of the process.
//!
//! The peer may be another process of this library, or an adapter. `wire` has the protocol, without I/O. The control half
//! (`connector`, `listener`) makes connections with blocking sockets and a thread for each listener; the data half (`driver`
//! and, for each connection, `queue_pair`) belongs to a core. One-sided access is code of this module: `exposure` checks each
//! segment against the right, the bounds and the life of its key, so that a peer reaches exactly the bytes of a live key.
//! The key of memory that an RDMA Read fills serves the response to that Read, and no other message.
//!
//! May use `mem`, `sync` and `sys`; the engine makes connectors.
#![forbid(unsafe_code)]

mod arrivals;
mod budget;
mod config;
mod connector;
mod driver;
mod ending;
mod exposure;
mod framing;
mod link;
mod listener;
mod queue_pair;
mod send_stream;
mod socket;
#[cfg(all(test, not(loom)))]
mod tests;
#[doc(hidden)]
pub mod wire;

pub use config::IwarpConfig;
pub use connector::IwarpConnector;
pub use driver::IwarpFabric;
