//! The report as aligned text.

use super::{Goal, Report, Row};
use crate::latency::is_supported;
use crate::units::{show_count, show_us};
use std::fmt::Write;

/// The whole report: environment, limits, results, goals, notes; ends with a newline.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for line in environment_lines(report) {
        push_line(&mut text, &line);
    }
    if !report.floor.is_empty() {
        push_section(&mut text, "limits of this machine (medians)", &floor_lines(report));
    }
    if !report.rows.is_empty() {
        push_section(&mut text, &results_title(report), &result_lines(&report.rows));
    }
    if let Some(saturation) = &report.saturation {
        push_section(&mut text, "search", &saturation.lines());
    }
    if let Some(soak) = &report.soak {
        push_section(&mut text, "soak", &soak.lines());
    }
    if !report.goals.is_empty() {
        push_section(&mut text, "goals", &aligned(report.goals.iter().map(goal_cells).collect()));
    }
    if !report.notes.is_empty() {
        push_section(&mut text, "notes", &report.notes);
    }
    text
}

fn environment_lines(report: &Report) -> Vec<String> {
    let mut lines = report.environment.lines();
    let cores: Vec<String> = report.environment.cores.iter().map(ToString::to_string).collect();
    let interference = report.interference;
    lines.push(format!(
        "cores    {}, stolen from them during the run {:.0} ms, load after {:.2}",
        cores.join(","),
        interference.steal_ms,
        interference.load_average_after
    ));
    lines
}

fn floor_lines(report: &Report) -> Vec<String> {
    let cells = |row: &super::FloorRow| {
        let spread = super::spread(row.values.iter().copied());
        let [low, high] = spread.map(|value| row.probe.show(value));
        vec![row.name.clone(), row.probe.show(row.median), format!("{low} to {high}")]
    };
    aligned(report.floor.iter().map(cells).collect())
}

fn results_title(report: &Report) -> String {
    let repeats = report.rows.iter().map(|row| row.repeats.len()).max().unwrap_or(0);
    let of = match repeats {
        1 => "one repeat".to_owned(),
        n => format!("medians of {n} repeats, maximum of all"),
    };
    format!(
        "results: {of}; latency in µs is the full round trip of every call; \
         (in parentheses) = fewer than 10 samples beyond; MB = 10^6 bytes"
    )
}

fn result_lines(rows: &[Row]) -> Vec<String> {
    let mut cells = vec![HEADER.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(result_cells));
    aligned(cells)
}

fn result_cells(row: &Row) -> Vec<String> {
    let median = &row.median;
    let latency = &median.latency;
    let shown = |percent, ns: f64| ns.is_nan() || is_supported(percent, median.samples_min);
    let percentile = |percent: f64, ns: f64| match shown(percent, ns) {
        true => show_us(ns),
        false => format!("({})", show_us(ns)),
    };
    let rate = median.bytes_per_second / 1e6;
    vec![
        row.name.clone(),
        median.calls.to_string(),
        show_count(median.calls_per_second),
        if rate > 0.0 { format!("{rate:.0}") } else { "-".to_owned() },
        percentile(50.0, latency.p50_ns),
        percentile(90.0, latency.p90_ns),
        percentile(99.0, latency.p99_ns),
        percentile(99.9, latency.p99_9_ns),
        percentile(99.99, latency.p99_99_ns),
        show_us(latency.max_ns),
        ratios(row),
        row.bounded_by.clone(),
    ]
}

/// `1.52 x cache-line RTT, 1.31 x raw ring RTT`.
fn ratios(row: &Row) -> String {
    let shown = row.median.ratios.iter().map(|ratio| format!("{:.2} x {}", ratio.median, ratio.to));
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

fn goal_cells(goal: &Goal) -> Vec<String> {
    let verdict = if goal.met { "met" } else { "MISSED" };
    let side = if goal.at_most { "at most" } else { "at least" };
    let aim = goal.aim.map_or_else(String::new, |aim| format!(" (aim {aim})"));
    vec![
        verdict.to_owned(),
        goal.name.clone(),
        format!("{:.2}", goal.measured),
        format!("{side} {}{aim}", goal.bound),
    ]
}

/// Lines whose columns line up: the first and the last columns to the left, numbers to the right.
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

/// Whether the last cell of a column begins like a number and ends in no words.
fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    let cell = rows.last().and_then(|row| row.get(column)).map_or("", String::as_str);
    let begins = cell.starts_with(|c: char| c.is_ascii_digit() || c == '(' || c == '-');
    begins && !cell.contains(' ')
}

/// A title with its lines under it, an empty line before it.
pub(crate) fn push_section(text: &mut String, title: &str, lines: &[String]) {
    push_line(text, "");
    push_line(text, title);
    lines.iter().for_each(|line| push_line(text, &format!("  {line}")));
}

/// A line with its end.
pub(crate) fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

const HEADER: [&str; 12] = [
    "workload",
    "calls",
    "calls/s",
    "MB/s",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "p99.99",
    "max",
    "beside this machine's limits",
    "bounded by",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::CoreList;
    use crate::env::{Environment, ProfileId};
    use crate::floor::Probe;
    use crate::load::{Operation, Workload};
    use crate::report::tests::repeat;

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
        assert_eq!(line.matches("(0.300)").count(), 2, "{line}");
        assert!(line.contains("3.00 x cache-line RTT"), "{line}");
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
    fn a_missed_goal_stands_out() {
        let mut report = report(1000);
        report.goals.push(Goal::at_most("echo p50", 3.0, 2.0).aiming_for(1.5));
        let text = render(&report);
        assert!(text.contains("MISSED  echo p50  3.00  at most 2 (aim 1.5)"), "{text}");
    }
}
