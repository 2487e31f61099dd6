//! Shares, executed calls, and stored replies.

use super::*;
use crate::config::RawConfig;
use crate::mem::{BulkClass, BulkPool, Region};
use crate::reactor::words::message_memory::MessageMemory;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::payload::{Item, Placement, StreamWriter};

const ENTRIES: u32 = 2;
const KEEP: Duration = Duration::from_secs(1);

fn cache_of(clients: u64) -> Arc<ReplyCache> {
    let mut raw = RawConfig::default();
    (raw.rpc.reply_cache_clients, raw.rpc.reply_cache_keep_ms) = (clients, 1000);
    ReplyCache::new(&raw.validate().unwrap(), 1).unwrap()
}

fn client(identity: u64, number: u64) -> PeerId {
    PeerId { identity, instance: Instance::Lasting(number) }
}

/// Returns true if the client gets a share.
fn is_seated(cache: &ReplyCache, client: PeerId, now: Duration) -> bool {
    matches!(cache.attach(client, now), Standing::Kept(_))
}

/// A peer has a share before a program knows if it serves the peer at all.
#[test]
fn a_peer_that_says_it_is_many_clients_expect_shares_left_for_others() {
    let (cache, start) = (cache_of(16), Duration::ZERO);
    let seated = (1..=16).filter(|number| is_seated(&cache, client(7, *number), start));
    assert_eq!(seated.count(), 2);
    assert!(is_seated(&cache, client(8, 1), start));
    cache.detach(client(8, 1), start);
    cache.detach(client(7, 2), start);
    assert!(is_seated(&cache, client(7, 2), start), "comes back");
    assert!(!is_seated(&cache, client(7, 3), KEEP), "both are in use");
    cache.detach(client(7, 2), start);
    assert!(is_seated(&cache, client(7, 3), KEEP), "in the place of one that has gone");
    assert!(!is_seated(&cache, client(7, 2), KEEP));
    let others = (9..=21).filter(|identity| is_seated(&cache, client(*identity, 1), start));
    assert_eq!(others.count(), 13);
    assert!(is_seated(&cache, client(22, 1), KEEP), "in the place of one that has gone");
}

#[test]
fn a_client_has_a_place_for_as_many_replies_as_configured() {
    let mut raw = RawConfig::default();
    (raw.rpc.reply_cache_clients, raw.rpc.reply_cache_entries) = (1, 512);
    let cache = ReplyCache::new(&raw.validate().unwrap(), 1).unwrap();
    let Standing::Kept(share) = cache.attach(client(1, 1), KEEP) else {
        panic!("the only client has no share");
    };
    assert_eq!(lock(&share.0).places.len(), 512);
}

/// A driver may know nothing of its peers, which then cannot be told apart.
#[test]
fn clients_whose_driver_knows_nothing_of_them_expect_a_share_for_each() {
    let cache = cache_of(4);
    assert!((1..=4).all(|number| is_seated(&cache, client(0, number), KEEP)));
    assert!(!is_seated(&cache, client(0, 5), KEEP));
}

fn call_of(xid: u32) -> CallKey {
    CallKey {
        xid: Xid(xid),
        program: Program(1),
        version: Version(1),
        procedure: Procedure(1),
        credential: 0,
        arguments: None,
    }
}

fn share_of(entries: u32) -> Arc<Share> {
    let share = Arc::new(Share::default());
    share.furnish(entries as usize, 64);
    share
}

#[track_caller]
fn begin(share: &Arc<Share>, xid: u32) -> Ticket {
    match share.meet(UNNUMBERED, call_of(xid), |_| ()) {
        Verdict::Execute(ticket) => ticket,
        _ => panic!("call {xid} is not executed"),
    }
}

/// Returns true if a call on this connection is executed; its reply is then a refusal.
fn is_executed(share: &Arc<Share>, connection: u64, xid: u32) -> bool {
    match share.meet(connection, call_of(xid), |_| ()) {
        Verdict::Execute(ticket) => {
            ticket.refuse(SYSTEM_ERR);
            true
        }
        _ => false,
    }
}

