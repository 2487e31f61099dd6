//! Lifetime of contexts: unused ones, replaced ones, and the outcome of calls that are denied because their context
//! is gone.

use super::*;
use spinrpc::sys::clock::{Clock, ClockSource};

const FORGOTTEN: CallError = CallError::Rejected(RejectStatus::AuthError(AuthStat::GssCredProblem));

#[test]
fn a_context_that_no_call_has_used_ends_first() {
    for (unused_ms, ends) in [(1, true), (86_400_000, false)] {
        let mut raw = small();
        raw.fixed.gss_unused_ms = unused_ms;
        let server = Server::start_as(raw, Some(GssAcceptor::new(keys(ENCTYPE, "server"))));
        for service in SERVICES {
            let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
            let up = Instant::now();
            // The clock of contexts is exact to some milliseconds.
            wait_until("a tick", || up.elapsed() > Duration::from_millis(50));
            // Sent again, under a context that may have ended as soon.
            let answer = call(&mut caller, ECHO, b"data");
            let denied = caller.engine.gss_stats().calls_denied;
            assert_eq!(denied > 0, ends, "{service:?}: {answer:?}");
            assert!(answer.is_ok() || ends, "{service:?}: {answer:?}");
        }
    }
}

fn text(answer: &Result<Vec<u8>, CallError>) -> String {
    answer.as_ref().err().map_or_else(|| "a reply".to_owned(), ToString::to_string)
}

/// A client whose calls may be sent again, with that in their spec.
fn lasting(service: GssService) -> ConnectOptions {
    options(keys(ENCTYPE, "alice"), service).reconnect(Reconnect::default())
}

fn call_to_resend(
    caller: &mut Caller<Vec<u8>>,
    (procedure, resend): (Procedure, Resend),
    data: &[u8],
) -> Result<Vec<u8>, CallError> {
    let client = caller.client.clone();
    let mut spec = CallSpec::new().reply_bytes_max(data.len() + 64).resend(resend);
    if procedure == DATA {
        spec = spec.result_into(client.bulk(data.len()).unwrap());
    }
    client.call(procedure, Token(1), &mut spec, |args| args.opaque(data)).unwrap();
    caller.reply()
}

/// RFC 2203 section 5.3.3.3: the server has not executed them. Each has another sequence number, or the server would take it
/// for a replay.
#[test]
fn calls_that_may_be_sent_again_are_when_their_context_has_gone() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).contexts_max(1);
    let server = Server::start(Some(acceptor));
    for service in SERVICES {
        for (procedure, bytes) in [(ECHO, 64), (ECHO, 90_000), (DATA, 50_000)] {
            let data = pattern(4, bytes);
            let mut caller = connect_to_read(&server, &lasting(service), one_item);
            for resend in [Resend::AtLeastOnce, Resend::AtMostOnce] {
                // The one context of the server is that of another client.
                let _other = connect(&server, &options(keys(ENCTYPE, "bob"), service));
                let before = (server.calls(), caller.engine.gss_stats().calls_denied);
                let answer = call_to_resend(&mut caller, (procedure, resend), &data);
                assert_eq!(answer.ok().as_ref(), Some(&data), "{service:?} {resend:?} {bytes}");
                let after = (server.calls(), caller.engine.gss_stats().calls_denied);
                assert_eq!(after, (before.0 + 1, before.1 + 1), "{service:?} {resend:?} {bytes}");
            }
            let _other = connect(&server, &options(keys(ENCTYPE, "bob"), service));
            // Long ones are kept until their context is known to be in use.
            let answer = call_to_resend(&mut caller, (procedure, Resend::Never), &data);
            let is_short = bytes < 8192;
            let expected = if is_short { "a reply".to_owned() } else { FORGOTTEN.to_string() };
            assert_eq!(text(&answer), expected, "{service:?} {bytes}");
        }
    }
}

/// A server may forget a context that no call has used: the first call of a client that was idle is none that fails.
#[test]
fn the_first_call_under_a_context_is_sent_again_whatever_its_spec_says() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).contexts_max(1);
    let server = Server::start(Some(acceptor));
    for service in SERVICES {
        for bytes in [64, 90_000] {
            let (data, before) = (pattern(4, bytes), server.calls());
            let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
            let _other = connect(&server, &options(keys(ENCTYPE, "bob"), service));
            let answer = call(&mut caller, ECHO, &data);
            assert_eq!(text(&answer), "a reply", "{service:?} {bytes}");
            assert_eq!(answer.ok(), Some(data));
            let denied = caller.engine.gss_stats().calls_denied;
            assert_eq!((server.calls() - before, denied), (1, 1), "{service:?} {bytes}");
        }
    }
}

