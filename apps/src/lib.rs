//! What the programs of this package share: their command line, the key-value store, and NFS.
//!
//! Uses the public API of `spinrpc` only, as any application would, and `spinrpc_tuning` for words that
//! are nearly known.

pub mod command_line;
pub mod kv;
pub mod nfs;