#[test]
fn receive_a_call_by_a_replaced_connection_expect_it_not_executed_behind_newer_ones() {
    let share = share_of(ENTRIES);
    assert!(is_executed(&share, 1, 0));
    assert!(!is_executed(&share, 2, 0), "sent again, and answered");
    assert!(is_executed(&share, 2, ENTRIES), "has the place of the one before");
    assert!(!is_executed(&share, 1, 0), "arrives late by the first connection");
    assert!(!share.pass(1, Procedure(2), Xid(0)));
}

#[test]
fn receive_a_null_call_by_a_newer_connection_expect_calls_by_the_one_before_executed() {
    let share = share_of(ENTRIES);
    assert!(is_executed(&share, 1, 0));
    assert!(share.pass(2, NULL, Xid(1)));
    assert!(is_executed(&share, 1, 3));
}

/// The NULL call with which a connection begins may have the slot of a call that is still on its
/// way by the one before, twice (seed 5180106 of the simulation).
#[test]
fn receive_a_null_call_by_a_newer_connection_expect_its_slot_still_known_to_the_one_before() {
    let share = share_of(ENTRIES);
    assert!(is_executed(&share, 1, 0));
    assert!(share.pass(2, NULL, Xid(ENTRIES)));
    assert!(!is_executed(&share, 1, 0), "executed twice");
    assert!(share.pass(1, NULL, Xid(ENTRIES)));
    assert!(is_executed(&share, 1, 0), "its slot was used again");
}

/// A client that counts its XIDs up gets to those with the same home while a call is executed.
#[test]
fn receive_many_calls_while_one_is_executed_expect_it_still_known() {
    let share = share_of(16);
    let first = begin(&share, 5);
    for round in 1..100 {
        assert!(share.pass(UNNUMBERED, Procedure(2), Xid(5 + 16 * round)));
        assert!(is_executed(&share, UNNUMBERED, 5 + 16 * round));
    }
    let again = |share: &Arc<Share>| share.meet(UNNUMBERED, call_of(5), |_| ());
    assert!(matches!(again(&share), Verdict::Running));
    first.refuse(SYSTEM_ERR);
    assert!(matches!(again(&share), Verdict::Answered));
}

#[test]
fn receive_calls_that_may_be_executed_twice_expect_replies_of_others_still_kept() {
    let share = share_of(16);
    assert!(is_executed(&share, UNNUMBERED, 7));
    for xid in 8..1000 {
        assert!(share.pass(UNNUMBERED, Procedure(2), Xid(xid)));
    }
    assert!(!is_executed(&share, UNNUMBERED, 7));
}

/// Connections of one client count from anywhere, so that their XIDs may have the same homes.
#[test]
fn receive_calls_with_homes_in_common_expect_the_oldest_displaced() {
    let share = share_of(16);
    let calls: Vec<u32> = (0..NEARBY as u32).map(|round| 3 + 16 * round).collect();
    assert!(calls.iter().all(|xid| is_executed(&share, UNNUMBERED, *xid)));
    assert!(!calls.iter().any(|xid| is_executed(&share, UNNUMBERED, *xid)));
    assert!(is_executed(&share, UNNUMBERED, 1003 & !15 | 3));
    assert!(is_executed(&share, UNNUMBERED, calls[0]), "was the oldest");
    assert!(!is_executed(&share, UNNUMBERED, calls[NEARBY - 1]));
}

#[test]
fn as_many_calls_executed_as_there_are_places_expect_a_further_one_refused() {
    let share = share_of(16);
    let mut tickets: Vec<_> = (0..16).map(|round| begin(&share, 2 + 16 * round)).collect();
    let again = share.meet(UNNUMBERED, call_of(2 + 16 * 15), |_| ());
    assert!(matches!(again, Verdict::Running), "found beyond those nearby");
    assert!(matches!(share.meet(UNNUMBERED, call_of(1), |_| ()), Verdict::Full));
    tickets.swap_remove(9).refuse(SYSTEM_ERR);
    drop(begin(&share, 1));
}