/// Once: a server that forgets every context at once is not asked forever.
#[test]
fn a_call_that_is_denied_again_ends() {
    let forgetful = GivenKeys { lifetime: 0, ..keys(ENCTYPE, "server") };
    let server = Server::start(Some(GssAcceptor::new(forgetful)));
    for service in SERVICES {
        let mut caller = connect(&server, &lasting(service));
        let answer = call_to_resend(&mut caller, (ECHO, Resend::AtLeastOnce), b"data");
        assert_eq!(text(&answer), FORGOTTEN.to_string(), "{service:?}");
        assert_eq!(caller.engine.gss_stats().calls_denied, 2, "{service:?}");
    }
    assert_eq!(server.calls(), 0);
    let stats = server.engine.gss_stats();
    assert_eq!(
        (stats.refused_context, stats.calls_none + stats.calls_privacy),
        (6, 0),
        "{stats:?}"
    );
}

/// The client's context ends before the server's: it is replaced before that, and the server hears that it may forget it.
#[test]
fn a_context_that_is_replaced_before_its_end_is_destroyed() {
    let server = Server::with_keys(ENCTYPE);
    let brief = GivenKeys { lifetime: 400_000_000, ..keys(ENCTYPE, "alice") };
    let mut caller = connect(&server, &options(brief, GssService::Integrity));
    let engine = server.engine.clone();
    let mut denied = 0;
    while engine.gss_stats().contexts_destroyed < 2 {
        let mut spec = CallSpec::short();
        match caller.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(b"data")) {
            Ok(_) => denied += u32::from(caller.reply().is_err()),
            Err(Backpressure::Connecting) => {
                caller.core.poll_once();
            }
            Err(refused) => panic!("{refused}"),
        }
    }
    assert_eq!(denied, 0, "a call met a context that had gone");
    let stats = engine.gss_stats();
    // Two, or one if another is there already.
    let left = stats.contexts_accepted - stats.contexts_destroyed;
    assert_eq!(stats.contexts, left, "{stats:?}");
    assert!((1..=2).contains(&left), "{stats:?}");
    let client = caller.client.clone();
    run_core(&mut caller.core, "the context", || client.is_up());
}

#[test]
fn what_happens_to_contexts_and_calls_is_counted() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).require(GssService::Integrity);
    let server = Server::start(Some(acceptor.contexts_max(16)));
    for service in SERVICES {
        let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
        let answer = call(&mut caller, ECHO, &pattern(1, 100_000));
        assert_eq!(answer.is_ok(), service != GssService::None);
    }
    let stats = server.engine.gss_stats();
    assert_eq!((stats.calls_none, stats.calls_integrity, stats.calls_privacy), (1, 1, 1));
    assert_eq!((stats.refused_weak, stats.contexts_accepted), (1, 3));
    // Three contexts of one host where there may be two.
    assert_eq!(stats.contexts_evicted + stats.contexts_destroyed + stats.contexts, 3, "{stats:?}");
    // Two calls and their replies.
    assert_eq!(stats.long_bodies, 4, "{stats:?}");
    assert!(stats.entries().any(|entry| entry == ("long_bodies", 4)));
}

