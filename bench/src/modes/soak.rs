//! The soak: the same load for hours in windows, watched for drift and leaks. Each window leaves a
//! line of figures, and all memory is allocated at the beginning, because a leak detector must not
//! leak itself. SIGINT and SIGTERM end it after the current window.

use super::{Outcome, rows};
use crate::cli::Plan;
use crate::env::{Holdings, holdings};
use crate::failure::Failure;
use crate::interrupt;
use crate::latency::LatencySummary;
use crate::load::{CoreUse, Fleet, Limits, Measured, Measurement, OpenLoop, nanoseconds};
use crate::progress::Pace;
use crate::report::{Soak, SoakWindow, Trend, TrendUnit};
use crate::top::{Target, Watched};
use crate::units::{show_count, show_us};
use spinrpc_tuning::printable::to_stderr;
use std::time::{Duration, Instant};

pub(super) fn run(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    let windows = plan.limits.duration.as_nanos().div_ceil(plan.window.as_nanos().max(1)) as usize;
    let mut watch = Watch::new(windows, &plan.address);
    fleet.load(&plan.workloads[0])?;
    for (window, limits) in (0..windows).map(|window| (window, limits_of(plan, window))) {
        if window > 0 && interrupt::signal().is_some() {
            to_stderr(format_args!("spinperf: interrupted after {window} of {windows} windows"));
            break;
        }
        let measured = fleet.measure(&limits)?;
        let is_stuck = measured.iter().any(|(_, one)| one.cut_short.is_stuck);
        let server = if is_stuck { None } else { Some(fleet.server_holdings()?) };
        watch.add(measured, server);
        if is_stuck {
            break;
        }
    }
    fleet.unload()?;
    watch.outcome()
}

fn limits_of(plan: &Plan, window: usize) -> Limits {
    let warmup = if window == 0 { plan.limits.warmup } else { Duration::ZERO };
    Limits { warmup, duration: plan.window, window: window as u64, ..plan.limits }
}

struct Watch {
    begin: Instant,
    windows: Vec<SoakWindow>,
    planned: usize,
    refused: usize,
    /// Calls that rank as slower than all others: those of refused windows, and those never sent.
    unknown: Vec<u64>,
    /// The sums of counters, and other data from the last window.
    sums: Vec<Measured>,
    /// Seen through the control socket, or the reason why it cannot be watched.
    server: Result<Watched, String>,
    pace: Pace,
}

impl Watch {
    fn new(planned: usize, address: &str) -> Self {
        Self {
            begin: Instant::now(),
            windows: Vec::with_capacity(planned),
            planned,
            refused: 0,
            unknown: Vec::new(),
            sums: Vec::new(),
            server: Watched::find(Some(&Target::Address(address.to_owned())))
                .map_err(|failure| failure.to_string()),
            pace: Pace::start(),
        }
    }

    /// Adds a window; without the server's resources if it has stopped answering.
    fn add(&mut self, measured: Vec<Measured>, server: Option<Holdings>) {
        if let Some((_, all)) = measured.first() {
            let is_refused = all.open.is_some_and(|open| open.refused.is_some());
            self.refused += usize::from(is_refused);
            // The operation of a call that was never sent is unknown: it counts for each.
            let never_sent = all.open.map_or(0, |open| open.never_sent);
            self.unknown.resize(measured.len(), 0);
            for (unknown, (_, one)) in self.unknown.iter_mut().zip(&measured) {
                *unknown += never_sent + if is_refused { one.calls } else { 0 };
            }
            let end_s = self.begin.elapsed().as_secs_f64();
            let latency = all.latency;
            // The last known value.
            let before = self.windows.last().map(|window| window.server);
            let server = server.or(before).unwrap_or_default();
            let buffers = self.server.as_ref().ok().and_then(Watched::buffers_in_use);
            let window = SoakWindow {
                start_s: end_s - all.elapsed_s,
                elapsed_s: all.elapsed_s,
                calls: all.calls,
                calls_per_second: all.calls_per_second,
                p50_ns: latency.p50_ns,
                p99_ns: latency.p99_ns,
                max_ns: latency.max_ns,
                client: holdings(std::process::id()),
                server,
                server_buffers: buffers.map_or(f64::NAN, |count| count as f64),
            };
            if self.pace.is_due() {
                let (number, of) = (self.windows.len() + 1, self.planned);
                to_stderr(format_args!("spinperf: window {number} of {of}: {}", describe(&window)));
            }
            self.windows.push(window);
        }
        self.sums = match std::mem::take(&mut self.sums) {
            none if none.is_empty() => measured,
            sums => sums.into_iter().zip(measured).map(add_up).collect(),
        };
    }

