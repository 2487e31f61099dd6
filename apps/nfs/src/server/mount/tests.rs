//! MOUNT as a whole, and over TCP.

use super::*;
use crate::mount3::{self, PROGRAM, VERSION};
use crate::protocol::FileHandle;
use crate::server::exports::tests::export;
use crate::server::tcp::{CONNECTIONS_MAX, TcpServer};
use spinrpc::rpcbind::record;
use spinrpc::rpcbind::wire::{self, AnswerError};
use spinrpc::{CallError, RejectStatus, Xid};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// `/data` for this host and one user, `/all` for everyone, `/none` without clients.
fn registry() -> Arc<Registry> {
    let data = "client=127.0.0.0/8,client=local:7,sec=sys,sec=none";
    let all =
        vec![export(1, "/data", data), export(2, "/all", "client=any"), export(3, "/none", "ro")];
    let table = ExportTable::new(Exports::new(all).unwrap());
    Arc::new(Registry::new(table, |export| handle(export.id as u8)))
}

fn host(text: &str) -> Peer {
    Peer::Host(text.parse().unwrap())
}

fn path(path: &str) -> Vec<u8> {
    bytes_of(|to| to.opaque(path.as_bytes()))
}

/// The results of a call, in bytes.
fn call(registry: &Registry, peer: &Peer, procedure: Procedure, args: &[u8]) -> Vec<u8> {
    registry.answer(peer, procedure, Decoder::plain(args)).unwrap()
}

fn handle(byte: u8) -> FileHandle {
    FileHandle::new(&[byte; 3]).unwrap()
}

fn mount(registry: &Registry, peer: &Peer, of: &str) -> Result<Mounted, u32> {
    let results = call(registry, peer, MNT, &path(of));
    let outcome = mount3::outcome(&mut Decoder::plain(&results)).unwrap();
    outcome.map_err(|status| status as u32)
}

fn mounts(registry: &Registry) -> Vec<(String, String)> {
    let results = call(registry, &Peer::Unknown, DUMP, &[]);
    let list = List::<Mountbody<'_>>::decode(&mut Decoder::plain(&results)).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    list.iter().map(|body| (text(&body.ml_hostname), text(&body.ml_directory))).collect()
}

const ACCES: u32 = 13;
const NOENT: u32 = 2;

#[test]
fn a_client_gets_the_handle_and_the_flavors_the_favourite_first() {
    let registry = registry();
    let mounted = mount(&registry, &host("127.0.0.1"), "/data/").unwrap();
    assert_eq!((mounted.handle, mounted.flavors), (handle(1), vec![1, 0]));
    let mounted = mount(&registry, &Peer::Local { uid: 7 }, "/data").unwrap();
    assert_eq!(mounted.handle, handle(1));
    assert_eq!(mount(&registry, &Peer::Unknown, "/all").unwrap().flavors, [1]);
}

#[test]
fn who_was_not_named_gets_acces_and_what_is_not_exported_is_not_there() {
    let registry = registry();
    for peer in [host("192.0.2.1"), Peer::Local { uid: 0 }, Peer::Unknown] {
        assert_eq!(mount(&registry, &peer, "/data"), Err(ACCES));
        assert_eq!(mount(&registry, &peer, "/none"), Err(ACCES));
    }
    assert_eq!(registry.refused(), 6);
    for path in ["", "data", "/", "/data/sub", "/data/../all", "/dat", "/data\0"] {
        assert_eq!(mount(&registry, &host("127.0.0.1"), path), Err(NOENT), "{path}");
    }
    assert_eq!(mounts(&registry), []);
}

#[test]
fn what_is_mounted_is_listed_until_it_is_not() {
    let registry = registry();
    let (here, there) = (host("127.0.0.1"), host("127.0.0.2"));
    for (peer, path) in [(&here, "/data"), (&here, "/all"), (&there, "/data"), (&here, "/data")] {
        mount(&registry, peer, path).unwrap();
    }
    let entry = |host: &str, path: &str| (host.to_owned(), path.to_owned());
    let (data, all) = (entry("127.0.0.1", "/data"), entry("127.0.0.1", "/all"));
    let others = entry("127.0.0.2", "/data");
    assert_eq!(mounts(&registry), [all.clone(), others.clone(), data]);
    assert_eq!(call(&registry, &here, UMNT, &path("/data/")), [0_u8; 0]);
    assert_eq!(mounts(&registry), [all, others.clone()]);
    assert_eq!(call(&registry, &here, UMNTALL, &[]), [0_u8; 0]);
    assert_eq!(mounts(&registry), [others]);
    assert_eq!(call(&registry, &here, UMNT, &path("/nowhere")), [0_u8; 0]);
}

