//! Memory that a peer must not reach: rights, bounds, and keys that are dead (RFC 5042).

use super::*;
use std::collections::HashSet;

const REFUSED: DownCause = DownCause::WorkRequest(WrError::RemoteAccess);

fn expect_read_refused<C: Connector>(mut pair: Pair<C>, slice: RemoteSlice) {
    let bulk = read(&mut pair, 77, slice);
    let Event::Read(WrId(77), Err(error)) = pair.next_near(pair.at_near) else {
        panic!("the Read was not refused");
    };
    assert!(pair.agrees(&REFUSED, &DownCause::WorkRequest(error)), "{error:?}");
    assert!(bytes_of(&bulk).iter().all(|byte| *byte == 0xee), "a refused Read has brought bytes");
    pair.expect_causes(&REFUSED, &DownCause::Remote);
}

/// Expects that a Read of `slice` brings these bytes: the device, or the way it registers memory, lacks the
/// protection that the others have.
fn expect_read<C: Connector>(pair: &mut Pair<C>, slice: RemoteSlice, bytes: &[u8]) {
    let bulk = read(pair, 78, slice);
    assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(78), Ok(())));
    assert_eq!(bytes_of(&bulk), bytes);
}

fn expect_write_refused<C: Connector>(pair: &mut Pair<C>, slice: RemoteSlice) {
    write(pair, &vec![0xbb; slice.length as usize], slice);
    pair.expect_causes(&REFUSED, &DownCause::Remote);
}

/// Read memory exposed for writing. Expect a remote access error and the end of the connection.
pub(crate) fn a_read_without_the_right_fails_and_ends_the_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteWrite);
    match pair.limits.reads_without_the_right {
        true => expect_read(&mut pair, slice, &[1; 64]),
        false => expect_read_refused(pair, slice),
    }
}

/// Write to memory exposed for reading. Expect the end of the connection, and the bytes unchanged.
pub(crate) fn a_write_without_the_right_ends_the_connection<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
    if pair.limits.writes_without_the_right {
        write(&mut pair, &[0xbb; 64], slice);
        pair.expect_alive();
        pair.far.revoke(pair.at_far, slice.handle);
        return assert_eq!(bytes_of(&bulk), [0xbb; 64]);
    }
    expect_write_refused(&mut pair, slice);
    assert_eq!(bytes_of(&bulk), [1; 64]);
}

/// Read and Write one byte before, behind and far beyond the exposed memory, and around the end of
/// all addresses. Expect a remote access error each time.
pub(crate) fn a_transfer_beyond_the_exposed_bytes_fails<P: Provider>(provider: &P) {
    // Ranges outside of the region, of the block that begins there, and of the exposure.
    let outside: [fn(&mut RemoteSlice); 5] = [
        |slice| slice.offset = u64::MAX - 8,
        |slice| slice.offset += 1 << 40,
        |slice| slice.offset = slice.offset.wrapping_sub(1),
        |slice| slice.offset += 1,
        |slice| slice.length += 1,
    ];
    let checked = match provider.limits().bounds {
        Bounds::Region => 2,
        Bounds::Block => 3,
        Bounds::Exact => outside.len(),
    };
    for change in &outside[..checked] {
        for access in [Access::RemoteRead, Access::RemoteWrite] {
            let mut pair = Pair::new(provider);
            let (_before, _) = expose(&mut pair, &[1; 64], access);
            let (_bulk, mut slice) = expose(&mut pair, &[1; 64], access);
            let (_behind, _) = expose(&mut pair, &[1; 64], access);
            change(&mut slice);
            match access {
                Access::RemoteRead => expect_read_refused(pair, slice),
                Access::RemoteWrite => expect_write_refused(&mut pair, slice),
            }
        }
    }
}

/// Read under a key that was never given out. Expect a remote access error.
pub(crate) fn a_key_that_never_was_fails<P: Provider>(provider: &P) {
    for change in [1, 1 << 16, 1 << 31, u32::MAX] {
        let mut pair = Pair::new(provider);
        let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
        expect_read_refused(pair, RemoteSlice { handle: slice.handle ^ change, ..slice });
    }
}

/// Use the key of one connection's exposure over another one of the same two ends. Expect a remote access error, the end of that
/// connection, and the bytes unchanged.
pub(crate) fn a_key_means_nothing_on_another_connection<P: Provider>(provider: &P) {
    for access in [Access::RemoteRead, Access::RemoteWrite] {
        let mut pair = Pair::new(provider);
        let (bulk, slice) = expose(&mut pair, &[1; 64], access);
        let exposing = pair.at_far;
        (pair.at_near, pair.at_far) = pair.connect();
        if access == Access::RemoteRead {
            expect_read_refused(pair, slice);
            continue;
        }
        expect_write_refused(&mut pair, slice);
        pair.far.revoke(exposing, slice.handle);
        assert_eq!(bytes_of(&bulk), [1; 64]);
    }
}

/// Revoke a key, then Read under it. Expect a remote access error, also when its place is used
/// again.
pub(crate) fn a_revoked_key_is_dead<P: Provider>(provider: &P) {
    for used_again in [false, true] {
        let mut pair = Pair::new(provider);
        let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
        pair.far.revoke(pair.at_far, slice.handle);
        // A second time is fine.
        pair.far.revoke(pair.at_far, slice.handle);
        let _again = used_again.then(|| expose(&mut pair, &[2; 64], Access::RemoteRead));
        match pair.limits.keys_stay {
            true => expect_read(&mut pair, slice, &[1; 64]),
            false => expect_read_refused(pair, slice),
        }
    }
}

