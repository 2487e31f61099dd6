//! Direct data placement: items outside the XDR stream, both ways, in every combination.

use crate::common::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use spinrpc_proto::rdma::RdmaError;

fn mix_caller(server: &Server) -> Caller<MixAnswer> {
    Caller::connect(&server.address, MixCall::read)
}

/// RFC 8166 section 3.5: arguments that fit inline go inline; every length modulo four on both
/// sides of the threshold.
#[test]
fn an_argument_goes_inline_up_to_the_threshold_and_by_read_chunk_beyond() {
    let (_server, mut caller) = served(MixCall::read);
    let mut by_chunk = Vec::new();
    for length in (0..40).chain(3900..4100) {
        let call = MixCall { seed: 5, arguments: vec![length], ..MixCall::default() };
        let answer = run(&mut caller, &call);
        by_chunk.push((length, answer.in_memory == 1));
    }
    let first = by_chunk.iter().position(|(_, chunk)| *chunk).expect("one goes by chunk");
    assert!(by_chunk[first..].iter().all(|(_, chunk)| *chunk), "{by_chunk:?}");
    // Threshold 4096, transport header 28 (32 in version two), RPC header 40, five words around the
    // item.
    let header_bytes = crate::common::version().chunkless_header_bytes();
    assert_eq!(by_chunk[first].0, 4096 - header_bytes - 40 - 5 * 4 + 1);
}

#[test]
fn a_result_goes_into_the_memory_offered_for_it_whatever_its_length() {
    let (server, mut caller) = served(MixCall::read);
    for length in (1..40).chain(4000..4110).chain([65_535, 65_536, 1_000_003, 1 << 20]) {
        let call =
            MixCall { seed: 9, results: vec![length], offers: vec![length], ..MixCall::default() };
        assert_eq!(run(&mut caller, &call).placed, 1, "{length} bytes");
    }
    server.wait_for("RDMA Writes", |stats| stats.bytes_written > 2 << 20);
}

/// RFC 8166 section 4.3.3: a reply that may not fit inline has a Reply chunk.
#[test]
fn results_go_inline_or_by_reply_chunk_on_both_sides_of_the_threshold() {
    let (_server, mut caller) = served(MixCall::read);
    for tail in (3950..4080).chain([8000, 60_001, 1 << 20]) {
        let call = MixCall { seed: 3, tail, reply_bytes_max: tail + 12, ..MixCall::default() };
        run(&mut caller, &call);
    }
    // Announced as long, turned out short.
    let call = MixCall { seed: 3, tail: 5, reply_bytes_max: 100_000, ..MixCall::default() };
    run(&mut caller, &call);
}

#[test]
fn arguments_longer_than_the_threshold_make_a_long_call() {
    let (server, mut caller) = served(one_opaque);
    for length in (3950..4080).chain([10_000, 65_537, 1 << 20]) {
        let sent = pattern(11, length);
        let mut spec = CallSpec::new().reply_bytes_max(length + 4);
        caller.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(&sent)).unwrap();
        assert_eq!(caller.reply().unwrap(), sent, "{length} bytes");
    }
    server.wait_for("RDMA Reads", |stats| stats.bytes_read > 1 << 20);
}

#[test]
fn data_items_of_a_long_call_travel_within_it() {
    let (_server, mut caller) = served(one_opaque);
    // One item, and a credential-sized stream around it that does not fit by itself.
    let around = vec![7_u8; 5000];
    let mut item = caller.client.bulk(3000).unwrap();
    item.bytes_mut().copy_from_slice(&pattern(4, 3000));
    let mut spec = CallSpec::short().argument(item).reply_bytes_max(10_000);
    let encode = |args: &mut Encoder<'_>| {
        args.bulk();
        args.opaque(&around);
    };
    caller.client.call(ECHO, Token(1), &mut spec, encode).unwrap();
    // An echo takes one item only: the second is garbage to it, but the message arrived.
    let error = caller.reply().unwrap_err();
    assert!(matches!(error, CallError::Accepted(spinrpc::AcceptStatus::GarbageArgs)), "{error:?}");
}

#[test]
fn chunks_of_several_segments_are_filled_in_order() {
    let small_segments = |raw: &mut spinrpc::config::RawConfig| raw.rpc.segment_bytes = 70_000;
    let server = Server::with(small_with(small_segments));
    let raw = client_with(small_segments);
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    for (argument, result) in [
        (69_999, 70_000),
        (70_000, 70_001),
        (70_001, 139_999),
        (140_001, 140_000),
        (800_000, 800_000),
    ] {
        let call = MixCall {
            seed: 31,
            arguments: vec![argument, 200_001],
            results: vec![result, 150_001],
            offers: vec![result, 210_000],
            tail: 140_001,
            reply_bytes_max: 150_000,
        };
        let answer = run(&mut caller, &call);
        assert_eq!((answer.in_memory, answer.placed), (0b11, 0b11));
    }
}

