//! spin-nfsd from outside: the program, used by spin-nfs over shared memory, and by MOUNT over TCP.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

mod adversity;
#[path = "../common/mod.rs"]
mod common;
mod endings;
mod files;
mod mount;
mod options;
mod reluctant;
#[path = "../../../engine/tests/common/rpcbind_daemon.rs"]
mod rpcbind_daemon;
mod server;
mod stats;
mod versions;
