//! Work of spinperf's client for each call, which is part of every rate it prints: one read of the clock, and one
//! sample. The sample is recorded after the next call has left, so that a round trip contains the clock only.

use crate::cores::pin;
use crate::failure::Failure;
use crate::latency::Recorder;
use spinrpc::sys::clock::Clock;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

/// Nanoseconds of the client's core for each call.
pub(super) fn ns_per_call(core: usize, duration: Duration) -> Result<f64, Failure> {
    thread::scope(|scope| {
        let client = scope.spawn(|| pin(core).and_then(|()| record(duration)));
        client.join().unwrap_or_else(|_| Err(super::lost()))
    })
}

fn record(duration: Duration) -> Result<f64, Failure> {
    let clock = Clock::shared();
    let mut recorder = Recorder::new(1)?;
    let mut last = clock.now().0;
    let mut record_batch = || {
        for _ in 0..BATCH {
            let now = clock.now().0;
            recorder.record(black_box(now - last));
            last = now;
        }
    };
    let start = Instant::now();
    while start.elapsed() < duration / 4 {
        record_batch();
    }
    let start = Instant::now();
    let mut calls = 0;
    while calls == 0 || start.elapsed() < duration {
        record_batch();
        calls += BATCH;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(calls))
}

/// Calls between two looks at the time.
const BATCH: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_costs_some_time() {
        let ns = record(Duration::from_millis(1)).unwrap();
        assert!(ns > 0.0 && ns.is_finite(), "{ns}");
    }
}
