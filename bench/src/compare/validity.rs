//! Selection of the repeats of two rows that can be compared: those in which no thread waited for its CPU, with cores of
//! one placement.

use super::document::{Repeat, Row};
use super::statistics::REPEATS_MIN;
use crate::env::WAITED_PERCENT;
use crate::floor::Placement;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Validity {
    /// False if the valid repeats of the sides cannot be compared. All of them are shown then.
    #[serde(rename = "judged")]
    pub(super) is_judged: bool,
    #[serde(skip)]
    reason: &'static str,
    /// Placement of the cores in the repeats that are compared, if it is known.
    placement: Option<Placement>,
    /// Repeats before and after that are not.
    left_out: [LeftOut; 2],
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct LeftOut {
    of: usize,
    disturbed: usize,
    moved: usize,
    /// Others with cores of another placement, or of an unknown one.
    elsewhere: usize,
}

impl Validity {
    pub(super) fn note(&self, row: &str) -> Option<String> {
        let sides = ["before", "after"].into_iter().zip(&self.left_out);
        let shown: Vec<String> = sides.filter_map(|(side, out)| out.show(side)).collect();
        let rest = match (self.is_judged, self.placement) {
            (false, _) => format!("DISTURBED: {}; the medians are of all", self.reason),
            (true, None) => "the others are compared".to_owned(),
            (true, Some(one)) => format!("the others, with {} cores, are compared", one.name()),
        };
        (!shown.is_empty()).then(|| format!("{row}: left out {}: {rest}", shown.join(", ")))
    }

    pub(super) fn repeats(&self) -> [usize; 2] {
        [self.left_out[0].of, self.left_out[1].of]
    }
}

impl LeftOut {
    fn of(row: &Row, criteria: Criteria, placement: Placement) -> Self {
        let count = |is: &dyn Fn(&Repeat) -> bool| row.repeats.iter().filter(|one| is(one)).count();
        let disturbed = count(&|one| criteria.is_disturbed(one));
        let moved = count(&|one| !criteria.is_disturbed(one) && criteria.has_moved(one));
        let is_left = |one: &Repeat| criteria.is_disturbed(one) || criteria.has_moved(one);
        let elsewhere = count(&|one| !is_left(one) && !criteria.is_at(one, placement));
        Self { of: row.repeats.len(), disturbed, moved, elsewhere }
    }

    fn show(&self, side: &str) -> Option<String> {
        let Self { of, disturbed, moved, elsewhere } = *self;
        let kinds = [(disturbed, "disturbed"), (moved, "moved"), (elsewhere, "elsewhere")];
        let kinds = kinds.iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
        (!kinds.is_empty()).then(|| format!("{} of {of} {side}", kinds.join(" and ")))
    }
}

/// Facts by which repeats are left out. One that a side does not know, such as that of an older program, must not
/// select the repeats of the other alone: its best would be compared with all.
#[derive(Clone, Copy)]
struct Criteria {
    /// Of the client and of the server.
    waits: [bool; 2],
    placement: bool,
}

impl Criteria {
    const ALL: Self = Self { waits: [true; 2], placement: true };

    fn known<'a>(repeats: impl Iterator<Item = &'a Repeat> + Clone) -> Self {
        let waits = |side: usize| repeats.clone().any(|one| one.waited_percent[side].is_some());
        let placement = repeats.clone().any(|one| one.placement.is_some());
        Self { waits: [waits(0), waits(1)], placement }
    }

    fn common<'a, R>(sides: impl Iterator<Item = R>) -> Self
    where
        R: Iterator<Item = &'a Repeat> + Clone,
    {
        sides.map(Self::known).fold(Self::ALL, |all, one| Self {
            waits: [0, 1].map(|side| all.waits[side] && one.waits[side]),
            placement: all.placement && one.placement,
        })
    }

    fn is_disturbed(self, repeat: &Repeat) -> bool {
        let waited = repeat.waited_percent.iter().zip(self.waits).filter(|(_, is_known)| *is_known);
        waited.filter_map(|(percent, _)| *percent).any(|percent| percent >= WAITED_PERCENT)
    }

    fn has_moved(self, repeat: &Repeat) -> bool {
        self.placement && repeat.placement == Some(Placement::Moved)
    }

    fn is_at(self, repeat: &Repeat, placement: Placement) -> bool {
        !self.placement || repeat.is_at(placement)
    }

    /// Returns whether other criteria, which only this row knows, would leave repeats of it out.
    fn miss_any(self, row: &Row) -> bool {
        let places = || row.repeats.iter().map(|one| one.placement);
        let has_moved =
            |at: Option<Placement>| at == Some(Placement::Moved) || Some(at) != places().next();
        row.repeats.iter().any(|one| Self::ALL.is_disturbed(one) != self.is_disturbed(one))
            || !self.placement && places().any(has_moved)
    }
}

