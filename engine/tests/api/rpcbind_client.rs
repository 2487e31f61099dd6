//! The rpcbind client (RFC 1833) against a daemon that follows the text, and against others.

#[path = "../common/rpcbind_daemon.rs"]
mod rpcbind_daemon;

use rpcbind_daemon::{RpcbindDaemon, Socket, read_record, string, success, words};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use spinrpc::rpcbind::wire::{Entry, VERSION_2, VERSION_3, VERSION_4};
use spinrpc::rpcbind::{
    Client, Daemon, Endpoint, How, Netid, Registration, RpcbindError, find_service,
};
use spinrpc::{Program, Version};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const PROGRAM: Program = Program(0x2000_0001);
const VERSION: Version = Version(7);

/// Longer than anything takes that is answered at all.
const PATIENCE: Duration = Duration::from_secs(30);

fn daemon(fake: &RpcbindDaemon) -> Daemon {
    fake.address().parse().unwrap()
}

fn client(fake: &RpcbindDaemon) -> Client {
    Client::connect(&daemon(fake), PATIENCE).unwrap()
}

fn shm(address: &str) -> Endpoint {
    Endpoint::parse(Netid::Shm, address).unwrap()
}

fn entry(netid: &str, address: &str) -> Entry {
    let (netid, address) = (netid.to_owned(), address.to_owned());
    Entry { program: PROGRAM, version: VERSION, netid, address, owner: String::new() }
}

/// R5666-71: the netids `rdma` and `rdma6` are used on RDMA networks.
#[test]
fn what_is_registered_is_found_under_its_netid() {
    let fake = RpcbindDaemon::start(2..=4).unwrap();
    let endpoints = [
        Endpoint::Ip("192.0.2.1:20049".parse().unwrap()),
        Endpoint::Ip("[2001:db8::1]:20049".parse().unwrap()),
        shm("shm:here"),
    ];
    let registrations = endpoints
        .clone()
        .map(|endpoint| Registration::new(&daemon(&fake), PROGRAM, VERSION, &endpoint).unwrap());
    let rows: Vec<_> = fake.rows().into_iter().map(|row| (row.2, row.3)).collect();
    let expected =
        [("rdma", "192.0.2.1.78.81"), ("rdma6", "2001:db8::1.78.81"), ("spinrpc-shm", "shm:here")];
    assert_eq!(rows, expected.map(|(netid, address)| (netid.to_owned(), address.to_owned())));
    for endpoint in endpoints {
        let how = How::Rpcbind(&daemon(&fake));
        let found = find_service(PROGRAM, VERSION, endpoint.netid(), how).unwrap();
        assert_eq!(found, endpoint);
    }
    drop(registrations);
    assert_eq!(fake.rows(), []);
}

#[test]
fn a_call_is_what_rfc_1833_and_rfc_5531_say() {
    let fake = RpcbindDaemon::start(4..=4).unwrap();
    let mut client = client(&fake);
    assert!(client.set(&entry("rdma", "192.0.2.1.78.81")).unwrap());
    let header = |xid, procedure| words(&[xid, 0, 2, 100_000, 4, procedure, 0, 0, 0, 0]);
    let args = [words(&[0x2000_0001, 7]), string("rdma"), string("192.0.2.1.78.81"), string("")];
    let set = [header(2, 1), args.concat()].concat();
    assert_eq!(fake.calls(), [header(1, 0), set]);
}

#[test]
fn receive_prog_mismatch_expect_the_next_lower_version() {
    for (spoken, expected) in [(2..=4, VERSION_4), (3..=3, VERSION_3), (2..=2, VERSION_2)] {
        let fake = RpcbindDaemon::start(spoken).unwrap();
        assert_eq!(client(&fake).version(), expected);
    }
    let fake = RpcbindDaemon::start(5..=9).unwrap();
    let error = Client::connect(&daemon(&fake), PATIENCE).unwrap_err();
    assert!(matches!(error, RpcbindError::Misbehaved { .. }), "{error}");
}

#[test]
fn version_3_finds_what_version_4_registered() {
    let fake = RpcbindDaemon::start(2..=4).unwrap();
    let mut old = Client::connect_with(&daemon(&fake), PATIENCE, VERSION_3).unwrap();
    assert!(client(&fake).set(&entry("rdma6", "::.78.81")).unwrap());
    let found = old.find(PROGRAM, VERSION, Netid::Rdma6).unwrap();
    assert_eq!((old.version(), found.universal().as_str()), (VERSION_3, "::.78.81"));
}

