//! Contexts of Kerberos by MIT's library, in realms that are made for the tests.
//!
//! Needs krb5-kdc, krb5-admin-server, krb5-user and a C compiler.
#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests")]

mod errors;
mod peer;
#[allow(dead_code, reason = "what other tests of it need beyond this")]
mod realm;

use peer::Peer;
use realm::{Home, Realm, in_realm, source};
use spinrpc_gss::context::{Context, ContextWindow, Established};
use spinrpc_gss::library::{AcceptorOptions, Fault, InitiatorOptions, Kerberos};
use spinrpc_gss::mechanism::{GoOn, Mechanism, MechanismError, Negotiation};
use spinrpc_gss::random::{AesConfounders, Confounders};
use spinrpc_gss::{Enctype, Role, WRAP_HEAD_BYTES};
use spinrpc_proto::ids::Instant;
use std::net::TcpListener;
use std::process::Command;

const NOW: Instant = Instant(5_000_000_000);
const SECOND: u64 = 1_000_000_000;
/// What `krb5.conf` allows clocks to differ unless it says otherwise.
const SKEW: u64 = 300;
const MUTUAL: u32 = 2;
/// Replay and sequence detection.
const DETECTION: u32 = 4 | 8;
/// Enctypes by number, as krb5.conf calls them.
const ENCTYPES: [(i32, &str); 4] = [
    (17, "aes128-cts-hmac-sha1-96"),
    (18, AES),
    (19, "aes128-cts-hmac-sha256-128"),
    (20, "aes256-cts-hmac-sha384-192"),
];
const AES: &str = "aes256-cts-hmac-sha1-96";
const TARGET: &str = "nfs@localhost";

fn acceptor(home: &Home) -> Kerberos {
    let options = AcceptorOptions::new().keytab(home.path("nfs.keytab")).service("nfs");
    Kerberos::acceptor(options).unwrap()
}

fn initiator(cache: &str) -> Kerberos {
    Kerberos::initiator(InitiatorOptions::new().cache(cache)).unwrap()
}

fn first(client: &Kerberos, target: &str) -> Result<(GoOn, Vec<u8>), MechanismError> {
    match client.begin(target, NOW)? {
        Negotiation::Continue(go_on, token) => Ok((go_on, token)),
        Negotiation::Complete(..) => panic!("a context without an answer of the server"),
    }
}

fn accept(server: &Kerberos, token: &[u8]) -> Result<(Established, Vec<u8>), MechanismError> {
    Ok(complete_of(server.accept(token, NOW)?))
}

fn complete(go_on: GoOn, answer: &[u8]) -> Result<Established, MechanismError> {
    Ok(complete_of(go_on(answer, NOW)?).0)
}

fn complete_of(negotiation: Negotiation) -> (Established, Vec<u8>) {
    match negotiation {
        Negotiation::Complete(established, token) => (established, token),
        Negotiation::Continue(..) => panic!("a context of several tokens"),
    }
}

fn establish(
    client: &Kerberos,
    server: &Kerberos,
    target: &str,
) -> Result<(Established, Established), MechanismError> {
    let (state, token) = first(client, target)?;
    let (theirs, answer) = accept(server, &token)?;
    Ok((complete(state, &answer)?, theirs))
}

#[track_caller]
fn assert_contexts_agree(ours: Established, theirs: Established) {
    let (client, server) =
        (Context::new(Role::Initiator, ours), Context::new(Role::Acceptor, theirs));
    let window = server.sign_reply(ContextWindow::TOLD);
    assert_eq!(client.verify_reply(ContextWindow::TOLD, window.as_slice()), Ok(()));
}

#[test]
fn contexts_of_every_encryption_type() {
    for (number, name) in ENCTYPES {
        in_realm(name, |home| {
            let client = initiator(&home.kinit("alice", &["-l", "3h"]));
            let (ours, theirs) = establish(&client, &acceptor(home), TARGET).unwrap();
            let enctype = Enctype::from_number(number).unwrap();
            assert_eq!((ours.key.enctype(), theirs.key.enctype()), (enctype, enctype));
            assert!(ours.acceptor_subkey && theirs.acceptor_subkey);
            assert_eq!((ours.peer.as_str(), &*theirs.peer), ("nfs/localhost", "alice@SPIN.TEST"));
            assert_contexts_agree(ours, theirs);
        });
    }
}

