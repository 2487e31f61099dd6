//! Servers that answer a client with a context as no server should, or tell it little.

use super::hostile::{accepted, follow};
use super::*;
use spinrpc_proto::events::PeerMisbehaved;

fn start(client: &mut Caller<Vec<u8>>, token: u64) -> Result<(), Backpressure> {
    let mut spec = CallSpec::new().reply_bytes_max(8192);
    let started = client.client.call(WHO, Token(token), &mut spec, |args| args.opaque(b""));
    client.core.poll_once();
    started.map(drop)
}

/// The server writes a reply into the chunk of the second of two calls: XID and protection are those of these calls.
#[test]
fn the_long_reply_to_another_call_reaches_no_handler() {
    for (named, protected) in [(1, 1), (0, 0), (1, 0)] {
        let service = GssService::Privacy;
        let (mut client, mut server) = FalseServer::meet(service, 64);
        let calls = [0, 1].map(|token| {
            start(&mut client, token).unwrap();
            server.hear_call()
        });
        let (sequence, xid) = (calls[protected].1, calls[named].0);
        let context = server.context.as_ref().unwrap();
        let body = seal(context, service, sequence, &opaque(b"results"));
        let reply = [server.reply_header(xid, sequence), body].concat();
        server.reply_in_chunk(&calls[1].2, &reply, reply.len() as u32);
        let (token, heard) = client.replies(1).remove(0);
        assert_eq!(token, 1);
        match (named, protected, heard) {
            (1, 1, Ok(data)) => assert_eq!(data, b"results"),
            (0, 0, Err(CallError::PeerMisbehaved(PeerMisbehaved::ForeignReply))) => {}
            (1, 0, Err(CallError::NotAuthentic)) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// RFC 2203 section 5.3.3.1. The number that is the window itself is not used: the server has signed it.
#[test]
fn a_client_stays_within_the_window_that_it_is_told() {
    let service = GssService::Integrity;
    let (mut client, mut server) = FalseServer::meet(service, 4);
    let mut calls = Vec::new();
    for token in 0..3 {
        start(&mut client, token).unwrap();
        calls.push(server.hear_call());
    }
    let full = |client: &mut Caller<Vec<u8>>| {
        for _ in 0..20 {
            assert_eq!(start(client, 9), Err(Backpressure::NoCredit));
        }
    };
    full(&mut client);
    // Not the lowest.
    server.answer_data(calls[1].0, calls[1].1, service, Spoils::Nothing);
    assert_eq!(client.replies(1)[0].0, 1);
    full(&mut client);
    server.answer_data(calls[0].0, calls[0].1, service, Spoils::Nothing);
    assert_eq!(client.replies(1)[0].0, 0);
    for token in 3..5 {
        start(&mut client, token).unwrap();
        calls.push(server.hear_call());
    }
    full(&mut client);
    let numbers: Vec<u32> = calls.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 5, 6]);
    for (xid, number, _) in &calls[2..] {
        server.answer_data(*xid, *number, service, Spoils::Nothing);
    }
    run_core(&mut client.core, "replies", || client.heard.borrow().replies.len() == 3);
    assert!(client.heard.borrow().replies.iter().all(|(_, reply)| reply.is_ok()));
}

impl FalseServer {
    /// Runs the client until it has sent a message, which stays to be heard.
    fn await_message(&mut self, client: &mut Caller<Vec<u8>>) {
        if let Said::Message(message) = follow(client, || self.peer.poll()) {
            self.peer.unhear(message);
        }
    }
}

/// The calls of a lost connection are sent one after the other, within the window. One that is denied meanwhile waits for another
/// context, and those behind it do not.
#[test]
fn a_call_that_is_denied_while_others_are_sent_again_does_not_go_before_them() {
    let ((address, listener), service) = (RawListener::new(), GssService::Integrity);
    let with = options(keys(ENCTYPE, "alice"), service).reconnect(Reconnect::default());
    let of = (ENCTYPE, service, 64, Alignment::NONE);
    let (mut client, mut server) =
        FalseServer::raise(&listener, asked(&address, &with), of, Spoils::Nothing);
    let xids = [0, 1].map(|token| {
        let mut spec = CallSpec::short().resend(Resend::AtLeastOnce);
        client.client.call(WHO, Token(token), &mut spec, |args| args.opaque(b"")).unwrap();
        client.core.poll_once();
        server.hear_call().0
    });
    server.peer.close();
    drop(server);
    let peer = follow(&mut client, || listener.try_accept());
    let mut server = FalseServer::of(peer);
    server.window = 1;
    let answer = |client: &mut Caller<Vec<u8>>, server: &mut FalseServer| {
        server.await_message(client);
        server.answer(service, Spoils::Nothing);
    };
    // The NULL call, and the context.
    answer(&mut client, &mut server);
    answer(&mut client, &mut server);
    server.await_message(&mut client);
    assert_eq!(server.hear_call().0, xids[0]);
    server.deny(xids[0], RejectStatus::AuthError(AuthStat::GssCredProblem));
    server.await_message(&mut client);
    let (xid, sequence, _) = server.hear_call();
    assert_eq!(xid, xids[1], "the denied call under the context that has gone");
    server.answer_data(xid, sequence, service, Spoils::Nothing);
    // Another context, and the call that was denied.
    answer(&mut client, &mut server);
    answer(&mut client, &mut server);
    let replies = client.replies(2);
    assert!(replies.iter().all(|(_, reply)| reply.is_ok()), "{replies:?}");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    Nothing,
    /// It has the sequence number of the previous call, like a stored reply that was not sealed again.
    Sequence,
    /// A bit of this byte of the verifier.
    Verifier(usize),
    /// A bit of the body, at so many thousandths of its length.
    Body(usize),
}

impl Flaw {
    fn of(self, server: &FalseServer, service: GssService, xid: Xid, sequence: u32) -> Vec<u8> {
        let sequence = sequence - u32::from(self == Self::Sequence);
        let context = server.context.as_ref().unwrap();
        let mut mic = context.sign_reply(sequence).as_slice().to_vec();
        let mut body = seal(context, service, sequence, &opaque(&vec![7; LONG]));
        match self {
            Self::Verifier(at) => mic[at] ^= 0x10,
            Self::Body(thousandths) => {
                let at = (body.len() - 1) * thousandths / 1000;
                body[at] ^= 1;
            }
            Self::Nothing | Self::Sequence => {}
        }
        [accepted(xid, &mic), body].concat()
    }
}

/// More than a core opens itself (`Config::gss_at_once_bytes`).
const LONG: usize = 40_000;
#[test]
fn a_long_reply_with_a_flaw_ends_its_call_with_an_error() {
    use Flaw::{Body, Nothing, Sequence, Verifier};
    let flaws = [0, 1, 100, 500, 900, 999, 1000].map(Body);
    let others = [Nothing, Sequence, Verifier(2), Verifier(15), Verifier(27), Nothing];
    for service in [GssService::Integrity, GssService::Privacy] {
        let (mut client, mut server) = FalseServer::meet(service, 64);
        for flaw in others.into_iter().chain(flaws).chain([Nothing]) {
            let spec = CallSpec::new().reply_bytes_max(LONG + 8);
            let (xid, sequence, words) = server.called_by(&mut client, spec);
            let reply = flaw.of(&server, service, xid, sequence);
            server.reply_in_chunk(&words, &reply, reply.len() as u32);
            match (flaw, client.reply()) {
                (Nothing, Ok(data)) => assert_eq!(data, vec![7; LONG], "{service:?}"),
                (Nothing, Err(error)) => panic!("{service:?}: {error}"),
                (_, Err(CallError::NotAuthentic)) => {}
                (_, other) => panic!("{service:?} {flaw:?}: {other:?}"),
            }
        }
        let stats = client.engine.gss_stats();
        assert_eq!((stats.replies_forged, stats.contexts_established), (11, 1), "{stats:?}");
    }
}

/// Room for results of this length in a reply with the longest verifier (RFC 5531 section 8.2).
fn longest_reply_bytes(server: &FalseServer, service: GssService, results_bytes: usize) -> usize {
    const HEADER_BYTES: usize = 24 + 400;
    let keys = server.context.as_ref().unwrap().send_keys();
    HEADER_BYTES + sealed_bytes(service, keys, results_bytes)
}

/// Length of the Reply chunk in the words of a transport header; the other words of the lists are checked.
fn reply_chunk_bytes(reply_list: &[u32]) -> Option<usize> {
    match *reply_list {
        [0] => None,
        [1, 1, _, length, _, _] => Some(length as usize),
        _ => panic!("{reply_list:x?}"),
    }
}

/// What an application asks for is the length of results: room for verifier and frame of the body is added to it (RFC 8166
/// section 8.2.2.2), where it is decided that there is a Reply chunk, and in its length.
#[test]
fn a_reply_of_the_length_that_was_asked_for_has_room_under_any_verifier() {
    const INLINE_BYTES: usize = 4096 - HEADER_BYTES;
    for enctype in [Enctype::Aes256Sha1, Enctype::Aes256Sha384] {
        for service in [GssService::Integrity, GssService::Privacy] {
            let (mut client, mut server) = FalseServer::meet_with(enctype, service, 64);
            let mut without = 0;
            for bytes in (3500..3660).chain(8189..8193) {
                let spec = CallSpec::new().reply_bytes_max(bytes);
                let (xid, sequence, words) = server.called_by(&mut client, spec);
                let longest = longest_reply_bytes(&server, service, bytes);
                let offered = reply_chunk_bytes(&words[6..]);
                without += usize::from(offered.is_none());
                let room = offered.unwrap_or(INLINE_BYTES);
                assert!(room >= longest, "{enctype:?} {service:?} {bytes}: {room} of {longest}");
                server.answer_data(xid, sequence, service, Spoils::Nothing);
                assert_eq!(client.reply().unwrap(), b"results");
            }
            assert!(without > 0, "{service:?}: no reply was to fit inline");
        }
    }
}

/// The same for a call that a thread seals.
#[test]
fn the_reply_to_a_call_that_a_thread_seals_has_room_under_any_verifier() {
    const RESULTS_BYTES: usize = 8189;
    for service in [GssService::Integrity, GssService::Privacy] {
        let (mut client, mut server) = FalseServer::meet_with(Enctype::Aes256Sha384, service, 64);
        let mut spec = CallSpec::new().reply_bytes_max(RESULTS_BYTES);
        let data = vec![7; LONG];
        client.client.call(ECHO, Token(3), &mut spec, |args| args.opaque(&data)).unwrap();
        let mut heard = None;
        wait_until("the call", || {
            client.core.poll_once();
            heard = server.peer.poll();
            heard.is_some()
        });
        let words = heard.unwrap().words();
        let mut lists = &words[4..];
        while let [1, 0, _, _, _, _, rest @ ..] = lists {
            lists = rest;
        }
        assert_eq!((words[3], &lists[..2]), (NOMSG, &[0, 0][..]), "{words:x?}");
        let longest = longest_reply_bytes(&server, service, RESULTS_BYTES);
        let room = reply_chunk_bytes(&lists[2..]).expect("a Reply chunk");
        assert!(room >= longest, "{service:?}: {room} of {longest}");
    }
}
