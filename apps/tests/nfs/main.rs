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

use std::io;
use std::process::Output;

const PROGRAM: &str = env!("CARGO_BIN_EXE_spin-nfs");

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

/// The program, after its exit.
fn spin_nfs(arguments: &[&str]) -> io::Result<Output> {
    common::run(PROGRAM, arguments)
}

/// Standard output of a run that must succeed.
fn answer(arguments: &[&str]) -> io::Result<Vec<u8>> {
    let output = spin_nfs(arguments)?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(output.stdout) } else { Err(io::Error::other(complaint)) }
}

fn text(arguments: &[&str]) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&answer(arguments)?).into_owned())
}

/// Exit code and error of a run that must fail with one line.
fn refused(arguments: &[&str]) -> io::Result<(Option<i32>, String)> {
    let (code, line) = common::refusal(&spin_nfs(arguments)?);
    assert_ne!(code, Some(0), "{arguments:?}");
    assert_eq!(line.lines().count(), 1, "{line}");
    Ok((code, line))
}
