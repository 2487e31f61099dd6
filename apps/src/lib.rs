//! Code shared by the programs of this package: command line and log.
//!
//! Uses only the public API of `spinrpc`, like any application, and `spinrpc_tuning` for
//! suggestions.

#![forbid(unsafe_code)]

pub mod command_line;
pub mod log;
