//! Rows that belong in one plot: the same operation on the same payload, at several depths or
//! rates, or with other connections.

use crate::load::{Mode, Workload};
use crate::pattern::Verify;
use crate::report::Row;
use crate::units::grouped;

/// Up to eight rows that can be distinguished in one plot.
pub(super) struct Family<'a> {
    pub(super) title: String,
    pub(super) members: Vec<Member<'a>>,
}

/// A row with its role in a plot.
pub(super) struct Member<'a> {
    pub(super) row: &'a Row,
    /// Distinguishing property; empty for a single row.
    pub(super) label: String,
    /// A variable of the style sheet.
    pub(super) colour: String,
}

/// All rows by family, in the order of their first members.
pub(super) fn families(rows: &[Row]) -> Vec<Family<'_>> {
    let groups = grouped(rows.iter().map(|row| (title(&row.workload), row)));
    let parts = groups
        .iter()
        .flat_map(|(title, rows)| rows.chunks(COLOURS).map(move |part| Family::new(title, part)));
    parts.collect()
}

impl<'a> Family<'a> {
    fn new(title: &str, rows: &[&'a Row]) -> Self {
        let is_ramp =
            rows.len() > 2 && rows.windows(2).all(|pair| differ_by_load(pair[0], pair[1]));
        let member = |(index, row): (usize, &&'a Row)| Member {
            row,
            label: match label(title, row) {
                empty if empty.is_empty() && is_ramp => "depth 1".to_owned(),
                empty if empty.is_empty() && rows.len() > 1 => "alone".to_owned(),
                label => label,
            },
            colour: match is_ramp {
                true => format!("--r{}", index * (COLOURS - 1) / (rows.len() - 1)),
                false => format!("--s{index}"),
            },
        };
        Self { title: title.to_owned(), members: rows.iter().enumerate().map(member).collect() }
    }
}

/// Name of the plainest workload of the same kind.
fn title(workload: &Workload) -> String {
    let plain = Workload {
        mode: Mode::PingPong,
        depth: 1,
        connections: 1,
        cores: 1,
        idle_connections: 0,
        rate: None,
        verify: Verify::Off,
        ..*workload
    };
    plain.name()
}

fn label(title: &str, row: &Row) -> String {
    let rest = row.name.strip_prefix(title).map(|rest| rest.trim_start_matches([',', ' ']));
    match rest {
        Some(rest) => rest.to_owned(),
        None => row.name.clone(),
    }
}

/// Returns whether one row is the other under more or less load: an order shown by a colour ramp.
fn differ_by_load(one: &Row, other: &Row) -> bool {
    let (one, other) = (one.workload, other.workload);
    Workload { mode: other.mode, depth: other.depth, rate: other.rate, ..one } == other
}

/// Colours of each kind in the style sheet.
const COLOURS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Operation;
    use crate::report::tests::repeat;

    fn row(workload: Workload) -> Row {
        Row::new(workload, vec![repeat(1000, 300.0, &[])])
    }

    #[test]
    fn depths_of_one_operation_are_a_family_with_a_ramp() {
        let null = Workload::ping_pong(Operation::Null, 0);
        let mut rows = vec![row(Workload::ping_pong(Operation::Echo, 64))];
        rows.extend([1, 2, 4, 8].map(|depth| row(null.at_depth(depth))));
        let families = families(&rows);
        let titles: Vec<&str> = families.iter().map(|family| family.title.as_str()).collect();
        assert_eq!(titles, ["echo 64 B", "null"]);
        let members = &families[1].members;
        assert_eq!((members[0].label.as_str(), members[0].colour.as_str()), ("depth 1", "--r0"));
        assert_eq!((members[3].label.as_str(), members[3].colour.as_str()), ("depth 8", "--r7"));
    }

    #[test]
    fn more_than_eight_rows_take_several_plots() {
        let null = Workload::ping_pong(Operation::Null, 0);
        let rows: Vec<Row> = (1..=9).map(|depth| row(null.at_depth(depth))).collect();
        let families = families(&rows);
        assert_eq!(families.iter().map(|f| f.members.len()).collect::<Vec<_>>(), [8, 1]);
    }
}
