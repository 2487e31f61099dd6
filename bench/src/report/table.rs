//! The report as aligned text.

use super::grid::{self, Grid};
use super::{Report, environment_facts};
use std::fmt::Write;

/// The whole report: environment, limits, results, goals, notes; ends with a newline.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in environment_facts(report) {
        push_line(&mut text, &format!("{name:<8} {value}"));
    }
    let tables = [
        grid::limits(report),
        grid::results(report),
        grid::lost(report),
        grid::ratios(report),
        grid::loops(report),
        grid::saturation(report),
        grid::soak(report),
        // With many rows, only their bottlenecks, which name the cores as well.
        (report.rows.len() <= ROWS_WITH_CORES_MAX).then(|| grid::cores(report)).flatten(),
        grid::bounds(report),
        grid::goals(report),
    ];
    tables.into_iter().flatten().for_each(|grid| push_grid(&mut text, grid));
    if !report.notes.is_empty() {
        push_section(&mut text, "notes", &report.notes);
    }
    text
}

fn push_grid(text: &mut String, grid: Grid) {
    let title = match grid.lead.as_str() {
        "" => grid.title.to_owned(),
        lead => format!("{}: {lead}", grid.title),
    };
    let header = (!grid.header.is_empty()).then_some(grid.header);
    push_section(text, &title, &aligned(header.into_iter().chain(grid.rows).collect()));
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

/// Returns whether the last cell of a column begins like a number and does not end in words.
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
