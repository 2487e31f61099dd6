//! Code shared by the programs of this package: command line, key-value store, and NFS.
//!
//! Uses the public API of `spinrpc` only, as any application would, and `spinrpc_tuning` for words that
//! are nearly known.

pub mod command_line;
pub mod kv;
pub mod nfs;
