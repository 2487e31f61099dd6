//! Peers that break the rules of replies to be fetched (RFC 5666 sections 3.8 and 11): a client
//! that sends RDMA_DONE too often, too late or never, and a server whose Read lists lead nowhere.
//! Each can lose its own connection, and harms no other.

use crate::common::prelude::*;
use crate::common::raw::*;
use crate::common::raw_server::RawServer;
use spinrpc::fabric::WrError;

fn server(change: impl FnOnce(&mut RawConfig)) -> Server {
    let server = Server::with(small_with(|raw| {
        raw.rpc.protocol = Profile::Rfc5666;
        change(raw);
    }));
    server.shared.read_chunks.store(true, Ordering::Relaxed);
    server
}

fn call(xid: u32, procedure: Procedure, args: &[u32]) -> Vec<u32> {
    message(xid, MSG, &NO_LISTS, &rpc_call(xid, procedure, args))
}

fn done(xid: u32) -> Vec<u32> {
    message(xid, DONE, &[], &[])
}

/// Contents of a reply: its credits and its first Read segment.
#[track_caller]
fn read_list(said: &Said) -> (u32, u32, RemoteSlice) {
    let words = said.words();
    assert_eq!((words[1], words[4]), (1, 1), "a reply with a Read list: {words:?}");
    (words[0], words[2], slice_of(&words[6..]))
}

/// Asks for an echo that is too long for a message: it has to be fetched.
fn ask(peer: &mut RawPeer, xid: u32) {
    let words = [&[6000][..], &[7; 1500]].concat();
    let chunk = peer.expose(&bytes_of(&rpc_call(xid, ECHO, &words)), Access::RemoteRead);
    let lists = [&read_segment(0, chunk)[..], &NO_LISTS].concat();
    peer.send_words(&message(xid, NOMSG, &lists, &[]));
}

/// Another client is served as if nothing had happened.
#[track_caller]
fn others_are_served(server: &Server) {
    let raw = client_with(|raw| raw.rpc.protocol = Profile::Rfc5666);
    let mut caller = Caller::connect_with(raw, &server.address, one_opaque);
    let sent = pattern(1, 500);
    assert_eq!(caller.call(ECHO, |args| args.opaque(&sent)).unwrap(), sent);
    let shared = caller.call(SHARED, |args| args.u32(50_001)).unwrap();
    assert_eq!(shared.len(), 50_001);
}

/// Calls ECHO with `sent`, of which Read chunks have these parts: position behind the first byte, and length. The rest
/// is inline.
fn echo(peer: &mut RawPeer, sent: &[u8], count: u32, parts: &[(u32, u32)]) -> Vec<u32> {
    let memory = peer.expose(sent, Access::RemoteRead);
    let part = |at, length| RemoteSlice { length, offset: memory.offset + u64::from(at), ..memory };
    let reads = parts.iter().flat_map(|(at, length)| read_segment(44 + at, part(*at, *length)));
    let lists: Vec<u32> = reads.chain(NO_LISTS).collect();
    let in_chunks: u32 = parts.iter().map(|(_, length)| length).sum();
    let inline = sent[in_chunks as usize..].to_vec();
    let call = message(9, MSG, &lists, &rpc_call(9, ECHO, &[count]));
    peer.send(&[bytes_of(&call), inline].concat());
    let said = peer.hear().words();
    // Under draft -00 the server says that it has fetched the chunks.
    if said[3] == DONE { peer.hear().words() } else { said }
}

#[track_caller]
fn assert_echoed(reply: &[u32], bytes: &[u8]) {
    assert_eq!(reply[3], MSG, "{reply:?}");
    let mut expected = bytes_of(&[9, 1, 0, 0, 0, 0, bytes.len() as u32]);
    expected.extend(bytes);
    expected.resize(expected.len().next_multiple_of(4), 0);
    assert_eq!(bytes_of(&reply[7..]), expected);
}

/// Both drafts, section 3.4: "it is possible that a contiguous sequence of chunks might all have the same position".
#[test]
fn under_the_drafts_an_item_may_come_in_chunks_with_positions_of_their_own() {
    let server = server(|raw| raw.rpc.protocol = Profile::Draft03);
    let mut peer = RawPeer::connect(&server.address);
    let sent = pattern(3, 1111);
    for parts in [
        vec![(0, 500), (500, 611)],
        vec![(0, 333), (333, 333), (666, 445)],
        vec![(666, 445), (0, 333), (333, 333)],
        (0..101).map(|n| (n * 11, 11)).collect(),
    ] {
        assert_echoed(&echo(&mut peer, &sent, 1111, &parts), &sent);
    }
}

