//! Clients, executed calls, and stored replies.

use super::*;
use crate::mem::{BulkClass, BulkPool, Region};
use crate::reactor::types::encode_buffer::MessageMemory;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Item, Placement, StreamWriter};

const PLACES: usize = 16;

fn cache_of(places: usize) -> Arc<ReplyCache> {
    Arc::new(ReplyCache::with_places(places, 1, 0x5eed))
}

fn user(uid: u32) -> Peer {
    Peer::Process { uid, pid: 1 }
}

fn host(address: &str) -> Peer {
    Peer::Socket(std::net::SocketAddr::new(address.parse().unwrap(), 20049))
}

fn attach(cache: &Arc<ReplyCache>, identity: u64, instance: Instance, peer: &Peer) -> Attached {
    cache.attach(PeerId::new(identity, instance), peer).unwrap()
}

/// A connection of a client of ours.
fn own(cache: &Arc<ReplyCache>, number: u64) -> Attached {
    attach(cache, 1, Instance::Lasting(number), &user(1000))
}

/// A connection of a client of another implementation.
fn other(cache: &Arc<ReplyCache>, uid: u32) -> Attached {
    attach(cache, 1 + u64::from(uid), Instance::Unknown, &user(uid))
}

fn call_of(xid: u32) -> CallKey {
    CallKey {
        xid: Xid(xid),
        program: Program(1),
        version: Version(1),
        procedure: Procedure(1),
        ..CallKey::NONE
    }
}

#[track_caller]
fn begin(client: &Attached, xid: u32) -> ReplyKeeper {
    match client.meet(call_of(xid), |_| ()) {
        Verdict::Execute(keeper) => keeper,
        _ => panic!("call {xid} is not executed"),
    }
}

/// Returns true if a call on this connection is executed; its reply is then a refusal.
fn is_executed(client: &Attached, xid: u32) -> bool {
    match client.meet(call_of(xid), |_| ()) {
        Verdict::Execute(keeper) => {
            keeper.refuse(SYSTEM_ERR);
            true
        }
        _ => false,
    }
}

fn is_full(client: &Attached, xid: u32) -> bool {
    matches!(client.meet(call_of(xid), |_| ()), Verdict::Full)
}

fn is_running(client: &Attached, xid: u32) -> bool {
    matches!(client.meet(call_of(xid), |_| ()), Verdict::Running)
}

/// XIDs of a client of ours that have the same slot.
const SLOTS: u32 = spinrpc_proto::requester::SLOTS_MAX as u32;

#[test]
fn receive_a_call_by_a_replaced_connection_expect_it_not_executed_behind_newer_ones() {
    let cache = cache_of(PLACES);
    let (first, second) = (own(&cache, 7), own(&cache, 7));
    assert!(is_executed(&first, 0));
    assert!(!is_executed(&second, 0), "sent again, and answered");
    assert!(is_executed(&second, SLOTS), "has the place of the one before");
    assert!(!is_executed(&first, 0), "arrives late by the first connection");
    assert!(!first.pass(Procedure(2), Xid(0)));
}

/// Two rails of one client, and another host that has copied the number of one that does not roam.
#[test]
fn a_roaming_client_is_known_by_any_address_and_another_one_by_its_own() {
    let cache = cache_of(PLACES);
    let by = |address, identity, instance| attach(&cache, identity, instance, &host(address));
    let roaming = Instance::Roaming(7);
    let (one, other) = (by("10.8.0.1", 1, roaming), by("10.8.1.1", 2, roaming));
    assert!(is_executed(&one, 0));
    assert!(!is_executed(&other, 0), "sent again by the other rail");
    assert!(is_executed(&other, SLOTS));
    assert!(!is_executed(&one, 0), "arrives late by the first rail");
    let lasting = Instance::Lasting(7);
    let (own, copied) = (by("10.8.0.1", 1, lasting), by("10.8.0.9", 3, lasting));
    assert!(is_executed(&own, 0) && is_executed(&copied, 0));
    assert!(!is_executed(&own, 0), "not displaced by the other host");
}