fn send_invalidating<C: Connector>(pair: &mut Pair<C>, length: usize, handle: u32) {
    let message = pair.near.message(&vec![7; length]);
    pair.near.post(pair.at_near, SendWr::Send { message, invalidate: Some(handle) });
}

/// The driver invalidates keys from afar: each does, but for modes in which keys live as long as the
/// connection.
fn invalidates<C: Connector>(pair: &Pair<C>) -> bool {
    let invalidates = pair.near.fabric.caps().remote_invalidate;
    assert!(invalidates || pair.limits.keys_stay, "keys that are revoked can be invalidated");
    invalidates
}

/// Send With Invalidate. Expect the key with the message, dead; and nothing when it is named again.
pub(crate) fn an_invalidated_key_is_dead_and_reported_once<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    if !invalidates(&pair) {
        return;
    }
    let (bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
    pair.far.post_recvs(pair.at_far, 2);
    send_invalidating(&mut pair, 5, slice.handle);
    assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![7; 5], Some(slice.handle)));
    assert!(!bulk.is_leased(), "a dead key holds memory");
    if !pair.limits.invalidates_strictly {
        send_invalidating(&mut pair, 600, slice.handle);
        assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![7; 600], None));
    }
    expect_read_refused(pair, slice);
}

/// Invalidate a key that was never given out. Expect the message, and nothing about a key; or, from a strict
/// device, the end of the connection.
pub(crate) fn an_unknown_key_is_not_reported_as_invalidated<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    if !invalidates(&pair) {
        return;
    }
    let (_bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
    pair.far.post_recvs(pair.at_far, 1);
    send_invalidating(&mut pair, 1, slice.handle ^ (1 << 20));
    if pair.limits.invalidates_strictly {
        pair.expect_down();
        return;
    }
    assert_eq!(pair.next_far(pair.at_far), Event::Message(vec![7], None));
    read(&mut pair, 1, slice);
    assert_eq!(pair.next_near(pair.at_near), Event::Read(WrId(1), Ok(())));
}

/// Expose the same memory 3,000 times. Expect a new key each time, and none of zero, and that keys
/// which have not been flushed are dead at once.
pub(crate) fn keys_differ_and_do_not_come_back_soon<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let mut bulk = pair.far.bulk(pair.at_far, &[1; 64]);
    let mut seen = HashSet::from([0]);
    for _ in 0..3000 {
        let lease = bulk.lease(0..64);
        let slice = pair.far.fabric.expose(pair.at_far, lease, Access::RemoteRead, None).unwrap();
        let is_new = seen.insert(slice.handle);
        assert!(is_new || pair.limits.keys_stay && seen.len() == 2, "{} came back", slice.handle);
        assert_eq!(pair.far.fabric.revoke(pair.at_far, slice.handle), Revoked::Now);
    }
}

/// Expose several pieces, do not announce them, and revoke them, the last first. Expect all of it
/// back at once.
pub(crate) fn keys_that_nobody_knows_are_dead_at_once<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    for _ in 0..3 {
        let mut bulks: Vec<_> = (0..3).map(|_| pair.far.bulk(pair.at_far, &[1; 64])).collect();
        let leases: Vec<_> = bulks.iter_mut().map(|bulk| bulk.lease(0..64)).collect();
        let expose = |lease| pair.far.fabric.expose(pair.at_far, lease, Access::RemoteRead, None);
        let slices: Vec<_> = leases.into_iter().map(expose).collect();
        for slice in slices.into_iter().rev() {
            let handle = slice.unwrap().handle;
            assert_eq!(pair.far.fabric.revoke(pair.at_far, handle), Revoked::Now);
        }
        assert!(bulks.iter().all(|bulk| !bulk.is_leased()));
    }
    pair.expect_alive();
}

/// Expose memory of another connection. Expect that it is refused.
pub(crate) fn foreign_memory_is_not_exposed<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (_, other) = pair.connect();
    let lease = pair.far.bulk(other, &[1; 64]).lease(0..64);
    let refused = pair.far.fabric.expose(pair.at_far, lease, Access::RemoteRead, None);
    assert_eq!(refused, Err(ExposeError::Foreign));
    pair.expect_alive();
}

/// Expose memory. Expect it to be leased until the key is revoked or the connection goes.
pub(crate) fn exposed_memory_is_leased_until_its_key_dies<P: Provider>(provider: &P) {
    let mut pair = Pair::new(provider);
    let (bulk, slice) = expose(&mut pair, &[1; 64], Access::RemoteRead);
    let (other, _) = expose(&mut pair, &[1; 64], Access::RemoteWrite);
    let is_leased = !pair.limits.leases_nothing;
    assert_eq!((bulk.is_leased(), other.is_leased()), (is_leased, is_leased));
    pair.far.revoke(pair.at_far, slice.handle);
    assert_eq!((bulk.is_leased(), other.is_leased()), (false, is_leased));
    pair.far.fabric.close(pair.at_far);
    pair.expect_down();
    assert!(!other.is_leased());
}
