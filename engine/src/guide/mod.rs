//! Guide: one page per topic. The front page of the crate has four complete programs to begin with.
//!
//! | topic | page |
//! |---|---|
//! | calls from threads, tasks and event loops | [`threads`] |
//! | handlers and calls as futures | [`async_handlers`] |
//! | reconnecting, graceful shutdown, panics, CPUs | [`connections`] |
//! | direct data placement, slabs of the application's own | [`memory`] |
//! | RDMA devices | [`rdma_hosts`] |
//! | who may connect, and what a hostile peer can do | [`security`] |
//! | every limit, and what happens when it is reached | [`limits`] |
//! | RFC 5666, its drafts, and version two | [`older_documents`] |
//! | simulation, fuzzing, real peers | [`testing`] |

#[doc = include_str!("async_handlers.md")]
pub mod async_handlers {}
#[doc = include_str!("connections.md")]
pub mod connections {}
#[doc = include_str!("limits.md")]
pub mod limits {}
#[doc = include_str!("memory.md")]
pub mod memory {}
#[doc = include_str!("older_documents.md")]
pub mod older_documents {}
#[doc = include_str!("rdma_hosts.md")]
pub mod rdma_hosts {}
#[doc = include_str!("security.md")]
pub mod security {}
#[doc = include_str!("testing.md")]
pub mod testing {}
#[doc = include_str!("threads.md")]
pub mod threads {}
