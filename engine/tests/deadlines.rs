//! Deadline propagation: calls of version two that state their remaining time, against a raw peer whose clock is the
//! test, and between two engines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::caller::{Caller, SharedHeard, all_words, client_config, run_core};
use common::program::{self as procedures, BOUNCE, ECHO, ITEM_MAX, NULL};
use common::raw::{RawListener, RawPeer, Said};
use common::{LIMIT, PROGRAM, Server, VERSION, pattern, small_with, unique_address, valid};
use spinrpc::config::{RawConfig, Versions};
use spinrpc::fabric::Access;
use spinrpc::sync::lock;
use spinrpc::{AcceptStatus, Call, CallError, CallSpec, Data, DecodeError, Engine, Reply, Token};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DEADLINE_CALL: u32 = 0x7370_2d01;
const LATE: u32 = 0x7370_2d02;
const XID: u32 = 0x77;
const NO_LISTS: [u32; 3] = [0; 3];

fn two(raw: RawConfig) -> RawConfig {
    let mut raw = raw;
    raw.rpc.version = Versions::Both;
    raw
}

fn naming_times() -> RawConfig {
    let mut raw = two(client_config());
    raw.rpc.propagate_deadlines = true;
    raw
}

/// A deadline call of a procedure, with these lists in its information.
fn deadline_call(remaining_us: u32, lists: &[u32], procedure: u32, arguments: &[u32]) -> Vec<u32> {
    let info_bytes = 8 + 4 * lists.len() as u32;
    let start = [XID, 2, 1, 5, 0, DEADLINE_CALL, info_bytes, 0, remaining_us];
    let rpc = [XID, 0, 2, PROGRAM.0, VERSION.0, procedure, 0, 0, 0, 0];
    [&start, lists, &rpc, arguments].concat()
}

/// MSG_ACCEPTED, SUCCESS, in an RDMA2_MSG that grants 8 credits.
fn success(xid: u32) -> [u32; 14] {
    [xid, 2, 8, 0, 1, 0, 0, 0, xid, 1, 0, 0, 0, 0]
}

#[test]
fn receive_a_call_whose_time_is_over_expect_late_and_no_execution() {
    let server = Server::with(two(small_with(|_| {})));
    let mut peer = RawPeer::connect(&server.address);
    peer.send_words(&deadline_call(0, &NO_LISTS, LATER, &[1]));
    let late = peer.hear().words();
    assert_eq!(late[..2], [XID, 2]);
    assert_eq!(late[3..7], [5, 1, LATE, 8]);
    assert_eq!(late.len(), 9, "nothing behind the header");
    server.wait_for("one late call", |stats| stats.calls_late == 1);
    assert_eq!(server.shared.waiting(), 0, "it did not come to the program");
    peer.send_words(&deadline_call(10_000_000, &NO_LISTS, 0, &[]));
    assert_eq!(peer.hear().words()[8..], success(XID)[8..], "its slot is free, and time is left");
    server.wait_for("a late call", |stats| stats.calls_late == 1);
}

/// Procedure 7 of the test program, which is deferred.
const LATER: u32 = 7;

#[test]
fn receive_a_late_call_with_a_read_chunk_expect_late_and_nothing_fetched() {
    let server = Server::with(two(small_with(|_| {})));
    let mut peer = RawPeer::connect(&server.address);
    let item = peer.expose(&pattern(5, 2048), Access::RemoteRead);
    // ECHO of an opaque that stands in a Read chunk behind its length.
    let [high, low] = [(item.offset >> 32) as u32, item.offset as u32];
    let lists = [1, 44, item.handle, 2048, high, low, 0, 0, 0];
    peer.send_words(&deadline_call(0, &lists, 1, &[2048]));
    assert_eq!(peer.hear().words()[3..6], [5, 1, LATE]);
    assert_eq!(server.stats().errors_sent, 0);
    server.wait_for("one late call", |stats| stats.calls_late == 1);
    assert_eq!(server.stats().bytes_read, 0);
    peer.send_words(&deadline_call(30_000_000, &lists, 1, &[2048]));
    let Said::Message(reply) = peer.hear() else { panic!("the connection ended") };
    assert_eq!(reply[60..], pattern(5, 2048), "its slot is the next call's");
    server.wait_for("its item", |stats| stats.bytes_read == 2048);
}