    fn outcome(mut self) -> Result<Outcome, Failure> {
        let trends = trends(&self.windows);
        let mut reasons: Vec<String> =
            trends.iter().filter(|trend| trend.is_drift).map(Trend::describe).collect();
        let (refused_windows, count) = (self.refused, self.windows.len());
        if refused_windows > 0 {
            reasons.push(format!(
                "{refused_windows} of {count} windows did not keep the rate (their calls rank as slower than all \
                 others)"
            ));
        }
        let lost = self.sums.first().map_or(0, |(_, all)| all.lost);
        if lost > 0 {
            reasons.push(format!("{lost} calls were never answered"));
        }
        if count < self.planned {
            reasons.push(format!("it ended after {count} of {} windows", self.planned));
        }
        let held = reasons.is_empty();
        for ((_, one), unknown) in self.sums.iter_mut().zip(self.unknown) {
            one.latency = LatencySummary::of(&one.samples, 1.0, one.lost + unknown);
            one.latency.samples = one.calls;
            if refused_windows > 0 {
                one.samples = nanoseconds()?;
            }
        }
        Ok(Outcome {
            rows: rows(vec![(self.sums, None)]),
            soak: Some(Soak {
                windows: self.windows,
                refused_windows,
                lost,
                trends,
                held,
                buffers_not_watched: self.server.err(),
            }),
            verdict: (!held).then(|| format!("the soak did not hold: {}", reasons.join("; "))),
            ..Outcome::default()
        })
    }
}

/// Percentiles are computed at the end, from all samples. Service times of a window are not kept.
fn add_up(((workload, mut sum), (_, next)): (Measured, Measured)) -> Measured {
    let elapsed_s = sum.elapsed_s + next.elapsed_s;
    let mean = |of: fn(&Measurement) -> f64| {
        // A window without a figure did nothing.
        let done = |one: &Measurement| Some(of(one) * one.elapsed_s).filter(|done| !done.is_nan());
        let done = [done(&sum), done(&next)].into_iter().flatten().reduce(|one, two| one + two);
        done.map_or(f64::NAN, |done| done / elapsed_s.max(f64::MIN_POSITIVE))
    };
    let (calls_per_second, bytes_per_second) =
        (mean(|one| one.calls_per_second), mean(|one| one.bytes_per_second));
    let open = sum.open.zip(next.open).and_then(|(one, two)| {
        let achieved = mean(|one| one.open.map_or(f64::NAN, |open| open.achieved_per_second));
        OpenLoop::sum(&[one, two], [two.target_per_second, achieved])
    });
    // Cannot fail: the histogram grows as needed.
    let _ = sum.samples.add(&next.samples);
    let cores = |one: &[CoreUse], two: &[CoreUse]| {
        let both = one.iter().zip(two);
        both.map(|(one, two)| one.and_then(two, [sum.elapsed_s, next.elapsed_s])).collect()
    };
    let measurement = Measurement {
        calls: sum.calls + next.calls,
        lost: sum.lost + next.lost,
        elapsed_s,
        calls_per_second,
        bytes_per_second,
        start_unix_s: sum.start_unix_s,
        carried_in_ns: sum.carried_in_ns.max(next.carried_in_ns),
        client: sum.client.and_then(&next.client, [sum.elapsed_s, next.elapsed_s]),
        server: sum
            .server
            .zip(next.server)
            .map(|(one, two)| one.and_then(&two, [sum.elapsed_s, next.elapsed_s])),
        client_cores: cores(&sum.client_cores, &next.client_cores),
        server_cores: cores(&sum.server_cores, &next.server_cores),
        service: None,
        open,
        samples: sum.samples,
        ..next
    };
    (workload, measurement)
}