#[test]
fn shorter_results_unused_offers_and_items_of_no_bytes() {
    let (_server, mut caller) = served(MixCall::read);
    for (results, offers, placed) in [
        (vec![1], vec![100_000], 0b1),
        (vec![0], vec![1000], 0),
        (vec![0, 5, 0], vec![10, 10, 10], 0b010),
        // RFC 8166 section 3.4.6: what is left of the Write chunks is for the next items.
        (vec![0, 9000, 0, 9001], vec![9000, 9001], 0b1010),
        (vec![0, 9000, 5], vec![0, 9000, 10], 0b110),
        (vec![], vec![1000, 1000], 0),
        (vec![77], vec![77, 1000, 4], 0b1),
        (vec![77, 78], vec![77], 0b01),
        (vec![3001], vec![], 0),
    ] {
        let call = MixCall { seed: 41, results, offers, ..MixCall::default() };
        assert_eq!(run(&mut caller, &call).placed, placed, "{call:?}");
    }
    for arguments in [vec![0], vec![0, 0, 0, 0], vec![0, 9000, 0]] {
        let call = MixCall { seed: 42, arguments, ..MixCall::default() };
        run(&mut caller, &call);
    }
}

/// ERR_CHUNK, or its counterpart in version two.
fn is_chunk_error(error: &CallError) -> bool {
    matches!(error, CallError::Rdma(error) if *error == RdmaError::of_header(crate::common::version()))
}

#[test]
fn a_result_longer_than_its_room_is_err_chunk_and_the_connection_lives() {
    let (server, mut caller) = served(MixCall::read);
    let fails = [
        MixCall { results: vec![1001], offers: vec![1000], ..MixCall::default() },
        MixCall { results: vec![10, 200_000], offers: vec![10, 100], ..MixCall::default() },
        MixCall { tail: 9000, reply_bytes_max: 5000, ..MixCall::default() },
        MixCall { tail: 9000, ..MixCall::default() },
        MixCall { results: vec![9000], ..MixCall::default() },
    ];
    for call in fails {
        call.start(&caller.client, 1).unwrap();
        let error = caller.reply().unwrap_err();
        assert!(is_chunk_error(&error), "{call:?}: {error:?}");
        assert!(!error.is_retryable());
    }
    run(&mut caller, &MixCall { seed: 1, tail: 100, ..MixCall::default() });
    server.wait_for("five refusals", |stats| stats.errors_sent == 5);
}

#[test]
fn any_combination_arrives_as_it_was_sent() {
    let server = Server::start();
    let raw = client_with(|raw| raw.rpc.segment_bytes = 70_000);
    let caller = std::cell::RefCell::new(Caller::connect_with(raw, &server.address, MixCall::read));
    let length = prop_oneof![0..16_usize, 3900..4200_usize, 0..90_000_usize];
    let lengths = || prop::collection::vec(length.clone(), 0..=4);
    let inputs = (any::<u16>(), lengths(), lengths(), 0..20_000_usize, 0..3000_usize);
    let cases = Cases { cases: 256, failure_persistence: None, ..Cases::default() };
    TestRunner::new(cases)
        .run(&inputs, |(seed, arguments, results, tail, spare)| {
            let call = MixCall {
                seed: seed.into(),
                arguments,
                offers: (0..results.len()).map(|index| room(&results, index) + spare).collect(),
                results,
                tail,
                reply_bytes_max: tail + 100,
            };
            run(&mut caller.borrow_mut(), &call);
            Ok(())
        })
        .unwrap();
}

/// The length of the longest item that may come in this Write chunk: its own, or one behind it.
fn room(results: &[usize], index: usize) -> usize {
    results[index..].iter().copied().max().unwrap_or(0)
}

#[test]
fn ten_thousand_calls_leave_no_block_behind() {
    let (server, mut caller) = served(MixCall::read);
    let mut count = Caller::connect(&server.address, crate::common::caller::all_words);
    let sizes = [8000_u32, 100_000, 1 << 20];
    let mut at_server =
        || sizes.map(|size| count.call(FREE_BLOCKS, |args| args.u32(size)).unwrap()[0]);
    let before = (sizes.map(|size| caller.free_blocks(size as usize)), at_server());
    assert!(before.0.iter().chain(&[]).all(|free| *free > 0), "{before:?}");
    let calls = [
        MixCall { seed: 1, arguments: vec![8000], ..MixCall::default() },
        MixCall { seed: 2, results: vec![8000], offers: vec![8000], ..MixCall::default() },
        MixCall { seed: 3, tail: 5000, reply_bytes_max: 6000, ..MixCall::default() },
        MixCall {
            seed: 4,
            arguments: vec![5000, 7],
            results: vec![600],
            offers: vec![600, 600],
            tail: 5000,
            reply_bytes_max: 6000,
        },
        // Refused: result beyond its room.
        MixCall { results: vec![2000], offers: vec![100], ..MixCall::default() },
    ];
    for round in 0..10_000 {
        let call = &calls[round % calls.len()];
        call.start(&caller.client, 1).unwrap();
        match caller.reply() {
            Ok(answer) => call.check(&answer),
            Err(error) => assert!(matches!(error, CallError::Rdma(_)), "{error:?}"),
        }
    }
    let after = (sizes.map(|size| caller.free_blocks(size as usize)), at_server());
    assert_eq!(before, after);
}

