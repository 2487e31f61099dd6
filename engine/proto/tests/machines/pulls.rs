//! Fetching of a call's Read chunks by a responder (RFC 5666 section 3.4, RFC 8166 section 3.4.5).

use crate::prelude::*;

const XID: Xid = Xid(17);

/// A call with these Read segments (position, handle, length) that waits for memory.
fn waiting(reads: &[(u32, u32, u32)]) -> (Server, SlotId, Vec<u8>) {
    let mut server = Server::new(2);
    let lists = reads
        .iter()
        .fold(Chunks::none(), |lists, (at, handle, length)| lists.read(*at, *handle, *length));
    let message = lists.msg(XID, 32, &rpc_call(XID));
    let slot = to_pull(&server.receive(&message));
    (server, slot, message)
}

fn read(slot: SlotId, chunk: u8, at: u32, handle: u32, length: u32) -> Event {
    Event::Read(ReadRequest { slot, chunk, at, from: segment(handle, length) })
}

fn pull(server: &mut Server, slot: SlotId, message: &[u8], room: u16) -> Vec<Event> {
    let asked = server.responder.pull(slot, &view(message), room, |read| server.out.read(read));
    let events = server.out.take();
    assert_eq!(usize::from(asked), events.len());
    events
}

fn read_done(server: &mut Server, slot: SlotId) -> (Pulled, bool) {
    (server.responder.on_read_done(slot), server.responder.is_delivered(slot))
}

#[test]
fn segments_of_one_position_follow_each_other_in_one_chunk() {
    // RFC 8166 section 3.4.5: segments of the same position make up one chunk, in list order.
    let (mut server, slot, message) = waiting(&[(40, 3, 100), (40, 1, 50), (40, 2, 7)]);
    let plan = server.responder.pull_plan(slot).unwrap().chunks();
    assert_eq!((plan.len(), plan[0].position, plan[0].length), (1, 40, 157));
    let reads = [read(slot, 0, 0, 3, 100), read(slot, 0, 100, 1, 50), read(slot, 0, 150, 2, 7)];
    assert_eq!(pull(&mut server, slot, &message, 16), reads);
}

#[test]
fn positions_may_come_in_any_order() {
    // RFC 8166 section 3.4.5: the Read list need not be sorted.
    let (mut server, slot, message) =
        waiting(&[(1040, 1, 10), (36, 2, 600), (1040, 3, 20), (36, 4, 400)]);
    let plan = server.responder.pull_plan(slot).unwrap().chunks();
    let chunks: Vec<_> = plan.iter().map(|chunk| (chunk.position, chunk.length)).collect();
    assert_eq!(chunks, [(36, 1000), (1040, 30)]);
    let reads = [
        read(slot, 0, 0, 2, 600),
        read(slot, 0, 600, 4, 400),
        read(slot, 1, 0, 1, 10),
        read(slot, 1, 10, 3, 20),
    ];
    assert_eq!(pull(&mut server, slot, &message, 16), reads);
}

#[test]
fn the_message_of_a_long_call_is_its_first_chunk() {
    let mut server = Server::new(1);
    let message = Chunks::none().read(40, 2, 8).read(0, 1, 500).nomsg(XID, 32);
    let slot = to_pull(&server.receive(&message));
    let plan = server.responder.pull_plan(slot).unwrap().chunks();
    assert_eq!((plan[0].position, plan[0].length), (0, 500));
    let reads = [read(slot, 0, 0, 1, 500), read(slot, 1, 0, 2, 8)];
    assert_eq!(pull(&mut server, slot, &message, 16), reads);
}

#[test]
fn no_more_reads_are_asked_for_than_there_is_room() {
    // RFC 5666 section 3.3 leaves limits like that of RDMA Reads in progress to other layers.
    let segments: Vec<_> = (0..5).map(|n| (40, n, 100)).collect();
    let (mut server, slot, message) = waiting(&segments);
    assert_eq!(pull(&mut server, slot, &message, 0), []);
    let first = [read(slot, 0, 0, 0, 100), read(slot, 0, 100, 1, 100)];
    assert_eq!(pull(&mut server, slot, &message, 2), first);
    for _ in 0..2 {
        assert_eq!(read_done(&mut server, slot), (Pulled::More, false));
        assert!(server.responder.wants_reads(slot), "nothing is on its way, but three are left");
    }
    assert_eq!(pull(&mut server, slot, &message, 1), [read(slot, 0, 200, 2, 100)]);
    let last = [read(slot, 0, 300, 3, 100), read(slot, 0, 400, 4, 100)];
    assert_eq!(pull(&mut server, slot, &message, 16), last);
    assert_eq!(pull(&mut server, slot, &message, 16), []);
    for _ in 0..2 {
        assert_eq!(read_done(&mut server, slot), (Pulled::More, false));
    }
    assert_eq!(read_done(&mut server, slot), (Pulled::Complete, true));
}

/// Position and length of each chunk of a call, and the Reads that are asked for.
type Fetched = (Vec<(u32, u32)>, Vec<Event>);

/// What is fetched for a call under a profile; `None` for ERR_CHUNK.
fn split(profile: Profile, reads: &[(u32, u32, u32)]) -> Option<Fetched> {
    let mut server = Server::under(profile, 2, 0);
    let lists =
        reads.iter().fold(Chunks::none(), |lists, (at, n, length)| lists.read(*at, *n, *length));
    let message = lists.msg(XID, 32, &[rpc_call(XID), vec![0; 64]].concat());
    let events = server.receive(&message);
    let [Event::Pull(slot)] = events[..] else { return None };
    let plan = server.responder.pull_plan(slot).unwrap();
    let chunks = plan.chunks().iter().map(|chunk| (chunk.position, chunk.length)).collect();
    // In several steps, as an adapter takes only so many at a time.
    let mut asked = Vec::new();
    while server.responder.wants_reads(slot) {
        asked.extend(pull(&mut server, slot, &message, 3));
    }
    assert_eq!(asked.len(), reads.len());
    Some((chunks, asked))
}

