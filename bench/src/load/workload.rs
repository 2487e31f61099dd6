//! What is measured, and what a measurement yields. Plain data: the command line makes workloads,
//! the client turns them into measurements, reports print both.

use super::driver::Tally;
use super::measurement::{Arrivals, CoreUse, Measurement, Samples};
use crate::failure::Failure;
use crate::floor::Probe;
use crate::latency::LatencySummary;
use crate::pattern::Verify;
use crate::units::show_size;
use serde::Serialize;
use spinrpc::sys::clock::Clock;
use spinrpc::{DecodeError, Decoder, Encoder};
use std::time::Duration;

/// What every call of a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// Nothing: no arguments, no results.
    Null,
    /// Sends bytes and gets bytes back, inline as long as they fit.
    Echo,
    /// Gets bytes by a Write chunk.
    Read,
    /// Sends bytes by a Read chunk.
    Write,
}

impl Operation {
    /// As the command line spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The number of its procedure.
    pub(super) fn to_wire(self) -> u32 {
        self as u32
    }

    /// The operation of this number, if there is one.
    pub(super) fn from_wire(number: u32) -> Option<Self> {
        let all = [Self::Null, Self::Echo, Self::Read, Self::Write];
        all.into_iter().find(|op| op.to_wire() == number)
    }
}

/// How calls follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// A closed loop of one call at a time on each connection.
    #[value(name = "pingpong")]
    PingPong,
    /// A closed loop: every reply starts the next call.
    Closed,
    /// Calls start at times of their own, whatever the replies do.
    Open,
    /// Every combination of lists of sizes, depths, cores and rates.
    Sweep,
    /// The highest rate that keeps a percentile below a limit.
    Saturate,
    /// Hours of the same, watched for drift and leaks.
    Soak,
}

/// When calls of an open loop start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Rate {
    /// Of all cores and connections together.
    pub(crate) per_second: u64,
    pub(crate) arrivals: Arrivals,
    /// Seed of what is random about them.
    pub(crate) seed: u64,
}

/// One operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Share {
    pub(crate) op: Operation,
    /// Its part of the calls, among the weights of all shares.
    pub(crate) weight: u32,
    pub(crate) call_bytes: usize,
    pub(crate) reply_bytes: usize,
}

/// Operations that are mixed by weight; of a plain workload it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mix([Option<Share>; OPERATIONS]);

impl Mix {
    /// What is mixed.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> + use<> {
        self.0.into_iter().flatten()
    }

    /// Nothing is mixed: the workload is its operation alone.
    #[expect(dead_code, reason = "the mix comes to use it")]
    pub(crate) fn is_empty(&self) -> bool {
        self.shares().next().is_none()
    }
}

impl Serialize for Mix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.shares())
    }
}

/// What a client does to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Workload {
    /// How calls follow one another: pingpong, closed or open.
    pub(crate) mode: Mode,
    /// What each call does; of a mix, what the first of its shares does.
    pub(crate) op: Operation,
    /// Of an open loop.
    pub(crate) rate: Option<Rate>,
    /// What calls do by turns, if it is not always the same.
    pub(crate) mix: Mix,
    /// Payload of a call; for a read, the bytes asked for.
    pub(crate) call_bytes: usize,
    /// Payload of the reply to an echo.
    pub(crate) reply_bytes: usize,
    /// Calls under way on each busy connection.
    pub(crate) depth: usize,
    /// Busy connections of each client core.
    pub(crate) connections: usize,
    /// Connections of each client core that exist and do nothing.
    pub(crate) idle_connections: usize,
    /// What of each payload is compared with what it must be.
    pub(crate) verify: Verify,
    /// The server calls, by the connections of the client.
    pub(crate) reverse: bool,
}

