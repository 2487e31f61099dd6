//! Limits of one core, which are its copy rate and the work of spinperf's own, and of two that sleep.

use super::{lost, median_ns, on_two_cores, timed};
use crate::cores::{CorePair, pin};
use crate::failure::Failure;
use crate::latency::Recorder;
use crate::pattern::fill;
use rustix::event::{EventfdFlags, eventfd};
use spinrpc::sys::clock::Clock;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A bulk transfer over shared memory is one copy, so this is its upper limit.
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
    let mut recorder = Recorder::new()?;
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

/// Waking a thread on another CPU takes at least this long.
pub(super) fn wake_round_trip_ns(cores: CorePair, duration: Duration) -> Result<f64, Failure> {
    let (there, back) = (&event()?, &event()?);
    let is_over = &AtomicBool::new(false);
    let last = LastWrite { there, is_over };
    let asked = on_two_cores(
        cores,
        // Until the last write, in the fastest way: with a blocking read.
        |_| while take(there).is_ok() && !is_over.load(Ordering::Acquire) && give(back).is_ok() {},
        move || {
            let _last = last;
            median_ns(duration, || give(there).and_then(|()| take(back)))
        },
    )?;
    asked.map_err(|error: rustix::io::Errno| Failure::system("using an eventfd", error))
}

fn event() -> Result<OwnedFd, Failure> {
    eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| Failure::system("creating an eventfd", error))
}

/// Unblocks the answering thread's read, even if nothing was sent.
struct LastWrite<'a> {
    there: &'a OwnedFd,
    is_over: &'a AtomicBool,
}

impl Drop for LastWrite<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = give(self.there);
    }
}

fn give(event: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes()).map(drop)
}

fn take(event: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::read(event, &mut [0_u8; 8]).map(drop)
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

    #[test]
    fn two_threads_wake_each_other() {
        let Ok(cores) = CorePair::choose(None) else { return };
        let ns = wake_round_trip_ns(cores, Duration::from_millis(5)).unwrap();
        assert!(ns > 100.0, "{ns}");
    }
}
