//! Control data in addition to the measured calls: the client's intent, the server's answer, the
//! loop that the server is to run in reverse, and its results. Used by both ends. Everything from a
//! peer is checked against bounds before use.

use super::driver::Tally;
use super::program::{REFUSAL_BYTES_MAX, SHARES_MAX};
use super::workload::{Operation, Share, Workload};
use crate::latency::Recorded;
use crate::pattern::Verify;
use crate::units::show_size;
use spinrpc::sys::clock::Clock;
use spinrpc::{Config, DecodeError, Decoder, Encoder};

/// The load that a client is about to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intent {
    shares: Vec<Share>,
    depth: usize,
    connections: usize,
    verify: Verify,
    reverse: bool,
}

impl Intent {
    /// Intent of a client core with this workload, in both directions or one.
    pub(super) fn of(workload: &Workload, reverse: bool) -> Self {
        Self {
            shares: workload.shares(),
            depth: workload.depth,
            connections: workload.connections + workload.idle_connections,
            verify: workload.verify,
            reverse,
        }
    }

    /// The part of each server, where connections are spread over several.
    pub(super) fn split(&self, servers: usize) -> Self {
        Self { connections: self.connections.div_ceil(servers.max(1)), ..self.clone() }
    }

    pub(super) fn encode(&self, args: &mut Encoder<'_>) {
        args.u32(self.shares.len() as u32);
        for share in &self.shares {
            args.u32(share.op.to_wire());
            args.u32(share.call_bytes as u32);
            args.u32(share.reply_bytes as u32);
        }
        args.u32(self.depth as u32);
        args.u32(self.connections as u32);
        args.u32(self.verify.to_wire());
        args.u32(u32::from(self.reverse));
    }

    /// `None` for an intent that this version does not know.
    pub(super) fn decode(mut args: Decoder<'_>) -> Result<Option<Self>, DecodeError> {
        let count = args.u32()?;
        if count > SHARES_MAX {
            return Ok(None);
        }
        let shares: Vec<_> =
            (0..count).map(|_| decode_share(&mut args)).collect::<Result<_, _>>()?;
        let (depth, connections) = (args.u32()? as usize, args.u32()? as usize);
        let verify = Verify::from_wire(args.u32()?);
        let reverse = args.u32()? != 0;
        args.finish()?;
        let shares: Option<Vec<Share>> = shares.into_iter().collect();
        let (Some(shares), Some(verify)) = (shares, verify) else { return Ok(None) };
        Ok(Some(Self { shares, depth, connections, verify, reverse }))
    }

    /// Reason why a server with this configuration cannot accept it.
    pub(super) fn refusal(&self, config: &Config) -> Option<String> {
        let too_large = self.shares.iter().find_map(|share| refusal_of_size(share, config));
        too_large
            .or_else(|| self.refusal_of_number(config))
            .or_else(|| self.reverse.then(|| self.refusal_of_reverse(config)).flatten())
    }

    fn refusal_of_number(&self, config: &Config) -> Option<String> {
        let most = config.conns_max();
        (self.connections > most).then(|| {
            let wanted = self.connections;
            format!("{wanted} connections are too many: limits.conns allows {most} per core")
        })
    }

    /// A server that calls needs memory of its own for every call in flight.
    fn refusal_of_reverse(&self, config: &Config) -> Option<String> {
        if config.reverse_calls() == 0 {
            return Some("its profile reserves no memory for calls in reverse".to_owned());
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Some(format!("a depth of {} is not within 1 to {DEPTH_MAX}", self.depth));
        }
        let call_bytes = self.shares.iter().map(|share| share.call_bytes + share.reply_bytes);
        let bytes = call_bytes.max().unwrap_or(0).saturating_mul(self.depth);
        let most = config.arena_bytes();
        (bytes > most).then(|| {
            let (bytes, most) = (show_size(bytes), show_size(most));
            format!("calls in reverse would need {bytes}: mem.arena_mib allows {most}")
        })
    }
}

