//! Calls and replies over shared memory, as an application sees them.

use crate::common::prelude::*;

/// Short, longer than a short message, and as a long call. Encoders run once: values that they own are moved.
#[test]
fn null_and_echo_answer_with_what_was_asked() {
    let (server, mut caller) = served(one_opaque);
    for length in [0, 1, 2, 3, 4, 5, 63, 64, 200, 1000, 3000, 60_000] {
        let (sent, mut runs) = (pattern(length as u32, length), 0);
        let owned = sent.clone();
        let mut spec = CallSpec::new().reply_bytes_max(64 << 10);
        let started = caller.client.call(ECHO, Token(0), &mut spec, |args| {
            runs += 1;
            args.opaque(&owned);
            drop(owned);
        });
        started.unwrap();
        assert_eq!(caller.reply().unwrap(), sent, "{length} bytes");
        assert_eq!(runs, 1, "{length} bytes");
    }
    let mut words = Caller::connect(&server.address, all_words);
    assert!(words.call(NULL, |_| {}).unwrap().is_empty());
}

#[test]
fn as_many_calls_as_credits_are_in_flight_then_no_credit_until_replies_come() {
    let (server, mut caller) = served(one_opaque);
    caller.start_later(0..64, |token| token as u32);
    assert_eq!(caller.start(LATER, 64, |args| args.u32(64)), Err(Backpressure::NoCredit));
    assert!(Backpressure::NoCredit.is_transient());
    assert_eq!(caller.client.in_flight(), 64);
    run_core(&mut caller.core, "64 calls at the server", || server.shared.waiting() == 64);
    let (_, first) = server.shared.pop().unwrap();
    first.reply(|results| results.opaque(b"first"));
    assert_eq!(caller.reply().unwrap(), b"first");
    caller.start(LATER, 64, |args| args.u32(64)).unwrap();
    assert_eq!(caller.start(LATER, 65, |args| args.u32(65)), Err(Backpressure::NoCredit));
    run_core(&mut caller.core, "the 65th call", || server.shared.waiting() == 64);
    while let Some((number, deferred)) = server.shared.pop() {
        deferred.reply(|results| results.opaque(&number.to_be_bytes()));
    }
    let tokens: HashSet<u64> = caller
        .replies(64)
        .into_iter()
        .inspect(|(token, reply)| {
            assert_eq!(reply.as_ref().unwrap()[..], (*token as u32).to_be_bytes());
        })
        .map(|(token, _)| token)
        .collect();
    assert_eq!(tokens, (1..=64).collect());
    assert_eq!(caller.client.in_flight(), 0);
}

#[test]
fn a_depth_of_one_or_of_many_credits_is_kept() {
    for credits in [1, 2, 200] {
        let server = Server::with(small_with(|raw| {
            raw.rpc.credits = credits;
            raw.mem.arena_mib = 32;
        }));
        let raw = small_with(|raw| raw.rpc.credits = 128);
        let mut caller = Caller::connect_with(raw, &server.address, all_words);
        let granted = credits.min(128);
        caller.start_later(0..granted, |token| token as u32);
        assert_eq!(caller.start(NULL, 0, |_| {}), Err(Backpressure::NoCredit));
        let waiting = granted as usize;
        run_core(&mut caller.core, "all calls", || server.shared.waiting() == waiting);
        server.shared.answer_all_with_nothing();
        assert!(caller.replies(waiting).iter().all(|(_, reply)| reply.is_ok()));
    }
}

