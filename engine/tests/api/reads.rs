//! Replies that the client fetches by RDMA Read (RFC 5666 sections 3.4, 3.5, 3.8, 5.2 and 11), both
//! ends real, by the rules of each document that has them.

use crate::common::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use spinrpc_proto::events::PeerMisbehaved;
use spinrpc_proto::rdma::RdmaError;

const PROFILES: [Profile; 3] = [Profile::Rfc5666, Profile::Draft03, Profile::Draft00];

fn raw(profile: Profile) -> RawConfig {
    small_with(|raw| raw.rpc.protocol = profile)
}

fn client_raw(profile: Profile) -> RawConfig {
    client_with(|raw| raw.rpc.protocol = profile)
}

/// A server whose clients may fetch replies; the drafts need no leave for that.
fn server(raw: RawConfig) -> Server {
    let leave = raw.rpc.protocol == Profile::Rfc5666;
    let server = Server::with(raw);
    server.shared.read_chunks.store(leave, Ordering::Relaxed);
    server
}

fn mix_caller(server: &Server, raw: RawConfig) -> Caller<MixAnswer> {
    Caller::connect_with(raw, &server.address, MixCall::read)
}

/// Calls and waits; it must be refused by the server's transport.
#[track_caller]
fn refused(caller: &mut Caller<MixAnswer>, call: &MixCall) {
    call.start(&caller.client, 1).unwrap();
    let error = caller.reply().unwrap_err();
    assert!(matches!(error, CallError::Rdma(RdmaError::Chunk)), "{call:?}: {error:?}");
}

#[test]
fn items_without_room_are_fetched_and_belong_to_the_application() {
    for profile in PROFILES {
        let server = server(raw(profile));
        let mut caller = mix_caller(&server, client_raw(profile));
        for results in [vec![5001], vec![70_000, 3, 100_001, 9], vec![4096, 4097]] {
            let call = MixCall { seed: 3, results, tail: 50, ..MixCall::default() };
            let answer = run(&mut caller, &call);
            assert_eq!(answer.placed.count_ones() as usize, call.results.len(), "{profile:?}");
        }
        server.wait_for("an RDMA_DONE each", |stats| {
            stats.dones_received == 3 && stats.replies_exported == 3
        });
        let client = caller.engine.clone();
        run_core(&mut caller.core, "the client's count", || {
            client.stats(0).unwrap().dones_sent == 3
        });
    }
}

/// Items that are short, or have room. RFC 5666 section 3.7: the returned length includes roundup, the item's count does not.
#[test]
fn what_fits_the_message_or_its_room_is_not_exported() {
    let call = |results: &[usize], offers: &[usize], tail, reply_bytes_max| {
        let (results, offers) = (results.to_vec(), offers.to_vec());
        MixCall { seed: 3, arguments: vec![], results, offers, tail, reply_bytes_max }
    };
    for (profile, call, placed) in [
        (Profile::Rfc5666, call(&[100, 1000], &[], 500, 0), 0),
        (Profile::Draft00, call(&[8000], &[], 9000, 20_000), 0),
        (Profile::Rfc5666, call(&[9001, 5], &[9001, 8], 0, 0), 0b11),
        (Profile::Rfc5666, call(&[9002, 5], &[9002, 8], 0, 0), 0b11),
        (Profile::Rfc5666, call(&[9003, 5], &[9003, 8], 0, 0), 0b11),
    ] {
        let server = server(raw(profile));
        let mut caller = mix_caller(&server, client_raw(profile));
        assert_eq!(run(&mut caller, &call).placed, placed, "{profile:?} {call:?}");
        server.wait_for("a reply", |stats| stats.replies_sent > 1);
        assert_eq!(server.stats().replies_exported, 0, "{profile:?} {call:?}");
    }
}

#[test]
fn long_replies_without_room_are_fetched_whole() {
    for profile in PROFILES {
        let server = server(raw(profile));
        let mut caller = mix_caller(&server, client_raw(profile));
        for (tail, offers) in [(5000, vec![]), (200_001, vec![]), (9000, vec![100_000])] {
            let results = offers.iter().map(|room| room - 5).collect();
            let call = MixCall { seed: 9, results, offers, tail, ..MixCall::default() };
            let answer = run(&mut caller, &call);
            assert_eq!(answer.placed.count_ones() as usize, call.offers.len(), "{call:?}");
        }
        server.wait_for("three RDMA_DONEs", |stats| stats.dones_received == 3);
    }
}

