//! Round trips of a cache line between CPUs. They show which CPUs are close, and are a lower bound
//! for messages.

use crate::host::Cpus;
use crate::thread_pair::cache_line_ns;
use spinrpc::sys::affinity::CpuSet;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hop {
    pub from: usize,
    pub to: usize,
    pub round_trip_ns: f64,
}

/// Maximum number of measured CPUs, which bounds the duration.
const CPUS_MAX: usize = 8;

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
        let round_trip_ns = cache_line_ns([from, to], duration, duration * PATIENCE).ok()?;
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

/// A busy host answers late: each pair has this many times its duration.
const PATIENCE: u32 = 16;

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
}
