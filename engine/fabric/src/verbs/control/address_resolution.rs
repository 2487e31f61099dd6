//! The look-up of a peer's hardware address, in several tries.
//!
//! Linux asks the network and looks for the answer when it is told of one, and when the time of a try ends. It misses an
//! answer that comes between the question and the wait for it. So a try ends long before the whole look-up does.

use std::time::{Duration, Instant};

const TRY_MAX: Duration = Duration::from_millis(500);
/// Shortest try: Linux counts in ticks of up to 10 ms.
pub(super) const TRY_MIN: Duration = Duration::from_millis(20);
/// Part of the time that is left which the next try takes.
const TRY_PART: u32 = 4;

/// `None` if the time that is left is too short.
pub(super) fn next_try(until: Instant, now: Instant) -> Option<Duration> {
    let left = until.saturating_duration_since(now);
    (left >= TRY_MIN).then(|| (left / TRY_PART).clamp(TRY_MIN, TRY_MAX))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Begins and ends of all tries within a time, in milliseconds.
    fn tries(time: u64) -> Vec<(u64, u64)> {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let next = |now| next_try(at(time), at(now)).map(|next| next.as_millis() as u64);
        let mut all = Vec::new();
        let mut begin = 0;
        while let Some(next) = next(begin) {
            all.push((begin, begin + next));
            begin += next;
        }
        all
    }

    #[test]
    fn the_first_try_ends_when_most_of_the_time_is_left() {
        assert_eq!(tries(5000)[0], (0, 500));
        assert_eq!(tries(400)[0], (0, 100));
        assert_eq!(tries(300)[0], (0, 75));
        assert!(tries(1).is_empty());
    }

    #[test]
    fn tries_fill_the_time_and_there_are_few() {
        for time in [5000, 400, 100] {
            let all = tries(time);
            let end = all[all.len() - 1].1;
            assert!((time - 20..time + 20).contains(&end), "{all:?}");
            assert!(all.len() as u64 <= 16 + time / 500, "{all:?}");
        }
    }
}