#[test]
fn the_list_of_mounts_has_a_bound() {
    let registry = registry();
    for number in 0..=MOUNTS_MAX as u32 {
        mount(&registry, &Peer::Host(Ipv4Addr::from_bits(number).into()), "/all").unwrap();
    }
    let mounts = mounts(&registry);
    assert_eq!((mounts.len(), &mounts[0].0[..]), (MOUNTS_MAX, "0.0.0.1"));
}

#[test]
fn exports_are_listed_with_their_clients_and_not_those_of_nobody() {
    let results = call(&registry(), &Peer::Unknown, EXPORT, &[]);
    let list = List::<Exportnode<'_>>::decode(&mut Decoder::plain(&results)).unwrap();
    let shown: Vec<_> = list
        .iter()
        .map(|node| {
            (node.ex_dir.bytes(), node.ex_groups.iter().map(|it| it.gr_name.bytes()).collect())
        })
        .collect();
    let data: (&[u8], Vec<&[u8]>) = (b"/data", vec![b"127.0.0.0/8", b"local:7"]);
    assert_eq!(shown, [data, (b"/all", vec![])]);
}

#[test]
fn receive_wrong_arguments_expect_garbage_args() {
    let registry = registry();
    let long = path(&"x".repeat(1025));
    let behind = [path("/data"), vec![0; 4]].concat();
    for (procedure, args) in [
        (MNT, &b""[..]),
        (MNT, &b"\xff\xff\xff\xff"[..]),
        (MNT, &long),
        (MNT, &behind),
        (UMNT, &b"\0\0\0\x05ab"[..]),
        (NULL, &b"\0\0\0\0"[..]),
        (DUMP, &b"\0\0\0\0"[..]),
        (EXPORT, &b"\0\0\0\0"[..]),
    ] {
        let error = registry.answer(&Peer::Unknown, procedure, Decoder::plain(args)).unwrap_err();
        assert_eq!(error, AcceptStatus::GarbageArgs, "{procedure:?} {args:?}");
    }
    let error = registry.answer(&Peer::Unknown, Procedure(6), Decoder::plain(&[])).unwrap_err();
    assert_eq!(error, AcceptStatus::ProcUnavail);
}

fn serve() -> TcpServer {
    TcpServer::listen((Ipv4Addr::LOCALHOST, 0).into(), registry()).unwrap()
}

