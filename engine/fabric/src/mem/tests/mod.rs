//! Properties of the whole module: memory has one owner at a time, and comes back.

mod extremes;
mod oracle;
mod ownership;
mod threads;

use super::{BulkClass, BulkPool, Region};

fn boxed_region(bytes: usize) -> Region {
    // A line more, as a box may start anywhere.
    Region::from_boxed(vec![0; bytes + super::LINE_BYTES].into_boxed_slice())
}

fn bulk_pool(classes: &[(usize, usize)]) -> BulkPool {
    let classes: Vec<BulkClass> =
        classes.iter().map(|&(block_bytes, count)| BulkClass { block_bytes, count }).collect();
    let bytes = BulkPool::region_bytes(&classes).unwrap();
    BulkPool::new(boxed_region(bytes), &classes).unwrap()
}

/// Free blocks of each class, smallest class first.
fn free(pool: &BulkPool) -> Vec<usize> {
    pool.classes().map(|class| class.free).collect()
}
