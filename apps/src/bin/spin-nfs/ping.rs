//! How long NULL takes, there and back.

use crate::cli::PingOptions;
use crate::{print, show};
use hdrhistogram::Histogram;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use spinrpc::fabric::Address;
use spinrpc_apps::nfs::client::{Error, Nfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Shortest interval at which every reply has a line: faster than that nobody reads.
const LINES_INTERVAL: Duration = Duration::from_millis(200);
/// Longest round trip that is told apart, in nanoseconds.
const LONGEST_NS: u64 = 600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

struct Run<'a> {
    nfs: &'a Nfs,
    server: String,
    options: &'a PingOptions,
    began: Instant,
    is_interrupted: Arc<AtomicBool>,
    calls: u64,
    round_trips_ns: Histogram<u64>,
}

/// Pings until it is enough, then says how it went, on Ctrl-C too.
pub(crate) fn run(nfs: &Nfs, server: &Address, options: &PingOptions) -> Result<(), Error> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&is_interrupted));
        registered.map_err(|error| Error::Local(format!("signal handler: {error}")))?;
    }
    let histogram = Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS);
    let mut run = Run {
        nfs,
        server: server.to_string(),
        options,
        began: Instant::now(),
        is_interrupted,
        calls: 0,
        round_trips_ns: histogram.map_err(|error| Error::Local(error.to_string()))?,
    };
    let ended = run.ping();
    run.summary()?;
    ended
}

impl Run<'_> {
    /// Ends with the error of a call that had no reply, if there was none at all or the connection
    /// is gone.
    fn ping(&mut self) -> Result<(), Error> {
        let mut last_error = None;
        while !self.is_over() && self.options.count.is_none_or(|count| self.calls < count) {
            let sent = Instant::now();
            match self.nfs.null(|| self.is_over()) {
                Ok(Some(time)) => self.answered(time)?,
                Ok(None) => break,
                Err(error) if self.nfs.caller().client().is_up() => {
                    self.calls += 1;
                    last_error = Some(error);
                }
                Err(error) => return Err(error),
            }
            self.rest(sent);
        }
        match last_error {
            Some(error) if self.round_trips_ns.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn answered(&mut self, time: Duration) -> Result<(), Error> {
        self.calls += 1;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trips_ns.saturating_record(ns);
        let PingOptions { quiet, json, interval, .. } = self.options;
        if *quiet || *json || *interval < LINES_INTERVAL {
            return Ok(());
        }
        print(&format!("NULL {} to {}: {}", self.calls, self.server, show::time(ns as f64)))
    }

    /// Waits until the next call is due. The last one is not waited for.
    fn rest(&self, sent: Instant) {
        let is_last = self.options.count.is_some_and(|count| self.calls >= count);
        let left = self.options.interval.saturating_sub(sent.elapsed());
        if !is_last && !left.is_zero() {
            self.nfs.caller().pause(left, || self.is_over());
        }
    }

    fn is_over(&self) -> bool {
        let is_late = |duration| self.began.elapsed() >= duration;
        self.is_interrupted.load(Ordering::Relaxed) || self.options.duration.is_some_and(is_late)
    }

    fn summary(&self) -> Result<(), Error> {
        if self.options.json { print(&self.json()) } else { print(&self.text()) }
    }

    fn text(&self) -> String {
        let times = &self.round_trips_ns;
        let (replies, seconds) = (times.len(), self.began.elapsed().as_secs_f64());
        let lost = self.calls - replies;
        let mut text = format!(
            "{}: {} calls, {replies} replies, {lost} without, {seconds:.3} s",
            self.server, self.calls
        );
        if replies > 0 {
            let all = self.percentiles().map(|(name, ns)| format!("{name} {}", show::time(ns)));
            let (min, max) = (show::time(times.min() as f64), show::time(times.max() as f64));
            let mean = show::time(times.mean());
            let all = all.collect::<Vec<_>>().join("  ");
            text += &format!("\nround trip: min {min}  mean {mean}  {all}  max {max}");
        }
        text
    }

    fn json(&self) -> String {
        let times = &self.round_trips_ns;
        let mut latency = serde_json::Map::new();
        if !times.is_empty() {
            latency.insert("min".to_owned(), times.min().into());
            latency.insert("mean".to_owned(), times.mean().into());
            for (name, ns) in self.percentiles() {
                latency.insert(name.replace('.', "_"), (ns as u64).into());
            }
            latency.insert("max".to_owned(), times.max().into());
        }
        json!({
            "server": self.server,
            "calls": self.calls,
            "replies": times.len(),
            "seconds": self.began.elapsed().as_secs_f64(),
            "round_trip_ns": latency,
        })
        .to_string()
    }

    fn percentiles(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        let at = |percent: f64| self.round_trips_ns.value_at_percentile(percent) as f64;
        PERCENTILES.into_iter().map(move |(name, percent)| (name, at(percent)))
    }
}