#[test]
fn room_that_is_too_small_is_returned_unused() {
    for profile in PROFILES {
        let server = server(raw(profile));
        let mut caller = mix_caller(&server, client_raw(profile));
        for call in [
            // A Write chunk for the first item only, and one that is too small.
            MixCall { results: vec![9001, 5000], offers: vec![9000, 5000], ..MixCall::default() },
            // A Reply chunk that is too small, and the rest inline.
            MixCall { tail: 20_000, reply_bytes_max: 6000, ..MixCall::default() },
            MixCall { results: vec![8000], reply_bytes_max: 6000, ..MixCall::default() },
        ] {
            run(&mut caller, &call);
        }
        server.wait_for("three RDMA_DONEs", |stats| stats.dones_received == 3);
    }
}

/// RFC 5666 section 3.6: each result consumes an entry of the Write list. RFC 8166 section 3.4.6: one that has no data
/// leaves its Write chunk to the next.
#[test]
fn an_item_without_bytes_leaves_its_room_to_the_next_one_under_rfc_8166() {
    for (profile, placed) in
        [(Profile::Rfc8166, 0b10), (Profile::Rfc5666, 0), (Profile::Draft00, 0)]
    {
        let server = Server::with(raw(profile));
        let mut caller = mix_caller(&server, client_raw(profile));
        let call = MixCall { results: vec![0, 5], offers: vec![10], ..MixCall::default() };
        assert_eq!(run(&mut caller, &call).placed, placed, "{profile:?}");
    }
}

#[test]
fn without_leave_of_the_upper_layer_rfc_5666_answers_err_chunk() {
    let server = Server::with(raw(Profile::Rfc5666));
    let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
    refused(&mut caller, &MixCall { results: vec![9000], ..MixCall::default() });
    refused(&mut caller, &MixCall { tail: 9000, ..MixCall::default() });
    run(&mut caller, &MixCall { tail: 100, ..MixCall::default() });
}

#[test]
fn more_than_a_client_takes_is_err_chunk_and_not_exported() {
    let server = server(raw(Profile::Draft03));
    let mut caller = mix_caller(&server, client_raw(Profile::Draft03));
    refused(&mut caller, &MixCall { results: vec![600_000; 2], ..MixCall::default() });
    let call = MixCall { results: vec![500_000; 2], ..MixCall::default() };
    run(&mut caller, &call);
    server.wait_for("one exported reply", |stats| stats.replies_exported == 1);
}

#[test]
fn an_rfc_8166_client_of_an_rfc_5666_server_loses_its_connection_for_a_reason() {
    let server = Server::with(raw(Profile::Rfc5666));
    let mut caller = mix_caller(&server, client_config());
    refused(&mut caller, &MixCall { tail: 9000, ..MixCall::default() });
    server.shared.read_chunks.store(true, Ordering::Relaxed);
    MixCall { tail: 9000, ..MixCall::default() }.start(&caller.client, 1).unwrap();
    let why = PeerMisbehaved::ReadListInReply;
    let error = caller.reply().unwrap_err();
    assert!(matches!(error, CallError::PeerMisbehaved(reason) if reason == why), "{error:?}");
    assert_eq!(caller.down().0, DownCause::PeerMisbehaved(why.as_str()));
    let mut other =
        Caller::connect_with(client_raw(Profile::Rfc5666), &server.address, MixCall::read);
    run(&mut other, &MixCall { tail: 9000, ..MixCall::default() });
}

#[test]
fn an_rfc_5666_client_of_an_rfc_8166_server_gets_what_that_allows() {
    let server = Server::start();
    server.shared.read_chunks.store(true, Ordering::Relaxed);
    let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
    refused(&mut caller, &MixCall { tail: 9000, ..MixCall::default() });
    let call = MixCall { results: vec![9001], offers: vec![9001], ..MixCall::default() };
    run(&mut caller, &call);
}

#[test]
fn draft_00_says_done_after_calls_too_and_the_requester_drops_it() {
    let server = server(raw(Profile::Draft00));
    let mut caller = mix_caller(&server, client_raw(Profile::Draft00));
    for _ in 0..300 {
        run(&mut caller, &MixCall { seed: 5, arguments: vec![9001, 5], ..MixCall::default() });
    }
    server.wait_for("an RDMA_DONE each", |stats| stats.dones_sent == 300);
    let client = caller.engine.clone();
    let dropped = || client.stats(0).unwrap().messages_dropped == 300;
    run_core(&mut caller.core, "them dropped", dropped);
}

