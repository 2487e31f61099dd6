//! Workloads. Plain data: the command line makes workloads, the client turns them into
//! measurements, reports print both.

use super::measurement::Arrivals;
use crate::floor::Probe;
use crate::pattern::Verify;
use crate::units::{joined, show_count, show_size};
use serde::{Deserialize, Serialize};
use spinrpc_xdr::Xdr;
use std::time::Duration;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Xdr, clap::ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    #[default]
    Null,
    /// Sends bytes and receives bytes, inline if they fit.
    Echo,
    /// Receives bytes through a Write chunk.
    Read,
    /// Sends bytes through a Read chunk.
    Write,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Echo => "echo",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    pub(crate) fn is_bulk(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// A closed loop of one call at a time on each connection.
    #[default]
    #[value(name = "pingpong")]
    PingPong,
    /// A closed loop: every reply starts the next call.
    Closed,
    /// Calls start on schedule, independently of replies.
    Open,
    /// All combinations of lists of sizes, depths, cores and rates.
    Sweep,
    /// The same load for hours, watched for drift and leaks.
    Soak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rate {
    pub(crate) per_second: u64,
    pub(crate) arrivals: Arrivals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) op: Operation,
    pub(crate) weight: u32,
    pub(crate) call_bytes: usize,
    pub(crate) reply_bytes: usize,
}

impl Share {
    pub(crate) fn payload_bytes(&self) -> usize {
        self.directions().iter().sum()
    }

