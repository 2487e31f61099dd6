//! Control data in addition to the measured calls: the client's intent, the server's answer, the
//! loop that the server is to run in reverse, and its results. Everything from a peer is checked
//! against bounds before use.

use super::driver::Tally;
use super::hdr_encoding;
use super::measurement::nanoseconds;
use super::outcome::to_nanoseconds;
use super::program::{REFUSAL_BYTES_MAX, SHARES_MAX};
use super::workload::{Limits, Operation, Share, Workload};
use crate::failure::Failure;
use crate::pattern::Verify;
use crate::units::show_size;
use hdrhistogram::Histogram;
use spinrpc::sys::clock::Clock;
use spinrpc::{Config, DecodeError, Decoder, Encoder};
use spinrpc_xdr::{Array, Text, TooLong, Xdr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub(super) struct Calls {
    op: Operation,
    call_bytes: u32,
    reply_bytes: u32,
}

impl Calls {
    pub(super) fn of(share: &Share) -> Self {
        let (call_bytes, reply_bytes) = (share.call_bytes as u32, share.reply_bytes as u32);
        Self { op: share.op, call_bytes, reply_bytes }
    }

    fn share(self) -> Share {
        let (call_bytes, reply_bytes) = (self.call_bytes as usize, self.reply_bytes as usize);
        Share { op: self.op, weight: 1, call_bytes, reply_bytes }
    }
}

#[derive(Clone, Copy, Debug, Xdr)]
pub(super) struct Intent<'a> {
    shares: Array<'a, Calls, SHARES_MAX>,
    depth: u32,
    connections: u32,
    verify: Verify,
    reverse: bool,
}

impl<'a> Intent<'a> {
    pub(super) fn of(
        workload: &Workload,
        shares: &'a [Calls],
        servers: usize,
    ) -> Result<Self, TooLong> {
        let connections = workload.connections + workload.idle_connections;
        Ok(Self {
            shares: Array::new(shares)?,
            depth: workload.depth as u32,
            connections: connections.div_ceil(servers.max(1)) as u32,
            verify: workload.verify,
            reverse: workload.reverse || workload.both,
        })
    }

    pub(super) fn refusal(&self, config: &Config) -> Option<String> {
        let mut shares = self.shares.iter().map(Calls::share);
        let too_large = shares.find_map(|share| refusal_of_size(&share, config));
        too_large
            .or_else(|| self.refusal_of_number(config))
            .or_else(|| self.reverse.then(|| self.refusal_of_reverse(config)).flatten())
    }

    fn refusal_of_number(&self, config: &Config) -> Option<String> {
        let (wanted, most) = (self.connections as usize, config.conns_max());
        (wanted > most).then(|| {
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
        let shares = self.shares.iter().map(Calls::share);
        let call_bytes = shares.map(|share| share.call_bytes + share.reply_bytes);
        let bytes = call_bytes.max().unwrap_or(0).saturating_mul(self.depth as usize);
        let most = config.arena_bytes();
        (bytes > most).then(|| {
            let (bytes, most) = (show_size(bytes), show_size(most));
            format!("calls in reverse would need {bytes}: mem.arena_mib allows {most}")
        })
    }
}

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

#[derive(Clone, Copy, Debug, Xdr)]
pub(super) struct Welcome<'a> {
    refusal: Text<'a, REFUSAL_BYTES_MAX>,
    inline_recv_bytes: u32,
    inline_send_bytes: u32,
}

impl<'a> Welcome<'a> {
    /// A refusal, unless it is empty.
    pub(super) fn new(refusal: &'a str, config: &Config) -> Self {
        let end = refusal.floor_char_boundary(REFUSAL_BYTES_MAX as usize);
        Self {
            // Cannot fail, as it is short enough.
            refusal: Text::new(&refusal[..end]).unwrap_or_default(),
            inline_recv_bytes: config.inline_recv_bytes() as u32,
            inline_send_bytes: config.inline_send_bytes() as u32,
        }
    }