impl Workload {
    /// One call at a time on one connection, unverified.
    pub(crate) fn ping_pong(op: Operation, bytes: usize) -> Self {
        Self {
            mode: Mode::PingPong,
            op,
            rate: None,
            mix: Mix::default(),
            call_bytes: bytes,
            reply_bytes: bytes,
            depth: 1,
            connections: 1,
            idle_connections: 0,
            verify: Verify::Off,
            reverse: false,
        }
    }

    /// The same, called by the server.
    pub(crate) fn in_reverse(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// The same with `depth` calls under way.
    pub(crate) fn at_depth(self, depth: usize) -> Self {
        let mode = if depth == 1 { Mode::PingPong } else { Mode::Closed };
        Self { mode, depth, ..self }
    }

    /// The same with `verify` checking the data.
    pub(crate) fn verified(self, verify: Verify) -> Self {
        Self { verify, ..self }
    }

    /// The same beside `idle_connections` that do nothing.
    pub(crate) fn beside(self, idle_connections: usize) -> Self {
        Self { idle_connections, ..self }
    }

    /// Payload that one call moves, there and back, in bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self.op {
            Operation::Null => 0,
            Operation::Echo => self.call_bytes + self.reply_bytes,
            Operation::Read | Operation::Write => self.call_bytes,
        }
    }

    /// The limits of the machine this workload is bounded by, to measure beside it.
    pub(crate) fn probes(&self) -> Vec<Probe> {
        let (call_bytes, reply_bytes) = self.message_bytes();
        match (self.op, self.depth * self.connections) {
            (Operation::Null | Operation::Echo, 1) => {
                vec![Probe::CacheLine, Probe::RingRoundTrip { call_bytes, reply_bytes }]
            }
            (Operation::Null | Operation::Echo, depth) => {
                vec![Probe::RingRate { depth, call_bytes, reply_bytes }]
            }
            (Operation::Read | Operation::Write, blocks) => {
                vec![Probe::Copy { block_bytes: self.call_bytes, blocks }]
            }
        }
    }

    /// A few words for a table: `echo 64 B, depth 32, verify full`.
    pub(crate) fn name(&self) -> String {
        let mut name = if self.reverse { "reverse ".to_owned() } else { String::new() };
        name += self.op.name();
        if self.op != Operation::Null {
            name += &format!(" {}", show_size(self.call_bytes));
        }
        if self.op == Operation::Echo && self.reply_bytes != self.call_bytes {
            name += &format!(" -> {}", show_size(self.reply_bytes));
        }
        match self.depth {
            1 => {}
            depth => name += &format!(", depth {depth}"),
        }
        if self.connections > 1 {
            name += &format!(", {} conns", self.connections);
        }
        if self.idle_connections > 0 {
            name += &format!(", {} idle", self.idle_connections);
        }
        match self.verify {
            Verify::Off => name,
            Verify::Touch => name + ", verify touch",
            Verify::Full => name + ", verify full",
        }
    }

    /// Lengths of the messages of one call, when everything is inline: a version-one transport
    /// header without chunks (RFC 8166 section 4.2), an RPC header with AUTH_NONE twice (RFC 5531
    /// section 9), and the arguments or results.
    fn message_bytes(&self) -> (usize, usize) {
        let (call, reply) = (TRANSPORT_BYTES + CALL_BYTES, TRANSPORT_BYTES + REPLY_BYTES);
        match self.op {
            Operation::Echo => (
                call + ECHO_WORDS_BYTES + XDR_COUNT_BYTES + self.call_bytes.next_multiple_of(4),
                reply + WRONG_AT_BYTES + XDR_COUNT_BYTES + self.reply_bytes.next_multiple_of(4),
            ),
            _ => (call, reply),
        }
    }
}

/// When a repeat begins to count and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Unmeasured time at the beginning.
    pub(crate) warmup: Duration,
    /// Measured time.
    pub(crate) duration: Duration,
    /// Ends the repeat earlier, after so many measured calls of each core.
    pub(crate) calls: Option<u64>,
}

