//! A report as read for a sum. Everything in it is checked: sums must not overflow, and figures must
//! be numbers.

use crate::compare::{FIGURE_MAX, checked, read_report};
use crate::env::{Environment, Interference};
use crate::load::{Measurement, Mode, Workload};
use crate::ranks::Rank;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    #[serde(skip)]
    pub(super) source: String,
    pub(super) ids: Vec<String>,
    pub(super) environment: Environment,
    pub(super) interference: Interference,
    pub(super) mode: Option<Mode>,
    pub(super) rows: Vec<PartRow>,
    pub(super) notes: Vec<String>,
    pub(super) interrupted: bool,
    pub(super) rank: Option<Rank>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PartRow {
    pub(super) name: String,
    pub(super) workload: Workload,
    pub(super) repeats: Vec<Measurement>,
    /// Calls of the open loop of each repeat, or of the mix it is a part of, that were never sent.
    #[serde(skip)]
    pub(super) never_sent: Vec<u64>,
}

impl Part {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Self::of(&path.display().to_string(), read_report(path)?)
    }

    pub(super) fn of(source: &str, report: Value) -> Result<Self, String> {
        let report = checked(report).map_err(|error| format!("{source}: {error}"))?;
        let mut part: Self =
            serde_json::from_value(report).map_err(|error| format!("{source}: {error}"))?;
        source.clone_into(&mut part.source);
        // Whether percentiles were refused, and how many calls were never sent, in each repeat of the
        // last mix: the rows of its operations follow it, and do not tell.
        let mut of_mix: Vec<(bool, u64)> = Vec::new();
        for row in &mut part.rows {
            let own: Vec<(bool, u64)> = row.repeats.iter().map(schedule).collect();
            let schedule = if row.workload.of_mix { of_mix.clone() } else { own };
            for (number, repeat) in row.repeats.iter().enumerate() {
                let (is_refused, never_sent) = schedule.get(number).copied().unwrap_or_default();
                let samples = repeat.samples.latency.len();
                let problem = match is_credible(repeat) {
                    false => "it has a figure below 0 or above 1e18",
                    true if samples == repeat.calls || (is_refused && samples == 0) => "",
                    true => "its histogram lacks calls",
                };
                if !problem.is_empty() {
                    return Err(format!("{source}: {}: {problem}", row.name));
                }
                row.never_sent.push(never_sent);
            }
            if !row.workload.mix.is_empty() {
                of_mix = schedule;
            }
        }
        Ok(part)
    }

    /// Returns whether both reports have a measurement in common, which a sum would count twice.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.ids.iter().any(|id| other.ids.contains(id))
    }

    /// The row of the same workload. Ranks may have seeds of their own.
    pub(super) fn row_like(&self, row: &PartRow) -> Option<&PartRow> {
        let without_seed = |row: &PartRow| Workload { seed: 0, ..row.workload };
        self.rows.iter().find(|other| without_seed(other) == without_seed(row))
    }
}

/// Returns whether an open loop refused percentiles, and the number of its calls that were never sent.
fn schedule(repeat: &Measurement) -> (bool, u64) {
    repeat.open.map_or((false, 0), |open| (open.refused.is_some(), open.never_sent))
}

fn is_credible(repeat: &Measurement) -> bool {
    let open = || repeat.open.iter();
    let counts = [repeat.calls, repeat.lost]
        .into_iter()
        .chain(open().flat_map(|o| [o.intended, o.late, o.overran, o.never_sent]));
    let rates = [repeat.calls_per_second, repeat.bytes_per_second, repeat.start_unix_s];
    let of_open =
        open().flat_map(|o| [o.target_per_second, o.achieved_per_second, o.adherence_percent]);
    let times = [repeat.elapsed_s, repeat.carried_in_ns];
    let mut figures = rates.into_iter().chain(of_open).chain(times);
    let cores = || repeat.client_cores.iter().chain(&repeat.server_cores).chain(&repeat.server);
    counts.into_iter().all(|count| count <= COUNT_MAX)
        && figures.all(|figure| figure.is_nan() || (0.0..=FIGURE_MAX).contains(&figure))
        && cores().all(|core| core.counts().iter().all(|count| *count <= COUNT_MAX))
}

/// Far more than any run has, and too little for a sum of reports to overflow.
const COUNT_MAX: u64 = 1 << 48;
