//! Behavior of a core without work: spin, then yield, then park.

use crate::config::{Config, IdlePolicy};
use crate::reactor::types::calls::Progress;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::cache_lines::assert_alone;
use crate::sys::clock::{Clock, Ticks};
use std::sync::Arc;
use std::time::Duration;

/// Action before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing: poll again.
    None,
    /// Let another thread of this CPU run.
    Yield,
    /// Sleep until something arrives, for this long at most.
    Park(Duration),
}

/// The idle policy of a core, which other threads may change while it runs. It has a cache line of its own, which the
/// core reads each turn and which is rarely written.
#[derive(Debug)]
pub(crate) struct IdleSwitch(CachePadded<AtomicU32>);

assert_alone!(IdleSwitch);

impl IdleSwitch {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        Self(CachePadded::new(AtomicU32::new(Self::code(policy))))
    }

    #[inline]
    pub(crate) fn policy(&self) -> IdlePolicy {
        // Relaxed, like the store: no other data depend on it.
        match self.0.load(Ordering::Relaxed) {
            Self::BUSY => IdlePolicy::Busy,
            Self::SLEEP => IdlePolicy::Sleep,
            _ => IdlePolicy::Adaptive,
        }
    }

    pub(crate) fn set(&self, policy: IdlePolicy) {
        self.0.store(Self::code(policy), Ordering::Relaxed);
    }

    const BUSY: u32 = 0;
    const ADAPTIVE: u32 = 1;
    const SLEEP: u32 = 2;

    fn code(policy: IdlePolicy) -> u32 {
        match policy {
            IdlePolicy::Busy => Self::BUSY,
            IdlePolicy::Adaptive => Self::ADAPTIVE,
            IdlePolicy::Sleep => Self::SLEEP,
        }
    }
}

/// Counts how long a core has been idle and decides how it rests.
#[derive(Debug)]
pub(crate) struct Idle {
    switch: Arc<IdleSwitch>,
    clock: Clock,
    spin_ticks: u64,
    yield_ticks: u64,
    park: Duration,
    since: Option<Ticks>,
}

impl Idle {
    pub(crate) fn new(config: &Config, clock: Clock, switch: Arc<IdleSwitch>) -> Self {
        Self {
            switch,
            clock,
            spin_ticks: clock.from_duration(config.spin_time()),
            yield_ticks: clock.from_duration(config.yield_time()),
            park: config.park_time(),
            since: None,
        }
    }

    pub(crate) fn set_policy(&mut self, policy: IdlePolicy) {
        self.switch.set(policy);
        self.since = None;
    }

    /// Decides after a turn with this progress. A turn that waits for work without events rests like others, but does
    /// not sleep.
    #[inline]
    pub(crate) fn after_turn(&mut self, turn: Progress) -> Rest {
        let policy = self.switch.policy();
        if policy == IdlePolicy::Busy {
            // What was idle before says nothing of when another policy begins.
            self.since = None;
            return Rest::None;
        }
        if turn.events > 0 {
            self.since = None;
            return Rest::None;
        }
        match self.rest(policy, self.clock.now()) {
            Rest::Park(_) if turn.is_waiting => Rest::Yield,
            rest => rest,
        }
    }

