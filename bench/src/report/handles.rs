//! Figures of calls from threads other than the core's. `handles` measures them.

use super::Goal;
use crate::latency::{median, upper_median};
use crate::units::{show_count, show_us};
use serde::Serialize;

/// Meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Median latency with polling cores, in nanoseconds; the limit is a cache-line round trip.
    BusyLatency,
    /// Median latency with sleeping cores, in nanoseconds; the limit is an eventfd ping-pong.
    IdleLatency,
    /// Calls per second; the limit is the rate of the core itself.
    Rate,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HandleValue {
    /// Calls made on the core itself.
    pub(crate) own: f64,
    /// Calls made through handles.
    pub(crate) handle: f64,
    /// Limit to compare with.
    pub(crate) floor: f64,
}

/// One figure in all repeats.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HandleRow {
    pub(crate) name: String,
    pub(crate) figure: Figure,
    pub(crate) values: Vec<HandleValue>,
    pub(crate) median: HandleValue,
    /// Median of the ratios within the repeats.
    pub(crate) ratio: f64,
}

impl Figure {
    /// A value with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::BusyLatency | Self::IdleLatency => format!("{} µs", show_us(value)),
            Self::Rate => format!("{}/s", show_count(value)),
        }
    }

    /// Unit of the ratio.
    pub(crate) fn ratio_name(self) -> &'static str {
        match self {
            Self::BusyLatency => "cache-line RTT more",
            Self::IdleLatency => "eventfd ping-pong more",
            Self::Rate => "x the core itself",
        }
    }

    fn ratio(self, value: &HandleValue) -> f64 {
        match self {
            Self::BusyLatency | Self::IdleLatency => (value.handle - value.own) / value.floor,
            Self::Rate => value.handle / value.floor,
        }
    }

    fn middle(self, values: impl Iterator<Item = f64>) -> f64 {
        if self == Self::Rate { median(values) } else { upper_median(values) }
    }
}

impl HandleRow {
    pub(crate) fn new(name: String, figure: Figure, values: Vec<HandleValue>) -> Self {
        let of = |get: fn(&HandleValue) -> f64| figure.middle(values.iter().map(get));
        let median = HandleValue {
            own: of(|value| value.own),
            handle: of(|value| value.handle),
            floor: of(|value| value.floor),
        };
        let ratio = figure.middle(values.iter().map(|value| figure.ratio(value)));
        Self { name, figure, values, median, ratio }
    }

    /// Target of the figure.
    pub(crate) fn goal(&self) -> Goal {
        match self.figure {
            Figure::BusyLatency => Goal::at_most(
                "call through a handle, busy cores: cache-line RTT more",
                self.ratio,
                3.0,
            ),
            Figure::IdleLatency => Goal::at_most(
                "call through a handle, idle cores: eventfd ping-pong more",
                self.ratio,
                1.5,
            ),
            Figure::Rate => Goal::at_least(
                format!("calls/s through handles, {THREADS} threads, x the core itself"),
                self.ratio,
                0.8,
            ),
        }
    }
}

/// Threads that make the calls of [`Figure::Rate`].
pub(crate) const THREADS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(figure: Figure, values: &[(f64, f64, f64)]) -> HandleRow {
        let value = |(own, handle, floor): &(f64, f64, f64)| HandleValue {
            own: *own,
            handle: *handle,
            floor: *floor,
        };
        HandleRow::new("row".to_owned(), figure, values.iter().map(value).collect())
    }

    #[test]
    fn latencies_are_compared_by_what_a_handle_adds() {
        let values = [(200.0, 500.0, 100.0), (200.0, 550.0, 100.0), (900.0, 950.0, 50.0)];
        let row = row(Figure::BusyLatency, &values);
        assert_eq!((row.ratio, row.median.handle), (3.0, 550.0));
        assert!(row.goal().met);
    }

    #[test]
    fn rates_are_compared_by_their_quotient_expect_the_worse_of_an_even_number() {
        let row = row(Figure::Rate, &[(10e6, 9e6, 10e6), (10e6, 7e6, 10e6)]);
        assert_eq!(row.ratio, 0.7);
        assert!(!row.goal().met);
        assert_eq!(row.figure.show(row.median.handle), "7.00M/s");
    }
}
