//! The shortest time in which two sleeping threads wake each other: one writes to an eventfd, the other one wakes and
//! writes to another. What wakes a thread on another CPU takes as long at least.

use super::on_two_cores;
use crate::cores::CorePair;
use crate::failure::Failure;
use crate::latency::median;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Median round trip, in nanoseconds.
pub(super) fn round_trip_ns(cores: CorePair, duration: Duration) -> Result<f64, Failure> {
    let (there, back) = (event()?, event()?);
    let asked = on_two_cores(
        cores,
        |stop| answer(&there, &back, stop),
        || {
            let began = Instant::now();
            let mut times = Vec::new();
            while times.is_empty() || began.elapsed() < duration {
                let asked = Instant::now();
                give(&there)?;
                take(&back)?;
                times.push(asked.elapsed().as_nanos() as f64);
            }
            Ok(median(times))
        },
    )?;
    asked.map_err(|error: rustix::io::Errno| Failure::system("using an eventfd", error))
}

fn event() -> Result<OwnedFd, Failure> {
    eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| Failure::system("making an eventfd", error))
}

/// Answers until there is nothing to answer any more.
fn answer(there: &OwnedFd, back: &OwnedFd, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut asked = [PollFd::new(there, PollFlags::IN)];
        if poll(&mut asked, Some(&STOP_CHECK)).is_ok_and(|count| count > 0)
            && take(there).and_then(|()| give(back)).is_err()
        {
            return;
        }
    }
}

fn give(event: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes()).map(drop)
}

fn take(event: &OwnedFd) -> rustix::io::Result<()> {
    rustix::io::read(event, &mut [0_u8; 8]).map(drop)
}

const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_wake_each_other() {
        let Ok(cores) = CorePair::choose(None) else { return };
        let ns = round_trip_ns(cores, Duration::from_millis(5)).unwrap();
        assert!(ns > 100.0, "{ns}");
    }
}
