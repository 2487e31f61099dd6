//! Time that a poll core loses to other work, seen as jumps of a clock that is read continuously.

use super::super::checks::GAP_NS;
use spinrpc::sys::affinity::{CpuSet, pin_current_thread};
use spinrpc::sys::clock::Clock;
use std::thread;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    pub cpu: usize,
    /// Longest gap between two clock reads, in nanoseconds.
    pub longest_ns: u64,
    /// Number of gaps of 20 µs or more.
    pub gaps: u64,
    /// Sum of the gaps of a microsecond or more, in nanoseconds.
    pub lost_ns: u64,
}

/// Watches all CPUs at the same time, so that the duration does not depend on their number.
pub(super) fn watch(cores: &CpuSet, duration: Duration) -> Vec<Result<Jitter, String>> {
    let clock = Clock::shared();
    thread::scope(|scope| {
        let threads: Vec<_> =
            cores.iter().map(|cpu| scope.spawn(move || watch_one(cpu, clock, duration))).collect();
        let gone = |_| Err("a probe thread exited early".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    })
}

fn watch_one(cpu: usize, clock: Clock, duration: Duration) -> Result<Jitter, String> {
    pin_current_thread(cpu).map_err(|error| format!("CPU {cpu}: {error}"))?;
    let ticks = |ns| clock.from_duration(Duration::from_nanos(ns));
    let (lost, gap) = (ticks(LOST_NS), ticks(GAP_NS));
    let mut jitter = Jitter { cpu, ..Jitter::default() };
    let (mut longest, mut lost_ticks) = (0, 0);
    let mut last = clock.now();
    let end = last.0 + clock.from_duration(duration);
    while last.0 < end {
        let now = clock.now();
        let step = now.0.saturating_sub(last.0);
        if step >= lost {
            lost_ticks += step;
            jitter.gaps += u64::from(step >= gap);
        }
        longest = longest.max(step);
        last = now;
    }
    Ok(Jitter { longest_ns: clock.to_ns(longest), lost_ns: clock.to_ns(lost_ticks), ..jitter })
}

/// Longer than any clock read takes.
const LOST_NS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::sys::affinity::{CPUS_MAX, allowed};

    #[test]
    fn a_core_that_may_be_used_sees_gaps_and_another_says_why_not() {
        let may = allowed().unwrap();
        let absent = (0..CPUS_MAX).rev().find(|cpu| !may.contains(*cpu)).unwrap();
        let first = may.iter().next().unwrap();
        let cores = [first, absent].into_iter().collect();
        let [here, there] = &watch(&cores, Duration::from_millis(20))[..] else { unreachable!() };
        let here = here.as_ref().unwrap();
        assert!(here.cpu == first && here.longest_ns > 0, "{here:?}");
        assert!(here.gaps == 0 || here.lost_ns >= GAP_NS, "{here:?}");
        assert!(there.as_ref().unwrap_err().starts_with(&format!("CPU {absent}: ")));
    }
}
