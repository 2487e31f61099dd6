//! Code shared by the programs of this package: command line, key-value store, and NFS.
//!
//! Uses only the public API of `spinrpc`, like any application, and `spinrpc_tuning` for
//! suggestions.

pub mod command_line;
pub mod kv;
pub mod nfs;
