//! The limits of this machine, measured in the same minute as the results compared with them.
//!
//! Two threads stand in for two processes: caches ignore address spaces, so a line travels between
//! two pinned threads as between two pinned processes. Neither the reactor nor the protocol is involved.

mod core;
mod placement;
mod ring;
mod tcp;

pub(crate) use placement::{Placed, Placement, cache_line_ns};

use crate::cores::CorePair;
use crate::failure::Failure;
use crate::latency::median;
use crate::units::show_size;
use serde::Serialize;
use spinrpc_tuning::thread_pair;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
pub(crate) enum Probe {
    /// Round trip of a cache line between the two cores, in nanoseconds.
    CacheLine,
    /// Round trip between two threads that wake each other through eventfds, in nanoseconds.
    EventfdPingPong,
    /// Median round trip over a bare ring in nanoseconds: each is timed, like those of a workload.
    RingRoundTrip { call_bytes: usize, reply_bytes: usize },
    /// Exchanges per second over a bare ring at this depth.
    RingRate { depth: usize, call_bytes: usize, reply_bytes: usize },
    /// Median round trip over a TCP connection of this host whose ends poll, with messages of these sizes, in nanoseconds.
    TcpRoundTrip { call_bytes: usize, reply_bytes: usize },
    /// Work of spinperf's own for each call, in nanoseconds of the client's core.
    OwnWork,
    /// Bytes per second of a copy by the server's core, in blocks of this size.
    Copy {
        block_bytes: usize,
        /// Number of destinations used in turn: the compared workload's calls in flight.
        blocks: usize,
    },
}

impl Probe {
    /// Measures for `duration`, after a warm-up of a quarter of it; blocks the calling thread.
    pub(crate) fn measure(self, cores: CorePair, duration: Duration) -> Result<f64, Failure> {
        match self {
            Self::CacheLine => line_round_trip_ns(cores, duration, Duration::MAX),
            Self::EventfdPingPong => core::wake_round_trip_ns(cores, duration),
            Self::RingRoundTrip { call_bytes, reply_bytes } => {
                ring::round_trip_ns(cores, duration, [call_bytes, reply_bytes])
            }
            Self::RingRate { depth, call_bytes, reply_bytes } => {
                ring::exchanges_per_second(cores, duration, depth, [call_bytes, reply_bytes])
            }
            Self::TcpRoundTrip { call_bytes, reply_bytes } => {
                tcp::round_trip_ns(cores, duration, [call_bytes, reply_bytes])
            }
            Self::OwnWork => core::own_work_ns(cores.client, duration),
            Self::Copy { block_bytes, blocks } => {
                core::copied_per_second(cores.server, duration, block_bytes, blocks)
            }
        }
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::CacheLine => "cache line round trip".to_owned(),
            Self::EventfdPingPong => "eventfd ping-pong".to_owned(),
            Self::RingRoundTrip { call_bytes, reply_bytes } => {
                format!("bare ring round trip, {call_bytes} B + {reply_bytes} B")
            }
            Self::RingRate { depth, call_bytes, reply_bytes } => {
                format!("bare ring exchanges, {call_bytes} B + {reply_bytes} B, depth {depth}")
            }
            Self::TcpRoundTrip { call_bytes, reply_bytes } => {
                format!("TCP round trip, {call_bytes} B + {reply_bytes} B")
            }
            Self::OwnWork => "spinperf's own work per call".to_owned(),
            Self::Copy { block_bytes, .. } => format!("memcpy, {}", show_size(block_bytes)),
        }
    }

    /// Unit of a ratio to it, as in "1.5 x".
    pub(crate) fn short_name(self) -> &'static str {
        match self {
            Self::CacheLine => "cache-line RTT",
            Self::EventfdPingPong => "eventfd ping-pong",
            Self::RingRoundTrip { .. } => "raw ring RTT",
            Self::RingRate { .. } => "raw ring",
            Self::TcpRoundTrip { .. } => "TCP RTT",
            Self::OwnWork => "own work",
            Self::Copy { .. } => "memcpy",
        }
    }

    pub(crate) fn is_time(self) -> bool {
        !matches!(self, Self::RingRate { .. } | Self::Copy { .. })
    }

    /// Returns whether something is faster than this limit of it was measured: one of both is disturbed.
    pub(crate) fn is_beaten(self, limit: f64, measured: f64) -> bool {
        if self.is_time() { measured < limit } else { measured > limit }
    }

    /// The best of up to three further measurements, which are made as long as it is beaten.
    pub(crate) fn settled(
        self,
        mut limit: f64,
        measured: f64,
        mut again: impl FnMut(Self) -> Result<f64, Failure>,
    ) -> Result<f64, Failure> {
        for _ in 0..FURTHER_MAX {
            if !self.is_beaten(limit, measured) {
                break;
            }
            let other = again(self)?;
            limit = if self.is_time() { limit.min(other) } else { limit.max(other) };
        }
        Ok(limit)
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::RingRate { .. } => format!("{:.2} M/s", value / 1e6),
            Self::Copy { .. } => format!("{:.0} MB/s", value / 1e6),
            _ => format!("{value:.1} ns"),
        }
    }
}