/// A connection with a timeout.
fn connect(server: &TcpServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// A connection from this address.
fn connect_from(host: Ipv4Addr, server: &TcpServer) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from((host, 0))).unwrap();
    connect(&socket, &server.address()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// A call without credentials.
fn message(words: [u32; 5], args: &[u8]) -> Vec<u8> {
    let mut message = bytes_of(|to| {
        to.u32(77);
        words.into_iter().for_each(|word| to.u32(word));
        to.fixed(&[0; 16]);
    });
    message.extend_from_slice(args);
    message
}

fn mnt_of_data() -> Vec<u8> {
    message([0, 2, PROGRAM.0, VERSION.0, MNT.0], &path("/data"))
}

fn exchange(stream: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    try_exchange(stream, message).unwrap()
}

fn try_exchange(stream: &mut TcpStream, message: &[u8]) -> Result<Vec<u8>, record::RecordError> {
    stream.write_all(&record::mark(message)?)?;
    record::read(stream)
}

#[test]
fn by_tcp_a_call_in_fragments_and_the_next_are_answered() {
    let server = serve();
    let mut stream = connect(&server);
    for pieces in [1, 3, 7] {
        let message = mnt_of_data();
        for piece in message.chunks(message.len().div_ceil(pieces)) {
            stream.write_all(&(piece.len() as u32).to_be_bytes()).unwrap();
            stream.write_all(piece).unwrap();
        }
        stream.write_all(&0x8000_0000_u32.to_be_bytes()).unwrap();
        let answer = record::read(&mut stream).unwrap();
        let Ok(Ok(results)) = wire::parse_answer(&answer, Xid(77)) else { panic!("{answer:?}") };
        let mounted = mount3::outcome(&mut Decoder::plain(results)).unwrap().unwrap();
        assert_eq!(mounted.handle, handle(1));
    }
}

#[test]
fn by_tcp_other_programs_versions_and_procedures_are_said_so() {
    let server = serve();
    let mut stream = connect(&server);
    let (program, version) = (PROGRAM.0, VERSION.0);
    let accepted = |status| Ok(Err(CallError::Accepted(status)));
    let mismatch = RejectStatus::RpcMismatch { low: 2, high: 2 };
    let expected: [(_, Result<_, AnswerError>); 5] = [
        ([0, 2, 100_003, 3, 0], accepted(AcceptStatus::ProgUnavail)),
        (
            [0, 2, program, 1, 0],
            accepted(AcceptStatus::ProgMismatch { low: version, high: version }),
        ),
        ([0, 2, program, version, 9], accepted(AcceptStatus::ProcUnavail)),
        ([0, 2, program, version, 1], accepted(AcceptStatus::GarbageArgs)),
        ([0, 3, program, version, 0], Ok(Err(CallError::Rejected(mismatch)))),
    ];
    for (words, expected) in expected {
        let answer = exchange(&mut stream, &message(words, &[]));
        assert_eq!(wire::parse_answer(&answer, Xid(77)), expected, "{words:?}");
    }
}

#[test]
fn by_tcp_receive_what_is_no_call_expect_the_end_of_that_connection_only() {
    let server = serve();
    let mut other = connect(&server);
    let reply = message([1, 0, 0, 0, 0], &[]);
    for sent in [
        &record::mark(&reply).unwrap()[..],
        &record::mark(b"abc").unwrap(),
        b"\x80\0\x08\x01",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = connect(&server);
        stream.write_all(sent).unwrap();
        let mut rest = Vec::new();
        // Unread bytes turn the close into a reset.
        let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{sent:?} {ended:?}");
    }
    assert!(!exchange(&mut other, &mnt_of_data()).is_empty());
}

/// 127.0.0.0/8 has any number of hosts. Those that no export names get no place, and are counted.
#[test]
fn by_tcp_strangers_get_no_connection_and_do_not_keep_clients_out() {
    let exports = Exports::new(vec![export(1, "/data", "client=127.0.0.1")]).unwrap();
    let table = ExportTable::new(exports);
    let registry = Arc::new(Registry::new(table, |_| handle(1)));
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    let server = TcpServer::listen(at, Arc::clone(&registry) as _).unwrap();
    let strangers: Vec<_> = (0..CONNECTIONS_MAX as u8)
        .map(|number| connect_from(Ipv4Addr::new(127, 0, 1, 1 + number / 8), &server))
        .collect();
    let mut client = connect(&server);
    assert!(!exchange(&mut client, &mnt_of_data()).is_empty());
    for mut stranger in strangers {
        assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(registry.refused(), CONNECTIONS_MAX as u64);
}

#[test]
fn by_tcp_every_address_is_one_of_ipv4_too() {
    let every = (std::net::Ipv6Addr::UNSPECIFIED, 0).into();
    let server = TcpServer::listen(every, registry()).unwrap();
    let here = (Ipv4Addr::LOCALHOST, server.address().port());
    let mut stream = TcpStream::connect(here).unwrap();
    let answer = exchange(&mut stream, &mnt_of_data());
    let Ok(Ok(results)) = wire::parse_answer(&answer, Xid(77)) else { panic!("{answer:?}") };
    // 127.0.0.1 is a client in any notation of the socket.
    assert!(mount3::outcome(&mut Decoder::plain(results)).unwrap().is_ok());
}

#[test]
fn by_tcp_the_end_of_the_server_is_the_end_of_its_connections() {
    let server = serve();
    let mut stream = connect(&server);
    assert!(!exchange(&mut stream, &mnt_of_data()).is_empty());
    let address = server.address();
    drop(server);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(TcpStream::connect(address).is_err());
}