/// RFC 5531 section 9: the accept statuses reach the caller as they were sent.
#[test]
fn error_answers_reach_the_caller_as_they_are() {
    let (server, mut caller) = served(all_words);
    for (procedure, status) in [
        (Procedure(4711), AcceptStatus::ProcUnavail),
        (FAIL, AcceptStatus::SystemErr),
        (ECHO, AcceptStatus::GarbageArgs),
        (DROP, AcceptStatus::SystemErr),
    ] {
        // More than an echo takes; the others take nothing.
        let garbage = |args: &mut Encoder<'_>| args.u32(u32::MAX);
        let nothing = |_: &mut Encoder<'_>| {};
        let encode: &dyn Fn(&mut Encoder<'_>) = if procedure == ECHO { &garbage } else { &nothing };
        let error = caller.call(procedure, encode).unwrap_err();
        assert!(matches!(error, CallError::Accepted(s) if s == status), "{procedure:?}: {error:?}");
    }
    assert!(caller.call(NULL, |_| {}).is_ok(), "the connection lives on");
    server.wait_for("the dropped call", |stats| stats.calls_dropped == 1);
}

#[test]
fn a_program_or_version_that_is_not_served_is_a_connect_error() {
    let served = engine(small());
    for version in [2, 7, 4] {
        let shared = std::sync::Arc::default();
        served
            .serve(PROGRAM, Version(version), move |context| {
                crate::common::program::TestProgram::new(
                    context.clone(),
                    std::sync::Arc::clone(&shared),
                )
            })
            .unwrap();
    }
    let server = Server::started(served, Default::default());
    for (program, version, status) in [
        (Program(0x2000_1234), Version(2), AcceptStatus::ProgUnavail),
        (PROGRAM, Version(9), AcceptStatus::ProgMismatch { low: 2, high: 7 }),
        (PROGRAM, Version(3), AcceptStatus::ProgMismatch { low: 2, high: 7 }),
    ] {
        let (engine, mut core) = with_core(client_config());
        let heard = Listener::default();
        let make = |_: Client| heard.clone();
        let error = core.connect_wait(&server.address, program, version, make, LIMIT).unwrap_err();
        assert!(matches!(error, ConnectError::NotServed(s) if s == status), "{error:?}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        assert_eq!(*heard.0.borrow(), ["connect failed"]);
        run_core(&mut core, "the end", || engine.stats(0).unwrap().connections_closed == 1);
        assert_eq!(*heard.0.borrow(), ["connect failed"], "and nothing after it");
    }
}

#[test]
fn the_credential_of_the_caller_arrives() {
    let (_server, mut caller) = served(all_words);
    assert_eq!(caller.call(WHO, |_| {}).unwrap(), [0, 0], "AUTH_NONE");
    let user = AuthSys {
        stamp: 0x1234_5678,
        machine_name: b"host",
        uid: 1000,
        gid: 100,
        groups: Default::default(),
    };
    caller.client.set_auth_sys(Some(&user)).unwrap();
    let body = [0x1234_5678, 4, u32::from_be_bytes(*b"host"), 1000, 100, 0];
    let expected: Vec<u32> = [1, 24].into_iter().chain(body).collect();
    assert_eq!(caller.call(WHO, |_| {}).unwrap(), expected);
    caller.client.set_auth_sys(None).unwrap();
    assert_eq!(caller.call(WHO, |_| {}).unwrap(), [0, 0]);
}

#[test]
fn an_encoder_can_neither_change_the_credential_nor_start_a_call() {
    let (_server, mut caller) = served(one_opaque);
    let client = caller.client.clone();
    for length in [5, 1000] {
        let sent = pattern(1, length);
        let echoed = caller.call(ECHO, |args| {
            assert!(client.set_auth_sys(None).is_err());
            let nested = client.call(NULL, Token(7), &mut CallSpec::short(), |_| {});
            assert!(matches!(nested, Err(Backpressure::Misuse(_))), "{nested:?}");
            args.opaque(&sent);
        });
        assert_eq!(echoed.unwrap(), sent);
    }
    client.set_auth_sys(None).unwrap();
}

/// Such a call offers memory for the longest results, so that none is executed whose results cannot be returned.
#[test]
fn a_call_with_results_of_unknown_length_is_not_sent_without_memory_for_them() {
    let (server, mut caller) = served(one_opaque);
    let executed = || server.shared.calls.load(Ordering::Relaxed);
    let before = executed();
    let taken: Vec<_> = std::iter::from_fn(|| caller.client.exposed_bulk(1 << 20)).collect();
    assert!(!taken.is_empty());
    let refused = caller.client.call(ECHO, Token(0), &mut CallSpec::new(), |args| args.u32(0));
    assert_eq!(refused, Err(Backpressure::NoReplyRoom));
    assert!(Backpressure::NoReplyRoom.is_transient());
    caller.client.call(ECHO, Token(0), &mut CallSpec::short(), |args| args.u32(0)).unwrap();
    assert!(caller.reply().unwrap().is_empty());
    assert_eq!(executed() - before, 1);
    drop(taken);

    // The same spec serves calls of either kind.
    let mut spec = CallSpec::new();
    for length in [20_000, 0, 20_000] {
        let sent = pattern(3, length);
        caller.client.call(ECHO, Token(0), &mut spec, |args| args.opaque(&sent)).unwrap();
        assert_eq!(caller.reply().unwrap(), sent);
    }
    // A stub that knows the length offers no more than that, and no more than one call may return.
    for (known_bytes, fits) in [(Some(20_004), true), (Some(usize::MAX), true), (Some(9000), false)]
    {
        let sent = pattern(4, 20_000);
        spec.assume_reply_bytes_max(known_bytes);
        caller.client.call(ECHO, Token(0), &mut spec, |args| args.opaque(&sent)).unwrap();
        assert_eq!(caller.reply().is_ok_and(|echoed| echoed == sent), fits, "{known_bytes:?}");
    }
}

/// A message without results is as long as the longest block at most, its RPC header of 40 bytes included.
#[test]
fn calls_up_to_the_longest_block_are_sent_and_longer_ones_are_too_large() {
    const LONGEST_BYTES: usize = (1 << 20) + (64 << 10);
    let (_server, mut caller) = served(all_words);
    for less in [72, 68, 64, 44, 40, 36, 28, 4, 0] {
        let arguments = vec![0; LONGEST_BYTES - less];
        let started = caller.start(ECHO, 0, |args| args.fixed(&arguments));
        match less >= 40 {
            true => {
                assert!(started.is_ok(), "{less} less: {started:?}");
                let _ = caller.reply();
            }
            false => assert!(
                matches!(started, Err(Backpressure::TooLarge { .. })),
                "{less} less: {started:?}"
            ),
        }
    }
}

#[derive(Clone, Default)]
struct Listener(Rc<RefCell<Vec<&'static str>>>);

impl ReplyHandler for Listener {
    fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {
        self.0.borrow_mut().push("reply");
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        self.0.borrow_mut().push(match event {
            ConnectionEvent::Up { .. } => "up",
            ConnectionEvent::Down { .. } => "down",
            ConnectionEvent::ConnectFailed { .. } => "connect failed",
            _ => "other",
        });
    }
}

#[test]
fn connect_returns_at_once_and_the_handler_hears_up_and_down() {
    let server = Server::start();
    let (_engine, mut core) = with_core(client_config());
    let heard = Listener::default();
    let client = core.connect(&server.address, PROGRAM, VERSION, |_| heard.clone()).unwrap();
    assert!(!client.is_up());
    let early = client.call(NULL, Token(0), &mut CallSpec::short(), |_| {});
    assert_eq!(early, Err(Backpressure::Connecting));
    run_core(&mut core, "the connection", || client.is_up());
    client.close();
    run_core(&mut core, "its end", || heard.0.borrow().len() == 2);
    assert_eq!(*heard.0.borrow(), ["up", "down"]);
    let late = client.call(NULL, Token(0), &mut CallSpec::short(), |_| {});
    assert_eq!(late, Err(Backpressure::Down));
    server.wait_for("its end at the server", |stats| stats.connections_closed == 1);
}

#[test]
fn connections_are_spread_over_the_cores_of_a_server() {
    let cpus = valid(small()).cpus().to_vec();
    let second = if cpus == [0] { 0 } else { 1 - cpus[0].min(1) };
    let list = if second == cpus[0] { vec![cpus[0]] } else { vec![cpus[0], second] };
    let cores = list.len();
    let server = Server::with(small_with(|raw| raw.cores.list = CoreList::Cpus(list)));
    assert_eq!(server.engine.cores(), cores);
    let (_engine, mut core) = with_core(client_config());
    let clients: Vec<_> =
        (0..4).map(|_| open(&mut core, &server.address, one_opaque).unwrap()).collect();
    for (client, heard) in &clients {
        client.call(ECHO, Token(1), &mut CallSpec::short(), |args| args.opaque(b"x")).unwrap();
        run_core(&mut core, "a reply", || heard.borrow().replies.len() == 1);
    }
    for index in 0..cores {
        wait_until("every core to serve its share", || {
            let stats = server.engine.stats(index).unwrap();
            let share = 4 / cores as u64;
            stats.connections_opened == share && stats.calls_received == 2 * share
        });
    }
}

#[test]
fn every_call_in_flight_ends_once_when_either_end_closes() {
    for by_server in [true, false] {
        let (server, mut caller) = served(all_words);
        caller.start_later(0..40, |_| 0);
        run_core(&mut caller.core, "40 calls", || server.shared.waiting() == 40);
        let shared = std::sync::Arc::clone(&server.shared);
        let answer = || std::iter::from_fn(|| shared.pop()).for_each(|call| call.1.reply(|_| {}));
        if by_server {
            server.stop();
            assert_eq!(caller.down(), (DownCause::Remote, 40));
            expect_disconnected(&mut caller, 40);
            // Answers to a core that is gone go nowhere.
            answer();
        } else {
            caller.client.close();
            assert_eq!(caller.start(NULL, 0, |_| {}), Err(Backpressure::Down), "closing already");
            assert_eq!(caller.down(), (DownCause::Local, 40));
            expect_disconnected(&mut caller, 40);
            wait_until("the server's event", || server.shared.downs() == 1);
            answer();
            server.wait_for("stale answers", |stats| stats.stale == 40);
        }
    }
}

#[track_caller]
fn expect_disconnected(caller: &mut Caller<Vec<u32>>, count: usize) {
    let replies = caller.replies(count);
    let tokens: HashSet<u64> = replies.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens.len(), count, "each call ends once");
    for (_, reply) in replies {
        let error = reply.unwrap_err();
        assert!(matches!(error, CallError::Disconnected(_)), "{error:?}");
        assert!(error.is_retryable());
    }
    for _ in 0..100 {
        caller.core.poll_once();
    }
    assert!(caller.heard.borrow().replies.is_empty(), "and not again");
    assert_eq!(caller.start(NULL, 0, |_| {}), Err(Backpressure::Down));
    assert_eq!(caller.client.in_flight(), 0);
}

#[test]
fn a_dropped_core_closes_its_connections_although_a_client_is_kept() {
    let server = Server::start();
    let Caller { client, core, engine, .. } = Caller::connect(&server.address, all_words);
    drop(core);
    server.wait_for("the end of the connection", |stats| stats.connections_closed == 1);
    let late = client.call(NULL, Token(0), &mut CallSpec::short(), |_| {});
    assert!(late.is_err(), "its end would never be reported");
    drop(engine);
}

#[test]
fn engine_core_and_client_may_be_dropped_in_any_order() {
    let server = Server::start();
    let (done, finished) = std::sync::mpsc::channel();
    let address = server.address.clone();
    std::thread::spawn(move || {
        let Caller { client, core, engine, .. } = Caller::connect(&address, all_words);
        drop(engine);
        drop(core);
        drop(client);
        done.send(()).unwrap();
    });
    finished.recv_timeout(LIMIT).expect("dropping the engine before its core hangs");
}

#[test]
fn connect_to_nobody_or_nowhere_is_a_one_line_error_and_the_core_goes_on() {
    let (_engine, mut core) = with_core(client_config());
    let nobody = unique_address();
    for (address, says) in [
        (nobody.as_str(), "no server listens there"),
        ("shm:/nonexistent/socket", "no server listens there"),
        ("tcp:localhost", "allowed are shm:NAME"),
        ("shm:", "allowed are shm:NAME"),
    ] {
        let Err(error) = open(&mut core, address, all_words) else { panic!("{address} connects") };
        let text = error.to_string();
        assert!(text.contains(says) && text.lines().count() == 1, "{text}");
    }
    let server = Server::start();
    let (client, heard) = open(&mut core, &server.address, one_opaque).unwrap();
    client.call(ECHO, Token(5), &mut CallSpec::short(), |args| args.opaque(b"after")).unwrap();
    run_core(&mut core, "a reply", || heard.borrow().replies.len() == 1);
    assert_eq!(heard.borrow().replies[0].1.as_ref().unwrap(), b"after");
}

#[test]
fn give_up_connecting_expect_no_connection_later() {
    // A listener whose core never runs: the handshake is done, the first call is never answered.
    let engine = Engine::new(valid(small())).unwrap();
    let address = listening(&engine);
    let (client_engine, mut core) = with_core(client_config());
    let heard = Listener::default();
    let make = |_: Client| heard.clone();
    let short = Duration::from_millis(50);
    let error = core.connect_wait(&address, PROGRAM, VERSION, make, short).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error:?}");
    let no_time = Duration::ZERO;
    let error = core.connect_wait(&address, PROGRAM, VERSION, make, no_time).unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut(_)), "{error:?}");
    run_core(&mut core, "both connections to be closed", || {
        let stats = client_engine.stats(0).unwrap();
        stats.connections_opened == 2 && stats.connections_closed == 2
    });
    assert!(!heard.0.borrow().contains(&"up"), "{:?}", heard.0.borrow());
}

