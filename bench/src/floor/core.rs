//! Limits of one core: its copy rate, and the work of spinperf's own.

use super::{lost, timed};
use crate::cores::pin;
use crate::failure::Failure;
use crate::latency::Recorder;
use crate::pattern::fill;
use spinrpc::sys::clock::Clock;
use std::hint::black_box;
use std::thread;
use std::time::Duration;

/// Bytes per second of copies of `block_bytes` from one block to `blocks` others in turn. A bulk transfer over shared
/// memory is one copy, so this is its upper limit.
pub(super) fn copied_per_second(
    core: usize,
    duration: Duration,
    block_bytes: usize,
    blocks: usize,
) -> Result<f64, Failure> {
    on_core(core, || {
        let mut source = vec![0; block_bytes];
        fill(&mut source, 0, 0);
        let mut targets = vec![vec![1; block_bytes]; blocks.max(1)];
        let (bytes, elapsed) = timed(duration, || {
            for target in &mut targets {
                black_box(target.as_mut_slice()).copy_from_slice(black_box(&source));
            }
            (targets.len() * block_bytes) as u64
        });
        Ok(bytes / elapsed.as_secs_f64())
    })
}

/// Work of spinperf's client for each call, which is part of every rate it prints: one read of the clock, and one
/// sample. The sample is recorded after the next call has left, so that a round trip contains the clock only.
pub(super) fn own_work_ns(core: usize, duration: Duration) -> Result<f64, Failure> {
    on_core(core, || record(duration))
}

fn record(duration: Duration) -> Result<f64, Failure> {
    let clock = Clock::shared();
    let mut recorder = Recorder::new(1)?;
    let mut last = clock.now().0;
    let (calls, elapsed) = timed(duration, || {
        for _ in 0..BATCH {
            let now = clock.now().0;
            recorder.record(black_box(now - last));
            last = now;
        }
        BATCH
    });
    Ok(elapsed.as_nanos() as f64 / calls)
}

fn on_core(
    core: usize,
    work: impl FnOnce() -> Result<f64, Failure> + Send,
) -> Result<f64, Failure> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| pin(core).and_then(|()| work()));
        worker.join().unwrap_or_else(|_| Err(lost()))
    })
}

/// Calls between two looks at the time.
const BATCH: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_costs_some_time() {
        let ns = record(Duration::from_millis(1)).unwrap();
        assert!(ns > 0.0 && ns.is_finite(), "{ns}");
    }
}