#[test]
fn a_handler_knows_how_much_time_is_left() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let engine = Engine::new(valid(two(small_with(|_| {})))).unwrap();
    let of_service = Arc::clone(&seen);
    engine.serve(PROGRAM, VERSION, move |_| {
        let seen = Arc::clone(&of_service);
        move |call: Call<'_>| {
            lock(&seen).push((call.remaining(), call.deadline()));
            call.reply(|_| {});
        }
    });
    let address = unique_address();
    engine.listen(&address).unwrap();
    let running = engine.start().unwrap();
    let mut peer = RawPeer::connect(&address);
    let began = Instant::now();
    peer.send_words(&deadline_call(20_000_000, &NO_LISTS, 0, &[]));
    peer.hear();
    let plain = [XID, 2, 1, 0, 0, 0, 0, 0, XID, 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
    peer.send_words(&plain);
    peer.hear();
    let (Some(left), Some(until)) = lock(&seen)[0] else { panic!("the call named its time") };
    assert!(left <= Duration::from_secs(20) && left > Duration::from_secs(20) - LIMIT / 2);
    assert!(until > began + left && until <= Instant::now() + left);
    assert_eq!(lock(&seen)[1], (None, None), "a call in the same slot that named none");
    engine.shutdown();
    running.join().unwrap();
}

/// A raw server and a client that is connected to it; the server's answers to earlier messages.
fn pair(raw: RawConfig, mut answer: impl FnMut(&[u32]) -> Vec<u32>) -> (RawPeer, Caller<Vec<u32>>) {
    let address = unique_address();
    let listener = RawListener::at(&address);
    let engine = Engine::new(valid(raw)).unwrap();
    let mut core = engine.core(0).unwrap();
    let heard = SharedHeard::<Vec<u32>>::default();
    let recorder = common::caller::recorder(&heard, all_words);
    let client = core.connect(&address, PROGRAM, VERSION, |_| recorder).unwrap();
    let mut peer = listener.accept();
    let end = Instant::now() + LIMIT;
    while !client.is_up() {
        core.poll_once();
        if let Some(said) = peer.poll() {
            peer.send_words(&answer(&said.words()));
        }
        assert!(Instant::now() < end, "the first call was not answered");
    }
    (peer, Caller { client, heard, core, engine })
}

/// Answers as a server that knows the extension, and expects it to be used.
fn knows(said: &[u32]) -> Vec<u32> {
    assert_eq!((said[3], said[5]), (5, DEADLINE_CALL), "the first call tries the extension");
    success(said[0]).to_vec()
}

/// Starts a NULL call; the words in which the server hears it.
fn call(peer: &mut RawPeer, caller: &mut Caller<Vec<u32>>, spec: CallSpec) -> Vec<u32> {
    let mut spec = spec;
    caller.client.call(NULL, Token(3), &mut spec, |_| {}).unwrap();
    caller.core.poll_once();
    peer.hear().words()
}

#[test]
fn receive_late_expect_a_call_that_was_not_executed() {
    let (mut peer, mut caller) = pair(naming_times(), knows);
    let spec = CallSpec::new().deadline(Duration::from_secs(20));
    let said = call(&mut peer, &mut caller, spec);
    assert_eq!(said[3..7], [5, 0, DEADLINE_CALL, 20]);
    assert!(said[7] == 0 && said[8] <= 20_000_000 && said[8] > 5_000_000, "{said:?}");
    assert_eq!(said[9..12], NO_LISTS);
    peer.send_words(&[said[0], 2, 8, 5, 1, LATE, 8, 0, 1500]);
    let error = caller.reply().unwrap_err();
    let by = Duration::from_micros(1500);
    assert!(matches!(error, CallError::Late { by: late } if late == by), "{error:?}");
    assert!(error.is_retryable());
    assert_eq!(caller.client.in_flight(), 0);
    // Repeated, and for another call: the first has been given up, the second has not named a time.
    let said = call(&mut peer, &mut caller, CallSpec::new().no_deadline());
    assert_eq!(said[3], 0, "a call without deadline has no time to name");
    peer.send_words(&[said[0], 2, 8, 5, 1, LATE, 8, 0, 1]);
    peer.send_words(&success(said[0]));
    assert!(caller.reply().is_ok());
    let engine = caller.engine.clone();
    run_core(&mut caller.core, "the drop", || engine.stats(0).unwrap().messages_dropped == 1);
}

#[test]
fn receive_invalid_option_expect_the_call_again_and_the_extension_no_more() {
    let mut first = None;
    let (mut peer, mut caller) = pair(naming_times(), |said| match first {
        None => {
            assert_eq!((said[3], said[5]), (5, DEADLINE_CALL));
            first = Some(said[0]);
            vec![said[0], 2, 8, 4, 3]
        }
        Some(xid) => {
            assert_eq!((said[0], said[1], said[3]), (xid, 2, 0), "the same call, without its time");
            success(xid).to_vec()
        }
    });
    let said = call(&mut peer, &mut caller, CallSpec::new().propagate_deadline());
    assert_eq!((said[1], said[3]), (2, 0), "for the rest of the connection");
    assert_eq!(said.len(), 8 + 10);
}

