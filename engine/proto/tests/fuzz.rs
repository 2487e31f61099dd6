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

replay::replay_each! {
    rpc, gss_header, v1_header, v2_header, version_two, payload,
    plain, requester, responder, pair
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
        [bytes_of(&words), rest].concat()
    })
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Plausible first words: a version, a length.
const STARTS: &[&[u32]] = &[&[], &[1], &[8]];

/// The chunk lists of a transport header.
fn lists() -> impl Strategy<Value = Vec<u32>> {
    let segment = || {
        let offset = prop_oneof![any::<[u32; 2]>(), (0..9_u32).prop_map(|low| [u32::MAX, low])];
        (any::<u32>(), 0..5000_u32, offset)
            .prop_map(|(handle, length, [high, low])| [handle, length, high, low])
    };
    let read =
        (0..12_u32, segment()).prop_map(|(at, segment)| [&[1, 4 * at], &segment[..]].concat());
    let chunk = || {
        let count = |segments: Vec<[u32; 4]>| {
            [&[1, segments.len() as u32], &segments.concat()[..]].concat()
        };
        vec(segment(), 0..6).prop_map(count)
    };
    let all = (vec(read, 0..12), vec(chunk(), 0..5), proptest::option::of(chunk()));
    all.prop_map(|(reads, writes, reply)| {
        let reply = reply.unwrap_or(vec![0]);
        [&reads.concat()[..], &[0], &writes.concat(), &[0], &reply].concat()
    })
}

/// A transport header of either version with at most one wrong word, and bytes behind it.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let change = proptest::option::of((any::<usize>(), prop_oneof![0..6_u32, any::<u32>()]));
    let start = (any::<u32>(), 1..3_u32, any::<u32>(), 0..6_u32, 0..2_u32);
    (start, lists(), change, vec(any::<u8>(), 0..40)).prop_map(|(start, lists, change, rest)| {
        let (xid, version, credits, kind, word) = start;
        let direction: &[u32] = if version == 2 { &[word] } else { &[] };
        let body = match kind {
            0 | 1 => [direction, &lists].concat(),
            2 => [&[64, 512], &lists[..]].concat(),
            3 => vec![],
            4 => vec![1 + word, 1, 2],
            _ => [direction, &[99, 5, 0x6162_6364, 0x6500_0000]].concat(),
        };
        let mut words = [&[xid, version, credits, kind], &body[..]].concat();
        if let Some((at, word)) = change {
            let at = at % words.len();
            words[at] = word;
        }
        [bytes_of(&words), rest].concat()
    })
}

/// The number of its parser, and an RPC call, a reply or a credential of AUTH_SYS.
fn rpc_message() -> impl Strategy<Value = Vec<u8>> {
    let opaque = |bytes: Vec<u8>| {
        let roundup = vec![0; bytes.len().wrapping_neg() & 3];
        [bytes_of(&[bytes.len() as u32]), bytes, roundup].concat()
    };
    let auth = move || {
        (0..8_u32, vec(any::<u8>(), 0..402))
            .prop_map(move |(flavor, body)| [bytes_of(&[flavor]), opaque(body)].concat())
    };
    let call = (proptest::array::uniform4(0..9_u32), auth(), auth(), vec(any::<u8>(), 0..20))
        .prop_map(|([xid, program, version, procedure], credential, verifier, rest)| {
            let words = bytes_of(&[xid, 0, 2, program, version, procedure]);
            [vec![1], words, credential, verifier, rest].concat()
        });
    let reply = (any::<u32>(), 0..2_u32, auth(), proptest::array::uniform4(0..7_u32)).prop_map(
        |(xid, denied, verifier, rest)| {
            let verifier = if denied == 0 { verifier } else { vec![] };
            [vec![2], bytes_of(&[xid, 1, denied]), verifier, bytes_of(&rest)].concat()
        },
    );
    let user = (vec(any::<u8>(), 0..257), any::<[u32; 2]>(), vec(any::<u32>(), 0..18)).prop_map(
        move |(name, ids, groups)| {
            let count = bytes_of(&[groups.len() as u32]);
            let stamp = bytes_of(&[7]);
            [vec![3], stamp, opaque(name), bytes_of(&ids), count, bytes_of(&groups)].concat()
        },
    );
    prop_oneof![call, reply, user]
}

