//! The shortest round trip between two sleeping threads: one writes to an eventfd, and the other
//! wakes up and writes to another. Waking a thread on another CPU takes at least this long.

use super::on_two_cores;
use crate::cores::CorePair;
use crate::failure::Failure;
use crate::latency::median;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(super) fn round_trip_ns(cores: CorePair, duration: Duration) -> Result<f64, Failure> {
    let (there, back) = (&event()?, &event()?);
    let is_over = &AtomicBool::new(false);
    let last = LastWrite { there, is_over };
    let asked = on_two_cores(
        cores,
        |_| answer(there, back, is_over),
        move || {
            let _last = last;
            let began = Instant::now();
            let mut times = Vec::new();
            while times.is_empty() || began.elapsed() < duration {
                let asked = Instant::now();
                give(there)?;
                take(back)?;
                times.push(asked.elapsed().as_nanos() as f64);
            }
            Ok(median(times))
        },
    )?;
    asked.map_err(|error: rustix::io::Errno| Failure::system("using an eventfd", error))
}

fn event() -> Result<OwnedFd, Failure> {
    eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| Failure::system("creating an eventfd", error))
}

/// Answers until the last write, in the fastest way: with a blocking read.
fn answer(there: &OwnedFd, back: &OwnedFd, is_over: &AtomicBool) {
    while take(there).is_ok() && !is_over.load(Ordering::Acquire) && give(back).is_ok() {}
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
