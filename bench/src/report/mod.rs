//! From measurements to printed and written results: medians, ratios, goals.

mod explain;
pub(crate) mod figures;
pub(crate) mod table;
mod validity;

use crate::env::{Environment, Holdings, Interference};
use crate::failure::Failure;
use crate::floor::{Placed, Placement, Probe};
use crate::latency::{LatencySummary, PERCENTILES, median, upper_median, worse_median};
use crate::load::{CoreUse, Ends, Measurement, Mode, Workload};
use crate::ranks::Rank;
use explain::Bound;
use serde::Serialize;
use spinrpc::sys::random::Random;

/// Name and version of the document, which `bench/schema/spinperf-3.schema.json` describes.
pub(crate) const SCHEMA: &str = "spinperf/3";

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Name of the document; changes when a field changes its meaning or is removed.
    pub(crate) schema: &'static str,
    pub(crate) ids: Vec<String>,
    pub(crate) environment: Environment,
    pub(crate) interference: Interference,
    pub(crate) floor: Vec<FloorRow>,
    pub(crate) mode: Option<Mode>,
    pub(crate) rows: Vec<Row>,
    pub(crate) soak: Option<Soak>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) notes: Vec<String>,
    pub(crate) interrupted: bool,
    pub(crate) rank: Option<Rank>,
}

impl Report {
    pub(crate) fn new(environment: Environment) -> Self {
        Self {
            schema: SCHEMA,
            ids: random_id().into_iter().collect(),
            environment,
            ..Self::default()
        }
    }

    /// Fails if calls were never answered, nothing was measured, or an open loop has no percentiles.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        let whole = || self.rows.iter().filter(|row| !row.workload.of_mix);
        let problems = [never_answered, stopped_answering, nothing_completed, fell_behind];
        let judged = problems.iter().take(if self.soak.is_some() { 3 } else { 4 });
        let mut found = judged.filter_map(|problem| whole().find_map(problem));
        found.next().map_or(Ok(()), |problem| Err(Failure::Measurement(problem)))
    }

    /// Determines the bottleneck of each row again, now that the link is known.
    pub(crate) fn explain(&mut self) {
        let wire = self.environment.link_bytes_per_second;
        for row in &mut self.rows {
            row.bounded_by = bound(row, wire);
        }
    }

    /// A note for each limit that rows have beaten. The limits were measured again then.
    pub(crate) fn note_beaten_limits(&mut self) {
        let notes = self.rows.iter().flat_map(beaten_limits);
        self.notes.extend(notes);
    }

    pub(crate) fn collect_floor(&mut self) {
        for repeat in self.rows.iter().flat_map(|row| &row.repeats) {
            let placement = repeat.placed.map(|placed| placed.placement);
            for FloorValue { probe, value } in &repeat.floor {
                let known = self.floor.iter().position(|row| row.probe == *probe);
                let at = known.unwrap_or_else(|| {
                    self.floor.push(FloorRow::new(*probe));
                    self.floor.len() - 1
                });
                self.floor[at].add(*value, placement);
            }
        }
    }
}

fn random_id() -> Option<String> {
    let mut random = Random::from_system().ok()?;
    Some(format!("{:016x}{:016x}", random.next_u64(), random.next_u64()))
}

fn beaten_limits(row: &Row) -> impl Iterator<Item = String> {
    let of = |ratio: &RatioSummary| {
        let is_beaten = |repeat: &&Repeat| {
            let limit = repeat.floor.iter().find(|one| one.probe.short_name() == ratio.to);
            let is_beaten =
                |one: &FloorValue| one.probe.is_beaten(one.value, one.figure(&repeat.measurement));
            !repeat.has_moved() && limit.is_some_and(is_beaten)
        };
        let (beaten, of) = (row.repeats.iter().filter(is_beaten).count(), row.repeats.len());
        (beaten > 0).then(|| {
            format!(
                "{}: no ratio to the limit {} in {beaten} of {of} repeats, where it was measured slower than the \
                 calls, four times: something else has used its CPUs",
                row.name, ratio.to
            )
        })
    };
    row.median.ratios.iter().filter_map(of)
}

fn never_answered(row: &Row) -> Option<String> {
    let Summary { lost, calls, .. } = row.median;
    (lost > 0)
        .then(|| format!("{lost} of {} calls were never answered: {}", lost + calls, row.name))
}

