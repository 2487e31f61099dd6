//! Memory that is not the connection's: the application's own, and all of it with `mem.bulk = copy`.

use crate::common::prelude::*;

/// Statistics are published a few turns late.
fn wait_for_copies<T: 'static>(caller: &mut Caller<T>, copies: u64) {
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "copies", || engine.stats(0).unwrap().copies >= copies);
}

#[test]
fn buffers_come_back_with_the_reply_and_can_be_used_again_and_the_applications_own_are_copied() {
    const BYTES: usize = 70_001;
    let (_server, mut caller) = served(take_buffers);
    // Of the connection, and then one of the application's own and one of the core's pool.
    let of_connection = [(); 2].map(|()| caller.client.bulk(BYTES).unwrap());
    let others = [Bulk::from_vec(vec![0; BYTES]), caller.core.bulk(BYTES).unwrap()];
    for ([mut argument, mut result], copies) in [(of_connection, 0), (others, 100)] {
        for round in 0..50_u32 {
            argument.bytes_mut().copy_from_slice(&pattern(round, BYTES));
            result.set_len(BYTES);
            let mut spec = CallSpec::short().argument(argument).result_into(result);
            caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
            let (mut arguments, mut results) = caller.reply().unwrap();
            assert_eq!((arguments.len(), results.len()), (1, 1));
            (argument, result) = (arguments.remove(0), results.remove(0));
            assert!(!argument.is_leased() && !result.is_leased());
            assert_eq!(result.len(), BYTES, "its length says what was placed");
            assert!(is_pattern(round, argument.bytes()) && is_pattern(round, result.bytes()));
        }
        wait_for_copies(&mut caller, copies);
    }
}

#[test]
fn with_copies_the_application_never_sees_memory_that_the_peer_can_write() {
    let server = Server::start();
    let raw = client_with(|raw| raw.mem.bulk = BulkView::Copy);
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    assert!(caller.client.exposed_bulk(10).is_none());
    for round in 0..50 {
        let call = MixCall {
            seed: round,
            arguments: vec![5001, 70_002],
            results: vec![4097, 100_001],
            offers: vec![4097, 110_000],
            tail: 20_001,
            reply_bytes_max: 21_000,
        };
        call.start(&caller.client, 1).unwrap();
        let answer = caller.reply().unwrap();
        call.check(&answer);
        assert_eq!((answer.in_memory, answer.placed), (0b11, 0b11));
    }
    // Two arguments in, two results out, and the stream of the reply.
    wait_for_copies(&mut caller, 250);
}

#[test]
fn a_reply_that_no_private_memory_is_left_for_fails_its_call_only() {
    let server = Server::start();
    let mut raw = client_config();
    raw.mem.bulk = BulkView::Copy;
    raw.mem.arena_mib = 2;
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
    let hoard: Vec<Bulk> = std::iter::from_fn(|| caller.core.bulk(200_000)).collect();
    let tail = 200_000;
    let call = MixCall { seed: 3, tail, reply_bytes_max: tail + 12, ..MixCall::default() };
    // More often than there are receives, or memory for calls: each must have come back.
    for _ in 0..2 * caller.engine.config().slots_per_conn() {
        call.start(&caller.client, 1).unwrap();
        let error = caller.reply().map(drop).unwrap_err();
        assert!(matches!(error, CallError::NoMemory), "{error:?}");
    }
    drop(hoard);
    call.start(&caller.client, 1).unwrap();
    call.check(&caller.reply().unwrap());
}

fn bytes_of(bulk: &ExposedBulk) -> Vec<u8> {
    let mut bytes = vec![0; bulk.len()];
    bulk.copy_to(0, &mut bytes);
    bytes
}

fn take_exposed(mut reply: Reply<'_>) -> Result<(Vec<u8>, Vec<u8>), DecodeError> {
    let argument = reply.take_exposed_argument().unwrap();
    let result = match reply.results().exposed_data(1 << 20)? {
        ExposedData::Exposed(result) => bytes_of(&result),
        // A device keeps the peer out of it.
        ExposedData::Private(result) => result.bytes().to_vec(),
    };
    Ok((bytes_of(&argument), result))
}

/// A call with both in memory of the connection.
fn bounce<T: 'static>(caller: &mut Caller<T>, seed: u32, length: usize) -> Result<T, CallError> {
    let mut argument = caller.client.exposed_bulk(length).unwrap();
    argument.copy_from(0, &pattern(seed, length));
    let result = caller.client.exposed_bulk(length).unwrap();
    let mut spec = CallSpec::short().exposed_argument(argument).exposed_result_into(result);
    caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
    caller.reply()
}

/// Over RDMA with keys that outlive calls, so that the peer can write late there, too.
fn lasting_keys() -> RawConfig {
    client_with(|raw| raw.verbs.registration = Registration::Buffer)
}

#[test]
fn exposed_memory_is_sent_and_filled_without_a_copy() {
    let server = Server::start();
    let mut caller: Caller<(Vec<u8>, Vec<u8>)> =
        Caller::connect_with(lasting_keys(), &server.address, take_exposed);
    for (seed, length) in [(1, 9), (2, 9000), (3, 70_001)] {
        let (argument, result) = bounce(&mut caller, seed, length).unwrap();
        assert!(is_pattern(seed, &argument) && is_pattern(seed, &result), "{length} bytes");
        assert_eq!((argument.len(), result.len()), (length, length));
    }
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "replies", || engine.stats(0).unwrap().replies_received >= 3);
    assert_eq!(engine.stats(0).unwrap().copies, 0);
}

/// The one item of the results, in memory that no peer can write.
fn private_item(mut reply: Reply<'_>) -> Result<Vec<u8>, DecodeError> {
    let mut results = reply.results();
    let bytes = results.data(1 << 20)?.bytes().to_vec();
    results.finish().map(|()| bytes)
}

#[test]
fn what_a_peer_can_write_is_not_borrowed_nor_sent_again() {
    let server = Server::start();
    let mut caller = Caller::connect_with(lasting_keys(), &server.address, private_item);
    let error = bounce(&mut caller, 1, 9000).map(drop);
    assert!(matches!(error, Err(CallError::Decode(_))), "{error:?}");
    let argument = caller.client.exposed_bulk(10).unwrap();
    let spec = CallSpec::short().exposed_argument(argument);
    // With others that make it a long call.
    let around = vec![0; 10_000];
    let mut spec = spec.reply_bytes_max(10_000);
    let started = caller.client.call(ECHO, Token(1), &mut spec, |args| {
        args.bulk();
        args.opaque(&around);
    });
    assert!(matches!(started, Err(Backpressure::Misuse(_))), "{started:?}");
    assert!(caller.client.bulk(10).unwrap().bytes().len() == 10);
}