/// Tokens of the exported keys, taken by a context of the library that was not exported, and the other way.
fn exchange(context: &Context, peer: &mut Peer) {
    let mut confounders = AesConfounders::new(&[7; 32]);
    for length in [0, 1, 15, 16, 17, 64, 300, 4096] {
        let message: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        let (send, receive) = (context.send_keys(), context.receive_keys());
        let mic = send.mic(&message, context.next_counter());
        assert!(peer.verifies(&message, mic.as_slice()), "MIC of {length} bytes");
        assert!(!peer.verifies(b"another message", mic.as_slice()));
        let mut token = vec![0; send.wrap_bytes(length)];
        token[WRAP_HEAD_BYTES..][..length].copy_from_slice(&message);
        send.wrap(&mut token, context.next_counter(), confounders.next()).unwrap();
        assert_eq!(peer.unwrap(&token), message);
        receive.verify(&message, &peer.mic(&message)).unwrap();
        let mut token = peer.wrap(&message);
        let place = receive.unwrap(&mut token).unwrap();
        assert_eq!(token[place], message);
    }
}

/// Also: mutual authentication is asked for, replay and sequence detection are not (RFC 2203 section 5.2.2).
#[test]
fn an_initiator_talks_to_a_server_of_the_library() {
    for (_, name) in ENCTYPES {
        in_realm(name, |home| {
            std::fs::copy(home.path("nfs.keytab"), home.path("default-keytab")).unwrap();
            let client = initiator(&home.kinit("alice", &[]));
            let mut peer = Peer::start(home, "accept", TARGET);
            let (state, token) = first(&client, TARGET).unwrap();
            let (flags, answer) = peer.token(&token);
            assert_eq!((flags & MUTUAL, flags & DETECTION), (MUTUAL, 0));
            let established = complete(state, &answer).unwrap();
            exchange(&Context::new(Role::Initiator, established), &mut peer);
        });
    }
}

#[test]
fn an_acceptor_talks_to_a_client_of_the_library() {
    for (_, name) in ENCTYPES {
        in_realm(name, |home| {
            let cache = home.kinit("bob", &[]);
            std::fs::rename(cache.trim_start_matches("FILE:"), home.path("default-cache")).unwrap();
            let mut peer = Peer::start(home, "initiate", TARGET);
            let (_, token) = peer.token(&[]);
            let (established, answer) = accept(&acceptor(home), &token).unwrap();
            assert_eq!(established.peer, "bob@SPIN.TEST");
            assert_eq!(peer.token(&answer).1, []);
            exchange(&Context::new(Role::Acceptor, established), &mut peer);
        });
    }
}

/// An acceptor adds the clock skew that is allowed.
#[test]
fn a_context_ends_with_its_ticket() {
    in_realm(AES, |home| {
        let client = initiator(&home.kinit("alice", &["-l", "1h"]));
        let (ours, theirs) = establish(&client, &acceptor(home), TARGET).unwrap();
        // The ticket is a few seconds old at most; the test would have been given up before a minute.
        for (expires, hour) in [(ours.expires, 3600), (theirs.expires, 3600 + SKEW)] {
            let seconds = (expires.0 - NOW.0) / SECOND;
            assert!((hour - 60..=hour).contains(&seconds), "{seconds} s, of {hour}");
        }
    });
}

#[test]
fn two_principals_and_a_machine_over_one_acceptor() {
    in_realm(AES, |home| {
        let server = acceptor(home);
        let users = ["alice", "bob"].map(|user| initiator(&home.kinit(user, &[])));
        let options = InitiatorOptions::new().keytab(home.path("client.keytab"));
        let machine = Kerberos::initiator(options.clone().principal("host/client")).unwrap();
        let first_of_keytab = Kerberos::initiator(options).unwrap();
        let [alice, bob] = &users;
        for client in [alice, bob, &machine, &first_of_keytab, alice] {
            let (ours, theirs) = establish(client, &server, TARGET).unwrap();
            let expected = match client {
                client if core::ptr::eq(client, alice) => "alice@SPIN.TEST",
                client if core::ptr::eq(client, bob) => "bob@SPIN.TEST",
                _ => "host/client@SPIN.TEST",
            };
            assert_eq!(theirs.peer, expected);
            assert_contexts_agree(ours, theirs);
        }
        let principal = establish(alice, &server, "nfs/localhost@SPIN.TEST").unwrap().0.peer;
        assert_eq!(principal, "nfs/localhost@SPIN.TEST");
    });
}

