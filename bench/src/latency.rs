//! Latencies of single calls: every sample is recorded, and percentiles are computed at the end.
//!
//! Samples are clock ticks, because converting each to nanoseconds would cost as much as recording
//! it. `load` records; `report` reads the summary.

use crate::failure::Failure;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::hint::black_box;

/// Records the round trips of one core, in clock ticks. Everything that a drive needs is allocated
/// before it.
pub(crate) struct Recorder {
    /// A histogram takes 3 ns longer for each, of 40 that a call takes.
    short: Box<[u64]>,
    others: Histogram<u64>,
}

impl Recorder {
    /// For up to an hour per sample at a clock of at most 10 GHz; longer samples are clamped. Allocates here, never
    /// while recording.
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut others = Histogram::new_with_bounds(1, TICKS_MAX, SIGNIFICANT_DIGITS)?;
        others.reset();
        let mut short = vec![0; SHORT_TICKS].into_boxed_slice();
        // Touches the pages, which the kernel would otherwise allocate at the first write.
        black_box(&mut short).fill(0);
        Ok(Self { short, others })
    }

    #[inline]
    pub(crate) fn record(&mut self, ticks: u64) {
        if ticks < SHORT_TICKS as u64 {
            self.short[ticks as usize] += 1;
        } else {
            self.others.saturating_record(ticks);
        }
    }

    pub(crate) fn finish(self) -> Recorded {
        let Self { short, others: mut all } = self;
        for (ticks, &count) in short.iter().enumerate().filter(|(_, count)| **count > 0) {
            all.saturating_record_n(ticks as u64, count);
        }
        Recorded(all)
    }
}

/// The round trips that cores have recorded, in clock ticks.
#[derive(Clone)]
pub(crate) struct Recorded(Histogram<u64>);

impl Recorded {
    pub(crate) fn samples(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        // Cannot fail: all histograms have the same bounds.
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }

    /// `lost` calls were never answered, or never sent in time; `ns_per_tick` is that of the samples' clock.
    pub(crate) fn summary(&self, ns_per_tick: f64, lost: u64) -> LatencySummary {
        LatencySummary::of(&self.0, ns_per_tick, lost)
    }
}

/// Full round trips, from call to reply handler, in nanoseconds. Figures without samples are NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LatencySummary {
    pub(crate) samples: u64,
    pub(crate) missing: u64,
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
    /// `lost` calls rank as slower than every sample: a percentile among them, the maximum and the mean are
    /// unknown. So is a percentile that cannot be told from the maximum.
    pub(crate) fn of(histogram: &Histogram<u64>, ns_per_unit: f64, lost: u64) -> Self {
        let answered = histogram.len();
        if answered == 0 {
            return Self { missing: lost, ..Self::refused(0) };
        }
        let at = |percent: f64| match rank(percent, answered.saturating_add(lost)) {
            Some(rank) if rank <= answered => {
                // Half a sample below, so that rounding does not yield the next rank.
                let quantile = (rank as f64 - 0.5) / answered as f64;
                histogram.value_at_quantile(quantile) as f64 * ns_per_unit
            }
            _ => f64::NAN,
        };
        let unless_lost = |value: f64| if lost == 0 { value * ns_per_unit } else { f64::NAN };
        let ends = [histogram.max() as f64, histogram.mean()].map(unless_lost);
        let [p50, p90, p99, p99_9, p99_99, p99_999] = PERCENTILES.map(at);
        let figures = [p50, p90, p99, p99_9, p99_99, p99_999, ends[0], ends[1]];
        Self { missing: lost, ..Self::from_figures(answered, figures) }
    }

    pub(crate) fn from_figures(samples: u64, figures: [f64; 8]) -> Self {
        let [p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, max_ns, mean_ns] = figures;
        Self {
            samples,
            missing: 0,
            p50_ns,
            p90_ns,
            p99_ns,
            p99_9_ns,
            p99_99_ns,
            p99_999_ns,
            max_ns,
            mean_ns,
        }
    }

    pub(crate) fn figures(&self) -> [f64; 8] {
        let Self {
            p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, max_ns, mean_ns, ..
        } = *self;
        [p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, p99_999_ns, max_ns, mean_ns]
    }

    /// Every figure is NaN, which a document writes as null and a table as a dash.
    pub(crate) fn refused(samples: u64) -> Self {
        Self::from_figures(samples, [f64::NAN; 8])
    }
}

/// Rank of the call at a percentile, in ascending order. `None` if no whole call lies beyond it,
/// because it would then equal the maximum. The median exists for any number of calls.
fn rank(percent: f64, calls: u64) -> Option<u64> {
    let is_median = percent <= 50.0;
    let beyond = calls as f64 * (1.0 - percent / 100.0) + ROUNDING;
    (is_median || beyond >= 1.0).then(|| (calls - beyond.floor() as u64).max(1))
}

pub(crate) fn is_supported(percent: f64, samples: u64) -> bool {
    let beyond = samples as f64 * (1.0 - percent / 100.0);
    beyond + ROUNDING >= BEYOND_MIN
}

