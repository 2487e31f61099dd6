//! The key-value store: its protocol (`kv.x`), the store, the service on an engine, and a client.
//!
//! `protocol` is generated from `kv.x`; `store` is independent of RPC; `service` exposes it, and
//! `scanner` answers slow calls on a second thread; `watch` notifies clients of changed keys.
//! `client` is the other end, and `watcher` receives the notifications. Used by the program
//! `spin-kv`.

mod client;
pub mod protocol;
mod scanner;
mod service;
mod store;
mod watch;
mod watcher;

pub use client::{Client, Entry, Error, Page};
pub use service::{KvService, serve};
pub use store::{Capacity, Store, Value};
pub use watch::WATCHES_MAX;
pub use watcher::watch;
