//! A client that breaks the rules, against a real server: it gets the answer that RFC 8166 section
//! 4.5 and RFC 5666 section 4.2 name, or loses its connection; others are served on.

use crate::common::prelude::*;
use crate::common::raw::*;
use spinrpc::fabric::WrError;

const MSGP: u32 = 2;
/// Accept statuses (RFC 5531 section 9).
const SUCCESS: u32 = 0;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const AUTH_BADCRED: u32 = 1;
const AUTH_BADVERF: u32 = 3;
const SYSTEM_ERR: u32 = 5;

/// A well-behaved XID to ask with whether the connection lives.
const ALIVE: u32 = 0x00a1_1fe0;

fn at(length: u32, offset: u64) -> RemoteSlice {
    RemoteSlice { length, offset, ..NOWHERE }
}

#[derive(Clone, Copy, Debug)]
enum Deserves {
    Nothing,
    /// RDMA_ERROR with ERR_CHUNK.
    Chunk,
    /// RDMA_ERROR with ERR_VERS, in the version of the message.
    Version(u32),
    /// An accepted RPC reply with this status.
    Accepted(u32),
    /// MSG_DENIED, RPC_MISMATCH, two to two.
    RpcMismatch,
    /// MSG_DENIED, AUTH_ERROR, with this status.
    Denied(u32),
}

/// Sends a message and then a null call: the answers are exactly the one that the message deserves
/// and the null reply.
#[track_caller]
fn expect(peer: &mut RawPeer, what: &str, bytes: &[u8], deserves: Deserves) {
    let xid = bytes.get(..4).map_or(0, |x| u32::from_be_bytes([x[0], x[1], x[2], x[3]]));
    peer.send(bytes);
    peer.send_words(&message(ALIVE, MSG, &NO_LISTS, &rpc_call(ALIVE, NULL, &[])));
    let error = |version, code| vec![xid, version, 64, ERROR, code];
    let reply = |tail: &[u32]| [&[xid, 1, 64, MSG], &NO_LISTS[..], &[xid, 1], tail].concat();
    let expected = match deserves {
        Deserves::Nothing => None,
        Deserves::Chunk => Some(error(1, ERR_CHUNK)),
        Deserves::Version(version) => Some([error(version, ERR_VERS), vec![1, 1]].concat()),
        Deserves::Accepted(status) => Some(reply(&[0, 0, 0, status])),
        Deserves::RpcMismatch => Some(reply(&[1, 0, 2, 2])),
        Deserves::Denied(status) => Some(reply(&[1, 1, status])),
    };
    let alive = [&[ALIVE, 1, 64, MSG], &NO_LISTS[..], &[ALIVE, 1, 0, 0, 0, SUCCESS]].concat();
    let mut missing: Vec<_> = expected.into_iter().chain([alive]).collect();
    // A call whose chunks are fetched may be answered after the one behind it.
    while !missing.is_empty() {
        let said = peer.hear().words();
        let place = missing.iter().position(|answer| *answer == said);
        let place = place.unwrap_or_else(|| panic!("{what}: said {said:?}, not {missing:?}"));
        missing.remove(place);
    }
}

/// Drafts of RFC 5666, section 4.1: the XID of the header "mirrors the XID in the RPC call header, and takes
/// precedence". RFC 5666 has the two equal.
#[test]
fn of_two_xids_that_of_the_header_counts_under_the_drafts_alone() {
    for profile in [Profile::Draft00, Profile::Draft03, Profile::Rfc5666, Profile::Rfc8166] {
        let prefers_header = matches!(profile, Profile::Draft00 | Profile::Draft03);
        let server = Server::with(small_with(|raw| raw.rpc.protocol = profile));
        let mut peer = RawPeer::connect(&server.address);
        let call = rpc_call(OTHER, ECHO, &[4, 0x6162_6364]);
        let echoed = [&[HEADER, 1, 0, 0, 0, SUCCESS][..], &[4, 0x6162_6364]].concat();
        peer.send_words(&message(HEADER, MSG, &NO_LISTS, &call));
        let said = peer.hear().words();
        match prefers_header {
            true => assert_eq!((said[0], &said[7..]), (HEADER, &echoed[..]), "{profile:?}"),
            false => assert_eq!(said[3..], [ERROR, ERR_CHUNK], "{profile:?}"),
        }
        let whole = peer.expose(&bytes_of(&call), Access::RemoteRead);
        let lists = [&read_segment(0, whole)[..], &NO_LISTS].concat();
        peer.send_words(&message(HEADER, NOMSG, &lists, &[]));
        let mut said = peer.hear().words();
        if profile == Profile::Draft00 {
            assert_eq!(said, [HEADER, 1, 64, DONE], "section 3.6");
            said = peer.hear().words();
        }
        match prefers_header {
            true => assert_eq!((said[0], &said[7..]), (HEADER, &echoed[..]), "{profile:?}"),
            false => assert_eq!(said[7..], [HEADER, 1, 0, 0, 0, GARBAGE_ARGS], "{profile:?}"),
        }
    }
}

