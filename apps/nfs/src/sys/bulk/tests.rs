//! Files are read into and written from the memory of transfers, through io_uring, which these tests
//! need.

use crate::sys::file_ring::{Done, FileRing, StableBytes, Work};
use rustix::fs::{self, Mode, OFlags};
use spinrpc::Bulk;
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
