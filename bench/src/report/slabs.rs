//! Figures of bulk transfers between slabs of both ends. `slabs` measures them.

use super::Goal;
use crate::latency::median;
use serde::Serialize;

/// One measurement, in bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct SlabValue {
    pub(crate) bytes_per_second: f64,
    /// Of copies by one core, just before.
    pub(crate) memcpy: f64,
}

/// One direction in all repeats.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlabRow {
    pub(crate) name: String,
    pub(crate) values: Vec<SlabValue>,
    pub(crate) median: SlabValue,
    /// Median of the ratios within the repeats.
    pub(crate) ratio: f64,
}

impl SlabRow {
    pub(crate) fn new(name: &str, values: Vec<SlabValue>) -> Self {
        let of = |get: fn(&SlabValue) -> f64| median(values.iter().map(get));
        let middle = SlabValue {
            bytes_per_second: of(|value| value.bytes_per_second),
            memcpy: of(|value| value.memcpy),
        };
        let ratio = of(|value| value.bytes_per_second / value.memcpy);
        Self { name: name.to_owned(), values, median: middle, ratio }
    }

    /// The goal for its ratio.
    pub(crate) fn goal(&self) -> Goal {
        Goal::at_least(format!("{}, x memcpy", self.name), self.ratio, 0.9)
    }

    /// Its cells in a table.
    pub(crate) fn cells(&self) -> Vec<String> {
        let SlabValue { bytes_per_second, memcpy } = self.median;
        let shown = [bytes_per_second, memcpy].map(|rate| format!("{:.1} GB/s", rate / 1e9));
        let ratio = format!("{:.2} x memcpy", self.ratio);
        [vec![self.name.clone()], shown.to_vec(), vec![ratio]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_within_each_repeat() {
        let value = |(bytes_per_second, memcpy)| SlabValue { bytes_per_second, memcpy };
        let values = [(9e9, 10e9), (40e9, 50e9), (19e9, 20e9)].map(value);
        let row = SlabRow::new("1 MiB read, slabs", values.to_vec());
        assert_eq!((row.ratio, row.median.bytes_per_second), (0.9, 19e9));
        assert!(row.goal().met);
        let cells = ["1 MiB read, slabs", "19.0 GB/s", "20.0 GB/s", "0.90 x memcpy"];
        assert_eq!(row.cells(), cells);
    }
}
