//! From measurements to printed and written results: medians, ratios, goals.
//!
//! The commands fill a [`Report`]; `explain` finds the bottlenecks of its rows; `grid` makes tables
//! of it, which `table` prints and `html` shows with plots; `json`, `csv`, `hgrm` and `hlog` are
//! for programs; a `sink` is a file that any of them is written to.

pub(crate) mod csv;
mod explain;
mod grid;
pub(crate) mod handles;
pub(crate) mod hgrm;
pub(crate) mod hlog;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod modes;
pub(crate) mod sink;
pub(crate) mod slabs;
pub(crate) mod table;

use crate::env::{Environment, Interference};
use crate::failure::Failure;
use crate::floor::Probe;
use crate::latency::{LatencySummary, median, upper_median, worse_median};
use crate::load::{CoreUse, Measurement, Mode, Workload};
use crate::ranks::Rank;
use explain::Bound;
use handles::HandleRow;
use hdrhistogram::Histogram;
use modes::{Saturation, Soak};
use serde::Serialize;
use slabs::SlabRow;

/// Results of one command.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Name of the document; changes when a field changes its meaning or is removed.
    pub(crate) schema: &'static str,
    pub(crate) environment: Environment,
    pub(crate) interference: Interference,
    /// Limits of the machine, each over all its repeats.
    pub(crate) floor: Vec<FloorRow>,
    /// Mode of a run; absent for the main job and if nothing runs.
    pub(crate) mode: Option<Mode>,
    pub(crate) rows: Vec<Row>,
    /// Calls from threads other than the core's.
    pub(crate) handles: Vec<HandleRow>,
    /// Bulk transfers between slabs of both ends.
    pub(crate) slabs: Vec<SlabRow>,
    /// Result of the search for the highest rate.
    pub(crate) saturation: Option<Saturation>,
    /// Figures and resources in the course of a soak.
    pub(crate) soak: Option<Soak>,
    pub(crate) goals: Vec<Goal>,
    /// Notes that the reader needs to interpret the figures.
    pub(crate) notes: Vec<String>,
    /// A signal ended it early: these are the figures so far.
    pub(crate) interrupted: bool,
    /// This process among those that measured together; absent for one alone, and for a merged report.
    pub(crate) rank: Option<Rank>,
}

impl Report {
    /// A report without results.
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            schema: json::SCHEMA,
            environment,
            interference: Interference::default(),
            floor: Vec::new(),
            mode: None,
            rows: Vec::new(),
            handles: Vec::new(),
            slabs: Vec::new(),
            saturation: None,
            soak: None,
            goals: Vec::new(),
            notes: Vec::new(),
            interrupted: false,
            rank: None,
        }
    }

    /// Fails if calls were never answered, or nothing was measured.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let whole = || self.rows.iter().filter(|row| !row.workload.of_mix);
        if let Some(row) = whole().find(|row| row.median.lost > 0) {
            let (lost, of) = (row.median.lost, row.median.lost + row.median.calls);
            return Err(Failure::Measurement(format!(
                "{lost} of {of} calls were never answered: {}",
                row.name
            )));
        }
        let is_stuck = |repeat: &Repeat| repeat.measurement.cut_short.is_stuck;
        if let Some(row) = whole().find(|row| row.repeats.iter().any(is_stuck)) {
            let name = &row.name;
            return Err(Failure::Measurement(format!(
                "the server stopped answering after the measured time: {name}"
            )));
        }
        let is_empty = |repeat: &Repeat| repeat.measurement.calls == 0;
        if let Some(row) = whole().find(|row| row.repeats.iter().any(is_empty)) {
            let remedy =
                if row.workload.rate.is_some() { "--rate or --duration" } else { "--duration" };
            return Err(Failure::Measurement(format!(
                "no call completed within the measured time: {}; increase {remedy}",
                row.name
            )));
        }
        Ok(())
    }

    /// Determines the bottleneck of each row again, now that the link is known.
    pub(crate) fn explain(&mut self) {
        let wire = self.environment.link_bytes_per_second;
        for row in &mut self.rows {
            row.bounded_by = bound(row, wire);
        }
    }

    /// Adds every limit that was measured with the rows, each probe once.
    pub(crate) fn collect_floor(&mut self) {
        let measured = self.rows.iter().flat_map(|row| &row.repeats).flat_map(|r| &r.floor);
        for value in measured {
            match self.floor.iter_mut().find(|row| row.probe == value.probe) {
                Some(row) => row.add(value.value),
                None => self.floor.push(FloorRow::new(value.probe, vec![value.value])),
            }
        }
    }
}

