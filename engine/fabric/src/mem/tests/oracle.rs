//! Random use of the pools compared with a list of owners.

use super::{boxed_region, bulk_pool, free};
use crate::mem::{Buf, BufPool, Bulk, Lease, SharedBulk};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
enum BufOp {
    Take,
    Drop(usize),
}

fn buf_op() -> impl Strategy<Value = BufOp> {
    prop_oneof![Just(BufOp::Take), any::<usize>().prop_map(BufOp::Drop)]
}

#[derive(Clone, Copy, Debug)]
enum BulkOp {
    Take { bytes: usize },
    Lease { which: usize, from: usize },
    Split { which: usize, at: usize },
    Freeze { which: usize },
    Clone { which: usize },
    LeaseShared { which: usize },
    DropBulk { which: usize },
    DropShared { which: usize },
    DropLease { which: usize },
}

fn bulk_op() -> impl Strategy<Value = BulkOp> {
    let which = any::<usize>;
    prop_oneof![
        4 => (0..300_usize).prop_map(|bytes| BulkOp::Take { bytes }),
        3 => (which(), 0..64_usize).prop_map(|(which, from)| BulkOp::Lease { which, from }),
        2 => (which(), which()).prop_map(|(which, at)| BulkOp::Split { which, at }),
        1 => which().prop_map(|which| BulkOp::Freeze { which }),
        1 => which().prop_map(|which| BulkOp::Clone { which }),
        1 => which().prop_map(|which| BulkOp::LeaseShared { which }),
        2 => which().prop_map(|which| BulkOp::DropBulk { which }),
        2 => which().prop_map(|which| BulkOp::DropShared { which }),
        3 => which().prop_map(|which| BulkOp::DropLease { which }),
    ]
}

/// Everything that can be held of one pool, each with the number of its block's taking.
#[derive(Default)]
struct Holders {
    taken: u64,
    bulks: Vec<(u64, Bulk)>,
    shared: Vec<(u64, SharedBulk)>,
    leases: Vec<(u64, Lease)>,
}

/// An index into a list, if it has any entries.
fn pick(which: usize, len: usize) -> Option<usize> {
    which.checked_rem(len)
}

impl Holders {
    fn apply(&mut self, op: BulkOp, pool: &crate::mem::BulkPool) -> Option<()> {
        match op {
            BulkOp::Take { bytes } => {
                self.taken += 1;
                self.bulks.push((self.taken, pool.take(bytes)?));
            }
            BulkOp::Lease { which, from } => {
                let which = pick(which, self.bulks.len())?;
                let (taking, bulk) = &mut self.bulks[which];
                // With one out already, the rules of `lease` need a start behind it; split instead.
                if !bulk.is_leased() {
                    let from = from.min(bulk.capacity());
                    self.leases.push((*taking, bulk.lease(from..bulk.capacity())));
                }
            }
            BulkOp::Split { which, at } => {
                let which = pick(which, self.leases.len())?;
                let (taking, lease) = &mut self.leases[which];
                let (taking, at) = (*taking, at % (lease.len() + 1));
                let front = lease.split_to(at);
                self.leases.push((taking, front));
            }
            BulkOp::Freeze { which } => {
                let which = pick(which, self.bulks.len())?;
                if !self.bulks[which].1.is_leased() {
                    let (taking, bulk) = self.bulks.swap_remove(which);
                    self.shared.push((taking, bulk.freeze()));
                }
            }
            BulkOp::Clone { which } => {
                let which = pick(which, self.shared.len())?;
                self.shared.push(self.shared[which].clone());
            }
            BulkOp::LeaseShared { which } => {
                let (taking, shared) = &self.shared[pick(which, self.shared.len())?];
                self.leases.push((*taking, shared.lease(0..shared.len())));
            }
            BulkOp::DropBulk { which } => {
                self.bulks.swap_remove(pick(which, self.bulks.len())?);
            }
            BulkOp::DropShared { which } => {
                self.shared.swap_remove(pick(which, self.shared.len())?);
            }
            BulkOp::DropLease { which } => {
                self.leases.swap_remove(pick(which, self.leases.len())?);
            }
        }
        Some(())
    }

