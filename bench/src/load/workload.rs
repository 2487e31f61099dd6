//! Workloads. Plain data: the command line makes workloads, the client turns them into
//! measurements, reports print both.

use super::measurement::Arrivals;
use crate::floor::Probe;
use crate::pattern::Verify;
use crate::units::{show_count, show_size};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Operation of the calls of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    /// No arguments and no results.
    Null,
    /// Sends bytes and receives bytes, inline if they fit.
    Echo,
    /// Receives bytes through a Write chunk.
    Read,
    /// Sends bytes through a Read chunk.
    Write,
}

impl Operation {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Number of its procedure.
    pub(super) fn to_wire(self) -> u32 {
        self as u32
    }

    /// The operation with this number, if there is one.
    pub(super) fn from_wire(number: u32) -> Option<Self> {
        let all = [Self::Null, Self::Echo, Self::Read, Self::Write];
        all.into_iter().find(|op| op.to_wire() == number)
    }
}

/// Load model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// A closed loop of one call at a time on each connection.
    #[value(name = "pingpong")]
    PingPong,
    /// A closed loop: every reply starts the next call.
    Closed,
    /// Calls start on schedule, independently of replies.
    Open,
    /// All combinations of lists of sizes, depths, cores and rates.
    Sweep,
    /// The highest rate that keeps a percentile below a limit.
    Saturate,
    /// The same load for hours, watched for drift and leaks.
    Soak,
}

/// Rate of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rate {
    /// Total of all cores and connections, and of all ranks.
    pub(crate) per_second: u64,
    pub(crate) arrivals: Arrivals,
    /// Number of calls of a core that start at the same time; absent for one.
    #[serde(default)]
    pub(crate) burst: Option<u32>,
}

/// One operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) op: Operation,
    /// Weight among all shares.
    pub(crate) weight: u32,
    pub(crate) call_bytes: usize,
    pub(crate) reply_bytes: usize,
}

impl Share {
    /// Payload of one call in both directions, in bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self.op {
            Operation::Null => 0,
            Operation::Echo => self.call_bytes + self.reply_bytes,
            Operation::Read | Operation::Write => self.call_bytes,
        }
    }

    /// Lengths of the messages of one call if everything is inline: a version-one transport header
    /// without chunks (RFC 8166 section 4.2), an RPC header with AUTH_NONE twice (RFC 5531 section
    /// 9), and the arguments or results. The data of a read is never inline.
    pub(crate) fn message_bytes(&self) -> (usize, usize) {
        let (call, reply) = (TRANSPORT_BYTES + CALL_BYTES, TRANSPORT_BYTES + REPLY_BYTES);
        let data = |bytes: usize| XDR_COUNT_BYTES + bytes.next_multiple_of(4);
        match self.op {
            Operation::Null | Operation::Read => (call, reply),
            Operation::Echo => (
                call + ECHO_WORDS_BYTES + data(self.call_bytes),
                reply + WRONG_AT_BYTES + data(self.reply_bytes),
            ),
            Operation::Write => (call + CHECK_BYTES + data(self.call_bytes), reply),
        }
    }

    /// `echo 64 B -> 1 KiB`.
    pub(crate) fn name(&self) -> String {
        let mut name = self.op.name().to_owned();
        if self.op != Operation::Null {
            name += &format!(" {}", show_size(self.call_bytes));
        }
        if self.op == Operation::Echo && self.reply_bytes != self.call_bytes {
            name += &format!(" -> {}", show_size(self.reply_bytes));
        }
        name
    }
}

/// Operations, or sizes of one, that are mixed by weight; empty for a plain workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mix([Option<Share>; SHARES]);

impl Mix {
    /// A mix of these shares, of which there are at most [`SHARES`].
    pub(crate) fn new(shares: &[Share]) -> Self {
        let mut mix = Self::default();
        mix.0.iter_mut().zip(shares).for_each(|(place, share)| *place = Some(*share));
        mix
    }

