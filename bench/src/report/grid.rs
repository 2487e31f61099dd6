//! The tables of a report as cells. `table` renders them as text, `html` as HTML, so that both have
//! the same content.

use super::{FloorRow, Goal, Report, Row, Trend, TrendUnit, spread};
use crate::latency::{LatencySummary, PERCENTILES, is_supported, median, upper_median};
use crate::load::CoreUse;
use crate::units::{joined, show_count, show_us};

pub(crate) struct Grid {
    pub(crate) title: &'static str,
    pub(crate) lead: String,
    /// Empty if the cells need no header.
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// `None` without rows; cells of the header are separated by `|`.
    fn new(
        title: &'static str,
        lead: impl Into<String>,
        header: &str,
        rows: impl Iterator<Item = Vec<String>>,
    ) -> Option<Self> {
        let header = header.split('|').filter(|_| !header.is_empty()).map(str::to_owned).collect();
        let rows: Vec<Vec<String>> = rows.collect();
        (!rows.is_empty()).then(|| Self { title, lead: lead.into(), header, rows })
    }
}

pub(crate) fn limits(report: &Report) -> Option<Grid> {
    let cells = |row: &FloorRow| {
        let [low, high] = spread(row.values.iter().copied()).map(|value| row.probe.show(value));
        vec![row.name.clone(), row.probe.show(row.median), format!("{low} to {high}")]
    };
    let rows = report.floor.iter().flat_map(FloorRow::parts).map(|row| cells(&row));
    Grid::new("limits of this machine", "medians", "", rows)
}

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
    let rows = report.rows.iter().flat_map(Row::parts).map(|row| result_cells(&row));
    Grid::new("results", lead, RESULTS, rows)
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

pub(crate) fn lost(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let (lost, calls) = (row.median.lost, row.median.calls);
        let percent = lost as f64 * 100.0 / (lost + calls).max(1) as f64;
        let (of, percent) = ((lost + calls).to_string(), format!("{percent:.3}"));
        vec![row.name.clone(), lost.to_string(), of, percent]
    };
    let rows = report.rows.iter().filter(|row| row.median.lost > 0).map(cells);
    let lead = "or after their deadline; they rank as slower than all others, so the maximum, and \
                percentiles among them, are unknown";
    Grid::new("calls never answered", lead, "workload|never answered|of|%", rows)
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

fn latency_cells(latency: &LatencySummary, samples_min: u64) -> Vec<String> {
    let cell = |(percent, ns): (f64, f64)| match ns.is_nan() || is_supported(percent, samples_min) {
        true => show_us(ns),
        false => format!("({})", show_us(ns)),
    };
    let percentiles = PERCENTILES.into_iter().zip(latency.figures());
    percentiles.map(cell).chain([show_us(latency.max_ns)]).collect()
}

pub(crate) fn ratios(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let shown = row.median.ratios.iter().map(|ratio| {
            let [low, high] = ratio.spread;
            if ratio.median.is_nan() {
                return format!("- x {}", ratio.to);
            }
            format!("{:.2} x {} ({low:.2} to {high:.2})", ratio.median, ratio.to)
        });
        let shown = joined(shown, ", ");
        (!shown.is_empty()).then(|| vec![row.name.clone(), shown])
    };
    let rows = report.rows.iter().flat_map(Row::parts).filter_map(|row| cells(&row));
    let lead = "each repeat compared with limits measured just before it: medians (smallest to \
                largest)";
    Grid::new("compared with this machine's limits", lead, "", rows)
}