/// What a server is to do in reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackPlan {
    pub(super) workload: Workload,
    pub(super) warmup_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) calls_max: Option<u64>,
}

/// What came of it: whole calls, measured time, and the latencies from p50 to the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    calls: u64,
    elapsed_ns: u64,
    latency_ns: [u64; 8],
}

impl Figures {
    pub(super) fn of(tally: &Tally) -> Self {
        let ns_per_tick = 1e9 / Clock::shared().ticks_per_second() as f64;
        let latency = tally.recorder.summary(ns_per_tick);
        Self {
            calls: latency.samples,
            elapsed_ns: (tally.ticks as f64 * ns_per_tick) as u64,
            latency_ns: latency.figures().map(|ns| ns as u64),
        }
    }

    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.calls);
        results.u64(self.elapsed_ns);
        self.latency_ns.iter().for_each(|ns| results.u64(*ns));
    }

    /// Results that are empty are figures of nothing.
    pub(super) fn decode(results: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut figures = Self::default();
        let Ok(calls) = results.u64() else { return Ok(figures) };
        (figures.calls, figures.elapsed_ns) = (calls, results.u64()?);
        for ns in &mut figures.latency_ns {
            *ns = results.u64()?;
        }
        Ok(figures)
    }

    /// The measurement of a loop, with what the cores of who called and of who answered did.
    pub(super) fn measurement(
        &self,
        workload: &Workload,
        caller: CoreUse,
        answerer: Option<CoreUse>,
    ) -> Result<Measurement, Failure> {
        let elapsed_s = self.elapsed_ns.max(1) as f64 / 1e9;
        let calls_per_second = self.calls as f64 / elapsed_s;
        let figures = self.latency_ns.map(|ns| ns as f64);
        Ok(Measurement {
            calls: self.calls,
            elapsed_s,
            calls_per_second,
            bytes_per_second: calls_per_second * workload.payload_bytes() as f64,
            latency: LatencySummary::from_figures(self.calls, figures),
            service: None,
            open: None,
            client: caller,
            server: answerer,
            client_cores: vec![caller],
            server_cores: answerer.into_iter().collect(),
            samples: Samples::none()?,
        })
    }
}

const OPERATIONS: usize = 4;
const TRANSPORT_BYTES: usize = 28;
const CALL_BYTES: usize = 40;
const REPLY_BYTES: usize = 24;
const ECHO_WORDS_BYTES: usize = 8;
const WRONG_AT_BYTES: usize = 4;
const XDR_COUNT_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_call_is_68_bytes_and_its_reply_52() {
        assert_eq!(Workload::ping_pong(Operation::Null, 0).message_bytes(), (68, 52));
    }

    #[test]
    fn an_echo_carries_its_payload_twice() {
        let echo = Workload::ping_pong(Operation::Echo, 64);
        assert_eq!(echo.message_bytes(), (144, 124));
        assert_eq!(echo.payload_bytes(), 128);
    }

    #[test]
    fn latency_is_compared_with_lines_throughput_with_rings_and_bulk_with_copies() {
        let null = Workload::ping_pong(Operation::Null, 0);
        assert_eq!(null.probes()[0], Probe::CacheLine);
        let deep = Probe::RingRate { depth: 32, call_bytes: 68, reply_bytes: 52 };
        assert_eq!(null.at_depth(32).probes(), [deep]);
        let copy = Probe::Copy { block_bytes: 1 << 20, blocks: 2 };
        assert_eq!(Workload::ping_pong(Operation::Read, 1 << 20).at_depth(2).probes(), [copy]);
    }

    #[test]
    fn a_name_tells_what_differs_from_a_plain_call() {
        let echo = Workload::ping_pong(Operation::Echo, 64);
        assert_eq!(echo.name(), "echo 64 B");
        let many = echo.at_depth(8).beside(1000).verified(Verify::Full);
        assert_eq!(many.name(), "echo 64 B, depth 8, 1000 idle, verify full");
    }
}
