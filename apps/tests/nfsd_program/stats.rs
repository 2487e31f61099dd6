//! The socket that commands ask, and statistics of the program.

use crate::server::{Place, Server, answer, in_time};
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::set_socket_linger,
};
use rustix::process::Signal;
use std::fs;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

fn ask(socket: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"clients\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// A TCP socket whose close takes ten minutes while its far end, the second item, is not read.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65536]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
    (near, far)
}

/// Sends a descriptor; the receiver may reject it or hang up.
fn send(socket: &UnixStream, fd: &TcpStream) {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let _ = sendmsg(socket, &[IoSlice::new(b"x\n")], &mut control, SendFlags::NOSIGNAL);
}

/// Leave descriptors whose close blocks for ten minutes in the socket. Expect other readers to
/// be answered, and a shutdown that does not wait.
#[test]
fn descriptors_that_readers_send_delay_neither_others_nor_the_shutdown() {
    /// Far shorter than that.
    const SOON: Duration = Duration::from_secs(60);
    let place = Place::new("socket-descriptors");
    let socket = place.path("state/control");
    let server = place.serve(&[&place.export("")]);
    let (near, far): (Vec<_>, Vec<_>) = (0..12).map(|_| lingering()).unzip();
    let mut peers = Vec::new();
    for fd in &near {
        let peer = UnixStream::connect(&socket).unwrap();
        send(&peer, fd);
        peers.push(peer);
    }
    let began = Instant::now();
    let mut other = UnixStream::connect(&socket).unwrap();
    other.set_read_timeout(Some(SOON)).unwrap();
    other.write_all(b"clients\n").unwrap();
    let read = other.read_to_string(&mut String::new());
    let ended = server.end_by(Signal::TERM).0;
    // Without their far ends they close at once.
    drop((far, near, peers));
    assert!(read.is_ok(), "{read:?}");
    assert_eq!(ended, Some(0));
    assert!(began.elapsed() < 2 * SOON, "{:?}", began.elapsed());
}

#[test]
fn a_socket_of_this_user_that_a_killed_server_left_is_taken_over_and_a_file_is_not() {
    let place = Place::new("socket-left");
    let socket = place.path("state/control");
    let export = place.export("");
    assert_eq!(place.serve(&[&export]).end_by(Signal::KILL).0, None);
    assert!(Path::new(&socket).exists());
    let server = place.serve(&[&export]);
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    assert!(ask(&socket).starts_with("done\n"));
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    assert!(!Path::new(&socket).exists());
    fs::write(&socket, "precious").unwrap();
    assert_eq!(place.serve(&[&export]).end_by(Signal::TERM).0, Some(0));
    assert_eq!(fs::read(&socket).unwrap(), b"precious");
}

#[test]
fn a_table_is_printed_again_and_again() {
    let place = Place::new("table");
    let mut server = place.serve(&[&place.export(""), "--stats=0.1"]);
    answer(&["ls", &place.target("")]);
    for row in ["procedure", "GETATTR", "READDIRPLUS", "read 0.0 MB/s", "procedure"] {
        while !server.line().starts_with(row) {}
    }
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
}

#[test]
fn a_table_that_cannot_be_printed_is_logged_once_and_the_server_goes_on() {
    let place = Place::new("table-unread");
    let log = place.path("log");
    let mut command = place.command(&[&place.export(""), "--stats=0.1"]);
    command.stderr(fs::File::create(&log).unwrap()).env_remove("RUST_LOG");
    let mut server = Server::start(&mut command);
    server.close_output();
    let warnings = || {
        let log = fs::read_to_string(&log).unwrap();
        log.lines().filter(|line| line.contains("statistics")).count()
    };
    in_time(|| (warnings() > 0).then_some(()));
    answer(&["ls", &place.target("")]);
    assert_eq!(server.end_by(Signal::TERM).0, Some(0));
    assert_eq!(warnings(), 1);
}
