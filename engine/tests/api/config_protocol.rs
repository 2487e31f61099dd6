//! The Connection Configuration Protocol (RFC 5666 sections 6 and 11) over shared memory: an engine
//! that serves it, an engine that asks it, and peers that do neither or do it badly.

mod asking;
mod both;
mod serving;

use crate::common::raw::Said;

/// Types of messages (RFC 5666 section 4.1).
const MSG: u32 = 0;
const ERROR: u32 = 4;
const ERR_CHUNK: u32 = 2;
/// The program, its version and its procedure (RFC 5666 section 12).
const CONFIG_RDMA_PROG: u32 = 100_417;
const VERS1: u32 = 1;
const CONF_RDMA: u32 = 1;
/// Accept statuses (RFC 5531 section 9).
const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;
const AUTH_BADCRED: u32 = 1;
const AUTH_REJECTEDCRED: u32 = 2;
const AUTH_TOOWEAK: u32 = 5;

const NO_LISTS: [u32; 3] = [0; 3];
const NOBODY: &[u32] = &[0, 0];
/// AUTH_SYS: stamp, no machine name, user 1000, group 100, no more groups.
const SOMEBODY: &[u32] = &[1, 20, 7, 0, 1000, 100, 0];

fn message(xid: u32, kind: u32, lists: &[u32], body: &[u32]) -> Vec<u32> {
    [&[xid, 1, 32, kind], lists, body].concat()
}

/// An RPC message from an accepted call on.
fn accepted(xid: u32, status: &[u32]) -> Vec<u32> {
    message(xid, MSG, &NO_LISTS, &[&[xid, 1, 0, 0, 0], status].concat())
}

/// Content of a message: everything behind the transport header without lists, or the code of an
/// RDMA_ERROR.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    Rpc(Vec<u32>),
    Error(u32),
}

#[track_caller]
fn body(said: &Said) -> Body {
    let words = said.words();
    match words[3] {
        MSG => {
            assert_eq!(words[4..7], NO_LISTS, "{words:?}");
            Body::Rpc(words[7..].to_vec())
        }
        ERROR => Body::Error(words[4]),
        other => panic!("a message of type {other}: {words:?}"),
    }
}
