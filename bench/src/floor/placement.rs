//! Placement of the two cores of a measurement, by the round trip of a cache line. The virtual CPUs of a host change
//! between one core's threads (60 ns), cores that share a cache (110 ns), and others (490 ns) within seconds: figures of
//! different placements are not comparable.

use super::line_round_trip_ns;
use crate::cores::CorePair;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Placement {
    /// Threads of one core.
    Threads,
    /// Cores that share a cache.
    Near,
    /// Other cores.
    Far,
    /// Another one at the end of a measurement than at its start.
    Moved,
}

impl Placement {
    fn of(cache_line_ns: f64) -> Self {
        match cache_line_ns {
            ns if ns < THREADS_BELOW_NS => Self::Threads,
            ns if ns < NEAR_BELOW_NS => Self::Near,
            _ => Self::Far,
        }
    }

    /// Returns whether the cores may as well have been placed as `other`, as the round trip of a line is at the bound of both.
    pub(crate) fn may_be(self, other: Self, cache_line_ns: f64) -> bool {
        let around = [cache_line_ns / AT_BOUND, cache_line_ns * AT_BOUND].map(Self::of);
        self != Self::Moved && around.contains(&other)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Near => "near",
            Self::Far => "far",
            Self::Moved => "moved",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Placed {
    pub(crate) placement: Placement,
    cache_line_ns: [f64; 2],
}

impl Placed {
    pub(crate) fn between(before_ns: f64, after_ns: f64) -> Self {
        let (low, high) = (before_ns.min(after_ns), before_ns.max(after_ns));
        let is_one = Placement::of(low) == Placement::of(high) || high < low * NOISE;
        let placement = if is_one { Placement::of(before_ns) } else { Placement::Moved };
        Self { placement, cache_line_ns: [before_ns, after_ns] }
    }
}

/// Blocks for some six milliseconds, longer where other programs have the CPUs, and for some twenty seconds at most.
/// Fails if something else keeps a core, such as a real-time thread.
pub(crate) fn cache_line_ns(cores: CorePair) -> Result<f64, Failure> {
    line_round_trip_ns(cores, TIME, PATIENCE)
}

const THREADS_BELOW_NS: f64 = 85.0;
const NEAR_BELOW_NS: f64 = 250.0;
/// Round trips on both sides of a bound are of one placement if they differ by less than this factor.
const NOISE: f64 = 1.25;
/// Round trips of one placement differ by this factor from run to run.
const AT_BOUND: f64 = 1.1;
const TIME: Duration = Duration::from_millis(5);
/// Longer than a host pauses a virtual CPU.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_have_moved_if_a_line_takes_much_longer_than_before() {
        let placement = |before, after| Placed::between(before, after).placement;
        assert_eq!(placement(61.0, 64.0), Placement::Threads);
        assert_eq!(placement(106.0, 140.0), Placement::Near);
        assert_eq!(placement(490.0, 700.0), Placement::Far);
        assert_eq!([placement(60.0, 110.0), placement(490.0, 110.0)], [Placement::Moved; 2]);
        assert_eq!(
            [placement(84.0, 86.0), placement(251.0, 249.0)],
            [Placement::Threads, Placement::Far]
        );
    }
}
