//! What the programs of this package share: their command line, and the key-value store's protocol.
//!
//! Uses the public API of `spinrpc` only, as any application would.

pub mod command_line;
pub mod kv;