/// A stranger has learnt the number of a client that roams, and calls in all of its slots, from another host.
#[test]
fn a_stranger_with_the_number_of_a_roaming_client_displaces_no_reply_of_it() {
    let cache = cache_of(PLACES);
    let by = |address| attach(&cache, 1, Instance::Roaming(7), &host(address));
    let client = by("10.8.0.1");
    let running = begin(&client, 0);
    assert!(is_executed(&client, 1));
    let stranger = by("10.9.0.1");
    assert!((0..2).all(|slot| is_executed(&stranger, slot + SLOTS)));
    assert!((0..2).all(|slot| stranger.pass(Procedure(2), Xid(slot + 2 * SLOTS))));
    let again = by("10.8.1.1");
    assert!(is_running(&again, 0) && !is_executed(&again, 1));
    running.refuse(SYSTEM_ERR);
    assert!(matches!(again.meet(call_of(0), |_| ()), Verdict::Answered));
}

/// A roaming client stays away from its first rail until its XIDs have wrapped around.
#[test]
fn an_xid_that_has_wrapped_around_elsewhere_is_another_call() {
    let cache = cache_of(PLACES);
    let by = |address| attach(&cache, 1, Instance::Roaming(7), &host(address));
    let (one, other) = (by("10.8.0.1"), by("10.8.1.1"));
    assert!(is_executed(&one, 0));
    assert!(is_executed(&other, SLOTS) && is_executed(&other, 2 * SLOTS));
    assert!(is_executed(&other, 0), "it has the reply of a call of long ago");
    assert!(!is_executed(&other, 0) && !is_executed(&by("10.8.0.1"), 0), "sent again");
}

#[test]
fn receive_a_null_call_by_a_newer_connection_expect_calls_by_the_one_before_executed() {
    let cache = cache_of(PLACES);
    let (first, second) = (own(&cache, 7), own(&cache, 7));
    assert!(is_executed(&first, 0));
    assert!(second.pass(NULL, Xid(1)));
    assert!(is_executed(&first, 3));
}

/// The NULL call with which a connection begins may have the slot of a call that is still on its
/// way by the one before, twice (seed 5180106 of the simulation).
#[test]
fn receive_a_null_call_by_a_newer_connection_expect_its_slot_still_known_to_the_one_before() {
    let cache = cache_of(PLACES);
    let (first, second) = (own(&cache, 7), own(&cache, 7));
    assert!(is_executed(&first, 0));
    assert!(second.pass(NULL, Xid(SLOTS)));
    assert!(!is_executed(&first, 0), "executed twice");
    assert!(first.pass(NULL, Xid(SLOTS)));
    assert!(is_executed(&first, 0), "its slot was used again");
}

/// A client of ours has at most as many places as slots, whatever the XIDs count up to.
#[test]
fn a_client_of_ours_uses_its_slots_again_expect_its_places_used_again() {
    let cache = cache_of(PLACES);
    let (client, quiet) = (own(&cache, 7), own(&cache, 8));
    assert!(is_executed(&quiet, 5));
    for round in 0..100 {
        assert!((0..3).all(|slot| is_executed(&client, slot + SLOTS * round)));
    }
    assert!(!is_executed(&quiet, 5));
}

/// A client that counts its XIDs up gets beyond the number of places while a call is executed.
#[test]
fn receive_many_calls_while_one_is_executed_expect_it_still_known() {
    let client = other(&cache_of(PLACES), 1);
    let first = begin(&client, 5);
    for xid in 6..100 {
        assert!(client.pass(Procedure(2), Xid(xid)));
        assert!(is_executed(&client, xid));
    }
    assert!(is_running(&client, 5));
    first.refuse(SYSTEM_ERR);
    assert!(matches!(client.meet(call_of(5), |_| ()), Verdict::Answered));
}

#[test]
fn receive_calls_that_may_be_executed_twice_expect_replies_of_others_still_kept() {
    let client = other(&cache_of(PLACES), 1);
    assert!(is_executed(&client, 7));
    assert!((8..1000).all(|xid| client.pass(Procedure(2), Xid(xid))));
    assert!(!is_executed(&client, 7));
}

/// Linux counts in the first byte on the wire, others elsewhere, and start anywhere.
#[test]
fn receive_calls_counted_in_any_byte_expect_as_many_known_as_there_are_places() {
    let counts: [fn(u32) -> u32; 4] =
        [|n| n, |n| n.swap_bytes(), |n| n << 12, |n| n.wrapping_mul(64)];
    for (order, xid) in counts.into_iter().enumerate() {
        let cache = cache_of(1024);
        let (client, again) = (other(&cache, 1), other(&cache, 1));
        let calls: Vec<u32> = (0x1feb_47cb_u32..).map(xid).take(1024 / KIN_PART).collect();
        assert!(calls.iter().all(|xid| is_executed(&client, *xid)));
        let twice = calls.iter().filter(|xid| is_executed(&again, **xid)).count();
        assert_eq!(twice, 0, "executed twice, counted in order {order}");
    }
}

