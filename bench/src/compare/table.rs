use super::{Change, Comparison, Difference, Judged, Met, RowChange, Side, Verdict};
use super::{REPEATS_MIN, statistics::FALSE_PERCENT};
use crate::report::figures::{Figure, Unit};
use crate::report::table::{aligned, push_line, push_section};
use crate::units::{joined, show_utc, show_value};

pub(super) fn render_all(comparisons: &[Comparison]) -> String {
    if let [one] = comparisons {
        return render(one);
    }
    let mut text = String::new();
    let first = comparisons.first().map(|one| &one.before);
    let sides = first.into_iter().chain(comparisons.iter().map(|one| &one.after));
    let sides = sides.enumerate().map(|(at, side)| side_cells(&(at + 1).to_string(), side));
    for line in aligned(sides.collect()) {
        push_line(&mut text, &line);
    }
    let title = "medians of 1, and changes of the others with 99% intervals";
    push_section(&mut text, title, &overview(comparisons));
    for (at, comparison) in comparisons.iter().enumerate() {
        push_line(&mut text, "");
        push_line(&mut text, &format!("== {} compared with 1", at + 2));
        text += &render(comparison);
    }
    text
}

fn overview(comparisons: &[Comparison]) -> Vec<String> {
    let others = (2..comparisons.len() + 2).map(|number| number.to_string());
    let heading = ["workload", "metric", "1"].map(str::to_owned).into_iter().chain(others);
    let rows = comparisons.first().map_or(&[][..], |one| &one.matched.rows);
    change_lines(heading.collect(), rows, |row, change| {
        let others = comparisons.iter().map(|one| change_of(one, row, change));
        std::iter::once(change.metric.unit.show(change.before)).chain(others).collect()
    })
}

/// A line for each change that is shown, with these cells behind the names of its row and metric.
fn change_lines(
    heading: Vec<String>,
    rows: &[RowChange],
    cells_of: impl Fn(&RowChange, &Change) -> Vec<String>,
) -> Vec<String> {
    let mut cells = vec![heading];
    for row in rows {
        let first = std::iter::once(row.name.clone()).chain(std::iter::repeat(String::new()));
        for (name, change) in first.zip(row.metrics.iter().filter(|change| is_shown(change))) {
            cells.push([vec![name, change.metric.label()], cells_of(row, change)].concat());
        }
    }
    if rows.is_empty() { Vec::new() } else { aligned(cells) }
}

fn change_of(comparison: &Comparison, row: &RowChange, like: &Change) -> String {
    let row = comparison.matched.rows.iter().find(|other| other.workload == row.workload);
    let change = row.and_then(|row| row.metrics.iter().find(|one| one.metric == like.metric));
    let Some(change) = change else { return "-".to_owned() };
    let percent = change.change_percent;
    let shown = verdict(row.is_none_or(|row| row.validity.is_judged), change.verdict);
    match change.interval_percent {
        None => format!("{percent:+.1}% (?) {shown}"),
        Some([low, high]) => format!("{percent:+.1}% ({low:+.1}..{high:+.1}%) {shown}"),
    }
}

/// The others are for conditions and programs, or unreliable in most runs, which have too few calls for them.
fn is_shown(change: &Change) -> bool {
    let Figure { unit, ref key, percent, .. } = change.metric;
    let is_for_people = unit != Unit::Ticks && key != "mean";
    is_for_people && (change.supported || percent.is_none_or(|percent| percent <= 99.9))
}

pub(super) fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    for line in aligned(vec![
        side_cells("before", &comparison.before),
        side_cells("after", &comparison.after),
    ]) {
        push_line(&mut text, &line);
    }
    push_section(&mut text, "environment", &environment_lines(&comparison.environment));
    let heading = HEADER.map(str::to_owned).to_vec();
    let lines = change_lines(heading, &comparison.matched.rows, change_cells);
    if !lines.is_empty() {
        push_section(&mut text, "medians of the repeats, with confidence intervals", &lines);
    }
    if !comparison.conditions.is_empty() {
        let cells = comparison.conditions.iter().map(condition_cells).collect();
        push_section(&mut text, "conditions", &aligned(cells));
    }
    push_section(&mut text, "notes", &notes(comparison));
    text
}

fn side_cells(name: &str, side: &Side) -> Vec<String> {
    let started = side.started_unix_s.as_u64().map_or_else(|| "-".to_owned(), show_utc);
    let repeats = match side.repeats {
        1 => "1 repeat".to_owned(),
        n => format!("{n} repeats"),
    };
    vec![name.to_owned(), side.source.clone(), started, show_value(&side.revision, "-"), repeats]
}

fn environment_lines(differences: &[Difference]) -> Vec<String> {
    if differences.is_empty() {
        return vec!["the same on both sides".to_owned()];
    }
    let cells = |one: &Difference| {
        let [before, after] = [&one.before, &one.after].map(|fact| show_value(fact, "-"));
        vec![one.key.to_owned(), before, "->".to_owned(), after]
    };
    aligned(differences.iter().map(cells).collect())
}