/// XID of a transport header, and another one in its RPC message.
const HEADER: u32 = 0x0102_0304;
const OTHER: u32 = 0x0a0b_0c0d;

/// Another client is served as if nothing had happened.
#[track_caller]
fn others_are_served(server: &Server) {
    let mut caller = Caller::connect(&server.address, one_opaque);
    let sent = pattern(1, 500);
    assert_eq!(caller.call(ECHO, |args| args.opaque(&sent)).unwrap(), sent);
}

#[test]
fn every_message_type_gets_what_it_deserves() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    let call = rpc_call(9, NULL, &[]);
    let padded = [&[64, 64], &NO_LISTS[..]].concat();
    for (what, words, deserves) in [
        ("RDMA_MSG", message(9, MSG, &NO_LISTS, &call), Deserves::Accepted(SUCCESS)),
        ("RDMA_NOMSG without chunks", message(9, NOMSG, &NO_LISTS, &[]), Deserves::Chunk),
        ("RDMA_NOMSG with a body", message(9, NOMSG, &NO_LISTS, &call), Deserves::Chunk),
        ("RDMA_MSGP", message(9, MSGP, &padded, &call), Deserves::Chunk),
        ("RDMA_DONE", message(9, DONE, &[], &[]), Deserves::Nothing),
        ("RDMA_DONE with a tail", message(9, DONE, &NO_LISTS, &[1, 2]), Deserves::Nothing),
        ("ERR_VERS", message(9, ERROR, &[ERR_VERS, 1, 1], &[]), Deserves::Nothing),
        ("ERR_CHUNK", message(9, ERROR, &[ERR_CHUNK], &[]), Deserves::Nothing),
        ("an unknown error", message(9, ERROR, &[99], &[]), Deserves::Nothing),
        ("a long unknown error", message(9, ERROR, &[99, 1, 2, 3, 4], &[]), Deserves::Nothing),
        ("type 5", message(9, 5, &NO_LISTS, &call), Deserves::Chunk),
        ("type -1", message(9, u32::MAX, &NO_LISTS, &call), Deserves::Chunk),
    ] {
        expect(&mut peer, what, &bytes_of(&words), deserves);
    }
    let whole = bytes_of(&message(9, MSG, &NO_LISTS, &call));
    expect(&mut peer, "27 bytes", &whole[..27], Deserves::Nothing);
    expect(&mut peer, "no RPC message", &whole[..28], Deserves::Chunk);
    for version in [0, 2, 3, u32::MAX] {
        let mut call = message(8, MSG, &NO_LISTS, &rpc_call(8, NULL, &[]));
        call[1] = version;
        expect(&mut peer, "a version", &bytes_of(&call), Deserves::Version(version));
    }
    others_are_served(&server);
}

#[test]
fn chunk_lists_beyond_reason_are_answered_with_err_chunk() {
    let server = Server::with(small_with(|raw| raw.rpc.max_segments = 16));
    let mut peer = RawPeer::connect(&server.address);
    let reads = |segments: &[[u32; 6]]| [&segments.concat()[..], &NO_LISTS].concat();
    let distinct: Vec<_> = (0..9).map(|k| read_segment(40 + 64 * k, NOWHERE)).collect();
    let one_place = vec![read_segment(40, at(4, 0)); 17];
    let sixteen = vec![at(4, 0); 16];
    let seventeen = vec![at(4, 0); 17];
    let writes = |chunks: usize, segments: &[RemoteSlice]| {
        let list = write_chunk(segments).repeat(chunks);
        [&[0], &list[..], &[0, 0]].concat()
    };
    for (what, lists) in [
        ("nine Read chunks", reads(&distinct)),
        ("a Read chunk of 17 segments", reads(&one_place)),
        ("a Read chunk of 2 GiB", reads(&[read_segment(40, at(1 << 31, 0))])),
        (
            "Read chunks of 2 MiB",
            reads(&[[40, 44].map(|p| read_segment(p, at(1 << 20, 0)))].concat()),
        ),
        ("a segment that wraps", reads(&[read_segment(40, at(64, u64::MAX - 10))])),
        ("a position within a word", reads(&[read_segment(42, NOWHERE)])),
        ("Position-Zero in RDMA_MSG", reads(&[read_segment(0, NOWHERE)])),
        ("a position beyond the body", reads(&[read_segment(4000, NOWHERE)])),
        ("overlapping positions", reads(&[40, 60].map(|p| read_segment(p, NOWHERE)))),
        ("nine Write chunks", writes(9, &sixteen[..1])),
        ("a Write chunk of 17 segments", writes(1, &seventeen)),
        ("a Write chunk of 2 GiB", writes(1, &[at(1 << 31, 0)])),
        ("a Reply chunk of 17 segments", [&[0, 0], &write_chunk(&seventeen)[..]].concat()),
        ("a Reply chunk of 2 GiB", [&[0, 0], &write_chunk(&[at(1 << 31, 0)])[..]].concat()),
        ("a count of four billion", vec![0, 1, u32::MAX, 0]),
        ("a link that is not a boolean", vec![7, 0, 0]),
        ("a Write list without end", vec![0, 1, 1, 1, 64, 0, 0, 1]),
    ] {
        let call = message(10, MSG, &lists, &rpc_call(10, NULL, &[]));
        expect(&mut peer, what, &bytes_of(&call), Deserves::Chunk);
    }
    others_are_served(&server);
}

