//! Conditions of single repeats under which their figures cannot be compared with those of others: threads that waited for
//! a CPU, and cores of another placement.

use super::{FloorRow, Repeat, Report, Row};
use crate::env::WAITED_PERCENT;
use crate::floor::Placement;
use crate::units::joined;
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Repeat {
    fn placement(&self) -> Option<Placement> {
        self.placed.map(|placed| placed.placement)
    }

    pub(super) fn has_moved(&self) -> bool {
        self.placement() == Some(Placement::Moved)
    }

    /// Returns whether both were measured on cores of one placement, as far as it is known.
    pub(crate) fn is_placed_as(&self, other: &Self) -> bool {
        self.placement() == other.placement() && !self.has_moved()
    }

    fn is_disturbed(&self) -> bool {
        self.measurement.waits().any(|percent| percent >= WAITED_PERCENT)
    }
}

impl Row {
    pub(super) fn is_disturbed(&self) -> bool {
        self.repeats.iter().any(Repeat::is_disturbed)
    }

    /// The row as tables show it: one for each placement of the cores, with a mark for repeats that were disturbed.
    pub(super) fn parts(&self) -> Vec<Cow<'_, Self>> {
        let groups = grouped(self.repeats.iter().map(|repeat| (repeat.placement(), repeat)));
        let (count, of) = (groups.len(), self.repeats.len());
        let part = |(placement, repeats): (Option<Placement>, Vec<&Repeat>)| {
            let disturbed = repeats.iter().filter(|repeat| repeat.is_disturbed()).count();
            if count == 1 && disturbed == 0 {
                return Cow::Borrowed(self);
            }
            let repeats: Vec<Repeat> = repeats.into_iter().cloned().collect();
            let mut name = self.name.clone();
            if count > 1 {
                name += &format!(", {} {} of {of}", name_of(placement), repeats.len());
            }
            if disturbed > 0 {
                name += &format!(", disturbed {disturbed} of {}", repeats.len());
            }
            Cow::Owned(Self { name, ..Self::new(self.workload, repeats) })
        };
        groups.into_iter().map(part).collect()
    }
}

impl FloorRow {
    pub(super) fn parts(&self) -> Vec<Cow<'_, Self>> {
        let known = self.placements.iter().copied().chain(std::iter::repeat(None));
        let groups = grouped(known.zip(&self.values));
        let part = |(placement, values): (Option<Placement>, Vec<&f64>)| {
            let (placed, count, of) = (name_of(placement), values.len(), self.values.len());
            let name = format!("{}, {placed} {count} of {of}", self.name);
            let mut part = Self { name, ..Self::new(self.probe) };
            values.into_iter().for_each(|value| part.add(*value, placement));
            Cow::Owned(part)
        };
        match groups.len() {
            0 | 1 => vec![Cow::Borrowed(self)],
            _ => groups.into_iter().map(part).collect(),
        }
    }
}

fn name_of(placement: Option<Placement>) -> &'static str {
    placement.map_or("unplaced", Placement::name)
}

fn grouped<T>(
    items: impl Iterator<Item = (Option<Placement>, T)>,
) -> BTreeMap<Option<Placement>, Vec<T>> {
    let mut groups: BTreeMap<_, Vec<T>> = BTreeMap::new();
    items.for_each(|(placement, item)| groups.entry(placement).or_default().push(item));
    groups
}

impl Report {
    pub(crate) fn note_validity(&mut self) {
        let repeats = || self.rows.iter().flat_map(|row| &row.repeats);
        // Those of a row are of its repeats.
        let alone = self.floor.iter().filter(|_| self.rows.is_empty());
        let of_floor = alone.flat_map(|row| &row.placements).copied();
        let placements = repeats().map(Repeat::placement).chain(of_floor).flatten();
        let counts = grouped(placements.map(|placement| (Some(placement), ())));
        let disturbed = self.rows.iter().any(Row::is_disturbed);
        if !counts.is_empty() {
            let shown = counts.iter().map(|(one, all)| format!("{} {}", name_of(*one), all.len()));
            let shown = joined(shown, ", ");
            let note = format!("measurements by placement of the cores: {shown}; {PLACEMENTS}");
            self.notes.push(note);
        }
        if disturbed {
            self.notes.push(DISTURBED.to_owned());
        }
    }
}

const PLACEMENTS: &str = "by the round trip of a cache line before and after each: threads of one core below 85 ns, near \
     ones below 250 ns, far ones; moved: it was another one afterwards; only figures of one placement are comparable";
const DISTURBED: &str = "disturbed: a thread that polls waited for its CPU for 1 % of a repeat or more, while other \
     programs ran there; do not trust these figures";

#[cfg(test)]
mod tests {
    use crate::floor::{Placed, Probe};
    use crate::load::{Operation, Workload};
    use crate::report::tests::{empty, repeat};
    use crate::report::{Repeat, Row, table};

    fn placed(p50_ns: f64, line_ns: [f64; 2]) -> Repeat {
        let one = repeat(1000, p50_ns, &[(Probe::CacheLine, line_ns[0])]);
        one.at(Some(Placed::between(line_ns[0], line_ns[1])))
    }

    /// The median of all five would be that of neither placement.
    #[test]
    fn each_placement_has_its_rows_and_its_limits() {
        let near = [170.0, 160.0].map(|p50| placed(p50, [110.0, 110.0]));
        let far = [630.0, 640.0].map(|p50| placed(p50, [500.0, 490.0]));
        let moved = placed(400.0, [110.0, 490.0]);
        let repeats = [&near[..], &far[..], &[moved]].concat();
        let mut report = empty();
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64), repeats));
        report.collect_floor();
        report.note_validity();
        let row = &report.rows[0];
        let parts = row.parts();
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(
            names,
            ["echo 64 B, near 2 of 5", "echo 64 B, far 2 of 5", "echo 64 B, moved 1 of 5"]
        );
        assert_eq!([&parts[0], &parts[1]].map(|part| part.median.latency.p50_ns), [170.0, 640.0]);
        assert_eq!(parts[0].median.ratios[0].spread, [160.0 / 110.0, 170.0 / 110.0]);
        assert!(
            parts[2].median.ratios[0].median.is_nan(),
            "limit and calls were not of one placement"
        );
        let limits = report.floor[0].parts();
        assert_eq!([&limits[0], &limits[1]].map(|part| part.median), [110.0, 500.0]);
        let text = table::render(&report);
        assert!(
            text.contains("cache line round trip, far 2 of 5")
                && text.contains("near 2, far 2, moved 1"),
            "{text}"
        );
    }

    #[test]
    fn a_row_is_marked_where_a_thread_waited_for_its_cpu() {
        let waited = |percent| {
            let mut one = repeat(1000, 300.0, &[]);
            one.measurement.server.as_mut().unwrap().waited_percent = Some(percent);
            one
        };
        let mut report = empty();
        let repeats = [0.2, 30.0, 0.0].map(waited).to_vec();
        report.rows.push(Row::new(Workload::ping_pong(Operation::Echo, 64), repeats));
        report.note_validity();
        let text = table::render(&report);
        assert!(
            text.contains("echo 64 B, disturbed 1 of 3") && text.contains("do not trust"),
            "{text}"
        );
        assert_eq!(report.rows[0].name, "echo 64 B");
    }
}
