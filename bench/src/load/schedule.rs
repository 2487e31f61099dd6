//! When the calls of a drive count, and when those of an open loop start. All times are clock ticks.
//! Used by the driver, which asks with the time it has read anyway.

use super::measurement::Arrivals;
use super::random::Random;

/// One drive of one core, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drive {
    pub(super) begin: u64,
    /// Until all of the load is there.
    pub(super) ramp: u64,
    /// After it, not measured.
    pub(super) warmup: u64,
    /// Measured.
    pub(super) measured: u64,
    /// After it, not measured.
    pub(super) cooldown: u64,
    /// Of the measured time, what has a histogram of its own.
    pub(super) interval: u64,
    /// Measured calls that end it earlier.
    pub(super) calls_max: Option<u64>,
    /// Number of the core among the clients', and how many there are.
    pub(super) core: (usize, usize),
}

impl Drive {
    /// How many intervals there are.
    pub(super) fn intervals(&self) -> usize {
        self.measured.div_ceil(self.interval.max(1)) as usize
    }
}

/// What happens to a call that ends now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It does not count.
    WarmUp,
    /// It counts.
    Measured,
    /// It does not count any more.
    CoolDown,
    /// It was the last of its slot.
    #[default]
    Over,
}

/// The phases of a drive, and the intervals of its measured time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Schedule {
    /// When something of this changes.
    next: u64,
    pub(super) phase: Phase,
    pub(super) start: u64,
    pub(super) end: u64,
    give_up: u64,
    stop: u64,
    interval: u64,
}

impl Schedule {
    /// Measured calls that are behind their time may still start for `grace` ticks.
    pub(super) fn new(drive: &Drive, grace: u64) -> Self {
        let start = drive.begin.saturating_add(drive.ramp).saturating_add(drive.warmup);
        let end = start.saturating_add(drive.measured);
        let give_up = end.saturating_add(grace);
        let stop = end.saturating_add(drive.cooldown).max(give_up);
        let interval = drive.interval.max(1);
        Self { next: start, phase: Phase::WarmUp, start, end, give_up, stop, interval }
    }

    /// Whether [`Schedule::advance`] has something to do.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Goes to the phase that `now` is in; the interval in which calls count from now on, if they do.
    pub(super) fn advance(&mut self, now: u64) -> Option<usize> {
        (self.phase, self.next) = match now {
            _ if self.phase == Phase::Over || now >= self.stop => (Phase::Over, u64::MAX),
            _ if now >= self.give_up => (Phase::CoolDown, self.stop),
            _ if now >= self.start => {
                let begun = (now - self.start) / self.interval + 1;
                let next = self.start + begun * self.interval;
                (Phase::Measured, if next < self.end { next } else { self.give_up })
            }
            _ => (Phase::WarmUp, self.start),
        };
        let counts = self.phase == Phase::Measured;
        counts.then(|| ((now - self.start) / self.interval) as usize)
    }

    /// Ends the measured time, and with it the drive.
    pub(super) fn finish(&mut self, now: u64) {
        self.end = now.max(self.start);
        self.phase = Phase::Over;
        self.next = u64::MAX;
    }

    /// Ticks of an interval.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// Whether a call that is to start then counts, in an open loop.
    #[inline]
    pub(super) fn is_measured(&self, intended: u64) -> bool {
        (self.start..self.end).contains(&intended)
    }
}

/// When the calls of an open loop start: a sequence that depends on nothing but rate and seed.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    arrivals: Arrivals,
    random: Random,
    begin: u64,
    /// Ticks until the full rate is reached.
    ramp: f64,
    per_tick: f64,
    /// Calls that a load of this rate has brought so far, as a number that need not be whole.
    load: f64,
    next: u64,
}

impl Pacer {
    /// One core's part of the calls: `per_tick` of them at full rate.
    pub(super) fn new(drive: &Drive, per_tick: f64, arrivals: Arrivals, seed: u64) -> Self {
        let (core, cores) = drive.core;
        // Cores that keep the same distances begin at different times.
        let load = core as f64 / cores.max(1) as f64;
        let random = Random::new(seed.wrapping_add(core as u64));
        let (begin, ramp) = (drive.begin, drive.ramp as f64);
        let mut pacer = Self { arrivals, random, begin, ramp, per_tick, load, next: begin };
        pacer.step();
        pacer
    }

    /// When the next call is to start.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Goes on to the call after it.
    #[inline]
    pub(super) fn step(&mut self) {
        self.load += match self.arrivals {
            Arrivals::Fixed => 1.0,
            Arrivals::Poisson => self.random.exponential(),
        };
        self.next = self.begin.saturating_add(self.when(self.load) as u64);
    }

    /// Goes on to the first call from `end` on; about how many there are from `start`, or from the next
    /// if that is later, until then. For what is too much to be gone through, when the ramp is over.
    pub(super) fn jump_to(&mut self, start: u64, end: u64) -> u64 {
        let ticks = |from: u64| end.saturating_sub(from) as f64;
        let skipped = ticks(self.next.max(start)) * self.per_tick;
        self.load += ticks(self.next) * self.per_tick;
        self.next = end;
        skipped as u64
    }

