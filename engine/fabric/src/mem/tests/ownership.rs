//! The rules of each handle, one by one.

use super::{boxed_region, bulk_pool, free};
use crate::mem::{Buf, BufPool, Bulk, BulkClass, BulkPool, Lease, PoolError, Region, SharedBulk};
use crate::sys::mmap::{Mapping, PageRequest, SharedMemory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn panics<T>(misuse: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(misuse()))).is_err()
}

fn buf_pool(buf_bytes: usize, count: usize) -> BufPool {
    let region = boxed_region(BufPool::region_bytes(buf_bytes, count).unwrap());
    BufPool::new(region, buf_bytes, count).unwrap()
}

#[test]
fn handles_to_blocks_go_to_any_thread() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Bulk>();
    is_send::<Lease>();
    is_send::<SharedBulk>();
    is_sync::<SharedBulk>();
    is_send::<BulkPool>();
    is_sync::<BulkPool>();
}

#[test]
fn a_buffer_starts_empty_and_shows_its_range() {
    let mut buf = buf_pool(10, 1).take().unwrap();
    assert_eq!((buf.capacity(), buf.len()), (10, 0));
    buf.whole_mut().copy_from_slice(b"0123456789");
    buf.set_range(3..7);
    assert_eq!(buf.bytes(), b"3456");
    assert_eq!((buf.len(), buf.range()), (4, 3..7));
    buf.bytes_mut()[0] = b'x';
    buf.set_range(2..10);
    assert_eq!(buf.bytes(), b"2x456789");
    assert_eq!(buf.as_ptr().as_ptr().cast_const(), buf.bytes().as_ptr());
}

#[test]
fn buffers_start_at_different_cache_sets() {
    let pool = buf_pool(4096, 5);
    let held: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
    let mut sets: Vec<usize> = held.iter().map(|buf| buf.as_ptr().as_ptr().addr() % 4096).collect();
    assert!(sets.iter().all(|at| at % 64 == 0));
    sets.sort_unstable();
    sets.dedup();
    assert_eq!(sets.len(), 5);
}

#[test]
fn four_buffers_of_a_page_take_four_pages() {
    assert_eq!(BufPool::region_bytes(4096, 4), Ok(4 * 4096));
    let pool = buf_pool(4096, 4);
    let held: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
    let mut starts: Vec<usize> = held.iter().map(|buf| buf.as_ptr().as_ptr().addr()).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 4096), "{starts:?}");
}

#[test]
fn a_pool_that_cannot_be_is_an_error() {
    let new = |bytes, count| BufPool::new(boxed_region(1000), bytes, count).err();
    assert_eq!(new(0, 1), Some(PoolError::Empty));
    assert_eq!(new(1, 0), Some(PoolError::Empty));
    assert_eq!(new(usize::MAX, 1), Some(PoolError::TooLarge));
    assert_eq!(new(u32::MAX as usize, u32::MAX as usize), Some(PoolError::TooLarge));
    let too_small = PoolError::RegionTooSmall { needed_bytes: 6400, region_bytes: 1064 };
    assert_eq!(new(64, 100), Some(too_small));

    let new = |classes: &[BulkClass]| BulkPool::new(boxed_region(1000), classes).err();
    let class = |block_bytes, count| BulkClass { block_bytes, count };
    assert_eq!(new(&[]), Some(PoolError::Empty));
    assert_eq!(new(&[class(64, 1), class(0, 1)]), Some(PoolError::Empty));
    assert_eq!(new(&[class(64, 1), class(64, 0)]), Some(PoolError::Empty));
    assert_eq!(new(&[class(usize::MAX, 2)]), Some(PoolError::TooLarge));
    assert_eq!(new(&[class(1, usize::MAX), class(1, 1)]), Some(PoolError::TooLarge));
    assert_eq!(new(&[class(64, 100)]), Some(too_small));
}

#[test]
fn parts_of_a_region_share_the_id_and_no_byte() {
    let mut rest = Region::from_mapping(Mapping::anonymous(4096, PageRequest::default()).unwrap());
    let front = rest.split_to(100).unwrap();
    assert_eq!((front.offset(), front.len()), (0, 128));
    assert_eq!((rest.offset(), rest.len()), (128, 4096 - 128));
    assert_eq!(front.id(), rest.id());
    assert!(rest.split_to(4096 - 127).is_none());
    assert!(rest.split_to(usize::MAX).is_none());
    assert_ne!(front.id(), boxed_region(1).id());

    let pool = BulkPool::new(rest, &[BulkClass { block_bytes: 64, count: 2 }]).unwrap();
    drop(front);
    let mut second = [pool.take(1), pool.take(1)].into_iter().flatten().last().unwrap();
    second.bytes_mut().fill(1);
    assert_eq!(second.lease(5..9).region_offset(), 128 + 64 + 5);
}