    /// The shares of the mix.
    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> + use<> {
        self.0.into_iter().flatten()
    }

    /// Returns whether there is no mix: the workload is its operation alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.shares().next().is_none()
    }
}

impl Serialize for Mix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.shares())
    }
}

impl<'de> Deserialize<'de> for Mix {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let shares = Vec::<Share>::deserialize(deserializer)?;
        let is_known = shares.len() <= SHARES;
        is_known.then(|| Self::new(&shares)).ok_or_else(|| {
            serde::de::Error::custom(format!("a mix of more than {SHARES} operations"))
        })
    }
}

/// Load of a client on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// Load model: pingpong, closed or open.
    pub(crate) mode: Mode,
    /// Operation of each call; for a mix, that of its first share.
    pub(crate) op: Operation,
    /// Rate of an open loop.
    pub(crate) rate: Option<Rate>,
    /// Operations in turn, if there are several.
    pub(crate) mix: Mix,
    /// This is one operation's part of a mix.
    pub(crate) of_mix: bool,
    /// Seed of random choices: the next operation of a mix, Poisson arrivals.
    pub(crate) seed: u64,
    /// Payload of a call; for a read, the requested bytes.
    pub(crate) call_bytes: usize,
    /// Payload of the reply to an echo.
    pub(crate) reply_bytes: usize,
    /// Calls in flight on each busy connection.
    pub(crate) depth: usize,
    /// Busy connections of each client core.
    pub(crate) connections: usize,
    /// Client cores.
    pub(crate) cores: usize,
    /// Idle connections of each client core.
    pub(crate) idle_connections: usize,
    /// Part of each payload that is verified.
    pub(crate) verify: Verify,
    /// The server calls, over the connections of the client.
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
            of_mix: false,
            seed: 0,
            call_bytes: bytes,
            reply_bytes: bytes,
            depth: 1,
            connections: 1,
            cores: 1,
            idle_connections: 0,
            verify: Verify::Off,
            reverse: false,
        }
    }

    /// The same workload, called by the server.
    pub(crate) fn in_reverse(self) -> Self {
        Self { reverse: true, ..self }
    }

    /// The same workload with `depth` calls in flight.
    pub(crate) fn at_depth(self, depth: usize) -> Self {
        let mode = if depth == 1 { Mode::PingPong } else { Mode::Closed };
        Self { mode, depth, ..self }
    }

    /// The same workload with `verify` checking the data.
    pub(crate) fn verified(self, verify: Verify) -> Self {
        Self { verify, ..self }
    }

    /// The same workload with additional `idle_connections`.
    pub(crate) fn with_idle(self, idle_connections: usize) -> Self {
        Self { idle_connections, ..self }
    }

    /// The same workload as an open loop.
    pub(crate) fn at_rate(self, rate: Rate) -> Self {
        Self { mode: Mode::Open, rate: Some(rate), ..self }
    }

    /// The operations of the mix, or the only one.
    pub(crate) fn shares(&self) -> Vec<Share> {
        let Self { op, call_bytes, reply_bytes, .. } = *self;
        match self.mix.is_empty() {
            true => vec![Share { op, weight: 1, call_bytes, reply_bytes }],
            false => self.mix.shares().collect(),
        }
    }

    /// The part of the mix with this share.
    pub(crate) fn part(&self, share: Share) -> Self {
        let Share { op, call_bytes, reply_bytes, .. } = share;
        Self { op, call_bytes, reply_bytes, mix: Mix::default(), of_mix: true, ..*self }
    }

    /// Payload of one call of an operation in both directions, in bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        let [share] = *self.shares() else { return 0 };
        share.payload_bytes()
    }

    /// The machine limits that bound this workload, to measure with it.
    pub(crate) fn probes(&self) -> Vec<Probe> {
        let [share] = *self.shares() else { return Vec::new() };
        let (call_bytes, reply_bytes) = share.message_bytes();
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
        let shares: Vec<String> = self.shares().iter().map(Share::name).collect();
        name += &shares.join(" + ");
        if self.of_mix {
            name += ", of the mix";
        }
        match (self.rate, self.depth) {
            (Some(rate), depth) => {
                let per_second = show_count(rate.per_second as f64);
                let poisson = if rate.arrivals == Arrivals::Poisson { " poisson" } else { "" };
                name += &format!(", {per_second}/s{poisson}");
                if let Some(burst) = rate.burst {
                    name += &format!(" in bursts of {burst}");
                }
                if depth != IN_FLIGHT_MAX {
                    name += &format!(", at most {depth} in flight");
                }
            }
            (None, 1) => {}
            (None, depth) => name += &format!(", depth {depth}"),
        }
        if self.cores > 1 {
            name += &format!(", {} cores", self.cores);
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
}

/// Start and end conditions of a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Time in which the load grows to its full rate.
    pub(crate) ramp: Duration,
    /// Unmeasured time after it.
    pub(crate) warmup: Duration,
    /// Measured time.
    pub(crate) duration: Duration,
    /// Unmeasured time at the end, under the same load.
    pub(crate) cooldown: Duration,
    /// Maximum wait for measured calls in flight when no more start. Calls without a reply by then
    /// are lost.
    pub(crate) grace: Duration,
    /// SIGINT and SIGTERM end it early.
    pub(crate) can_be_interrupted: bool,
    /// Ends the repeat early after this many measured calls of each core.
    pub(crate) calls: Option<u64>,
    /// Maximum number of intervals of the measured time. Each takes a quarter of a megabyte per
    /// operation.
    pub(crate) intervals_max: u32,
    /// Rank of this process among those that share the load, and their number.
    pub(crate) rank: (usize, usize),
    /// Do not refuse percentiles, however far an open loop falls behind its rate.
    pub(crate) force: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ramp: Duration::ZERO,
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
            cooldown: Duration::ZERO,
            grace: GRACE,
            can_be_interrupted: false,
            calls: None,
            intervals_max: 1,
            rank: (0, 1),
            force: false,
        }
    }
}