    /// The time until which this load has come: the rate grows linearly to the end of the ramp.
    #[inline]
    fn when(&self, load: f64) -> f64 {
        let ramped = self.per_tick * self.ramp / 2.0;
        if load < ramped {
            return (2.0 * load * self.ramp / self.per_tick).sqrt();
        }
        self.ramp + (load - ramped) / self.per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Operation;
    use crate::load::random::Mixer;
    use crate::load::workload::Share;

    fn drive() -> Drive {
        Drive {
            begin: 1000,
            warmup: 100,
            measured: 50,
            cooldown: 30,
            interval: 20,
            core: (0, 1),
            ..Drive::default()
        }
    }

    #[test]
    fn a_drive_warms_up_counts_in_intervals_cools_down_and_is_over() {
        let mut schedule = Schedule::new(&drive(), 0);
        assert_eq!(drive().intervals(), 3);
        for (now, interval, phase) in [
            (1000, None, Phase::WarmUp),
            (1100, Some(0), Phase::Measured),
            (1125, Some(1), Phase::Measured),
            (1149, Some(2), Phase::Measured),
            (1150, None, Phase::CoolDown),
            (1180, None, Phase::Over),
        ] {
            assert!(schedule.is_due(now) || now == 1000, "{now}");
            assert_eq!((schedule.advance(now), schedule.phase), (interval, phase), "{now}");
            assert!(!schedule.is_due(now), "{now}");
        }
    }

    #[test]
    fn measured_calls_may_be_late_for_a_time_of_grace() {
        let mut schedule = Schedule::new(&drive(), 10);
        for (now, phase) in [(1155, Phase::Measured), (1160, Phase::CoolDown)] {
            schedule.advance(now);
            assert_eq!(schedule.phase, phase, "{now}");
            assert!(schedule.is_measured(1149) && !schedule.is_measured(1150));
        }
    }

    #[test]
    fn what_ends_early_stays_over() {
        let mut schedule = Schedule::new(&drive(), 0);
        schedule.advance(1110);
        schedule.finish(1120);
        assert_eq!((schedule.advance(1130), schedule.phase), (None, Phase::Over));
        assert_eq!(schedule.end - schedule.start, 20);
    }

    fn starts(drive: &Drive, arrivals: Arrivals, seed: u64) -> Vec<u64> {
        let mut pacer = Pacer::new(drive, 0.01, arrivals, seed);
        let next = || {
            let at = pacer.next();
            pacer.step();
            at
        };
        std::iter::repeat_with(next).take(1000).collect()
    }

    #[test]
    fn fixed_arrivals_keep_their_distance_and_cores_take_turns() {
        assert_eq!(starts(&drive(), Arrivals::Fixed, 1)[..3], [1100, 1200, 1300]);
        let second = Drive { core: (1, 2), ..drive() };
        assert_eq!(starts(&second, Arrivals::Fixed, 1)[..3], [1150, 1250, 1350]);
    }

    #[test]
    fn poisson_arrivals_follow_their_seed_and_keep_the_rate() {
        let of = |seed| starts(&drive(), Arrivals::Poisson, seed);
        assert_eq!(of(4), of(4));
        assert_ne!(of(4), of(5));
        let mean = (of(4)[999] - 1000) as f64 / 1000.0;
        assert!((85.0..115.0).contains(&mean), "{mean}");
    }

    #[test]
    fn no_operation_of_a_mix_prefers_the_longer_gaps() {
        let share = |op| Share { op, weight: 50, call_bytes: 0, reply_bytes: 0 };
        let mut mixer = Mixer::new(&[share(Operation::Echo), share(Operation::Read)], 7).unwrap();
        let mut pacer = Pacer::new(&drive(), 0.01, Arrivals::Poisson, 7);
        let (mut last, mut gaps) = (drive().begin, [(0.0, 0_u32); 2]);
        for _ in 0..100_000 {
            let (sum, count) = &mut gaps[mixer.pick()];
            *sum += (pacer.next() - last) as f64;
            *count += 1;
            last = pacer.next();
            pacer.step();
        }
        for (sum, count) in gaps {
            let mean = sum / f64::from(count);
            assert!((95.0..105.0).contains(&mean), "{gaps:?}");
        }
    }

    #[test]
    fn calls_that_are_too_many_are_reckoned() {
        let mut pacer = Pacer::new(&drive(), 0.01, Arrivals::Fixed, 1);
        assert_eq!(pacer.jump_to(2_100, 102_100), 1000);
        assert_eq!(pacer.next(), 102_100);
        pacer.step();
        assert_eq!(pacer.next(), 102_200);
    }

    #[test]
    fn a_ramp_brings_half_of_the_load_and_then_all_of_it() {
        let ramped = Drive { ramp: 20_000, ..drive() };
        let starts = starts(&ramped, Arrivals::Fixed, 1);
        let ramp_calls = starts.iter().filter(|at| **at <= 21_000).count();
        assert_eq!(ramp_calls, 100);
        assert_eq!(starts[999] - starts[998], 100);
        assert!(starts[1] - starts[0] > starts[99] - starts[98]);
    }
}
