//! A thread seals the arguments of a long call: what ends such a call before it is sent, and what it leaves behind. Both cores
//! are turned by the test.

use super::long_bodies::{AT_ONCE, LONG, Turned};
use super::*;

const PROTECTED: [GssService; 2] = [GssService::Integrity, GssService::Privacy];
const ANY: u64 = 16 << 20;

/// A server that opens bodies at once.
fn server() -> Turned {
    Turned::start_as(|raw| {
        raw.fixed.gss_at_once_bytes = ANY;
        raw.mem.arena_mib = 64;
    })
}

fn by_threads() -> Engine {
    engine(small_with(|raw| {
        raw.fixed.gss_at_once_bytes = AT_ONCE as u64;
        raw.mem.arena_mib = 64;
    }))
}

fn start(all: &Turned, index: usize, spec: CallSpec, data: &[u8]) -> CallId {
    let mut spec = spec.reply_bytes_max(data.len() + 64);
    let client = &all.callers[index].client;
    client.call(ECHO, Token(7), &mut spec, |args| args.opaque(data)).unwrap()
}

#[test]
fn short_calls_go_behind_a_long_one_of_their_connection_while_it_is_sealed() {
    let data = pattern(3, LONG);
    for service in PROTECTED {
        let mut all = server();
        let index = all.connect(service, AT_ONCE as u64);
        start(&all, index, CallSpec::short(), &data);
        // Behind the long one, and with a higher sequence number.
        for answers in 1..=4 {
            all.call(index, ECHO, b"short");
            all.turn_until("a short reply", |all| all.answered(index) >= answers);
        }
        all.turn_until("the long reply", |all| all.answered(index) == 5);
        let heard = all.heard(index);
        assert_eq!(heard.iter().filter(|heard| **heard == Ok(data.clone())).count(), 1);
        assert_eq!(heard.iter().filter(|heard| **heard == Ok(b"short".to_vec())).count(), 4);
    }
}

/// So many that memory, credits or slots of any that were not given back would not be enough for all of them. See `ends`
/// for calls that are cancelled, and connections that go.
#[test]
fn a_call_whose_time_ends_while_it_is_sealed_leaves_nothing_behind() {
    const MANY: usize = 300;
    let data = pattern(5, LONG);
    for service in PROTECTED {
        let mut all = server();
        let index = all.connect(service, AT_ONCE as u64);
        let client = all.callers[index].client.clone();
        let sealed_bytes = |all: &Turned| {
            let stats = all.callers[index].engine.gss_stats();
            stats.bytes_integrity + stats.bytes_privacy
        };
        for ended in 0..MANY {
            let before = sealed_bytes(&all);
            let argument = client.bulk(AT_ONCE).unwrap();
            let spec = CallSpec::short().deadline(Duration::from_micros(1)).argument(argument);
            let mut spec = spec.reply_bytes_max(LONG + 64);
            let call = client.call(ECHO, Token(7), &mut spec, |args| {
                args.opaque(&data);
                args.bulk();
            });
            let call = call.unwrap();
            all.turn_until("its end", |all| all.answered(index) > ended);
            assert!(client.cancel(call).is_err(), "it has ended");
            // Or the threads soon have as many as they may, and further ones are sealed and sent at once.
            all.turn_until("it sealed", |all| sealed_bytes(all) > before);
        }
        let text = CallError::TimedOut.to_string();
        assert_eq!(all.heard(index), vec![Err(text); MANY], "{service:?}");
        assert_eq!((all.calls(), client.in_flight()), (0, 0), "{service:?}");
        // Nothing of them keeps the connection, or its context, from going on.
        all.call(index, ECHO, &data);
        all.turn_until("a reply", |all| all.answered(index) > MANY);
        assert_eq!(all.heard(index).pop(), Some(Ok(data.clone())));
        assert_eq!((all.calls(), all.engine.gss_stats().refused_replay), (1, 0));
    }
}

/// Its number is not that of a call in flight, or no call could be a whole window later (RFC 2203 section 5.3.3.1).
/// Another call is in flight meanwhile, so that later ones have another slot than the one that was cancelled.
#[test]
fn the_number_of_a_call_cancelled_about_when_it_is_sealed_holds_up_no_later_ones() {
    const WINDOW: usize = 2048;
    let data = pattern(5, LONG);
    let mut all = server();
    let index = all.connect(GssService::Integrity, AT_ONCE as u64);
    let mut answers = 0;
    for turns in 0..7 {
        all.call(index, ECHO, b"in flight");
        let call = start(&all, index, CallSpec::short(), &data);
        // The server does not answer yet.
        for _ in 0..turns {
            all.callers[index].core.poll_once();
        }
        all.callers[index].client.cancel(call).unwrap();
        answers += 2;
        all.turn_until("both ends", |all| all.answered(index) == answers);
        for _ in 0..=WINDOW {
            all.call(index, ECHO, b"alone");
            answers += 1;
            all.turn_until("a reply", |all| all.answered(index) == answers);
        }
    }
}

