//! A report as read for a sum. Everything in it is checked: sums must not overflow, and figures must
//! be numbers.

use crate::compare::{FIGURE_MAX, checked, read_report};
use crate::env::{Environment, Interference};
use crate::load::{Arrivals, CoreUse, Mode, Workload, decode_histogram};
use crate::ranks::Rank;
use hdrhistogram::Histogram;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// One report.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Part {
    /// Its file.
    #[serde(skip)]
    pub(super) source: String,
    pub(super) environment: Environment,
    pub(super) interference: Interference,
    pub(super) mode: Option<Mode>,
    pub(super) rows: Vec<PartRow>,
    pub(super) notes: Vec<String>,
    #[serde(default)]
    pub(super) interrupted: bool,
    pub(super) rank: Option<Rank>,
}

/// A workload.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PartRow {
    pub(super) name: String,
    pub(super) workload: Workload,
    pub(super) repeats: Vec<PartRepeat>,
}

/// One repeat.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PartRepeat {
    pub(super) calls: u64,
    #[serde(default)]
    pub(super) lost: u64,
    pub(super) elapsed_s: f64,
    pub(super) calls_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) start_unix_s: Option<f64>,
    #[serde(default)]
    pub(super) carried_in_ns: f64,
    pub(super) open: Option<PartOpen>,
    pub(super) client_cores: Vec<CoreUse>,
    pub(super) server: Option<CoreUse>,
    pub(super) server_cores: Vec<CoreUse>,
    #[serde(default)]
    histogram: Option<String>,
    /// The decoded histogram; absent if percentiles were refused.
    #[serde(skip)]
    pub(super) samples: Option<Histogram<u64>>,
    /// Calls of the open loop of the row, or of the mix it is a part of, that were never sent.
    #[serde(skip)]
    pub(super) never_sent: u64,
}

/// Adherence of an open loop to its rate.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PartOpen {
    pub(super) target_per_second: f64,
    pub(super) achieved_per_second: Option<f64>,
    pub(super) intended: u64,
    pub(super) adherence_percent: f64,
    pub(super) late: u64,
    pub(super) overran: u64,
    pub(super) never_sent: u64,
    pub(super) arrivals: Arrivals,
    pub(super) refused: Option<String>,
}

impl Part {
    /// Reads a file; the error is one line.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Self::of(&path.display().to_string(), read_report(path)?)
    }

    /// A report with all its histograms.
    pub(super) fn of(source: &str, report: Value) -> Result<Self, String> {
        let report = checked(report).map_err(|error| format!("{source}: {error}"))?;
        let mut part: Self =
            serde_json::from_value(report).map_err(|error| format!("{source}: {error}"))?;
        source.clone_into(&mut part.source);
        // Whether percentiles were refused, and how many calls were never sent, in each repeat of the
        // last mix: the rows of its operations follow it, and do not tell.
        let mut of_mix: Vec<(bool, u64)> = Vec::new();
        for row in &mut part.rows {
            let own: Vec<(bool, u64)> = row.repeats.iter().map(PartRepeat::schedule).collect();
            let schedule = if row.workload.of_mix { of_mix.clone() } else { own };
            for (number, repeat) in row.repeats.iter_mut().enumerate() {
                let (is_refused, never_sent) = schedule.get(number).copied().unwrap_or_default();
                let problem = |what: &str| format!("{source}: {}: {what}", row.name);
                if !repeat.is_credible() {
                    return Err(problem("it has a figure below 0 or above 1e18"));
                }
                repeat.samples = repeat.decode(is_refused).map_err(problem)?;
                repeat.never_sent = never_sent;
            }
            if !row.workload.mix.is_empty() {
                of_mix = schedule;
            }
        }
        Ok(part)
    }

    /// The row of the same workload. Ranks may have seeds of their own.
    pub(super) fn row_like(&self, row: &PartRow) -> Option<&PartRow> {
        let without_seed = |row: &PartRow| Workload { seed: 0, ..row.workload };
        self.rows.iter().find(|other| without_seed(other) == without_seed(row))
    }
}

impl PartRepeat {
    /// Returns whether an open loop refused percentiles, and the number of its calls that were never sent.
    fn schedule(&self) -> (bool, u64) {
        self.open.as_ref().map_or((false, 0), |open| (open.refused.is_some(), open.never_sent))
    }

    /// The histogram, if there is one.
    fn decode(&self, is_refused: bool) -> Result<Option<Histogram<u64>>, &'static str> {
        match &self.histogram {
            Some(text) => {
                let histogram = decode_histogram(text).ok_or("its histogram is not valid")?;
                let is_whole = histogram.len() == self.calls;
                is_whole.then_some(Some(histogram)).ok_or("its histogram lacks calls")
            }
            None if is_refused || self.calls == 0 => Ok(None),
            None => Err("it has no histogram: an older spinperf wrote it"),
        }
    }

    fn is_credible(&self) -> bool {
        let open = self.open.as_ref();
        let counts = [self.calls, self.lost]
            .into_iter()
            .chain(open.into_iter().flat_map(|o| [o.intended, o.late, o.overran, o.never_sent]));
        let rates = [self.calls_per_second, self.bytes_per_second, self.start_unix_s];
        let of_open = open.into_iter().flat_map(|o| {
            [Some(o.target_per_second), o.achieved_per_second, Some(o.adherence_percent)]
        });
        let times = [Some(self.elapsed_s), Some(self.carried_in_ns)];
        let mut figures = rates.into_iter().chain(of_open).chain(times).flatten();
        let cores = || self.client_cores.iter().chain(&self.server_cores).chain(&self.server);
        counts.into_iter().all(|count| count <= COUNT_MAX)
            && figures.all(|figure| (0.0..=FIGURE_MAX).contains(&figure))
            && cores().all(|core| core.counts().iter().all(|count| *count <= COUNT_MAX))
    }
}

/// Far more than any run has, and too little for a sum of reports to overflow.
const COUNT_MAX: u64 = 1 << 48;
