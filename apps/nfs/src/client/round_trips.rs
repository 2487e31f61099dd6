//! Round-trip times of calls.

use super::Error;
use hdrhistogram::Histogram;

/// Longest distinguishable round trip, in nanoseconds.
const LONGEST_NS: u64 = 600_000_000_000;
/// 0.1 % of a thousand calls is one call, despite rounding.
const ROUNDING: f64 = 1e-6;
const SIGNIFICANT_DIGITS: u8 = 3;
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// Times from call to reply.
#[derive(Debug)]
pub struct RoundTrips(Histogram<u64>);

impl RoundTrips {
    /// An empty histogram. Allocates here, and never while recording.
    ///
    /// # Errors
    /// [`Error::Local`] if there is not enough memory.
    pub fn new() -> Result<Self, Error> {
        let times = Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS);
        times.map(Self).map_err(|error| Error::Local(error.to_string()))
    }

    /// Records a round trip; longer than ten minutes counts as ten minutes.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Number of calls.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Minimum, mean, percentiles and maximum, in nanoseconds; empty if there are none. A
    /// percentile that no call lies beyond is `None`, because it would equal the maximum.
    pub fn summary(&self) -> Vec<(&'static str, Option<f64>)> {
        let Self(times) = self;
        if times.is_empty() {
            return Vec::new();
        }
        let mut all = vec![("min", Some(times.min() as f64)), ("mean", Some(times.mean()))];
        let beyond = |percent: f64| times.len() as f64 * (1.0 - percent / 100.0);
        let is_known = |percent| percent <= 50.0 || beyond(percent) + ROUNDING >= 1.0;
        let at = |percent| is_known(percent).then(|| times.value_at_percentile(percent) as f64);
        all.extend(PERCENTILES.map(|(name, percent)| (name, at(percent))));
        all.push(("max", Some(times.max() as f64)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_goes_from_the_shortest_to_the_longest() {
        let mut times = RoundTrips::new().unwrap();
        assert!(times.is_empty() && times.summary().is_empty());
        (1..=1000).for_each(|ns| times.record(ns * 1000));
        let summary: std::collections::BTreeMap<_, _> = times.summary().into_iter().collect();
        let near = |name: &str, ns: f64| (summary[name].unwrap() / ns - 1.0).abs() < 0.002;
        assert_eq!(times.len(), 1000);
        assert!(near("min", 1e3) && near("p50", 500e3) && near("p99", 990e3), "{summary:?}");
        assert!(near("mean", 500.5e3) && near("max", 1e6), "{summary:?}");
    }

    #[test]
    fn percentiles_that_no_call_lies_beyond_are_not_known() {
        let mut times = RoundTrips::new().unwrap();
        let unknown = |times: &RoundTrips| {
            let all = times.summary().into_iter();
            all.filter_map(|(name, ns)| ns.is_none().then_some(name)).collect::<Vec<_>>()
        };
        times.record(1000);
        assert_eq!(unknown(&times), ["p90", "p99", "p99.9", "p99.99"]);
        (1..1000).for_each(|ns| times.record(ns));
        assert_eq!(unknown(&times), ["p99.99"]);
    }
}
