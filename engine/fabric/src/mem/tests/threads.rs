//! Blocks under many threads: taken here, lent there, freed elsewhere.

use super::{bulk_pool, free};
use crate::mem::{Bulk, BulkPool, Lease};
use crossbeam::channel::{Receiver, Sender, unbounded};
use std::thread;

const ROUNDS: usize = 2_000;

/// A driver: writes `stamp` to its lease, then ends the loan.
fn fill(lease: &Lease, stamp: u8) {
    assert!(lease.writable());
    // SAFETY: a writable lease has its bytes to itself.
    unsafe { lease.as_ptr().as_ptr().write_bytes(stamp, lease.len()) };
}

fn driver(loans: Receiver<(Lease, u8)>) {
    for (lease, stamp) in loans {
        fill(&lease, stamp);
    }
}

/// Takes blocks, has both halves filled by the driver, and looks at them when they are back.
fn owner(pool: &BulkPool, driver: &Sender<(Lease, u8)>, done: &Sender<Bulk>, stamp: u8) {
    for round in 0..ROUNDS {
        let Some(mut bulk) = pool.take(40 + round % 100) else {
            thread::yield_now();
            continue;
        };
        bulk.bytes_mut().fill(!stamp);
        let mut back = bulk.lease(0..bulk.len());
        let front = back.split_to(bulk.len() / 2);
        driver.send((front, stamp)).unwrap();
        if round % 3 == 0 {
            // The owner goes first; the last loan gives the block back.
            drop(bulk);
            driver.send((back, stamp)).unwrap();
            continue;
        }
        driver.send((back, stamp)).unwrap();
        while bulk.is_leased() {
            thread::yield_now();
        }
        assert!(bulk.bytes().iter().all(|byte| *byte == stamp), "somebody else wrote here");
        done.send(bulk).unwrap();
    }
}

/// Frees on another thread the blocks that were taken elsewhere.
fn reader(done: Receiver<Bulk>) {
    for bulk in done {
        let first = bulk.bytes().first().copied();
        let shared = bulk.freeze();
        let lease = shared.lease(0..shared.len());
        assert!(shared.bytes().iter().all(|byte| Some(*byte) == first));
        drop(shared);
        drop(lease);
    }
}

#[test]
fn threads_take_lend_and_free_without_sharing_a_byte() {
    let pool = bulk_pool(&[(64, 5), (160, 4)]);
    let (to_driver, loans) = unbounded();
    let (to_reader, done) = unbounded();
    thread::scope(|scope| {
        scope.spawn(|| driver(loans));
        scope.spawn(|| reader(done));
        for stamp in [1, 2, 3] {
            let (pool, to_driver, to_reader) = (pool.clone(), to_driver.clone(), to_reader.clone());
            scope.spawn(move || owner(&pool, &to_driver, &to_reader, stamp));
        }
        drop((to_driver, to_reader));
    });
    assert_eq!(free(&pool), [5, 4]);
}

#[test]
fn the_last_handle_frees_the_pool_on_whatever_thread() {
    for _ in 0..200 {
        let pool = bulk_pool(&[(64, 2)]);
        let mut bulk = pool.take(64).unwrap();
        let lease = bulk.lease(0..64);
        thread::scope(|scope| {
            scope.spawn(move || drop(lease));
            scope.spawn(move || drop(bulk));
            drop(pool);
        });
    }
}
