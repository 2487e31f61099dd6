//! The bodies of the fuzz targets, one `run(data: &[u8])` for each: it panics when something does
//! not hold. The targets in `fuzz_targets` call them; so do the tests of the workspace, which
//! include these files by path and replay `corpus` without a fuzzer.

mod plan;
#[path = "../../proto/tests/machines/recorder.rs"]
mod recorder;
mod script;
mod wire;

pub mod gss_body;
pub mod gss_header;
pub mod handshake;
pub mod iwarp;
pub mod nfs;
pub mod pair;
pub mod payload;
pub mod plain;
pub mod profile;
pub mod requester;
pub mod responder;
pub mod ring;
pub mod rpc;
pub mod rpcbind;
pub mod token_open;
pub mod v1_header;
pub mod v2_header;
pub mod version_two;
pub mod xdr;
pub mod xdrgen;
