//! Latencies of single calls: every sample recorded, percentiles at the end.
//!
//! Samples are clock ticks, since converting each to nanoseconds would cost as much as recording
//! it. `load` records; `report` reads the summary.

use crate::failure::Failure;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Records the round trips of one core, in clock ticks: a histogram for each interval of a drive, all
/// made beforehand, so that a sample is recorded once and the next interval is another index.
#[derive(Clone)]
pub(crate) struct Recorder {
    intervals: Vec<Histogram<u64>>,
    current: usize,
}

impl Recorder {
    /// A recorder of at least one interval, for up to a minute per sample of a clock of at most
    /// 10 GHz; anything longer counts as that. Allocates here, never while recording.
    pub(crate) fn new(intervals: usize) -> Result<Self, Failure> {
        let interval = || {
            let mut histogram = Histogram::new_with_bounds(1, TICKS_MAX, SIGNIFICANT_DIGITS)?;
            // The pages are the kernel's until they are written to.
            histogram.reset();
            Ok(histogram)
        };
        let intervals: Result<_, hdrhistogram::CreationError> =
            (0..intervals.max(1)).map(|_| interval()).collect();
        intervals
            .map(|intervals| Self { intervals, current: 0 })
            .map_err(|error| Failure::Measurement(format!("no histogram: {error}")))
    }

    /// Records one round trip.
    #[inline]
    pub(crate) fn record(&mut self, ticks: u64) {
        self.intervals[self.current].saturating_record(ticks);
    }

    /// Records from now on for this interval, or the last there is.
    pub(crate) fn select(&mut self, interval: usize) {
        self.current = interval.min(self.intervals.len() - 1);
    }

    /// How many were recorded.
    pub(crate) fn samples(&self) -> u64 {
        self.intervals.iter().map(Histogram::len).sum()
    }

    /// Adds the samples of another core, interval by interval.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.intervals.iter_mut().zip(&other.intervals) {
            // Cannot fail: all histograms have the same bounds.
            let _ = own.add(other);
        }
    }

    /// The intervals in the order of time, in ticks.
    pub(crate) fn intervals(&self) -> &[Histogram<u64>] {
        &self.intervals
    }

    /// All intervals together, in ticks.
    pub(crate) fn total(&self) -> Histogram<u64> {
        let mut total = self.intervals[0].clone();
        for interval in &self.intervals[1..] {
            // As in `merge`.
            let _ = total.add(interval);
        }
        total
    }

    /// The percentiles, with `ns_per_tick` of the clock that gave the samples.
    pub(crate) fn summary(&self, ns_per_tick: f64) -> LatencySummary {
        LatencySummary::of(&self.total(), ns_per_tick)
    }
}

/// Full round trips, from call to reply handler, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LatencySummary {
    /// How many calls were recorded: all of them.
    pub(crate) samples: u64,
    pub(crate) p50_ns: f64,
    pub(crate) p90_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) p99_9_ns: f64,
    pub(crate) p99_99_ns: f64,
    pub(crate) p99_999_ns: f64,
    pub(crate) max_ns: f64,
    pub(crate) mean_ns: f64,
}

impl LatencySummary {
    /// Of a histogram whose values are to be multiplied by `ns_per_unit`.
    pub(crate) fn of(histogram: &Histogram<u64>, ns_per_unit: f64) -> Self {
        let at = |percent: f64| histogram.value_at_quantile(percent / 100.0) as f64 * ns_per_unit;
        Self {
            samples: histogram.len(),
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p99_ns: at(99.0),
            p99_9_ns: at(99.9),
            p99_99_ns: at(99.99),
            p99_999_ns: at(99.999),
            max_ns: histogram.max() as f64 * ns_per_unit,
            mean_ns: histogram.mean() * ns_per_unit,
        }
    }

    /// Everything but the number of samples: the percentiles, the largest, the mean.
    pub(crate) fn figures(&self) -> [f64; 8] {
        [
            self.p50_ns,
            self.p90_ns,
            self.p99_ns,
            self.p99_9_ns,
            self.p99_99_ns,
            self.p99_999_ns,
            self.max_ns,
            self.mean_ns,
        ]
    }

    /// What [`LatencySummary::figures`] came from.
    pub(crate) fn from_figures(samples: u64, figures: [f64; 8]) -> Self {
        let [p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, max_ns, mean_ns] = figures;
        Self { samples, p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, max_ns, mean_ns }
    }

    /// A summary that says how many samples there were and nothing else: every figure is not a
    /// number, which a document writes as null and a table as a dash.
    pub(crate) fn refused(samples: u64) -> Self {
        Self::from_figures(samples, [f64::NAN; 8])
    }
}

/// Whether enough samples lie beyond a percentile for it to mean anything.
pub(crate) fn is_supported(percent: f64, samples: u64) -> bool {
    let beyond = samples as f64 * (1.0 - percent / 100.0);
    beyond + ROUNDING >= BEYOND_MIN
}

/// The middle of the values, or the mean of the two middle ones; 0 of none, and not a number if any
/// of them is not.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    if sorted.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        n => sorted[n / 2],
    }
}

/// Fewest samples beyond a percentile for which it is printed without parentheses.
const BEYOND_MIN: f64 = 10.0;
/// 1 - 0.9999 is not exactly 0.0001 in binary.
const ROUNDING: f64 = 1e-6;
const SIGNIFICANT_DIGITS: u8 = 3;
const TICKS_MAX: u64 = 60 * 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        assert!(is_supported(50.0, 20) && !is_supported(50.0, 19));
        assert!(is_supported(99.0, 1_000) && !is_supported(99.0, 999));
        assert!(is_supported(99.9, 10_000) && !is_supported(99.9, 9_999));
        assert!(is_supported(99.99, 100_000) && !is_supported(99.99, 99_999));
    }

    #[test]
    fn every_sample_counts_and_ticks_become_nanoseconds() {
        let mut recorder = Recorder::new(1).unwrap();
        (1..=1000).for_each(|ticks| recorder.record(ticks));
        let summary = recorder.summary(0.5);
        assert_eq!(summary.samples, 1000);
        assert!((summary.p50_ns - 250.0).abs() < 1.0, "{summary:?}");
        assert!((summary.p99_ns - 495.0).abs() < 1.0, "{summary:?}");
        assert!((summary.max_ns - 500.0).abs() < 1.0, "{summary:?}");
    }

    #[test]
    fn merging_cores_keeps_all_samples() {
        let (mut one, mut two) = (Recorder::new(1).unwrap(), Recorder::new(1).unwrap());
        one.record(10);
        two.record(1_000_000);
        one.merge(&two);
        let summary = one.summary(1.0);
        assert_eq!(summary.samples, 2);
        assert!(summary.max_ns >= 1_000_000.0);
    }

    #[test]
    fn every_interval_has_its_own_samples_and_the_summary_all_of_them() {
        let mut recorder = Recorder::new(2).unwrap();
        recorder.record(10);
        recorder.select(1);
        recorder.record(20);
        // A clock that has run on beyond the last interval.
        recorder.select(9);
        recorder.record(30);
        assert_eq!(recorder.intervals().iter().map(Histogram::len).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((recorder.samples(), recorder.summary(1.0).max_ns), (3, 30.0));
    }

    #[test]
    fn an_outlier_beyond_the_range_is_kept_at_its_end() {
        let mut recorder = Recorder::new(1).unwrap();
        recorder.record(u64::MAX);
        assert_eq!(recorder.summary(1.0).samples, 1);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
        assert!(median([1.0, f64::NAN, 2.0]).is_nan());
    }
}