/// The last two items tell a drift: a fraction of the mean, and an absolute minimum.
type Figure = (&'static str, TrendUnit, fn(&SoakWindow) -> f64, f64, f64);

const FIGURES: [Figure; 8] = [
    (RATE, TrendUnit::Number, |w| w.calls_per_second, 0.05, 1.0),
    ("p50", TrendUnit::Ns, |w| w.p50_ns, 0.1, 100.0),
    ("p99", TrendUnit::Ns, |w| w.p99_ns, 0.2, 1000.0),
    ("client memory", TrendUnit::Bytes, |w| w.client.resident_bytes as f64, 0.02, LEAK_BYTES),
    ("server memory", TrendUnit::Bytes, |w| w.server.resident_bytes as f64, 0.02, LEAK_BYTES),
    ("client descriptors", TrendUnit::Number, |w| w.client.descriptors as f64, 0.0, LEAK_COUNT),
    ("server descriptors", TrendUnit::Number, |w| w.server.descriptors as f64, 0.0, LEAK_COUNT),
    ("server buffers in use", TrendUnit::Number, |w| w.server_buffers, 0.0, LEAK_COUNT),
];
/// The only figure of which a fall is bad.
const RATE: &str = "calls/s";

/// Trend of each figure. Skips the first window: initial allocations are not a drift.
fn trends(windows: &[SoakWindow]) -> Vec<Trend> {
    if windows.len() <= TREND_WINDOWS_MIN {
        return Vec::new();
    }
    let trend = |(what, unit, of, part, least): Figure| {
        let points = windows.iter().skip(1).map(|window| (window.start_s, of(window)));
        let Line { mean, change, change_error } = Line::through(points)?;
        let worse = if what == RATE { -change } else { change };
        let is_clear = worse > change_error * ERRORS_CLEAR;
        let is_drift = is_clear && worse > (mean.abs() * part).max(least);
        Some(Trend { what, unit, mean, change, change_error, is_drift })
    };
    FIGURES.into_iter().filter_map(trend).collect()
}

pub(super) fn describe(window: &SoakWindow) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "{:.1} s, {} calls/s, p50 {} µs, p99 {} µs, max {} µs; client {:.1} MiB and {} descriptors, \
         server {:.1} MiB and {}",
        window.start_s,
        show_count(window.calls_per_second),
        show_us(window.p50_ns),
        show_us(window.p99_ns),
        show_us(window.max_ns),
        mib(window.client.resident_bytes),
        window.client.descriptors,
        mib(window.server.resident_bytes),
        window.server.descriptors,
    )
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    mean: f64,
    change: f64,
    change_error: f64,
}

impl Line {
    /// Ignores NaN; `None` with fewer than three points, or with all at one time.
    fn through(points: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let points: Vec<(f64, f64)> = points.filter(|(_, value)| !value.is_nan()).collect();
        let (first, last) = (points.first()?.0, points.last()?.0);
        let count = points.len() as f64;
        let mean_of = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (mean_at, mean) = (mean_of(|point| point.0), mean_of(|point| point.1));
        let spread: f64 = points.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
        if points.len() < 3 || spread <= 0.0 {
            return None;
        }
        let both: f64 = points.iter().map(|(at, value)| (at - mean_at) * (value - mean)).sum();
        let slope = both / spread;
        let off = |(at, value): &(f64, f64)| (value - mean - slope * (at - mean_at)).powi(2);
        let scatter = points.iter().map(off).sum::<f64>() / (count - 2.0);
        let span = last - first;
        let change_error = (scatter / spread).sqrt() * span;
        Some(Self { mean, change: slope * span, change_error })
    }
}