#[test]
fn a_connection_that_goes_ends_the_calls_that_it_has_not_sent() {
    let data = pattern(5, LONG);
    for service in PROTECTED {
        let mut all = server();
        let index = all.connect(service, AT_ONCE as u64);
        for _ in 0..3 {
            start(&all, index, CallSpec::short(), &data);
        }
        all.callers[index].client.close();
        all.turn_until("the ends", |all| all.answered(index) == 3);
        let ended = CallError::NotExecuted(DownCause::Local).to_string();
        assert_eq!(all.heard(index), vec![Err(ended); 3], "{service:?}");
        assert_eq!(all.calls(), 0);
    }
}

/// One that was not sent is not executed by the connection before: it goes on by the next one whatever its spec says of
/// servers, and once.
#[test]
fn a_call_that_its_connection_has_not_sent_goes_by_the_next_one() {
    let data = pattern(5, LONG);
    for service in PROTECTED {
        for resend in [Resend::AtLeastOnce, Resend::AtMostOnce] {
            let mut all = server();
            let with = options(keys(Enctype::Aes256Sha1, "alice"), service);
            let index = all.join(by_threads(), &with.reconnect(Reconnect::default()));
            start(&all, index, CallSpec::short().resend(resend), &data);
            all.callers[index].client.reconnect();
            all.turn_until("a reply", |all| all.answered(index) == 1);
            assert_eq!(all.heard(index), [Ok(data.clone())], "{service:?} {resend:?}");
            assert_eq!(all.calls(), 1);
        }
    }
}

/// Each has its slot and its credit at once: no more calls start than the server grants, and the rest is refused.
#[test]
fn calls_that_are_being_sealed_count_as_calls_in_flight() {
    let data = pattern(5, 2 * AT_ONCE);
    let mut all = server();
    let index = all.connect(GssService::Privacy, AT_ONCE as u64);
    let client = all.callers[index].client.clone();
    let mut started = 0;
    let refused = loop {
        let mut spec = CallSpec::short();
        match client.call(LENGTH, Token(7), &mut spec, |args| args.opaque(&data)) {
            Ok(_) => started += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Backpressure::NoCredit | Backpressure::NoBuffer), "{refused}");
    assert_eq!(client.in_flight(), started);
    all.turn_until("all replies", |all| all.answered(index) == started);
    let length = (2 * AT_ONCE).to_be_bytes().to_vec();
    assert_eq!(all.heard(index), vec![Ok(length); started]);
}

/// Items of the application's stand in the body, and come back.
#[test]
fn buffers_of_a_call_that_a_thread_seals_come_back() {
    let data = pattern(6, LONG);
    for service in PROTECTED {
        let mut all = server();
        let index = all.connect(service, AT_ONCE as u64);
        let client = all.callers[index].client.clone();
        for done in 0..100 {
            let mut argument = client.bulk(LONG).unwrap();
            argument.bytes_mut().copy_from_slice(&data);
            let result = client.bulk(LONG).unwrap();
            let mut spec = CallSpec::short().argument(argument).result_into(result);
            client.call(DATA, Token(1), &mut spec, |args| args.bulk()).unwrap();
            all.turn_until("a reply", |all| all.answered(index) > done);
        }
        assert!(all.heard(index).iter().all(|heard| heard.as_ref() == Ok(&data)), "{service:?}");
    }
}

/// A call longer than the longest block, or than is configured, is refused where it is made, as a short one is.
#[test]
fn a_call_that_is_too_long_is_refused_when_it_is_made() {
    let mut all = server();
    let index = all.connect_as(GssService::Privacy, |raw| {
        raw.fixed.gss_at_once_bytes = AT_ONCE as u64;
        raw.mem.arena_mib = 64;
        raw.rpc.max_write_bytes = LONG as u64;
    });
    let client = all.callers[index].client.clone();
    for bytes in [2 * LONG, LONGEST, 2 * LONGEST] {
        let data = pattern(1, bytes);
        let refused =
            client.call(ECHO, Token(1), &mut CallSpec::short(), |args| args.opaque(&data));
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Backpressure::TooLarge { .. }), "{bytes}: {refused}");
    }
    assert_eq!(client.in_flight(), 0);
}

/// A thread that is not a core makes the call.
#[test]
fn a_thread_seals_long_calls_of_handles() {
    let (data, mut all) = (pattern(3, LONG), server());
    let engine = by_threads();
    let mut core = engine.core(0).unwrap();
    let with = options(keys(Enctype::Aes256Sha1, "alice"), GssService::Privacy);
    let handle = engine.connect(0, &all.address, PROGRAM, VERSION, &with).unwrap();
    all.wait_until("a context", |_| {
        core.poll_once();
        handle.is_up()
    });
    let spec = CallSpec::new().reply_bytes_max(LONG + 64);
    let pending = handle.start(ECHO, spec, |args| args.opaque(&data)).unwrap();
    all.turn_until("the call", |all| {
        core.poll_once();
        all.calls() == 1
    });
    let waiting = std::thread::spawn(move || {
        let mut answer = pending.wait().unwrap();
        answer.results().opaque(LONGEST).unwrap().to_vec()
    });
    all.wait_until("the answer", |_| {
        core.poll_once();
        waiting.is_finished()
    });
    assert_eq!(waiting.join().unwrap(), data);
    assert_eq!(engine.gss_stats().long_bodies, 2, "the call and its reply");
}
