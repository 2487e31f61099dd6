//! Latency by percentile: one line per row, over an axis on which every further nine takes the same
//! width.

use super::family::{Family, Member};
use super::plot::{Axis, Plot, Scale, show_time};
use crate::floor::Probe;
use crate::latency::{is_supported, upper_median};
use crate::report::Row;
use crate::units::joined;
use hdrhistogram::Histogram;

/// The plot of a family; `None` if no row has samples.
pub(super) fn figure(family: &Family<'_>) -> Option<String> {
    let lines: Vec<Line<'_>> = family.members.iter().filter_map(Line::of).collect();
    let most = lines.iter().map(|line| line.samples).max()?;
    let limits = limits(family.members.first()?.row);
    let values = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let latency = Axis::latency(values.chain(limits.iter().map(|limit| limit.1)));
    let mut plot = Plot::new(axis(most), latency);
    for (name, value) in &limits {
        plot.level(*value, "floor", &format!("{name}: {}", show_time(*value)));
    }
    lines.iter().for_each(|line| line.draw(&mut plot));
    let spoken = joined(lines.iter().map(|line| spoken(line.member)), "; ");
    let description = format!("{}: latency by percentile. {spoken}", family.title);
    Some(plot.figure(&family.title, "latency by percentile", &description))
}

/// Points of 1 / (1 - p) and latency, equally far apart on the axis; the last is the maximum.
fn spectrum(samples: &Histogram<u64>) -> Vec<(f64, f64)> {
    let count = samples.len() as f64;
    let steps = (count.log10() * POINTS_PER_DECADE).ceil() as i32;
    let at = |step: i32| {
        let inverse = 10f64.powf(f64::from(step) / POINTS_PER_DECADE);
        (inverse, samples.value_at_quantile(1.0 - 1.0 / inverse) as f64)
    };
    (0..steps).map(at).chain(std::iter::once((count, samples.max() as f64))).collect()
}

struct Line<'a> {
    member: &'a Member<'a>,
    points: Vec<(f64, f64)>,
    samples: u64,
}

impl<'a> Line<'a> {
    /// `None` without samples, and with missing calls: the percentiles would be those of the others.
    fn of(member: &'a Member<'a>) -> Option<Self> {
        let samples = member.row.samples().filter(|samples| !samples.is_empty())?;
        if member.row.median.latency.missing > 0 {
            return None;
        }
        Some(Self { member, points: spectrum(&samples), samples: samples.len() })
    }

    fn draw(&self, plot: &mut Plot) {
        let Self { member, points, samples } = self;
        let thin = |point: &(f64, f64)| !is_supported(100.0 * (1.0 - 1.0 / point.0), *samples);
        let first_thin = points.iter().position(thin).unwrap_or(points.len());
        let title = spoken(member);
        if first_thin > 0 {
            plot.line(&points[..first_thin], &member.colour, "", &title);
        }
        // Starts where the other line ends, to avoid a gap.
        plot.line(&points[first_thin.saturating_sub(1)..], &member.colour, "tail", &title);
        if let Some(end) = points.last().filter(|_| !member.label.is_empty()) {
            plot.name(*end, &member.colour, &member.label);
        }
    }
}

fn spoken(member: &Member<'_>) -> String {
    let latency = &member.row.median.latency;
    format!(
        "{}: p50 {}, p99 {}, maximum {}",
        member.row.name,
        show_time(latency.p50_ns),
        show_time(latency.p99_ns),
        show_time(latency.max_ns)
    )
}

/// The machine limits that are round trips, with their medians.
fn limits(row: &Row) -> Vec<(String, f64)> {
    let is_round_trip = |probe: &Probe| probe.is_time();
    let first = row.repeats.first().map_or(&[][..], |repeat| &repeat.floor);
    let probes = first.iter().map(|value| value.probe).filter(is_round_trip);
    let value = |probe: Probe| {
        let all = row.repeats.iter().flat_map(|repeat| &repeat.floor);
        let values = all.filter(move |value| value.probe == probe).map(|value| value.value);
        (probe.short_name().to_owned(), upper_median(values))
    };
    probes.map(value).collect()
}

fn axis(samples: u64) -> Axis {
    let high = (samples as f64).max(10.0);
    let nines = (1..=high.log10() as i32).map(|nines| 10f64.powi(nines));
    let label = |inverse: f64| format!("{}%", 100.0 - 100.0 / inverse);
    // On a long axis, the first two labels would overlap.
    let first: &[f64] = if high < LONG_AXIS { &[1.0, 2.0] } else { &[2.0] };
    let ticks = first.iter().copied().chain(nines).map(|inverse| (inverse, label(inverse)));
    Axis {
        label: "percentile of the calls".to_owned(),
        scale: Scale::Log,
        low: 1.0,
        high,
        ticks: ticks.collect(),
    }
}

const LONG_AXIS: f64 = 1e5;
const POINTS_PER_DECADE: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Operation, Workload};
    use crate::report::html::family::families;
    use crate::report::html::tests::{data_points, sampled};

    #[test]
    fn a_line_has_sixteen_points_for_every_nine_and_ends_at_the_maximum() {
        let row = sampled(Workload::ping_pong(Operation::Echo, 64), &[10_000]);
        let points = spectrum(&row.samples().unwrap());
        assert_eq!(points.len(), 4 * 16 + 1);
        assert_eq!(points[0].0, 1.0);
        let (inverse, latency) = points[points.len() - 1];
        assert_eq!((inverse, latency), (10_000.0, row.samples().unwrap().max() as f64));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
    }

    #[test]
    fn every_row_is_a_line_whose_end_is_thin() {
        let null = Workload::ping_pong(Operation::Null, 0);
        let rows = [1, 2].map(|depth| sampled(null.at_depth(depth), &[1000, 1000]));
        let html = figure(&families(&rows)[0]).unwrap();
        let points = data_points(&html);
        // 10 of 2000 samples lie beyond 1 / (1 - p) = 200.
        assert_eq!(points, [37, 18, 37, 18]);
        assert_eq!(html.matches("series tail").count(), 2);
    }

    #[test]
    fn a_row_without_samples_has_no_line() {
        let row = sampled(Workload::ping_pong(Operation::Null, 0), &[0]);
        assert!(figure(&families(&[row])[0]).is_none());
    }
}