#[test]
fn no_reference_is_made_to_memory_that_a_peer_can_write() {
    let memory = Arc::new(SharedMemory::create("test", 4096).unwrap().0);
    let region = || Region::from_shared(Arc::clone(&memory));
    assert_eq!(BufPool::new(region(), 64, 1).err(), Some(PoolError::Exposed));
    let pool = BulkPool::new(region(), &[BulkClass { block_bytes: 64, count: 1 }]).unwrap();
    let mut bulk = pool.take(10).unwrap();
    assert!(pool.is_exposed() && bulk.is_exposed());
    assert!(panics(|| bulk.bytes().len()));
    assert!(panics(|| bulk.bytes_mut().len()));
    bulk.copy_from(2, b"abc");
    let mut out = [0; 4];
    bulk.copy_to(2, &mut out);
    assert_eq!(&out[..3], b"abc");
    assert!(panics(|| bulk.copy_to(7, &mut [0; 4])));
    assert!(panics(|| bulk.copy_from(usize::MAX, b"abcd")));
    let mut private = bulk_pool(&[(64, 1)]).take(10).unwrap();
    private.copy_from_bulk(&bulk, 10);
    assert_eq!(&private.bytes()[2..5], b"abc");
    assert!(panics(|| private.copy_from_bulk(&bulk, 11)));
    let lease = bulk.lease(0..10);
    assert!(panics(|| bulk.copy_to(0, &mut [0; 4])));
    drop(lease);
    assert!(panics(|| bulk.freeze()));
}

#[test]
fn a_block_that_is_lent_is_not_to_be_touched() {
    let pool = bulk_pool(&[(64, 1)]);
    let mut bulk = pool.take(64).unwrap();
    assert!(!bulk.is_leased());
    let lease = bulk.lease(0..10);
    assert!(bulk.is_leased());
    assert!(panics(|| bulk.bytes().len()));
    assert!(panics(|| bulk.bytes_mut().len()));
    drop(lease);
    assert!(!bulk.is_leased());
    assert_eq!(bulk.bytes_mut().len(), 64);

    let lease = bulk.lease(0..10);
    assert!(panics(move || bulk.freeze()));
    assert_eq!(free(&pool), [0], "the lease keeps the block");
    drop(lease);
    assert_eq!(free(&pool), [1]);
}

#[test]
fn ranges_lent_at_the_same_time_do_not_overlap() {
    let mut bulk = bulk_pool(&[(64, 1)]).take(64).unwrap();
    let first = bulk.lease(8..16);
    let second = bulk.lease(16..32);
    assert!(panics(|| bulk.lease(31..40)));
    assert!(panics(|| bulk.lease(0..8)), "only ascending ranges are known not to overlap");
    drop((first, second));
    assert_eq!(bulk.lease(0..64).len(), 64);
}

#[test]
fn a_lease_is_split_and_advanced_within_its_range() {
    let mut bulk = bulk_pool(&[(64, 1)]).take(64).unwrap();
    let mut lease = bulk.lease(8..40);
    let base = lease.region_offset();
    let front = lease.split_to(12);
    assert_eq!((front.region_offset(), front.len()), (base, 12));
    assert_eq!((lease.region_offset(), lease.len()), (base + 12, 20));
    lease.advance(20);
    assert!(lease.is_empty());
    assert!(panics(|| lease.advance(1)));
    assert!(panics(|| lease.split_to(1)));
    assert!(panics(|| lease.split_to(usize::MAX)));
    drop(lease);
    assert!(bulk.is_leased(), "the part split off is still out");
    assert!(front.writable());
}

#[test]
fn a_frozen_block_is_never_a_target() {
    let pool = bulk_pool(&[(64, 1)]);
    let mut bulk = pool.take(3).unwrap();
    bulk.bytes_mut().copy_from_slice(b"abc");
    let shared = bulk.freeze();
    let mut lease = shared.clone().lease(0..3);
    assert!(!lease.writable());
    assert!(!lease.split_to(1).writable());
    assert_eq!(shared.bytes(), b"abc", "readers go on while it is lent");
    drop(shared);
    assert_eq!(free(&pool), [0]);
    drop(lease);
    assert_eq!(free(&pool), [1]);
}

#[test]
fn memory_of_the_application_is_a_region_of_its_own() {
    let mut bulk = Bulk::from_vec(b"hello".to_vec());
    assert_eq!((bulk.capacity(), bulk.bytes()), (5, b"hello".as_slice()));
    assert_ne!(bulk.region_id(), Bulk::from_vec(vec![0]).region_id());
    let lease = bulk.lease(1..5);
    let (id, offset) = (lease.region_id(), lease.region_offset());
    assert_eq!((id, offset), (bulk.region_id(), 1));
    drop(bulk);
    // SAFETY: the lease keeps the bytes, and they are not written.
    let kept = unsafe { std::slice::from_raw_parts(lease.as_ptr().as_ptr(), lease.len()) };
    assert_eq!(kept, b"ello");
    assert!(Bulk::from_vec(Vec::new()).bytes().is_empty());
}

#[test]
fn a_lease_is_read_and_written_within_its_bounds_only() {
    let pool = bulk_pool(&[(64, 2)]);
    let mut bulk = pool.take(64).unwrap();
    bulk.bytes_mut().fill(1);
    let mut lease = bulk.lease(8..24);
    lease.write_at(4, &[2; 12]);
    let mut bytes = [0; 16];
    lease.read_at(0, &mut bytes);
    assert_eq!(bytes, [[1; 4], [2; 4], [2; 4], [2; 4]].concat()[..]);
    assert!(panics(|| lease.write_at(5, &[3; 12])));
    assert!(panics(|| lease.read_at(usize::MAX, &mut [0])));
    drop(lease);
    assert_eq!(bulk.bytes()[..8], [1; 8]);
    assert_eq!(bulk.bytes()[24..], [1; 40]);
    assert!(panics(|| bulk.freeze().lease(0..4).write_at(0, &[4])));
}