proptest! {
    /// The properties that the fuzzers of headers check: of those that are well-formed or nearly so, of any bytes, and of
    /// small words, which make plausible links, counts and types.
    #[test]
    fn headers_hold_for_any_words(
        header in header(), cut in any::<[u8; 2]>(), limits in any::<u8>(),
        any in vec(any::<u8>(), 0..200), words in vec(0..6_u32, 0..120),
    ) {
        for message in [header, any, bytes_of(&words)] {
            v1_header::run(&[&[0], &cut[..], &message].concat());
            v1_header::run(&[&[limits], &cut[..], &message].concat());
            v2_header::run(&[&[limits], &cut[..], &message].concat());
        }
    }

    /// The same of RPC headers.
    #[test]
    fn rpc_headers_hold_for_any_words(
        message in rpc_message(), parser in 0..5_u8, any in vec(any::<u8>(), 0..200),
        words in vec(0..6_u32, 0..60),
    ) {
        rpc::run(&message);
        rpc::run(&[vec![parser], any].concat());
        rpc::run(&[vec![parser], bytes_of(&words)].concat());
    }

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

    /// The same of wire types of RPCSEC_GSS: those that are well-formed or nearly so, and of small words.
    #[test]
    fn gss_headers_hold_for_any_words(
        (procedure, service, handle) in (0..5_u32, 0..6_u32, vec(any::<u8>(), 0..400)),
        parser in 0..6_u8, start in select(STARTS), words in vec(0..9_u32, 0..20),
        any in vec(any::<u8>(), 0..100),
    ) {
        let roundup = vec![0; handle.len().wrapping_neg() & 3];
        let credential = bytes_of(&[1, procedure, 7, service, handle.len() as u32]);
        gss_header::run(&[vec![0], credential, handle, roundup].concat());
        gss_header::run(&[vec![parser], bytes_of(start), bytes_of(&words)].concat());
        gss_header::run(&[vec![parser], any].concat());
    }

    /// The same of windows of sequence numbers that move mostly by little, up and down.
    #[test]
    fn gss_windows_hold_for_any_moves(
        start in any::<u8>(), moves in vec((prop_oneof![4 => 0..6_u8, 1 => any::<u8>()], any::<u8>()), 0..300),
    ) {
        let moves = moves.iter().flat_map(|(step, way)| [*step, *way]);
        gss_header::run(&[5, start].into_iter().chain(moves).collect::<Vec<u8>>());
    }

    /// The same of streams with items, padded or not: written and read again, and any bytes beside any chunks.
    #[test]
    fn payload_holds_for_any_script(
        (kind, any) in (0..3_u8, vec(any::<u8>(), 0..300)),
        (room, align) in (any::<[u8; 2]>(), prop_oneof![Just(0), any::<u8>()]),
        rest in vec(prop_oneof![0..40_u8, any::<u8>()], 3..600),
    ) {
        payload::run(&[vec![kind], any].concat());
        payload::run(&[&[3], &room[..], &rest[..1], &[align], &rest[1..]].concat());
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

    /// The same of a requester alone: any replies, errors and bytes, time, cancellation, lost connections.
    #[test]
    fn requester_holds_for_any_script(
        (profile, slots, xid) in (0..4_u8, 0..6_u8, any::<u8>()), script in vec(any::<u8>(), 0..600),
    ) {
        requester::run(&[&[profile, slots, xid][..], &script].concat());
    }

    /// The same of a responder alone: any calls and bytes, RDMA Reads, DONEs, time.
    #[test]
    fn responder_holds_for_any_script(
        (profile, slots, exports) in (0..4_u8, 0..6_u8, 0..5_u8), script in vec(any::<u8>(), 0..600),
    ) {
        responder::run(&[&[profile, slots, exports][..], &script].concat());
    }
}