/// Draft -00 section 3.8: after a call, RDMA_DONE "is not necessary".
#[test]
fn draft_00_can_be_read_without_done_after_calls_and_with_done_after_replies() {
    let server = server(raw(Profile::Draft00Replies));
    let mut caller = mix_caller(&server, client_raw(Profile::Draft00Replies));
    for _ in 0..20 {
        let (arguments, results) = (vec![9001, 5], vec![9001]);
        run(&mut caller, &MixCall { seed: 5, arguments, results, ..MixCall::default() });
    }
    server.wait_for("an RDMA_DONE each", |stats| stats.dones_received == 20);
    assert_eq!(server.stats().dones_sent, 0);
    assert_eq!(caller.engine.stats(0).unwrap().messages_dropped, 0);
}

#[test]
fn many_replies_at_a_time_with_few_credits() {
    for profile in PROFILES {
        for credits in [1, 2, 3, 8] {
            let mut of_server = raw(profile);
            of_server.rpc.credits = credits;
            let server = server(of_server);
            let mut of_client = client_raw(profile);
            of_client.rpc.credits = 16;
            let mut caller = mix_caller(&server, of_client);
            let call = MixCall { seed: 1, results: vec![20_001], ..MixCall::default() };
            let (mut sent, mut heard) = (0, 0);
            while heard < 100 {
                while sent < 100 && call.start(&caller.client, sent).is_ok() {
                    sent += 1;
                }
                caller.run_until("a reply", |heard| !heard.replies.is_empty());
                for (_, reply) in caller.heard.borrow_mut().replies.drain(..) {
                    call.check(&reply.unwrap());
                    heard += 1;
                }
            }
            server.wait_for("every RDMA_DONE", |stats| stats.dones_received == 100);
            assert_eq!(server.stats().calls_refused, 0, "{profile:?}, {credits} credits");
        }
    }
}

#[test]
fn the_late_reply_of_a_cancelled_call_is_answered_with_rdma_done_only() {
    let server = server(raw(Profile::Rfc5666));
    let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
    let call = MixCall { results: vec![20_001], ..MixCall::default() };
    let started = call.start(&caller.client, 7).unwrap();
    caller.core.poll_once();
    server.wait_for("the reply", |stats| stats.replies_exported == 1);
    assert_eq!(caller.client.cancel(started), Ok(()));
    assert!(matches!(caller.reply(), Err(CallError::Cancelled)));
    let done = || server.stats().dones_received == 1;
    run_core(&mut caller.core, "its RDMA_DONE", done);
    assert_eq!(caller.engine.stats(0).unwrap().bytes_read, 0);
    run(&mut caller, &call);
}

/// Takes all the private memory of the client's core, and that of the connection, where RDMA Reads over
/// iWARP end.
fn take_all(caller: &Caller<MixAnswer>) -> Vec<spinrpc::Bulk> {
    let sizes = [2 << 20, 1 << 20, 128 << 10, 8 << 10];
    let of_core = sizes.iter().flat_map(|bytes| std::iter::from_fn(|| caller.core.bulk(*bytes)));
    let of_connection =
        sizes.iter().flat_map(|bytes| std::iter::from_fn(|| caller.client.bulk(*bytes)));
    of_core.chain(of_connection).collect()
}

#[test]
fn a_reply_waits_for_memory_and_a_deadline_ends_that_with_rdma_done() {
    let server = server(raw(Profile::Rfc5666));
    let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
    let call = MixCall { results: vec![20_001], ..MixCall::default() };
    let taken = take_all(&caller);
    call.start(&caller.client, 7).unwrap();
    let client = caller.engine.clone();
    run_core(&mut caller.core, "the reply to wait", || client.stats(0).unwrap().no_buffer > 10);
    drop(taken);
    call.check(&caller.reply().unwrap());
    let taken = take_all(&caller);
    let started = call.start(&caller.client, 8).unwrap();
    let before = client.stats(0).unwrap().no_buffer;
    run_core(&mut caller.core, "the reply to wait", || {
        client.stats(0).unwrap().no_buffer > before + 10
    });
    assert_eq!(caller.client.cancel(started), Ok(()));
    assert!(matches!(caller.reply(), Err(CallError::Cancelled)));
    run_core(&mut caller.core, "RDMA_DONE", || server.stats().dones_received == 2);
    drop(taken);
    run(&mut caller, &call);
    assert_eq!(caller.client.in_flight(), 1, "the credit of the last RDMA_DONE");
}

