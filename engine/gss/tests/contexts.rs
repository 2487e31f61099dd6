//! Contexts of the test mechanism: establishment, verifiers, the order of checks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

use spinrpc_gss::context::{Context, ContextWindow};
use spinrpc_gss::mechanism::{GivenKeys, GoOn, Mechanism, MechanismError, Negotiation};
use spinrpc_gss::table::{ContextTable, TableLimits};
use spinrpc_gss::{Enctype, Role, TokenError};
use spinrpc_proto::ids::{Instant, Procedure, Program, Version, Xid};
use spinrpc_proto::rpc::{
    AuthFlavor, CallHeader, GssCredential, GssFault, GssProcedure, GssService, OpaqueAuth,
    SEQUENCE_MAX, signed_bytes,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const NOW: Instant = Instant(1_000);

fn mechanism(name: &str, enctype: Enctype, tokens: u8) -> GivenKeys {
    let key = vec![0x61; enctype.key_bytes()];
    GivenKeys { enctype, key, name: name.to_owned(), tokens, lifetime: 1_000_000 }
}

/// Both ends of a context, and how many tokens the initiator sent.
fn established(enctype: Enctype, tokens: u8) -> (Context, Context, u8) {
    let client = mechanism("user@SPIN.TEST", enctype, tokens);
    let server = mechanism("nfs/server", enctype, tokens);
    let (mut accepting, mut sent): (Option<GoOn>, _) = (None, 0);
    let mut step = client.begin("nfs@server", NOW).unwrap();
    let mut acceptor = None;
    loop {
        let (go_on, token) = match step {
            Negotiation::Continue(go_on, token) => (go_on, token),
            Negotiation::Complete(established, _) => {
                let initiator = Context::new(Role::Initiator, established);
                return (initiator, acceptor.unwrap(), sent);
            }
        };
        sent += 1;
        let accepted = match accepting.take() {
            None => server.accept(&token, NOW),
            Some(go_on) => go_on(&token, NOW),
        };
        let answer = match accepted.unwrap() {
            Negotiation::Continue(go_on, answer) => {
                accepting = Some(go_on);
                answer
            }
            Negotiation::Complete(established, answer) => {
                acceptor = Some(Context::new(Role::Acceptor, established));
                answer
            }
        };
        step = go_on(&answer, NOW).unwrap();
    }
}

fn pair() -> (Context, Context) {
    let (initiator, acceptor, _) = established(Enctype::Aes256Sha1, 1);
    (initiator, acceptor)
}

fn call(context: &Context, sequence: u32) -> Vec<u8> {
    let mut credential = [0; 28];
    let body = GssCredential {
        procedure: GssProcedure::Data,
        sequence,
        service: GssService::None,
        handle: b"context!",
    };
    assert_eq!(body.emit(&mut credential), Ok(28));
    let mut header = CallHeader {
        xid: Xid(sequence),
        program: Program(100_003),
        version: Version(3),
        procedure: Procedure(0),
        credential: OpaqueAuth { flavor: AuthFlavor::Gss, body: &credential },
        verifier: OpaqueAuth::NONE,
    };
    let mut message = vec![0; header.buffer_len()];
    header.emit(&mut message);
    let mic = context.sign_call(&message[..message.len() - 8]);
    header.verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
    message.resize(header.buffer_len(), 0);
    header.emit(&mut message);
    message
}

/// The decision of the acceptor on a message; the sequence number is that of its credential.
fn admit_at(context: &Context, now: Instant, message: &[u8]) -> Result<(), GssFault> {
    let (header, arguments_at) = CallHeader::parse(message).unwrap();
    let credential = GssCredential::parse(header.credential.body).unwrap();
    context.admit_call(now, message, (&header, arguments_at), credential.sequence)
}

fn admit(context: &Context, message: &[u8]) -> Result<(), GssFault> {
    admit_at(context, NOW, message)
}

#[test]
fn contexts_of_one_token_and_of_several() {
    for enctype in Enctype::ALL {
        for tokens in 1..4 {
            let (initiator, acceptor, sent) = established(enctype, tokens);
            assert_eq!(sent, tokens);
            assert_eq!((initiator.peer(), acceptor.peer()), ("nfs/server", "user@SPIN.TEST"));
            assert_eq!((initiator.enctype(), acceptor.enctype()), (enctype, enctype));
            let window = acceptor.sign_reply(ContextWindow::TOLD);
            assert_eq!(initiator.verify_reply(2048, window.as_slice()), Ok(()));
        }
    }
}

#[test]
fn tokens_of_something_else_establish_nothing() {
    let server = mechanism("nfs/server", Enctype::Aes256Sha1, 2);
    for token in [&b""[..], b"test", b"test\0numbe", b"tess\0numbers!name", b"test\0numbers!\xff"] {
        let refused = server.accept(token, NOW).unwrap_err();
        assert_eq!(refused.major, MechanismError::DEFECTIVE_TOKEN);
    }
    let first = server.accept(b"test\x04numbers!name", NOW).unwrap();
    let Negotiation::Continue(go_on, _) = first else { panic!("it takes five tokens") };
    assert!(go_on(b"test\x01numbers!name", NOW).is_err(), "out of turn");
    let mut wrong = mechanism("nfs/server", Enctype::Aes256Sha1, 1);
    wrong.key.pop();
    let refused = wrong.accept(b"test\0numbers!name", NOW).unwrap_err();
    assert_eq!(refused.to_string(), "key of encryption type 18 has 31 bytes, not 32");
}

/// A token that is sent again makes a context whose key its sender does not have.
#[test]
fn contexts_that_no_call_has_proved_go_first_and_dead_ones_with_the_next() {
    // Two of them may be of one host.
    let table =
        ContextTable::new(TableLimits { contexts: 16, idle: 1_000, unused: u64::MAX }, [1; 8]);
    let (initiator, acceptor) = pair();
    let mut forged = call(&initiator, 1);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(admit(&acceptor, &forged), Err(GssFault::Verifier));
    assert!(!acceptor.is_proved());
    assert_eq!(admit(&acceptor, &call(&initiator, 1)), Ok(()));
    assert!(acceptor.is_proved());
    let used = table.insert(Arc::new(acceptor), 7, Instant(1));
    for now in 2..20 {
        table.insert(Arc::new(pair().1), 7, Instant(now));
    }
    assert_eq!(table.len(), 2);
    assert!(table.find(&used, Instant(20)).is_some());
    table.insert(Arc::new(pair().1), 8, Instant(5_000));
    assert_eq!(table.len(), 1);
}

fn next_sequence(context: &Context) -> u32 {
    let number = context.peek_sequence(0).unwrap();
    context.take_sequence(number);
    number
}

#[test]
fn calls_are_admitted_once_in_any_order() {
    let (initiator, acceptor) = pair();
    let calls: Vec<Vec<u8>> =
        (0..20).map(|_| call(&initiator, next_sequence(&initiator))).collect();
    assert!(calls.iter().rev().all(|call| admit(&acceptor, call) == Ok(())));
    assert!(calls.iter().all(|call| admit(&acceptor, call) == Err(GssFault::Replay)));
}

/// RFC 2203 section 5.3.3.1: the verifier is checked before the sequence number.
#[test]
fn a_forged_call_does_not_move_the_window() {
    let (initiator, acceptor) = pair();
    assert_eq!(admit(&acceptor, &call(&initiator, 1)), Ok(()));
    let (mut forged, mut too_large) = (call(&initiator, 1_000_000), call(&initiator, u32::MAX));
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(admit(&acceptor, &forged), Err(GssFault::Verifier));
    assert_eq!(admit(&acceptor, &too_large), Err(GssFault::SequenceTooLarge));
    *too_large.last_mut().unwrap() ^= 1;
    assert_eq!(admit(&acceptor, &too_large), Err(GssFault::Verifier));
    assert_eq!(admit(&acceptor, &call(&initiator, 2)), Ok(()));
    let mut replayed = call(&initiator, 2);
    *replayed.last_mut().unwrap() ^= 1;
    assert_eq!(admit(&acceptor, &replayed), Err(GssFault::Verifier));
}

/// RFC 2203 section 5.3.1: the verifier covers all from the XID to the end of the credential.
#[test]
fn every_bit_of_a_header_is_covered() {
    let (initiator, acceptor) = pair();
    let message = call(&initiator, 7);
    let (header, arguments_at) = CallHeader::parse(&message).unwrap();
    let signed = signed_bytes(arguments_at, &header.verifier);
    assert_eq!(signed, 24 + 8 + 28);
    let verifier = header.verifier;
    for bit in 0..signed * 8 {
        let mut altered = message.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let altered = &altered[..];
        let header = CallHeader { verifier, ..header };
        let found = acceptor.admit_call(NOW, altered, (&header, arguments_at), 7);
        assert_eq!(found, Err(GssFault::Verifier), "bit {bit}");
    }
    assert_eq!(admit(&acceptor, &message), Ok(()));
}

#[test]
fn a_verifier_of_another_flavor_is_refused() {
    let (initiator, acceptor) = pair();
    let message = call(&initiator, 1);
    let (mut header, arguments_at) = CallHeader::parse(&message).unwrap();
    header.verifier.flavor = AuthFlavor::Sys;
    let found = acceptor.admit_call(NOW, &message, (&header, arguments_at), 1);
    assert_eq!(found, Err(GssFault::Verifier));
    header.verifier = OpaqueAuth::NONE;
    let found = acceptor.admit_call(NOW, &message, (&header, 40), 1);
    assert_eq!(found, Err(GssFault::Verifier));
}

#[test]
fn an_expired_context_is_unknown() {
    let (initiator, acceptor) = pair();
    let end = Instant(NOW.0 + 1_000_000);
    let (before, after) = (call(&initiator, 1), call(&initiator, 2));
    assert_eq!(admit_at(&acceptor, Instant(end.0 - 1), &before), Ok(()));
    assert_eq!(admit_at(&acceptor, end, &after), Err(GssFault::UnknownContext));
    assert!(initiator.is_expired(end));
}

#[test]
fn a_reply_is_verified_by_the_number_of_its_call() {
    let (initiator, acceptor) = pair();
    let verifier = acceptor.sign_reply(5);
    assert_eq!(initiator.verify_reply(5, verifier.as_slice()), Ok(()));
    assert_eq!(initiator.verify_reply(6, verifier.as_slice()), Err(TokenError::Checksum));
    let own = initiator.sign_reply(5);
    assert_eq!(initiator.verify_reply(5, own.as_slice()), Err(TokenError::Direction));
}

#[test]
fn sequence_numbers_and_counters_never_repeat() {
    let (initiator, _) = pair();
    let left = initiator.sequences_left();
    assert_eq!(left, SEQUENCE_MAX);
    let numbers: HashSet<u32> = (0..100).map(|_| next_sequence(&initiator)).collect();
    assert_eq!(numbers, (1..=100).collect());
    assert_eq!(initiator.sequences_left(), left - 100);
    let counters: HashSet<u64> = (0..100).map(|_| initiator.next_counter()).collect();
    assert_eq!(counters.len(), 100);
}

/// Many threads, one context: each call is admitted once, on any of them.
#[test]
fn a_call_that_arrives_on_many_threads_is_admitted_once() {
    let (initiator, acceptor) = pair();
    let calls: Vec<Vec<u8>> = (1..=200).map(|number| call(&initiator, number)).collect();
    let admitted: Vec<AtomicU32> = calls.iter().map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for (call, admitted) in calls.iter().zip(&admitted) {
                    if admit(&acceptor, call) == Ok(()) {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(admitted.iter().all(|times| times.load(Ordering::Relaxed) == 1));
}

#[test]
fn a_context_shows_no_key() {
    let (initiator, _) = pair();
    let shown = format!("{initiator:?}");
    assert!(shown.contains("nfs/server") && !shown.contains("97") && !shown.contains("61"));
}