fn on_two_cores<T: Send>(
    cores: CorePair,
    answer: impl FnOnce(&AtomicBool) + Send,
    ask: impl FnOnce() -> T + Send,
) -> Result<T, Failure> {
    thread_pair::on_two_cpus(cores.into(), Duration::MAX, answer, ask).map_err(not_measured)
}

fn line_round_trip_ns(
    cores: CorePair,
    duration: Duration,
    patience: Duration,
) -> Result<f64, Failure> {
    thread_pair::cache_line_ns(cores.into(), duration, patience).map_err(not_measured)
}

fn not_measured(error: std::io::Error) -> Failure {
    Failure::Measurement(error.to_string())
}

/// A quarter of the time warms up. Sums what the batches after it return.
#[inline]
fn timed(duration: Duration, mut batch: impl FnMut() -> u64) -> (f64, Duration) {
    let start = Instant::now();
    while start.elapsed() < duration / 4 {
        batch();
    }
    let (start, mut count) = (Instant::now(), 0);
    while count == 0 || start.elapsed() < duration {
        count += batch();
    }
    (count as f64, start.elapsed())
}

/// Median time of an exchange, each of which is timed.
#[inline]
fn median_ns<E>(duration: Duration, mut exchange: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || began.elapsed() < duration {
        let asked = Instant::now();
        exchange()?;
        times.push(asked.elapsed().as_nanos() as f64);
    }
    Ok(median(times))
}

fn lost() -> Failure {
    Failure::Measurement("a thread of the floor measurement exited early".to_owned())
}

const FURTHER_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_beaten_is_measured_again_and_the_best_counts() {
        let settled = |probe: Probe, limit, measured, others: &[f64]| {
            let mut others = others.iter();
            let limit = probe.settled(limit, measured, |_| Ok(*others.next().unwrap())).unwrap();
            (limit, others.len())
        };
        assert_eq!(settled(Probe::CacheLine, 90.0, 200.0, &[]), (90.0, 0));
        assert_eq!(settled(Probe::CacheLine, 900.0, 200.0, &[800.0, 100.0, 1.0]), (100.0, 1));
        assert_eq!(settled(Probe::CacheLine, 900.0, 200.0, &[700.0, 800.0, 750.0]), (700.0, 0));
        let copy = Probe::Copy { block_bytes: 4096, blocks: 1 };
        assert_eq!(settled(copy, 1e9, 2e9, &[0.5e9, 3e9]), (3e9, 0));
    }

    #[test]
    fn names_tell_probes_apart() {
        let rate = Probe::RingRate { depth: 32, call_bytes: 68, reply_bytes: 52 };
        assert_eq!(rate.name(), "bare ring exchanges, 68 B + 52 B, depth 32");
        assert_eq!(rate.show(37e6), "37.00 M/s");
        assert_eq!(Probe::CacheLine.show(101.26), "101.3 ns");
    }
}