#[test]
fn shared_memory_and_memory_of_the_call_itself_are_fetched_as_well() {
    let server = server(raw(Profile::Draft00));
    let raw = client_raw(Profile::Draft00);
    let mut caller = Caller::connect_with(raw, &server.address, |mut reply| {
        let mut results = reply.results();
        let item = results.data(4 << 20)?;
        assert!(matches!(item, Data::Bulk(_)));
        let bytes = item.bytes().to_vec();
        results.finish().map(|()| bytes)
    });
    let bytes = caller.call(SHARED, |args| args.u32(100_001)).unwrap();
    assert!(is_pattern(crate::common::program::SHARED_SEED, &bytes));
    let mut item = caller.client.bulk(50_001).unwrap();
    fill_pattern(8, item.bytes_mut());
    let mut spec = CallSpec::short().argument(item);
    caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
    assert!(is_pattern(8, &caller.reply().unwrap()));
}

#[test]
fn deferred_replies_are_fetched_as_well() {
    for (profile, read_chunks) in [(Profile::Rfc5666, true), (Profile::Draft03, false)] {
        let server = Server::with(raw(profile));
        let mut caller = Caller::connect_with(client_raw(profile), &server.address, one_opaque);
        for length in [100, 5000, 100_001] {
            caller.start(LATER, 1, |args| args.u32(1)).unwrap();
            run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
            let (_, deferred) = server.shared.pop().unwrap();
            let (mut data, bytes) = (ReplyData::new(), pattern(6, length));
            if read_chunks {
                data = data.allow_read_chunks();
            }
            deferred.reply_with(data, |results| results.opaque(&bytes));
            assert_eq!(caller.reply().unwrap(), bytes);
            caller.start(LATER, 1, |args| args.u32(1)).unwrap();
            run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
            let (_, deferred) = server.shared.pop().unwrap();
            let mut data = ReplyData::new().bulk(spinrpc::Bulk::from_vec(bytes.clone()));
            if read_chunks {
                data = data.allow_read_chunks();
            }
            deferred.reply_with(data, |results| results.bulk());
            assert_eq!(caller.reply().unwrap(), bytes);
        }
        server.wait_for("four RDMA_DONEs", |stats| stats.dones_received == 4);
    }
}

#[test]
fn any_combination_arrives_as_it_was_sent() {
    let lengths = || prop::collection::vec(prop_oneof![0..20_usize, 3000..60_000_usize], 0..4);
    let call = (lengths(), lengths(), lengths(), 0..20_000_usize, 0..20_000_usize, 0..9_u32);
    let calls =
        call.prop_map(|(arguments, results, offers, tail, reply_bytes_max, seed)| MixCall {
            seed,
            arguments,
            results,
            offers: offers.into_iter().map(|room| room.max(1)).collect(),
            tail,
            reply_bytes_max,
        });
    for profile in PROFILES {
        let server = server(raw(profile));
        let caller = std::cell::RefCell::new(mix_caller(&server, client_raw(profile)));
        TestRunner::new(Cases::with_cases(80))
            .run(&calls, |call| {
                run(&mut caller.borrow_mut(), &call);
                Ok(())
            })
            .unwrap();
        server.wait_for("every RDMA_DONE", |s| s.dones_received == s.replies_exported);
    }
}

#[test]
fn a_connection_that_ends_frees_what_was_exported() {
    let server = server(raw(Profile::Rfc5666));
    let call = MixCall { results: vec![100_001], ..MixCall::default() };
    for round in 1..=3 {
        let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
        call.start(&caller.client, 1).unwrap();
        // It leaves, and its reply is never looked at.
        caller.core.poll_once();
        server.wait_for("the reply", |stats| stats.replies_exported == round);
        drop(caller);
        let ended = || server.shared.downs() as u64 == round;
        crate::common::wait_until("the end of the connection", ended);
    }
    let mut caller = mix_caller(&server, client_raw(Profile::Rfc5666));
    run(&mut caller, &call);
    let events = spinrpc::sync::lock(&server.shared.events);
    let by_us = events.iter().any(|event| {
        matches!(event, ConnectionEvent::Down { cause: DownCause::PeerMisbehaved(_), .. })
    });
    assert!(!by_us, "{events:?}");
}
