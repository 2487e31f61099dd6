//! Many calls in progress, which hold places for replies and memory.

use super::*;

/// As clients with several connections do while an export is frozen.
#[test]
fn calls_in_progress_on_several_connections_expect_all_known_and_answered() {
    const CALLS: u32 = 480;
    let address = unique_address();
    let mut raw = server_of_version_one();
    raw.rpc.reply_cache_mib = 4;
    // Memory for the replies of all calls in progress, and of those that wait for the same: half of it is for one peer.
    raw.mem.arena_mib = 256;
    let server = Threads::start(raw, &address);
    for mut peer in start_raw(&address, ADD_LATER, 0..CALLS) {
        // Behind the others of its connection, so that they have arrived.
        peer.send_words(&raw_call(CALLS, LOOK));
        assert_eq!(peer.hear().words()[0], CALLS);
        peer.close();
    }
    let mut again = start_raw(&address, ADD_LATER, 0..CALLS);
    for peer in &mut again {
        peer.send_words(&raw_call(CALLS, LOOK));
        assert_eq!(peer.hear().words()[0], CALLS);
    }
    server.seen.answer_deferred();
    for peer in &mut again {
        for _ in 0..60 {
            let reply = peer.hear().words();
            assert_eq!(reply[13], 1, "{reply:?}");
        }
        peer.close();
    }
    assert!((0..CALLS).all(|number| server.seen.executed(number) == 1));
}

/// Connections of a peer are served in any order, so each of them may be the one that its peer listens to.
#[test]
fn one_call_repeated_on_several_connections_expect_the_reply_on_each() {
    const CALL: u32 = 7;
    let address = unique_address();
    let server = Threads::start(with_memory_for_many_calls(), &address);
    let mut peers: Vec<RawPeer> =
        (0..4).flat_map(|_| start_raw(&address, ADD_LATER, CALL..CALL + 1)).collect();
    for peer in &mut peers {
        // Behind the other of its connection, so that it has arrived.
        peer.send_words(&raw_call(CALL + 1, LOOK));
        assert_eq!(peer.hear().words()[0], CALL + 1);
    }
    server.seen.answer_deferred();
    for peer in &mut peers {
        let reply = peer.hear().words();
        assert_eq!((reply[0], reply[12], reply[13]), (CALL, 0, 1), "{reply:?}");
        peer.close();
    }
    assert_eq!(server.seen.executed(CALL), 1);
}

#[test]
fn all_places_of_a_peer_in_progress_expect_it_told_to_try_again_and_its_other_calls_executed() {
    let address = unique_address();
    // 256 places are for one client.
    let server = Threads::start(with_memory_for_many_calls(), &address);
    let peers = start_raw(&address, ADD_LATER, 0..256);
    crate::common::wait_until("all calls in progress", || lock(&server.seen.deferred).len() == 256);
    let replies = ask(&address, &[raw_call(300, ADD), raw_call(301, LOOK)]);
    assert_eq!((replies[0][13], replies[1][13]), (LATER, 1));
    assert_eq!(server.seen.executed(300), 0);
    let full = || server.engine.stats(0).unwrap().reply_cache_full;
    crate::common::wait_until("the call counted", || full() == 1);
    let (_, one) = lock(&server.seen.deferred).pop().unwrap();
    one.reply(|results| results.u32(1));
    ask(&address, &[raw_call(300, ADD)]);
    assert_eq!(server.seen.executed(300), 1, "in the place of the one that was answered");
    drop(peers);
}

fn with_memory_for_many_calls() -> RawConfig {
    let mut raw = server_of_version_one();
    raw.mem.arena_mib = 96;
    raw
}

/// Only clients that the service has on its list get places.
#[test]
fn peers_that_the_service_does_not_know_expect_that_they_take_no_places() {
    let address = unique_address();
    let server = Threads::start(with_memory_for_many_calls(), &address);
    server.seen.has_no_clients.store(true, Ordering::Relaxed);
    let strangers = start_raw(&address, ADD_LATER, 0..300);
    crate::common::wait_until("all calls in progress", || lock(&server.seen.deferred).len() == 300);
    server.seen.has_no_clients.store(false, Ordering::Relaxed);
    let first = ask(&address, &[raw_call(2000, ADD)]);
    assert_eq!(ask(&address, &[raw_call(2000, ADD)]), first);
    assert_eq!(server.seen.executed(2000), 1);
    assert_eq!(server.engine.stats(0).unwrap().reply_cache_full, 0);
    drop(strangers);
}

/// The first connection goes with calls in progress that hold 12 of 19 blocks of memory, so that not all of them can wait
/// for their replies on the next one. Expect that none ends with an error, and none is executed again.
#[test]
fn repeated_calls_that_cannot_wait_for_the_first_expect_the_replies_over_a_later_connection() {
    let mut pair = Lockstep::with(|raw| raw.mem.arena_mib = 2);
    let calls = 1..=12;
    for number in calls.clone() {
        // Without chunks: calls with chunks wait before they reach the service.
        let mut spec = CallSpec::short().resend(Resend::AtMostOnce);
        let encode = |args: &mut spinrpc::Encoder<'_>| {
            args.u32(number);
            args.opaque(&[]);
        };
        let token = Token(u64::from(number));
        pair.caller.client.call(ADD_LATER, token, &mut spec, encode).unwrap();
    }
    pair.run_until("the calls", |pair| calls.clone().all(|number| pair.seen.executed(number) == 1));
    let ups = pair.ups();
    pair.caller.client.reconnect();
    pair.run_until("the calls again, and again", |pair| {
        pair.ups() > ups + 1 || !pair.caller.heard.borrow().replies.is_empty()
    });
    pair.seen.answer_deferred();
    for (number, reply) in pair.replies(12) {
        assert_eq!(reply.unwrap_or_else(|error| panic!("{number}: {error}")), (1, Vec::new()));
    }
    assert!(calls.into_iter().all(|number| pair.seen.executed(number) == 1));
}
