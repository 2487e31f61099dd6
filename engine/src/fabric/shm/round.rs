//! The round: each connection of a core is looked at once in a while, whatever its bell says.

use crate::sys::clock::{Clock, Ticks};
use std::time::Duration;

/// Time in which every connection is looked at once, whatever the bell says. Together with the turns
/// between two readings of the clock that is 10 ms at most, unless a turn takes an eighth of a
/// millisecond or more.
pub(super) const ROUND_TIME: Duration = Duration::from_millis(8);

/// Hot connections beyond which silent ones go cold earlier.
const HOT_FEW: usize = 32;

/// Polls without a message in which a connection stays hot at least.
const IDLE_POLLS_MIN: u32 = 16;

/// Polls without a message after which one of `hot` connections goes cold, `most` if they are few.
pub(super) fn idle_polls(hot: usize, most: u32) -> u32 {
    let share = hot.div_ceil(HOT_FEW).max(1) as u32;
    (most / share).max(IDLE_POLLS_MIN.min(most))
}

/// How far the round has got.
#[derive(Debug)]
pub(super) struct Round {
    /// Which of the connections is looked at next.
    next: usize,
    /// Time until which the round has got so far.
    until: Ticks,
    clock: Clock,
    ticks: u64,
}

impl Round {
    pub(super) fn new() -> Self {
        let clock = Clock::shared();
        let ticks = clock.from_duration(ROUND_TIME).max(1);
        Self { next: 0, until: clock.now(), clock, ticks }
    }

    /// The next of `live` connections.
    pub(super) fn step(&mut self, live: usize) -> usize {
        self.next = if self.next + 1 < live { self.next + 1 } else { 0 };
        self.next
    }

    /// Returns true if [`Round::due`] has a look, or more.
    pub(super) fn is_due(&self, live: usize) -> bool {
        let elapsed = self.clock.now().0.saturating_sub(self.until.0);
        elapsed.saturating_mul(live as u64) >= self.ticks
    }

    /// Looks that are due now; never more than there are connections.
    pub(super) fn due(&mut self, live: usize) -> u64 {
        let now = self.clock.now();
        let live = live as u64;
        let elapsed = now.0.saturating_sub(self.until.0);
        if live == 0 || elapsed >= self.ticks {
            self.until = now;
            return live;
        }
        let due = elapsed * live / self.ticks;
        self.until.0 += due * self.ticks / live;
        due
    }
}
