//! NFS version 3 (RFC 1813) over the engine: common code, the client, and the server.
//!
//! `protocol` and `mount3` are generated from XDR descriptions: every length is bounded before anything is stored.

// Output may block its thread: events go by `sys::journal`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod client;
pub mod mount3;
pub mod nfs3;
pub mod protocol;
pub mod server;
pub mod status;
mod sys;

/// The example in the README works.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