#[test]
fn under_the_drafts_one_item_may_be_chunks_next_to_each_other() {
    // Both drafts, section 3.4: "it is possible that a contiguous sequence of chunks might all have
    // the same position"; thus they need not. The first one ends where a page does.
    let pages = [(44, 1, 4093), (4137, 2, 4096), (8233, 3, 4096), (12_329, 4, 7)];
    let slot = SlotId { index: 0, generation: 1 };
    let at = [0, 4093, 8189, 12_285];
    let reads: Vec<_> =
        pages.iter().zip(at).map(|((_, n, length), at)| read(slot, 0, at, *n, *length)).collect();
    for profile in [Profile::Draft00, Profile::Draft03] {
        let asked = split(profile, &pages).unwrap();
        assert_eq!(asked, (vec![(44, 12_292)], reads.clone()), "{profile:?}");
        // The list need not be in order.
        for order in [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            assert_eq!(split(profile, &order.map(|n| pages[n])).unwrap(), asked, "{order:?}");
        }
        // Two items of whole words, each in two parts, with the count of the second between them.
        let (chunks, asked) =
            split(profile, &[(60, 3, 8), (44, 1, 8), (52, 2, 4), (68, 4, 4)]).unwrap();
        assert_eq!(chunks, [(44, 12), (60, 12)]);
        let expected = [
            read(slot, 0, 0, 1, 8),
            read(slot, 0, 8, 2, 4),
            read(slot, 1, 0, 3, 8),
            read(slot, 1, 8, 4, 4),
        ];
        assert_eq!(asked, expected);
    }
    // RFC 5666 section 3.4: "all chunks belonging to a single RPC argument or result will have the
    // same position".
    assert_eq!(split(Profile::Rfc5666, &pages), None, "parts that begin within a word");
    for profile in [Profile::Rfc5666, Profile::Rfc8166] {
        let (chunks, _) = split(profile, &[(44, 1, 8), (52, 2, 4)]).unwrap();
        assert_eq!(chunks, [(44, 8), (52, 4)], "{profile:?}");
    }
}

#[test]
fn an_item_page_by_page_has_as_many_chunks_as_the_list_may_have_segments() {
    let pages: Vec<_> = (0..16).map(|n| (44 + n * 8, n, 8)).collect();
    for profile in [Profile::Draft00, Profile::Draft03] {
        let (chunks, asked) = split(profile, &pages).unwrap();
        assert_eq!((chunks, asked.len()), (vec![(44, 128)], 16));
        let backwards: Vec<_> = pages[..8].iter().rev().copied().collect();
        assert_eq!(split(profile, &backwards), split(profile, &pages[..8]));
    }
}

#[test]
fn parts_that_overlap_are_err_chunk() {
    for reads in [
        &[(44, 1, 8), (48, 2, 8)][..],
        &[(44, 1, 8), (52, 2, 8), (44, 3, 8)],
        &[(44, 1, 8), (52, 2, 8), (52, 3, 0), (44, 4, 0), (48, 5, 4)],
        &[(44, 1, 8), (60, 2, 8), (52, 3, 12)],
        &[(44, 1, 8), (52, 2, 4), (56, 3, 4), (52, 4, 4)],
    ] {
        for profile in [Profile::Draft00, Profile::Draft03, Profile::Rfc5666] {
            assert_eq!(split(profile, reads), None, "{profile:?} {reads:?}");
        }
    }
}

#[test]
fn a_position_within_a_word_is_err_chunk() {
    // RFC 8166 section 3.4.5: every position is a multiple of 4.
    for position in [1, 2, 3, 45, 0xffff_fffd] {
        for profile in [Profile::Rfc8166, Profile::Rfc5666, Profile::Draft00, Profile::Draft03] {
            assert_eq!(split(profile, &[(position, 1, 4)]), None, "{profile:?} {position}");
        }
    }
}

#[test]
fn segments_of_length_zero_are_read_like_others() {
    let (mut server, slot, message) = waiting(&[(40, 1, 0), (40, 2, 5)]);
    let reads = [read(slot, 0, 0, 1, 0), read(slot, 0, 0, 2, 5)];
    assert_eq!(pull(&mut server, slot, &message, 16), reads);
    assert_eq!(read_done(&mut server, slot).0, Pulled::More);
    assert_eq!(read_done(&mut server, slot).0, Pulled::Complete);
}

#[test]
fn a_read_that_ends_after_its_call_changes_nothing() {
    let (mut server, slot, message) = waiting(&[(40, 1, 8), (40, 2, 8)]);
    pull(&mut server, slot, &message, 16);
    server.responder.abandon(slot);
    assert_eq!(read_done(&mut server, slot), (Pulled::Stale, false));
    // Nor for the next call in its place, which waits for its own Reads.
    server.receive(&plain_call(XID));
    let next = to_pull(&server.receive(&message));
    assert_eq!(read_done(&mut server, slot), (Pulled::Stale, false));
    assert_eq!(pull(&mut server, slot, &message, 16), []);
    assert_eq!(pull(&mut server, next, &message, 16).len(), 2);
}
