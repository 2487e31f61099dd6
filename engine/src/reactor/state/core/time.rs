//! The time of a core: its clock, the time of the turn, the earliest deadline, and when statistics are published.

use super::Core;
use crate::reactor::in_flight::slow_calls::SlowCall;
use crate::reactor::state::core_lane::LaneCounts;
use crate::sys::clock::{Clock, Ticks};
use spinrpc_proto::ids::Instant;
use std::time::Duration;

/// Turns with work after which the statistics are published; otherwise the next idle turn publishes them.
const PUBLISH_AFTER: u32 = 64;
/// Idle turns between two publications.
const PUBLISH_IDLE_EVERY: u64 = 1024;
/// Least time between two calls that are timed though nobody asks: all calls of a core with fewer are.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Whole turns without work between two looks at the clock.
const STAMP_EVERY: u32 = 4;

impl Core {
    /// The time of the turn, at most a few turns old; outside of turns the current time.
    #[inline(always)]
    pub(in crate::reactor) fn turn_time(&self) -> Ticks {
        if self.in_turn { self.now } else { self.read_clock() }
    }

    /// The driver's time: that of the processor's counter, or simulated.
    #[inline(always)]
    pub(in crate::reactor) fn read_clock(&self) -> Ticks {
        self.fabric.now(&self.clock)
    }

    /// The clock that other threads may read, too; none where time is simulated.
    pub(in crate::reactor) fn real_clock(&self) -> Option<Clock> {
        Some(self.clock).filter(|_| self.fabric.caps().simulated_clock.is_none())
    }

    /// Returns true once after a sample has come due.
    #[inline]
    pub(in crate::reactor) fn take_sample_due(&mut self) -> bool {
        std::mem::take(&mut self.is_sample_due)
    }

    /// There is a sample if the last one is long ago.
    fn look_for_sample(&mut self) {
        if self.busy_since >= self.next_sample {
            let ticks = self.clock.from_duration(SAMPLE_EVERY);
            self.next_sample = Ticks(self.busy_since.0.saturating_add(ticks));
            self.is_sample_due = true;
        }
    }

    /// Copies the slowest calls of the last minutes.
    pub(in crate::reactor) fn copy_slow_calls(&self, to: &mut Vec<SlowCall>) {
        self.slow.copy_to(to, self.read_clock(), &self.clock);
    }

    /// The time now, in nanoseconds from an arbitrary start.
    pub(in crate::reactor) fn now_ns(&self) -> u64 {
        self.clock.to_ns(self.read_clock().0)
    }

    pub(in crate::reactor) fn ticks(&self, time: Duration) -> u64 {
        self.clock.from_duration(time)
    }

    pub(in crate::reactor) fn ns(&self, ticks: u64) -> u64 {
        self.clock.to_ns(ticks)
    }

    /// The time that is so many ticks from now.
    #[inline(always)]
    pub(in crate::reactor) fn in_ticks(&self, ticks: u64) -> Instant {
        Instant(self.read_clock().0.saturating_add(ticks))
    }

    /// Ticks until a call expires, as configured.
    #[inline(always)]
    pub(in crate::reactor) fn default_timeout_ticks(&self) -> u64 {
        self.default_timeout_ticks
    }

    /// End of a wait for memory that begins now.
    pub(in crate::reactor) fn memory_wait_ends(&self) -> Instant {
        self.in_ticks(self.memory_wait_ticks)
    }

    /// The core acts at this time at the latest, should it sleep then.
    #[inline(always)]
    pub(in crate::reactor) fn wake_by(&mut self, at: Instant) {
        self.next_deadline = self.next_deadline.min(at);
    }

    #[inline]
    pub(in crate::reactor) fn needs_attention(&self) -> bool {
        !self.inbox.is_empty()
            || self.now.0 >= self.next_deadline.0
            || !self.ended.is_empty()
            || !self.waiting.is_empty()
    }

    /// The time up to which deadlines are acted on now, if one has passed; all are to be noted again then. `has_overdue`
    /// says if a call has one that has passed: those wait until what had arrived by then is taken.
    pub(in crate::reactor) fn take_overdue(
        &mut self,
        arrivals: usize,
        has_overdue: impl FnOnce(Instant) -> bool,
    ) -> Option<Instant> {
        let now = Instant(self.now.0);
        if now < self.next_deadline {
            return None;
        }
        let now = if has_overdue(now) { self.overdue.look(arrivals, now)? } else { now };
        self.next_deadline = Instant(u64::MAX);
        Some(now)
    }