/// Whichever way a body takes: at once, on a thread of the core, or on the thread that answers.
#[test]
fn bytes_and_times_of_bodies_are_counted_by_service_at_both_ends() {
    let has_clock = Clock::shared().source() == ClockSource::Counter;
    let server = Server::with_keys(ENCTYPE);
    for service in SERVICES {
        for (procedure, length) in [(ECHO, 64), (ECHO, 100_000), (LATER, 64)] {
            let before = server.engine.gss_stats();
            let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
            let mut spec = CallSpec::new().reply_bytes_max(length + 64);
            let data = pattern(1, length);
            caller.client.call(procedure, Token(1), &mut spec, |args| args.opaque(&data)).unwrap();
            if procedure == LATER {
                let seen = &server.seen;
                let has_come = || !lock(&seen.deferred).is_empty();
                run_core(&mut caller.core, "the call", has_come);
                let (bytes, deferred) = lock(&seen.deferred).pop().unwrap();
                deferred.reply(|results| results.opaque(&bytes));
            }
            assert_eq!(caller.reply().unwrap(), data);
            let (after, client) = (server.engine.gss_stats(), caller.engine.gss_stats());
            let what = format!("{service:?} {procedure:?} {length}: {after:?}");
            let integrity = (client.bytes_integrity, client.ns_integrity);
            let privacy = (client.bytes_privacy, client.ns_privacy);
            let (own, other) = match service {
                GssService::Privacy => (privacy, integrity),
                _ => (integrity, privacy),
            };
            assert_eq!(other, (0, 0), "{what}");
            let is_protected = service != GssService::None;
            assert_eq!(own.1 > 0, has_clock && is_protected, "{what}");
            // A call and its reply, with their frames.
            let shortest = if is_protected { 2 * length as u64 } else { 0 };
            assert!((shortest..=shortest + 200).contains(&own.0), "{what}");
            let at_server = (
                after.bytes_integrity - before.bytes_integrity,
                after.bytes_privacy - before.bytes_privacy,
            );
            assert_eq!(at_server, (client.bytes_integrity, client.bytes_privacy), "{what}");
            let times =
                [after.ns_integrity > before.ns_integrity, after.ns_privacy > before.ns_privacy];
            let expected = [GssService::Integrity, GssService::Privacy];
            assert_eq!(times, expected.map(|of| has_clock && of == service), "{what}");
        }
    }
}

/// It is not executed, and its buffers are there for others at once.
#[test]
fn a_call_that_waits_for_a_context_can_be_cancelled() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).contexts_max(1);
    let server = Server::start(Some(acceptor));
    for service in SERVICES {
        let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
        let _other = connect(&server, &options(keys(ENCTYPE, "bob"), service));
        let (client, engine, before) =
            (caller.client.clone(), caller.engine.clone(), server.calls());
        let mut spec = CallSpec::short();
        let id = client.call(ECHO, Token(1), &mut spec, |args| args.opaque(b"data")).unwrap();
        run_core(&mut caller.core, "a denial", || engine.gss_stats().calls_denied == 1);
        assert_eq!(client.cancel(id), Ok(()), "{service:?}");
        assert!(client.cancel(id).is_err(), "twice");
        let answer = caller.reply();
        assert!(matches!(answer, Err(CallError::Cancelled)), "{service:?}: {answer:?}");
        run_core(&mut caller.core, "another context", || {
            client.is_up() && engine.gss_stats().contexts_established == 2
        });
        assert_eq!(call(&mut caller, ECHO, b"on").unwrap(), b"on");
        assert_eq!(server.calls(), before + 1, "the cancelled call was executed");
    }
}

/// It has another slot then, and the application has the id of the first.
#[test]
fn a_call_that_was_denied_and_sent_again_can_be_cancelled() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).contexts_max(1);
    let server = Server::start(Some(acceptor));
    for service in SERVICES {
        let mut caller = connect(&server, &options(keys(ENCTYPE, "alice"), service));
        let _other = connect(&server, &options(keys(ENCTYPE, "bob"), service));
        let (client, seen) = (caller.client.clone(), Arc::clone(&server.seen));
        let mut spec = CallSpec::short();
        let id = client.call(LATER, Token(1), &mut spec, |args| args.opaque(b"data")).unwrap();
        run_core(&mut caller.core, "the call", || !lock(&seen.deferred).is_empty());
        assert_eq!(caller.engine.gss_stats().calls_denied, 1);
        assert_eq!(client.cancel(id), Ok(()), "{service:?}");
        assert!(client.cancel(id).is_err(), "twice");
        let answer = caller.reply();
        assert!(matches!(answer, Err(CallError::Cancelled)), "{service:?}: {answer:?}");
        // Until the server answers, its memory is its own: then the credit is back.
        assert_eq!(client.in_flight(), 1);
        let (data, deferred) = lock(&seen.deferred).pop().unwrap();
        deferred.reply(|results| results.opaque(&data));
        run_core(&mut caller.core, "the late answer", || client.in_flight() == 0);
        assert_eq!(call(&mut caller, ECHO, b"on").unwrap(), b"on");
    }
}
