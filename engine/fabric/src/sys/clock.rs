//! The time of the data path: the processor's counter, or the kernel's clock without one.

use crate::sync::arch::{counter_is_usable, read_counter};
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;
use std::time::Duration;

/// A point in time in units of a [`Clock`]; only differences mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The processor's counter, which runs at one rate in all cores and sleep states: TSC of x86-64, CNTVCT of Arm.
    Counter,
    /// CLOCK_MONOTONIC_RAW, a tick being a nanosecond.
    Monotonic,
}

/// Reads ticks and converts them.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: ClockSource,
    ticks_per_second: u64,
    /// Nanoseconds per tick, times 2^[`FRACTION_BITS`].
    ns_per_tick: u64,
}

/// Enough to lose less than a nanosecond per second at rates up to 2^32 ticks per second.
const FRACTION_BITS: u32 = 32;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Time that the counter is compared with the kernel's clock. With two readings that are each good
/// to tens of nanoseconds, the rate is exact to a few parts in a million.
const CALIBRATION: Duration = Duration::from_millis(8);

impl Clock {
    /// The clock of this process: calibrated by the first caller, which takes up to 10 ms.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Clock> = OnceLock::new();
        *SHARED.get_or_init(Self::calibrate)
    }

    /// A clock from a new measurement, which takes up to 10 ms. Most want [`Clock::shared`].
    pub fn calibrate() -> Self {
        if !counter_is_usable() {
            return Self::monotonic();
        }
        let start = Sample::best();
        while monotonic_ns() - start.ns < CALIBRATION.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        Self::from_samples(start, Sample::best()).unwrap_or_else(Self::monotonic)
    }

    /// The kernel's clock, whatever the processor has.
    pub fn monotonic() -> Self {
        Self {
            source: ClockSource::Monotonic,
            ticks_per_second: NS_PER_SECOND,
            ns_per_tick: 1 << FRACTION_BITS,
        }
    }

    /// `None` if the counter stood still or ran at a rate no processor has.
    fn from_samples(start: Sample, end: Sample) -> Option<Self> {
        let ticks = u128::from(end.ticks.checked_sub(start.ticks)?);
        let ns = u128::from(end.ns.checked_sub(start.ns)?);
        let ticks_per_second = (ticks * u128::from(NS_PER_SECOND)).checked_div(ns)?;
        let ns_per_tick = (ns << FRACTION_BITS).checked_div(ticks)?;
        if !(1_000_000..=1 << 36).contains(&ticks_per_second) {
            return None;
        }
        Some(Self {
            source: ClockSource::Counter,
            ticks_per_second: u64::try_from(ticks_per_second).ok()?,
            ns_per_tick: u64::try_from(ns_per_tick).ok()?,
        })
    }

    /// Now. Not ordered with the memory accesses around it: the processor may read the counter some
    /// instructions early or late.
    #[inline(always)]
    pub fn now(&self) -> Ticks {
        match self.source {
            ClockSource::Counter => Ticks(read_counter()),
            ClockSource::Monotonic => Ticks(monotonic_ns()),
        }
    }

    /// Now, by the processor's counter; `None` where that is not the source.
    #[inline(always)]
    pub fn counter(&self) -> Option<Ticks> {
        match self.source {
            ClockSource::Counter => Some(Ticks(read_counter())),
            ClockSource::Monotonic => None,
        }
    }

    pub fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    /// Nanoseconds that `ticks` take, rounded down.
    #[inline]
    pub fn to_ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> FRACTION_BITS) as u64
    }

    /// Ticks that `duration` takes, rounded down; as many as can be if they are too many.
    pub fn from_duration(&self, duration: Duration) -> u64 {
        let ticks = duration.as_nanos().saturating_mul(u128::from(self.ticks_per_second))
            / u128::from(NS_PER_SECOND);
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    pub fn source(&self) -> ClockSource {
        self.source
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    ticks: u64,
    ns: u64,
}

impl Sample {
    /// The one of several tries whose two counter readings, before and after the kernel's clock, are closest together.
    fn best() -> Self {
        const TRIES: usize = 16;
        let mut best = (u64::MAX, Self { ticks: 0, ns: 0 });
        for _ in 0..TRIES {
            let before = read_counter();
            let ns = monotonic_ns();
            let spread = read_counter().wrapping_sub(before);
            if spread < best.0 {
                best = (spread, Self { ticks: before.wrapping_add(spread / 2), ns });
            }
        }
        best.1
    }
}

fn monotonic_ns() -> u64 {
    // Raw: not slewed by NTP, like the counter.
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec as u64 * NS_PER_SECOND + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn clock_of(ticks: u64, ns: u64) -> Option<Clock> {
        let start = Sample { ticks: 77, ns: 33 };
        Clock::from_samples(start, Sample { ticks: 77 + ticks, ns: 33 + ns })
    }

    /// Lets 20 ms pass on `clock` and compares with the standard library's, whatever interrupts.
    fn keeps_time(clock: Clock) {
        let outer = Instant::now();
        let start = clock.now();
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let at_least = inner.elapsed().as_nanos() as f64;
        let passed = clock.to_ns(clock.now().0 - start.0) as f64;
        let at_most = outer.elapsed().as_nanos() as f64;
        assert!(passed > 0.995 * at_least, "{clock:?}: {passed} ns for at least {at_least}");
        assert!(passed < 1.005 * at_most, "{clock:?}: {passed} ns for at most {at_most}");
    }

    #[test]
    fn clocks_keep_time() {
        keeps_time(Clock::monotonic());
        keeps_time(Clock::shared());
    }

    #[test]
    fn the_shared_clock_is_calibrated_once() {
        let rate = Clock::shared().ticks_per_second();
        assert_eq!(Clock::shared().ticks_per_second(), rate);
    }

    #[test]
    fn ticks_and_time_convert() {
        let clock = clock_of(20_000_000, 8_000_000).unwrap();
        assert_eq!(clock.ticks_per_second(), 2_500_000_000);
        assert_eq!(clock.source(), ClockSource::Counter);
        assert!(clock.to_ns(2_500_000_000).abs_diff(1_000_000_000) <= 1);
        assert_eq!(clock.from_duration(Duration::from_micros(2)), 5_000);
        assert_eq!(clock.from_duration(Duration::MAX), u64::MAX);
        assert_eq!(clock.to_ns(0), 0);
    }

    #[test]
    fn years_of_ticks_convert() {
        let clock = clock_of(20_000_000, 8_000_000).unwrap();
        let ten_years = Duration::from_secs(10 * 365 * 86_400);
        let ns = clock.to_ns(clock.from_duration(ten_years));
        let lost = ten_years.as_nanos() as u64 - ns;
        assert!(lost <= ten_years.as_secs(), "lost {lost} ns in ten years");
    }

    #[test]
    fn a_counter_that_is_no_clock_is_not_used() {
        assert!(clock_of(0, 8_000_000).is_none());
        assert!(clock_of(20_000_000, 0).is_none());
        assert!(clock_of(100, 8_000_000).is_none());
        assert!(clock_of(u64::MAX / 2, 8_000_000).is_none());
        let back = Sample { ticks: 0, ns: 0 };
        assert!(Clock::from_samples(Sample { ticks: 1, ns: 1 }, back).is_none());
    }

    #[test]
    fn the_kernel_clock_counts_nanoseconds() {
        let clock = Clock::monotonic();
        assert_eq!(clock.ticks_per_second(), 1_000_000_000);
        assert_eq!(clock.to_ns(u64::MAX), u64::MAX);
        assert_eq!(clock.from_duration(Duration::from_nanos(123)), 123);
        assert_eq!(clock.source(), ClockSource::Monotonic);
    }
}
