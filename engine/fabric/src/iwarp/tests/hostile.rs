//! Peers that break the rules, or keep them as slowly as they can: they cost their own connection at most.

use super::super::wire::{Fault, ReadRequest, TerminateCode};
use super::*;
use crate::mem::Bulk;
use rustix::net::sockopt::set_socket_linger;

fn read_request(from: RemoteSlice) -> Message {
    let RemoteSlice { handle: source_stag, offset: source_offset, length } = from;
    let (msn, sink_stag, sink_offset) = (0, 7, 0);
    Message::Read(ReadRequest { msn, sink_stag, sink_offset, length, source_stag, source_offset })
}

/// Reads up to the Terminate message, and expects the end of the stream behind it.
fn terminate_of(peer: &mut RawPeer) -> TerminateCode {
    loop {
        match peer.next() {
            Some((WireEvent::Terminate(code), _)) => {
                assert_eq!(peer.next(), None);
                return code;
            }
            Some(_) => {}
            None => panic!("the stream ended without a word"),
        }
    }
}

#[test]
fn fpdus_that_come_one_byte_at_a_time_are_understood() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    let mut bulk = server.end.bulk(qp, &[0; 64]);
    let lease = bulk.lease(0..64);
    let slice = server.end.fabric.expose(qp, lease, Access::RemoteWrite, None).unwrap();
    server.end.post_recvs(qp, 2);
    let write = Message::Write { stag: slice.handle, offset: slice.offset, length: 64 };
    let mut bytes = peer.frame(write, &[5; 64]);
    let send = Message::Send { length: 300, invalidate: Some(slice.handle), solicited: false };
    bytes.extend(peer.frame(send, &[6; 300]));
    for byte in bytes {
        peer.socket.write_all(&[byte]).unwrap();
        server.end.turn();
    }
    assert_eq!(server.next(qp), Event::Message(vec![6; 300], Some(slice.handle)));
    assert_eq!(bytes_of(&bulk), [5; 64]);
}

/// Write and Read outside of what is exposed: by keys that never were or have died, past the end, and with offsets that
/// wrap. Expect not a byte moved, a Terminate message that says why, and others served.
#[test]
fn access_beyond_a_live_key_moves_no_byte_and_ends_the_connection() {
    let mut server = Server::new();
    let (mut other, at_other) = server.connect();
    let long = 1 << 17;
    type Change = fn(&mut RemoteSlice);
    let wrong: [(Change, Fault, Fault); 5] = [
        (|slice| slice.handle ^= 1 << 9, Fault::TaggedStag, Fault::ReadStag),
        (|slice| slice.handle = 0, Fault::TaggedStag, Fault::ReadStag),
        (|slice| slice.length += 1, Fault::TaggedBounds, Fault::ReadBounds),
        (|slice| slice.offset = u64::MAX - 9, Fault::TaggedWrap, Fault::ReadWrap),
        (|slice| slice.offset = 1 << 32, Fault::TaggedBounds, Fault::ReadBounds),
    ];
    for (change, of_write, of_read) in wrong {
        for access in [Access::RemoteWrite, Access::RemoteRead] {
            let (mut peer, qp) = server.connect();
            let mut bulk = server.end.bulk(qp, &vec![1; long]);
            let lease = bulk.lease(64..long - 64);
            let mut slice = server.end.fabric.expose(qp, lease, access, None).unwrap();
            change(&mut slice);
            let (message, fault) = match access {
                Access::RemoteRead => (read_request(slice), of_read),
                Access::RemoteWrite => {
                    let RemoteSlice { handle: stag, offset, length } = slice;
                    (Message::Write { stag, offset, length }, of_write)
                }
            };
            let bytes = peer.frame(message, &vec![2; long]);
            peer.socket.write_all(&bytes).unwrap();
            assert!(matches!(server.down(qp), DownCause::PeerMisbehaved(_)));
            assert_eq!(terminate_of(&mut peer), fault.code());
            let bytes = bytes_of(&bulk);
            assert!(bytes[..64] == [1; 64] && bytes[long - 64..] == [1; 64]);
        }
    }
    server.end.post_recvs(at_other, 1);
    other.send(b"still here", None);
    assert_eq!(server.next(at_other), Event::Message(b"still here".to_vec(), None));
}

/// Flip each bit of a Send's header and of its CRC. Expect the message as it was sent, never another one.
#[test]
fn a_flipped_bit_is_found_by_the_crc() {
    let mut server = Server::new();
    for bit in (0..20 * 8).chain(24 * 8..28 * 8) {
        let (mut peer, qp) = server.connect();
        server.end.post_recvs(qp, 1);
        let send = Message::Send { length: 4, invalidate: None, solicited: false };
        let mut bytes = peer.frame(send, b"data");
        bytes[bit / 8] ^= 1 << (bit % 8);
        peer.socket.write_all(&bytes).unwrap();
        // A length that is too long waits for bytes that do not come.
        drop(peer);
        let cause = server.down(qp);
        let is_cut = bit < 16 && cause == DownCause::PeerDied;
        assert!(is_cut || matches!(cause, DownCause::PeerMisbehaved(_)), "bit {bit}: {cause:?}");
    }
}