#[test]
fn one_block_is_sent_by_many_replies_at_once() {
    let (_server, mut caller) = served(one_item);
    for round in 0..20 {
        for token in 0..16 {
            let length = 100_000 + token as usize + round;
            let room = caller.client.bulk(length).unwrap();
            let mut spec = CallSpec::short().result_into(room);
            let encode = |args: &mut Encoder<'_>| args.u32(length as u32);
            caller.client.call(SHARED, Token(token), &mut spec, encode).unwrap();
        }
        for (token, reply) in caller.replies(16) {
            let (placed, bytes) = reply.unwrap();
            assert!(placed && bytes.len() == 100_000 + token as usize + round);
            assert!(is_pattern(SHARED_SEED, &bytes), "reply {token}");
        }
    }
}

fn one_item(mut reply: Reply<'_>) -> Result<(bool, Vec<u8>), DecodeError> {
    let mut results = reply.results();
    let item = results.data(1 << 20)?;
    Ok((matches!(item, Data::Bulk(_)), item.bytes().to_vec()))
}

#[test]
fn a_server_short_of_memory_lets_calls_wait_and_loses_none() {
    let server = Server::with(small_with(|raw| raw.mem.arena_mib = 2));
    keep_the_only_large_block(&server);
    let mut caller = mix_caller(&server);
    let call = MixCall { seed: 99, arguments: vec![1_000_000], ..MixCall::default() };
    call.start(&caller.client, 1).unwrap();
    caller.run_until("waiting for memory", |_| server.stats().no_buffer > 0);
    assert!(caller.heard.borrow().replies.is_empty(), "answered without memory");
    lock(&server.shared.kept).clear();
    call.check(&caller.reply().unwrap());
    for round in 0..10 {
        for token in 0..12 {
            let arguments = vec![1_000_000 + token as usize];
            let call = MixCall { seed: round, arguments, ..MixCall::default() };
            call.start(&caller.client, token).unwrap();
        }
        for (token, reply) in caller.replies(12) {
            assert_eq!(reply.unwrap().in_memory, 1, "call {token} of round {round}");
        }
    }
}

/// Until the test clears [`crate::common::program::Shared::kept`].
fn keep_the_only_large_block(server: &Server) {
    let mut other = Caller::connect(&server.address, |_| Ok(()));
    let mut spec = CallSpec::short().argument(other.client.bulk(1_000_000).unwrap());
    other.client.call(KEEP, Token(0), &mut spec, |args| args.bulk()).unwrap();
    other.reply().unwrap();
    assert_eq!(lock(&server.shared.kept).len(), 1);
}

/// The server has one large block: two such arguments never fit, and waiting would not help.
#[test]
fn arguments_beyond_all_memory_of_the_server_are_err_chunk() {
    let server = Server::with(small_with(|raw| raw.mem.arena_mib = 2));
    let mut caller = mix_caller(&server);
    let call = MixCall { arguments: vec![350_000, 350_001], ..MixCall::default() };
    for token in 0..100 {
        call.start(&caller.client, token).unwrap();
        let error = caller.reply().unwrap_err();
        assert!(is_chunk_error(&error), "{error:?}");
    }
    run(&mut caller, &MixCall { arguments: vec![900_000], ..MixCall::default() });
}

#[test]
fn a_server_without_memory_for_a_long_reply_answers_system_err() {
    let server = Server::with(small_with(|raw| raw.mem.arena_mib = 2));
    let mut caller = mix_caller(&server);
    // The item of the result takes the only large block, which the long stream would need, too.
    let call = MixCall { results: vec![900_000], tail: 900_000, ..MixCall::default() };
    let call = MixCall { reply_bytes_max: 1_000_000, offers: vec![900_000], ..call };
    call.start(&caller.client, 1).unwrap();
    let error = caller.reply().unwrap_err();
    assert!(matches!(error, CallError::Accepted(spinrpc::AcceptStatus::SystemErr)), "{error:?}");
    run(&mut caller, &MixCall { seed: 6, arguments: vec![1 << 20], ..MixCall::default() });
}