/// Facts of the environment, and interference with the measured cores, for people.
fn environment_facts(report: &Report) -> Vec<(String, String)> {
    let mut facts = report.environment.facts();
    facts.push(report.interference.fact());
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// One limit of the machine over its repeats.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FloorRow {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) probe: Probe,
    /// In the unit of the probe: nanoseconds, per second, or bytes per second.
    pub(crate) values: Vec<f64>,
    pub(crate) median: f64,
}

impl FloorRow {
    /// The values of one probe and their median.
    pub(crate) fn new(probe: Probe, values: Vec<f64>) -> Self {
        let median = worse_median(values.iter().copied(), probe.is_time());
        Self { name: probe.name(), probe, values, median }
    }

    /// Adds a value.
    pub(crate) fn add(&mut self, value: f64) {
        self.values.push(value);
        self.median = worse_median(self.values.iter().copied(), self.probe.is_time());
    }
}

/// One limit measured just before one repeat.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FloorValue {
    #[serde(flatten)]
    pub(crate) probe: Probe,
    pub(crate) value: f64,
}

impl FloorValue {
    /// The measurement as a multiple of this limit. Above 1 is slower for a round trip, and faster
    /// for a rate.
    pub(crate) fn ratio(&self, measurement: &Measurement) -> Ratio {
        let measured = match self.probe {
            Probe::CacheLine
            | Probe::EventfdPingPong
            | Probe::OwnWork
            | Probe::RingRoundTrip { .. } => measurement.latency.p50_ns,
            Probe::RingRate { .. } => measurement.calls_per_second,
            Probe::Copy { .. } => measurement.bytes_per_second,
        };
        let lower_is_better = self.probe.is_time();
        Ratio { to: self.probe.short_name(), ratio: measured / self.value, lower_is_better }
    }
}

/// A result as a multiple of a limit measured in the same minute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Name of the limit.
    pub(crate) to: &'static str,
    pub(crate) ratio: f64,
    /// True for a ratio of times, false for one of rates.
    pub(crate) lower_is_better: bool,
}

/// One repeat of a workload, with the limits measured just before it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Repeat {
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
    pub(crate) floor: Vec<FloorValue>,
    pub(crate) ratios: Vec<Ratio>,
}

impl Repeat {
    /// Compares a measurement with the limits measured just before it.
    pub(crate) fn new(measurement: Measurement, floor: Vec<FloorValue>) -> Self {
        let ratios = floor.iter().map(|value| value.ratio(&measurement)).collect();
        Self { measurement, floor, ratios }
    }
}

/// All repeats of one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) workload: Workload,
    pub(crate) repeats: Vec<Repeat>,
    pub(crate) median: Summary,
    /// Bottleneck of the rate. Absent for one operation of a mix, because cores, queues and credits
    /// are those of the whole mix, and if calls were lost.
    pub(crate) bounded_by: Option<Bound>,
}

fn bound(row: &Row, wire_bytes_per_second: Option<f64>) -> Option<Bound> {
    // Lost calls, or the absence of calls, limited the rate instead.
    let is_measured = row.median.lost == 0 && row.median.calls_per_second > 0.0;
    (is_measured && !row.workload.of_mix).then(|| Bound::of(row, wire_bytes_per_second))
}

impl Row {
    /// Summarises the repeats of a workload; there must be at least one.
    pub(crate) fn new(workload: Workload, repeats: Vec<Repeat>) -> Self {
        let median = Summary::of(&repeats);
        let row = Self { name: workload.name(), workload, repeats, median, bounded_by: None };
        Self { bounded_by: bound(&row, None), ..row }
    }
}

