//! Effects of the keys of messages: the path that the data of a call take, and refusals.

use super::common::prelude::*;
use super::common::raw_server::RawServer;
use rustix::net::{self, AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

fn pair(
    server: impl FnOnce(&mut RawConfig),
    client: impl FnOnce(&mut RawConfig),
) -> (Server, Caller<MixAnswer>) {
    let server = Server::with(small_with(server));
    let raw = client_with(client);
    let caller = Caller::connect_with(raw, &server.address, MixCall::read);
    (server, caller)
}

fn is_inline(caller: &mut Caller<MixAnswer>, bytes: usize) -> bool {
    let call = MixCall { seed: 3, arguments: vec![bytes], ..MixCall::default() };
    run(caller, &call).in_memory == 0
}

fn version_one(raw: &mut RawConfig) {
    raw.rpc.version = spinrpc::config::Versions::One;
}

/// The bytes that a client sends inline, and those that its server receives inline.
fn threshold(send_bytes: u64, recv_bytes: u64) -> (Server, Caller<MixAnswer>) {
    pair(
        |raw| {
            version_one(raw);
            raw.rpc.inline_recv_bytes = recv_bytes;
        },
        |raw| {
            version_one(raw);
            raw.rpc.inline_send_bytes = send_bytes;
        },
    )
}

#[test]
fn what_is_longer_than_this_side_sends_inline_goes_by_chunk() {
    let (_server, mut short) = threshold(1024, 16384);
    assert!(is_inline(&mut short, 900) && !is_inline(&mut short, 2000));
    let (_server, mut long) = threshold(16384, 16384);
    assert!(is_inline(&mut long, 15_000), "it goes through a ring of 256 slots, too");
}

#[test]
fn what_is_longer_than_the_peer_receives_inline_goes_by_chunk() {
    let (_server, mut short) = threshold(4096, 1024);
    assert!(is_inline(&mut short, 900) && !is_inline(&mut short, 2000));
    let (_server, mut long) = threshold(4096, 4096);
    assert!(is_inline(&mut long, 3900));
}

fn is_misuse(refused: Result<CallId, Backpressure>, key: &str) -> bool {
    matches!(refused, Err(Backpressure::Misuse(says)) if says.contains(key))
}

/// RFC 8166 section 4.1: after four words an empty Read list, then the Write list: a chunk, its count
/// of segments, and handle, length and offset of each.
#[test]
fn a_buffer_longer_than_a_segment_becomes_several() {
    for (segment_bytes, lengths) in [(1 << 20, &[100_000][..]), (70_000, &[70_000, 30_000])] {
        let mut raw = client_config();
        version_one(&mut raw);
        raw.rpc.segment_bytes = segment_bytes;
        let mut server = RawServer::up(raw, all_words);
        let client = &server.caller.client;
        let mut spec = CallSpec::short().result_into(client.bulk(100_000).unwrap());
        client.call(ECHO, Token(1), &mut spec, |_| {}).unwrap();
        let words = server.hear();
        assert_eq!(words[4..7], [0, 1, lengths.len() as u32]);
        let found: Vec<u32> = words[8..].iter().step_by(4).take(lengths.len()).copied().collect();
        assert_eq!(found, lengths);
    }
}

#[test]
fn more_segments_than_a_chunk_may_have_are_refused_by_name() {
    let (_server, caller) = pair(
        |_| {},
        |raw| {
            (raw.rpc.max_read_bytes, raw.rpc.max_write_bytes) = (4096, 4096);
            (raw.rpc.segment_bytes, raw.rpc.max_segments) = (69_632, 1);
        },
    );
    let call = MixCall { arguments: vec![69_633], ..MixCall::default() };
    assert!(is_misuse(call.start(&caller.client, 1), "rpc.max_segments"));
}

#[test]
fn more_chunks_than_a_list_may_have_are_refused_by_name() {
    let arguments = MixCall { arguments: vec![5000; 2], ..MixCall::default() };
    let results = MixCall { seed: 1, offers: vec![5000; 2], ..MixCall::default() };
    let (_server, mut two) = pair(|_| {}, |raw| raw.fixed.max_chunks = 2);
    let (_server, one) = pair(|_| {}, |raw| raw.fixed.max_chunks = 1);
    for call in [arguments, results] {
        run(&mut two, &call);
        assert!(matches!(call.start(&one.client, 1), Err(Backpressure::Misuse(_))), "{call:?}");
    }
}

/// A socket that connects to an engine and says nothing.
fn silent(address: &str) -> OwnedFd {
    let name = address.strip_prefix("shm:").unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let place = SocketAddrUnix::new_abstract_name(format!("spinrpc/{uid}/{name}").as_bytes());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    net::connect(&socket, &place.unwrap()).unwrap();
    socket
}

fn is_over(socket: &OwnedFd) -> bool {
    let mut packet = [0; 256];
    loop {
        match net::recv(socket, &mut packet[..], RecvFlags::empty()) {
            // That the engine is ready for its part.
            Ok((1.., _)) => {}
            ended => return ended != Err(rustix::io::Errno::AGAIN),
        }
    }
}

/// Sooner than a handshake ends by itself. A machine that stood still proves nothing.
const HANDSHAKE_MAX: Duration = Duration::from_secs(4);

#[test]
fn one_handshake_more_than_configured_ends_the_oldest() {
    let proved = (0..10).any(|_| {
        let server = Server::with(small_with(|raw| raw.limits.handshakes = 2));
        let began = Instant::now();
        let first = silent(&server.address);
        let rest = [silent(&server.address), silent(&server.address)];
        super::common::wait_until("the end of the first", || is_over(&first));
        let rest_over = rest.iter().any(is_over);
        began.elapsed() < HANDSHAKE_MAX && !rest_over
    });
    assert!(proved, "the oldest stays until its time is over");
}

#[test]
fn as_many_handshakes_as_configured_go_on() {
    let proved = (0..10).any(|_| {
        let server = Server::with(small_with(|raw| raw.limits.handshakes = 3));
        let began = Instant::now();
        let silent: Vec<_> = (0..3).map(|_| silent(&server.address)).collect();
        // One that is served comes after them, and takes the place of the oldest.
        drop(Caller::connect(&server.address, MixCall::read));
        super::common::wait_until("the end of the first", || is_over(&silent[0]));
        let rest_over = silent[1..].iter().any(is_over);
        began.elapsed() < HANDSHAKE_MAX && !rest_over
    });
    assert!(proved, "fewer than configured");
}