/// The key of memory that a Read fills is good for the response to it only.
#[test]
fn the_sink_of_a_read_takes_its_response_and_nothing_else() {
    let answers: [fn(&mut RawPeer, &ReadRequest) -> Vec<u8>; 3] = [
        |peer, request| {
            let stag = request.sink_stag;
            peer.frame(Message::Write { stag, offset: request.sink_offset, length: 64 }, &[9; 64])
        },
        |peer, request| {
            let longer = ReadResponse { length: 65, ..ReadResponse::from(request) };
            peer.respond(longer, &[9; 65])
        },
        |peer, request| {
            let elsewhere = ReadResponse { offset: 1, ..ReadResponse::from(request) };
            peer.respond(elsewhere, &[9; 64])
        },
    ];
    for answer in answers {
        let (mut end, qp, mut peer) = client();
        let mut bulk = end.bulk(qp, &[1; 128]);
        let from = RemoteSlice { handle: 5, offset: 0, length: 64 };
        end.post(qp, SendWr::Read { id: WrId(3), from, into: bulk.lease(32..96) });
        end.turn();
        let request = loop {
            if let Some((WireEvent::ReadRequest(request), _)) = peer.next() {
                break request;
            }
        };
        let bytes = answer(&mut peer, &request);
        peer.socket.write_all(&bytes).unwrap();
        assert_eq!(next(&mut end, qp), Event::Read(WrId(3), Err(WrError::Flushed)));
        assert!(matches!(next(&mut end, qp), Event::Down(DownCause::PeerMisbehaved(_))));
        assert_eq!(bytes_of(&bulk), [1; 128]);
    }
}

/// Sends as many messages as the kernel and the queue take, and returns their number.
fn fill(server: &mut Server, peer: &mut RawPeer, qp: QpId) -> usize {
    server.end.post_recvs(qp, 1);
    peer.send(b"lets the server send", None);
    assert!(matches!(server.next(qp), Event::Message(..)));
    let (mut sent, mut full) = (0, 0);
    while full < 200 {
        server.end.turn();
        full += 1;
        // Some are copied, and some are read from their buffers.
        while server.end.try_send(qp, &pattern(sent * 677 % 4097, sent)) {
            (sent, full) = (sent + 1, 0);
        }
    }
    sent
}

/// Send to a peer that reads nothing. Expect a queue that fills up, memory that is held, others served, and each message in
/// order when the peer reads after all.
#[test]
fn a_peer_that_reads_nothing_meets_a_bounded_queue_and_loses_nothing() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    let (mut other, at_other) = server.connect();
    let sent = fill(&mut server, &mut peer, qp);
    let outstanding = server.end.fabric.outstanding(qp);
    assert!(outstanding.is_unsent && outstanding.numbers.is_some_and(|it| it.count() >= 32));
    server.end.post_recvs(at_other, 1);
    other.send(b"meanwhile", None);
    assert_eq!(server.next(at_other), Event::Message(b"meanwhile".to_vec(), None));
    let reading = std::thread::spawn(move || {
        for number in 0..sent {
            let (_, payload) = peer.next().unwrap();
            assert!(payload == pattern(number * 677 % 4097, number), "message {number}");
        }
        assert_eq!(peer.next(), None);
    });
    while server.end.fabric.outstanding(qp).is_unsent {
        server.end.turn();
    }
    server.end.fabric.close(qp);
    assert_eq!(server.down(qp), DownCause::Local);
    reading.join().unwrap();
}

#[test]
fn a_peer_that_reads_nothing_cannot_hold_up_the_end() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    fill(&mut server, &mut peer, qp);
    let start = Instant::now();
    server.end.fabric.close(qp);
    assert_eq!(server.down(qp), DownCause::Local);
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Has the peer read memory, and not take the answers: more than all buffers of the kernel hold.
fn queue_answers(
    server: &mut Server,
    peer: &mut RawPeer,
    qp: QpId,
) -> (Vec<Bulk>, Vec<RemoteSlice>) {
    let length = 1 << 20;
    let mut slices = Vec::new();
    let mut bulks: Vec<_> = (0..2).map(|_| server.end.bulk(qp, &pattern(length, 1))).collect();
    for bulk in &mut bulks {
        let lease = bulk.lease(0..length);
        slices.push(server.end.fabric.expose(qp, lease, Access::RemoteRead, None).unwrap());
    }
    for at in 0..16 {
        let bytes = peer.frame(read_request(slices[at % 2]), &[]);
        peer.socket.write_all(&bytes).unwrap();
        server.end.turn();
    }
    (0..1000).for_each(|_| server.end.turn());
    (bulks, slices)
}