    /// Payload towards the server, and back.
    fn directions(&self) -> [usize; 2] {
        match self.op {
            Operation::Null => [0, 0],
            Operation::Echo => [self.call_bytes, self.reply_bytes],
            Operation::Read => [0, self.call_bytes],
            Operation::Write => [self.call_bytes, 0],
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

/// Operations that are mixed by weight; empty for a plain workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mix([Option<Share>; SHARES]);

impl Mix {
    pub(crate) fn new(shares: &[Share]) -> Self {
        let mut mix = Self::default();
        mix.0.iter_mut().zip(shares).for_each(|(place, share)| *place = Some(*share));
        mix
    }

    pub(crate) fn shares(&self) -> impl Iterator<Item = Share> + use<> {
        self.0.into_iter().flatten()
    }

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

/// `bench/schema` describes the fields, as it does those of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    pub(crate) mode: Mode,
    pub(crate) op: Operation,
    pub(crate) rate: Option<Rate>,
    pub(crate) mix: Mix,
    pub(crate) of_mix: bool,
    /// Seed of random choices: the next operation of a mix, Poisson arrivals.
    pub(crate) seed: u64,
    pub(crate) call_bytes: usize,
    pub(crate) reply_bytes: usize,
    pub(crate) depth: usize,
    /// Busy connections of each client core.
    pub(crate) connections: usize,
    pub(crate) cores: usize,
    pub(crate) idle_connections: usize,
    pub(crate) verify: Verify,
    /// The server calls, over the connections of the client.
    pub(crate) reverse: bool,
    pub(crate) both: bool,
    pub(crate) threads: usize,
    pub(crate) slabs: bool,
    pub(crate) ends: Ends,
}

/// Threads that poll the two ends of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ends {
    #[default]
    Apart,
    /// One thread polls both, so that callers have the other CPU.
    OneCpu,
    /// A core each, which sleeps when there is no work.
    Sleeping,
}

impl Workload {
    pub(crate) fn ping_pong(op: Operation, bytes: usize) -> Self {
        Self {
            op,
            call_bytes: bytes,
            reply_bytes: bytes,
            depth: 1,
            connections: 1,
            cores: 1,
            ..Self::default()
        }
    }

    pub(crate) fn in_reverse(self) -> Self {
        Self { reverse: true, ..self }
    }

    pub(crate) fn at_depth(self, depth: usize) -> Self {
        let mode = if depth == 1 { Mode::PingPong } else { Mode::Closed };
        Self { mode, depth, ..self }
    }

    pub(crate) fn with_idle(self, idle_connections: usize) -> Self {
        Self { idle_connections, ..self }
    }

    pub(crate) fn at_rate(self, rate: Rate) -> Self {
        Self { mode: Mode::Open, rate: Some(rate), ..self }
    }

    pub(crate) fn shares(&self) -> Vec<Share> {
        let Self { op, call_bytes, reply_bytes, .. } = *self;
        match self.mix.is_empty() {
            true => vec![Share { op, weight: 1, call_bytes, reply_bytes }],
            false => self.mix.shares().collect(),
        }
    }

    pub(crate) fn part(&self, share: Share) -> Self {
        let Share { op, call_bytes, reply_bytes, .. } = share;
        Self { op, call_bytes, reply_bytes, mix: Mix::default(), of_mix: true, ..*self }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        let [share] = *self.shares() else { return 0 };
        share.payload_bytes()
    }

    /// Part of the payload in the direction of a link that has more of it. Calls in reverse add as much to each direction
    /// as these calls have in the other one.
    pub(crate) fn larger_direction(&self) -> f64 {
        if self.both {
            return 1.0;
        }
        let bytes = self.shares().into_iter().map(|share| {
            let weight = share.weight as usize;
            share.directions().map(|bytes| bytes * weight)
        });
        let [there, back] = bytes.fold([0; 2], |[a, b], [there, back]| [a + there, b + back]);
        there.max(back) as f64 / (there + back).max(1) as f64
    }

    pub(crate) fn probes(&self) -> Vec<Probe> {
        let [share] = *self.shares() else { return Vec::new() };
        let (call_bytes, reply_bytes) = share.message_bytes();
        match (self.ends, self.depth * self.threads) {
            (Ends::Apart, _) => {}
            (Ends::OneCpu, 1) => return vec![Probe::CacheLine],
            (Ends::Sleeping, 1) => return vec![Probe::EventfdPingPong],
            _ => return Vec::new(),
        }
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

    pub(crate) fn name(&self) -> String {
        let reverse = if self.reverse { "reverse " } else { "" };
        let several = |count: usize, what: &str| (count > 1).then(|| format!("{count} {what}"));
        let parts = [
            Some(format!("{reverse}{}", joined(self.shares().iter().map(Share::name), " + "))),
            self.of_mix.then(|| "of the mix".to_owned()),
            self.load_name(),
            match self.threads {
                0 => None,
                1 => Some("by a handle".to_owned()),
                threads => Some(format!("by handles of {threads} threads")),
            },
            match self.ends {
                Ends::Apart => None,
                Ends::OneCpu => Some("ends on one CPU".to_owned()),
                Ends::Sleeping => Some("cores sleep".to_owned()),
            },
            self.slabs.then(|| "slabs".to_owned()),
            several(self.cores, "cores"),
            several(self.connections, "conns"),
            (self.idle_connections > 0).then(|| format!("{} idle", self.idle_connections)),
            match self.verify {
                Verify::Off => None,
                Verify::Touch => Some("verify touch".to_owned()),
                Verify::Full => Some("verify full".to_owned()),
            },
        ];
        joined(parts.into_iter().flatten(), ", ")
    }

    fn load_name(&self) -> Option<String> {
        let Some(rate) = self.rate else {
            return (self.depth > 1).then(|| format!("depth {}", self.depth));
        };
        let mut name = show_count(rate.per_second as f64) + "/s";
        if rate.arrivals == Arrivals::Poisson {
            name += " poisson";
        }
        if self.depth != IN_FLIGHT_MAX {
            name += &format!(", at most {} in flight", self.depth);
        }
        Some(name)
    }
}

/// The paths of the bytes of operations (RFC 8166 section 3.5), for notes of a report, as
/// `echo 64 B to 2 KiB: call and reply inline`. The longest calls and replies that go inline have this many bytes, transport
/// header included.
pub(crate) fn describe_paths(shares: &[Share], inline: [usize; 2]) -> Vec<String> {
    let mut sorted: Vec<Share> = shares.to_vec();
    sorted.sort_by_key(|share| (share.op as u32, share.call_bytes, share.reply_bytes));
    sorted.dedup_by_key(|share| share.name());
    let same =
        |one: &Share, next: &Share| one.op == next.op && way(one, inline) == way(next, inline);
    let line = |group: &[Share]| {
        let [first, .., last] = group else {
            return group.first().map(|share| format!("{}: {}", share.name(), way(share, inline)));
        };
        Some(format!("{} to {}: {}", first.name(), show_size(last.call_bytes), way(first, inline)))
    };
    sorted.chunk_by(same).filter_map(line).collect()
}

fn way(share: &Share, [call_max, reply_max]: [usize; 2]) -> &'static str {
    let (call_bytes, reply_bytes) = share.message_bytes();
    let (is_long_call, is_long_reply) = (call_bytes > call_max, reply_bytes > reply_max);
    match share.op {
        Operation::Null => "call and reply inline",
        // Offered with every call: the client cannot know the length of the reply.
        Operation::Read => "call inline, data in a Write chunk",
        Operation::Write if is_long_call => "data in a Read chunk, reply inline",
        Operation::Write => "call with its data inline, reply inline",
        Operation::Echo => match (is_long_call, is_long_reply) {
            (false, false) => "call and reply inline",
            (true, false) => "long call (Position-Zero Read chunk), reply inline",
            (false, true) => "call inline, reply in a Reply chunk",
            (true, true) => "long call (Position-Zero Read chunk), reply in a Reply chunk",
        },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    /// Maximum wait for measured calls in flight at the end. Those without a reply by then are lost.
    pub(crate) grace: Duration,
    pub(crate) can_be_interrupted: bool,
    /// Ends the repeat early after this many measured calls of each core.
    pub(crate) calls: Option<u64>,
    /// Rank of this process among those that share the load, and their number.
    pub(crate) rank: (usize, usize),
    /// Number of the window of a soak; each makes random choices of its own.
    pub(crate) window: u64,
    /// Do not refuse percentiles, however far an open loop falls behind its rate.
    pub(crate) force: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            warmup: Duration::ZERO,
            duration: Duration::ZERO,
            grace: GRACE,
            can_be_interrupted: false,
            calls: None,
            rank: (0, 1),
            window: 0,
            force: false,
        }
    }
}

impl Limits {
    pub(crate) fn total(&self) -> Duration {
        self.warmup + self.duration
    }
}

/// Default of `--grace`: the default deadline of a call (`rpc.timeout_ms`).
const GRACE: Duration = Duration::from_secs(10);
/// Open-loop calls in flight on a connection, unless `--in-flight-max` says otherwise.
pub(crate) const IN_FLIGHT_MAX: usize = 64;
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
    fn a_link_carries_calls_and_replies_in_directions_of_its_own() {
        let echo = Workload::ping_pong(Operation::Echo, 64);
        let read = Workload::ping_pong(Operation::Read, 64);
        let share = |op, weight| Share { op, weight, call_bytes: 64, reply_bytes: 64 };
        let mix = [share(Operation::Read, 3), share(Operation::Write, 1)];
        let larger = [
            echo,
            Workload { reply_bytes: 192, ..echo },
            read,
            Workload { mix: Mix::new(&mix), ..read },
            Workload { both: true, ..echo },
        ];
        let larger = larger.map(|workload| workload.larger_direction());
        assert_eq!(larger, [0.5, 0.75, 1.0, 0.75, 1.0]);
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
        let many = Workload { verify: Verify::Full, ..echo.at_depth(8).with_idle(1000) };
        assert_eq!(many.name(), "echo 64 B, depth 8, 1000 idle, verify full");
    }

