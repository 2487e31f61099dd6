//! Code shared by the programs of this package: command line and key-value store.
//!
//! Uses only the public API of `spinrpc`, like any application, and `spinrpc_tuning` for
//! suggestions.

pub mod command_line;
pub mod kv;
