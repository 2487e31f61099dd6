//! The report as one self-contained HTML file, for viewing and sharing.
//!
//! Nothing is fetched and no script runs, which a Content-Security-Policy in the file enforces,
//! whatever a name or a note of a host may contain.

/// Appends formatted text to a string, which cannot fail.
macro_rules! push {
    ($text:expr, $($piece:tt)*) => {{
        let _ = write!($text, $($piece)*);
    }};
}

mod curve;
mod family;
mod heat;
mod percentiles;
mod plot;

use super::grid::{self, Grid};
use super::{Report, Row};
use crate::units::{joined, show_count, show_utc};
use plot::show_time;
use std::fmt::Write;

pub(crate) fn render(report: &Report) -> String {
    let mut body = header(report);
    body += &tiles(report);
    let grids = |grids: &[fn(&Report) -> Option<Grid>]| -> String {
        grids.iter().filter_map(|grid| grid(report)).map(grid_section).collect()
    };
    body += &grids(&[grid::results, grid::lost, grid::ratios, grid::goals]);
    body += &plots(report);
    body += &grids(&[grid::loops, grid::saturation, grid::soak]);
    body += &grids(&[grid::bounds, grid::cores, grid::limits]);
    body += &section("Environment", "", &facts(&super::environment_facts(report)));
    body += &notes(report);
    page(&title(report), &body)
}

fn page(title: &str, body: &str) -> String {
    let (title, style, version) = (escape(title), STYLE, env!("CARGO_PKG_VERSION"));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"spinperf {version}\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Written by spinperf {version}. This file fetches nothing and runs no script.</footer>\n\
         </main>\n</body>\n</html>\n"
    )
}

fn title(report: &Report) -> String {
    format!("spinperf report, {}", show_utc(report.environment.started_unix_s))
}

fn header(report: &Report) -> String {
    let environment = &report.environment;
    let parts = [
        environment.host.cpu.clone(),
        environment.fabric.clone(),
        Some(format!("profile {}", environment.profile)),
        environment.revision.as_ref().map(|revision| format!("revision {revision}")),
        Some(show_utc(environment.started_unix_s)),
    ];
    let parts = joined(parts.into_iter().flatten(), " · ");
    let warning = match environment.build.as_str() {
        "release" => String::new(),
        other => {
            format!("<p class=\"bad\">A {} build: its figures mean little.</p>", escape(other))
        }
    };
    format!(
        "<header><h1>spinperf report</h1><p class=\"sub\">{}</p>{warning}</header>\n",
        escape(&parts)
    )
}

fn tiles(report: &Report) -> String {
    let rows = &report.rows;
    let p50 = |row: &&Row| row.median.latency.p50_ns;
    let measured = rows.iter().filter(|row| p50(row) > 0.0);
    let quickest = measured.min_by(|a, b| p50(a).total_cmp(&p50(b)));
    let best = |of: fn(&Row) -> f64| {
        rows.iter().filter(|row| of(row) > 0.0).max_by(|a, b| of(a).total_cmp(&of(b)))
    };
    let quickest =
        quickest.map(|row| ("lowest median round trip", show_time(p50(&row)), row.name.as_str()));
    let rate = best(|row| row.median.calls_per_second).map(|row| {
        let rate = format!("{}/s", show_count(row.median.calls_per_second));
        ("highest rate of calls", rate, row.name.as_str())
    });
    let payload = best(|row| row.median.bytes_per_second).map(|row| {
        let rate = format!("{:.2} GB/s", row.median.bytes_per_second / 1e9);
        ("most payload", rate, row.name.as_str())
    });
    let judged: Vec<bool> = report.goals.iter().filter_map(|goal| goal.met).collect();
    let (met, all) = (judged.iter().filter(|met| **met).count(), judged.len());
    let which = "of the project, for a quiet host";
    let goals = (all > 0).then(|| ("targets met", format!("{met} of {all}"), which));
    let tile = |(what, value, which): (&str, String, &str)| {
        let [what, value, which] = [what, &value, which].map(escape);
        format!(
            "<li><span class=\"what\">{what}</span><b>{value}</b><span class=\"which\">{which}</span></li>"
        )
    };
    let tiles: String = [quickest, rate, payload, goals].into_iter().flatten().map(tile).collect();
    if tiles.is_empty() { tiles } else { format!("<ul class=\"tiles\">{tiles}</ul>\n") }
}

