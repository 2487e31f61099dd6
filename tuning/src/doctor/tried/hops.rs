//! Round trips of a cache line between CPUs. They show which CPUs are close, and are a lower bound
//! for messages.

use crate::host::Cpus;
use spinrpc::sync::CachePadded;
use spinrpc::sys::affinity::{CpuSet, pin_current_thread};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Distance between two CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hop {
    /// One CPU.
    pub from: usize,
    /// The other CPU.
    pub to: usize,
    /// Median round-trip time of a cache line, in nanoseconds.
    pub round_trip_ns: f64,
}

/// Maximum number of measured CPUs, which bounds the duration.
const CPUS_MAX: usize = 8;

/// Maximum number of measured pairs.
const PAIRS_MAX: u32 = (CPUS_MAX * (CPUS_MAX - 1) / 2) as u32;

/// Measures every pair of a sample of CPUs: poll cores first, then CPUs from all over the host.
/// Omits pairs that cannot be measured, and the last ones on a host that is too busy to answer.
pub(super) fn measure(cpus: &Cpus, cores: &CpuSet, duration: Duration) -> Vec<Hop> {
    let chosen = choose(cpus, cores);
    let later = |index: usize| chosen[index + 1..].iter();
    let pairs = chosen
        .iter()
        .enumerate()
        .flat_map(|(index, from)| later(index).map(move |to| (*from, *to)));
    let end = Instant::now() + duration * PAIRS_MAX * 2;
    let hop = |(from, to)| {
        let round_trip_ns = round_trip_ns(from, to, duration)?;
        Some(Hop { from, to, round_trip_ns })
    };
    pairs.take_while(|_| Instant::now() < end).filter_map(hop).collect()
}

fn choose(cpus: &Cpus, cores: &CpuSet) -> Vec<usize> {
    let allowed: Vec<usize> = cpus.allowed.iter().flat_map(CpuSet::iter).collect();
    let mut chosen: Vec<usize> =
        allowed.iter().copied().filter(|cpu| cores.contains(*cpu)).take(CPUS_MAX / 2).collect();
    let others: Vec<usize> = allowed.into_iter().filter(|cpu| !chosen.contains(cpu)).collect();
    let room = CPUS_MAX - chosen.len();
    let step = others.len().div_ceil(room.max(1)).max(1);
    chosen.extend(others.into_iter().step_by(step).take(room));
    chosen
}

/// One cache line for each side, written only by that side.
#[derive(Default)]
struct Lines {
    there: CachePadded<AtomicU64>,
    back: CachePadded<AtomicU64>,
    is_over: CachePadded<AtomicBool>,
}

fn round_trip_ns(from: usize, to: usize, duration: Duration) -> Option<f64> {
    let lines = Lines::default();
    let batches = thread::scope(|scope| {
        scope.spawn(|| pin_current_thread(to).map(|()| answer(&lines)));
        let asking = scope.spawn(|| {
            let batches = pin_current_thread(from).map(|()| ask(&lines, duration));
            lines.is_over.store(true, Ordering::Relaxed);
            batches
        });
        asking.join().ok()?.ok()
    })?;
    median(batches)
}

fn answer(lines: &Lines) {
    let mut seen = 0;
    while !lines.is_over.load(Ordering::Relaxed) {
        // Acquire and Release pair with those of `ask`: each store answers a load.
        let count = lines.there.load(Ordering::Acquire);
        if count != seen {
            seen = count;
            lines.back.store(count, Ordering::Release);
        }
        std::hint::spin_loop();
    }
}

/// Means of batches until the time is up. On a busy host the other side may start late: the time
/// begins with its first answer, and there is a separate limit for that.
fn ask(lines: &Lines, duration: Duration) -> Vec<f64> {
    let mut means = Vec::new();
    lines.there.store(1, Ordering::Release);
    if !await_answer(lines, 1, Instant::now() + duration * PATIENCE) {
        return means;
    }
    let (mut count, end) = (1, Instant::now() + duration);
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..BATCH {
            count += 1;
            lines.there.store(count, Ordering::Release);
            if !await_answer(lines, count, end) {
                return means;
            }
        }
        means.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    means
}

fn await_answer(lines: &Lines, count: u64, end: Instant) -> bool {
    let mut spins: u32 = 0;
    while lines.back.load(Ordering::Acquire) != count {
        spins += 1;
        if spins.is_multiple_of(SPINS_PER_LOOK) && Instant::now() >= end {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

const PATIENCE: u32 = 16;
const BATCH: u32 = 100;
const SPINS_PER_LOOK: u32 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(allowed: &str) -> Cpus {
        Cpus { allowed: Some(allowed.parse().unwrap()), ..Cpus::default() }
    }

    fn chosen(allowed: &str, cores: &str) -> Vec<usize> {
        choose(&cpus(allowed), &cores.parse().unwrap())
    }

    #[test]
    fn of_many_cpus_some_are_chosen_poll_cores_first() {
        assert_eq!(chosen("0-1", "1"), [1, 0]);
        assert_eq!(chosen("0-127", "64-66"), [64, 65, 66, 0, 25, 50, 78, 103]);
        assert_eq!(chosen("0-127", "1-100").len(), CPUS_MAX);
        assert!(chosen("", "3").is_empty(), "what must not be used is not");
    }

    #[test]
    fn a_line_takes_time_and_a_silent_peer_takes_no_longer_than_it_may() {
        let lines = Lines::default();
        assert!(ask(&lines, Duration::from_millis(2)).is_empty());
        let allowed = spinrpc::sys::affinity::allowed().unwrap();
        let [from, to] = allowed.iter().take(2).collect::<Vec<_>>()[..] else { return };
        // On a busy host, an answer within this time is not certain.
        let ns = (0..20).find_map(|_| round_trip_ns(from, to, Duration::from_millis(20)));
        assert!(ns.unwrap() > 1.0);
    }

    #[test]
    fn the_median_of_nothing_is_none() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