#[test]
fn rpc_messages_that_are_none_get_an_rpc_answer_or_err_chunk() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    let good = rpc_call(11, ECHO, &[4, 5]);
    let change = |at: usize, word: u32| {
        let mut call = good.clone();
        call[at] = word;
        call
    };
    for (what, body, deserves) in [
        ("another XID", change(0, 12), Deserves::Chunk),
        ("a reply", change(1, 1), Deserves::Nothing),
        ("neither call nor reply", change(1, 2), Deserves::Chunk),
        ("RPC version 3", change(2, 3), Deserves::RpcMismatch),
        ("a credential of 404 bytes", change(7, 404), Deserves::Denied(AUTH_BADCRED)),
        ("a verifier of 404 bytes", change(9, 404), Deserves::Denied(AUTH_BADVERF)),
        ("a header cut short", good[..8].to_vec(), Deserves::Accepted(GARBAGE_ARGS)),
        ("arguments cut short", good[..11].to_vec(), Deserves::Accepted(GARBAGE_ARGS)),
        ("a length of four billion", change(10, u32::MAX), Deserves::Accepted(GARBAGE_ARGS)),
        ("arguments left over", [&good[..], &[1]].concat(), Deserves::Accepted(GARBAGE_ARGS)),
    ] {
        let call = message(11, MSG, &NO_LISTS, &body);
        expect(&mut peer, what, &bytes_of(&call), deserves);
    }
    others_are_served(&server);
}

/// RFC 8166 section 4.3: chunks for results come back in every reply, those that are not used with a length of zero.
#[test]
fn a_refusal_returns_the_lists_of_its_call_unused() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    let lists = |length: u32| {
        let two = write_chunk(&[at(length, 0), at(length, 64)]);
        [&[0][..], &two, &write_chunk(&[at(length, 128)]), &[0], &two].concat()
    };
    for (procedure, args, status) in
        [(Procedure(99), &[][..], PROC_UNAVAIL), (ECHO, &[u32::MAX], GARBAGE_ARGS)]
    {
        peer.send_words(&message(12, MSG, &lists(64), &rpc_call(12, procedure, args)));
        let expected = [&[12, 1, 64, MSG], &lists(0)[..], &[12, 1, 0, 0, 0, status]].concat();
        assert_eq!(peer.hear().words(), expected);
    }
}

/// RFC 8166 section 4.3.2.3, of an empty Write chunk: "The Responder MUST return the corresponding result data item inline
/// and MUST return an empty Write chunk in that Write list position".
#[test]
fn an_empty_write_chunk_has_its_result_inline_and_comes_back_empty() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    let slices = [(); 2].map(|()| peer.expose(&[0; 8], Access::RemoteWrite));
    let lists = |length| {
        let [first, third] = slices.map(|slice| write_chunk(&[RemoteSlice { length, ..slice }]));
        [&[0][..], &first, &write_chunk(&[]), &third, &[0, 0]].concat()
    };
    let args = [0, 0, 3, 4, 4, 4, 0];
    peer.send_words(&message(16, MSG, &lists(8), &rpc_call(16, MIX, &args)));
    let inline = pattern(101, 4);
    let item = u32::from_be_bytes(inline.try_into().unwrap());
    let results = [16, 1, 0, 0, 0, SUCCESS, 0, 3, 4, 4, item, 4, 0];
    assert_eq!(peer.hear().words(), [&[16, 1, 64, MSG], &lists(4)[..], &results].concat());
}