fn grid_section(grid: Grid) -> String {
    let mut title = grid.title.to_owned();
    title.get_mut(..1).map(str::make_ascii_uppercase);
    section(&title, &grid.lead, &table(&grid.header, &grid.rows))
}

fn plots(report: &Report) -> String {
    let families = family::families(&report.rows);
    let spectra: String = families.iter().filter_map(percentiles::figure).collect();
    let found = report.saturation.as_ref().and_then(curve::saturation);
    let soak = report.soak.as_ref().and_then(curve::soak);
    let curves = families.iter().filter_map(curve::figure).chain(found).chain(soak);
    let curves: String = curves.collect();
    let maps: Vec<String> = report.rows.iter().filter_map(heat::figure).collect();
    let mut html = String::new();
    push_plots(&mut html, "Latency by percentile", SPECTRA, &spectra);
    push_plots(&mut html, "Throughput and latency", CURVES, &curves);
    if !maps.is_empty() {
        let grid = format!("{}<div class=\"plots\">{}</div>", heat::legend(), maps.concat());
        let body = match maps.len() {
            count if count > MAPS_OPEN => {
                format!("<details><summary>{count} heat maps</summary>{grid}</details>")
            }
            _ => grid,
        };
        html += &section("Latency over time", MAPS, &body);
    }
    html
}

fn push_plots(html: &mut String, title: &str, lead: &str, plots: &str) {
    if !plots.is_empty() {
        html.push_str(&section(title, lead, &format!("<div class=\"plots\">{plots}</div>")));
    }
}

fn notes(report: &Report) -> String {
    if report.notes.is_empty() {
        return String::new();
    }
    let items = report.notes.iter().map(|note| format!("<li>{}</li>", escape(note)));
    section("Notes", "", &format!("<ul class=\"notes\">{}</ul>", items.collect::<String>()))
}

/// Escapes text from elsewhere for content or a quoted attribute. Control characters, which HTML cannot represent,
/// become the replacement character.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(' '),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A table; the first cell of a row is its heading, cells in parentheses are faint, and columns of
/// numbers are right-aligned.
fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut html = "<div class=\"card\"><table>".to_owned();
    let numeric =
        |column: usize| rows.iter().all(|row| row.get(column).is_none_or(|c| is_number(c)));
    let class = |column: usize| if numeric(column) { " class=\"n\"" } else { "" };
    if !header.is_empty() {
        let cells = header.iter().enumerate();
        let cells =
            cells.map(|(i, cell)| format!("<th scope=\"col\"{}>{}</th>", class(i), escape(cell)));
        push!(html, "<thead><tr>{}</tr></thead>", cells.collect::<String>());
    }
    html.push_str("<tbody>");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let text = escape(cell);
            match (column, cell.starts_with('(')) {
                (0, _) => push!(html, "<th scope=\"row\">{text}</th>"),
                (_, true) => push!(html, "<td class=\"n thin\">{text}</td>"),
                (_, false) => push!(html, "<td{}>{text}</td>", class(column)),
            }
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table></div>"
}

fn is_number(cell: &str) -> bool {
    let begins = cell.starts_with(|c: char| c.is_ascii_digit() || "(-+".contains(c));
    begins && !cell.trim_start_matches(['-', '(']).contains(' ')
}

