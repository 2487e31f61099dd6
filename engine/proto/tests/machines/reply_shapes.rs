//! Handling of every shape of reply by a requester (RFC 5666 sections 3.6, 3.7 and 5.2, RFC 8166
//! section 4.3).

use crate::prelude::*;

const TOKEN: u64 = 77;

fn offer(handle: u32, length: u32) -> ChunkOffer {
    ChunkOffer { handle, length, offset: segment(handle, length).offset, segment_bytes: 0 }
}

/// Two Write chunks, of 13 and 100 bytes.
fn two_results() -> CallChunks {
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(offer(7, 13)) && chunks.push_write(offer(8, 100)));
    chunks
}

fn long_reply() -> CallChunks {
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.set_reply(offer(9, 4096)));
    chunks
}

/// One Write chunk of three segments: 100, 100 and 50 bytes of the same memory.
fn three_segments() -> CallChunks {
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(ChunkOffer { segment_bytes: 100, ..offer(7, 250) }));
    chunks
}

/// The segments of that chunk, returned with these lengths.
fn returned(lengths: [u32; 3]) -> Vec<Segment> {
    let start = segment(7, 0).offset;
    let segments = (0..).zip(lengths);
    segments.map(|(n, length)| Segment { handle: 7, length, offset: start + 100 * n }).collect()
}

/// Offers `chunks` and receives the message that `answer` builds, with the rest of the window open.
fn exchange(
    chunks: &CallChunks,
    answer: impl FnOnce(StartedCall) -> Vec<u8>,
) -> (Caller, Vec<Event>) {
    let mut caller = Caller::granted(4);
    let (started, _) = caller.call_with(TOKEN, NEVER, chunks);
    let events = caller.receive(&answer(started));
    (caller, events)
}

/// Takes an inline reply with these lists, which must be valid; returns the placed lengths.
fn placed(chunks: &CallChunks, lists: &Chunks) -> [u32; 4] {
    let (caller, events) = exchange(chunks, |call| lists.msg(call.xid, 4, &rpc_reply(call.xid)));
    let [Event::Reply(reply)] = events[..] else { panic!("one reply, not {events:?}") };
    assert_eq!(reply.token, TOKEN);
    let header_bytes = lists.msg(spinrpc_proto::ids::Xid(0), 1, &[]).len();
    assert_eq!(reply.stream, ReplyStream::Inline { header_bytes });
    assert_eq!(caller.requester.credits().in_flight(), 0);
    reply.placed
}

/// A reply fails its call, for good, and ends the connection.
fn misbehaves(chunks: &CallChunks, answer: impl FnOnce(StartedCall) -> Vec<u8>) -> PeerMisbehaved {
    let (mut caller, events) = exchange(chunks, answer);
    let [Event::Failed { token: TOKEN, failure, fenced: false, .. }, Event::Closed(why)] =
        events[..]
    else {
        panic!("a failed call and the end of the connection, not {events:?}")
    };
    assert_eq!(failure, CallFailure::Misbehaved(why));
    assert_eq!(caller.requester.credits().in_flight(), 0);
    caller.requester.on_down(|slot, token| panic!("{slot:?} of {token:?} ends twice"));
    why
}

fn inline_misbehaves(chunks: &CallChunks, lists: &Chunks) -> PeerMisbehaved {
    misbehaves(chunks, |call| lists.msg(call.xid, 4, &rpc_reply(call.xid)))
}

#[test]
fn receive_a_write_list_expect_the_lengths_that_were_placed() {
    let list =
        |first, second| Chunks::none().write(&[segment(7, first)]).write(&[segment(8, second)]);
    let first = Chunks::none().write(&[segment(7, 13)]);
    for (lists, lengths) in [
        // RFC 8166 section 3.4.6.2: the length of the item, without roundup.
        (list(13, 99), [13, 99, 0, 0]),
        // RFC 5666 section 3.7: the length is increased to include the roundup, even beyond the
        // memory that was offered, because it is not transferred.
        (list(16, 100), [13, 100, 0, 0]),
        // RFC 8166 section 4.3.2: an unused chunk keeps its segments, their lengths are zero.
        (list(0, 100), [0, 100, 0, 0]),
        (list(0, 0), [0; 4]),
        // Against RFC 8166 section 4.3.2; nothing was placed, and nothing is ambiguous.
        (Chunks::none(), [0; 4]),
        // RFC 5666 section 3.4: "Unused write chunks, or unused bytes in write chunk buffer lists,
        // are not returned as results". Against RFC 8166 section 4.3.2, and as clear as with them.
        (first.clone(), [13, 0, 0, 0]),
        (first.write(&[]), [13, 0, 0, 0]),
        (Chunks::none().write(&[]).write(&[segment(8, 100)]), [0, 100, 0, 0]),
        (Chunks::none().write(&[]).write(&[]), [0; 4]),
    ] {
        assert_eq!(placed(&two_results(), &lists), lengths, "{lists:?}");
    }
}

