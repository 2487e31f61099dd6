//! RDMA Reads and Writes that are allowed, and their order among Sends (RFC 5666 section 2).

use super::*;

pub(crate) fn expose<C: Connector>(
    pair: &mut Pair<C>,
    bytes: &[u8],
    access: Access,
) -> (Bulk, RemoteSlice) {
    let mut bulk = pair.far.bulk(pair.at_far, bytes);
    let lease = bulk.lease(0..bytes.len());
    let slice = pair.far.fabric.expose(pair.at_far, lease, access, None).unwrap();
    assert_eq!(slice.length as usize, bytes.len());
    pair.settle();
    (bulk, slice)
}

pub(crate) fn write<C: Connector>(pair: &mut Pair<C>, bytes: &[u8], to: RemoteSlice) {
    let from = pair.near.bulk(pair.at_near, bytes).lease(0..bytes.len());
    pair.near.post(pair.at_near, SendWr::Write { from, to });
}

pub(crate) fn read<C: Connector>(pair: &mut Pair<C>, id: u64, from: RemoteSlice) -> Bulk {
    let length = from.length as usize;
    let mut bulk = pair.near.bulk(pair.at_near, &vec![0xee; length]);
    let into = bulk.lease(0..length);
    pair.near.post(pair.at_near, SendWr::Read { id: WrId(id), from, into });
    bulk
}

/// Write, then Send. Expect the bytes in place when the message is received.
pub(crate) fn bytes_written_before_a_send_are_there_when_it_arrives<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for length in [1, 7, 8, 64, 4096, 60_001, 1 << 20] {
        let (bulk, slice) = expose(&mut pair, &vec![0; length], Access::RemoteWrite);
        write(&mut pair, &pattern(length, 3), slice);
        pair.near.send(pair.at_near, b"done");
        pair.far.post_recvs(pair.at_far, 1);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(b"done".to_vec(), None));
        pair.far.revoke(pair.at_far, slice.handle);
        assert!(bytes_of(&bulk) == pattern(length, 3), "{length} bytes");
    }
}

/// Read exposed memory. Expect the completion, and the bytes.
pub(crate) fn a_read_brings_what_the_peer_exposes<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for length in [1, 7, 8, 64, 4096, 60_001] {
        let (_exposed, slice) = expose(&mut pair, &pattern(length, 5), Access::RemoteRead);
        let bulk = read(&mut pair, 9, slice);
        assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(9), Ok(())));
        assert_eq!(bytes_of(&bulk), pattern(length, 5));
        pair.far.revoke(pair.at_far, slice.handle);
    }
}

/// Post several Reads. Expect their completions in order.
pub(crate) fn reads_complete_in_order_and_with_their_ids<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_exposed, slice) = expose(&mut pair, &pattern(4096, 1), Access::RemoteRead);
    let bulks: Vec<Bulk> = (0..8).map(|id| read(&mut pair, id, slice)).collect();
    for (id, bulk) in (0..8).zip(bulks) {
        assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(id), Ok(())));
        assert_eq!(bytes_of(&bulk), pattern(4096, 1));
    }
}

/// Write and Read parts of exposed memory. Expect exactly those bytes to change or come.
pub(crate) fn parts_of_an_exposure_can_be_read_and_written<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let part = |slice: RemoteSlice, at: u32, length: u32| RemoteSlice {
        offset: slice.offset + u64::from(at),
        length,
        ..slice
    };
    let (target, slice) = expose(&mut pair, &[1; 100], Access::RemoteWrite);
    write(&mut pair, &[2; 10], part(slice, 0, 10));
    write(&mut pair, &[3; 20], part(slice, 80, 20));
    let (_source, source) = expose(&mut pair, &pattern(100, 7), Access::RemoteRead);
    let bulk = read(&mut pair, 1, part(source, 33, 44));
    assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(1), Ok(())));
    assert_eq!(bytes_of(&bulk), &pattern(100, 7)[33..77]);
    pair.far.revoke(pair.at_far, slice.handle);
    assert_eq!(bytes_of(&target), [&[2; 10][..], &[1; 70], &[3; 20]].concat());
}

/// Write a mebibyte on one connection and Send on another. Expect the message before the message behind
/// the Write. A device with an order of its own has several rounds, of which one must succeed: it may
/// finish the Write while this thread is paused.
pub(crate) fn a_long_transfer_does_not_hold_up_another_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let rounds = if pair.limits.serves_in_its_own_order { 8 } else { 1 };
    let (other_near, other_far) = pair.connect();
    let (_bulk, slice) = expose(&mut pair, &vec![0; 1 << 20], Access::RemoteWrite);
    let overtaken = (0..rounds).any(|_| {
        pair.far.post_recvs(pair.at_far, 1);
        pair.far.post_recvs(other_far, 1);
        write(&mut pair, &vec![1; 1 << 20], slice);
        pair.near.send(pair.at_near, b"behind");
        pair.near.send(other_near, b"meanwhile");
        assert_eq!(pair.next_far(other_far), Event::Message(b"meanwhile".to_vec(), None));
        let behind = pair.far.next(pair.at_far);
        let overtaken = behind.is_none();
        let behind = behind.unwrap_or_else(|| pair.next_far(pair.at_far));
        assert_eq!(behind, Event::Message(b"behind".to_vec(), None));
        overtaken
    });
    assert!(overtaken || pair.limits.sends_one_by_one, "the message waited for the Write");
}

/// Read and Write no bytes. Expect a completion, and a connection that goes on.
pub(crate) fn a_transfer_of_nothing_completes<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_exposed, slice) = expose(&mut pair, &[1; 8], Access::RemoteRead);
    let _bulk = read(&mut pair, 2, RemoteSlice { length: 0, ..slice });
    assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(2), Ok(())));
    let (_target, slice) = expose(&mut pair, &[1; 8], Access::RemoteWrite);
    write(&mut pair, &[], RemoteSlice { length: 0, ..slice });
    pair.expect_alive();
}