#[test]
fn a_client_short_of_memory_gets_no_buffer_and_goes_on_after_replies() {
    let server = Server::start();
    let raw = client_with(|raw| raw.mem.conn_arena_mib = 2);
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    let call = MixCall { seed: 1, tail: 900_000, reply_bytes_max: 901_000, ..MixCall::default() };
    call.start(&caller.client, 1).unwrap();
    assert_eq!(call.start(&caller.client, 2), Err(Backpressure::NoBuffer));
    call.check(&caller.reply().unwrap());
    run(&mut caller, &call);
}

#[test]
fn what_can_never_be_sent_is_refused_at_once_and_the_buffers_stay() {
    let server = Server::start();
    let engine = spinrpc::Engine::new(crate::common::valid(client_config())).unwrap();
    let mut core = engine.core(0).unwrap();
    let (one, heard) = open(&mut core, &server.address, one_opaque).unwrap();
    let misused = |spec: &mut CallSpec, items: usize| {
        one.call(ECHO, Token(1), spec, |args| (0..items).for_each(|_| args.bulk()))
    };
    let mut spec = CallSpec::short().argument(one.bulk(10).unwrap());
    for items in [0, 2] {
        assert!(matches!(misused(&mut spec, items), Err(Backpressure::Misuse(_))), "{items}");
    }
    for fifth_is_a_result in [false, true] {
        let five = (0..5).map(|_| one.bulk(10).unwrap());
        let add = if fifth_is_a_result { CallSpec::result_into } else { CallSpec::argument };
        let mut spec = five.fold(CallSpec::short(), add);
        let items = if fifth_is_a_result { 0 } else { 4 };
        assert!(matches!(misused(&mut spec, items), Err(Backpressure::Misuse(_))));
    }
    let huge = vec![0; 3 << 20];
    let refused = one.call(ECHO, Token(1), &mut CallSpec::short(), |args| args.opaque(&huge));
    assert!(matches!(refused, Err(Backpressure::TooLarge { .. })), "{refused:?}");
    misused(&mut spec, 1).unwrap();
    run_core(&mut core, "the reply", || heard.borrow().replies.len() == 1);
    assert_eq!(heard.borrow().replies[0].1.as_ref().unwrap().len(), 10);
}

/// A header is part of the message that the threshold is for (RFC 8166 section 3.3.2).
#[test]
fn lists_too_long_for_the_threshold_are_refused_at_once() {
    let server = Server::with(small_with(|raw| raw.rpc.inline_recv_bytes = 1024));
    let raw = client_with(|raw| raw.rpc.segment_bytes = 70_000);
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    let mut too_long = 0;
    for size in (1..16).map(|segments| segments * 70_000) {
        let call = MixCall { seed: 1, offers: vec![size; 4], ..MixCall::default() };
        match call.start(&caller.client, 1) {
            Ok(_) => match caller.reply() {
                Ok(answer) => call.check(&answer),
                // More bytes in all than the server is configured for.
                Err(error) => assert!(matches!(error, CallError::Rdma(_)), "{size}: {error:?}"),
            },
            Err(refused) => {
                assert!(matches!(refused, Backpressure::TooLarge { .. }), "{size}: {refused:?}");
                too_long += 1;
            }
        }
    }
    assert!(too_long > 0, "no list was too long");
    run(&mut caller, &MixCall { seed: 1, arguments: vec![900_000], ..MixCall::default() });
}

/// The reply returns Write list and Reply chunk, and lists that name more bytes than the limits of
/// this side are malformed. Expect such a call to be refused, and not to wait forever.
#[test]
fn chunks_longer_in_all_than_this_side_takes_back_are_refused() {
    let server = Server::start();
    let raw = client_with(|raw| {
        (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (64 << 10, 128 << 10)
    });
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    let quarter = 16 << 10;
    let most = MixCall { seed: 3, offers: vec![quarter; 4], ..MixCall::default() };
    let most_written = MixCall { seed: 3, arguments: vec![2 * quarter; 4], ..MixCall::default() };
    run(&mut caller, &most);
    run(&mut caller, &most_written);
    for call in [
        MixCall { offers: vec![quarter, quarter, quarter, quarter + 1], ..most.clone() },
        MixCall { offers: vec![], reply_bytes_max: 8 * quarter, ..most.clone() },
        MixCall { arguments: vec![2 * quarter + 1; 4], ..most_written },
    ] {
        let refused = call.start(&caller.client, 1);
        assert!(matches!(refused, Err(Backpressure::TooLarge { .. })), "{refused:?}: {call:?}");
    }
    run(&mut caller, &most);
}