    pub(super) fn answer(self) -> Result<[usize; 2], String> {
        match &*self.refusal {
            "" => Ok([self.inline_recv_bytes as usize, self.inline_send_bytes as usize]),
            refusal => Err(refusal.to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub(super) struct BackPlan {
    calls: Calls,
    depth: u32,
    verify: Verify,
    pub(super) warmup_ns: u64,
    pub(super) duration_ns: u64,
    /// 0 for no limit.
    pub(super) calls_max: u64,
}

impl BackPlan {
    pub(super) fn new(workload: &Workload, limits: &Limits) -> Self {
        let Workload { op, call_bytes, reply_bytes, .. } = *workload;
        Self {
            calls: Calls::of(&Share { op, weight: 1, call_bytes, reply_bytes }),
            depth: workload.depth as u32,
            verify: workload.verify,
            warmup_ns: limits.warmup.as_nanos() as u64,
            duration_ns: limits.duration.as_nanos() as u64,
            calls_max: limits.calls.unwrap_or(0),
        }
    }

    pub(super) fn workload(&self) -> Workload {
        let Share { op, call_bytes, reply_bytes, .. } = self.calls.share();
        let workload = Workload::ping_pong(op, call_bytes).at_depth(self.depth as usize);
        Workload { reply_bytes, verify: self.verify, ..workload.in_reverse() }
    }

    pub(super) fn refusal(&self, config: &Config) -> Option<String> {
        let intent = Intent::of(&self.workload(), std::slice::from_ref(&self.calls), 1);
        intent.map_or_else(|error| Some(error.to_string()), |intent| intent.refusal(config))
    }
}

pub(super) struct Figures {
    pub(super) elapsed_ns: u64,
    pub(super) lost: u64,
    pub(super) carried_in_ns: u64,
    /// In nanoseconds.
    pub(super) latency: Histogram<u64>,
}

impl Figures {
    pub(super) fn of(tally: &Tally) -> Result<Self, Failure> {
        let ns_per_tick = 1e9 / Clock::shared().ticks_per_second() as f64;
        let [start, end] = tally.span;
        let ns = |ticks: u64| (ticks as f64 * ns_per_tick) as u64;
        let latency =
            tally.recorded.first().map(|one| to_nanoseconds(one.histogram(), ns_per_tick));
        Ok(Self {
            elapsed_ns: ns(end - start),
            lost: tally.lost.iter().sum(),
            carried_in_ns: ns(tally.carried_in),
            latency: latency.unwrap_or_else(nanoseconds)?,
        })
    }

    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.elapsed_ns);
        results.u64(self.lost);
        results.u64(self.carried_in_ns);
        results.opaque(&hdr_encoding::to_bytes(&self.latency));
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let [elapsed_ns, lost, carried_in_ns] = [results.u64()?, results.u64()?, results.u64()?];
        let latency = hdr_encoding::from_bytes(results.opaque(HISTOGRAM_BYTES_MAX)?);
        let latency =
            latency.ok_or(DecodeError::LimitExceeded { what: "a histogram of spinperf" })?;
        Ok(Self { elapsed_ns, lost, carried_in_ns, latency })
    }
}

/// More than a histogram up to an hour takes, of which every bucket has a million calls.
const HISTOGRAM_BYTES_MAX: usize = 128 << 10;
pub(super) const FIGURES_BYTES_MAX: usize = 32 + HISTOGRAM_BYTES_MAX;
const DEPTH_MAX: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::config::RawConfig;
    use spinrpc_xdr::Decode;

    fn config() -> Config {
        let mut raw = RawConfig::default();
        raw.rpc.reverse_calls = 8;
        raw.validate().unwrap()
    }

    fn echo(bytes: usize) -> Workload {
        Workload::ping_pong(Operation::Echo, bytes)
    }

    fn refusal(workload: &Workload, config: &Config) -> Option<String> {
        let shares: Vec<Calls> = workload.shares().iter().map(Calls::of).collect();
        Intent::of(workload, &shares, 1).unwrap().refusal(config)
    }

    #[test]
    fn a_server_takes_what_its_profile_has_room_for() {
        assert_eq!(refusal(&echo(64).in_reverse(), &config()), None);
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
            let refusal = refusal(&workload.in_reverse(), &config()).unwrap();
            assert!(refusal.contains(key), "{refusal}");
            assert!(refusal.len() < REFUSAL_BYTES_MAX as usize, "{refusal}");
        }
        let refusal = refusal(&echo(64).in_reverse(), &Config::default());
        assert!(refusal.is_some_and(|why| why.contains("in reverse")));
    }

    #[test]
    fn an_intent_survives_the_wire_and_a_false_one_is_refused() {
        let words = |numbers: &[u32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
        };
        let bytes = words(&[1, 1, 64, 8, 4, 2, 2, 1]);
        let right = Intent::decode(&mut Decoder::plain(&bytes)).unwrap();
        assert_eq!((right.depth, right.connections, right.reverse), (4, 2, true));
        let share = right.shares.get(0).unwrap().share();
        assert_eq!((share.call_bytes, share.reply_bytes), (64, 8));
        for wrong in [&[1, 9, 64, 8, 4, 2, 2, 1][..], &[u32::MAX, 1, 64, 8], &[1, 1, 64]] {
            assert!(Intent::decode(&mut Decoder::plain(&words(wrong))).is_err(), "{wrong:?}");
        }
    }
}