/// Median of rates: always one of the values, the lower of the two middle ones for an even number.
/// NaN if there are none, or if one of them is NaN.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    middle(values, |count| count.saturating_sub(1) / 2)
}

/// The upper of two middle values, so that an even number of repeats does not flatter.
pub(crate) fn upper_median(values: impl IntoIterator<Item = f64>) -> f64 {
    middle(values, |count| count / 2)
}

/// The worse of the two middle values for an even number.
pub(crate) fn worse_median(values: impl IntoIterator<Item = f64>, lower_is_better: bool) -> f64 {
    if lower_is_better { upper_median(values) } else { median(values) }
}

fn middle(values: impl IntoIterator<Item = f64>, index: fn(usize) -> usize) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    if sorted.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    sorted.sort_by(f64::total_cmp);
    sorted.get(index(sorted.len())).copied().unwrap_or(f64::NAN)
}

pub(crate) const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
/// Minimum number of samples beyond a percentile for it to be printed without parentheses.
const BEYOND_MIN: f64 = 10.0;
/// 1 - 0.9999 is not exactly 0.0001 in binary.
const ROUNDING: f64 = 1e-6;
const SIGNIFICANT_DIGITS: u8 = 3;
/// 2 to 3 µs.
const SHORT_TICKS: usize = 8192;
const TICKS_MAX: u64 = 3600 * 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(samples: impl IntoIterator<Item = u64>) -> Recorded {
        let mut recorder = Recorder::new().unwrap();
        samples.into_iter().for_each(|ticks| recorder.record(ticks));
        recorder.finish()
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        for (percent, samples) in [(50.0, 20), (99.0, 1_000), (99.9, 10_000), (99.99, 100_000)] {
            let supported = [samples, samples - 1].map(|samples| is_supported(percent, samples));
            assert_eq!(supported, [true, false], "{percent}");
        }
    }

    #[test]
    fn every_sample_of_every_core_counts_and_ticks_become_nanoseconds() {
        let mut all = recorded(1..=500);
        all.merge(&recorded(501..=1000));
        let LatencySummary { samples, p50_ns, p99_ns, max_ns, .. } = all.summary(0.5, 0);
        assert_eq!(samples, 1000);
        for (found, expected) in [(p50_ns, 250.0), (p99_ns, 495.0), (max_ns, 500.0)] {
            assert!((found - expected).abs() < 1.0, "{found}, not {expected}");
        }
    }

    #[test]
    fn samples_around_the_end_of_the_short_ones_are_all_kept() {
        let end = SHORT_TICKS as u64;
        let all = recorded([0, 1, end - 1, end - 1, end, end + 8, 0]);
        let all = all.histogram();
        let at = |ticks| all.count_at(ticks);
        assert_eq!((all.len(), at(0), at(1), at(end - 1), at(end)), (7, 2, 1, 2, 1));
        assert_eq!((all.min(), at(end + 8), all.max() >= end + 8), (0, 1, true));
    }

    #[test]
    fn a_sample_of_minutes_is_not_cut_off_and_an_outlier_beyond_the_range_is_kept_at_its_end() {
        assert_eq!(recorded([u64::MAX]).summary(1.0, 0).samples, 1);
        let ten_minutes = recorded([600 * 4_000_000_000]).summary(0.25, 0);
        assert!(ten_minutes.max_ns > 599e9, "{ten_minutes:?}");
    }

    /// Summarise few samples. Expect only the percentiles that differ from the maximum. Lost calls rank as the slowest.
    #[test]
    fn percentiles_that_no_sample_lies_beyond_are_not_known() {
        let summary = |samples, lost| recorded(1..=samples).summary(1.0, lost);
        assert!(summary(0, 0).p50_ns.is_nan() && summary(0, 0).max_ns.is_nan());
        let one = summary(1, 0);
        assert!(one.p50_ns == 1.0 && one.max_ns == 1.0 && one.p90_ns.is_nan(), "{one:?}");
        let hundred = summary(100, 0);
        assert_eq!((hundred.p50_ns, hundred.p90_ns, hundred.p99_ns), (50.0, 90.0, 99.0));
        assert!(hundred.p99_9_ns.is_nan() && hundred.p99_99_ns.is_nan(), "{hundred:?}");
        let lossy = summary(95, 5);
        assert_eq!((lossy.samples, lossy.p50_ns, lossy.p90_ns), (95, 50.0, 90.0));
        assert!(lossy.p99_ns.is_nan() && lossy.max_ns.is_nan() && lossy.mean_ns.is_nan());
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        for (values, low, high) in [
            (&[3.0, 1.0, 2.0][..], 2.0, 2.0),
            (&[4.0, 1.0, 2.0, 3.0], 2.0, 3.0),
            (&[1.0, 2.0], 1.0, 2.0),
        ] {
            let of = |lower_is_better| worse_median(values.iter().copied(), lower_is_better);
            assert_eq!([of(false), of(true)], [low, high], "{values:?}");
        }
        assert!(median([]).is_nan() && upper_median([]).is_nan());
        assert!(median([1.0, f64::NAN, 2.0]).is_nan());
    }
}
