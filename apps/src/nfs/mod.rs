//! NFS version 3 (RFC 1813) over the engine: what client and server share, the client, and the server.
//!
//! `protocol` and `mount3` are generated from descriptions, all XDR is: every length is bounded before anything is
//! kept. `nfs3` has what client and server share of the procedures. `status` has the words for what servers answer.
//! `client` makes calls, `server` answers them. Called by the programs `spin-nfs` and `spin-nfsd`.

pub mod client;
pub mod mount3;
pub mod nfs3;
pub mod protocol;
pub mod server;
pub mod status;
mod tcp;