    /// Number of blocks that are held.
    fn blocks(&self) -> usize {
        let bulks = self.bulks.iter().map(|(taking, _)| *taking);
        let shared = self.shared.iter().map(|(taking, _)| *taking);
        let leases = self.leases.iter().map(|(taking, _)| *taking);
        let all: std::collections::BTreeSet<u64> = bulks.chain(shared).chain(leases).collect();
        all.len()
    }

    /// Address ranges that may be written: whole bulks at home, and writable leases.
    fn writers(&self) -> Vec<Range<usize>> {
        let home = self.bulks.iter().filter(|(_, bulk)| !bulk.is_leased() && !bulk.is_empty());
        let home = home.map(|(_, bulk)| span(bulk.bytes().as_ptr(), bulk.len()));
        let leases = self.leases.iter().filter(|(_, lease)| lease.writable() && !lease.is_empty());
        home.chain(leases.map(|(_, lease)| span(lease.as_ptr().as_ptr(), lease.len()))).collect()
    }

    fn readers(&self) -> Vec<Range<usize>> {
        let shared = self.shared.iter().map(|(_, shared)| shared.bytes());
        shared.filter(|bytes| !bytes.is_empty()).map(|b| span(b.as_ptr(), b.len())).collect()
    }
}

fn span(first: *const u8, len: usize) -> Range<usize> {
    first.addr()..first.addr() + len
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

proptest! {
    /// Every buffer out is all its owner's, and `take` fails exactly when all are out.
    #[test]
    fn a_buffer_has_one_owner(ops in vec(buf_op(), 0..200), count in 1..20_usize, bytes in 1..200_usize) {
        let region = boxed_region(BufPool::region_bytes(bytes, count).unwrap());
        let pool = BufPool::new(region, bytes, count).unwrap();
        let mut held: Vec<(u8, Buf)> = Vec::new();
        for (op, stamp) in ops.into_iter().zip((0..=u8::MAX).cycle()) {
            match op {
                BufOp::Take => match pool.take() {
                    Some(mut buf) => {
                        prop_assert_eq!(buf.len(), 0);
                        buf.whole_mut().fill(stamp);
                        buf.set_range(0..bytes);
                        held.push((stamp, buf));
                    }
                    None => prop_assert_eq!(held.len(), count),
                },
                BufOp::Drop(which) => {
                    if let Some(which) = pick(which, held.len()) {
                        held.swap_remove(which);
                    }
                }
            }
            prop_assert_eq!(pool.available() + held.len(), count);
        }
        for (stamp, buf) in &held {
            prop_assert!(buf.bytes().iter().all(|byte| byte == stamp));
        }
    }

    /// A byte with a writer has no other user, and a block is free exactly when it is not held.
    #[test]
    fn a_block_has_one_writer_or_only_readers(ops in vec(bulk_op(), 0..200)) {
        let pool = bulk_pool(&[(64, 3), (100, 2), (256, 3)]);
        let mut holders = Holders::default();
        for op in ops {
            holders.apply(op, &pool);
            let writers = holders.writers();
            let readers = holders.readers();
            for (index, writer) in writers.iter().enumerate() {
                let others = writers[index + 1..].iter().chain(&readers);
                prop_assert_eq!(others.filter(|other| overlap(writer, other)).count(), 0);
            }
            prop_assert_eq!(free(&pool).iter().sum::<usize>() + holders.blocks(), 8);
        }
    }

    /// The smallest class that fits and has a block free, as a plain count says.
    #[test]
    fn a_block_comes_from_the_smallest_class_that_has_one(wanted in vec(0..300_usize, 0..20)) {
        let sizes = [64, 100, 256];
        let mut left = [3, 2, 3];
        let pool = bulk_pool(&[(256, 3), (64, 3), (100, 2)]);
        let mut held = Vec::new();
        for bytes in wanted {
            let expected = (0..3).find(|class| sizes[*class] >= bytes && left[*class] > 0);
            let bulk = pool.take(bytes);
            prop_assert_eq!(bulk.as_ref().map(Bulk::capacity), expected.map(|class| sizes[class]));
            prop_assert_eq!(bulk.as_ref().map_or(bytes, Bulk::len), bytes);
            if let Some(class) = expected {
                left[class] -= 1;
            }
            held.push(bulk);
            prop_assert_eq!(free(&pool), left.to_vec());
        }
    }
}