/// The two rows with the repeats that are valid and of the placement that both sides have most of; with all of them
/// if these cannot be compared: too few are left, or the sides were not disturbed alike, or one does not know.
pub(super) fn comparable(rows: [&Row; 2]) -> ([Row; 2], Validity) {
    let common = Criteria::common(rows.iter().map(|row| row.repeats.iter()));
    let valid = |row: &Row, placement| {
        let is_valid = |one: &&Repeat| !common.is_disturbed(one) && common.is_at(one, placement);
        row.repeats.iter().filter(is_valid).cloned().collect::<Vec<_>>()
    };
    let counts = |placement: &Placement| {
        let is_there = |one: &&Repeat| !common.is_disturbed(one) && one.is_at(*placement);
        let [before, after] = rows.map(|row| row.repeats.iter().filter(is_there).count());
        (before.min(after), before + after)
    };
    let placements = [Placement::Far, Placement::Near, Placement::Threads];
    let placement = placements.into_iter().max_by_key(counts).unwrap_or(Placement::Near);
    let kept = rows.map(|row| Row { repeats: valid(row, placement), ..row.clone() });
    let is_unknown = rows.iter().any(|row| common.miss_any(row));
    let criteria =
        |row: &Row| if is_unknown { Criteria::known(row.repeats.iter()) } else { common };
    let left_out = rows.map(|row| LeftOut::of(row, criteria(row), placement));
    let reason = reason_against(&kept, &left_out, is_unknown);
    let validity = Validity {
        is_judged: reason.is_none(),
        reason: reason.unwrap_or_default(),
        placement: common.placement.then_some(placement),
        left_out,
    };
    (if reason.is_none() { kept } else { rows.map(Row::clone) }, validity)
}

fn reason_against(
    kept: &[Row; 2],
    left_out: &[LeftOut; 2],
    is_unknown: bool,
) -> Option<&'static str> {
    let is_short = |(kept, out): (&Row, &LeftOut)| {
        kept.repeats.len() < out.of && kept.repeats.len() < REPEATS_MIN
    };
    let [before, after] = left_out;
    match is_unknown {
        true => Some("the other side does not have these facts"),
        false if before.disturbed.abs_diff(after.disturbed) >= UNLIKE => {
            Some("the change itself may disturb them, as their numbers differ by 3 or more")
        }
        false => kept.iter().zip(left_out).any(is_short).then_some("too few are left to judge it"),
    }
}

/// Numbers of disturbed repeats that differ by so many are not taken for chance.
const UNLIKE: usize = 3;

#[cfg(test)]
mod tests {
    use super::super::document::Document;
    use super::super::tests::{compared, placed};
    use super::super::{Comparison, table};
    use crate::failure::Failure;

    fn compare(before: &Document, after: &Document) -> Comparison {
        compared([before, after], &["p99>+10%", "rate<-5%"]).unwrap()
    }

    #[track_caller]
    fn assert_no_verdict(before: &Document, after: &Document) -> String {
        let comparison = compare(before, after);
        let Err(Failure::NoVerdict(told)) = comparison.verdict() else { panic!("{comparison:?}") };
        assert!(comparison.changes().all(|one| one.interval_percent.is_none()));
        let shown = table::render(&comparison);
        assert!(shown.contains("NOT JUDGED") && !shown.contains("WORSE"), "{shown}");
        assert!(told.contains("p99>+10%: echo 64 B"), "{told}");
        shown
    }

    #[track_caller]
    fn assert_regression(before: &Document, after: &Document) -> String {
        let comparison = compare(before, after);
        assert!(matches!(comparison.verdict(), Err(Failure::Regression(_))), "{comparison:?}");
        table::render(&comparison)
    }

    #[track_caller]
    fn assert_good(before: &Document, after: &Document) -> String {
        let comparison = compare(before, after);
        assert!(comparison.verdict().is_ok(), "{comparison:?}");
        table::render(&comparison)
    }

