//! spin-nfs from outside: the program against a server in this process, over shared memory.
#![allow(clippy::unwrap_used, reason = "a test ends here")]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod files;
mod listings;
mod ping;
#[path = "../../nfs/tests/common/reference.rs"]
#[allow(dead_code, reason = "each program of tests uses a part")]
mod reference;
mod server;
mod tree;
mod wire;

use common::{SPIN_NFS as PROGRAM, answer, content, fails, spin_nfs, text};
use nfs3_types::nfs3::*;
use rustix::process::{Pid, Signal, kill_process};
use server::{BLOCK_BYTES, EXPORTED, Faults, Server};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use tree::{Content, ROOT};

/// Options for inline thresholds of 1024, 4096 and 65536 bytes.
const THRESHOLDS: [&[&str]; 3] = [
    &["--set=rpc.inline_send_bytes=1024", "--set=rpc.inline_recv_bytes=1024"],
    &["--set=rpc.inline_send_bytes=4096", "--set=rpc.inline_recv_bytes=4096"],
    &[
        "--set=rpc.inline_send_bytes=65536",
        "--set=rpc.inline_recv_bytes=65536",
        "--set=shm.ring_slots=1024",
    ],
];
