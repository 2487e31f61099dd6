//! spin-nfsd from outside: the program, used by spin-nfs over shared memory, and by MOUNT over TCP.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends here")]

mod adversity;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod endings;
mod files;
mod log;
mod mount;
mod options;
mod reload;
mod reluctant;
#[path = "../../../engine/tests/common/rpcbind_daemon.rs"]
mod rpcbind_daemon;
mod scale;
mod server;
mod stats;
mod unit;
mod versions;