fn stopped_answering(row: &Row) -> Option<String> {
    let is_stuck = row.repeats.iter().any(|repeat| repeat.measurement.cut_short.is_stuck);
    is_stuck.then(|| format!("the server stopped answering after the measured time: {}", row.name))
}

fn nothing_completed(row: &Row) -> Option<String> {
    row.repeats.iter().find(|repeat| repeat.measurement.calls == 0)?;
    let loops = row.repeats.iter().filter_map(|repeat| repeat.measurement.open);
    let due = loops.map(|open| open.intended).max();
    let remedy = match due {
        Some(0) => "increase --rate or --duration".to_owned(),
        Some(due) => format!(
            "{due} calls were due: see whether the server runs (spinperf top), and lower --rate"
        ),
        None => "increase --duration, and see whether the server runs (spinperf top)".to_owned(),
    };
    Some(format!("no call completed within the measured time: {}; {remedy}", row.name))
}

fn fell_behind(row: &Row) -> Option<String> {
    let loops = row.repeats.iter().filter_map(|repeat| repeat.measurement.open);
    let refused = loops.filter(|open| open.refused.is_some());
    let worst = refused.min_by(|a, b| a.adherence_percent.total_cmp(&b.adherence_percent))?;
    Some(format!(
        "{:.2} % of the calls started in time: {}; lower --rate, add cores or connections, or take \
         the percentiles all the same with --force",
        worst.adherence_percent, row.name
    ))
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct FloorRow {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) probe: Probe,
    pub(crate) values: Vec<f64>,
    pub(crate) placements: Vec<Option<Placement>>,
    pub(crate) median: f64,
}

impl FloorRow {
    pub(crate) fn new(probe: Probe) -> Self {
        let (values, placements) = (Vec::new(), Vec::new());
        Self { name: probe.name(), probe, values, placements, median: f64::NAN }
    }

    pub(crate) fn add(&mut self, value: f64, placement: Option<Placement>) {
        self.values.push(value);
        self.placements.push(placement);
        self.median = worse_median(self.values.iter().copied(), self.probe.is_time());
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FloorValue {
    #[serde(flatten)]
    pub(crate) probe: Probe,
    pub(crate) value: f64,
}

impl FloorValue {
    pub(crate) fn figure(&self, measurement: &Measurement) -> f64 {
        match self.probe {
            Probe::RingRate { .. } => measurement.calls_per_second,
            Probe::Copy { .. } => measurement.bytes_per_second,
            _ => measurement.latency.p50_ns,
        }
    }

    /// At least 1 for a round trip, at most 1 for a rate, and NaN if the measurement was faster.
    pub(crate) fn ratio(&self, measurement: &Measurement) -> Ratio {
        let (measured, lower_is_better) = (self.figure(measurement), self.probe.is_time());
        let is_beaten = self.probe.is_beaten(self.value, measured);
        let ratio = if is_beaten { f64::NAN } else { measured / self.value };
        Ratio { to: self.probe.short_name(), ratio, lower_is_better }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) to: &'static str,
    pub(crate) ratio: f64,
    pub(crate) lower_is_better: bool,
}

/// One repeat of a workload, with the limits measured just before it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Repeat {
    #[serde(flatten)]
    pub(crate) measurement: Measurement,
    pub(crate) floor: Vec<FloorValue>,
    pub(crate) ratios: Vec<Ratio>,
    #[serde(flatten)]
    pub(crate) placed: Option<Placed>,
}

impl Repeat {
    pub(crate) fn new(measurement: Measurement, floor: Vec<FloorValue>) -> Self {
        let ratios = floor.iter().map(|value| value.ratio(&measurement)).collect();
        Self { measurement, floor, ratios, placed: None }
    }

