//! Phases of a drive, start times of an open loop, and seeded random numbers for these and for the next operation. All
//! times are clock ticks. The driver passes in the time that it reads anyway.

use super::measurement::Arrivals;
use super::workload::Share;
use spinrpc::sys::random::Random;

/// One drive of one core: [`Limits`](super::workload::Limits) in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drive {
    pub(super) begin: u64,
    pub(super) warmup: u64,
    pub(super) measured: u64,
    pub(super) grace: u64,
    pub(super) can_be_interrupted: bool,
    pub(super) calls_max: Option<u64>,
    /// Index of the core among the client's, and their number.
    pub(super) core: (usize, usize),
    pub(super) window: u64,
}

impl Drive {
    /// Of the random choices of this core in this window: no two of them may make the same ones.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        seed.wrapping_add(self.core.0 as u64).wrapping_add(self.window.wrapping_mul(WINDOW_SEED))
    }
}

/// Phase of a drive. A call counts according to the phase it starts in, whenever it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    WarmUp,
    Measured,
    #[default]
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Schedule {
    next: u64,
    pub(super) phase: Phase,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) stop: u64,
}

impl Schedule {
    /// Measured calls behind schedule may still start for `grace` ticks.
    pub(super) fn new(drive: &Drive, grace: u64) -> Self {
        let start = drive.begin.saturating_add(drive.warmup);
        let end = start.saturating_add(drive.measured);
        let stop = end.saturating_add(grace);
        Self { next: start, phase: Phase::WarmUp, start, end, stop }
    }

    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Advances to the phase at `now`.
    pub(super) fn advance(&mut self, now: u64) {
        (self.phase, self.next) = match now {
            _ if self.phase == Phase::Over || now >= self.stop => (Phase::Over, u64::MAX),
            _ if now >= self.start => (Phase::Measured, self.stop),
            _ => (Phase::WarmUp, self.start),
        };
    }

    pub(super) fn finish(&mut self, now: u64) {
        self.end = now.max(self.start);
        self.stop = now;
        self.phase = Phase::Over;
        self.next = u64::MAX;
    }

    #[inline]
    pub(super) fn is_measured(&self, time: u64) -> bool {
        (self.start..self.end).contains(&time)
    }
}

/// Start times of the calls of an open loop: a sequence that depends only on rate and seed. The
/// measured time has exactly as many calls as its rate yields: at equal distances, or for Poisson
/// arrivals at independent random times. Otherwise the actual rate would differ from the requested
/// one by chance, or by where the measured time begins between two calls.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    arrivals: Arrivals,
    random: Random,
    begin: u64,
    per_tick: f64,
    /// Calls due so far at this rate; need not be a whole number.
    load: f64,
    /// Load at the beginning and at the end of the measured time.
    window: [f64; 2],
    /// Measured calls after the next.
    left: u64,
    pub(super) counts: bool,
    /// Position of this core's calls in the distance between two calls, if distances are equal.
    place: f64,
    pub(super) next: u64,
}

impl Pacer {
    /// `per_tick` calls at full rate, and `planned` in the measured time.
    pub(super) fn new(
        drive: &Drive,
        per_tick: f64,
        arrivals: Arrivals,
        seed: u64,
        planned: u64,
    ) -> Self {
        let (core, cores) = drive.core;
        // Cores with equal distances call at different times, and none on the bounds.
        let place = (core as f64 + 0.5) / cores.max(1) as f64;
        let random = Random::seeded(drive.seed(seed));
        let begin = drive.begin;
        let start = per_tick * drive.warmup as f64;
        let window = [start, start + planned as f64];
        let mut pacer = Self {
            arrivals,
            random,
            begin,
            per_tick,
            load: place - 1.0,
            window,
            left: planned,
            counts: false,
            place,
            next: begin,
        };
        if arrivals == Arrivals::Poisson {
            pacer.load = 0.0;
        }
        pacer.step();
        pacer
    }

    #[inline]
    pub(super) fn step(&mut self) {
        let [start, end] = self.window;
        let mut next = self.load + self.distance();
        self.counts = false;
        if self.left > 0 && next >= start {
            // The measured time starts afresh, whatever came before it.
            let (from, is_first) = (self.load.max(start), self.load < start);
            next = match self.arrivals {
                Arrivals::Fixed if is_first => start + self.place,
                Arrivals::Fixed => next,
                Arrivals::Poisson => {
                    let gap = exponential(&mut self.random) / self.left as f64;
                    from - (end - from) * (-gap).exp_m1()
                }
            };
            self.left -= 1;
            self.counts = true;
        } else if self.load < end && next >= start {
            next = match self.arrivals {
                Arrivals::Fixed => end + self.place,
                Arrivals::Poisson => end + exponential(&mut self.random),
            };
        }
        self.load = next;
        self.next = self.begin.saturating_add((self.load / self.per_tick) as u64);
    }