/// Revoke memory while a peer that is slow to read is being sent it. Expect it back only when what was framed has left, and
/// the end of the connection: the rest is not sent.
#[test]
fn memory_is_not_given_back_while_the_socket_has_still_to_read_it() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    let (bulks, slices) = queue_answers(&mut server, &mut peer, qp);
    let revoked = slices.iter().map(|slice| server.end.fabric.revoke(qp, slice.handle));
    let soon = revoked.filter(|revoked| *revoked == Revoked::Soon).count();
    assert_eq!(bulks.iter().filter(|bulk| bulk.is_leased()).count(), soon);
    assert!(soon > 0, "the kernel has taken all of it");
    let reading = std::thread::spawn(move || terminate_of(&mut peer));
    assert!(matches!(server.down(qp), DownCause::PeerMisbehaved(_)));
    assert_eq!(reading.join().unwrap(), Fault::ReadStag.code());
    assert!(bulks.iter().all(|bulk| !bulk.is_leased()));
}

#[test]
fn a_stream_that_breaks_is_told_apart_from_one_that_is_closed() {
    let mut server = Server::new();
    type Prepare = fn(&mut RawPeer);
    let ends: [(Prepare, DownCause); 3] = [
        (|_| {}, DownCause::Remote),
        (|peer| peer.socket.write_all(&[0, 100]).unwrap(), DownCause::PeerDied),
        (
            |peer| set_socket_linger(&peer.socket, Some(Duration::ZERO)).unwrap(),
            DownCause::PeerDied,
        ),
    ];
    for (prepare, cause) in ends {
        let (mut peer, qp) = server.connect();
        server.end.post_recvs(qp, 2);
        peer.send(b"before the end", None);
        prepare(&mut peer);
        drop(peer);
        assert_eq!(server.next(qp), Event::Message(b"before the end".to_vec(), None));
        assert_eq!(server.down(qp), cause);
    }
}

/// Announce a tiny MSS. Expect FPDUs that are longer, and so not ever more work for fewer bytes.
#[test]
fn a_peer_with_a_tiny_mss_gets_fpdus_of_the_least_length() {
    let mut server = Server::new();
    let socket = dial(&server.address, 1, Some(100));
    let (mut peer, qp) = server.connect_by(socket, &local(2)).unwrap();
    server.end.post_recvs(qp, 1);
    peer.send(b"lets the server send", None);
    assert!(matches!(server.next(qp), Event::Message(..)));
    server.end.send(qp, &[3; 4000]);
    server.end.turn();
    let (_, payload) = peer.next().unwrap();
    assert!(payload.len() > 500, "{}", payload.len());
}

#[test]
fn crcs_are_left_out_when_neither_end_asks() {
    let asks = [(false, false), (false, true), (true, false)];
    for (ours, theirs) in asks {
        let mut server = Server::with(IwarpConfig { crc: ours, ..config() });
        let socket = dial(&server.address, 1, None);
        let (mut peer, qp) = server.connect_by(socket, &Local { crc: theirs, ..local(2) }).unwrap();
        server.end.post_recvs(qp, 1);
        let send = Message::Send { length: 4, invalidate: None, solicited: false };
        let bytes = peer.frame(send, b"data");
        assert_eq!(bytes.ends_with(&[0; 4]), !(ours || theirs));
        peer.socket.write_all(&bytes).unwrap();
        assert_eq!(server.next(qp), Event::Message(b"data".to_vec(), None));
        // The peer checks what it gets.
        server.end.send(qp, b"answer");
        server.end.turn();
        assert_eq!(peer.next().unwrap().1, b"answer");
    }
}

/// Revoke a key of a connection that is closing, while its bytes are queued for a peer that does not read them.
#[test]
fn a_key_of_an_ending_connection_is_not_told_dead_while_its_memory_is_held() {
    let mut server = Server::new();
    let (mut peer, qp) = server.connect();
    let (bulks, slices) = queue_answers(&mut server, &mut peer, qp);
    server.end.fabric.close(qp);
    assert!(bulks.iter().any(Bulk::is_leased), "the kernel has taken all of it");
    for (bulk, slice) in bulks.iter().zip(slices) {
        let revoked = server.end.fabric.revoke(qp, slice.handle);
        assert!(revoked == Revoked::Soon || !bulk.is_leased());
    }
}

/// Look at what the connecting side sends first, and again while it hears nothing. Some adapters treat key 0 in a special way.
#[test]
fn empty_writes_name_a_key_that_is_not_zero() {
    let (mut end, _, mut peer) = client();
    let reading = std::thread::spawn(move || [0; 2].map(|_| peer.next().unwrap().0));
    while !reading.is_finished() {
        end.turn();
    }
    for event in reading.join().unwrap() {
        assert!(matches!(event, WireEvent::Write { stag: 1, .. }), "{event:?}");
    }
}
