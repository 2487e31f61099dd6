//! Adds up one repeat of a workload over all reports.

use crate::failure::Failure;
use crate::latency::LatencySummary;
use crate::load::{CoreUse, CutShort, Interval, Measurement, OpenLoop, Samples};
use crate::report::Repeat;

pub(super) struct Sum {
    pub(super) repeats: Vec<Repeat>,
    /// Smallest part of a measured time that is common to all reports.
    pub(super) common_percent: f64,
}

pub(super) struct Summand<'a> {
    pub(super) source: &'a str,
    pub(super) repeat: &'a Measurement,
    /// Calls that were never sent, which rank as slower than all others.
    pub(super) never_sent: u64,
}

impl Summand<'_> {
    fn span(&self) -> [f64; 2] {
        let start = self.repeat.start_unix_s;
        [start, start + self.repeat.elapsed_s]
    }
}

impl Sum {
    /// Adds a repeat.
    ///
    /// # Errors
    /// The reports are of different times.
    pub(super) fn add(&mut self, summands: &[Summand<'_>]) -> Result<(), Failure> {
        let spans: Vec<[f64; 2]> = summands.iter().map(Summand::span).collect();
        let longest = summands.iter().map(|one| one.repeat.elapsed_s).fold(0.0, f64::max);
        let common_s = common_s(summands, &spans)?;
        let start_unix_s = spans.iter().map(|span| span[0]).fold(f64::INFINITY, f64::min);
        let elapsed_s = spans.iter().map(|span| span[1]).fold(0.0, f64::max) - start_unix_s;
        let percent = common_s * 100.0 / longest.max(f64::MIN_POSITIVE);
        self.common_percent = self.common_percent.min(percent);
        let measurement = measurement(summands, start_unix_s, elapsed_s)?;
        self.repeats.push(Repeat::new(measurement, Vec::new()));
        Ok(())
    }
}

fn common_s(summands: &[Summand<'_>], spans: &[[f64; 2]]) -> Result<f64, Failure> {
    let named = || summands.iter().zip(spans).map(|(one, span)| (one.source, span));
    let last = named().max_by(|one, other| one.1[0].total_cmp(&other.1[0]));
    let first = named().min_by(|one, other| one.1[1].total_cmp(&other.1[1]));
    let (Some((last, began)), Some((first, ended))) = (last, first) else { return Ok(0.0) };
    let common_s = ended[1] - began[0];
    if common_s <= 0.0 {
        let gap_s = -common_s;
        return Err(Failure::Measurement(format!(
            "the reports are not of the same time: {last} began {gap_s:.3} s after {first} ended; \
             start all clients together (--ranks)"
        )));
    }
    Ok(common_s)
}

fn measurement(
    summands: &[Summand<'_>],
    start_unix_s: f64,
    elapsed_s: f64,
) -> Result<Measurement, Failure> {
    let repeats = || summands.iter().map(|one| one.repeat);
    let (calls, lost) = (repeats().map(|r| r.calls).sum(), repeats().map(|r| r.lost).sum());
    let never_sent: u64 = summands.iter().map(|one| one.never_sent).sum();
    let mut latency = crate::load::nanoseconds()?;
    for repeat in repeats() {
        let added = latency.add(&repeat.samples.latency);
        added.map_err(|error| Failure::Measurement(format!("adding histograms: {error}")))?;
    }
    let is_refused = repeats().any(|one| one.samples.latency.is_empty() && one.calls > 0);
    if is_refused {
        latency.reset();
    }
    // The server counts the calls of all clients; the report that saw most of them has its figures.
    let seen = repeats().max_by_key(|one| one.server.map_or(0, |server| server.calls));
    let client_cores: Vec<CoreUse> = repeats().flat_map(|one| one.client_cores.clone()).collect();
    let interval = Interval { start_s: 0.0, elapsed_s, histogram: latency.clone() };
    Ok(Measurement {
        calls,
        lost,
        elapsed_s,
        calls_per_second: total(repeats().map(|one| one.calls_per_second)),
        bytes_per_second: total(repeats().map(|one| one.bytes_per_second)),
        start_unix_s,
        carried_in_ns: repeats().map(|one| one.carried_in_ns).fold(0.0, f64::max),
        latency: match is_refused {
            true => LatencySummary { missing: lost + never_sent, ..LatencySummary::refused(calls) },
            false => LatencySummary::of(&latency, 1.0, lost + never_sent),
        },
        service: None,
        open: open_loop(&repeats().filter_map(|one| one.open).collect::<Vec<_>>()),
        client: CoreUse::sum(&client_cores),
        client_cores,
        server: seen.and_then(|one| one.server),
        server_cores: seen.map(|one| one.server_cores.clone()).unwrap_or_default(),
        samples: Samples { latency, intervals: vec![interval] },
        cut_short: CutShort::default(),
    })
}

/// The sum of the known values; NaN if there are none.
fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|value| !value.is_nan()).reduce(|sum, value| sum + value).unwrap_or(f64::NAN)
}

fn open_loop(loops: &[OpenLoop]) -> Option<OpenLoop> {
    let target = loops.iter().map(|one| one.target_per_second).sum();
    let achieved = total(loops.iter().map(|one| one.achieved_per_second));
    OpenLoop::sum(loops, [target, achieved])
}