#[test]
fn receive_a_chunk_filled_segment_by_segment() {
    // RFC 5666 section 3.7: segments are filled in order without gaps.
    for (lengths, sum) in [
        ([100, 100, 50], 250),
        ([100, 100, 52], 250),
        ([100, 1, 0], 101),
        ([100, 0, 0], 100),
        ([1, 0, 0], 1),
        ([0, 0, 0], 0),
    ] {
        let lists = Chunks::none().write(&returned(lengths));
        assert_eq!(placed(&three_segments(), &lists), [sum, 0, 0, 0], "{lengths:?}");
    }
    // The roundup is that of the item, wherever its segments end.
    let mut odd = CallChunks::EMPTY;
    assert!(odd.push_write(ChunkOffer { segment_bytes: 99, ..offer(7, 250) }));
    let start = segment(7, 0).offset;
    for (lengths, sum) in [
        ([99, 99, 54], Some(250)),
        ([99, 99, 55], None),
        ([100, 0, 0], Some(99)),
        ([101, 0, 0], None),
    ] {
        let segments = (0..).zip(lengths).map(|(n, length)| Segment {
            handle: 7,
            length,
            offset: start + 99 * n,
        });
        let lists = Chunks::none().write(&segments.collect::<Vec<_>>());
        match sum {
            Some(sum) => assert_eq!(placed(&odd, &lists), [sum, 0, 0, 0], "{lengths:?}"),
            None => assert_eq!(inline_misbehaves(&odd, &lists), PeerMisbehaved::WriteListChanged),
        }
    }
    for lengths in [[99, 1, 0], [0, 100, 50], [100, 0, 1], [101, 0, 0], [100, 100, 53]] {
        let lists = Chunks::none().write(&returned(lengths));
        let why = inline_misbehaves(&three_segments(), &lists);
        assert_eq!(why, PeerMisbehaved::WriteListChanged, "{lengths:?}");
    }
}

#[test]
fn receive_a_write_list_without_its_unused_segments() {
    // RFC 5666 section 3.4, as above.
    for (count, length) in [(0, 0), (1, 100), (2, 200)] {
        let lists = Chunks::none().write(&returned([100, 100, 50])[..count]);
        assert_eq!(placed(&three_segments(), &lists), [length, 0, 0, 0], "{count} segments");
    }
    for lengths in [[99, 1, 0], [0, 100, 0], [101, 0, 0], [100, 101, 0]] {
        let lists = Chunks::none().write(&returned(lengths)[..2]);
        let why = inline_misbehaves(&three_segments(), &lists);
        assert_eq!(why, PeerMisbehaved::WriteListChanged, "{lengths:?}");
    }
    let moved = Chunks::none().write(&returned([0, 100, 50])[1..]);
    assert_eq!(inline_misbehaves(&three_segments(), &moved), PeerMisbehaved::WriteListChanged);
}

#[test]
fn receive_a_reply_chunk_without_its_unused_segments() {
    // RFC 5666 section 3.4, of a long reply (section 5.2).
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.set_reply(ChunkOffer { segment_bytes: 100, ..offer(7, 250) }));
    for (count, length) in [(1, 100), (2, 200), (3, 250)] {
        let lists = Chunks::none().reply(&returned([100, 100, 50])[..count]);
        let (_, events) = exchange(&chunks, |call| lists.nomsg(call.xid, 4));
        let [Event::Reply(reply)] = events[..] else { panic!("one reply, not {events:?}") };
        assert_eq!(reply.stream, ReplyStream::ReplyChunk { length }, "{count} segments");
    }
    placed(&chunks, &Chunks::none().reply(&[]));
    let other = Chunks::none().reply(&returned([100, 100, 50])[1..2]);
    let why = misbehaves(&chunks, |call| other.nomsg(call.xid, 4));
    assert_eq!(why, PeerMisbehaved::ReplyChunkChanged);
}

#[test]
fn receive_a_write_list_that_is_not_the_one_offered() {
    // RFC 8166 section 4.3.2: same number of chunks and segments, same handles and offsets.
    let good = Chunks::none().write(&[segment(7, 13)]);
    let moved = Segment { offset: segment(8, 0).offset + 4, ..segment(8, 10) };
    for lists in [
        good.clone().write(&[segment(8, 1)]).write(&[segment(10, 1)]),
        good.clone().write(&[segment(9, 10)]),
        good.clone().write(&[moved]),
        good.clone().write(&[segment(8, 101)]),
        good.clone().write(&[segment(8, u32::MAX >> 12)]),
        good.write(&[segment(8, 50), segment(8, 50)]),
        // More than the roundup.
        Chunks::none().write(&[segment(7, 17)]).write(&[segment(8, 100)]),
        // What is left out stands at the end.
        Chunks::none().write(&[segment(8, 100)]),
        Chunks::none().write(&[segment(8, 100)]).write(&[segment(7, 13)]),
    ] {
        let why = inline_misbehaves(&two_results(), &lists);
        assert_eq!(why, PeerMisbehaved::WriteListChanged, "{lists:?}");
    }
}

