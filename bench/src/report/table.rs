use super::{FloorRow, Goal, Report, Row, Trend, TrendUnit, spread};
use crate::latency::{LatencySummary, PERCENTILES, is_supported, median, upper_median};
use crate::load::CoreUse;
use crate::units::{joined, show_count, show_us};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    let facts = report.environment.facts().into_iter().chain([report.interference.fact()]);
    facts.for_each(|(name, value)| push_line(&mut text, &format!("{name:<8} {value}")));
    for push in [limits, results, lost, ratios, loops, soak, cores, bounds, goals] {
        push(&mut text, report);
    }
    if !report.notes.is_empty() {
        push_section(&mut text, "notes", &report.notes);
    }
    text
}

/// Nothing without rows; cells of the header, if there is one, are separated by `|`.
fn push_table(
    text: &mut String,
    title: &str,
    lead: impl Display,
    header: &str,
    rows: impl Iterator<Item = Vec<String>>,
) {
    let header = header.split('|').map(str::to_owned).collect();
    let header = Some(header).filter(|cells| *cells != [""]);
    let mut rows = rows.peekable();
    if rows.peek().is_some() {
        let title = format!("{title}: {lead}");
        let lines = aligned(header.into_iter().chain(rows).collect());
        push_section(text, title.trim_end_matches(": "), &lines);
    }
}

/// Lines with aligned columns: the first and the last columns to the left, numbers to the right.
pub(crate) fn aligned(rows: Vec<Vec<String>>) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let numeric: Vec<bool> = (0..columns).map(|column| is_numeric(&rows, column)).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for ((cell, &width), &numeric) in row.iter().zip(&widths).zip(&numeric) {
            let padding = " ".repeat(width - cell.chars().count());
            let (left, right) = if numeric { (padding.as_str(), "") } else { ("", &*padding) };
            // Writing to a string cannot fail.
            let _ = write!(line, "{left}{cell}{right}  ");
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    let cell = rows.last().and_then(|row| row.get(column)).map_or("", String::as_str);
    let begins = cell.starts_with(|c: char| c.is_ascii_digit() || c == '(' || c == '-');
    begins && !cell.contains(' ')
}

pub(crate) fn push_section(text: &mut String, title: &str, lines: &[String]) {
    push_line(text, "");
    push_line(text, title);
    lines.iter().for_each(|line| push_line(text, &format!("  {line}")));
}

pub(crate) fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn limits(text: &mut String, report: &Report) {
    let cells = |row: &FloorRow| {
        let [low, high] = spread(row.values.iter().copied()).map(|value| row.probe.show(value));
        vec![row.name.clone(), row.probe.show(row.median), format!("{low} to {high}")]
    };
    let rows = report.floor.iter().flat_map(FloorRow::parts).map(|row| cells(&row));
    push_table(text, "limits of this machine", "medians", "", rows);
}

fn results(text: &mut String, report: &Report) {
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
    push_table(text, "results", lead, RESULTS, rows);
}