impl Row {
    /// The samples of all repeats together, in nanoseconds.
    pub(crate) fn samples(&self) -> Option<Histogram<u64>> {
        let mut repeats = self.repeats.iter().map(|repeat| &repeat.measurement.samples.latency);
        let mut all = repeats.next()?.clone();
        for other in repeats {
            // Cannot fail: the histogram grows as needed.
            let _ = all.add(other);
        }
        Some(all)
    }
}

/// Medians over the repeats of a row. For an even number of repeats, the lower of the two middle
/// values of rates, and the upper one of latencies and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Calls of all repeats together.
    pub(crate) calls: u64,
    /// Calls without a reply, or with one after their deadline.
    pub(crate) lost: u64,
    /// Time of all repeats together.
    pub(crate) elapsed_s: f64,
    /// Samples of the smallest repeat, which determine whether percentiles are supported.
    pub(crate) samples_min: u64,
    pub(crate) calls_per_second: f64,
    /// Slowest and fastest repeat.
    pub(crate) calls_per_second_spread: [f64; 2],
    pub(crate) bytes_per_second: f64,
    /// Medians of the percentiles of the repeats; `max_ns` is the largest of all.
    pub(crate) latency: LatencySummary,
    pub(crate) ratios: Vec<RatioSummary>,
    pub(crate) client_busy_percent: f64,
    /// Absent if the server did not report it.
    pub(crate) server_busy_percent: Option<f64>,
    /// Credit stalls per call of the client.
    pub(crate) credit_stalls_per_call: f64,
    /// Clock ticks of turns that found work, per call; absent if not counted.
    pub(crate) client_ticks_per_call: Option<f64>,
    pub(crate) server_ticks_per_call: Option<f64>,
    /// Rejections by a full queue, on both sides, per call.
    pub(crate) queue_full_per_call: f64,
}

/// A ratio over the repeats: each repeat compared with its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RatioSummary {
    pub(crate) to: &'static str,
    pub(crate) median: f64,
    /// Minimum and maximum.
    pub(crate) spread: [f64; 2],
}

impl Summary {
    fn of(repeats: &[Repeat]) -> Self {
        let of = |value: fn(&Measurement) -> f64| {
            median(repeats.iter().map(|repeat| value(&repeat.measurement)))
        };
        let cost_of = |value: fn(&Measurement) -> f64| {
            upper_median(repeats.iter().map(|repeat| value(&repeat.measurement)))
        };
        // Each side counts from the start of its own warm-up; a server counts for all of its
        // clients.
        let per_call = |count: fn(&CoreUse) -> u64, m: &Measurement| {
            let of = |side: &CoreUse| count(side) as f64 / side.calls.max(1) as f64;
            of(&m.client) + m.server.as_ref().map_or(0.0, of)
        };
        let ticks = |side: fn(&Measurement) -> Option<CoreUse>| {
            let of = |repeat: &Repeat| side(&repeat.measurement)?.busy_ticks_per_call;
            let counted: Option<Vec<f64>> = repeats.iter().map(of).collect();
            counted.filter(|values| !values.is_empty()).map(upper_median)
        };
        Self {
            calls: repeats.iter().map(|repeat| repeat.measurement.calls).sum(),
            lost: repeats.iter().map(|repeat| repeat.measurement.lost).sum(),
            elapsed_s: repeats.iter().map(|repeat| repeat.measurement.elapsed_s).sum(),
            samples_min: repeats.iter().map(|r| r.measurement.latency.samples).min().unwrap_or(0),
            calls_per_second: of(|m| m.calls_per_second),
            calls_per_second_spread: spread(
                repeats.iter().map(|repeat| repeat.measurement.calls_per_second),
            ),
            bytes_per_second: of(|m| m.bytes_per_second),
            latency: latency_medians(repeats),
            ratios: ratio_medians(repeats),
            client_busy_percent: cost_of(|m| m.client.busy_percent),
            server_busy_percent: server_busy(repeats),
            client_ticks_per_call: ticks(|m| Some(m.client)),
            server_ticks_per_call: ticks(|m| m.server),
            credit_stalls_per_call: upper_median(
                repeats.iter().map(|r| per_call(|side| side.credit_stalls, &r.measurement)),
            ),
            queue_full_per_call: upper_median(
                repeats.iter().map(|r| per_call(|side| side.queue_full, &r.measurement)),
            ),
        }
    }
}

