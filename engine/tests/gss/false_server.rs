//! Servers that answer a client with a context as no server should, or tell it little.

use crate::WHO;
use crate::common::caller::{Caller, run_core};
use crate::hostile::{FalseServer, Spoils, opaque, seal, transport};
use spinrpc::fabric::RemoteSlice;
use spinrpc::{AcceptStatus, AuthFlavor, Backpressure, CallError, CallSpec, OpaqueAuth, Token};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::PeerMisbehaved;
use spinrpc_proto::rpc::{GssService, ReplyBody, ReplyHeader};

const NOMSG: u32 = 1;

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
        let mic = context.sign_reply(sequence);
        let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
        let status = AcceptStatus::Success;
        let header = ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } };
        let mut bytes = [0; 600];
        let length = header.emit(&mut bytes);
        let body = seal(context, service, sequence, &opaque(b"results"));
        let reply = [&bytes[..length], &body].concat();
        let [.., one, segments, handle, length, high, low] = calls[1].2[..] else { panic!() };
        assert_eq!((one, segments), (1, 1));
        let offset = u64::from(high) << 32 | u64::from(low);
        server.peer.write(&reply, RemoteSlice { handle, length, offset });
        let lists = [0, 0, 1, 1, handle, reply.len() as u32, high, low];
        server.peer.send(&transport(calls[1].0.0, NOMSG, &lists));
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

/// Flaw of a long reply.
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
    /// The reply with it.
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
        let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: &mic };
        let status = AcceptStatus::Success;
        let header = ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } };
        let mut bytes = [0; 600];
        let length = header.emit(&mut bytes);
        [&bytes[..length], &body].concat()
    }
}

/// More than is opened in one turn (`gss.step_bytes`).
const LONG: usize = 40_000;

#[test]
fn a_long_reply_with_a_flaw_ends_its_call_with_an_error_whichever_turn_finds_it() {
    use Flaw::{Body, Nothing, Sequence, Verifier};
    let flaws = [0, 1, 100, 500, 900, 999, 1000].map(Body);
    let others = [Nothing, Sequence, Verifier(2), Verifier(15), Verifier(27), Nothing];
    for service in [GssService::Integrity, GssService::Privacy] {
        let (mut client, mut server) = FalseServer::meet(service, 64);
        for flaw in others.into_iter().chain(flaws).chain([Nothing]) {
            let mut spec = CallSpec::new().reply_bytes_max(LONG + 8);
            client.client.call(WHO, Token(3), &mut spec, |args| args.opaque(b"")).unwrap();
            client.core.poll_once();
            let (xid, sequence, words) = server.hear_call();
            let reply = flaw.of(&server, service, xid, sequence);
            let [.., 1, 1, handle, length, high, low] = words[..] else { panic!("{words:?}") };
            let offset = u64::from(high) << 32 | u64::from(low);
            server.peer.write(&reply, RemoteSlice { handle, length, offset });
            let lists = [0, 0, 1, 1, handle, reply.len() as u32, high, low];
            server.peer.send(&transport(xid.0, NOMSG, &lists));
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
