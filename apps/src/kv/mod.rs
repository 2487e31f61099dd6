//! The key-value store: its protocol (`kv.x`), the store, the service on an engine, and a client.
//!
//! `protocol` is generated from `kv.x`; `store` knows nothing of RPC; `service` puts
//! it behind calls and `scanner` answers the slow ones from a second thread; `watch` calls clients
//! back whose keys change. `client` is the other end, and `watcher` that which is called back. Called
//! by the program `spin-kv`.

mod checksum;
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