    fn distance(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Fixed => 1.0,
            Arrivals::Poisson => exponential(&mut self.random),
        }
    }

    pub(super) fn skip_measured(&mut self) {
        if self.load < self.window[1] {
            (self.left, self.load) = (0, self.window[0].max(self.load));
            self.step();
        }
    }

    /// Calls due by `now`, and the time they take, in ticks: never less than `now` itself.
    pub(super) fn measured_by(&self, now: u64) -> (u64, u64) {
        let [start, end] = self.window;
        let from = self.begin.saturating_add((start / self.per_tick) as u64);
        let ticks = now.saturating_sub(from);
        let calls = (ticks as f64 * self.per_tick).ceil().min(end - start);
        (calls as u64, ticks.max((calls / self.per_tick).ceil() as u64))
    }
}

/// A positive number, exponentially distributed with mean 1.
#[inline]
fn exponential(random: &mut Random) -> f64 {
    // In (0, 1]: 53 bits, and never zero.
    let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln()
}

pub(crate) fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.at_most(last as u64) as usize);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Mixer {
    random: Random,
    /// Cumulative weights: upper bound of the numbers that select each share.
    ends: Vec<u64>,
}

impl Mixer {
    /// `None` for a single share. The sequence differs from that of arrivals with the same seed: no operation
    /// may prefer the longer gaps.
    pub(super) fn new(shares: &[Share], seed: u64) -> Option<Self> {
        let sum = |end: &mut u64, share: &Share| {
            *end += u64::from(share.weight);
            Some(*end)
        };
        let ends = shares.iter().scan(0, sum).collect();
        (shares.len() > 1).then(|| Self { random: Random::seeded(seed ^ MIX_SEED), ends })
    }

    #[inline]
    pub(super) fn pick(&mut self) -> usize {
        let number = self.random.at_most(self.ends.last().map_or(0, |end| end - 1));
        self.ends.iter().position(|&end| number < end).unwrap_or(0)
    }
}