fn server_busy(repeats: &[Repeat]) -> Option<f64> {
    let busy = |repeat: &Repeat| Some(repeat.measurement.server?.busy_percent);
    repeats.iter().map(busy).collect::<Option<Vec<_>>>().map(upper_median)
}

fn latency_medians(repeats: &[Repeat]) -> LatencySummary {
    let of = |value: fn(&LatencySummary) -> f64| {
        upper_median(repeats.iter().map(|repeat| value(&repeat.measurement.latency)))
    };
    LatencySummary {
        samples: repeats.iter().map(|repeat| repeat.measurement.latency.samples).sum(),
        p50_ns: of(|latency| latency.p50_ns),
        p90_ns: of(|latency| latency.p90_ns),
        p99_ns: of(|latency| latency.p99_ns),
        p99_9_ns: of(|latency| latency.p99_9_ns),
        p99_99_ns: of(|latency| latency.p99_99_ns),
        p99_999_ns: of(|latency| latency.p99_999_ns),
        mean_ns: of(|latency| latency.mean_ns),
        max_ns: spread(repeats.iter().map(|repeat| repeat.measurement.latency.max_ns))[1],
    }
}

fn ratio_medians(repeats: &[Repeat]) -> Vec<RatioSummary> {
    let Some(first) = repeats.first() else { return Vec::new() };
    let summarise = |(index, ratio): (usize, &Ratio)| {
        let values = || repeats.iter().filter_map(move |r| Some(r.ratios.get(index)?.ratio));
        let median = worse_median(values(), ratio.lower_is_better);
        RatioSummary { to: ratio.to, median, spread: spread(values()) }
    };
    first.ratios.iter().enumerate().map(summarise).collect()
}

/// Both ends are NaN if one of the values is.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let values: Vec<f64> = values.collect();
    if values.iter().any(|value| value.is_nan()) {
        return [f64::NAN; 2];
    }
    let (low, high) = values
        .into_iter()
        .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), v| (low.min(v), high.max(v)));
    if low.is_finite() { [low, high] } else { [f64::NAN; 2] }
}

/// A performance goal, as a bound on one result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) measured: f64,
    /// Upper bound of `measured`, or lower bound (see `at_most`).
    pub(crate) bound: f64,
    pub(crate) at_most: bool,
    /// Stretch goal beyond the bound.
    pub(crate) aim: Option<f64>,
    pub(crate) met: bool,
}

impl Goal {
    /// Met when `measured <= bound`.
    pub(crate) fn at_most(name: impl Into<String>, measured: f64, bound: f64) -> Self {
        let met = measured <= bound;
        Self { name: name.into(), measured, bound, at_most: true, aim: None, met }
    }

    /// Met when `measured >= bound`.
    pub(crate) fn at_least(name: impl Into<String>, measured: f64, bound: f64) -> Self {
        let met = measured >= bound;
        Self { name: name.into(), measured, bound, at_most: false, aim: None, met }
    }