/// A connection of a client of ours takes the place of those before it, so that it has to have a higher
/// number. A client that may have several connections at a time has none replaced.
#[test]
fn connections_of_a_client_that_comes_back_expect_rising_numbers_and_none_for_others() {
    let cache = cache_of(4);
    let numbers: Vec<u64> = (0..3).map(|_| cache.number_connection(client(1, 1))).collect();
    assert!(numbers[0] > UNNUMBERED && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    for instance in [Instance::Unknown, Instance::Passing] {
        assert_eq!(cache.number_connection(PeerId { identity: 1, instance }), UNNUMBERED);
    }
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
fn kept_for(share: &Arc<Share>, xid: u32, pool: &BulkPool) -> Result<Vec<u8>, RpcRefusal> {
    let mut kept = None;
    let verdict = share.meet(UNNUMBERED, call_of(xid), |stored| {
        kept = Some(match stored {
            Stored::Refusal(refusal) => Err(refusal),
            Stored::Results(results) => {
                let data = results.data(|bytes| pool.take(bytes)).unwrap();
                let items: Vec<_> = data
                    .item_bytes()
                    .map(|bytes| Item { bytes, placement: Placement::Inline })
                    .collect();
                let mut stream = vec![0; 256];
                let mut writer = StreamWriter::new(&mut stream, &items);
                results.draft().write(&mut writer);
                let length = writer.finish().stream_bytes;
                stream.truncate(length);
                Ok(stream)
            }
        });
    });
    assert!(matches!(verdict, Verdict::Answered));
    kept.unwrap()
}

fn pool() -> BulkPool {
    let classes = [BulkClass { block_bytes: 64, count: 8 }];
    let bytes = BulkPool::region_bytes(&classes).unwrap();
    // Blocks begin at a cache line, which memory of the heap need not.
    BulkPool::new(Region::from_boxed(vec![0; bytes + 64].into()), &classes).unwrap()
}

/// Stores the reply to a call, encoded like this.
fn record(
    share: &Arc<Share>,
    xid: u32,
    data: &ReplyData,
    mut encode: impl FnMut(&mut StreamWriter<'_>),
) {
    let mut memory = MessageMemory::with_capacity(4096);
    let draft = memory.draft(data.count(), Alignment::NONE, &mut encode);
    begin(share, xid).record(data, draft.as_ref().ok());
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
    let (share, pool) = (share_of(16), pool());
    let data = data_of(&pool, &[b"first", b"second one", b"3"]);
    record(&share, 1, &data, |stream| {
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
    assert_eq!(kept_for(&share, 1, &pool), Ok(expected.concat()));
}

/// "A reply that is too long leaves a mark": whatever of it is too long, and when items are missing.
#[test]
fn a_reply_that_cannot_be_kept_expect_system_err_when_asked_again() {
    let (share, pool) = (share_of(16), pool());
    record(&share, 1, &ReplyData::new(), |stream| stream.opaque(&[1; 61]));
    record(&share, 2, &data_of(&pool, &[&[1; 61]]), |stream| stream.bulk());
    record(&share, 3, &ReplyData::new(), |stream| stream.bulk());
    record(&share, 4, &ReplyData::new(), |stream| stream.opaque(&[1; 60]));
    for xid in 1..4 {
        assert_eq!(kept_for(&share, xid, &pool), Err(SYSTEM_ERR), "{xid}");
    }
    assert_eq!(kept_for(&share, 4, &pool).unwrap().len(), 64, "just as long as may be");
}

#[test]
fn a_refused_call_expect_the_same_refusal_when_asked_again() {
    let (share, pool) = (share_of(16), pool());
    let refusal = RpcRefusal::Accepted(AcceptStatus::GarbageArgs);
    begin(&share, 1).refuse(refusal);
    assert_eq!(kept_for(&share, 1, &pool), Err(refusal));
}

#[test]
fn a_call_whose_handler_ends_without_a_reply_expect_system_err_when_asked_again() {
    let (share, pool) = (share_of(16), pool());
    drop(begin(&share, 1));
    assert_eq!(kept_for(&share, 1, &pool), Err(SYSTEM_ERR));
}