/// Odd, and far above the number of cores.
const WINDOW_SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_SEED: u64 = 0x6d69_785f_7365_6564;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Operation;

    fn drive() -> Drive {
        Drive { begin: 1000, warmup: 100, measured: 50, core: (0, 1), ..Drive::default() }
    }

    #[test]
    fn a_drive_warms_up_measures_and_is_over() {
        let mut schedule = Schedule::new(&drive(), 0);
        for (now, phase) in [(1000, Phase::WarmUp), (1100, Phase::Measured), (1150, Phase::Over)] {
            assert!(schedule.is_due(now) || now == 1000, "{now}");
            schedule.advance(now);
            assert_eq!(schedule.phase, phase, "{now}");
            assert!(!schedule.is_due(now), "{now}");
        }
    }

    #[test]
    fn measured_calls_may_be_late_for_a_time_of_grace() {
        let mut schedule = Schedule::new(&drive(), 10);
        for (now, phase) in [(1155, Phase::Measured), (1160, Phase::Over)] {
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
        schedule.advance(1130);
        assert_eq!(schedule.phase, Phase::Over);
        assert_eq!(schedule.end - schedule.start, 20);
    }

    fn starts(drive: &Drive, arrivals: Arrivals, seed: u64) -> Vec<u64> {
        let mut pacer = Pacer::new(drive, 0.01, arrivals, seed, 0);
        let next = || {
            let at = pacer.next;
            pacer.step();
            at
        };
        std::iter::repeat_with(next).take(1000).collect()
    }

    #[test]
    fn fixed_arrivals_keep_their_distance_and_cores_take_turns() {
        assert_eq!(starts(&drive(), Arrivals::Fixed, 1)[..3], [1050, 1150, 1250]);
        let of = |core| starts(&Drive { core: (core, 2), ..drive() }, Arrivals::Fixed, 1);
        assert_eq!((&of(0)[..2], &of(1)[..2]), (&[1025, 1125][..], &[1075, 1175][..]));
    }

    /// Try measured times that begin anywhere between two calls. Expect exactly the calls that the
    /// rate yields, all within the time, and others before and after it.
    #[test]
    fn the_measured_time_has_as_many_calls_as_its_rate_brings() {
        for (arrivals, warmup) in [Arrivals::Fixed, Arrivals::Poisson]
            .into_iter()
            .flat_map(|arrivals| [0, 1, 50, 99, 100, 12_345].map(|warmup| (arrivals, warmup)))
        {
            let drive = Drive { warmup, measured: 10_000, ..drive() };
            let mut pacer = Pacer::new(&drive, 0.01, arrivals, 3, 100);
            let start = drive.begin + warmup;
            let mut counted = Vec::new();
            while pacer.next < start + 20_000 {
                match pacer.counts {
                    true => counted.push(pacer.next),
                    false => assert!(!(start..start + 10_000).contains(&pacer.next), "{pacer:?}"),
                }
                pacer.step();
            }
            assert_eq!(counted.len(), 100, "{arrivals:?} after {warmup}");
            let all_within = counted.iter().all(|at| (start..=start + 10_000).contains(at));
            assert!(all_within && counted.is_sorted(), "{arrivals:?} after {warmup}: {counted:?}");
        }
    }

    #[test]
    fn a_measured_time_that_ends_early_has_no_higher_rate() {
        let drive = Drive { warmup: 0, measured: 10_000, ..drive() };
        let pacer = Pacer::new(&drive, 0.01, Arrivals::Fixed, 1, 100);
        let by = [1000, 1001, 1100, 1150, 99_000].map(|now| pacer.measured_by(now));
        assert_eq!(by, [(0, 0), (1, 100), (1, 100), (2, 200), (100, 98_000)]);
    }

    #[test]
    fn poisson_arrivals_follow_their_seed_and_keep_the_rate() {
        let of = |seed| starts(&drive(), Arrivals::Poisson, seed);
        assert!(of(4) == of(4) && of(4) != of(5));
        let mean = (of(4)[999] - 1000) as f64 / 1000.0;
        assert!((85.0..115.0).contains(&mean), "{mean}");
    }

    #[test]
    fn each_window_has_random_choices_of_its_own() {
        let of = |window| starts(&Drive { window, ..drive() }, Arrivals::Poisson, 4);
        assert!(of(0) == of(0) && of(0) != of(1) && of(1) != of(2));
        assert_eq!(of(0), starts(&drive(), Arrivals::Poisson, 4));
    }

    #[test]
    fn no_operation_of_a_mix_prefers_the_longer_gaps() {
        let share = |op| Share { op, weight: 50, call_bytes: 0, reply_bytes: 0 };
        let mut mixer = Mixer::new(&[share(Operation::Echo), share(Operation::Read)], 7).unwrap();
        let mut pacer = Pacer::new(&drive(), 0.01, Arrivals::Poisson, 7, 0);
        let (mut last, mut gaps) = (drive().begin, [(0.0, 0_u32); 2]);
        for _ in 0..100_000 {
            let (sum, count) = &mut gaps[mixer.pick()];
            *sum += (pacer.next - last) as f64;
            *count += 1;
            last = pacer.next;
            pacer.step();
        }
        for (sum, count) in gaps {
            let mean = sum / f64::from(count);
            assert!((95.0..105.0).contains(&mean), "{gaps:?}");
        }
    }

    #[test]
    fn measured_calls_that_are_given_up_are_skipped_at_once() {
        for arrivals in [Arrivals::Fixed, Arrivals::Poisson] {
            let drive = Drive { measured: 1 << 40, ..drive() };
            let mut pacer = Pacer::new(&drive, 0.01, arrivals, 1, 1 << 33);
            pacer.skip_measured();
            assert!(pacer.next >= 1100 + (1 << 33) * 100 && !pacer.counts, "{pacer:?}");
        }
    }

    #[test]
    fn exponential_numbers_are_positive_with_a_mean_of_one() {
        let mut random = Random::seeded(1);
        let numbers: Vec<f64> = (0..100_000).map(|_| exponential(&mut random)).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0));
    }

    #[test]
    fn shares_are_picked_by_weight() {
        let share = |op, weight| Share { op, weight, call_bytes: 0, reply_bytes: 0 };
        let shares = [share(Operation::Echo, 70), share(Operation::Read, 30)];
        let mut mixer = Mixer::new(&shares, 3).unwrap();
        let reads = (0..10_000).filter(|_| mixer.pick() == 1).count();
        assert!((2800..3200).contains(&reads), "{reads}");
        assert!(Mixer::new(&shares[..1], 3).is_none());
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        shuffle(&mut items, &mut Random::seeded(5));
        assert_ne!(items, (0..50).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
