//! Turns: the work of one is limited, a full socket costs none, and a core sleeps when there is nothing to do.

use super::super::budget::Budget;
use super::super::ending::Phase;
use super::super::link::Link;
use super::super::queue_pair::QueuePair;
use super::super::socket::prepare;
use super::*;
use crate::mem::{BulkPool, Region};
use crate::sys::mmap::{Mapping, PageRequest};
use rustix::event::epoll::EventFlags;
use std::net::Shutdown;

const EMPTY_WRITE: Message = Message::Write { stag: 1, offset: 0, length: 0 };

/// A connection without a core, and the socket of its peer.
fn pair() -> (QueuePair, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    prepare(&socket).unwrap();
    let agreed = Agreed { crc: true, ird: 4, ord: 4, rtr: None };
    let link = Link { socket, agreed, is_connecting: true, lent: [].into(), place: None };
    let config = config();
    let bytes = BulkPool::region_bytes(&config.arena).unwrap();
    let memory = Mapping::anonymous(bytes, PageRequest::default()).unwrap();
    let pool = BulkPool::new(Region::from_mapping(memory), &config.arena).unwrap();
    let pair = QueuePair::new(QpId::new(0, 1), link, &config, (pool, true)).unwrap();
    (pair, listener.accept().unwrap().0)
}

/// A connection with more FPDUs in its ring than a turn acts on, its peer, and the bytes of each.
fn flooded_pair() -> (QueuePair, RawPeer, usize) {
    let (mut pair, far) = pair();
    let mut peer = RawPeer::new(far, &pair.link.agreed, false);
    let fpdu = peer.frame(EMPTY_WRITE, &[]);
    std::io::Write::write_all(&mut peer.socket, &fpdu.repeat(2000)).unwrap();
    while pair.ring.len() < 2000 * fpdu.len() {
        pair.fill();
    }
    (pair, peer, fpdu.len())
}

fn post_write(pair: &mut QueuePair) {
    let length = 1 << 20;
    let mut bulk = pair.pool.take(length as usize).unwrap();
    let from = bulk.lease(0..length as usize);
    pair.post(SendWr::Write { from, to: RemoteSlice { handle: 5, offset: 0, length } }).unwrap();
}

fn flush(pair: &mut QueuePair) {
    pair.flush(&mut Budget::of_a_turn());
}

/// Fill a socket, then have the peer read all of it. Expect nothing to be sent before the kernel has said that there is room.
#[test]
fn a_full_socket_is_left_alone_until_the_kernel_tells_of_room() {
    let (mut pair, mut far) = pair();
    (0..2).for_each(|_| post_write(&mut pair));
    while !pair.is_blocked {
        flush(&mut pair);
    }
    assert!(!pair.has_output());
    far.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut bytes = [0; 1 << 16];
    while far.read(&mut bytes).is_ok() {}
    (0..10).for_each(|_| flush(&mut pair));
    assert!(far.read(&mut bytes).is_err());
    pair.on_event(EventFlags::OUT);
    flush(&mut pair);
    assert!(far.read(&mut bytes).is_ok());
}

/// Have a full socket become free. Expect sleeps that last: that it has room is not told again and again.
#[test]
fn a_socket_with_room_ends_no_sleep() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    server.end.post_recvs(qp, 1);
    peer.send(b"lets the server send", None);
    assert!(matches!(server.next(qp), Event::Message(..)));
    while server.end.try_send(qp, &[7; 4096]) || server.end.fabric.outstanding(qp).numbers.is_none()
    {
        server.end.turn();
    }
    let mut reads = peer.socket.try_clone().unwrap();
    std::thread::spawn(move || while reads.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
    while server.end.fabric.outstanding(qp).is_unsent {
        server.end.turn();
    }
    let slept = (0..100).any(|_| {
        let (start, nap) = (Instant::now(), Duration::from_millis(20));
        server.end.fabric.park(nap);
        server.end.turn();
        start.elapsed() >= nap
    });
    assert!(slept);
    peer.socket.shutdown(Shutdown::Both).unwrap();
}

/// Have more FPDUs in the ring than a turn acts on, before and behind the end of the connection. Expect a turn's worth gone.
#[test]
fn a_turn_acts_on_a_limited_number_of_fpdus_also_of_one_that_ends() {
    for closes in [false, true] {
        let (mut pair, _peer, fpdu_bytes) = flooded_pair();
        if closes {
            pair.close();
        }
        let mut out = Completions::with_limit(16);
        let mut turns = 1;
        while pair.ring.len() > 0 {
            let before = pair.ring.len();
            pair.poll(&mut out, &mut Budget::of_a_turn());
            assert!(before - pair.ring.len() <= 512 * fpdu_bytes);
            assert!(pair.ring.len() == 0 || pair.is_runnable(Instant::now()));
            turns += 1;
        }
        assert!(turns > 4);
    }
}