#[test]
fn receive_a_long_reply() {
    // RFC 5666 section 5.2: the reply is in the Reply chunk, the message is an RDMA_NOMSG.
    let mut beside = two_results();
    assert!(beside.set_reply(offer(9, 4096)));
    let writes = Chunks::none().write(&[segment(7, 0)]).write(&[segment(8, 64)]);
    for (chunks, lists, length, placed) in
        [(long_reply(), Chunks::none(), 2000, [0; 4]), (beside, writes, 4096, [0, 64, 0, 0])]
    {
        let lists = lists.reply(&[segment(9, length)]);
        let (_, events) = exchange(&chunks, |call| lists.nomsg(call.xid, 4));
        let [Event::Reply(reply)] = events[..] else { panic!("one reply, not {events:?}") };
        assert_eq!((reply.stream, reply.placed), (ReplyStream::ReplyChunk { length }, placed));
    }
}

#[test]
fn receive_a_short_reply_although_other_chunks_were_offered() {
    // RFC 8166 section 4.3.3: the responder may answer inline, and copies the chunk back unused.
    placed(&long_reply(), &Chunks::none().reply(&[segment(9, 0)]));
    placed(&long_reply(), &Chunks::none());
    // Nor has one to a call with arguments by Read chunk lists to return.
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_read(44, offer(3, 1000)));
    assert_eq!(placed(&chunks, &Chunks::none()), [0; 4]);
}

#[test]
fn receive_rdma_nomsg_without_a_message() {
    for (chunks, lists) in [
        (CallChunks::EMPTY, Chunks::none()),
        (two_results(), Chunks::none().write(&[segment(7, 13)]).write(&[segment(8, 1)])),
        (long_reply(), Chunks::none()),
        (long_reply(), Chunks::none().reply(&[segment(9, 0)])),
        (long_reply(), Chunks::none().reply(&[])),
    ] {
        let why = misbehaves(&chunks, |call| lists.nomsg(call.xid, 4));
        assert_eq!(why, PeerMisbehaved::NoReplyStream, "{lists:?}");
    }
}

#[test]
fn receive_a_reply_chunk_that_is_not_the_one_offered() {
    // RFC 8166 section 4.3.3.
    for lists in [
        Chunks::none().reply(&[segment(8, 100)]),
        Chunks::none().reply(&[segment(9, 4097)]),
        Chunks::none().reply(&[segment(9, 100), segment(9, 100)]),
    ] {
        let why = misbehaves(&long_reply(), |call| lists.nomsg(call.xid, 4));
        assert_eq!(why, PeerMisbehaved::ReplyChunkChanged, "{lists:?}");
    }
}

#[test]
fn receive_chunks_inline_that_were_not_offered_or_are_used_twice() {
    use PeerMisbehaved::{ReplyChunkChanged, WriteListChanged};
    let none = CallChunks::EMPTY;
    for (chunks, lists, expected) in [
        (none, Chunks::none().write(&[segment(7, 4)]), WriteListChanged),
        (none, Chunks::none().reply(&[segment(7, 0)]), ReplyChunkChanged),
        // The reply is both inline and in the Reply chunk.
        (long_reply(), Chunks::none().reply(&[segment(9, 24)]), ReplyChunkChanged),
    ] {
        assert_eq!(inline_misbehaves(&chunks, &lists), expected, "{lists:?}");
    }
}

#[test]
fn receive_a_read_list_in_a_reply() {
    // RFC 8166 section 4.3.1: a responder leaves the Read list of a reply empty.
    let lists = Chunks::none().read(24, 5, 100);
    for chunks in [CallChunks::EMPTY, two_results(), long_reply()] {
        assert_eq!(inline_misbehaves(&chunks, &lists), PeerMisbehaved::ReadListInReply);
        let why = misbehaves(&chunks, |call| lists.nomsg(call.xid, 4));
        assert_eq!(why, PeerMisbehaved::ReadListInReply);
    }
}

#[test]
fn the_largest_chunk_there_can_be_comes_back() {
    // The roundup of a length near 4 GiB does not fit 32 bits.
    let mut chunks = CallChunks::EMPTY;
    assert!(chunks.push_write(offer(7, u32::MAX)));
    let mut caller = Caller::granted(4);
    let (started, _) = caller.call_with(TOKEN, NEVER, &chunks);
    let lists = Chunks::none().write(&[segment(7, u32::MAX)]);
    let message = lists.msg(started.xid, 4, &rpc_reply(started.xid));
    let limits = spinrpc_proto::limits::Limits {
        versions: Versions::One,
        payload_bytes_max: u32::MAX,
        ..spinrpc_proto::limits::Limits::DEFAULT
    };
    let view = spinrpc_proto::rdma::v1::HeaderView::new_checked(&message, &limits).unwrap();
    caller.out.arriving(|out| caller.requester.on_receive(&view, out));
    let events = caller.out.take();
    assert!(matches!(events[..], [Event::Reply(reply)] if reply.placed[0] == u32::MAX));
}
