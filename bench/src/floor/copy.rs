//! Copy rate of the server's core. A bulk transfer over shared memory is one copy, so this is its
//! upper limit.

use crate::cores::pin;
use crate::failure::Failure;
use crate::pattern::fill;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes per second of copies of `block_bytes` from one block to `blocks` others in turn.
pub(super) fn bytes_per_second(
    core: usize,
    duration: Duration,
    block_bytes: usize,
    blocks: usize,
) -> Result<f64, Failure> {
    thread::scope(|scope| {
        let copier = scope.spawn(|| pin(core).map(|()| copy(duration, block_bytes, blocks)));
        copier.join().unwrap_or_else(|_| Err(super::lost()))
    })
}

fn copy(duration: Duration, block_bytes: usize, blocks: usize) -> f64 {
    let mut source = vec![0; block_bytes];
    fill(&mut source, 0, 0);
    let mut targets = vec![vec![1; block_bytes]; blocks.max(1)];
    let mut copy_all = || {
        for target in &mut targets {
            black_box(target.as_mut_slice()).copy_from_slice(black_box(&source));
        }
    };
    let start = Instant::now();
    while start.elapsed() < duration / 4 {
        copy_all();
    }
    let start = Instant::now();
    let mut copies = 0;
    while copies == 0 || start.elapsed() < duration {
        copy_all();
        copies += blocks.max(1);
    }
    (copies * block_bytes) as f64 / start.elapsed().as_secs_f64()
}