const TREND_WINDOWS_MIN: usize = 4;
const ERRORS_CLEAR: f64 = 4.0;
const LEAK_BYTES: f64 = 1_048_576.0;
const LEAK_COUNT: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Operation, Workload};
    use crate::report::tests::{open_loop, repeat};

    fn window(index: usize) -> SoakWindow {
        let noise = (index * 7 % 5) as f64;
        let holdings = Holdings { resident_bytes: 50 << 20, descriptors: 20 };
        SoakWindow {
            start_s: index as f64 * 60.0,
            elapsed_s: 60.0,
            calls: 1000,
            calls_per_second: 1000.0 + noise,
            p50_ns: 300.0 + noise,
            p99_ns: 900.0 + noise * 10.0,
            max_ns: 1e6,
            client: holdings,
            server: holdings,
            server_buffers: f64::NAN,
        }
    }

    /// The trends of windows with noise, each of which is changed by its index.
    fn trends_of(change: fn(&mut SoakWindow, u64)) -> Vec<Trend> {
        let windows = (0..20).map(|index| {
            let mut window = window(index);
            change(&mut window, index as u64);
            window
        });
        trends(&windows.collect::<Vec<_>>())
    }

    #[test]
    fn what_grows_window_by_window_is_a_drift_and_so_is_a_rate_that_falls() {
        type Change = fn(&mut SoakWindow, u64);
        let drifts: [(Change, &[&str]); 8] = [
            (|_, _| {}, &[]),
            (|one, index| one.p50_ns = 300.0 + 20.0 * index as f64, &["p50"]),
            (|one, index| one.calls_per_second = 1000.0 - 10.0 * index as f64, &["calls/s"]),
            (|one, index| one.server.resident_bytes += index << 20, &["server memory"]),
            (|one, index| one.client.descriptors += index, &["client descriptors"]),
            (|one, index| one.server_buffers = index as f64, &["server buffers in use"]),
            (|one, _| one.server_buffers = 7.0, &[]),
            // The first window brings no leak.
            (|one, index| one.client.resident_bytes >>= u64::from(index == 0), &[]),
        ];
        for (at, (change, expected)) in drifts.into_iter().enumerate() {
            let found = trends_of(change).into_iter().filter(|trend| trend.is_drift);
            assert_eq!(found.map(|trend| trend.what).collect::<Vec<_>>(), expected, "{at}");
        }
        let unknown = trends_of(|one, _| one.server_buffers = f64::NAN);
        assert!(!unknown.iter().any(|trend| trend.what.contains("buffers")));
    }

    /// A window of an open loop with 1000 calls, some of which were never sent.
    fn open_window(never_sent: u64, elapsed_s: f64) -> Measured {
        let sent = 1000 - never_sent;
        let open = OpenLoop {
            target_per_second: 1000.0 / elapsed_s,
            achieved_per_second: sent as f64 / elapsed_s,
            late: 5,
            overran: 2,
            ..open_loop(sent)
        };
        let mut one = repeat(sent, 300.0, &[]).measurement;
        match open.refused {
            Some(_) => one.latency = LatencySummary::refused(sent),
            None => one.samples.record_n(300, sent).unwrap(),
        }
        let calls_per_second = open.achieved_per_second;
        let measurement = Measurement { elapsed_s, calls_per_second, open: Some(open), ..one };
        (Workload::ping_pong(Operation::Null, 0), measurement)
    }

    /// A soak of which these windows were measured.
    fn soaked(planned: usize, windows: impl IntoIterator<Item = Measured>) -> (Outcome, Soak) {
        let mut watch = Watch::new(planned, "shm:absent");
        let holdings = window(0).server;
        windows.into_iter().for_each(|one| watch.add(vec![one], Some(holdings)));
        let mut outcome = watch.outcome().unwrap();
        let soak = outcome.soak.take().unwrap();
        (outcome, soak)
    }

    #[test]
    fn an_open_soak_says_what_all_of_its_windows_did() {
        let all = [open_window(100, 1.0), open_window(0, 1.0), open_window(0, 2.0)];
        let (outcome, soak) = soaked(3, all);
        let open = outcome.rows[0].repeats[0].measurement.open.unwrap();
        assert_eq!((open.intended, open.late, open.overran, open.never_sent), (3000, 15, 6, 100));
        assert!((open.adherence_percent - 290.0 / 3.0).abs() < 1e-9, "{open:?}");
        assert_eq!((open.achieved_per_second, open.refused), (725.0, Some("behind")));
        assert!(soak.buffers_not_watched.unwrap().contains("shm:absent"));
    }

    #[test]
    fn windows_that_fell_behind_or_are_missing_are_a_reason_not_to_hold() {
        let window = |never_sent| open_window(never_sent, 1.0);
        for (planned, never_sent, told) in [
            (3, [0, 100, 0], Some("1 of 3 windows did not keep the rate")),
            (3, [0, 0, 0], None),
            (60, [0, 0, 0], Some("it ended after 3 of 60 windows")),
        ] {
            let (outcome, soak) = soaked(planned, never_sent.map(window));
            assert_eq!(soak.held, told.is_none(), "{told:?}");
            let verdict = outcome.verdict.unwrap_or_default();
            assert!(verdict.contains(told.unwrap_or_default()), "{verdict}");
            assert_eq!(soak.refused_windows, usize::from(never_sent[1] > 0));
        }
    }

    /// Expect the calls of the bad window, and those that were never sent, to rank as the slowest ones.
    #[test]
    fn one_window_that_fell_behind_leaves_the_percentiles_of_the_others() {
        let windows = (0..20).map(|index| open_window(if index == 7 { 100 } else { 0 }, 1.0));
        let (outcome, soak) = soaked(20, windows);
        let latency = outcome.rows[0].repeats[0].measurement.latency;
        assert_eq!((latency.p50_ns, latency.p90_ns), (300.0, 300.0));
        let is_unknown = latency.p99_ns.is_nan() && latency.max_ns.is_nan();
        assert!(is_unknown, "5 % of the calls: {latency:?}");
        assert_eq!((soak.refused_windows, outcome.verdict.is_some()), (1, true));
    }

    #[test]
    fn a_line_is_found_exactly_and_noise_has_a_change_within_its_error() {
        let line =
            |of: &dyn Fn(f64) -> f64| Line::through((0..10).map(f64::from).map(|x| (x, of(x))));
        let exact = line(&|x| 5.0 + 2.0 * x).unwrap();
        assert!((exact.change - 18.0).abs() < 1e-9 && exact.change_error < 1e-6, "{exact:?}");
        assert!((exact.mean - 14.0).abs() < 1e-9);
        let values = [3.0, 5.0, 4.0, 6.0, 4.0, 5.0, 3.0, 6.0, 4.0, 5.0];
        let noise = line(&|x| values[x as usize]).unwrap();
        assert!(noise.change.abs() < 2.0 * noise.change_error, "{noise:?}");
        assert_eq!(line(&|_| f64::NAN), None);
        assert_eq!(Line::through([(0.0, 1.0), (1.0, 2.0)].into_iter()), None);
        assert_eq!(Line::through([(1.0, 1.0); 4].into_iter()), None);
    }
}