pub(crate) fn loops(report: &Report) -> Option<Grid> {
    let lead = "latency counts from the intended start of a call, service time from the actual \
                one; adherence: calls that started within the measured time; late: those of them \
                that started 5 µs or more behind schedule; overran: calls that started after the \
                measured time; never sent: calls that did not start";
    Grid::new("open loops", lead, LOOPS, report.rows.iter().filter_map(loop_cells))
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
                those of all its clients; ticks/call: of the time-stamp counter, not cycles of the \
                CPU, in turns that found work; it and busy include other work that ran on the core \
                during such a turn, and leave out sleeping and waking; CPU: time of the thread on a \
                CPU, by the scheduler, of which system is in the kernel; switches: context switches \
                of the thread; useful and empty: polls with and without work; stolen: by the \
                hypervisor, in all repeats";
    Grid::new("cores", lead, CORES, rows)
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
        let if_known = |value: fn(&CoreUse) -> Option<f64>, show: fn(f64) -> String| {
            let known: Vec<f64> = uses().filter_map(value).collect();
            if known.is_empty() { "-".to_owned() } else { show(upper_median(known)) }
        };
        let percent = |value: f64| format!("{value:.1}");
        let cpu = uses().find_map(|core| core.cpu);
        let useful = middle(|core| core.polls.saturating_sub(core.empty_polls) as f64);
        vec![
            row.name.clone(),
            side.to_owned(),
            cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            show_count(middle(|core| core.calls_per_second)),
            if_known(|core| core.busy_ticks_per_call, |ticks| format!("{ticks:.0}")),
            show_count(useful),
            show_count(cost(|core| core.empty_polls as f64)),
            percent(cost(|core| core.empty_polls as f64 * 100.0 / core.polls.max(1) as f64)),
            if_known(|core| core.busy_percent, percent),
            if_known(|core| core.cpu_percent, percent),
            if_known(|core| core.system_percent, percent),
            if_known(|core| Some(core.switches? as f64), show_count),
            uses().map(|core| core.steal_ms).sum::<u64>().to_string(),
        ]
    };
    (0..count).map(cells).collect()
}

pub(crate) fn bounds(report: &Report) -> Option<Grid> {
    let cells = |row: &Row| {
        let bound = row.bounded_by.as_ref()?;
        Some(vec![row.name.clone(), bound.limit.name().to_owned(), bound.evidence.clone()])
    };
    let rows = report.rows.iter().filter_map(cells);
    Grid::new("bottleneck of each row", "", "workload|bound by|evidence", rows)
}

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
    Grid::new("highest rate", lead, "target/s|achieved/s|adherence %|p99 µs|", rows)
}

fn show_mean(trend: &Trend) -> String {
    match trend.unit {
        TrendUnit::Number => show_count(trend.mean),
        TrendUnit::Ns => format!("{} µs", show_us(trend.mean)),
        TrendUnit::Bytes => format!("{:.1} MiB", trend.mean / f64::from(1 << 20)),
    }
}

pub(crate) fn soak(report: &Report) -> Option<Grid> {
    let soak = report.soak.as_ref()?;
    let rows = soak.trends.iter().map(|trend| {
        let [change, error] = trend.percents();
        vec![
            trend.what.to_owned(),
            show_mean(trend),
            format!("{change:+.1}%"),
            format!("{error:.1}%"),
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
    let header = ["figure", "mean", "change", "standard error", ""].map(str::to_owned).to_vec();
    Some(Grid { title: "soak", lead, header, rows: rows.collect() })
}

pub(crate) fn goals(report: &Report) -> Option<Grid> {
    let lead = "of the project spinrpc for a quiet host; a missed one is no error of this host";
    Grid::new("targets", lead, "", report.goals.iter().map(goal_cells))
}

fn goal_cells(goal: &Goal) -> Vec<String> {
    let verdict = match goal.met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not judged",
    };
    let side = if goal.at_most { "at most" } else { "at least" };
    let aim = goal.aim.map_or_else(String::new, |aim| format!(" (aim {aim})"));
    vec![
        verdict.to_owned(),
        goal.name.clone(),
        if goal.measured.is_nan() { "-".to_owned() } else { format!("{:.2}", goal.measured) },
        format!("{side} {}{aim}", goal.bound),
    ]
}

const RESULTS: &str = "workload|calls|s|calls/s|MB/s|p50|p90|p99|p99.9|p99.99|p99.999|max";
const LOOPS: &str =
    "workload|target/s|achieved/s|adherence %|late|overran|never sent|service p50|p99|p99.9|";
const CORES: &str = "workload|side|core|calls/s|ticks/call|useful polls|empty polls|empty %|busy %|CPU %|system %|\
     switches|stolen ms";
