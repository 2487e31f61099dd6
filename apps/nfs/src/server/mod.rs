//! An NFSv3 server (RFC 1813) on the engine: the service of each core, its exports, and their file systems.
//!
//! A call goes `service` -> `procedures` -> [`FileSystem`](file_system::FileSystem), or, for file
//! data, `service` -> [`DataPath`](file_system::DataPath); its results return the same way.

mod answer;
mod caller;
mod catch_panic;
#[cfg(feature = "cephfs")]
pub mod cephfs;
pub mod client_table;
mod data;
mod errors;
pub mod exports;
pub mod file_system;
pub mod handle;
#[cfg(feature = "krb5")]
pub mod kerberos;
pub mod local_fs;
pub mod memfs;
pub mod mount;
mod nodes;
mod open_syncs;
mod pool;
pub mod procedures;
mod rights;
mod service;
mod site;
pub mod stats;
pub mod tcp;
mod threads;
mod throttle;
mod unix;

pub use service::Server;
pub use site::ServerOptions;