#[test]
fn a_client_asks_for_it_call_by_call() {
    let (mut peer, mut caller) = pair(two(client_config()), |said| {
        assert_eq!(said[3], 0, "not configured");
        success(said[0]).to_vec()
    });
    let said = call(&mut peer, &mut caller, CallSpec::new());
    assert_eq!(said[3], 0);
    peer.send_words(&success(said[0]));
    caller.reply().unwrap();
    let tried = call(&mut peer, &mut caller, CallSpec::new().propagate_deadline());
    assert_eq!((tried[3], tried[5]), (5, DEADLINE_CALL));
    let beside = call(&mut peer, &mut caller, CallSpec::new().propagate_deadline());
    assert_eq!(beside[3], 0, "one call tries it");
    peer.send_words(&[tried[0], 2, 8, 4, 3]);
    run_core(&mut caller.core, "the call", || true);
    let end = Instant::now() + LIMIT;
    let again = loop {
        caller.core.poll_once();
        if let Some(said) = peer.poll() {
            break said.words();
        }
        assert!(Instant::now() < end, "the call was not sent again");
    };
    assert_eq!((again[0], again[3]), (tried[0], 0));
    assert_eq!(again[8..], tried[12..], "the same RPC message");
    peer.send_words(&success(again[0]));
    peer.send_words(&success(beside[0]));
    assert!(caller.replies(2).iter().all(|(_, reply)| reply.is_ok()));
}

#[test]
fn version_one_goes_without() {
    let (mut peer, mut caller) = pair(naming_times(), |said| match said[1] {
        2 => vec![said[0], 2, 8, 4, 1, 1, 1],
        _ => [&[said[0], 1, 8, 0, 0, 0, 0][..], &success(said[0])[8..]].concat(),
    });
    let said = call(&mut peer, &mut caller, CallSpec::new());
    assert_eq!((said[1], said[3]), (1, 0));
}

/// Defer calls, and find out that it is too late for each. Expect a client that named a time to be
/// told so, and one that did not to get an error.
#[test]
fn a_service_says_of_a_deferred_call_that_it_is_too_late() {
    let server = Server::with(two(small_with(|_| {})));
    for names_times in [true, false] {
        let raw = if names_times { naming_times() } else { two(client_config()) };
        let mut caller = Caller::connect_with(raw, &server.address, all_words);
        for round in 1..=20 {
            caller.start(procedures::LATER, round, |args| args.u32(7)).unwrap();
            run_core(&mut caller.core, "the call", || server.shared.waiting() == 1);
            let (_, deferred) = server.shared.pop().unwrap();
            assert!(!deferred.is_unheard());
            deferred.too_late();
            match (names_times, caller.reply().unwrap_err()) {
                (true, CallError::Late { .. }) => {}
                (false, CallError::Accepted(AcceptStatus::SystemErr)) => {}
                (_, other) => panic!("{names_times}: {other:?}"),
            }
        }
        let answered = caller.call(NULL, |_| {});
        assert!(answered.is_ok(), "{answered:?}");
    }
    assert_eq!(server.stats().calls_late, 20);
}

/// The one item of the results, wherever it came to lie.
fn one_item(mut reply: Reply<'_>) -> Result<Vec<u8>, DecodeError> {
    Ok(match reply.results().data(ITEM_MAX)? {
        Data::Inline(bytes) => bytes.to_vec(),
        Data::Bulk(bulk) => bulk.bytes().to_vec(),
    })
}

#[test]
fn between_engines_every_shape_of_a_call_goes_with_its_time() {
    let server = Server::with(two(small_with(|_| {})));
    let mut caller = Caller::connect_with(naming_times(), &server.address, one_item);
    for (bytes, procedure) in [(0, ECHO), (100, ECHO), (3000, ECHO), (40_000, ECHO)] {
        let item = pattern(9, bytes);
        let mut spec = CallSpec::new().reply_bytes_max(bytes + 100);
        let started = caller.client.call(procedure, Token(1), &mut spec, |a| a.opaque(&item));
        started.unwrap();
        assert_eq!(caller.reply().unwrap(), item, "{bytes} bytes");
    }
    let item = pattern(7, 1 << 20);
    let mut argument = caller.client.bulk(item.len()).unwrap();
    argument.bytes_mut().copy_from_slice(&item);
    let room = caller.client.bulk(item.len()).unwrap();
    let mut spec = CallSpec::new().argument(argument).result_into(room);
    caller.client.call(BOUNCE, Token(1), &mut spec, |a| a.bulk()).unwrap();
    assert_eq!(caller.reply().unwrap(), item);
    assert_eq!(server.stats().calls_late, 0);
}
