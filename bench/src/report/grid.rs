//! The tables of a report as cells. `table` renders them as text, `html` as HTML, so that both have
//! the same content.

use super::handles::{HandleRow, HandleValue};
use super::modes::{Trend, TrendUnit};
use super::slabs::SlabRow;
use super::{FloorRow, Goal, Report, Row, spread};
use crate::latency::{LatencySummary, is_supported, median, upper_median};
use crate::load::CoreUse;
use crate::units::{show_count, show_us};

/// A table: title, introduction and cells.
pub(crate) struct Grid {
    pub(crate) title: &'static str,
    pub(crate) lead: String,
    /// Empty if the cells need no header.
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    fn new(title: &'static str, header: &[&str], rows: Vec<Vec<String>>) -> Option<Self> {
        let header = header.iter().map(|cell| (*cell).to_owned()).collect();
        (!rows.is_empty()).then_some(Self { title, lead: String::new(), header, rows })
    }

    fn led_by(self, lead: impl Into<String>) -> Self {
        Self { lead: lead.into(), ..self }
    }
}

/// Limits of the machine.
pub(crate) fn limits(report: &Report) -> Option<Grid> {
    let cells = |row: &FloorRow| {
        let [low, high] = spread(row.values.iter().copied()).map(|value| row.probe.show(value));
        vec![row.name.clone(), row.probe.show(row.median), format!("{low} to {high}")]
    };
    let rows = report.floor.iter().map(cells).collect();
    Some(Grid::new("limits of this machine", &[], rows)?.led_by("medians"))
}

/// Rates and latencies.
pub(crate) fn results(report: &Report) -> Option<Grid> {
    let repeats = report.rows.iter().map(|row| row.repeats.len()).max().unwrap_or(0);
    let of = match repeats {
        1 => "one repeat".to_owned(),
        n => format!("medians of {n} repeats; maximum, calls and seconds of all"),
    };
    let lead = format!(
        "{of}; latency in µs is the full round trip of every call; (in parentheses) = fewer than \
         10 samples beyond it, - = none; MB = 10^6 bytes"
    );
    let rows = report.rows.iter().map(result_cells).collect();
    Some(Grid::new("results", &RESULTS, rows)?.led_by(lead))
}

fn result_cells(row: &Row) -> Vec<String> {
    let median = &row.median;
    let rate = median.bytes_per_second / 1e6;
    let mut cells = vec![
        row.name.clone(),
        median.calls.to_string(),
        show_seconds(median.elapsed_s),
        show_rate(median.calls_per_second),
        match rate {
            _ if rate >= 10.0 => format!("{rate:.0}"),
            _ if rate > 0.0 => format!("{rate:.2}"),
            _ => "-".to_owned(),
        },
    ];
    cells.extend(latency_cells(&median.latency, median.samples_min));
    cells
}

/// Calls without a reply, for each row that has any.
pub(crate) fn lost(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let (lost, calls) = (row.median.lost, row.median.calls);
        let percent = lost as f64 * 100.0 / (lost + calls).max(1) as f64;
        vec![
            row.name.clone(),
            lost.to_string(),
            (lost + calls).to_string(),
            format!("{percent:.3}"),
        ]
    };
    let rows = report.rows.iter().filter(|row| row.median.lost > 0).map(cells).collect();
    let lead = "or after their deadline; they rank as slower than all others, so the maximum, and \
                percentiles among them, are unknown";
    Some(Grid::new("calls never answered", &LOST, rows)?.led_by(lead))
}

fn show_rate(per_second: f64) -> String {
    if per_second.is_nan() { "-".to_owned() } else { show_count(per_second) }
}

/// Formats with the digits that a division of the calls needs.
fn show_seconds(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1.0 => format!("{seconds:.6}"),
        _ => format!("{seconds:.3}"),
    }
}

/// Percentiles from 50 to 99.999 and the maximum.
fn latency_cells(latency: &LatencySummary, samples_min: u64) -> Vec<String> {
    let percentiles = [
        (50.0, latency.p50_ns),
        (90.0, latency.p90_ns),
        (99.0, latency.p99_ns),
        (99.9, latency.p99_9_ns),
        (99.99, latency.p99_99_ns),
        (99.999, latency.p99_999_ns),
    ];
    let cell = |(percent, ns): (f64, f64)| match ns.is_nan() || is_supported(percent, samples_min) {
        true => show_us(ns),
        false => format!("({})", show_us(ns)),
    };
    percentiles.into_iter().map(cell).chain([show_us(latency.max_ns)]).collect()
}

/// Results as multiples of the machine's limits.
pub(crate) fn ratios(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let shown = row.median.ratios.iter().map(|ratio| {
            let [low, high] = ratio.spread;
            if ratio.median.is_nan() {
                return format!("- x {}", ratio.to);
            }
            format!("{:.2} x {} ({low:.2} to {high:.2})", ratio.median, ratio.to)
        });
        let shown: Vec<String> = shown.collect();
        (!shown.is_empty()).then(|| vec![row.name.clone(), shown.join(", ")])
    };
    let rows = report.rows.iter().filter_map(cells).collect();
    let lead = "each repeat compared with limits measured just before it: medians (smallest to \
                largest)";
    Some(Grid::new("compared with this machine's limits", &[], rows)?.led_by(lead))
}