fn result_cells(row: &Row) -> Vec<String> {
    let median = &row.median;
    let rate = median.bytes_per_second / 1e6;
    let mut cells = vec![
        row.name.clone(),
        median.calls.to_string(),
        format!("{:.*}", if median.elapsed_s < 1.0 { 6 } else { 3 }, median.elapsed_s),
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

fn lost(text: &mut String, report: &Report) {
    let cells = |row: &Row| {
        let (lost, calls) = (row.median.lost, row.median.calls);
        let percent = lost as f64 * 100.0 / (lost + calls).max(1) as f64;
        let (of, percent) = ((lost + calls).to_string(), format!("{percent:.3}"));
        vec![row.name.clone(), lost.to_string(), of, percent]
    };
    let rows = report.rows.iter().filter(|row| row.median.lost > 0).map(cells);
    let lead = "or after their deadline; they rank as slower than all others, so the maximum, and \
                percentiles among them, are unknown";
    push_table(text, "calls never answered", lead, "workload|never answered|of|%", rows);
}

fn show_rate(per_second: f64) -> String {
    if per_second.is_nan() { "-".to_owned() } else { show_count(per_second) }
}

fn latency_cells(latency: &LatencySummary, samples_min: u64) -> Vec<String> {
    let cell = |(percent, ns): (f64, f64)| match ns.is_nan() || is_supported(percent, samples_min) {
        true => show_us(ns),
        false => format!("({})", show_us(ns)),
    };
    let percentiles = PERCENTILES.into_iter().zip(latency.figures());
    percentiles.map(cell).chain([show_us(latency.max_ns)]).collect()
}

fn ratios(text: &mut String, report: &Report) {
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
    push_table(text, "compared with this machine's limits", lead, "", rows);
}

fn loops(text: &mut String, report: &Report) {
    let lead = "latency counts from the intended start of a call, service time from the actual \
                one; adherence: calls that started within the measured time; late: those of them \
                that started 5 µs or more behind schedule; overran: calls that started after the \
                measured time; never sent: calls that did not start";
    push_table(text, "open loops", lead, LOOPS, report.rows.iter().filter_map(loop_cells));
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
fn cores(text: &mut String, report: &Report) {
    // Bottlenecks name the cores as well.
    if report.rows.len() > ROWS_WITH_CORES_MAX {
        return;
    }
    let rows = report.rows.iter().filter(|row| !row.workload.of_mix).flat_map(|row| {
        let client = core_rows(row, "client", |m| &m.client_cores);
        let server = core_rows(row, "server", |m| &m.server_cores);
        client.into_iter().chain(server)
    });
    let lead = "from the first call to the last, with the warm-up and the wait for calls in flight at \
                the end; a server's also with what passes before and after (some 20 ms with several \
                cores or ranks), and its calls are those of all its clients; ticks/call: of the time-stamp counter, not cycles of the \
                CPU, in turns that found work; it and busy include other work that ran on the core \
                during such a turn, and leave out sleeping and waking; CPU: time of the thread on a \
                CPU, by the scheduler, of which system is in the kernel; switches: context switches \
                of the thread; useful and empty: polls with and without work; stolen: by the \
                hypervisor, in all repeats";
    push_table(text, "cores", lead, CORES, rows);
}

fn core_rows(
    row: &Row,
    side: &str,
    of: fn(&crate::load::Measurement) -> &Vec<CoreUse>,
) -> Vec<Vec<String>> {
    // A core without calls is not among those of a server: in each repeat, others may be.
    let mut cores: BTreeMap<_, Vec<&CoreUse>> = BTreeMap::new();
    for repeat in &row.repeats {
        let mut known: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        for core in of(&repeat.measurement) {
            // Of several servers, or of cores without a CPU of their own.
            let same = known.entry(core.cpu).or_default();
            cores.entry((core.cpu, *same)).or_default().push(core);
            *same += 1;
        }
    }
    let cells = |((cpu, _), uses): (&(Option<usize>, usize), &Vec<&CoreUse>)| {
        let uses = || uses.iter().copied();
        let middle = |value: fn(&CoreUse) -> f64| median(uses().map(value));
        let cost = |value: fn(&CoreUse) -> f64| upper_median(uses().map(value));
        let if_known = |value: fn(&CoreUse) -> Option<f64>, show: fn(f64) -> String| {
            let known: Vec<f64> = uses().filter_map(value).collect();
            if known.is_empty() { "-".to_owned() } else { show(upper_median(known)) }
        };
        let percent = |value: f64| format!("{value:.1}");
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
    cores.iter().map(cells).collect()
}

fn bounds(text: &mut String, report: &Report) {
    let cells = |row: &Row| {
        let bound = row.bounded_by.as_ref()?;
        Some(vec![row.name.clone(), bound.limit.name().to_owned(), bound.evidence.clone()])
    };
    let rows = report.rows.iter().filter_map(cells);
    push_table(text, "bottleneck of each row", "", "workload|bound by|evidence", rows);
}

fn show_mean(trend: &Trend) -> String {
    match trend.unit {
        TrendUnit::Number => show_count(trend.mean),
        TrendUnit::Ns => format!("{} µs", show_us(trend.mean)),
        TrendUnit::Bytes => format!("{:.1} MiB", trend.mean / f64::from(1 << 20)),
    }
}

fn soak(text: &mut String, report: &Report) {
    let Some(soak) = &report.soak else { return };
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
    let lines = aligned(std::iter::once(header).chain(rows).collect());
    push_section(text, &format!("soak: {lead}"), &lines);
}

fn goals(text: &mut String, report: &Report) {
    let lead = "of the project spinrpc for a quiet host; a missed one is no error of this host; not \
                judged: a repeat that it rests on was disturbed";
    push_table(text, "targets", lead, "", report.goals.iter().map(goal_cells));
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
/// With more rows than this, each has a single line.
const ROWS_WITH_CORES_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::CoreList;
    use crate::env::{Environment, ProfileId};
    use crate::floor::Probe;
    use crate::load::{Operation, Workload};
    use crate::report::tests::repeat;
    use crate::report::{Goal, Row};

    fn report(calls: u64) -> Report {
        let profile = ProfileId { name: "latency".to_owned(), hash: "0".to_owned() };
        let mut report = Report::new(Environment::observe(&CoreList::from(0), profile, None));
        let repeats = vec![repeat(calls, 300.0, &[(Probe::CacheLine, 100.0)])];
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64), repeats));
        report.collect_floor();
        report
    }

    #[test]
    fn thin_percentiles_stand_in_parentheses() {
        let text = render(&report(1000));
        let line = text.lines().find(|line| line.contains("echo 64 B")).unwrap();
        assert_eq!(line.matches("(0.300)").count(), 3, "{line}");
        assert!(text.contains("3.00 x cache-line RTT (3.00 to 3.00)"), "{text}");
        assert!(text.contains("client core  client 95% busy; server 40% busy"), "{text}");
    }

    /// The core of CPU 2 has no calls in the first repeat, and that of CPU 3 none in the second.
    #[test]
    fn cores_are_those_of_one_cpu_in_all_repeats() {
        let core = |cpu, busy_percent| CoreUse {
            cpu: Some(cpu),
            busy_percent: Some(busy_percent),
            ..CoreUse::default()
        };
        let with = |cores: &[CoreUse]| {
            let mut one = repeat(1000, 300.0, &[]);
            one.measurement.server_cores = cores.to_vec();
            one
        };
        let repeats = vec![with(&[core(3, 10.0)]), with(&[core(2, 90.0), core(2, 50.0)])];
        let row = Row::new(Workload::ping_pong(Operation::Echo, 64), repeats);
        let rows = core_rows(&row, "server", |m| &m.server_cores);
        let shown: Vec<_> = rows.iter().map(|cells| (&*cells[2], &*cells[8])).collect();
        assert_eq!(shown, [("2", "90.0"), ("2", "50.0"), ("3", "10.0")]);
    }

    #[test]
    fn columns_line_up() {
        let lines = aligned(vec![
            vec!["name".to_owned(), "calls".to_owned()],
            vec!["a longer name".to_owned(), "7".to_owned()],
        ]);
        assert_eq!(lines, ["name           calls", "a longer name      7"]);
    }

    #[test]
    fn a_missed_target_is_told_as_one_of_the_project() {
        let mut report = report(1000);
        report.goals.push(Goal::at_most("echo p50", 3.0, 2.0).aiming_for(1.5));
        let text = render(&report);
        assert!(text.contains("missed  echo p50  3.00  at most 2 (aim 1.5)"), "{text}");
        assert!(text.contains("\ntargets: of the project"), "{text}");
    }
}
