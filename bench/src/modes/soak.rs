//! The soak: the same load for hours in windows, watched for drift and leaks. Each window leaves a
//! line of figures, and all memory is allocated at the beginning, because a leak detector must not
//! leak itself. SIGINT and SIGTERM end it after the current window.

use super::Outcome;
use super::rows::rows;
use super::trend::Line;
use crate::cli::Plan;
use crate::env::{Holdings, holdings};
use crate::failure::Failure;
use crate::interrupt;
use crate::latency::LatencySummary;
use crate::load::{CoreUse, Fleet, Interval, Limits, Measured, Measurement, OpenLoop, Samples};
use crate::report::modes::{Soak, SoakWindow, Trend, TrendUnit};
use crate::top::{Target, Watched};
use crate::units::{show_count, show_us};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// Runs the workload of the plan window by window.
pub(super) fn run(fleet: &mut Fleet, plan: &Plan) -> Result<Outcome, Failure> {
    let windows = plan.limits.duration.as_nanos().div_ceil(plan.window.as_nanos().max(1)) as usize;
    let mut watch = Watch::new(windows, &plan.address)?;
    fleet.load(&plan.workloads[0])?;
    for window in 0..windows {
        if window > 0 && interrupt::signal().is_some() {
            eprintln!("spinperf: interrupted after {window} of {windows} windows");
            break;
        }
        let limits = limits_of(plan, window, windows);
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

/// The first window warms up, the last cools down.
fn limits_of(plan: &Plan, window: usize, windows: usize) -> Limits {
    let (first, last) = (window == 0, window + 1 == windows);
    let or_none = |time, wanted| if wanted { time } else { Duration::ZERO };
    let limits = plan.limits;
    Limits {
        ramp: or_none(limits.ramp, first),
        warmup: or_none(limits.warmup, first),
        duration: plan.window,
        cooldown: or_none(limits.cooldown, last),
        ..limits
    }
}

/// Data kept about all windows.
struct Watch {
    begin: Instant,
    windows: Vec<SoakWindow>,
    planned: usize,
    /// Windows whose adherence was too low for percentiles.
    refused: usize,
    samples: Vec<Histogram<u64>>,
    /// The whole and its operations: the sums of their counters, and other data from the last
    /// window.
    sums: Vec<Measured>,
    /// The server's engine, seen through its control socket, or the reason why it cannot be
    /// watched.
    server: Result<Watched, String>,
    /// Buffers that it has in use after each window; NaN if unknown.
    buffers: Vec<f64>,
    said: Instant,
}

impl Watch {
    fn new(planned: usize, address: &str) -> Result<Self, Failure> {
        let histogram = || {
            let mut histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
            // Touches the pages, which the kernel would otherwise allocate at the first write.
            histogram.reset();
            Ok(histogram)
        };
        let samples: Result<_, hdrhistogram::CreationError> =
            (0..planned.min(INTERVALS_MAX)).map(|_| histogram()).collect();
        Ok(Self {
            begin: Instant::now(),
            windows: Vec::with_capacity(planned),
            planned,
            refused: 0,
            samples: samples.map_err(|error| {
                Failure::Measurement(format!("cannot create a histogram: {error}"))
            })?,
            sums: Vec::new(),
            server: Watched::find(Some(&Target::Address(address.to_owned())))
                .map_err(|failure| failure.to_string()),
            buffers: Vec::with_capacity(planned),
            said: Instant::now(),
        })
    }

    /// Adds a window; without the server's resources if it has stopped answering.
    fn add(&mut self, measured: Vec<Measured>, server: Option<Holdings>) {
        if let Some((_, all)) = measured.first() {
            self.refused += usize::from(all.open.is_some_and(|open| open.refused.is_some()));
            let end_s = self.begin.elapsed().as_secs_f64();
            let latency = all.latency;
            // The last known value.
            let before = self.windows.last().map(|window| window.server);
            let server = server.or(before).unwrap_or_default();
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
            };
            self.say(&window);
            let place = self.windows.len() * self.samples.len() / self.planned;
            if let Some(samples) = self.samples.get_mut(place) {
                // Cannot fail: these histograms cover every latency.
                let _ = samples.add(&all.samples.latency);
            }
            self.windows.push(window);
            let buffers = self.server.as_ref().ok().and_then(Watched::buffers_in_use);
            self.buffers.push(buffers.map_or(f64::NAN, |count| count as f64));
        }
        self.sums = match std::mem::take(&mut self.sums) {
            none if none.is_empty() => measured,
            sums => sums.into_iter().zip(measured).map(add_up).collect(),
        };
    }

    /// At most every two seconds.
    fn say(&mut self, window: &SoakWindow) {
        if self.said.elapsed() < SAY_EVERY {
            return;
        }
        self.said = Instant::now();
        eprintln!(
            "spinperf: window {} of {}: {}",
            self.windows.len() + 1,
            self.planned,
            describe(window)
        );
    }

    fn outcome(mut self) -> Result<Outcome, Failure> {
        let trends = trends(&self.windows, &self.buffers);
        let mut reasons: Vec<String> =
            trends.iter().filter(|trend| trend.is_drift).map(Trend::describe).collect();
        let (refused_windows, count) = (self.refused, self.windows.len());
        if refused_windows > 0 {
            reasons.push(format!("{refused_windows} of {count} windows did not keep the rate"));
        }
        let lost = self.sums.first().map_or(0, |(_, all)| all.lost);
        if lost > 0 {
            reasons.push(format!("{lost} calls were never answered"));
        }
        if count < self.planned {
            reasons.push(format!("it ended after {count} of {} windows", self.planned));
        }
        let held = reasons.is_empty();
        let intervals = samples(&self.windows, self.samples, self.planned);
        if let Some((_, all)) = self.sums.first_mut() {
            all.samples.intervals = intervals;
        }
        for (_, one) in &mut self.sums {
            summarise(one, refused_windows > 0)?;
        }
        Ok(Outcome {
            rows: rows(vec![self.sums]),
            soak: Some(Soak {
                windows: self.windows,
                refused_windows,
                lost,
                trends,
                held,
                buffers_not_watched: self.server.err(),
            }),
            verdict: match held {
                true => Ok(()),
                false => Err(format!("the soak did not hold: {}", reasons.join("; "))),
            },
            ..Outcome::default()
        })
    }
}

/// The percentiles of all windows together, or none if a window was refused its own.
fn summarise(one: &mut Measurement, is_refused: bool) -> Result<(), Failure> {
    if is_refused {
        (one.samples, one.latency) = (Samples::none()?, LatencySummary::refused(one.calls));
    } else {
        let never_sent = one.open.map_or(0, |open| open.never_sent);
        one.latency = LatencySummary::of(&one.samples.latency, 1.0, one.lost + never_sent);
    }
    Ok(())
}

/// The sum of counters and samples; percentiles are computed at the end, from all samples. The
/// service times of a window are not kept.
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
    let open = sum.open.zip(next.open).map(|loops| add_up_loops(loops, mean));
    // Cannot fail: the histogram grows as needed.
    let _ = sum.samples.latency.add(&next.samples.latency);
    sum.samples.intervals.clear();
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

/// The sum of the counters, with the resulting adherence; the achieved rate is the mean over time.
fn add_up_loops(
    (sum, next): (OpenLoop, OpenLoop),
    mean: impl Fn(fn(&Measurement) -> f64) -> f64,
) -> OpenLoop {
    let in_time = |one: &OpenLoop| one.adherence_percent * one.intended as f64;
    let intended = sum.intended + next.intended;
    let adherence_percent = match intended {
        0 => 100.0,
        _ => (in_time(&sum) + in_time(&next)) / intended as f64,
    };
    OpenLoop {
        achieved_per_second: mean(|one| one.open.map_or(f64::NAN, |o| o.achieved_per_second)),
        intended,
        adherence_percent,
        late: sum.late + next.late,
        overran: sum.overran + next.overran,
        never_sent: sum.never_sent + next.never_sent,
        refused: sum.refused.or(next.refused),
        ..next
    }
}

/// The histograms, allocated for all planned windows, with the times of the actual ones.
fn samples(windows: &[SoakWindow], parts: Vec<Histogram<u64>>, planned: usize) -> Vec<Interval> {
    let mut intervals = Vec::new();
    let count = parts.len();
    for (index, histogram) in parts.into_iter().enumerate() {
        let own = |place: usize| place * count / planned.max(1) == index;
        let mut own = windows.iter().enumerate().filter(|(place, _)| own(*place));
        let Some((_, first)) = own.next() else { continue };
        let last = own.next_back().map_or(first, |(_, last)| last);
        let elapsed_s = last.start_s + last.elapsed_s - first.start_s;
        intervals.push(Interval { start_s: first.start_s, elapsed_s, histogram });
    }
    intervals
}

/// A figure of a window.
type Figure = fn(&SoakWindow) -> f64;

/// Bounds beyond which a change of a figure is a drift.
struct Bounds {
    what: &'static str,
    unit: TrendUnit,
    /// A fall is bad, rather than growth.
    falls: bool,
    /// Fraction of the mean, and an absolute minimum.
    tolerance: (f64, f64),
}

fn figures() -> [(Bounds, Figure); 7] {
    let rate = Bounds { falls: true, ..grows("calls/s", (0.05, 1.0)) };
    let (memory, descriptors) = ((0.02, LEAK_BYTES), (0.0, LEAK_COUNT));
    [
        (rate, |w| w.calls_per_second),
        (grows("p50", (0.1, 100.0)).of(TrendUnit::Ns), |w| w.p50_ns),
        (grows("p99", (0.2, 1000.0)).of(TrendUnit::Ns), |w| w.p99_ns),
        (grows("client memory", memory).of(TrendUnit::Bytes), |w| w.client.resident_bytes as f64),
        (grows("server memory", memory).of(TrendUnit::Bytes), |w| w.server.resident_bytes as f64),
        (grows("client descriptors", descriptors), |w| w.client.descriptors as f64),
        (grows("server descriptors", descriptors), |w| w.server.descriptors as f64),
    ]
}

fn grows(what: &'static str, tolerance: (f64, f64)) -> Bounds {
    Bounds { what, unit: TrendUnit::Number, falls: false, tolerance }
}

impl Bounds {
    fn of(self, unit: TrendUnit) -> Self {
        Self { unit, ..self }
    }
}

/// Trend of each figure. Skips the first window: initial allocations are not a drift.
fn trends(windows: &[SoakWindow], buffers: &[f64]) -> Vec<Trend> {
    if windows.len() <= TREND_WINDOWS_MIN {
        return Vec::new();
    }
    let at = |window: &SoakWindow| window.start_s;
    let of_figure = |(bounds, figure): (Bounds, Figure)| {
        trend(&bounds, windows.iter().skip(1).map(|window| (at(window), figure(window))))
    };
    let of_buffers = windows.iter().map(at).zip(buffers.iter().copied()).skip(1);
    let of_buffers = trend(&grows("server buffers in use", (0.0, LEAK_COUNT)), of_buffers);
    figures().into_iter().filter_map(of_figure).chain(of_buffers).collect()
}

fn trend(bounds: &Bounds, points: impl Iterator<Item = (f64, f64)>) -> Option<Trend> {
    let line = Line::through(points)?;
    let (part, least) = bounds.tolerance;
    let worse = if bounds.falls { -line.change } else { line.change };
    let is_clear = worse > line.change_error * ERRORS_CLEAR;
    let is_drift = is_clear && worse > (line.mean.abs() * part).max(least);
    let Line { mean, change, change_error } = line;
    Some(Trend { what: bounds.what, unit: bounds.unit, mean, change, change_error, is_drift })
}

/// A line about a window.
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

const INTERVALS_MAX: usize = 60;
const LATENCY_NS_MAX: u64 = 1 << 40;
const SAY_EVERY: Duration = Duration::from_secs(2);
/// Minimum number of windows for a line.
const TREND_WINDOWS_MIN: usize = 4;
/// Number of standard errors that rules out chance.
const ERRORS_CLEAR: f64 = 4.0;
const LEAK_BYTES: f64 = 1_048_576.0;
/// Bound for descriptors and buffers.
const LEAK_COUNT: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(of: impl Fn(usize) -> SoakWindow) -> Vec<SoakWindow> {
        (0..20).map(of).collect()
    }

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
        }
    }

    fn drifting(of: impl Fn(usize) -> SoakWindow) -> Vec<&'static str> {
        let trends = trends(&windows(of), &[]);
        trends.into_iter().filter(|trend| trend.is_drift).map(|trend| trend.what).collect()
    }

    #[test]
    fn noise_is_no_drift() {
        assert_eq!(drifting(window), [""; 0]);
    }

    #[test]
    fn what_grows_window_by_window_is_a_drift_and_so_is_a_rate_that_falls() {
        let slower = |index| SoakWindow { p50_ns: 300.0 + 20.0 * index as f64, ..window(index) };
        assert_eq!(drifting(slower), ["p50"]);
        let fewer =
            |index| SoakWindow { calls_per_second: 1000.0 - 10.0 * index as f64, ..window(index) };
        assert_eq!(drifting(fewer), ["calls/s"]);
        let leak = |index| {
            let (resident_bytes, descriptors) = ((50 << 20) + (index as u64) * (1 << 20), 20);
            SoakWindow { server: Holdings { resident_bytes, descriptors }, ..window(index) }
        };
        assert_eq!(drifting(leak), ["server memory"]);
        let open = |index| {
            let held = Holdings { resident_bytes: 50 << 20, descriptors: 20 + index as u64 };
            SoakWindow { client: held, ..window(index) }
        };
        assert_eq!(drifting(open), ["client descriptors"]);
    }

    #[test]
    fn buffers_that_do_not_come_back_are_a_leak_where_they_are_known() {
        let of = |buffers: &[f64]| {
            let trends = trends(&windows(window), buffers);
            trends.iter().find(|trend| trend.what.contains("buffers")).map(|trend| trend.is_drift)
        };
        let grown: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!(of(&grown), Some(true));
        assert_eq!(of(&[7.0; 20]), Some(false));
        assert_eq!(of(&[f64::NAN; 20]), None);
    }

    /// A window of an open loop with 1000 calls, some of which were never sent.
    fn open_window(never_sent: u64, elapsed_s: f64) -> Measured {
        use crate::load::{Arrivals, CoreUse, CutShort, Operation, Workload};
        let refused = (never_sent > 0).then_some("behind");
        let sent = 1000 - never_sent;
        let open = OpenLoop {
            target_per_second: 1000.0 / elapsed_s,
            achieved_per_second: sent as f64 / elapsed_s,
            intended: 1000,
            adherence_percent: sent as f64 / 10.0,
            late: 5,
            overran: 2,
            never_sent,
            arrivals: Arrivals::Fixed,
            refused,
        };
        let latency = match refused {
            Some(_) => LatencySummary::refused(sent),
            None => LatencySummary::from_figures(sent, [300.0; 8]),
        };
        let mut samples = Samples::none().unwrap();
        if refused.is_none() {
            samples.latency.record_n(300, sent).unwrap();
        }
        let measurement = Measurement {
            calls: sent,
            lost: 0,
            start_unix_s: 0.0,
            carried_in_ns: 0.0,
            cut_short: CutShort::default(),
            elapsed_s,
            calls_per_second: open.achieved_per_second,
            bytes_per_second: 0.0,
            latency,
            service: None,
            open: Some(open),
            client: CoreUse::default(),
            server: None,
            client_cores: Vec::new(),
            server_cores: Vec::new(),
            samples,
        };
        (Workload::ping_pong(Operation::Null, 0), measurement)
    }

    fn soaked(windows: [Measured; 3]) -> Outcome {
        soaked_of(3, windows)
    }

    fn soaked_of(planned: usize, windows: [Measured; 3]) -> Outcome {
        let mut watch = Watch::new(planned, "shm:absent").unwrap();
        let holdings = window(0).server;
        windows.into_iter().for_each(|one| watch.add(vec![one], Some(holdings)));
        watch.outcome().unwrap()
    }

    #[test]
    fn an_open_soak_says_what_all_of_its_windows_did() {
        let all = [open_window(100, 1.0), open_window(0, 1.0), open_window(0, 2.0)];
        let outcome = soaked(all);
        let open = outcome.rows[0].repeats[0].measurement.open.unwrap();
        assert_eq!((open.intended, open.late, open.overran, open.never_sent), (3000, 15, 6, 100));
        assert!((open.adherence_percent - 290.0 / 3.0).abs() < 1e-9, "{open:?}");
        assert_eq!((open.achieved_per_second, open.refused), (725.0, Some("behind")));
    }

    #[test]
    fn a_soak_whose_server_cannot_be_looked_at_says_so() {
        let soak = soaked([open_window(100, 1.0), open_window(0, 1.0), open_window(0, 2.0)]).soak;
        let why = soak.unwrap().buffers_not_watched.unwrap();
        assert!(why.contains("shm:absent"), "{why}");
    }

    #[test]
    fn windows_that_fell_behind_their_rate_are_a_reason_not_to_hold() {
        let outcome = soaked([open_window(0, 1.0), open_window(100, 1.0), open_window(0, 1.0)]);
        let soak = outcome.soak.unwrap();
        assert_eq!((soak.held, soak.refused_windows), (false, 1));
        assert!(outcome.verdict.unwrap_err().contains("1 of 3 windows did not keep the rate"));
        let kept = soaked([open_window(0, 1.0), open_window(0, 1.0), open_window(0, 1.0)]);
        assert!(kept.soak.unwrap().held && kept.verdict.is_ok());
    }

    #[test]
    fn a_soak_that_ended_early_did_not_hold() {
        let windows = [open_window(0, 1.0), open_window(0, 1.0), open_window(0, 1.0)];
        let early = soaked_of(60, windows);
        assert!(!early.soak.unwrap().held);
        assert!(early.verdict.unwrap_err().contains("it ended after 3 of 60 windows"));
    }

    #[test]
    fn what_the_first_window_brings_is_no_leak() {
        let first = |index| {
            let resident_bytes = if index == 0 { 10 << 20 } else { 50 << 20 };
            SoakWindow { client: Holdings { resident_bytes, descriptors: 20 }, ..window(index) }
        };
        assert_eq!(drifting(first), [""; 0]);
    }
}
