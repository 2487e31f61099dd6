//! NFS version 3 (RFC 1813) over the engine: common code, the client, and the server.
//!
//! `protocol` and `mount3` are generated from XDR descriptions: every length is bounded before
//! anything is stored. `nfs3` has common code for the procedures. `status` describes statuses in
//! words. `client` makes calls, `server` answers them. `sys` is what back ends need of the kernel.
//! Used by the programs `spin-nfs` and `spin-nfsd`.

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
