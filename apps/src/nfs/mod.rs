//! NFS version 3 (RFC 1813) over the engine: what client and server share, the client, and the server.
//!
//! `mount3` and `protocol` are generated from descriptions. The types that are not converted yet are those of crate
//! `nfs3_types`; `xdr` reads and writes them on the engine's own streams, every length bounded before anything is
//! kept, and `nfs3` lists their fields and the procedures. `status` has the words for what servers answer. `client` makes
//! calls, `server` answers them. Called by the programs `spin-nfs` and `spin-nfsd`.

pub mod client;
pub mod mount3;
pub mod nfs3;
pub mod protocol;
pub mod server;
pub mod status;
mod tcp;