    #[test]
    fn bytes_beyond_the_threshold_take_chunks() {
        let inline = [4096, 1024];
        for (op, call_bytes, reply_bytes, way) in [
            (Operation::Null, 0, 0, "call and reply inline"),
            (Operation::Echo, 64, 64, "call and reply inline"),
            (Operation::Echo, 64, 1024, "call inline, reply in a Reply chunk"),
            (Operation::Echo, 4096, 8, "long call (Position-Zero Read chunk), reply inline"),
            (Operation::Read, 8, 8, "data in a Write chunk"),
            (Operation::Write, 4000, 0, "data inline"),
            (Operation::Write, 4096, 0, "data in a Read chunk"),
        ] {
            let share = Share { op, weight: 1, call_bytes, reply_bytes };
            let said = describe_paths(&[share], inline).concat();
            assert!(said.contains(way), "{said}");
        }
    }

    #[test]
    fn sizes_that_take_the_same_way_share_a_line() {
        let echo =
            |bytes| Share { op: Operation::Echo, weight: 1, call_bytes: bytes, reply_bytes: bytes };
        let shares = [64, 8192, 1024, 64, 65536].map(echo);
        let said = describe_paths(&shares, [4096; 2]);
        let long = "long call (Position-Zero Read chunk), reply in a Reply chunk";
        assert_eq!(said[0], "echo 64 B to 1 KiB: call and reply inline");
        assert_eq!(said[1..], [format!("echo 8 KiB to 64 KiB: {long}")]);
    }
}
