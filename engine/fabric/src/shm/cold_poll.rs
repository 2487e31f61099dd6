//! The round: each connection of a core is looked at once in a while, whatever its bell says.

use crate::sys::clock::{Clock, Ticks};
use std::time::Duration;

/// Time in which every connection is looked at once, whatever the bell says, of up to 1000. Together with the turns
/// between two readings of the clock that is 10 ms at most, unless a turn takes an eighth of a
/// millisecond or more.
pub(super) const ROUND_TIME: Duration = Duration::from_millis(8);

/// Time for each look where a round takes longer because a core has many connections: looks, each of which misses the
/// cache, take a few percent of the core at most, and calls on busy connections do not wait for them.
const LOOK_TIME: Duration = Duration::from_micros(8);

pub(super) fn round_time(live: usize) -> Duration {
    ROUND_TIME.max(LOOK_TIME * live as u32)
}

/// Hot connections beyond which silent ones go cold earlier.
const HOT_FEW: usize = 32;

/// Polls without a message in which a connection stays hot at least.
const IDLE_POLLS_MIN: u32 = 16;

/// Polls without a message after which one of `hot` connections goes cold, `most` if they are few.
pub(super) fn idle_polls(hot: usize, most: u32) -> u32 {
    let share = hot.div_ceil(HOT_FEW).max(1) as u32;
    (most / share).max(IDLE_POLLS_MIN.min(most))
}

#[derive(Debug)]
pub(super) struct Round {
    next: usize,
    until: Ticks,
    clock: Clock,
    /// Of a round, unless it has many looks.
    ticks: u64,
    look_ticks: u64,
}

impl Round {
    pub(super) fn new() -> Self {
        let clock = Clock::shared();
        let ticks = clock.from_duration(ROUND_TIME).max(1);
        let look_ticks = clock.from_duration(LOOK_TIME);
        Self { next: 0, until: clock.now(), clock, ticks, look_ticks }
    }

    fn ticks(&self, live: u64) -> u64 {
        self.ticks.max(self.look_ticks.saturating_mul(live))
    }

    pub(super) fn step(&mut self, live: usize) -> usize {
        self.next = if self.next + 1 < live { self.next + 1 } else { 0 };
        self.next
    }

    pub(super) fn is_due(&self, live: usize) -> bool {
        let elapsed = self.clock.now().0.saturating_sub(self.until.0);
        elapsed.saturating_mul(live as u64) >= self.ticks(live as u64)
    }

    /// Never more than there are connections.
    pub(super) fn due(&mut self, live: usize) -> u64 {
        let now = self.clock.now();
        let live = live as u64;
        let elapsed = now.0.saturating_sub(self.until.0);
        let ticks = self.ticks(live);
        if live == 0 || elapsed >= ticks {
            self.until = now;
            return live;
        }
        let due = elapsed * live / ticks;
        self.until.0 += due * ticks / live;
        due
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_longer_where_there_are_so_many_connections_that_looks_would_fill_it() {
        for (live, millis) in [(0, 8), (1, 8), (1000, 8), (10_000, 80)] {
            assert_eq!(round_time(live), Duration::from_millis(millis), "{live} connections");
            let round = Round::new();
            let of_round = round.clock.from_duration(round_time(live));
            // The clock rounds the time of a look.
            let error = round.ticks(live as u64).abs_diff(of_round);
            assert!(error <= live as u64, "{live} connections: {error} of {of_round} ticks");
        }
    }
}