#[test]
fn version_2_serves_tcp_and_refuses_rdma_rather_than_taking_tcp_for_it() {
    let fake = RpcbindDaemon::start(2..=2).unwrap();
    let mut client = client(&fake);
    let tcp = entry("tcp", "0.0.0.0.8.1");
    assert_eq!(client.address(PROGRAM, VERSION).unwrap(), None);
    assert!(client.set(&tcp).unwrap());
    assert_eq!(client.address(PROGRAM, VERSION).unwrap(), Some("0.0.0.0.8.1".into()));
    assert_eq!(client.dump().unwrap(), std::slice::from_ref(&tcp));
    client.null().unwrap();
    for error in [
        client.find(PROGRAM, VERSION, Netid::Rdma).unwrap_err(),
        client.set(&entry("rdma6", "::.78.81")).unwrap_err(),
        Registration::new(&daemon(&fake), PROGRAM, VERSION, &shm("shm:a")).unwrap_err(),
    ] {
        assert!(matches!(error, RpcbindError::TooOld { .. }), "{error}");
    }
    assert!(client.unset(&tcp).unwrap());
    assert_eq!(client.dump().unwrap(), []);
}

/// Like a killed server's, the first registration does not end before the next one begins.
#[test]
fn a_registration_that_was_replaced_leaves_its_successor_alone() {
    let fake = RpcbindDaemon::start(2..=4).unwrap();
    let first = Registration::new(&daemon(&fake), PROGRAM, VERSION, &shm("shm:a")).unwrap();
    let second = Registration::new(&daemon(&fake), PROGRAM, VERSION, &shm("shm:b")).unwrap();
    assert_eq!(second.replaced(), Some("shm:a"));
    first.end().unwrap();
    assert_eq!(client(&fake).find(PROGRAM, VERSION, Netid::Shm).unwrap(), shm("shm:b"));
    second.end().unwrap();
    assert_eq!(fake.rows(), []);
}

#[test]
fn what_another_user_registered_stays_and_the_error_names_it() {
    let fake = RpcbindDaemon::start(2..=4).unwrap();
    fake.add(PROGRAM.0, VERSION.0, "spinrpc-shm", "shm:theirs\x1b[2J", "4711");
    let error = Registration::new(&daemon(&fake), PROGRAM, VERSION, &shm("shm:a")).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("4711") && text.contains("shm:theirs") && !text.contains('\x1b'),
        "{text}"
    );
    assert_eq!(fake.rows().len(), 1);
}

#[test]
fn a_registered_address_that_is_none_is_an_error_and_hides_no_other() {
    let fake = RpcbindDaemon::start(2..=4).unwrap();
    fake.add(PROGRAM.0, VERSION.0, "rdma", "1.2.3.4", "0");
    fake.add(PROGRAM.0, VERSION.0, &"x".repeat(20_000), "", "");
    fake.add(PROGRAM.0, VERSION.0, "rdma6", "::1.78.81", "0");
    let mut client = client(&fake);
    let error = client.find(PROGRAM, VERSION, Netid::Rdma).unwrap_err();
    assert!(matches!(error, RpcbindError::Address(_)), "{error}");
    assert!(client.find(PROGRAM, VERSION, Netid::Rdma6).is_ok());
    let error = client.find(PROGRAM, Version(8), Netid::Rdma6).unwrap_err();
    assert!(matches!(error, RpcbindError::NotRegistered { .. }), "{error}");
}

/// Connects to a daemon that does `misbehave` after the first call.
fn connect_to(misbehave: impl Fn(UnixStream, u32) + Send + Sync + 'static) -> RpcbindError {
    connect_within(PATIENCE, misbehave)
}

fn connect_within(
    timeout: Duration,
    misbehave: impl Fn(UnixStream, u32) + Send + Sync + 'static,
) -> RpcbindError {
    let socket = Socket::start(move |mut stream| {
        let Ok(call) = read_record(&mut stream) else { return };
        let xid = u32::from_be_bytes(*call.first_chunk().unwrap());
        misbehave(stream, xid);
    });
    let socket = socket.unwrap();
    Client::connect(&Daemon::Unix(socket.path().into()), timeout).unwrap_err()
}