/// However many clients it says it is.
#[test]
fn a_peer_with_its_part_of_the_places_expect_it_to_displace_its_own_oldest_reply() {
    let peers = [
        [user(7), user(7)],
        [host("192.0.2.1"), host("::ffff:192.0.2.1")],
        [host("2001:db8::1"), host("2001:db8::2:1")],
    ];
    for [one, two] in peers {
        let cache = cache_of(PLACES);
        let victim = other(&cache, 1);
        assert!(is_executed(&victim, 1));
        let flood = |number: u64| {
            let peer = if number.is_multiple_of(2) { &one } else { &two };
            attach(&cache, 9, Instance::Lasting(number), peer)
        };
        assert!((1..100).all(|number| is_executed(&flood(number), 1)));
        assert!(!is_executed(&victim, 1), "displaced by {one}");
        let free = PLACES as u64 - 1;
        assert!((100 - free..100).all(|number| !is_executed(&flood(number), 1)), "{one}");
        assert!(is_executed(&flood(1), 1), "{one}");
    }
}

/// As Linux with nconnect=16, which notices a lost connection late and goes on with the others meanwhile.
#[test]
fn a_host_with_many_connections_expect_its_replies_kept_while_places_are_free() {
    let cache = cache_of(65_536);
    let quiet: Vec<_> = (2..12).map(|uid| other(&cache, uid)).collect();
    assert!(quiet.iter().all(|client| is_executed(client, 1)));
    let xids = |connection: u32, round: u32| {
        let first = connection.wrapping_mul(0x9e37_79b9).wrapping_add(round * 128);
        (first..first + 128).map(u32::swap_bytes)
    };
    let rounds = |connection: u32| 0..if connection == 0 { 1 } else { 4 };
    let calls: Vec<u32> = (0..16)
        .flat_map(|connection| rounds(connection).flat_map(move |round| xids(connection, round)))
        .collect();
    let (host, again) = (other(&cache, 1), other(&cache, 1));
    assert!(calls.iter().all(|xid| is_executed(&host, *xid)));
    let twice = calls.iter().filter(|xid| is_executed(&again, **xid)).count();
    assert_eq!(twice, 0, "of {} calls", calls.len());
    assert!(!quiet.iter().any(|client| is_executed(client, 1)));
}

#[test]
fn a_peer_with_more_than_its_part_expect_its_replies_to_go_first_down_to_its_part() {
    let (cache, part) = (cache_of(PLACES), (PLACES / KIN_PART) as u32);
    let (idle, greedy) = (other(&cache, 1), other(&cache, 2));
    assert!(is_executed(&idle, 1));
    assert!((0..100).all(|xid| is_executed(&greedy, xid)));
    let others: Vec<_> =
        (3..).map(|uid| other(&cache, uid)).take(PLACES - 1 - part as usize).collect();
    assert!(others.iter().all(|other| is_executed(other, 1)));
    assert!(!is_executed(&idle, 1), "was idle for longest");
    assert!(!others.iter().any(|other| is_executed(other, 1)));
    assert!((100 - part..100).all(|xid| !is_executed(&greedy, xid)), "its part");
    assert!(is_executed(&other(&cache, 99), 1));
    assert!(is_executed(&idle, 1), "nobody has more than its part");
}

#[test]
fn no_place_free_expect_the_peer_that_was_idle_for_longest_to_lose_its_oldest_reply() {
    let cache = cache_of(PLACES);
    let peers: Vec<_> = (0..PLACES as u32 / 2).map(|uid| other(&cache, uid)).collect();
    assert!(peers.iter().all(|peer| is_executed(peer, 1) && is_executed(peer, 2)));
    assert!(!is_executed(&peers[0], 1), "asks again");
    assert!(is_executed(&other(&cache, 99), 1));
    assert!(is_executed(&peers[0], 2), "was made before all others, and never asked for");
    assert!(!is_executed(&peers[0], 1));
    assert!(is_executed(&peers[1], 1), "was the next one");
}