    type Repeats = [(f64, &'static str, f64); 6];

    const NEAR: Repeats = [
        (300.0, "near", 0.1),
        (301.0, "near", 0.0),
        (302.0, "near", 0.3),
        (303.0, "near", 0.0),
        (304.0, "near", 0.9),
        (305.0, "near", 0.2),
    ];

    /// [`NEAR`] with other times, placements and parts of the time that the server waited for.
    fn like(factor: f64, placement: &'static str, waited: f64) -> Repeats {
        NEAR.map(|(ns, ..)| (ns * factor, placement, waited))
    }

    /// All repeats after were twice as slow, in most of which the server waited. Expect no verdict, and an error that is
    /// not that of a regression.
    #[test]
    fn rows_in_which_threads_waited_are_not_judged() {
        let mut after = like(2.0, "near", 34.0);
        let shown = assert_no_verdict(&placed(&NEAR), &placed(&after));
        assert!(shown.contains("6 disturbed of 6 after"), "{shown}");
        after[1..].iter_mut().for_each(|one| one.2 = 0.4);
        let shown = assert_regression(&placed(&NEAR), &placed(&after));
        assert!(shown.contains("1 disturbed of 6 after"), "{shown}");
        // Percentiles that disturbed repeats lack are no loss.
        let mut after = placed(&like(1.0, "near", 5.0));
        after.rows[0].repeats.iter_mut().for_each(|one| one.figures.retain(|key, _| key != "p99"));
        assert_no_verdict(&placed(&NEAR), &after);
    }

    /// Most repeats after were on far cores, with a latency of their own. One without a placement, where both sides know
    /// others, is left out.
    #[test]
    fn only_repeats_of_one_placement_are_compared() {
        let far = [(900.0, "far", 0.0); 7];
        let after = [&far[..], &[(500.0, "moved", 0.0)], &NEAR[..]].concat();
        let shown = assert_good(&placed(&NEAR), &placed(&after));
        let told = "left out 1 moved and 7 elsewhere of 14 after: the others, with near cores";
        assert!(shown.contains(told), "{shown}");
        assert_no_verdict(&placed(&NEAR), &placed(&far));
        let after = [&NEAR[..], &[(900.0, "", 0.0); 7]].concat();
        let shown = assert_good(&placed(&NEAR), &placed(&after));
        assert!(shown.contains("7 elsewhere of 13 after"), "{shown}");
    }

    /// A host whose lines take 250 ns has near cores in one run, and far ones in the next.
    #[test]
    fn cores_at_the_bound_of_two_placements_are_comparable() {
        let at = |placement, line_ns| {
            let mut document = placed(&like(1.0, placement, 0.1));
            let repeats = document.rows[0].repeats.iter_mut();
            repeats.for_each(|one| one.cache_line_ns = Some([line_ns; 2]));
            document
        };
        assert_good(&at("near", 248.0), &at("far", 252.0));
        assert_no_verdict(&at("near", 220.0), &at("far", 280.0));
        assert_no_verdict(&at("near", 248.0), &at("moved", 252.0));
    }

    /// The report of an older program does not have the placements, of which the other one has two. Leaving far repeats
    /// out of that one alone would make it look faster.
    #[test]
    fn facts_that_one_side_lacks_select_no_repeats_of_the_other() {
        let both = [&NEAR[..], &like(3.0, "far", 0.1)].concat();
        let unknown: Vec<_> = both.iter().map(|one| (one.0, "", one.2)).collect();
        let (old, new) = (placed(&unknown), placed(&both));
        for (before, after) in [(&old, &new), (&new, &old)] {
            assert!(assert_no_verdict(before, after).contains("6 elsewhere of 12"));
        }
        assert_good(&old, &old);
        assert_regression(&placed(&unknown[..6]), &placed(&like(2.0, "near", 0.1)));
        let mut older = placed(&NEAR);
        older.rows[0].repeats.iter_mut().for_each(|one| one.waited_percent[1] = None);
        assert_no_verdict(&older, &placed(&like(2.0, "near", 34.0)));
    }

    /// Half of the repeats after were disturbed, perhaps by the change itself; the others were as fast as before.
    #[test]
    fn sides_of_which_one_is_disturbed_more_often_are_not_judged() {
        let with = |disturbed: usize| {
            let mut all = [NEAR, NEAR].concat();
            all[..disturbed].iter_mut().for_each(|one| (one.0, one.2) = (900.0, 34.0));
            placed(&all)
        };
        for (before, after, is_judged) in [(0, 3, false), (5, 2, false), (2, 4, true), (3, 3, true)]
        {
            let verdict = compare(&with(before), &with(after)).verdict();
            assert_eq!(verdict.is_ok(), is_judged, "{before} {after}");
            assert!(is_judged || matches!(verdict, Err(Failure::NoVerdict(_))));
        }
    }
}
