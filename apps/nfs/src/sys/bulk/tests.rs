//! Files are read into and written from the memory of transfers, through io_uring, which these tests
//! need.

use crate::sys::file_ring::{Done, Durability, FileRing, StableBytes, Work};
use rustix::fs::{self, Mode, OFlags};
use spinrpc::Bulk;
use spinrpc::mem::{BulkClass, BulkPool, Region};
use std::os::fd::OwnedFd;
use std::sync::Arc;

fn file() -> Arc<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Arc::new(fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR).unwrap())
}

fn finish(ring: &mut FileRing<Bulk, ()>) -> Bulk {
    let mut ended: Option<Done<Bulk, ()>> = None;
    while ended.is_none() {
        ring.poll(|done| ended = Some(done)).unwrap();
    }
    let done = ended.unwrap();
    done.result.unwrap();
    done.buffer.unwrap()
}

#[test]
fn the_bytes_in_use_are_written_and_read_and_no_others() {
    let mut ring = FileRing::new(1).expect("this test needs io_uring, which a sandbox may deny");
    let file = file();
    ring.queue(Work::Write(None), file.clone(), 0, Some(Bulk::from_vec(b"bulk".to_vec())), ())
        .unwrap();
    finish(&mut ring);
    let mut bulk = Bulk::from_vec(vec![0xee; 8]);
    bulk.set_len(3);
    ring.queue(Work::Read, file, 1, Some(bulk), ()).unwrap();
    let mut bulk = finish(&mut ring);
    assert_eq!(bulk.bytes(), b"ulk");
    bulk.set_len(8);
    assert_eq!(bulk.bytes(), b"ulk\xee\xee\xee\xee\xee");
}

#[test]
#[should_panic(expected = "lent to a driver")]
fn what_is_lent_to_a_driver_is_not_given_to_a_file() {
    let mut bulk = Bulk::from_vec(vec![0; 8]);
    let _lease = bulk.lease(0..8);
    bulk.stable_bytes();
}

fn pool() -> BulkPool {
    let classes = [BulkClass { block_bytes: 1 << 20, count: 2 }];
    let bytes = BulkPool::region_bytes(&classes).unwrap();
    let region = Region::from_boxed(vec![0; bytes + 64].into_boxed_slice());
    BulkPool::new(region, &classes).unwrap()
}

/// Each size both in registered memory and in other memory; and the pool goes before the ring.
#[test]
fn memory_that_is_registered_is_read_and_written_as_other_memory_is() {
    let pool = pool();
    let mut ring = FileRing::new(1).expect("this test needs io_uring, which a sandbox may deny");
    ring.register(pool.hold_region()).expect("1 MiB may be pinned (RLIMIT_MEMLOCK)");
    ring.register(pool.hold_region()).expect("and is, but not again");
    for (length, worker_from_bytes) in [(1, usize::MAX), (4096, 0), (1 << 20, usize::MAX)] {
        ring.set_worker_from_bytes(worker_from_bytes);
        for durability in [None, Some(Durability::File)] {
            let (file, content) =
                (file(), (0..length).map(|n| (n % 251) as u8).collect::<Vec<_>>());
            let mut ours = pool.take(length).unwrap();
            ours.bytes_mut().copy_from_slice(&content);
            ring.queue(Work::Write(durability), file.clone(), 5, Some(ours), ()).unwrap();
            finish(&mut ring);
            for place in [pool.take(length).unwrap(), Bulk::from_vec(vec![0; length])] {
                ring.queue(Work::Read, file.clone(), 5, Some(place), ()).unwrap();
                assert!(finish(&mut ring).bytes() == content, "{length} bytes");
            }
        }
    }
    drop(pool);
    drop(ring);
}

/// The first large transfer has the memory of its pool registered, from when on the ring keeps it.
#[test]
fn the_memory_of_a_pool_is_learnt_from_its_blocks_and_that_of_a_single_block_is_not() {
    let pool = pool();
    let hold = pool.hold_region();
    let mut ring = FileRing::new(1).expect("this test needs io_uring, which a sandbox may deny");
    let (file, content) = (file(), vec![7; 1 << 20]);
    for mut bulk in [Bulk::from_vec(content.clone()), pool.take(content.len()).unwrap()] {
        bulk.bytes_mut().copy_from_slice(&content);
        assert_eq!(bulk.whole_memory().is_some(), bulk.region_id() == pool.region_id());
        ring.queue(Work::Write(None), file.clone(), 0, Some(bulk), ()).unwrap();
        drop(finish(&mut ring));
        ring.queue(Work::Read, file.clone(), 0, Some(pool.take(content.len()).unwrap()), ())
            .unwrap();
        assert!(finish(&mut ring).bytes() == content);
    }
    assert!(!hold.is_unused(), "of the pool");
    let bulk = pool.take(1).unwrap();
    drop(pool);
    assert!(!hold.is_unused(), "of the last block");
    drop(bulk);
    assert!(hold.is_unused(), "unused: the ring only holds it");
}