    /// The same on cores of this placement. There are no ratios if it changed: limits and calls had different ones.
    pub(crate) fn at(mut self, placed: Option<Placed>) -> Self {
        self.placed = placed;
        if self.has_moved() {
            self.ratios.iter_mut().for_each(|ratio| ratio.ratio = f64::NAN);
        }
        self
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) workload: Workload,
    pub(crate) repeats: Vec<Repeat>,
    pub(crate) median: Summary,
    pub(crate) bounded_by: Option<Bound>,
}

fn bound(row: &Row, wire_bytes_per_second: Option<f64>) -> Option<Bound> {
    // Lost calls, or the absence of calls, limited the rate instead.
    let is_measured = row.median.lost == 0 && row.median.calls_per_second > 0.0;
    let Workload { of_mix, ends, .. } = row.workload;
    let is_known = is_measured && !of_mix && ends != Ends::OneCpu;
    is_known.then(|| Bound::of(row, wire_bytes_per_second))
}

impl Row {
    /// Summarises the repeats of a workload; there must be at least one.
    pub(crate) fn new(workload: Workload, repeats: Vec<Repeat>) -> Self {
        let median = Summary::of(&repeats);
        let row = Self { name: workload.name(), workload, repeats, median, bounded_by: None };
        Self { bounded_by: bound(&row, None), ..row }
    }
}

/// Medians over the repeats of a row. For an even number of repeats, the lower of the two middle
/// values of rates, and the upper one of latencies and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) calls: u64,
    pub(crate) lost: u64,
    pub(crate) elapsed_s: f64,
    /// Samples of the smallest repeat, which determine whether percentiles are supported.
    pub(crate) samples_min: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) calls_per_second_spread: [f64; 2],
    pub(crate) bytes_per_second: f64,
    /// Medians of the percentiles of the repeats; `max_ns` is the largest of all.
    pub(crate) latency: LatencySummary,
    pub(crate) ratios: Vec<RatioSummary>,
    pub(crate) client_busy_percent: Option<f64>,
    pub(crate) server_busy_percent: Option<f64>,
    pub(crate) client_cpu_percent: Option<f64>,
    pub(crate) server_cpu_percent: Option<f64>,
    pub(crate) credit_stalls_per_call: f64,
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
    pub(crate) spread: [f64; 2],
}

impl Summary {
    fn of(repeats: &[Repeat]) -> Self {
        let of = |value: fn(&Measurement) -> f64| {
            median(repeats.iter().map(|repeat| value(&repeat.measurement)))
        };
        // Each side counts from the start of its own warm-up; a server counts for all of its
        // clients.
        let per_call = |count: fn(&CoreUse) -> u64, m: &Measurement| {
            let of = |side: &CoreUse| count(side) as f64 / side.calls.max(1) as f64;
            of(&m.client) + m.server.as_ref().map_or(0.0, of)
        };
        let if_known = |of: fn(&Measurement) -> Option<f64>| {
            let counted: Option<Vec<f64>> = repeats.iter().map(|r| of(&r.measurement)).collect();
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
            client_busy_percent: if_known(|m| m.client.busy_percent),
            server_busy_percent: if_known(|m| m.server?.busy_percent),
            client_cpu_percent: if_known(|m| m.client.cpu_percent),
            server_cpu_percent: if_known(|m| m.server?.cpu_percent),
            client_ticks_per_call: if_known(|m| m.client.busy_ticks_per_call),
            server_ticks_per_call: if_known(|m| m.server?.busy_ticks_per_call),
            credit_stalls_per_call: upper_median(
                repeats.iter().map(|r| per_call(|side| side.credit_stalls, &r.measurement)),
            ),
            queue_full_per_call: upper_median(
                repeats.iter().map(|r| per_call(|side| side.queue_full, &r.measurement)),
            ),
        }
    }
}

fn latency_medians(repeats: &[Repeat]) -> LatencySummary {
    let all = || repeats.iter().map(|repeat| &repeat.measurement.latency);
    let mut figures =
        std::array::from_fn(|index| upper_median(all().map(|one| one.figures()[index])));
    figures[PERCENTILES.len()] = spread(all().map(|one| one.max_ns))[1];
    let samples = all().map(|one| one.samples).sum();
    let missing = all().map(|one| one.missing).sum();
    LatencySummary { missing, ..LatencySummary::from_figures(samples, figures) }
}

fn ratio_medians(repeats: &[Repeat]) -> Vec<RatioSummary> {
    let Some(first) = repeats.first() else { return Vec::new() };
    let summarise = |(index, ratio): (usize, &Ratio)| {
        // Those that are not known are left out: a limit was disturbed.
        let values = || {
            let all = repeats.iter().filter_map(move |r| Some(r.ratios.get(index)?.ratio));
            all.filter(|ratio| !ratio.is_nan())
        };
        let median = worse_median(values(), ratio.lower_is_better);
        RatioSummary { to: ratio.to, median, spread: spread(values()) }
    };
    first.ratios.iter().enumerate().map(summarise).collect()
}

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

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) measured: f64,
    pub(crate) bound: f64,
    pub(crate) at_most: bool,
    pub(crate) aim: Option<f64>,
    pub(crate) met: Option<bool>,
}