/// A peer whose calls are in progress cannot take more than its part, and what is in progress is not displaced.
#[test]
fn all_places_of_a_peer_in_progress_expect_its_next_call_put_off_and_others_executed() {
    let cache = cache_of(PLACES);
    let (busy, another) = (other(&cache, 1), other(&cache, 2));
    let mut keepers: Vec<_> =
        (0..(PLACES / KIN_PART) as u32).map(|xid| begin(&busy, xid)).collect();
    assert!(is_full(&busy, 77) && is_full(&busy, 78));
    assert!((0..100).all(|xid| is_executed(&another, xid)));
    assert!((0..keepers.len() as u32).all(|xid| is_running(&busy, xid)));
    keepers.swap_remove(1).refuse(SYSTEM_ERR);
    drop(begin(&busy, 77));
}

#[test]
fn all_places_in_progress_expect_the_next_call_of_anybody_put_off() {
    let cache = cache_of(PLACES);
    let all = (0..PLACES as u32).map(|uid| (other(&cache, uid), uid));
    let keepers: Vec<_> = all.map(|(client, xid)| begin(&client, xid)).collect();
    assert!(is_full(&other(&cache, 99), 1));
    drop(keepers);
    assert!(is_executed(&other(&cache, 99), 1));
}

/// Many small caches would keep less of one client than one cache of the same size.
#[test]
fn the_places_that_a_client_may_have_are_as_documented() {
    for (mib, places, of_client) in
        [(1, 1024, 256), (4, 4096, 1024), (8, 8192, 1024), (64, 65_536, 2048)]
    {
        assert_eq!(places_of(mib), (places, of_client), "{mib} MiB");
    }
}