    fn rest(&mut self, policy: IdlePolicy, now: Ticks) -> Rest {
        let idle_ticks = now.0.saturating_sub(self.since.get_or_insert(now).0);
        match policy {
            IdlePolicy::Sleep => Rest::Park(self.park),
            _ if idle_ticks < self.spin_ticks => Rest::None,
            _ if idle_ticks < self.spin_ticks + self.yield_ticks => Rest::Yield,
            _ => Rest::Park(self.park),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    fn idle(policy: IdlePolicy) -> Idle {
        let switch = Arc::new(IdleSwitch::new(policy));
        let mut idle = Idle::new(&Config::default(), Clock::shared(), switch);
        (idle.spin_ticks, idle.yield_ticks) = (100, 100);
        idle
    }

    #[test]
    fn adaptive_spins_then_yields_then_parks_and_work_starts_it_over() {
        let mut idle = idle(IdlePolicy::Adaptive);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(1000)), Rest::None);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(1099)), Rest::None);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(1100)), Rest::Yield);
        assert!(matches!(idle.rest(IdlePolicy::Adaptive, Ticks(1200)), Rest::Park(_)));
        assert_eq!(idle.after_turn(Progress { events: 1, is_waiting: false }), Rest::None);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(5000)), Rest::None);
    }

    #[test]
    fn busy_never_rests_and_sleep_parks_at_once() {
        assert_eq!(idle(IdlePolicy::Busy).after_turn(Progress::default()), Rest::None);
        assert!(matches!(idle(IdlePolicy::Sleep).after_turn(Progress::default()), Rest::Park(_)));
    }

    #[test]
    fn the_phases_are_as_long_as_configured() {
        let mut raw = RawConfig::default();
        (raw.poll.spin_us, raw.poll.park_us) = (300, 9000);
        let clock = Clock::shared();
        let switch = Arc::new(IdleSwitch::new(IdlePolicy::Adaptive));
        let mut idle = Idle::new(&raw.validate().unwrap(), clock, switch);
        let ticks = |us| clock.from_duration(Duration::from_micros(us));
        let began = 1000;
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(began)), Rest::None);
        for (after_us, rest) in [
            (299, Rest::None),
            (301, Rest::Yield),
            (1499, Rest::Yield),
            (1501, Rest::Park(Duration::from_millis(9))),
        ] {
            assert_eq!(
                idle.rest(IdlePolicy::Adaptive, Ticks(began + ticks(after_us))),
                rest,
                "after {after_us} us"
            );
        }
    }

    #[test]
    fn another_thread_changes_the_policy_expect_the_next_idle_turn_to_follow() {
        let mut idle = idle(IdlePolicy::Busy);
        let switch = Arc::clone(&idle.switch);
        for policy in [IdlePolicy::Sleep, IdlePolicy::Busy, IdlePolicy::Sleep] {
            switch.set(policy);
            assert_eq!(switch.policy(), policy);
            let parks = matches!(idle.after_turn(Progress::default()), Rest::Park(_));
            assert_eq!(parks, policy == IdlePolicy::Sleep, "{policy:?}");
        }
    }

    #[test]
    fn busy_in_between_expect_to_spin_anew() {
        let mut idle = idle(IdlePolicy::Adaptive);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(1000)), Rest::None);
        idle.switch.set(IdlePolicy::Busy);
        assert_eq!(idle.after_turn(Progress::default()), Rest::None);
        assert_eq!(idle.rest(IdlePolicy::Adaptive, Ticks(9000)), Rest::None);
    }

    const WAITING: Progress = Progress { events: 0, is_waiting: true };

    #[test]
    fn busy_while_a_service_waits_expect_no_rest() {
        assert_eq!(idle(IdlePolicy::Busy).after_turn(WAITING), Rest::None);
    }

    #[test]
    fn sleep_while_a_service_waits_expect_to_yield_until_it_does_not() {
        let mut idle = idle(IdlePolicy::Sleep);
        assert_eq!(idle.after_turn(WAITING), Rest::Yield);
        assert_eq!(idle.after_turn(WAITING), Rest::Yield);
        assert!(matches!(idle.after_turn(Progress::default()), Rest::Park(_)));
    }

    #[test]
    fn adaptive_while_a_service_waits_expect_to_spin_then_to_yield_and_never_to_park() {
        let mut idle = idle(IdlePolicy::Adaptive);
        idle.spin_ticks = u64::MAX / 2;
        assert_eq!(idle.after_turn(WAITING), Rest::None);
        (idle.spin_ticks, idle.yield_ticks) = (0, u64::MAX / 2);
        assert_eq!(idle.after_turn(WAITING), Rest::Yield);
        idle.yield_ticks = 0;
        assert_eq!(idle.after_turn(WAITING), Rest::Yield);
        assert!(matches!(idle.after_turn(Progress::default()), Rest::Park(_)));
        assert_eq!(idle.after_turn(Progress { events: 1, ..WAITING }), Rest::None);
    }
}
