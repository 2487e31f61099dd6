//! Replays the corpora of the fuzz targets of the protocol core: the bodies that `cargo fuzz` runs,
//! over the inputs that are kept. See `engine/fuzz/README.md`.
#![allow(unreachable_pub, reason = "the bodies are the public part of another crate")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

#[path = "../../fuzz/bodies/gss_header.rs"]
mod gss_header;
#[path = "../../fuzz/bodies/pair.rs"]
mod pair;
#[path = "../../fuzz/bodies/payload.rs"]
mod payload;
#[path = "../../fuzz/bodies/plain.rs"]
mod plain;
#[path = "../../fuzz/bodies/plan.rs"]
mod plan;
#[path = "machines/recorder.rs"]
mod recorder;
#[path = "../../fuzz/bodies/replay.rs"]
mod replay;
#[path = "../../fuzz/bodies/requester.rs"]
mod requester;
#[path = "../../fuzz/bodies/responder.rs"]
mod responder;
#[path = "../../fuzz/bodies/rpc.rs"]
mod rpc;
#[path = "../../fuzz/bodies/script.rs"]
mod script;
#[path = "../../fuzz/bodies/v1_header.rs"]
mod v1_header;
#[path = "../../fuzz/bodies/v2_header.rs"]
mod v2_header;
#[path = "../../fuzz/bodies/version_two.rs"]
mod version_two;
#[path = "../../fuzz/bodies/wire.rs"]
mod wire;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use spinrpc_proto::plain::CALL_BYTES;

use replay::replay;

#[test]
fn rpc() {
    replay("rpc", rpc::run);
}

#[test]
fn gss_header() {
    replay("gss_header", gss_header::run);
}

#[test]
fn v1_header() {
    replay("v1_header", v1_header::run);
}

#[test]
fn v2_header() {
    replay("v2_header", v2_header::run);
}

#[test]
fn version_two() {
    replay("version_two", version_two::run);
}

#[test]
fn payload() {
    replay("payload", payload::run);
}

#[test]
fn plain() {
    replay("plain", plain::run);
}

#[test]
fn requester() {
    replay("requester", requester::run);
}

#[test]
fn responder() {
    replay("responder", responder::run);
}

#[test]
fn pair() {
    replay("pair", pair::run);
}

/// Calls, or replies, that are plain but for a word or two: those of the transport header, then those of
/// the RPC message behind their XID.
fn nearly_plain(rpc: &'static [u32]) -> impl Strategy<Value = Vec<u8>> {
    let word = || prop_oneof![select(&[0_u32, 1, 2, 3, 4, 6][..]), any::<u32>()];
    let changes = vec((0..8 + rpc.len(), word()), 0..3);
    let free = (any::<[u32; 5]>(), changes, vec(any::<u8>(), 0..40));
    free.prop_map(move |([xid, credits, program, version, procedure], changes, rest)| {
        let mut words = vec![xid, 1, credits, 0, 0, 0, 0, xid];
        words.extend(rpc);
        if words.len() == CALL_BYTES / 4 {
            words[10..13].copy_from_slice(&[program, version, procedure]);
        }
        for (at, word) in changes {
            words[at] = word;
        }
        let bytes = words.into_iter().flat_map(u32::to_be_bytes);
        bytes.chain(rest).collect()
    })
}

proptest! {
    /// The properties that the fuzzer of plain messages checks, with messages close to plain ones.
    #[test]
    fn plain_functions_agree_with_the_general_parsers(
        call in nearly_plain(&[0, 2, 0, 0, 0, 0, 0, 0, 0]),
        reply in nearly_plain(&[1, 0, 0, 0, 0]),
        cut in 0..CALL_BYTES,
    ) {
        plain::run(&call);
        plain::run(&reply);
        plain::run(&call[..cut]);
    }

    /// The properties that the fuzzer of version two checks, for a few scripts each time: scripts
    /// of small bytes, which decide something, and scripts of any bytes.
    #[test]
    fn version_two_holds_for_any_script(
        small in vec(0..12_u8, 0..300), any in vec(any::<u8>(), 0..300),
    ) {
        version_two::run(&small);
        version_two::run(&any);
        version_two::run(&[small, any].concat());
    }

    /// The same of both ends, whichever versions meet, one way and both.
    #[test]
    fn pair_holds_for_any_script(
        terms in any::<u8>(), slots in vec(0..5_u8, 2), script in vec(any::<u8>(), 0..600),
    ) {
        pair::run(&[vec![terms], slots, script].concat());
    }
}
