//! Selection of the repeats of two rows that can be compared: those in which no thread waited for its CPU, with cores of
//! one placement.

use super::document::{Repeat, Row};
use super::statistics::REPEATS_MIN;
use crate::env::WAITED_PERCENT;
use crate::floor::Placement;
use serde::Serialize;

/// Part of the repeats of a row that was compared.
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
        Self {
            of: row.repeats.len(),
            disturbed: count(&|one| criteria.is_disturbed(one)),
            moved: count(&|one| !criteria.is_disturbed(one) && criteria.has_moved(one)),
            elsewhere: count(&|one| criteria.is_steady(one) && !criteria.is_at(one, placement)),
        }
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
pub(super) struct Criteria {
    client_waits: bool,
    server_waits: bool,
    placement: bool,
}

impl Criteria {
    const ALL: Self = Self { client_waits: true, server_waits: true, placement: true };

    fn known<'a>(repeats: impl Iterator<Item = &'a Repeat> + Clone) -> Self {
        Self {
            client_waits: repeats.clone().any(|one| one.waited_percent[0].is_some()),
            server_waits: repeats.clone().any(|one| one.waited_percent[1].is_some()),
            placement: repeats.clone().any(|one| one.placement.is_some()),
        }
    }

    pub(super) fn common<'a, R>(sides: impl Iterator<Item = R>) -> Self
    where
        R: Iterator<Item = &'a Repeat> + Clone,
    {
        sides.map(Self::known).fold(Self::ALL, |all, one| Self {
            client_waits: all.client_waits && one.client_waits,
            server_waits: all.server_waits && one.server_waits,
            placement: all.placement && one.placement,
        })
    }

    /// Returns whether a thread of either end waited for its CPU long enough to distort the figures.
    fn is_disturbed(self, repeat: &Repeat) -> bool {
        let [client, server] = repeat.waited_percent;
        let client = client.filter(|_| self.client_waits);
        let server = server.filter(|_| self.server_waits);
        client.into_iter().chain(server).any(|percent| percent >= WAITED_PERCENT)
    }

    fn has_moved(self, repeat: &Repeat) -> bool {
        self.placement(repeat) == Some(Placement::Moved)
    }

    /// Returns whether its figures are those of one placement, and of threads that had their CPUs.
    pub(super) fn is_steady(self, repeat: &Repeat) -> bool {
        !self.is_disturbed(repeat) && !self.has_moved(repeat)
    }

    pub(super) fn placement(self, repeat: &Repeat) -> Option<Placement> {
        repeat.placement.filter(|_| self.placement)
    }

    fn is_at(self, repeat: &Repeat, placement: Placement) -> bool {
        !self.placement || repeat.placement == Some(placement)
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
        let is_there =
            |one: &&Repeat| !common.is_disturbed(one) && one.placement == Some(*placement);
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
    use super::super::{Comparison, table};
    use crate::failure::Failure;
    use serde_json::{Value, json};

    /// A report with one row of repeats of these latencies, on cores of these placements, of which the server's waited
    /// for this part of the time, as recorded.
    fn document(repeats: &[(f64, &str, f64)]) -> Document {
        let repeat = |(ns, placement, waited): &(f64, &str, f64)| {
            json!({
                "calls_per_second": 1e9 / ns, "bytes_per_second": 0.0,
                "latency": {"samples": 5000, "p50_ns": ns, "p99_ns": ns},
                "client": {"waited_percent": 0.1}, "server": {"waited_percent": waited},
                "placement": Some(placement).filter(|one| !one.is_empty()), "ratios": [],
            })
        };
        let repeats: Vec<Value> = repeats.iter().map(repeat).collect();
        let row = json!({"name": "echo 64 B", "workload": {"op": "echo"}, "repeats": repeats});
        serde_json::from_value(json!({"environment": {}, "rows": [row]})).unwrap()
    }

    fn compare(before: &Document, after: &Document) -> Comparison {
        let conditions = ["p99>+10%".parse().unwrap(), "rate<-5%".parse().unwrap()];
        let names = ["a", "b"].map(str::to_owned);
        Comparison::new(names, [before, after], &conditions).unwrap()
    }

    const NEAR: [(f64, &str, f64); 6] = [
        (300.0, "near", 0.1),
        (301.0, "near", 0.0),
        (302.0, "near", 0.3),
        (303.0, "near", 0.0),
        (304.0, "near", 0.9),
        (305.0, "near", 0.2),
    ];

    /// All repeats after were twice as slow, in most of which the server waited. Expect no verdict, and an error that is
    /// not that of a regression.
    #[test]
    fn rows_in_which_threads_waited_are_not_judged() {
        let mut after = NEAR.map(|(ns, placement, _)| (ns * 2.0, placement, 34.0));
        let comparison = compare(&document(&NEAR), &document(&after));
        let Err(Failure::NoVerdict(told)) = comparison.verdict() else { panic!("{comparison:?}") };
        assert!(told.contains("p99>+10%: echo 64 B") && told.contains("rate<-5%"), "{told}");
        assert!(comparison.changes().all(|one| one.interval_percent.is_none()));
        let shown = table::render(&comparison);
        assert!(
            shown.contains("6 disturbed of 6 after") && shown.contains("NOT JUDGED"),
            "{shown}"
        );
        assert!(!shown.contains("WORSE"), "{shown}");
        after[1..].iter_mut().for_each(|one| one.2 = 0.4);
        let comparison = compare(&document(&NEAR), &document(&after));
        assert!(matches!(comparison.verdict(), Err(Failure::Regression(_))), "{comparison:?}");
        assert!(table::render(&comparison).contains("1 disturbed of 6 after"));
    }

    /// Percentiles that disturbed repeats lack are no loss.
    #[test]
    fn figures_that_disturbed_repeats_lack_meet_no_condition() {
        let mut after = document(&NEAR.map(|(ns, placement, _)| (ns, placement, 5.0)));
        after.rows[0].repeats.iter_mut().for_each(|one| {
            one.figures.remove("p99");
        });
        let comparison = compare(&document(&NEAR), &after);
        assert!(matches!(comparison.verdict(), Err(Failure::NoVerdict(_))), "{comparison:?}");
    }

    /// Most repeats after were on far cores, with a latency of their own.
    #[test]
    fn only_repeats_of_one_placement_are_compared() {
        let far = [(900.0, "far", 0.0); 7];
        let moved = [(500.0, "moved", 0.0)];
        let after = [&far[..], &moved, &NEAR[..]].concat();
        let comparison = compare(&document(&NEAR), &document(&after));
        assert!(comparison.verdict().is_ok(), "{comparison:?}");
        let shown = table::render(&comparison);
        let told = "left out 1 moved and 7 elsewhere of 14 after: the others, with near cores";
        assert!(shown.contains(told), "{shown}");
        let comparison = compare(&document(&NEAR), &document(&far));
        assert!(matches!(comparison.verdict(), Err(Failure::NoVerdict(_))), "{comparison:?}");
    }

    /// The report of an older program does not have the placements, of which the other one has two. Leaving far repeats
    /// out of that one alone would make it look faster.
    #[test]
    fn facts_that_one_side_lacks_select_no_repeats_of_the_other() {
        let far = NEAR.map(|(ns, _, waited)| (ns * 3.0, "far", waited));
        let both = [&NEAR[..], &far].concat();
        let unknown: Vec<_> = both.iter().map(|one| (one.0, "", one.2)).collect();
        let (old, new) = (document(&unknown), document(&both));
        for (before, after) in [(&old, &new), (&new, &old)] {
            let comparison = compare(before, after);
            assert!(matches!(comparison.verdict(), Err(Failure::NoVerdict(_))), "{comparison:?}");
            assert!(table::render(&comparison).contains("6 elsewhere of 12"));
        }
        assert!(compare(&old, &old).verdict().is_ok());
        let slower = document(&NEAR.map(|(ns, at, waited)| (ns * 2.0, at, waited)));
        let comparison = compare(&document(&unknown[..6]), &slower);
        assert!(matches!(comparison.verdict(), Err(Failure::Regression(_))), "{comparison:?}");
        let mut older = document(&NEAR);
        older.rows[0].repeats.iter_mut().for_each(|one| one.waited_percent[1] = None);
        let disturbed = document(&NEAR.map(|(ns, at, _)| (ns * 2.0, at, 34.0)));
        let comparison = compare(&older, &disturbed);
        assert!(matches!(comparison.verdict(), Err(Failure::NoVerdict(_))), "{comparison:?}");
    }

    /// A repeat without a placement, where both sides know others, is left out.
    #[test]
    fn repeats_of_an_unknown_placement_are_left_out() {
        let after = [&NEAR[..], &[(900.0, "", 0.0); 7]].concat();
        let comparison = compare(&document(&NEAR), &document(&after));
        assert!(comparison.verdict().is_ok(), "{comparison:?}");
        assert!(table::render(&comparison).contains("7 elsewhere of 13 after"));
    }

    /// Half of the repeats after were disturbed, perhaps by the change itself; the others were as fast as before.
    #[test]
    fn sides_of_which_one_is_disturbed_more_often_are_not_judged() {
        let with = |disturbed: usize| {
            let mut all = [NEAR, NEAR].concat();
            all[..disturbed].iter_mut().for_each(|one| (one.0, one.2) = (900.0, 34.0));
            document(&all)
        };
        let verdict = |before, after| compare(&with(before), &with(after)).verdict();
        assert!(matches!(verdict(0, 3), Err(Failure::NoVerdict(_))));
        assert!(matches!(verdict(5, 2), Err(Failure::NoVerdict(_))));
        assert!(verdict(2, 4).is_ok() && verdict(3, 3).is_ok());
    }
}
