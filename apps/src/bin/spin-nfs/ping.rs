//! Round-trip time of NULL.

use crate::cli::PingOptions;
use crate::{interruption, print, show};
use serde_json::json;
use spinrpc::fabric::Address;
use spinrpc_nfs::client::{Error, Nfs, RoundTrips};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Minimum interval for printing every reply: faster output is unreadable.
const LINES_INTERVAL: Duration = Duration::from_millis(200);

struct Run<'a> {
    nfs: &'a Nfs,
    server: String,
    options: &'a PingOptions,
    began: Instant,
    is_interrupted: Arc<AtomicBool>,
    calls: u64,
    round_trips: RoundTrips,
}

pub(crate) fn run(nfs: &Nfs, server: &Address, options: &PingOptions) -> Result<(), Error> {
    let mut run = Run {
        nfs,
        server: server.to_string(),
        options,
        began: Instant::now(),
        is_interrupted: interruption()?,
        calls: 0,
        round_trips: RoundTrips::new()?,
    };
    let ended = run.ping();
    print(&if options.json { run.json() } else { run.text() })?;
    ended
}

impl Run<'_> {
    /// Fails if there was no reply at all or the connection is lost.
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
            Some(error) if self.round_trips.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn answered(&mut self, time: Duration) -> Result<(), Error> {
        self.calls += 1;
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.round_trips.record(ns);
        let PingOptions { quiet, json, interval, .. } = self.options;
        if *quiet || *json || *interval < LINES_INTERVAL {
            return Ok(());
        }
        print(&format!("NULL {} to {}: {}", self.calls, self.server, show::time(ns as f64)))
    }

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

    fn text(&self) -> String {
        let (replies, seconds) = (self.round_trips.len(), self.began.elapsed().as_secs_f64());
        let lost = self.calls - replies;
        format!(
            "{}: {} calls, {replies} replies, {lost} without, {seconds:.3} s{}",
            self.server,
            self.calls,
            show::round_trips(&self.round_trips)
        )
    }

    fn json(&self) -> String {
        json!({
            "server": self.server,
            "calls": self.calls,
            "replies": self.round_trips.len(),
            "seconds": self.began.elapsed().as_secs_f64(),
            "round_trip_ns": show::json_round_trips(&self.round_trips),
        })
        .to_string()
    }
}