impl Limits {
    /// Total time of a repeat, if nothing ends it earlier.
    pub(crate) fn total(&self) -> Duration {
        self.ramp + self.warmup + self.duration + self.cooldown
    }

    /// Place of a core of this process among the cores of all ranks, and their number.
    pub(crate) fn core_of_all(&self, index: usize, cores: usize) -> (usize, usize) {
        let (rank, ranks) = self.rank;
        (rank * cores + index, ranks * cores)
    }

    /// Length of the parts of the measured time with their own histogram.
    pub(crate) fn interval(&self) -> Duration {
        (self.duration / self.intervals_max.max(1)).max(INTERVAL_MIN)
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Default of `--grace`: the default deadline of a call (`rpc.timeout_ms`).
const GRACE: Duration = Duration::from_secs(10);
/// Maximum number of open-loop calls in flight on a connection, unless `--in-flight-max` says
/// otherwise.
pub(crate) const IN_FLIGHT_MAX: usize = 64;
/// Shares of a mix.
pub(crate) const SHARES: usize = 8;
const TRANSPORT_BYTES: usize = 28;
const CALL_BYTES: usize = 40;
const REPLY_BYTES: usize = 24;
const ECHO_WORDS_BYTES: usize = 8;
const WRONG_AT_BYTES: usize = 4;
const CHECK_BYTES: usize = 4;
const XDR_COUNT_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_call_is_68_bytes_and_its_reply_52() {
        assert_eq!(Workload::ping_pong(Operation::Null, 0).shares()[0].message_bytes(), (68, 52));
    }

    #[test]
    fn an_echo_carries_its_payload_twice() {
        let echo = Workload::ping_pong(Operation::Echo, 64);
        assert_eq!(echo.shares()[0].message_bytes(), (144, 124));
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
        let many = echo.at_depth(8).with_idle(1000).verified(Verify::Full);
        assert_eq!(many.name(), "echo 64 B, depth 8, 1000 idle, verify full");
    }
}