/// RFC 5666 has no limit on the segments of a chunk, and clients of it register page by page.
#[test]
fn arguments_and_results_may_be_in_as_many_segments_as_a_message_names() {
    for profile in [Profile::Rfc8166, Profile::Rfc5666] {
        let server = server(|raw| raw.rpc.protocol = profile);
        let mut peer = RawPeer::connect(&server.address);
        let sent = pattern(4, 160 * 8);
        let memory = peer.expose(&sent, Access::RemoteRead);
        let part = |n: u64| RemoteSlice { length: 8, offset: memory.offset + n * 8, ..memory };
        let reads = (0..160).flat_map(|n| read_segment(44, part(n)));
        let lists: Vec<u32> = reads.chain(NO_LISTS).collect();
        peer.send_words(&message(9, MSG, &lists, &rpc_call(9, ECHO, &[1280])));
        assert_echoed(&peer.hear().words(), &sent);
        for _ in 0..20 {
            let used = [vec![8; 125], vec![3 + u32::from(profile.counts_roundup())], vec![0; 124]];
            assert_eq!(page_by_page(&mut peer), used.concat(), "{profile:?}");
        }
    }
}

/// Calls SHARED for 1003 bytes into 250 segments of eight; the lengths that come back.
fn page_by_page(peer: &mut RawPeer) -> Vec<u32> {
    let room = peer.expose(&[0; 250 * 8], Access::RemoteWrite);
    let part = |n: u64| RemoteSlice { length: 8, offset: room.offset + n * 8, ..room };
    let chunk = write_chunk(&(0..250).map(part).collect::<Vec<_>>());
    let lists = [&[0][..], &chunk, &[0, 0]].concat();
    peer.send_words(&message(9, MSG, &lists, &rpc_call(9, SHARED, &[1003])));
    let reply = peer.hear().words();
    assert_eq!(reply[3], MSG, "{reply:?}");
    reply[7..].chunks(4).take(250).map(|segment| segment[1]).collect()
}

#[test]
fn what_is_exported_is_exactly_the_reply() {
    let server = server(|_| {});
    let mut peer = RawPeer::connect(&server.address);
    ask(&mut peer, 5);
    let (xid, _, slice) = read_list(&peer.hear());
    assert_eq!((xid, slice.length), (5, 24 + 4 + 6000));
    peer.read(slice);
    let bytes = peer.hear_read().unwrap();
    assert_eq!(bytes[..8], [0, 0, 0, 5, 0, 0, 0, 1]);
    peer.send_words(&done(5));
    server.wait_for("RDMA_DONE", |stats| stats.dones_received == 1);
    // A byte more than that, or the same bytes now, must not be readable.
    peer.read(slice);
    assert_eq!(peer.hear_read(), None);
    let access = DownCause::WorkRequest(WrError::RemoteAccess);
    assert_eq!(peer.hear_end(), access);
    others_are_served(&server);
}

#[test]
fn rdma_dones_that_nothing_is_owed_for_are_dropped_however_many() {
    let server = server(|_| {});
    let mut peer = RawPeer::connect(&server.address);
    for round in 0..50_u32 {
        for xid in 0..20 {
            peer.send_words(&done(round * 20 + xid));
        }
        // The server keeps up: its answer comes behind them.
        peer.send_words(&call(9999, NULL, &[]));
        assert_eq!(peer.hear().words()[0], 9999);
    }
    server.wait_for("1000 drops", |stats| stats.messages_dropped == 1000);
    others_are_served(&server);
}

#[test]
fn rdma_done_for_the_reply_of_another_client_is_dropped() {
    let server = server(|_| {});
    let (mut owner, mut thief) =
        (RawPeer::connect(&server.address), RawPeer::connect(&server.address));
    ask(&mut owner, 5);
    let (_, _, slice) = read_list(&owner.hear());
    thief.send_words(&done(5));
    thief.send_words(&call(6, NULL, &[]));
    assert_eq!(thief.hear().words()[0], 6);
    assert_eq!(server.stats().dones_received, 0);
    owner.read(slice);
    assert!(owner.hear_read().is_some());
}

