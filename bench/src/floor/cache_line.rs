//! The shortest possible round trip between two cores: one writes a cache line, the other sees it
//! and writes one back. No message format can be faster.

use super::on_two_cores;
use crate::cores::CorePair;
use crate::failure::Failure;
use crate::latency::median;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Median over batches of a batch's mean round trip, in nanoseconds.
///
/// # Errors
/// A line does not come back within `patience`, or the core cannot be used.
pub(super) fn round_trip_ns(
    cores: CorePair,
    duration: Duration,
    patience: Duration,
) -> Result<f64, Failure> {
    let (there, back) = (Line::default(), Line::default());
    let answer = |stop: &AtomicBool| answer(&there, &back, stop);
    on_two_cores(cores, patience, answer, || ask(&there, &back, duration, patience))?.ok_or_else(
        || Failure::Measurement(format!("another thread keeps core {} busy", cores.server)),
    )
}

/// A counter alone on its cache line, and on the neighbour that prefetchers pair with it.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

fn answer(there: &Line, back: &Line, stop: &AtomicBool) {
    let mut seen = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..SPINS_PER_STOP_CHECK {
            let count = there.0.load(Ordering::Acquire);
            if count != seen {
                seen = count;
                back.0.store(count, Ordering::Release);
            }
        }
    }
}

/// `None` if an answer is missing after `patience`.
fn ask(there: &Line, back: &Line, duration: Duration, patience: Duration) -> Option<f64> {
    let mut count = 0;
    let began = Instant::now();
    let mut batch = || {
        let start = Instant::now();
        for _ in 0..BATCH {
            count += 1;
            there.0.store(count, Ordering::Release);
            let mut spins = 0_u32;
            while back.0.load(Ordering::Acquire) != count {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(SPINS_PER_LOOK) && began.elapsed() > patience {
                    return None;
                }
            }
        }
        Some(start.elapsed().as_nanos() as f64 / BATCH as f64)
    };
    while began.elapsed() < duration / 4 {
        batch()?;
    }
    let mut means = Vec::new();
    while means.is_empty() || began.elapsed() < duration + duration / 4 {
        means.push(batch()?);
    }
    Some(median(means))
}

/// Exchanges between two looks at the time: few, as each takes a slice of time where other programs have the CPUs.
const BATCH: u64 = 200;
const SPINS_PER_STOP_CHECK: u32 = 64;
/// Looks at the answer between two at the time: more than any round trip takes.
const SPINS_PER_LOOK: u32 = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_time_to_come_back() {
        let Ok(cores) = CorePair::choose(None) else { return };
        let ns = round_trip_ns(cores, Duration::from_millis(5), Duration::MAX).unwrap();
        assert!(ns > 1.0, "{ns}");
    }

    /// A thread that never gets its core answers nothing.
    #[test]
    fn without_an_answer_it_gives_up() {
        let (there, back) = (Line::default(), Line::default());
        assert_eq!(ask(&there, &back, Duration::ZERO, Duration::from_millis(1)), None);
    }
}