/// Connects to a daemon that answers the first call with these bytes.
fn answered(reply: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> RpcbindError {
    connect_to(move |mut stream, xid| {
        let reply = reply(xid);
        let mark = 0x8000_0000 | reply.len() as u32;
        drop(stream.write_all(&[words(&[mark]), reply].concat()));
    })
}

#[track_caller]
fn expect_misbehaved(error: &RpcbindError, because: &str) {
    let is_so = matches!(error, RpcbindError::Misbehaved { .. });
    assert!(is_so && error.to_string().contains(because), "{error}");
}

#[test]
fn receive_what_is_no_reply_expect_blame() {
    expect_misbehaved(&answered(|xid| success(xid + 1, &[])), "answered call");
    expect_misbehaved(&answered(|_| Vec::new()), "decoded");
    expect_misbehaved(&answered(|xid| words(&[xid, 0, 2, 100_000, 4, 0, 0, 0, 0, 0])), "decoded");
    expect_misbehaved(&answered(|xid| success(xid, &[])[..20].to_vec()), "decoded");
    expect_misbehaved(&answered(|xid| words(&[xid, 1, 0, 0, 0xffff_ffff, 0])), "decoded");
    // The procedure that does nothing has no results.
    expect_misbehaved(&answered(|xid| success(xid, &[0; 4])), "left over");
}

#[test]
fn receive_an_error_of_rpc_expect_its_name() {
    for (status, name) in [(1, "ProgUnavail"), (3, "ProcUnavail"), (5, "SystemErr")] {
        let error = answered(move |xid| words(&[xid, 1, 0, 0, 0, status]));
        assert!(matches!(error, RpcbindError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = answered(|xid| words(&[xid, 1, 1, 1, 5]));
    assert!(error.to_string().contains("TooWeak"), "{error}");
}

#[test]
fn receive_fragments_without_end_or_the_announcement_of_gigabytes_expect_an_end() {
    let error = connect_to(|mut stream, _| while stream.write_all(&[0; 4096]).is_ok() {});
    expect_misbehaved(&error, "fragments");
    let error = connect_to(|mut stream, _| drop(stream.write_all(&[0x7f, 0xff, 0xff, 0xff])));
    expect_misbehaved(&error, "bytes");
}

#[test]
fn receive_nothing_or_a_byte_now_and_then_expect_the_same_deadline() {
    let silence = |mut stream: UnixStream, _| drop(stream.read(&mut [0]));
    let error = connect_within(Duration::from_millis(50), silence);
    assert!(matches!(error, RpcbindError::TimedOut { .. }), "{error}");
    // Each byte comes well within the time of the whole call, and is a fragment begun.
    let dribble = |mut stream: UnixStream, _| {
        while stream.write_all(&[0]).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let error = connect_within(Duration::from_millis(200), dribble);
    assert!(matches!(error, RpcbindError::TimedOut { .. }), "{error}");
}

#[test]
fn receive_the_end_of_the_stream_expect_a_lost_connection() {
    for bytes in [&b""[..], b"\x80", b"\x80\0\0\x08\0\0\0\x01"] {
        let error = connect_to(|mut stream, _| drop(stream.write_all(bytes)));
        assert!(matches!(error, RpcbindError::Disconnected { .. }), "{error}");
    }
}

#[test]
fn receive_a_list_that_lies_about_its_lengths_expect_blame() {
    let lies = [
        words(&[1, 1, 1, 0xffff_fff0]),
        words(&[1, 1, 1, 8, 0]),
        words(&[2]),
        words(&[1]),
        words(&[0, 0]),
    ];
    for lie in lies {
        let socket = Socket::start(move |mut stream| {
            for results in [&[][..], &lie] {
                let Ok(call) = read_record(&mut stream) else { return };
                let reply = success(u32::from_be_bytes(*call.first_chunk().unwrap()), results);
                let mark = words(&[0x8000_0000 | reply.len() as u32]);
                drop(stream.write_all(&[mark, reply].concat()));
            }
        });
        let socket = socket.unwrap();
        let mut client = Client::connect(&Daemon::Unix(socket.path().into()), PATIENCE).unwrap();
        expect_misbehaved(&client.dump().unwrap_err(), "decoded");
    }
}

#[test]
fn no_daemon_is_an_error_that_says_what_to_do() {
    let nowhere = Daemon::Unix("/nonexistent/rpcbind.sock".into());
    let error = Client::connect(&nowhere, PATIENCE).unwrap_err();
    assert!(matches!(error, RpcbindError::NotRunning { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("/nonexistent/rpcbind.sock") && text.contains("start it"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// A daemon that hangs stops accepting, and a connect to its Unix socket would wait forever.
#[test]
fn a_full_backlog_expect_the_deadline() {
    let path = std::env::temp_dir().join(format!("spinrpc-backlog-{}.sock", std::process::id()));
    // One of a process that was killed, and had the number of this one.
    let _ = std::fs::remove_file(&path);
    let address = SocketAddrUnix::new(&path).unwrap();
    let flags = SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = socket();
    bind(&listener, &address).unwrap();
    listen(&listener, 0).unwrap();
    let fits = || {
        let waiting = socket();
        connect(&waiting, &address).is_ok().then_some(waiting)
    };
    let backlog: Vec<_> = std::iter::from_fn(fits).take(64).collect();
    assert!(backlog.len() < 64, "a backlog of 0 is never full");
    let daemon = Daemon::Unix(path.clone());
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(Client::connect(&daemon, Duration::from_millis(50))));
    let outcome = outcome.recv_timeout(PATIENCE);
    std::fs::remove_file(path).unwrap();
    let error = outcome.expect("it waits for ever").unwrap_err().to_string();
    assert!(error.contains("timed out"), "{error}");
}

#[test]
fn a_daemon_on_tcp_is_asked_too() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let call = read_record(&mut stream).unwrap();
        let reply = success(u32::from_be_bytes(*call.first_chunk().unwrap()), &[]);
        stream.write_all(&[words(&[0x8000_0018]), reply].concat()).unwrap();
    });
    assert!(Client::connect(&Daemon::Tcp(address), PATIENCE).is_ok());
    server.join().unwrap();
}