/// A connection of a client of ours takes the place of those before it, so that it has to have a higher
/// number. A client that may have several connections at a time has none replaced.
#[test]
fn connections_of_a_client_that_comes_back_expect_rising_numbers_and_none_for_others() {
    let cache = cache_of(PLACES);
    let all: Vec<_> = (0..3).map(|_| own(&cache, 1)).collect();
    let numbers: Vec<u64> = all.iter().map(|one| one.own.as_ref().unwrap().number).collect();
    assert!(numbers[0] > 0 && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert!(other(&cache, 1).own.is_none());
    let passing = PeerId { identity: 1, instance: Instance::Passing };
    assert!(cache.attach(passing, &user(1)).is_none());
    let unknown = PeerId { identity: 0, instance: Instance::Unknown };
    assert!(cache.attach(unknown, &user(1)).is_none());
    assert_eq!(lock(&cache.newest).len(), 1);
    drop(all);
    assert_eq!(lock(&cache.newest).len(), 0, "of clients that have gone");
}

/// Only the server decodes what in the arguments of an RDMA_MSGP is padding.
#[test]
fn receive_a_call_again_with_other_padding_expect_the_same_call_by_its_name() {
    let of = |arguments| CallKey { arguments, ..call_of(1) };
    for (first, again, is_same) in [
        (Some(5), Some(5), true),
        (Some(5), Some(6), false),
        (Some(5), None, true),
        (None, Some(5), true),
        (None, None, true),
    ] {
        assert_eq!(of(first).is_same(&of(again)), is_same, "{first:?} {again:?}");
    }
    assert!(!of(None).is_same(&CallKey { xid: Xid(2), ..of(None) }));
}

/// The stored reply of a call: the refusal, or the stream with everything inline.
fn kept_for(client: &Attached, xid: u32, pool: &BulkPool) -> Result<Vec<u8>, RpcRefusal> {
    let mut kept = None;
    let verdict = client.meet(call_of(xid), |stored| {
        kept = Some(stored.reply(|bytes| pool.take(bytes)).map(|(data, draft)| {
            let items: Vec<_> = data
                .item_bytes()
                .map(|bytes| Item { bytes, placement: Placement::Inline })
                .collect();
            let mut stream = vec![0; 128 << 10];
            let mut writer = StreamWriter::new(&mut stream, &items);
            draft.write(&mut writer);
            let length = writer.finish().stream_bytes;
            stream.truncate(length);
            stream
        }));
    });
    assert!(matches!(verdict, Verdict::Answered));
    kept.unwrap()
}

fn pool() -> BulkPool {
    let classes = [BulkClass { block_bytes: 64 << 10, count: 8 }];
    let bytes = BulkPool::region_bytes(&classes).unwrap();
    // Blocks begin at a cache line, which memory of the heap need not.
    BulkPool::new(Region::from_boxed(vec![0; bytes + 64].into()), &classes).unwrap()
}

/// Stores the reply to a call, encoded like this.
fn record(
    client: &Attached,
    xid: u32,
    data: &ReplyData,
    mut encode: impl FnMut(&mut StreamWriter<'_>),
) {
    let mut memory = MessageMemory::with_capacity(128 << 10);
    let draft = memory.draft(data.count(), Alignment::NONE, &mut encode);
    begin(client, xid).record(data, draft.as_ref().ok());
}

fn data_of(pool: &BulkPool, items: &[&[u8]]) -> ReplyData {
    items.iter().fold(ReplyData::new(), |data, item| {
        let mut bulk = pool.take(item.len()).unwrap();
        bulk.bytes_mut().copy_from_slice(item);
        data.bulk(bulk)
    })
}

/// RFC 5531 section 4: the call that asks again gets the reply of the first.
#[test]
fn a_reply_with_several_items_expect_the_same_results_when_asked_again() {
    let (client, pool) = (other(&cache_of(1024), 1), pool());
    let data = data_of(&pool, &[b"first", b"second one", b"3"]);
    record(&client, 1, &data, |stream| {
        stream.u32(9);
        (0..3).for_each(|_| stream.bulk());
    });
    let counted = |length: u8, bytes: &[u8]| [&[0, 0, 0, length], bytes].concat();
    let expected = [
        vec![0, 0, 0, 9],
        counted(5, b"first\0\0\0"),
        counted(10, b"second one\0\0"),
        counted(1, b"3\0\0\0"),
    ];
    assert_eq!(kept_for(&client, 1, &pool), Ok(expected.concat()));
}

/// "A reply that is too long leaves a mark": whatever of it is too long, and when items are missing.
#[test]
fn a_reply_that_cannot_be_kept_expect_system_err_when_asked_again() {
    let (client, pool) = (other(&cache_of(1024), 1), pool());
    let most = results::REPLY_BYTES_MAX - size_of::<u32>();
    let bytes = vec![1; most + 1];
    record(&client, 1, &ReplyData::new(), |stream| stream.opaque(&bytes));
    record(&client, 2, &data_of(&pool, &[&bytes]), |stream| stream.bulk());
    record(&client, 3, &ReplyData::new(), |stream| stream.bulk());
    record(&client, 4, &ReplyData::new(), |stream| stream.opaque(&bytes[1..]));
    for xid in 1..4 {
        assert_eq!(kept_for(&client, xid, &pool), Err(SYSTEM_ERR), "{xid}");
    }
    assert_eq!(kept_for(&client, 4, &pool).unwrap().len(), most + 4, "just as long as may be");
}

/// A long reply goes on in other places, which it displaces and gives back.
#[test]
fn long_replies_expect_each_kept_whole_as_long_as_there_is_room() {
    let (cache, pool) = (cache_of(PLACES), pool());
    let (client, busy) = (other(&cache, 1), other(&cache, 2));
    let in_progress = begin(&busy, 1);
    for (xid, length) in (0..50).zip([2044, 0, 700, 512, 508, 1536, 2000].into_iter().cycle()) {
        let bytes: Vec<u8> = (0..length).map(|at| (at / 4 + xid) as u8).collect();
        record(&client, xid, &ReplyData::new(), |stream| stream.opaque(&bytes));
        let expected = [&length.to_be_bytes()[..], &bytes].concat();
        assert_eq!(kept_for(&client, xid, &pool), Ok(expected), "{length} bytes");
    }
    let bytes = [0; 8192];
    record(&client, 99, &ReplyData::new(), |stream| stream.opaque(&bytes));
    assert_eq!(kept_for(&client, 99, &pool), Err(SYSTEM_ERR), "more than there are places");
    assert!(is_running(&busy, 1));
    drop(in_progress);
    let free = PLACES as u32 - 1;
    assert!((200..200 + free).all(|xid| is_executed(&client, xid)));
    assert!(!(200..200 + free).any(|xid| is_executed(&client, xid)), "places are lost");
}

#[test]
fn a_refused_call_expect_the_same_refusal_when_asked_again() {
    let (client, pool) = (other(&cache_of(1024), 1), pool());
    let refusal = RpcRefusal::Accepted(AcceptStatus::GarbageArgs);
    begin(&client, 1).refuse(refusal);
    assert_eq!(kept_for(&client, 1, &pool), Err(refusal));
}

#[test]
fn a_call_whose_handler_ends_without_a_reply_expect_system_err_when_asked_again() {
    let (client, pool) = (other(&cache_of(1024), 1), pool());
    drop(begin(&client, 1));
    assert_eq!(kept_for(&client, 1, &pool), Err(SYSTEM_ERR));
}
