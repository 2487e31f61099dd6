//! Memory under RPCSEC_GSS: what a peer offers or claims binds none, and calls that find none have their answer with its
//! verifier.

use super::dialects::padded_message;
use super::*;

const MIB: usize = 1 << 20;
const PROTECTED: [GssService; 2] = [GssService::Integrity, GssService::Privacy];

const SUCCESS: Answer = Answer::Verified(AcceptStatus::Success);
/// "The verifier of an accepted reply" is there in errors, too (RFC 2203 section 5.3.3.2).
const NO_MEMORY: Answer = Answer::Verified(AcceptStatus::SystemErr);

/// Blocks of a mebibyte that the server has left.
fn free(foe: &mut Foe) -> u64 {
    let with = foe.credential(GssService::None);
    let message = foe.message(with, FREE, &opaque(b""));
    foe.peer.send(&message);
    let words = foe.peer.hear().words();
    u64::from(words[words.len() - 2]) << 32 | u64::from(words[words.len() - 1])
}

/// Calls that are answered later, whose Reply chunks are of a mebibyte each.
#[test]
fn a_reply_chunk_of_a_mebibyte_binds_no_memory_of_the_server() {
    const CALLS: usize = 30;
    let server = Server::with_keys(Enctype::Aes256Sha1);
    for service in PROTECTED {
        let mut foe = Foe::connect(&server);
        let slice = foe.peer.expose(&vec![0; MIB], Access::RemoteWrite);
        let (before, mut numbers) = (free(&mut foe), Vec::new());
        for _ in 0..CALLS {
            let with = foe.credential(service);
            let message = foe.message(with, LATER, &opaque(b"short"));
            let lists = [&[0, 0][..], &write_chunk(&[slice])].concat();
            let header = transport(foe.xid, 0, &lists);
            foe.peer.send(&[&header, &message[HEADER_BYTES..]].concat());
            numbers.push(with.0);
        }
        assert!(before > CALLS as u64, "{before} blocks are too few to tell");
        assert_eq!(free(&mut foe), before, "{service:?}");
        let deferred = std::mem::take(&mut *lock(&server.seen.deferred));
        assert_eq!(deferred.len(), CALLS);
        for (data, deferred) in deferred {
            deferred.reply(|results| results.opaque(&data));
        }
        numbers.iter().for_each(|_| drop(foe.peer.hear().words()));
        assert_eq!(free(&mut foe), before, "{service:?}");
    }
}

/// Blocks of a mebibyte that a client has left.
fn left(client: &Caller<Vec<u8>>) -> usize {
    std::iter::from_fn(|| client.client.bulk(MIB)).collect::<Vec<_>>().len()
}

/// A short reply at the begin of each chunk, of which the server says that it has filled it.
#[test]
fn a_short_reply_that_claims_a_mebibyte_ends_its_call_and_holds_nothing() {
    const CALLS: u64 = 8;
    for service in PROTECTED {
        let (mut client, mut server) = FalseServer::meet(service, 64);
        let before = left(&client);
        for token in 0..CALLS {
            let mut spec = CallSpec::new().reply_bytes_max(MIB - 4096);
            client.client.call(WHO, Token(token), &mut spec, |args| args.opaque(b"")).unwrap();
        }
        client.core.poll_once();
        for _ in 0..CALLS {
            let (xid, sequence, words) = server.hear_call();
            let context = server.context.as_ref().unwrap();
            let body = seal(context, service, sequence, &opaque(b"short"));
            let reply = [server.reply_header(xid, sequence), body].concat();
            let offered = words[words.len() - 3];
            server.reply_in_chunk(&words, &reply, offered);
        }
        run_core(&mut client.core, "all ends", || {
            client.heard.borrow().replies.len() == CALLS as usize
        });
        for (_, heard) in &client.heard.borrow().replies {
            assert!(matches!(heard, Err(CallError::NotAuthentic)), "{service:?}: {heard:?}");
        }
        assert_eq!(left(&client), before, "{service:?}");
        assert_eq!(client.engine.gss_stats().replies_forged, CALLS, "{service:?}");
    }
}

