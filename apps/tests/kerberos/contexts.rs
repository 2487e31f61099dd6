//! Contexts that are established over TCP, as Linux clients do, and what else may arrive there.

use crate::realm::{Home, in_realm};
use crate::server::{Place, Server};
use crate::{AES256, serve};
use spinrpc::gss::mechanism::{Mechanism, Negotiation};
use spinrpc::gss::{InitiatorOptions, Instant, Kerberos};
use spinrpc::rpcbind::record;
use spinrpc_gss::Role;
use spinrpc_gss::context::Context;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const GSS: u32 = 6;
const NFS: u32 = 100_003;
const DENIED: u32 = 1;
const GARBAGE_ARGS: u32 = 4;
const PROC_UNAVAIL: u32 = 3;
const NULL: u32 = 0;
const GETATTR: u32 = 1;
const NOW: Instant = Instant(0);

fn start(place: &Place, home: &Home) -> (Server, SocketAddr) {
    start_with(place, home, &["--memory=m:client=127.0.0.1,sec=krb5"])
}

fn start_with(place: &Place, home: &Home, options: &[&str]) -> (Server, SocketAddr) {
    let server = serve(place, home, &[options, &["--gss-port=127.0.0.1:0"]].concat());
    let at = |line: &String| line.strip_prefix("kerberos contexts by tcp at ")?.parse().ok();
    let address = server.said.iter().find_map(at).unwrap();
    (server, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut padded = [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    padded.resize(padded.len().next_multiple_of(4), 0);
    padded
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().copied().flat_map(u32::to_be_bytes).collect()
}

/// A call with this credential, and AUTH_NONE as its verifier.
fn message(program: u32, procedure: u32, (flavor, body): (u32, &[u8]), args: &[u8]) -> Vec<u8> {
    let head = words(&[7, 0, 2, program, 3, procedure, flavor]);
    [head, opaque(body), words(&[0, 0]), args.to_vec()].concat()
}

/// Body of a credential of RPCSEC_GSS: version 1, procedure, sequence number, svc_none, handle.
fn credential(procedure: u32, handle: &[u8]) -> Vec<u8> {
    [words(&[1, procedure, 1, 1]), opaque(handle)].concat()
}

const DATA: u32 = 0;
const INIT: u32 = 1;
const CONTINUE_INIT: u32 = 2;
const DESTROY: u32 = 3;

fn exchange(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    stream.write_all(&record::mark(message).unwrap()).unwrap();
    record::read(stream).unwrap()
}

/// `reply_stat`, and `accept_stat` with its place or `auth_stat`.
fn status(reply: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4)), (7, 1));
    match word(8) {
        DENIED => (DENIED, word(16)),
        accepted => (accepted, word(20 + word(16).next_multiple_of(4) as usize)),
    }
}

/// Handle and token of a context that is there.
fn parse_init(reply: &[u8]) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(status(reply), (0, 0));
    let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    let mut at = 24 + word(16).next_multiple_of(4) as usize;
    let mut take = || {
        let length = word(at) as usize;
        let bytes = reply[at + 4..at + 4 + length].to_vec();
        at += 4 + length.next_multiple_of(4);
        bytes
    };
    let handle = take();
    let after = 24 + word(16).next_multiple_of(4) as usize + 4 + handle.len().next_multiple_of(4);
    assert_eq!((word(after), word(12)), (0, GSS), "GSS_S_COMPLETE, with a verifier");
    let token_at = after + 12;
    let length = word(token_at) as usize;
    (handle, reply[token_at + 4..token_at + 4 + length].to_vec())
}

#[test]
fn a_context_is_established_as_linux_does() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-tcp");
        let (_server, address) = start(&place, home);
        let options = InitiatorOptions::new().cache(home.kinit("alice", &["-l", "3h"]));
        let user = Kerberos::initiator(options).unwrap();
        let mut stream = connect(address);
        let Negotiation::Continue(go_on, token) = user.begin("nfs@localhost", NOW).unwrap() else {
            panic!("no token")
        };
        let init = message(NFS, NULL, (GSS, &credential(INIT, &[])), &opaque(&token));
        let (handle, token) = parse_init(&exchange(&mut stream, &init));
        let established = go_on(&token, NOW).unwrap();
        let Negotiation::Complete(established, _) = established else { panic!("not complete") };
        assert!(established.peer.starts_with("nfs/localhost"), "{}", established.peer);
        let context = Context::new(Role::Initiator, established);
        // A call without the verifier of the context, or with a wrong one, does nothing to it.
        for procedure in [DATA, DESTROY] {
            let forged = message(NFS, NULL, (GSS, &credential(procedure, &handle)), &[]);
            assert_eq!(status(&exchange(&mut stream, &forged)), (DENIED, 13));
            let mut forged = signed(&context, procedure, &handle);
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(status(&exchange(&mut stream, &forged)), (DENIED, 13));
        }
        for (procedure, expected) in [(DATA, (0, 0)), (DESTROY, (0, 0)), (DATA, (DENIED, 13))] {
            let call = signed(&context, procedure, &handle);
            assert_eq!(status(&exchange(&mut stream, &call)), expected, "{procedure}");
        }
    });
}