/// Adherence of open loops, and round trips from the actual start.
pub(crate) fn loops(report: &Report) -> Option<Grid> {
    let rows = report.rows.iter().filter_map(loop_cells).collect();
    let lead = "latency counts from the intended start of a call, service time from the actual \
                one; adherence: calls that started within the measured time; late: those of them \
                that started 5 µs or more behind schedule; overran: calls that started after the \
                measured time; never sent: calls that did not start";
    Some(Grid::new("open loops", &LOOPS, rows)?.led_by(lead))
}

fn loop_cells(row: &Row) -> Option<Vec<String>> {
    let loops = || row.repeats.iter().filter_map(|repeat| repeat.measurement.open);
    let refused = loops().find_map(|open| open.refused);
    let first = loops().next()?;
    let service = |of: fn(&LatencySummary) -> f64| {
        let values = row.repeats.iter().filter_map(|repeat| repeat.measurement.service.as_ref());
        show_us(upper_median(values.map(of)))
    };
    Some(vec![
        row.name.clone(),
        show_count(first.target_per_second),
        show_rate(median(loops().map(|open| open.achieved_per_second))),
        format!("{:.2}", median(loops().map(|open| open.adherence_percent))),
        loops().map(|open| open.late).sum::<u64>().to_string(),
        loops().map(|open| open.overran).sum::<u64>().to_string(),
        loops().map(|open| open.never_sent).sum::<u64>().to_string(),
        service(|latency| latency.p50_ns),
        service(|latency| latency.p99_ns),
        service(|latency| latency.p99_9_ns),
        refused.unwrap_or("").to_owned(),
    ])
}

/// Activity of each core: medians over the repeats. It is not counted for one operation of a mix.
pub(crate) fn cores(report: &Report) -> Option<Grid> {
    let rows = report.rows.iter().filter(|row| !row.workload.of_mix).flat_map(|row| {
        let client = core_rows(row, "client", |m| &m.client_cores);
        let server = core_rows(row, "server", |m| &m.server_cores);
        client.into_iter().chain(server)
    });
    let lead = "from the first call to the last, ramp and warm-up included; a server's calls are \
                those of all its clients; cycles/RPC: clock ticks of turns that found work, per \
                call of the core; it and busy include other work that ran on the core during such \
                a turn; useful and empty: polls with and without work; stolen: by the hypervisor, \
                in all repeats";
    Some(Grid::new("cores", &CORES, rows.collect())?.led_by(lead))
}

fn core_rows(
    row: &Row,
    side: &str,
    of: fn(&crate::load::Measurement) -> &Vec<CoreUse>,
) -> Vec<Vec<String>> {
    let count = row.repeats.iter().map(|repeat| of(&repeat.measurement).len()).max().unwrap_or(0);
    let cells = |index: usize| {
        let uses = || row.repeats.iter().filter_map(move |r| of(&r.measurement).get(index));
        let middle = |value: fn(&CoreUse) -> f64| median(uses().map(value));
        let cost = |value: fn(&CoreUse) -> f64| upper_median(uses().map(value));
        let ticks: Vec<f64> = uses().filter_map(|core| core.busy_ticks_per_call).collect();
        let cpu = uses().find_map(|core| core.cpu);
        let useful = middle(|core| core.polls.saturating_sub(core.empty_polls) as f64);
        vec![
            row.name.clone(),
            side.to_owned(),
            cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            show_count(middle(|core| core.calls_per_second)),
            if ticks.is_empty() { "-".to_owned() } else { format!("{:.0}", upper_median(ticks)) },
            show_count(useful),
            show_count(cost(|core| core.empty_polls as f64)),
            format!("{:.1}", cost(empty_percent)),
            format!("{:.1}", cost(|core| core.busy_percent)),
            uses().map(|core| core.steal_ms).sum::<u64>().to_string(),
        ]
    };
    (0..count).map(cells).collect()
}

fn empty_percent(core: &CoreUse) -> f64 {
    core.empty_polls as f64 * 100.0 / core.polls.max(1) as f64
}

/// Bottleneck of each row.
pub(crate) fn bounds(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let bound = row.bounded_by.as_ref()?;
        Some(vec![row.name.clone(), bound.limit.name().to_owned(), bound.evidence.clone()])
    };
    let rows = report.rows.iter().filter_map(cells).collect();
    Grid::new("bottleneck of each row", &["workload", "bound by", "evidence"], rows)
}