/// The default cache and keytab, when nothing is named.
#[test]
fn what_is_not_named_is_the_systems() {
    in_realm(AES, |home| {
        let cache = home.kinit("alice", &[]);
        std::fs::rename(cache.trim_start_matches("FILE:"), home.path("default-cache")).unwrap();
        std::fs::copy(home.path("nfs.keytab"), home.path("default-keytab")).unwrap();
        let client = Kerberos::initiator(InitiatorOptions::new()).unwrap();
        let server = Kerberos::acceptor(AcceptorOptions::new()).unwrap();
        assert_eq!(establish(&client, &server, TARGET).unwrap().1.peer, "alice@SPIN.TEST");
    });
}

/// Keys are replaced in a keytab while a server runs, and users obtain tickets after a client has begun.
#[test]
fn new_keys_and_tickets_need_no_restart() {
    in_realm(AES, |home| {
        let server = acceptor(home);
        let client = initiator(&format!("FILE:{}", home.path("cache-alice")));
        assert!(client.begin(TARGET, NOW).is_err());
        home.kinit("alice", &[]);
        establish(&client, &server, TARGET).unwrap();
        home.kadmin(&format!("ktadd -k {} nfs/localhost", home.path("nfs.keytab")));
        home.kinit("alice", &[]);
        establish(&client, &server, TARGET).unwrap();
    });
}

/// There is no replay cache. A replayed token makes a context of another key, which the sender does not learn.
#[test]
fn a_replayed_token_makes_another_key() {
    in_realm(AES, |home| {
        let (client, server) = (initiator(&home.kinit("alice", &[])), acceptor(home));
        let (state, token) = first(&client, TARGET).unwrap();
        let (theirs, answer) = accept(&server, &token).unwrap();
        let (replayed, _) = accept(&server, &token).unwrap();
        let ours = complete(state, &answer).unwrap();
        let (ours, replayed) =
            (Context::new(Role::Initiator, ours), Context::new(Role::Acceptor, replayed));
        assert!(ours.verify_reply(1, replayed.sign_reply(1).as_slice()).is_err());
        let theirs = Context::new(Role::Acceptor, theirs);
        assert!(ours.verify_reply(1, theirs.sign_reply(1).as_slice()).is_ok());
    });
}

#[test]
fn threads_establish_contexts_at_once() {
    in_realm(AES, |home| {
        let cache = home.kinit("alice", &[]);
        // Threads then only read the cache. Under valgrind, one that waits for its lock stops all others.
        home.run("kvno", &["-q", "-c", &cache, "nfs/localhost"]);
        let (client, server) = (initiator(&cache), acceptor(home));
        let work = || {
            for _ in 0..50 {
                let (ours, theirs) = establish(&client, &server, TARGET).unwrap();
                assert_contexts_agree(ours, theirs);
            }
        };
        // Panics when one of them has.
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    });
}

/// What is declared by hand is what the headers of the library have.
#[test]
fn declarations_agree_with_the_headers() {
    let mut command = Command::new("cc");
    let output = command.arg("-fsyntax-only").arg(source("declarations.c")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The kind of an error, as an engine learns it from the status.
fn fault(error: &MechanismError) -> Fault {
    Fault::from_status(error.major, error.minor)
}

/// Ports are free when they are looked for, and other programs may take them before the KDC does.
#[test]
fn a_realm_whose_port_is_taken_gets_another() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let realm = Realm::with_taken_port("a_realm_whose_port_is_taken_gets_another", AES, port);
    realm.home().kinit("alice", &[]);
}
