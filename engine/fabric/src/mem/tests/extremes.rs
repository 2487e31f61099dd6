//! Extreme lengths: refused in every build, whether or not it checks arithmetic for overflow.

use super::{boxed_region, bulk_pool};
use crate::mem::{BufPool, Bulk, BulkClass, BulkPool, Region};
use proptest::prelude::*;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of every buffer and block here.
const BYTES: usize = 100;

/// Lengths around the limits, and around the ends of the types that hold them.
fn length() -> impl Strategy<Value = usize> {
    let near = |end: usize| (0..BYTES).prop_map(move |less| end - less);
    prop_oneof![
        0..2 * BYTES,
        near(usize::MAX),
        near(isize::MAX as usize),
        near(isize::MAX as usize + BYTES / 2),
        near(u32::MAX as usize),
        near((1 << 32) + BYTES / 2),
        any::<usize>(),
    ]
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (length(), length()).prop_map(|(start, end)| start..end)
}

/// True if an explicit check refuses `act`. A sum that overflowed on the way to the check fails the
/// test: a release build would have wrapped.
fn is_refused<T>(act: impl FnOnce() -> T) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(act()))) else { return false };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(!text.contains("overflow"), "arithmetic overflowed: {text}");
    true
}

fn fits(range: &Range<usize>, bytes: usize) -> bool {
    range.start <= range.end && range.end <= bytes
}

proptest! {
    #[test]
    fn a_received_length_beyond_the_buffer_is_refused(length in length()) {
        let region = boxed_region(BufPool::region_bytes(BYTES, 1).unwrap());
        let mut buf = BufPool::new(region, BYTES, 1).unwrap().take().unwrap();
        prop_assert_eq!(buf.set_received(length), length <= BYTES);
        prop_assert_eq!(buf.len(), if length <= BYTES { length } else { 0 });
    }

    #[test]
    fn a_buffer_has_no_range_beyond_its_end(range in range()) {
        let region = boxed_region(BufPool::region_bytes(BYTES, 1).unwrap());
        let mut buf = BufPool::new(region, BYTES, 1).unwrap().take().unwrap();
        let refused = is_refused(|| buf.set_range(range.clone()));
        prop_assert_eq!(refused, !fits(&range, BYTES));
        prop_assert!(buf.range().end <= BYTES);
    }

    #[test]
    fn a_block_has_no_length_and_no_lease_beyond_its_end(length in length(), range in range()) {
        let pool = bulk_pool(&[(BYTES, 1)]);
        prop_assert_eq!(pool.take(length).is_some(), length <= BYTES);
        prop_assert_eq!(pool.could_hold([length]), length <= BYTES);
        let mut bulk = pool.take(BYTES).unwrap();
        prop_assert_eq!(is_refused(|| bulk.set_len(length)), length > BYTES);
        bulk.set_len(BYTES);
        prop_assert_eq!(is_refused(|| bulk.lease(range.clone())), !fits(&range, BYTES));
        let shared = bulk.freeze();
        prop_assert_eq!(is_refused(|| shared.lease(range.clone())), !fits(&range, BYTES));
    }

    #[test]
    fn a_lease_gives_no_byte_beyond_its_end(at in length(), bytes in 0..2 * BYTES) {
        let mut bulk = Bulk::from_vec(vec![0; BYTES + 20]);
        let mut lease = bulk.lease(10..10 + BYTES);
        let outside = at > BYTES || bytes > BYTES - at;
        let mut out = vec![0; bytes];
        prop_assert_eq!(is_refused(|| lease.read_at(at, &mut out)), outside);
        prop_assert_eq!(is_refused(|| lease.write_at(at, &out)), outside);
        prop_assert_eq!(is_refused(|| lease.witness().read_at(at, &mut out)), outside);
        prop_assert_eq!(is_refused(|| lease.split_to(at)), at > BYTES);
        let left = lease.len();
        prop_assert_eq!(is_refused(|| lease.advance(at)), at > left);
        prop_assert!(lease.region_offset() + lease.len() <= 10 + BYTES);
    }

    #[test]
    fn sizes_of_pools_and_regions_do_not_wrap(
        block_bytes in length(), count in length(), more in length(),
    ) {
        let class = |block_bytes, count| BulkClass { block_bytes, count };
        let classes = [class(block_bytes, count), class(more, 1)];
        if let Ok(bytes) = BulkPool::region_bytes(&classes) {
            let needed = block_bytes as u128 * count as u128 + more as u128;
            prop_assert!(bytes as u128 >= needed && bytes <= isize::MAX as usize);
        }
        if let Ok(bytes) = BufPool::region_bytes(block_bytes, count) {
            prop_assert!(bytes as u128 >= block_bytes as u128 * count as u128);
            prop_assert!(bytes <= isize::MAX as usize);
        }
        let mut region = Region::from_boxed(vec![0; BYTES].into());
        prop_assert!(region.split_to(more).is_none_or(|front| front.len() <= BYTES));
    }
}