    /// Notes the deadlines that are of no connection.
    pub(in crate::reactor) fn note_other_deadlines(&mut self, pause_ends: Instant) {
        self.wake_by(self.detached_clients.next_deadline(pause_ends));
        self.wake_by(self.stalls.next());
    }

    /// A turn begins that does not end early.
    #[inline(always)]
    pub(in crate::reactor) fn begin_turn(&mut self) {
        self.in_turn = true;
    }

    /// The turn has ended by a panic.
    pub(in crate::reactor) fn leave_turn(&mut self) {
        self.in_turn = false;
    }

    /// Flushes, and stamps the time: after the work and not before it, so that a message does not
    /// wait for the clock. Of turns without work only every fourth reads it.
    #[inline]
    pub(in crate::reactor) fn end_turn(&mut self, events: usize, counts: &LaneCounts) {
        self.fabric.flush();
        self.in_turn = false;
        self.stats.polls += 1;
        if events > 0 {
            self.now = self.end_busy_time();
            self.unpublished += 1;
            if self.unpublished > PUBLISH_AFTER {
                self.publish(counts);
            }
        } else {
            self.end_idle_turn(counts);
        }
    }

    /// Takes the time, and counts the work of turns that have ended early since the last time stamp.
    #[inline]
    pub(in crate::reactor) fn stamp(&mut self, busy_turns: u32) {
        match busy_turns {
            0 => self.busy_since = self.read_clock(),
            turns => self.count_busy_turns(turns),
        }
        (self.now, self.unstamped) = (self.busy_since, 0);
    }

    /// Counts turns with work that have ended early.
    #[inline(always)]
    pub(in crate::reactor) fn count_busy_turns(&mut self, turns: u32) {
        if turns > 0 {
            self.stats.polls += u64::from(turns);
            self.unpublished += turns;
            self.end_busy_time();
        }
    }

    /// The time since the last time stamp was spent with work. Returns the time, which the turn does not get before
    /// its end.
    fn end_busy_time(&mut self) -> Ticks {
        let now = self.read_clock();
        self.stats.busy_ticks += now.0.wrapping_sub(self.busy_since.0);
        self.busy_since = now;
        now
    }

    #[inline]
    fn end_idle_turn(&mut self, counts: &LaneCounts) {
        // Whether or not this turn reads the clock: turns that end early do not.
        self.now = self.busy_since;
        self.stats.empty_polls += 1;
        self.unstamped += 1;
        if self.unstamped >= STAMP_EVERY {
            self.unstamped = 0;
            self.now = self.read_clock();
            self.busy_since = self.now;
        }
        if self.is_to_publish(true) {
            self.publish(counts);
        }
    }

    /// Returns true if the statistics have not been published for long.
    #[inline]
    pub(in crate::reactor) fn is_to_publish(&self, is_idle: bool) -> bool {
        let polls = self.stats.polls.wrapping_sub(self.published_at);
        let is_idle_for_long = is_idle && (self.unpublished > 0 || polls >= PUBLISH_IDLE_EVERY);
        is_idle_for_long || self.unpublished > PUBLISH_AFTER
    }

    pub(in crate::reactor) fn publish(&mut self, counts: &LaneCounts) {
        counts.move_into(&mut self.stats);
        (self.unpublished, self.published_at) = (0, self.stats.polls);
        self.look_for_sample();
        self.cells.publish(&self.stats);
        if self.inbox.latencies().is_to_switch() {
            self.wake_by(Instant(0));
        }
    }

    /// Sleeps until there is work, for `at_most`, and not beyond the next deadline.
    pub(in crate::reactor) fn park(&mut self, at_most: Duration, counts: &LaneCounts) {
        self.stats.parks += 1;
        self.publish(counts);
        let ticks = self.next_deadline.0.saturating_sub(self.read_clock().0);
        let until_deadline = Duration::from_nanos(self.clock.to_ns(ticks));
        self.fabric.park(at_most.min(until_deadline));
        self.now = self.read_clock();
        self.busy_since = self.now;
        self.look_for_sample();
    }
}