/// RFC 8797 section 4.1: each Send with Invalidate "MUST invalidate an STag associated only with the Transaction ID (XID)" of
/// its message, and "when either peer on a connection clears this flag, the responder MUST use only RDMA Send".
#[test]
fn a_key_dies_with_the_reply_to_its_call_if_both_ends_say_so() {
    let server = Server::start();
    for flags in [1, 0] {
        let mut private_data = PRIVATE_DATA;
        private_data[5] = flags;
        let mut peer = RawPeer::connect_saying(&server.address, &private_data);
        let mut expected = Vec::new();
        for xid in 0..4 {
            let slice = peer.expose(&[0; 8], Access::RemoteWrite);
            expected.push((xid, slice.handle));
            let lists = [&[0][..], &write_chunk(&[slice]), &[0, 0]].concat();
            peer.send_words(&message(xid, MSG, &lists, &rpc_call(xid, MIX, &[0, 0, 1, 4, 0])));
        }
        (0..4).for_each(|_| drop(peer.hear().words()));
        expected.retain(|_| flags == 1);
        assert_eq!(peer.invalidated, expected);
    }
}

/// RFC 5666 section 3.4: the byte count in the stream equals the length of the chunk.
#[test]
fn read_chunks_that_do_not_fit_their_item_are_garbage_arguments() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    let chunk = peer.expose(&[7; 64], Access::RemoteRead);
    let lists = |position| [&read_segment(position, chunk)[..], &NO_LISTS].concat();
    for (what, position, args) in [
        ("a count above the chunk", 44, vec![68]),
        ("a count below the chunk", 44, vec![60]),
        ("a count of four billion", 44, vec![u32::MAX]),
        ("a chunk at another place", 40, vec![64]),
        ("a chunk that no item claims", 48, vec![4, 9]),
    ] {
        let call = message(14, MSG, &lists(position), &rpc_call(14, ECHO, &args));
        expect(&mut peer, what, &bytes_of(&call), Deserves::Accepted(GARBAGE_ARGS));
    }
    others_are_served(&server);
}

#[test]
fn keys_that_do_not_exist_or_lack_the_right_cost_the_connection() {
    let server = Server::start();
    type Provoke = fn(&mut RawPeer) -> Vec<u32>;
    let cases: [(&str, Provoke); 4] = [
        ("a Read chunk with no such key", |_| item_in(NOWHERE)),
        ("a Read chunk of memory for writing", |peer| {
            item_in(peer.expose(&[0; 64], Access::RemoteWrite))
        }),
        ("a Read chunk beyond its memory", |peer| {
            let slice = peer.expose(&[0; 32], Access::RemoteRead);
            item_in(RemoteSlice { length: 64, ..slice })
        }),
        ("a Reply chunk with no such key", |peer| {
            let args = [&[6000][..], &[0; 1500]].concat();
            let call = peer.expose(&bytes_of(&rpc_call(15, ECHO, &args)), Access::RemoteRead);
            let reply = write_chunk(&[at(100_000, 0)]);
            message(15, NOMSG, &[&read_segment(0, call)[..], &[0, 0], &reply].concat(), &[])
        }),
    ];
    for (what, provoke) in cases {
        let mut peer = RawPeer::connect(&server.address);
        let call = provoke(&mut peer);
        peer.send_words(&call);
        // Over a socket this end finds it, and says so to the other one.
        let end = peer.hear_end();
        assert!(matches!(end, DownCause::Remote | DownCause::PeerMisbehaved(_)), "{what}: {end:?}");
        let access = DownCause::WorkRequest(WrError::RemoteAccess);
        crate::common::wait_until(what, || server.shared.last_down().as_ref() == Some(&access));
        lock(&server.shared.events).clear();
        others_are_served(&server);
    }
}

/// A call with one item of 64 bytes in a Read chunk.
fn item_in(slice: RemoteSlice) -> Vec<u32> {
    let lists = [&read_segment(44, slice)[..], &NO_LISTS].concat();
    message(15, MSG, &lists, &rpc_call(15, BOUNCE, &[64]))
}

#[test]
fn calls_beyond_the_grant_are_answered_with_an_rpc_error() {
    let server = Server::start();
    let mut peer = RawPeer::connect(&server.address);
    for xid in 0..80 {
        peer.send_words(&message(xid, MSG, &NO_LISTS, &rpc_call(xid, LATER, &[xid])));
    }
    for _ in 64..80 {
        let words = peer.hear().words();
        assert!((64..80).contains(&words[0]), "{words:?}");
        assert_eq!(words[7..], [words[0], 1, 0, 0, 0, SYSTEM_ERR]);
    }
    server.wait_for("16 refusals", |stats| stats.calls_refused == 16);
    others_are_served(&server);
    server.shared.answer_all_with_nothing();
    for _ in 0..64 {
        assert_eq!(*peer.hear().words().last().unwrap(), SUCCESS);
    }
}