#[test]
fn more_connections_than_configured_are_refused_until_one_goes() {
    let server = Server::with(small_with(|raw| raw.limits.conns = 2));
    let (_engine, mut core) = with_core(client_config());
    let (first, _) = open(&mut core, &server.address, one_opaque).unwrap();
    let (second, heard) = open(&mut core, &server.address, one_opaque).unwrap();
    let Err(error) = open(&mut core, &server.address, one_opaque) else { panic!("a third one") };
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    first.close();
    run_core(&mut core, "the end of the first", || server.stats().connections_closed == 1);
    let end = std::time::Instant::now() + LIMIT;
    while open(&mut core, &server.address, one_opaque).is_err() {
        assert!(std::time::Instant::now() < end, "its place is not free again");
    }
    second.call(ECHO, Token(1), &mut CallSpec::short(), |args| args.opaque(b"second")).unwrap();
    run_core(&mut core, "a reply", || heard.borrow().replies.len() == 1);
}

struct Panics;

impl spinrpc::Service for Panics {
    fn call(&mut self, call: spinrpc::Call<'_>) {
        call.reply(|_| {});
    }
}

#[test]
fn a_service_that_cannot_be_made_fails_the_start() {
    let engine = Engine::new(valid(small())).unwrap();
    engine.serve(PROGRAM, VERSION, |_| -> Panics { panic!("a factory that panics") }).unwrap();
    let error = engine.start().unwrap_err().to_string();
    assert!(error.contains("panicked while it started"), "{error}");
}

#[test]
fn misuse_of_cores_is_an_error_that_says_so() {
    let (engine, core) = with_core(small());
    for (index, says) in [(0, "was started before"), (7, "core 7 of 1")] {
        let error = engine.core(index).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    drop(core);
    let address = listening(&engine);
    let error = engine.listen(&address).unwrap_err().to_string();
    assert!(error.contains("another server listens there already"), "{error}");
}
