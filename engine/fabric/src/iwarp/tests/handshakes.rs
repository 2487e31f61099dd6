//! Handshakes: peers of the first revision, peers that refuse, and strangers that keep a listener busy.

use super::*;
use rustix::net::sockopt::set_socket_linger;
use std::io::ErrorKind;

/// Connects to a listener that acts as `answer` says, with each connection and the revision of its request, until that returns
/// false. Expects no further attempt.
fn connect_to(mut answer: impl FnMut(TcpStream, u8) -> bool) -> Result<Endpoint, FabricError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("iwarp://{}", listener.local_addr().unwrap());
    let connector = IwarpConnector::new(config());
    let connected = std::thread::scope(|scope| {
        let connecting =
            scope.spawn(|| connector.connect(&ConnectRequest::new(&address, PATIENCE)));
        loop {
            let mut socket = listener.accept().unwrap().0;
            let request = read_frame(&mut socket, FrameKind::Request).unwrap();
            if !answer(socket, request[17]) {
                return connecting.join().unwrap();
            }
        }
    });
    listener.set_nonblocking(true).unwrap();
    let further = listener.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(further, Err(ErrorKind::WouldBlock));
    connected
}

/// Answer as a peer that knows revision 1 only: by a refusal in that, or by closing. Expect a second attempt, in that.
#[test]
fn a_peer_of_the_first_revision_is_spoken_to_in_it() {
    for refuses in [true, false] {
        let mut expected = [2, 1].into_iter();
        let endpoint = connect_to(|mut socket, revision| {
            assert_eq!(Some(revision), expected.next());
            let reject = revision == 2;
            let reply = Frame { kind: FrameKind::Reply, reject, ..local(1).request(b"old") };
            if refuses || !reject {
                write_frame(&mut socket, &reply);
            }
            reject
        })
        .unwrap();
        assert!(endpoint.peer_private_data.starts_with(b"old\0"));
        assert_eq!(endpoint.reads_max, 1, "its IRD is not known");
    }
}

/// Reset the connection, as a listener that is busy, or answer in another protocol. Expect an error, and no second attempt.
#[test]
fn a_peer_that_resets_or_speaks_another_protocol_is_not_asked_again() {
    let answers: [fn(TcpStream); 2] = [
        |socket| set_socket_linger(&socket, Some(Duration::ZERO)).unwrap(),
        |mut socket| socket.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap(),
    ];
    for answer in answers {
        let connected = connect_to(|socket, _| {
            answer(socket);
            false
        });
        assert!(connected.is_err());
    }
}

/// Say nothing, from as many hosts as fill the room for handshakes, and more. Expect that another one is served at once.
#[test]
fn silent_strangers_keep_nobody_out() {
    let mut server = Server::new();
    let silent = |host| (0..20).map(|_| dial(&server.address, host, None)).collect::<Vec<_>>();
    let silent: Vec<_> = (2..10).map(silent).collect();
    let (mut peer, qp) = server.connect();
    server.end.post_recvs(qp, 1);
    peer.send(b"welcome", None);
    assert_eq!(server.next(qp), Event::Message(b"welcome".to_vec(), None));
    drop(silent);
}

/// Begin more handshakes than one host may have. Expect the oldest to be refused at once, by a reset that no peer takes for an
/// answer of revision 1; and one that speaks another protocol to be closed.
#[test]
fn handshakes_that_give_way_are_reset() {
    let server = Server::new();
    let mut silent: Vec<_> = (0..17).map(|_| dial(&server.address, 1, None)).collect();
    let refused = silent[0].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::ConnectionReset));
    let mut talks = dial(&server.address, 2, None);
    talks.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(!matches!(talks.read(&mut [0]), Ok(1..)), "it is closed without a word");
}

/// Say nothing, then wait. Expect the end of the handshake before the time of one that has begun to speak.
#[test]
fn a_peer_that_says_nothing_has_less_time_than_one_that_is_slow() {
    let server = Server::new();
    let [mut silent, mut slow] = [2, 3].map(|host| dial(&server.address, host, None));
    slow.write_all(b"M").unwrap();
    assert!(!matches!(silent.read(&mut [0]), Ok(1..)));
    slow.set_nonblocking(true).unwrap();
    assert_eq!(slow.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
}

#[test]
fn a_peer_that_wants_markers_is_refused() {
    let server = Server::new();
    let mut socket = dial(&server.address, 1, None);
    write_frame(&mut socket, &Frame { markers: true, ..local(2).request(&[]) });
    let reply = read_frame(&mut socket, FrameKind::Reply).unwrap();
    assert!(reply[16] & 0x20 != 0, "the flag that rejects");
}