fn decode_share(args: &mut Decoder<'_>) -> Result<Option<Share>, DecodeError> {
    let op = Operation::from_wire(args.u32()?);
    let (call_bytes, reply_bytes) = (args.u32()? as usize, args.u32()? as usize);
    Ok(op.map(|op| Share { op, weight: 1, call_bytes, reply_bytes }))
}

/// Reason why a profile does not let calls carry this much.
pub(crate) fn refusal_of_size(share: &Share, config: &Config) -> Option<String> {
    let (key, most) = match share.op {
        Operation::Read => ("rpc.max_read_bytes", config.read_bytes_max()),
        _ => ("rpc.max_write_bytes", config.write_bytes_max()),
    };
    let bytes = share.call_bytes.max(share.reply_bytes);
    (bytes > most).then(|| {
        let (bytes, most) = (show_size(bytes), show_size(most));
        format!("a payload of {bytes} is too large: {key} allows {most}")
    })
}

/// Answer of a server to an intent: a refusal, or its inline sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) refusal: String,
    pub(super) inline_recv_bytes: usize,
    pub(super) inline_send_bytes: usize,
}

impl Welcome {
    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.opaque(self.refusal.as_bytes());
        results.u32(self.inline_recv_bytes as u32);
        results.u32(self.inline_send_bytes as u32);
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let refusal = results.string(REFUSAL_BYTES_MAX)?.to_owned();
        let (inline_recv_bytes, inline_send_bytes) = (results.u32()?, results.u32()?);
        Ok(Self {
            refusal,
            inline_recv_bytes: inline_recv_bytes as usize,
            inline_send_bytes: inline_send_bytes as usize,
        })
    }
}

/// Reverse load that a server is to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackPlan {
    pub(super) workload: Workload,
    pub(super) warmup_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) calls_max: Option<u64>,
}

impl BackPlan {
    /// Decodes the request of a client; `None` for one that this version does not know.
    pub(super) fn decode(mut args: Decoder<'_>) -> Result<Option<Self>, DecodeError> {
        let share = decode_share(&mut args)?;
        let depth = args.u32()? as usize;
        let verify = Verify::from_wire(args.u32()?);
        let (warmup_ns, duration_ns, calls) = (args.u64()?, args.u64()?, args.u64()?);
        args.finish()?;
        let (Some(share), Some(verify)) = (share, verify) else { return Ok(None) };
        let workload = Workload::ping_pong(share.op, share.call_bytes);
        let workload = workload.at_depth(depth).verified(verify).in_reverse();
        let workload = Workload { reply_bytes: share.reply_bytes, ..workload };
        let calls_max = (calls != 0).then_some(calls);
        Ok(Some(Self { workload, warmup_ns, duration_ns, calls_max }))
    }

    pub(super) fn encode(&self, args: &mut Encoder<'_>) {
        let workload = &self.workload;
        args.u32(workload.op.to_wire());
        args.u32(workload.call_bytes as u32);
        args.u32(workload.reply_bytes as u32);
        args.u32(workload.depth as u32);
        args.u32(workload.verify.to_wire());
        args.u64(self.warmup_ns);
        args.u64(self.duration_ns);
        args.u64(self.calls_max.unwrap_or(0));
    }

    /// Reason why a server with this configuration rejects it.
    pub(super) fn refusal(&self, config: &Config) -> Option<String> {
        Intent::of(&self.workload, true).refusal(config)
    }
}

/// Results: measured time and every latency, as the buckets of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) elapsed_ns: u64,
    pub(super) lost: u64,
    /// Nanoseconds, and the number of calls with this latency; in ascending order.
    pub(super) buckets: Vec<(u64, u64)>,
}