fn facts(pairs: &[(String, String)]) -> String {
    let mut html = "<div class=\"card\"><dl class=\"facts\">".to_owned();
    for (name, value) in pairs {
        push!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    html + "</dl></div>"
}

fn section(title: &str, lead: &str, body: &str) -> String {
    let lead = match lead {
        "" => String::new(),
        text => format!("<p class=\"lead\">{}</p>", escape(text)),
    };
    format!("<section><h2>{}</h2>{lead}{body}</section>\n", escape(title))
}

const STYLE: &str = include_str!("style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const MAPS_OPEN: usize = 16;
const SPECTRA: &str = "Every call of every repeat. Each further nine has the same width; dotted \
                       where fewer than ten calls lie beyond.";
const CURVES: &str = "Numbers at points are calls in flight, or requested calls per second. Where \
                      a line turns upwards, more load only adds waiting.";
const MAPS: &str = "Each column is a slice of time, each cell a range of latency, its colour the \
                    share of the slice's calls. The lines are p50 and p99; dotted vertical lines \
                    separate the repeats.";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::{Interval, Operation, Workload, nanoseconds};
    use crate::report::Goal;
    use crate::report::tests::{empty, repeat};

    /// A row with this many samples in each repeat, in ten intervals; the slowest samples get
    /// slower.
    pub(crate) fn sampled(workload: Workload, repeats: &[u64]) -> Row {
        let measured = |&calls: &u64| {
            let mut one = repeat(calls, 300.0, &[]);
            let samples = &mut one.measurement.samples;
            for index in 0..10 {
                let mut histogram = nanoseconds().unwrap();
                let of_interval =
                    (calls * index / 10..calls * (index + 1) / 10).map(|n| 200 + n * n % 9973);
                of_interval.for_each(|ns| histogram.record(ns).unwrap());
                samples.latency.add(&histogram).unwrap();
                let start_s = index as f64 / 10.0;
                samples.intervals.push(Interval { start_s, elapsed_s: 0.1, histogram });
            }
            one
        };
        Row::new(workload, repeats.iter().map(measured).collect())
    }

    /// Number of points of each line, in order.
    pub(crate) fn data_points(html: &str) -> Vec<usize> {
        let parts =
            html.split("data-points=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        parts.map(|number| number.parse().unwrap()).collect()
    }

    fn report() -> Report {
        let mut report = empty();
        let null = Workload::ping_pong(Operation::Null, 0);
        report.rows = [1, 2].map(|depth| sampled(null.at_depth(depth), &[1000, 1000])).to_vec();
        report.goals.push(Goal::at_most("<i>p50</i>", 3.0, 2.0));
        report.notes.push("<script>alert('note')</script>".to_owned());
        report.environment.host.kernel = Some("\"><img src=http://x onerror=alert(1)>".to_owned());
        report
    }

    #[test]
    fn every_part_is_there() {
        let html = render(&report());
        for part in [
            "Latency by percentile",
            "Throughput and latency",
            "Latency over time",
            "Bottleneck of each row",
            "Environment",
            "1 of 1",
        ] {
            assert_eq!(html.contains(part), part != "1 of 1", "{part}");
        }
        assert!(html.contains("0 of 1"));
        assert_eq!(html.matches("<figure>").count(), 1 + 1 + 2);
    }

    #[test]
    fn what_comes_from_outside_is_escaped_and_nothing_is_fetched_or_run() {
        let html = render(&report());
        for forbidden in
            ["<script", "<img", "<i>p50", "onerror=alert(1)>", "src=\"", "href=", "url(", "@import"]
        {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        assert!(html.contains("&lt;script&gt;alert(&#39;note&#39;)&lt;/script&gt;"));
        assert!(html.contains("default-src 'none'"));
    }

    #[test]
    fn elements_are_closed_in_the_order_they_were_opened() {
        let html = render(&report());
        let mut open: Vec<&str> = Vec::new();
        for tag in html.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
            match () {
                () if tag.starts_with('!') || tag.ends_with('/') || name == "meta" => {}
                () if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{tag}"),
                () => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn a_report_without_rows_is_a_page_too() {
        let html = render(&empty());
        assert!(html.contains("Environment") && !html.contains("<figure>"));
    }

    #[test]
    fn nothing_that_means_something_to_html_is_left() {
        assert_eq!(
            escape("<img src=x onerror=\"a('b')\"> & \u{1b}[31m"),
            "&lt;img src=x onerror=&quot;a(&#39;b&#39;)&quot;&gt; &amp; \u{fffd}[31m"
        );
    }

    #[test]
    fn numbers_go_to_the_right_and_thin_ones_are_faint() {
        let row = |cells: &[&str]| cells.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>();
        let html = table(&row(&["name", "p99"]), &[row(&["a<b", "1.5"]), row(&["c", "(2.5)"])]);
        assert!(html.contains("<th scope=\"row\">a&lt;b</th><td class=\"n\">1.5</td>"), "{html}");
        assert!(html.contains("<td class=\"n thin\">(2.5)</td>"), "{html}");
    }
}
