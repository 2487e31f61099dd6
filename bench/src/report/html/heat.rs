//! Latency over time: a column for each interval, coloured by the number of calls with each
//! latency.

use super::plot::{Axis, Plot, show_time};
use crate::latency::has_calls_beyond;
use crate::report::Row;
use hdrhistogram::Histogram;

pub(super) fn figure(row: &Row) -> Option<String> {
    let course = Course::of(row);
    let last = course.columns.last()?;
    let (low, high) = (course.lowest_ns()?, course.highest_ns()?);
    let mut plot = Plot::new(Axis::time(last.end_s), Axis::latency([low, high].into_iter()));
    let bins = Bins { low: low / 1.02, high: high * 1.02 };
    for (level, cells) in bins.cells(&course.columns).iter().enumerate() {
        if !cells.is_empty() {
            plot.cells(cells, &format!("--h{level}"));
        }
    }
    for start_s in &course.repeats_s {
        plot.upright(*start_s, "repeat", "");
    }
    for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
        let line = course.line(quantile);
        plot.overlay(&line, &format!("{name} of each interval"));
        if let Some(end) = line.last() {
            plot.name(*end, "--s1", name);
        }
    }
    let description = format!(
        "{}: latency over {:.3} seconds in {} intervals, from {} to {}",
        row.name,
        last.end_s,
        course.columns.len(),
        show_time(low),
        show_time(high)
    );
    let mut detail = match course.repeats_s.len() {
        0 => String::new(),
        further => format!("{} repeats, one after the other", further + 1),
    };
    let missing = row.median.latency.missing;
    if missing > 0 {
        detail += &format!(" without {missing} calls that were never answered, or never sent");
    }
    Some(plot.figure(&row.name, &detail, &description))
}

pub(super) fn legend() -> String {
    let swatch = |level: usize| format!("<i style=\"background:var(--h{level})\"></i>");
    let swatches: String = (0..LEVELS).map(swatch).collect();
    format!(
        "<div class=\"scale\"><span>share of an interval's calls: below {} %</span>{swatches}\
         <span>above {} %</span></div>",
        round_percent(LEVEL_STARTS[1]),
        round_percent(LEVEL_STARTS[LEVELS - 1])
    )
}

fn round_percent(share: f64) -> f64 {
    (share * 1e4).round() / 100.0
}

/// The intervals of all repeats, one repeat after the other.
struct Course {
    columns: Vec<Column>,
    /// Starts of the repeats after the first.
    repeats_s: Vec<f64>,
}

struct Column {
    start_s: f64,
    end_s: f64,
    samples: Histogram<u64>,
}

impl Course {
    fn of(row: &Row) -> Self {
        let intervals: usize =
            row.repeats.iter().map(|repeat| repeat.measurement.samples.intervals.len()).sum();
        let together = intervals.div_ceil(COLUMNS_MAX).max(1);
        let (mut columns, mut repeats_s, mut offset_s) = (Vec::new(), Vec::new(), 0.0);
        for repeat in &row.repeats {
            if offset_s > 0.0 {
                repeats_s.push(offset_s);
            }
            let parts = repeat.measurement.samples.intervals.chunks(together);
            columns.extend(parts.filter_map(|part| Column::of(part, offset_s)));
            let end_s = columns.last().map_or(offset_s, |column: &Column| column.end_s);
            offset_s = end_s.max(offset_s + repeat.measurement.elapsed_s);
        }
        Self { columns, repeats_s }
    }

    fn lowest_ns(&self) -> Option<f64> {
        let filled = self.columns.iter().filter(|column| !column.samples.is_empty());
        filled.map(|column| column.samples.min_nz()).min().map(|ns| ns as f64)
    }

    fn highest_ns(&self) -> Option<f64> {
        self.columns.iter().map(|column| column.samples.max()).max().map(|ns| ns as f64)
    }

    fn line(&self, quantile: f64) -> Vec<(f64, f64)> {
        // With fewer calls, it would equal their maximum.
        let is_known = |column: &&Column| {
            let calls = column.samples.len();
            calls > 0 && (quantile <= 0.5 || has_calls_beyond(quantile * 100.0, calls))
        };
        let filled = self.columns.iter().filter(is_known);
        let point = |column: &Column| {
            let middle_s = f64::midpoint(column.start_s, column.end_s);
            (middle_s, column.samples.value_at_quantile(quantile) as f64)
        };
        filled.map(point).collect()
    }
}