    /// Sets the stretch goal beyond the bound.
    pub(crate) fn aiming_for(self, aim: f64) -> Self {
        Self { aim: Some(aim), ..self }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cores::CoreList;
    use crate::env::ProfileId;
    use crate::load::{CutShort, Operation, Samples};

    /// A report without results, about this host.
    pub(crate) fn empty() -> Report {
        let profile = ProfileId { name: "latency".to_owned(), hash: "0".to_owned() };
        Report::new(Environment::observe(&CoreList::from(0), profile, None))
    }

    /// A repeat of `calls` calls in one second with every percentile at `p50_ns`.
    pub(crate) fn repeat(calls: u64, p50_ns: f64, floor: &[(Probe, f64)]) -> Repeat {
        let latency = LatencySummary::from_figures(calls, [p50_ns; 8]);
        let measurement = Measurement {
            calls,
            lost: 0,
            start_unix_s: 0.0,
            carried_in_ns: 0.0,
            cut_short: CutShort::default(),
            elapsed_s: 1.0,
            calls_per_second: calls as f64,
            bytes_per_second: calls as f64 * 128.0,
            latency,
            service: None,
            open: None,
            client_cores: Vec::new(),
            server_cores: Vec::new(),
            samples: Samples::none().unwrap(),
            client: CoreUse { calls, busy_percent: 95.0, ..CoreUse::default() },
            server: Some(CoreUse { calls, busy_percent: 40.0, ..CoreUse::default() }),
        };
        let value = |&(probe, value): &(Probe, f64)| FloorValue { probe, value };
        Repeat::new(measurement, floor.iter().map(value).collect())
    }

    /// A repeat of one second that starts then, with these latencies in nanoseconds.
    pub(crate) fn sampled_at(start_unix_s: f64, latencies: &[u64]) -> Repeat {
        let mut one = repeat(latencies.len() as u64, 0.0, &[]);
        let samples = &mut one.measurement.samples.latency;
        latencies.iter().for_each(|ns| samples.record(*ns).unwrap());
        one.measurement.latency = LatencySummary::of(samples, 1.0, 0);
        one.measurement.start_unix_s = start_unix_s;
        one
    }

    fn echo() -> Workload {
        Workload::ping_pong(Operation::Echo, 64)
    }

    #[test]
    fn ratios_are_taken_within_a_repeat_and_then_the_median() {
        let repeats = [(300.0, 100.0), (900.0, 450.0), (250.0, 100.0)]
            .map(|(p50, line)| repeat(1000, p50, &[(Probe::CacheLine, line)]));
        let row = Row::new(echo(), repeats.to_vec());
        let ratio = row.median.ratios[0];
        assert_eq!((ratio.to, ratio.median, ratio.spread), ("cache-line RTT", 2.5, [2.0, 3.0]));
    }

    #[test]
    fn a_row_counts_all_calls_and_takes_the_middle_rate_and_the_largest_maximum() {
        let repeats = [10, 30, 20].map(|calls| repeat(calls, calls as f64, &[]));
        let row = Row::new(echo(), repeats.to_vec());
        assert_eq!((row.median.calls, row.median.samples_min), (60, 10));
        assert_eq!(row.median.calls_per_second, 20.0);
        assert_eq!(row.median.calls_per_second_spread, [10.0, 30.0]);
        assert_eq!(row.median.latency.max_ns, 30.0);
    }

    #[test]
    fn refusals_are_divided_by_the_calls_of_the_side_that_met_them() {
        let mut one = repeat(100, 1.0, &[]);
        one.measurement.client = CoreUse { calls: 200, queue_full: 50, ..CoreUse::default() };
        let server = CoreUse { calls: 1000, queue_full: 100, ..CoreUse::default() };
        one.measurement.server = Some(server);
        assert_eq!(Row::new(echo(), vec![one]).median.queue_full_per_call, 0.25 + 0.1);
    }

    #[test]
    fn one_operation_of_a_mix_has_neither_a_bound_nor_cores_of_its_own() {
        let mut one = repeat(100, 1.0, &[]);
        one.measurement.client_cores = vec![one.measurement.client];
        let mut report = empty();
        let part = Workload { of_mix: true, ..echo() };
        report.rows.push(Row::new(part, vec![one.clone()]));
        report.explain();
        assert!(report.rows[0].bounded_by.is_none());
        assert!(grid::bounds(&report).is_none() && grid::cores(&report).is_none());
        report.rows.push(Row::new(echo(), vec![one]));
        assert!(grid::bounds(&report).is_some() && grid::cores(&report).is_some());
    }

    #[test]
    fn goals_bound_from_one_side() {
        assert!(Goal::at_most("p50", 2.0, 2.0).met && !Goal::at_most("p50", 2.1, 2.0).met);
        assert!(Goal::at_least("rate", 0.8, 0.8).met && !Goal::at_least("rate", 0.7, 0.8).met);
    }
}
