//! spinrpc: a user-space, thread-per-core, busy-polling engine for ONC RPC over RDMA.
//!
//! Data flows one way: wire -> proto -> reactor -> api, and back. Each module's head says what it
//! is for, what it may touch and who calls it; `tests/architecture.rs` checks the edges.

pub mod config;
pub mod fabric;
pub mod mem;
pub mod sync;
pub mod sys;