#[test]
fn a_call_for_whose_body_there_is_no_memory_has_its_answer_with_the_verifier() {
    let server = Server::with_keys(Enctype::Aes256Sha1);
    let mut foe = Foe::connect(&server);
    let none = |foe: &mut Foe, procedure| {
        let with = foe.credential(GssService::None);
        let message = foe.message(with, procedure, &opaque(b""));
        assert_eq!(foe.ask(with.0, &message), SUCCESS);
    };
    none(&mut foe, HOLD);
    let before = server.calls();
    for service in PROTECTED {
        for content in [opaque(b"short"), opaque(&[7; 2000])] {
            let with = foe.credential(service);
            let message = foe.message(with, ECHO, &content);
            assert_eq!(foe.ask(with.0, &message), NO_MEMORY, "{service:?}");
        }
    }
    assert_eq!(server.calls(), before, "a call without memory was executed");
    none(&mut foe, RELEASE);
    foe.is_served();
}

/// A call whose data are to be fetched from `slice`, which stand behind its RPC message.
fn with_data(foe: &mut Foe, number: u32, slice: &RemoteSlice, alignment: Alignment) -> Vec<u8> {
    let length = slice.length.to_be_bytes();
    let message = foe.message((number, GssService::None), DATA, &length);
    let position = (message.len() - HEADER_BYTES) as u32;
    let lists = [&read_segment(position, *slice)[..], &NO_LISTS].concat();
    if alignment == Alignment::NONE {
        return [&transport(foe.xid, MSG, &lists), &message[HEADER_BYTES..]].concat();
    }
    let (header, at) = CallHeader::parse(&message[HEADER_BYTES..]).unwrap();
    padded_message(header.xid, alignment, &lists, |writer| {
        header.write(writer);
        writer.fixed(&message[HEADER_BYTES + at..]);
    })
}

/// Padded as well: the credential and the verifier have padding before them, which is not signed (RFC 5666 sections 3.9
/// and 11).
#[test]
fn a_call_for_whose_chunks_no_memory_comes_has_an_answer_that_its_client_believes() {
    starve(Profile::default(), Alignment::NONE);
    starve(Profile::Rfc5666, Alignment::new(64, 16));
}

/// RFC 2203 section 5.3.3.2, also where the core has waited for memory before it answers. A client would take an answer
/// without a verifier for a forged one.
fn starve(profile: Profile, alignment: Alignment) {
    let raw = small_with(|raw| {
        (raw.rpc.protocol, raw.rpc.ccp) = (profile, ConfigRole::Off);
        raw.fixed.memory_wait_ms = 20;
    });
    let server = Server::start_as(raw, Some(GssAcceptor::new(keys(Enctype::Aes256Sha1, "server"))));
    let mut foe = Foe::connect(&server);
    let slice = foe.peer.expose_kept(&[7; 1000], Access::RemoteRead);
    let (number, _) = foe.credential(GssService::None);
    let message = with_data(&mut foe, number, &slice, alignment);
    assert_eq!(foe.ask(number, &message), SUCCESS);
    let (number, _) = foe.credential(GssService::None);
    let held = foe.message((number, GssService::None), HOLD, &opaque(b""));
    assert_eq!(foe.ask(number, &held), SUCCESS);
    let before = server.calls();
    let (number, _) = foe.credential(GssService::None);
    let mut starved = with_data(&mut foe, number, &slice, alignment);
    // No number is used up by a forger, and nothing is signed for one.
    let (verifier, denied) = (starved.len() - 8, RejectStatus::AuthError(AuthStat::GssCredProblem));
    starved[verifier] ^= 1;
    assert_eq!(foe.ask(number, &starved), Answer::Denied(denied));
    starved[verifier] ^= 1;
    assert_eq!(foe.ask(number, &starved), NO_MEMORY);
    // What would be a verifier is among what is not there.
    for service in PROTECTED {
        let with = foe.credential(service);
        let _slice = foe.send_long(with, ECHO, &opaque(&[7; 2000]));
        assert_eq!(foe.hear(with.0), Answer::Rdma, "{service:?}");
    }
    assert_eq!(server.calls(), before, "a call without memory was executed");
    let (freed, _) = foe.credential(GssService::None);
    let release = foe.message((freed, GssService::None), RELEASE, &opaque(b""));
    assert_eq!(foe.ask(freed, &release), SUCCESS);
    foe.is_served();
    // Its number is used up, although it was not executed.
    assert_eq!(foe.ask(number, &starved), Answer::Down);
}
