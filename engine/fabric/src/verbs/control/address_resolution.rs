//! The look-up of a peer's hardware address, in several tries.
//!
//! Linux asks the network and looks for the answer when it is told of one, and when the time of a try ends. It misses an
//! answer that comes between the question and the wait for it. So a try ends long before the whole look-up does.

use std::time::{Duration, Instant};

const TRY_MAX: Duration = Duration::from_millis(500);
/// Shortest try: Linux counts in ticks of up to 10 ms.
const TRY_MIN: Duration = Duration::from_millis(20);
/// Part of the time that is left which the next try takes.
const TRY_PART: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct LookUp {
    until: Instant,
}

impl LookUp {
    /// One that ends at `deadline`, or after `at_most` if that is earlier.
    pub(super) fn begin(now: Instant, deadline: Instant, at_most: Duration) -> Self {
        Self { until: deadline.min(now + at_most) }
    }

    pub(super) fn first_try(self, now: Instant) -> Duration {
        self.next_try(now).unwrap_or(TRY_MIN)
    }

    /// Duration of another try; `None` if the time that is left is too short.
    pub(super) fn next_try(self, now: Instant) -> Option<Duration> {
        let left = self.until.saturating_duration_since(now);
        (left >= TRY_MIN).then(|| (left / TRY_PART).clamp(TRY_MIN, TRY_MAX))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Begins and ends of all tries, in milliseconds.
    fn tries(deadline: u64, at_most: u64) -> Vec<(u64, u64)> {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let look_up = LookUp::begin(begin, at(deadline), Duration::from_millis(at_most));
        let mut all = vec![(0, look_up.first_try(begin).as_millis() as u64)];
        while let Some(next) = look_up.next_try(at(all[all.len() - 1].1)) {
            let begin = all[all.len() - 1].1;
            all.push((begin, begin + next.as_millis() as u64));
        }
        all
    }

    #[test]
    fn the_first_try_ends_when_most_of_the_time_is_left() {
        assert_eq!(tries(5000, 60_000)[0], (0, 500));
        assert_eq!(tries(400, 60_000)[0], (0, 100));
        assert_eq!(tries(60_000, 300)[0], (0, 75));
    }

    #[test]
    fn tries_fill_the_time_and_there_are_few() {
        for (deadline, at_most) in [(5000, 60_000), (60_000, 5000), (400, 400), (100, 100)] {
            let (all, time) = (tries(deadline, at_most), deadline.min(at_most));
            let end = all[all.len() - 1].1;
            assert!((time - 20..time + 20).contains(&end), "{all:?}");
            assert!(all.len() as u64 <= 16 + time / 500, "{all:?}");
        }
    }

    #[test]
    fn there_is_one_try_however_short_the_time() {
        assert_eq!(tries(1, 5000), [(0, 20)]);
        assert_eq!(tries(0, 5000), [(0, 20)]);
    }
}