impl Goal {
    pub(crate) fn at_most(name: impl Into<String>, measured: f64, bound: f64) -> Self {
        let met = Some(measured <= bound);
        Self { name: name.into(), measured, bound, at_most: true, aim: None, met }
    }

    pub(crate) fn at_least(name: impl Into<String>, measured: f64, bound: f64) -> Self {
        let met = Some(measured >= bound);
        Self { at_most: false, met, ..Self::at_most(name, measured, bound) }
    }

    /// Not judged if a repeat of these rows was disturbed.
    pub(crate) fn resting_on(self, rows: &[Row]) -> Self {
        let is_disturbed = rows.iter().any(Row::is_disturbed);
        Self { met: self.met.filter(|_| !is_disturbed), ..self }
    }

    pub(crate) fn aiming_for(self, aim: f64) -> Self {
        Self { aim: Some(aim), ..self }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Soak {
    pub(crate) windows: Vec<SoakWindow>,
    pub(crate) refused_windows: usize,
    pub(crate) lost: u64,
    pub(crate) trends: Vec<Trend>,
    /// Without drift, leaks and lost calls, and with the rate kept in every window, if there was one.
    pub(crate) held: bool,
    pub(crate) buffers_not_watched: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SoakWindow {
    /// Start relative to that of the soak, in seconds.
    pub(crate) start_s: f64,
    pub(crate) elapsed_s: f64,
    pub(crate) calls: u64,
    pub(crate) calls_per_second: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) max_ns: f64,
    /// At the end of the window.
    pub(crate) client: Holdings,
    pub(crate) server: Holdings,
    /// Buffers that the server has in use; NaN if unknown.
    #[serde(skip)]
    pub(crate) server_buffers: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TrendUnit {
    Number,
    Ns,
    Bytes,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Trend {
    pub(crate) what: &'static str,
    pub(crate) unit: TrendUnit,
    pub(crate) mean: f64,
    pub(crate) change: f64,
    pub(crate) change_error: f64,
    /// The change exceeds the tolerance, and is too significant to be chance.
    pub(crate) is_drift: bool,
}

impl Trend {
    pub(crate) fn percents(&self) -> [f64; 2] {
        let mean = self.mean.abs().max(f64::MIN_POSITIVE);
        [self.change, self.change_error].map(|part| part / mean * 100.0)
    }

    pub(crate) fn describe(&self) -> String {
        let [change, error] = self.percents();
        let drift = if self.is_drift { ": DRIFT" } else { "" };
        format!("{} changed by {change:+.1} % (standard error {error:.1} %){drift}", self.what)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cores::CoreList;
    use crate::env::ProfileId;
    use crate::load::{Arrivals, CutShort, OpenLoop, Operation, Rate, nanoseconds};

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
            samples: nanoseconds().unwrap(),
            client: CoreUse { calls, busy_percent: Some(95.0), ..CoreUse::default() },
            server: Some(CoreUse { calls, busy_percent: Some(40.0), ..CoreUse::default() }),
        };
        let value = |&(probe, value): &(Probe, f64)| FloorValue { probe, value };
        Repeat::new(measurement, floor.iter().map(value).collect())
    }

    /// A loop at 1000 calls a second of which this many were sent.
    pub(crate) fn open_loop(sent: u64) -> OpenLoop {
        OpenLoop {
            target_per_second: 1000.0,
            achieved_per_second: sent as f64,
            intended: 1000,
            adherence_percent: sent as f64 / 10.0,
            late: 0,
            overran: 0,
            never_sent: 1000 - sent,
            arrivals: Arrivals::Fixed,
            refused: (sent < 999).then_some("behind"),
        }
    }

    /// A repeat of one second that starts then, with these latencies in nanoseconds.
    pub(crate) fn sampled_at(start_unix_s: f64, latencies: &[u64]) -> Repeat {
        let mut one = repeat(latencies.len() as u64, 0.0, &[]);
        let samples = &mut one.measurement.samples;
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

    /// Measure limits slower than what they limit. Expect no ratio that says so, and a reason.
    #[test]
    fn a_limit_that_was_beaten_has_no_ratio() {
        let copy = Probe::Copy { block_bytes: 4096, blocks: 1 };
        let of = |line, memcpy| repeat(1000, 300.0, &[(Probe::CacheLine, line), (copy, memcpy)]);
        let repeats = vec![of(3000.0, 256e3), of(100.0, 1e3), of(150.0, 1e3)];
        let mut report = empty();
        report.rows.push(Row::new(echo(), repeats));
        let ratios = report.rows[0].median.ratios.iter().map(|one| (one.median, one.spread));
        assert_eq!(ratios.collect::<Vec<_>>(), [(3.0, [2.0, 3.0]), (0.5, [0.5, 0.5])]);
        report.note_beaten_limits();
        let is_told = |limit: &str, times: &str| {
            report.notes.iter().any(|note| note.contains(limit) && note.contains(times))
        };
        assert!(is_told("cache-line RTT", "1 of 3") && is_told("memcpy", "2 of 3"), "{report:?}");
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
        let has = |report: &Report, title: &str| table::render(report).contains(title);
        let titles = ["\nbottleneck of each row\n", "\ncores: "];
        assert_eq!(titles.map(|title| has(&report, title)), [false; 2]);
        report.rows.push(Row::new(echo(), vec![one]));
        assert_eq!(titles.map(|title| has(&report, title)), [true; 2]);
    }

    fn open_repeat(sent: u64) -> Repeat {
        let mut one = repeat(sent, 300.0, &[]);
        one.measurement.open = Some(open_loop(sent));
        one
    }

    fn verdict_of(repeats: Vec<Repeat>) -> String {
        let mut report = empty();
        let rate = Rate { per_second: 1000, arrivals: Arrivals::Fixed };
        report.rows.push(Row::new(echo().at_rate(rate), repeats));
        report.verdict().map_or_else(|failure| failure.to_string(), |()| String::new())
    }

    #[test]
    fn a_rate_that_was_not_kept_is_a_failure() {
        assert_eq!(verdict_of(vec![open_repeat(1000), open_repeat(999)]), "");
        let told = verdict_of(vec![open_repeat(1000), open_repeat(540)]);
        assert!(told.starts_with("54.00 %") && told.contains("--force"), "{told}");
    }

    /// Calls were due, so a higher rate is no remedy.
    #[test]
    fn a_run_without_completed_calls_is_told_what_may_help() {
        let told = verdict_of(vec![open_repeat(0)]);
        assert!(told.contains("1000 calls were due") && !told.contains("increase"), "{told}");
        let mut too_slow = open_repeat(0);
        too_slow.measurement.open.as_mut().unwrap().intended = 0;
        assert!(verdict_of(vec![too_slow]).contains("increase --rate"));
    }

    #[test]
    fn targets_bound_from_one_side_and_are_not_judged_where_a_core_waited() {
        let at_most = [2.0, 2.1].map(|p50| Goal::at_most("p50", p50, 2.0).met);
        let at_least = [0.8, 0.7].map(|rate| Goal::at_least("rate", rate, 0.8).met);
        assert_eq!([at_most, at_least], [[Some(true), Some(false)]; 2]);
        for (waited, met) in [(None, Some(false)), (Some(0.2), Some(false)), (Some(30.0), None)] {
            let quiet = repeat(100, 1.0, &[]);
            let mut one = quiet.clone();
            one.measurement.client.waited_percent = waited;
            let rows = [vec![quiet.clone()], vec![quiet.clone(), one, quiet]];
            let goal = Goal::at_most("p50", 2.1, 2.0);
            assert_eq!(goal.resting_on(&rows.map(|all| Row::new(echo(), all))).met, met);
        }
    }

    #[test]
    fn every_repeat_is_kept_beside_the_median() {
        let mut report = empty();
        report.rows.push(Row::new(echo(), vec![repeat(1000, 300.0, &[(Probe::CacheLine, 100.0)])]));
        report.goals.push(Goal::at_most("echo", 3.0, 2.0).aiming_for(1.5));
        report.collect_floor();
        let report = serde_json::to_value(&report).unwrap();
        assert_eq!(report["rows"][0]["repeats"][0]["latency"]["p50_ns"], 300.0);
        assert_eq!(report["rows"][0]["median"]["ratios"][0]["median"], 3.0);
        assert_eq!(report["floor"][0]["values"][0], 100.0);
        assert_eq!(report["goals"][0]["met"], false);
    }
}