/// Close a connection whose peer goes on to send more than a turn acts on. Expect its end when the time is over, nevertheless.
#[test]
fn a_peer_that_never_stops_sending_does_not_keep_a_closed_connection() {
    let (mut pair, _peer, _) = flooded_pair();
    pair.close();
    let Phase::Draining(draining) = &mut pair.phase else { panic!("it is not ending") };
    draining.until = Instant::now();
    let mut out = Completions::with_limit(16);
    assert!(pair.poll(&mut out, &mut Budget::of_a_turn()));
    assert!(pair.ring.len() > 0, "it has not read all");
}

/// Have more FPDUs in the ring than a turn acts on, and the peer gone. Expect the core to go on before it sleeps.
#[test]
fn what_a_peer_has_sent_before_it_closed_is_acted_on_without_a_sleep() {
    let (mut pair, peer, _) = flooded_pair();
    drop(peer);
    pair.on_event(EventFlags::IN | EventFlags::RDHUP);
    let mut out = Completions::with_limit(16);
    let mut turns = 0;
    while pair.is_live() {
        assert!(pair.is_runnable(Instant::now()));
        pair.poll(&mut out, &mut Budget::of_a_turn());
        turns += 1;
    }
    assert!(turns > 3 && pair.ring.len() == 0);
}

/// Flood the first of several connections. Expect the message of the last one before the end of the flood.
#[test]
fn a_connection_with_much_to_read_lets_others_have_their_turns() {
    let mut server = Server::new();
    let mut peers: Vec<_> = (0..5).map(|_| server.connect()).collect();
    peers.iter().for_each(|(_, qp)| server.end.post_recvs(*qp, 1));
    peers[4].0.send(b"small", None);
    let fpdu = peers[0].0.frame(EMPTY_WRITE, &[]);
    for (peer, _) in &mut peers[..4] {
        std::io::Write::write_all(&mut peer.socket, &fpdu.repeat(3000)).unwrap();
        peer.send(b"end", None);
    }
    assert_eq!(server.next(peers[4].1), Event::Message(b"small".to_vec(), None));
    assert_eq!(server.end.next(peers[0].1), None, "all of the flood was read first");
}

/// Have many connections with much to send. Expect that one turn sends for some, and few turns for all.
#[test]
fn a_turn_sends_for_some_connections_and_the_next_one_for_others() {
    let mut server = Server::new();
    let mut peers: Vec<_> = (0..24).map(|_| server.connect()).collect();
    for (peer, qp) in &mut peers {
        server.end.post_recvs(*qp, 1);
        peer.send(b"lets the server send", None);
        assert!(matches!(server.next(*qp), Event::Message(..)));
    }
    for (_, qp) in &peers {
        (0..32).for_each(|_| server.end.send(*qp, &[1; 4096]));
    }
    let waiting = |server: &Server| {
        let count = |qp| server.end.fabric.outstanding(qp).numbers.map_or(0, |all| all.count());
        peers.iter().filter(|(_, qp)| count(*qp) == 32).count()
    };
    server.end.fabric.flush();
    let left = waiting(&server);
    assert!((1..24).contains(&left), "{left}");
    (0..4).for_each(|_| server.end.fabric.flush());
    assert_eq!(waiting(&server), 0);
}

/// Have the socket take everything that is framed of a long message. Expect no sleep: nothing would end it.
#[test]
fn a_core_does_not_sleep_over_what_is_not_framed_yet() {
    let (mut pair, mut far) = pair();
    std::thread::spawn(move || while far.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {});
    post_write(&mut pair);
    flush(&mut pair);
    while !pair.stream.is_empty() {
        pair.on_event(EventFlags::OUT);
        pair.transmit();
    }
    assert!(!pair.sender.is_free(), "all of the message was framed at once");
    pair.fill();
    pair.reminder = None;
    assert!(pair.is_runnable(Instant::now()));
}

/// Have the socket take nothing any more. Expect nothing to be framed behind what was lost.
#[test]
fn nothing_is_framed_behind_a_gap() {
    let (mut pair, _far) = pair();
    pair.link.socket.shutdown(Shutdown::Write).unwrap();
    post_write(&mut pair);
    flush(&mut pair);
    assert!(pair.input.send_error.is_some());
    post_write(&mut pair);
    flush(&mut pair);
    assert_eq!(pair.waiting.len(), 1);
    assert!(pair.stream.is_empty() && !pair.has_output());
}
