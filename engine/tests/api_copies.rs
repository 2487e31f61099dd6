//! Memory that is not the connection's: the application's own, and all of it with `shm.bulk = copy` or `verbs.bulk = copy`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{Caller, MixCall, client_config, one_opaque, run_core};
use common::program::{BOUNCE, ECHO};
use common::{Server, is_pattern, pattern, set_bulk_view};
use spinrpc::config::BulkView;
use spinrpc::{Bulk, CallError, CallSpec, DecodeError, Reply, Token};

fn take_buffers(mut reply: Reply<'_>) -> Result<(Vec<Bulk>, Vec<Bulk>), DecodeError> {
    let arguments = std::iter::from_fn(|| reply.take_argument()).collect();
    let results = std::iter::from_fn(|| reply.take_result()).collect();
    Ok((arguments, results))
}

/// Statistics are published a few turns late.
fn wait_for_copies<T: 'static>(caller: &mut Caller<T>, copies: u64) {
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "copies", || engine.stats(0).copies >= copies);
}

#[test]
fn memory_of_the_application_is_copied_and_comes_back() {
    let server = Server::start();
    let mut caller: Caller<(Vec<Bulk>, Vec<Bulk>)> = Caller::connect(&server.address, take_buffers);
    // One of the application's own, one of the core's pool.
    let mut argument = Bulk::from_vec(vec![0; 70_001]);
    let mut result = caller.core.bulk(70_001).unwrap();
    for round in 0..50_u32 {
        argument.bytes_mut().copy_from_slice(&pattern(round, 70_001));
        result.set_len(70_001);
        let mut spec = CallSpec::new().argument(argument).result_into(result);
        caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
        let (mut arguments, mut results) = caller.reply().unwrap();
        (argument, result) = (arguments.remove(0), results.remove(0));
        assert!(is_pattern(round, argument.bytes()) && is_pattern(round, result.bytes()));
    }
    wait_for_copies(&mut caller, 100);
}

#[test]
fn with_copies_the_application_never_sees_memory_that_the_peer_can_write() {
    let server = Server::start();
    let mut raw = client_config();
    set_bulk_view(&mut raw, BulkView::Copy);
    let mut caller = Caller::connect_with(raw, &server.address, MixCall::read);
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
    set_bulk_view(&mut raw, BulkView::Copy);
    raw.mem.arena_mib = 2;
    let mut caller = Caller::connect_with(raw, &server.address, one_opaque);
    let hoard: Vec<Bulk> = std::iter::from_fn(|| caller.core.bulk(200_000)).collect();
    let sent = pattern(3, 200_000);
    let echo = |caller: &mut Caller<Vec<u8>>| {
        let mut spec = CallSpec::new().reply_bytes_max(sent.len() + 4);
        caller.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(&sent)).unwrap();
        caller.reply()
    };
    // More often than there are receives, or memory for calls: each must have come back.
    for _ in 0..2 * caller.engine.config().slots_per_conn() {
        let error = echo(&mut caller).unwrap_err();
        assert!(matches!(error, CallError::NoMemory), "{error:?}");
    }
    drop(hoard);
    assert_eq!(echo(&mut caller).unwrap(), sent);
}