#[test]
fn without_rdma_done_memory_comes_back_when_the_window_is_over() {
    let server = server(|raw| raw.fixed.done_timeout_ms = 50);
    let mut peer = RawPeer::connect(&server.address);
    let mut slices = Vec::new();
    for xid in 0..100 {
        ask(&mut peer, xid);
        match peer.hear().words()[3] {
            NOMSG => slices.push(xid),
            other => {
                assert_eq!(other, MSG, "SYSTEM_ERR while all memory is lent");
                // It gives no key back: more of them would take all of the peer's own memory.
                break;
            }
        }
    }
    assert!(!slices.is_empty());
    let expired = slices.len() as u64;
    server.wait_for("the window", |stats| stats.exports_expired == expired);
    ask(&mut peer, 500);
    let (_, credits, slice) = read_list(&peer.hear());
    assert_eq!(credits, 63, "nothing else is owed any more");
    server.wait_for("the window", |stats| stats.exports_expired == expired + 1);
    peer.send_words(&done(500));
    peer.read(slice);
    assert_eq!(peer.hear_read(), None, "too late");
    assert_eq!(server.stats().dones_received, 0);
    others_are_served(&server);
}

/// RFC 5666 section 11: a client that never sends RDMA_DONE cannot have everything exported.
#[test]
fn beyond_the_cap_replies_get_err_chunk_until_rdma_done() {
    let server = server(|raw| raw.fixed.exports = 2);
    let mut peer = RawPeer::connect(&server.address);
    for xid in [1, 2] {
        ask(&mut peer, xid);
        read_list(&peer.hear());
    }
    ask(&mut peer, 3);
    assert_eq!(peer.hear().words()[..5], [3, 1, 62, ERROR, 2]);
    peer.send_words(&done(1));
    ask(&mut peer, 4);
    read_list(&peer.hear());
    others_are_served(&server);
}

/// Both drafts, section 5.2: "If the client doesn't provide an rdma_reply chunk, or if it's too small, then the message
/// must be returned as a Read chunk".
#[test]
fn beyond_the_cap_replies_wait_under_the_drafts() {
    for profile in [Profile::Draft00, Profile::Draft03] {
        let server = server(|raw| {
            (raw.rpc.protocol, raw.fixed.exports) = (profile, 2);
        });
        let mut peer = RawPeer::connect(&server.address);
        (1..=5).for_each(|xid| ask(&mut peer, xid));
        server.wait_for("replies that wait", |stats| stats.replies_kept_back == 3);
        let mut fetched = Vec::new();
        while fetched.len() < 5 {
            let said = peer.hear();
            if said.words()[3] == DONE {
                continue;
            }
            let (xid, _, slice) = read_list(&said);
            peer.read(slice);
            assert!(peer.hear_read().is_some());
            peer.send_words(&done(xid));
            fetched.push(xid);
        }
        fetched.sort_unstable();
        assert_eq!(fetched, [1, 2, 3, 4, 5], "{profile:?}");
        server.wait_for("every RDMA_DONE", |stats| stats.dones_received == 5);
    }
}

#[test]
fn a_reply_waits_under_the_drafts_for_as_long_as_for_rdma_done() {
    let server = server(|raw| {
        (raw.rpc.protocol, raw.fixed.exports) = (Profile::Draft03, 1);
        raw.fixed.done_timeout_ms = 100;
    });
    let mut peer = RawPeer::connect(&server.address);
    (1..=6).for_each(|xid| ask(&mut peer, xid));
    let mut kinds: Vec<_> = (1..=6).map(|_| peer.hear().words()[3]).collect();
    kinds.sort_unstable();
    let given_up = kinds.iter().filter(|kind| **kind == ERROR).count();
    assert!(given_up > 0 && given_up < 6, "{kinds:?}");
    assert!(kinds.iter().all(|kind| [ERROR, NOMSG].contains(kind)), "{kinds:?}");
    server.wait_for("the last window", |stats| stats.exports_expired == 6 - given_up as u64);
    // Nothing is owed any more: the next reply goes at once.
    ask(&mut peer, 500);
    read_list(&peer.hear());
}