fn change_cells(row: &RowChange, change: &Change) -> Vec<String> {
    let value = |value: f64| match change.supported {
        true => change.metric.unit.show(value),
        false => format!("({})", change.metric.unit.show(value)),
    };
    let interval = change.interval_percent;
    vec![
        value(change.before),
        value(change.after),
        format!("{:+.1}%", change.change_percent),
        interval.map_or_else(|| "?".to_owned(), |[low, high]| format!("{low:+.1}..{high:+.1}%")),
        verdict(row.validity.is_judged, change.verdict).to_owned(),
    ]
}

fn verdict(is_judged: bool, verdict: Verdict) -> &'static str {
    match verdict {
        _ if !is_judged => "DISTURBED",
        Verdict::Better => "better",
        Verdict::Worse => "WORSE",
        Verdict::Noise => "noise",
        Verdict::Unknown => "cannot tell",
    }
}

fn condition_cells(judged: &Judged) -> Vec<String> {
    let met: Vec<String> = judged.met_by.iter().map(Met::describe).collect();
    let (verdict, by) = match (met.is_empty(), judged.not_judged.is_empty()) {
        (true, true) => ("not met", String::new()),
        (true, false) => ("NOT JUDGED", format!("in {}", joined(&judged.not_judged, "; "))),
        (false, _) => ("MET", format!("by {}", met.join("; "))),
    };
    vec![judged.condition.clone(), verdict.to_owned(), by]
}

fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let changes = comparison.changes().count();
    if comparison.before.repeats.min(comparison.after.repeats) < REPEATS_MIN {
        notes.push(format!(
            "with fewer than {REPEATS_MIN} repeats on each side, a difference cannot be told from \
             noise (--repeats {REPEATS_MIN}); conditions use the plain difference"
        ));
    } else {
        notes.push(format!(
            "noise: not significant at the {FALSE_PERCENT} % level (Mann-Whitney); of {changes} \
             comparisons of equals, about {:.1} would differ by chance",
            changes as f64 * FALSE_PERCENT / 100.0
        ));
    }
    notes.push(
        "repeats cannot show changes between the runs, such as the load of the host; ratios to \
         limits measured in the same second are least affected"
            .to_owned(),
    );
    if comparison.changes().any(|change| is_shown(change) && !change.supported) {
        notes.push("(in parentheses) = fewer than 10 samples beyond it in a repeat".to_owned());
    }
    for (name, side) in [("before", &comparison.before), ("after", &comparison.after)] {
        if side.interrupted {
            notes.push(format!("{name} was interrupted: it has the figures up to then"));
        }
    }
    for one in &comparison.matched.unanswered {
        let (row, before, after) = (&one.row, one.before, one.after);
        notes.push(format!("calls never answered: {row}: {before} before, {after} after"));
    }
    notes.extend(comparison.matched.rows.iter().filter_map(|row| row.validity.note(&row.name)));
    notes.extend(comparison.matched.rows.iter().filter_map(duration_note));
    let sides = [comparison.before.repeats, comparison.after.repeats];
    notes.extend(comparison.matched.rows.iter().filter_map(|row| missing_note(row, sides)));
    let is_there = |row: &String| !comparison.matched.only_before.contains(row);
    let lost = comparison.matched.lost.iter().filter(|one| is_there(&one.row));
    let lost = lost.map(|one| {
        let by_chance = if one.verdict == Verdict::Noise { " (noise)" } else { "" };
        format!("{} {}{by_chance}", one.row, one.metric.key)
    });
    let lost = joined(lost, "; ");
    if !lost.is_empty() {
        notes.push(format!("no longer available: {lost}"));
    }
    for (side, names) in
        [("before", &comparison.matched.only_before), ("after", &comparison.matched.only_after)]
    {
        if !names.is_empty() {
            notes.push(format!("only {side}: {}", names.join("; ")));
        }
    }
    notes
}

/// Notes that one side measured for much longer: its tail and maximum cover more events.
fn duration_note(row: &RowChange) -> Option<String> {
    let [Some(before), Some(after)] = row.elapsed_s else { return None };
    let is_unlike = before.max(after) > before.min(after) * UNLIKE;
    is_unlike.then(|| {
        format!(
            "{}: measured for {before:.3} s before and {after:.3} s after; a longer measurement \
             has a longer tail",
            row.name
        )
    })
}

/// A note if some repeats of a side, of which there are so many, do not have the row.
fn missing_note(row: &RowChange, [before, after]: [usize; 2]) -> Option<String> {
    let [old, new] = row.validity.repeats();
    (old < before || new < after).then(|| {
        format!("{}: only in {old} of {before} repeats before and {new} of {after} after", row.name)
    })
}

const UNLIKE: f64 = 1.5;
const HEADER: [&str; 7] =
    ["workload", "metric", "before", "after", "change", "99% interval", "verdict"];