impl Figures {
    pub(super) fn of(tally: &Tally) -> Self {
        let ns_per_tick = 1e9 / Clock::shared().ticks_per_second() as f64;
        let ns = |ticks: u64| (ticks as f64 * ns_per_tick) as u64;
        let total = tally.recorded.first().map(Recorded::total);
        let steps = total.iter().flat_map(|total| total.iter_recorded());
        let mut buckets: Vec<_> =
            steps.map(|step| (ns(step.value_iterated_to()), step.count_at_value())).collect();
        while buckets.len() > BUCKETS_MAX {
            buckets = buckets.chunks(2).map(joined).collect();
        }
        let [start, end] = tally.span;
        Self { elapsed_ns: ns(end - start), lost: tally.lost.iter().sum(), buckets }
    }

    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.elapsed_ns);
        results.u64(self.lost);
        results.u32(self.buckets.len() as u32);
        for (ns, count) in &self.buckets {
            results.u64(*ns);
            results.u64(*count);
        }
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let (elapsed_ns, lost) = (results.u64()?, results.u64()?);
        let count = (results.u32()? as usize).min(BUCKETS_MAX);
        let buckets =
            (0..count).map(|_| Ok((results.u64()?, results.u64()?))).collect::<Result<_, _>>()?;
        Ok(Self { elapsed_ns, lost, buckets })
    }
}

/// Merges neighbours, with the longest latency of them.
fn joined(buckets: &[(u64, u64)]) -> (u64, u64) {
    let longest = buckets.iter().map(|bucket| bucket.0).max().unwrap_or(0);
    (longest, buckets.iter().map(|bucket| bucket.1).sum())
}

/// Limits the transmitted buckets of a histogram; a precision of a thousandth needs fewer up to
/// milliseconds.
const BUCKETS_MAX: usize = 8192;
/// Maximum length of figures.
pub(super) const FIGURES_BYTES_MAX: usize = 20 + BUCKETS_MAX * 16;
/// The maximum depth on the command line.
const DEPTH_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::config::RawConfig;

    fn config() -> Config {
        let mut raw = RawConfig::default();
        raw.rpc.reverse_calls = 8;
        raw.validate().unwrap()
    }

    fn echo(bytes: usize) -> Workload {
        Workload::ping_pong(Operation::Echo, bytes)
    }

    #[test]
    fn a_server_takes_what_its_profile_has_room_for() {
        assert_eq!(Intent::of(&echo(64), true).refusal(&config()), None);
    }

    /// Ask for more than is available. Expect a reason that names the key.
    #[test]
    fn a_server_refuses_what_exceeds_its_memory_with_a_reason() {
        let many = Workload { connections: 1 << 20, ..echo(64) };
        let deep = echo(64).at_depth(1 << 30);
        let greedy = echo(1 << 20).at_depth(4096);
        for (workload, key) in [
            (echo(1 << 31), "rpc.max_write_bytes"),
            (Workload::ping_pong(Operation::Read, 1 << 31), "rpc.max_read_bytes"),
            (many, "limits.conns"),
            (deep, "1 to 4096"),
            (greedy, "mem.arena_mib"),
        ] {
            let refusal = Intent::of(&workload, true).refusal(&config()).unwrap();
            assert!(refusal.contains(key) && refusal.len() < REFUSAL_BYTES_MAX, "{refusal}");
        }
        let refusal = Intent::of(&echo(64), true).refusal(&Config::default());
        assert!(refusal.is_some_and(|why| why.contains("in reverse")));
    }

    #[test]
    fn neighbours_are_joined_where_there_are_too_many() {
        assert_eq!(joined(&[(10, 3), (20, 4)]), (20, 7));
        assert_eq!(joined(&[(10, 3)]), (10, 3));
    }

    #[test]
    fn an_intent_survives_the_wire_and_a_false_one_is_nothing() {
        let words = |numbers: &[u32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
        };
        let read = |numbers: &[u32]| Intent::decode(Decoder::plain(&words(numbers)));
        let right = read(&[1, 1, 64, 8, 4, 2, 2, 1]).unwrap().unwrap();
        assert_eq!((right.depth, right.connections, right.reverse), (4, 2, true));
        assert_eq!((right.shares[0].call_bytes, right.shares[0].reply_bytes), (64, 8));
        assert_eq!(read(&[1, 9, 64, 8, 4, 2, 2, 1]), Ok(None));
        assert_eq!(read(&[u32::MAX, 1, 64, 8]), Ok(None));
        assert!(read(&[1, 1, 64]).is_err());
    }
}