/// NULL with the verifier of its context.
fn signed(context: &Context, procedure: u32, handle: &[u8]) -> Vec<u8> {
    let sequence = context.peek_sequence(0).unwrap();
    context.take_sequence(sequence);
    let credential = [words(&[1, procedure, sequence, 1]), opaque(handle)].concat();
    let head = [words(&[7, 0, 2, NFS, 3, NULL, GSS]), opaque(&credential)].concat();
    let mic = context.sign_call(&head);
    // Its length is a multiple of four, so that its last byte is that of the message.
    assert_eq!(mic.as_slice().len() % 4, 0);
    [head, words(&[GSS]), opaque(mic.as_slice())].concat()
}

#[test]
fn what_does_not_establish_a_context_is_refused() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-tcp-hostile");
        let (_server, address) = start(&place, home);
        let mut stream = connect(address);
        let none = (0, &[][..]);
        assert_eq!(status(&exchange(&mut stream, &message(NFS, NULL, none, &[]))), (0, 0));
        let mut answer = |message: &[u8]| status(&exchange(&mut stream, message));
        assert_eq!(answer(&message(NFS, GETATTR, none, &opaque(&[1]))), (0, PROC_UNAVAIL));
        assert_eq!(answer(&message(NFS, NULL, none, &[0; 4])), (0, GARBAGE_ARGS));
        assert_eq!(answer(&message(100_005, NULL, none, &[])), (0, 1), "PROG_UNAVAIL");
        let gss = |procedure, handle: &[u8], args: &[u8]| {
            message(NFS, NULL, (GSS, &credential(procedure, handle)), args)
        };
        // Handles that there are not, and credentials that cannot be read.
        assert_eq!(answer(&gss(DATA, &[9; 16], &[])), (DENIED, 13));
        assert_eq!(answer(&gss(DESTROY, &[9; 16], &[])), (DENIED, 13));
        assert_eq!(answer(&message(NFS, NULL, (GSS, &[1, 2, 3]), &[])), (DENIED, 1));
        assert_eq!(answer(&gss(INIT, &[], &[1])), (0, GARBAGE_ARGS));
        assert_eq!(answer(&gss(7, &[], &[])), (DENIED, 1));
        // Tokens of no use are refused in the results; so is one for a context that was never begun.
        for (procedure, handle) in [(INIT, &[][..]), (CONTINUE_INIT, &[1; 12])] {
            let reply = exchange(&mut stream, &gss(procedure, handle, &opaque(&[0x60; 60_000])));
            assert_eq!(status(&reply), (0, 0));
            assert_eq!(reply[24..28], [0; 4], "no handle");
            assert_ne!(reply[28..32], [0; 4], "a major status");
        }
        // What is no call, and what is longer than any, costs its own connection.
        for bytes in [&[0xff; 64][..], &record::mark(&words(&[7, 1, 0, 0])).unwrap()] {
            let mut hostile = connect(address);
            hostile.write_all(bytes).unwrap();
            assert_closed(&mut hostile);
        }
        assert_eq!(status(&exchange(&mut stream, &message(NFS, NULL, none, &[]))), (0, 0));
    });
}

#[track_caller]
fn assert_closed(stream: &mut TcpStream) {
    let ended = stream.read(&mut [0; 64]);
    let reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
    assert!(matches!(ended, Ok(0)) || ended.as_ref().is_err_and(reset), "{ended:?}");
}

#[test]
fn clients_of_exports_without_kerberos_get_no_connection() {
    in_realm(AES256, |home| {
        let place = Place::new("krb5-tcp-clients");
        let others =
            ["--memory=m:client=127.0.0.1,sec=sys", "--memory=k:client=127.0.0.9,sec=krb5"];
        let (_server, address) = start_with(&place, home, &others);
        assert_closed(&mut connect(address));
    });
}