#[test]
fn a_reply_is_kept_back_until_rdma_done_and_brings_the_next_credit() {
    let server = server(|raw| raw.rpc.credits = 3);
    let mut peer = RawPeer::connect(&server.address);
    for xid in [1, 2, 3] {
        ask(&mut peer, xid);
    }
    let mut heard: Vec<_> = (0..2).map(|_| read_list(&peer.hear()).0).collect();
    server.wait_for("a reply kept back", |stats| stats.replies_kept_back == 1);
    assert!(peer.poll().is_none());
    peer.send_words(&done(heard[0]));
    let (xid, credits, slice) = read_list(&peer.hear());
    heard.push(xid);
    heard.sort_unstable();
    assert_eq!((heard, credits), (vec![1, 2, 3], 3), "room for two RDMA_DONEs and a call");
    peer.read(slice);
    assert!(peer.hear_read().is_some());
}

#[test]
fn a_client_that_counts_no_rdma_done_finds_receives_all_the_same() {
    let server = server(|_| {});
    let mut peer = RawPeer::connect(&server.address);
    let mut replies = Vec::new();
    for xid in 0..10 {
        ask(&mut peer, xid);
        replies.push(read_list(&peer.hear()).0);
    }
    // As many calls as were ever granted, and every RDMA_DONE owed, at once.
    for xid in 100..154 {
        peer.send_words(&call(xid, NULL, &[]));
    }
    for xid in replies {
        peer.send_words(&done(xid));
    }
    for _ in 100..154 {
        assert_eq!(*peer.hear().words().last().unwrap(), 0);
    }
    server.wait_for("every RDMA_DONE", |stats| stats.dones_received == 10);
}

/// A real client by RFC 5666.
type Pair = RawServer<Vec<u8>>;

impl Pair {
    fn new() -> Self {
        let mut raw = client_config();
        raw.rpc.protocol = Profile::Rfc5666;
        raw.rpc.max_segments = 16;
        Self::up(raw, one_opaque)
    }

    fn call(&mut self) -> u32 {
        self.caller.start(NULL, 1, |_| {}).unwrap();
        self.caller.core.poll_once();
        self.peer.hear().words()[0]
    }

    /// Answers with one opaque of `count` bytes in a Read chunk of these segments.
    fn answer(&mut self, xid: u32, count: u32, segments: &[RemoteSlice]) {
        let reads: Vec<u32> = segments.iter().flat_map(|s| read_segment(28, *s)).collect();
        let body = [&success(xid)[..], &[count]].concat();
        self.peer.send_words(&message(xid, MSG, &[&reads[..], &NO_LISTS].concat(), &body));
    }

    #[track_caller]
    fn hear_done(&mut self, xid: u32) {
        assert_eq!(self.hear(), [xid, 1, 64, DONE]);
    }
}

#[test]
fn keys_that_lead_nowhere_cost_the_connection() {
    for broken_at in 0..3 {
        let mut pair = Pair::new();
        let xid = pair.call();
        let good = pair.peer.expose(&[1; 64], Access::RemoteRead);
        let mut segments = [good; 3];
        segments[broken_at] = NOWHERE;
        pair.answer(xid, 192, &segments);
        let error = pair.caller.reply().unwrap_err();
        let access = DownCause::WorkRequest(WrError::RemoteAccess);
        assert!(matches!(&error, CallError::Disconnected(cause) if *cause == access), "{error:?}");
        assert_eq!(pair.caller.down().0, access);
    }
}

#[test]
fn a_reply_too_long_to_be_fetched_ends_its_call_alone() {
    let long = RemoteSlice { length: u32::MAX, offset: 0, ..NOWHERE };
    for segments in
        [vec![long], vec![NOWHERE; 17], vec![RemoteSlice { length: 1 << 30, ..NOWHERE }; 4]]
    {
        let mut pair = Pair::new();
        let xid = pair.call();
        pair.answer(xid, 64, &segments);
        let error = pair.caller.reply().unwrap_err();
        assert!(matches!(error, CallError::NoMemory), "{error:?}");
        pair.hear_done(xid);
        assert!(pair.caller.client.is_up());
    }
}

#[test]
fn a_second_reply_while_the_first_is_fetched_is_dropped() {
    let mut pair = Pair::new();
    let xid = pair.call();
    let slice = pair.peer.expose(&[9; 64], Access::RemoteRead);
    pair.answer(xid, 64, &[slice]);
    pair.answer(xid, 64, &[NOWHERE]);
    assert_eq!(pair.caller.reply().unwrap(), [9; 64]);
    pair.hear_done(xid);
    let engine = pair.caller.engine.clone();
    run_core(&mut pair.caller.core, "a drop", || engine.stats(0).unwrap().messages_dropped == 1);
    assert!(pair.caller.client.is_up());
}