impl Column {
    /// Merges neighbouring intervals.
    fn of(part: &[crate::load::Interval], offset_s: f64) -> Option<Self> {
        let (first, last) = (part.first()?, part.last()?);
        let mut samples = first.histogram.clone();
        for other in &part[1..] {
            // Cannot fail: the histogram grows as needed.
            let _ = samples.add(&other.histogram);
        }
        let end_s = offset_s + last.start_s + last.elapsed_s;
        Some(Self { start_s: offset_s + first.start_s, end_s, samples })
    }
}

/// Ranges of latency, equally high on the axis.
struct Bins {
    low: f64,
    high: f64,
}

impl Bins {
    fn bound(&self, bin: usize) -> f64 {
        self.low * (self.high / self.low).powf(bin as f64 / BINS as f64)
    }

    fn bin(&self, ns: f64) -> usize {
        let place = (ns / self.low).ln() / (self.high / self.low).ln();
        ((place * BINS as f64) as usize).min(BINS - 1)
    }

    /// Corners of every cell with calls, by colour level.
    fn cells(&self, columns: &[Column]) -> [Vec<[f64; 4]>; LEVELS] {
        let mut levels: [Vec<[f64; 4]>; LEVELS] = Default::default();
        for column in columns {
            let mut counts = [0_u64; BINS];
            for value in column.samples.iter_recorded() {
                counts[self.bin(value.value_iterated_to() as f64)] +=
                    value.count_since_last_iteration();
            }
            for (bin, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let share = count as f64 / column.samples.len() as f64;
                let level = LEVEL_STARTS.iter().rposition(|start| share >= *start).unwrap_or(0);
                let corners = [column.start_s, self.bound(bin), column.end_s, self.bound(bin + 1)];
                levels[level].push(corners);
            }
        }
        levels
    }
}

/// Beyond this number, neighbouring intervals share a column: more cannot be distinguished.
const COLUMNS_MAX: usize = 130;
const BINS: usize = 44;
const LEVELS: usize = 8;
/// Fractions of a column where each colour starts, half a power of ten apart.
const LEVEL_STARTS: [f64; LEVELS] = [0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Operation, Workload};
    use crate::report::html::tests::{data_points, sampled};

    fn cells(html: &str) -> usize {
        let counts = html.split("data-cells=\"").skip(1);
        counts.map(|rest| rest.split('"').next().unwrap().parse::<usize>().unwrap()).sum()
    }

    #[test]
    fn every_interval_is_a_column_and_every_bin_with_calls_a_cell() {
        let row = sampled(Workload::ping_pong(Operation::Echo, 64), &[1000, 500]);
        let html = figure(&row).unwrap();
        let course = Course::of(&row);
        assert_eq!(course.columns.len(), 20);
        // 50 calls in an interval have no 99th percentile.
        assert_eq!(data_points(&html), [20, 10]);
        assert!(cells(&html) >= 20, "{html}");
        assert_eq!(html.matches("class=\"repeat\"").count(), 1);
    }

    #[test]
    fn many_intervals_share_columns_without_losing_a_call() {
        let mut row = sampled(Workload::ping_pong(Operation::Echo, 64), &[1000]);
        let samples = &mut row.repeats[0].measurement.samples;
        samples.intervals = std::iter::repeat_n(samples.intervals[0].clone(), 1000).collect();
        let each = samples.intervals[0].histogram.len();
        let course = Course::of(&row);
        assert!(course.columns.len() <= COLUMNS_MAX, "{}", course.columns.len());
        assert_eq!(course.columns.iter().map(|c| c.samples.len()).sum::<u64>(), 1000 * each);
    }

    #[test]
    fn a_call_is_in_the_bin_whose_bounds_hold_it() {
        let bins = Bins { low: 100.0, high: 10_000.0 };
        for ns in [100.0, 101.0, 999.0, 9_999.0] {
            let bin = bins.bin(ns);
            assert!(bins.bound(bin) <= ns * 1.0001 && ns < bins.bound(bin + 1), "{ns} in {bin}");
        }
    }

    #[test]
    fn without_intervals_there_is_no_map() {
        let mut row = sampled(Workload::ping_pong(Operation::Echo, 64), &[10]);
        row.repeats[0].measurement.samples.intervals.clear();
        assert!(figure(&row).is_none());
    }
}
