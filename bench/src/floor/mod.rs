//! The limits of this machine, measured in the same minute as the results compared with them.
//!
//! Two threads stand in for two processes: caches ignore address spaces, so a line travels between
//! two pinned threads as between two pinned processes. Neither the reactor nor the protocol is
//! involved. `main_job` and the `floor` command call [`Probe::measure`].

mod cache_line;
mod copy;
mod eventfd;
mod own;
mod ring;

use crate::cores::{CorePair, pin};
use crate::failure::Failure;
use crate::units::show_size;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// One limit that a workload can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
pub(crate) enum Probe {
    /// Round trip of a cache line between the two cores, in nanoseconds.
    CacheLine,
    /// Round trip between two threads on the two cores that wake each other through eventfds, in
    /// nanoseconds.
    EventfdPingPong,
    /// Round trip over a bare ring, with messages of these sizes, in nanoseconds.
    RingRoundTrip {
        /// Length of the message to the server.
        call_bytes: usize,
        /// Length of the message back.
        reply_bytes: usize,
    },
    /// Exchanges per second over a bare ring at this depth.
    RingRate {
        /// Exchanges in flight.
        depth: usize,
        /// Length of the message to the server.
        call_bytes: usize,
        /// Length of the message back.
        reply_bytes: usize,
    },
    /// Work of spinperf's own for each call, in nanoseconds of the client's core.
    OwnWork,
    /// Bytes per second of a copy by the server's core, in blocks of this size.
    Copy {
        /// Size of one copy.
        block_bytes: usize,
        /// Number of destinations used in turn: the compared workload's calls in flight.
        blocks: usize,
    },
}

impl Probe {
    /// Measures for `duration`, after a warm-up of a quarter of it; blocks the calling thread.
    pub(crate) fn measure(self, cores: CorePair, duration: Duration) -> Result<f64, Failure> {
        match self {
            Self::CacheLine => cache_line::round_trip_ns(cores, duration),
            Self::EventfdPingPong => eventfd::round_trip_ns(cores, duration),
            Self::RingRoundTrip { call_bytes, reply_bytes } => {
                let messages = ring::Messages { call_bytes, reply_bytes };
                Ok(1e9 / ring::exchanges_per_second(cores, duration, 1, messages)?)
            }
            Self::RingRate { depth, call_bytes, reply_bytes } => {
                let messages = ring::Messages { call_bytes, reply_bytes };
                ring::exchanges_per_second(cores, duration, depth, messages)
            }
            Self::OwnWork => own::ns_per_call(cores.client, duration),
            Self::Copy { block_bytes, blocks } => {
                copy::bytes_per_second(cores.server, duration, block_bytes, blocks)
            }
        }
    }

    /// Name, for a table.
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
            Self::OwnWork => "own work",
            Self::Copy { .. } => "memcpy",
        }
    }

    /// Returns true for a time, false for a rate.
    pub(crate) fn is_time(self) -> bool {
        !matches!(self, Self::RingRate { .. } | Self::Copy { .. })
    }

    /// A measured value with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::CacheLine
            | Self::EventfdPingPong
            | Self::OwnWork
            | Self::RingRoundTrip { .. } => format!("{value:.1} ns"),
            Self::RingRate { .. } => format!("{:.2} M/s", value / 1e6),
            Self::Copy { .. } => format!("{:.0} MB/s", value / 1e6),
        }
    }
}

/// Runs `answer` on the server's core and `ask` on the client's, until `ask` has its result. The
/// flag tells `answer` to stop; it may be checked rarely.
fn on_two_cores<T: Send>(
    cores: CorePair,
    answer: impl FnOnce(&AtomicBool) + Send,
    ask: impl FnOnce() -> T + Send,
) -> Result<T, Failure> {
    let stop = &AtomicBool::new(false);
    let (ready, answerer_pinned) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let pinned = pin(cores.server);
            let may_answer = pinned.is_ok();
            let _ = ready.send(pinned);
            if may_answer {
                answer(stop);
            }
        });
        let asker = scope.spawn(move || {
            // Without a partner on its own core, `ask` would never return.
            answerer_pinned.recv().map_err(|_| lost())??;
            let result = pin(cores.client).map(|()| ask());
            stop.store(true, Ordering::Relaxed);
            result
        });
        asker.join().unwrap_or_else(|_| Err(lost()))
    })
}

fn lost() -> Failure {
    Failure::Measurement("a thread of the floor measurement exited early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_probes_apart() {
        let rate = Probe::RingRate { depth: 32, call_bytes: 68, reply_bytes: 52 };
        assert_eq!(rate.name(), "bare ring exchanges, 68 B + 52 B, depth 32");
        assert_eq!(rate.show(37e6), "37.00 M/s");
        assert_eq!(Probe::CacheLine.show(101.26), "101.3 ns");
    }
}