/// All rates tried by the search for the highest one.
pub(crate) fn saturation(report: &Report) -> Option<Grid> {
    let found = report.saturation.as_ref()?;
    let rows = found.steps.iter().map(|step| {
        vec![
            show_count(step.target_per_second),
            show_rate(step.achieved_per_second),
            format!("{:.2}", step.adherence_percent),
            show_us(step.p99_ns),
            if step.held { "held" } else { "not held" }.to_owned(),
        ]
    });
    let limit = show_us(found.p99_limit_ns);
    let lead = match found.highest_per_second {
        Some(rate) => format!("{} calls/s with a p99 of at most {limit} µs", show_count(rate)),
        None => format!("no rate kept a p99 of {limit} µs"),
    };
    Some(Grid::new("highest rate", &SATURATION, rows.collect())?.led_by(lead))
}

fn show_mean(trend: &Trend) -> String {
    match trend.unit {
        TrendUnit::Number => show_count(trend.mean),
        TrendUnit::Ns => format!("{} µs", show_us(trend.mean)),
        TrendUnit::Bytes => format!("{:.1} MiB", trend.mean / f64::from(1 << 20)),
    }
}

/// Changes in the course of a soak.
pub(crate) fn soak(report: &Report) -> Option<Grid> {
    let soak = report.soak.as_ref()?;
    let rows = soak.trends.iter().map(|trend| {
        vec![
            trend.what.to_owned(),
            show_mean(trend),
            format!("{:+.1}%", trend.change / trend.mean.abs().max(f64::MIN_POSITIVE) * 100.0),
            format!("{:.1}%", trend.change_error / trend.mean.abs().max(f64::MIN_POSITIVE) * 100.0),
            if trend.is_drift { "DRIFT" } else { "no drift" }.to_owned(),
        ]
    });
    let verdict = match (soak.trends.is_empty(), soak.held) {
        (_, false) => "did NOT hold",
        (true, true) => "too few to detect a drift",
        (false, true) => "held: no drift, no leak",
    };
    let behind = match soak.refused_windows {
        0 => String::new(),
        count => format!(" ({count} fell behind their rate)"),
    };
    let unwatched = soak.buffers_not_watched.as_ref();
    let unwatched = unwatched
        .map_or_else(String::new, |why| format!("; the server's buffers were not watched: {why}"));
    let lead = format!("{} windows{behind}: {verdict}{unwatched}", soak.windows.len());
    let header = SOAK.map(str::to_owned).to_vec();
    Some(Grid { title: "soak", lead, header, rows: rows.collect() })
}

/// Calls from other threads, compared with calls on the core itself.
pub(crate) fn handles(report: &Report) -> Option<Grid> {
    let cells = |row: &HandleRow| {
        let HandleValue { own, handle, floor } = row.median;
        let shown = [own, handle, floor].map(|value| row.figure.show(value));
        let ratio = format!("{:.2} {}", row.ratio, row.figure.ratio_name());
        [vec![row.name.clone()], shown.to_vec(), vec![ratio]].concat()
    };
    Grid::new("calls from other threads", &HANDLES, report.handles.iter().map(cells).collect())
}

/// Bulk transfers between slabs of both ends, compared with memcpy.
pub(crate) fn slabs(report: &Report) -> Option<Grid> {
    let rows = report.slabs.iter().map(SlabRow::cells).collect();
    Grid::new("transfers between slabs", &SLABS, rows)
}

/// Goals, and whether they were met.
pub(crate) fn goals(report: &Report) -> Option<Grid> {
    Grid::new("goals", &[], report.goals.iter().map(goal_cells).collect())
}

fn goal_cells(goal: &Goal) -> Vec<String> {
    let verdict = if goal.met { "met" } else { "MISSED" };
    let side = if goal.at_most { "at most" } else { "at least" };
    let aim = goal.aim.map_or_else(String::new, |aim| format!(" (aim {aim})"));
    vec![
        verdict.to_owned(),
        goal.name.clone(),
        if goal.measured.is_nan() { "-".to_owned() } else { format!("{:.2}", goal.measured) },
        format!("{side} {}{aim}", goal.bound),
    ]
}

const SLABS: [&str; 4] = ["depth 2", "rate", "memcpy", ""];
const HANDLES: [&str; 5] = ["null calls", "of the core itself", "by handles", "limit", ""];
const RESULTS: [&str; 12] = [
    "workload", "calls", "s", "calls/s", "MB/s", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999",
    "max",
];
const LOST: [&str; 4] = ["workload", "never answered", "of", "%"];
const LOOPS: [&str; 11] = [
    "workload",
    "target/s",
    "achieved/s",
    "adherence %",
    "late",
    "overran",
    "never sent",
    "service p50",
    "p99",
    "p99.9",
    "",
];
const CORES: [&str; 10] = [
    "workload",
    "side",
    "core",
    "calls/s",
    "cycles/RPC",
    "useful polls",
    "empty polls",
    "empty %",
    "busy %",
    "stolen ms",
];
const SATURATION: [&str; 5] = ["target/s", "achieved/s", "adherence %", "p99 µs", ""];
const SOAK: [&str; 5] = ["figure", "mean", "change", "standard error", ""];
