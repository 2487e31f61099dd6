//! Counters of cores, and their activity between two reads. One answer of the server covers all its
//! cores; a client reads its own.

use super::measurement::CoreUse;
use super::program::CORES_MAX;
use crate::env::{Holdings, StealTimes};
use spinrpc::sys::clock::Clock;
use spinrpc::{DecodeError, Decoder, Encoder, Engine};

/// Counters of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CoreStatus {
    cpu: u64,
    busy_ticks: u64,
    polls: u64,
    empty_polls: u64,
    /// Calls made and answered.
    calls: u64,
    credit_stalls: u64,
    queue_full: u64,
    copies: u64,
    /// Time that the hypervisor ran something else instead of the CPU.
    steal_ms: u64,
}

/// Counters of all cores of a process, and their time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    ticks: u64,
    ticks_per_second: u64,
    cores: Vec<CoreStatus>,
}

impl Status {
    /// Reads these cores of an engine.
    pub(super) fn observe(engine: &Engine, cores: impl Iterator<Item = usize>) -> Self {
        let clock = Clock::shared();
        let cpus = engine.config().cpus();
        let core = |index: usize| {
            // They are cores of this engine.
            let stats = engine.stats(index).unwrap_or_default();
            CoreStatus {
                cpu: cpus.get(index).copied().unwrap_or_default() as u64,
                busy_ticks: stats.busy_ticks,
                polls: stats.polls,
                empty_polls: stats.empty_polls,
                calls: stats.replies_received + stats.calls_received,
                credit_stalls: stats.credit_stalls,
                queue_full: stats.queue_full,
                copies: stats.copies,
                steal_ms: 0,
            }
        };
        let (ticks, ticks_per_second) = (clock.now().0, clock.ticks_per_second());
        let mut cores: Vec<_> = cores.take(CORES_MAX).map(core).collect();
        // Last, because it takes long, and a core counts the time to its next turn with work as
        // busy: before `ticks` it would make the core busier than the elapsed time.
        let steal = StealTimes::now();
        cores.iter_mut().for_each(|core| core.steal_ms = steal.ms(&[core.cpu as usize]) as u64);
        Self { ticks, ticks_per_second, cores }
    }

    /// Activity of each core between `self` and `after`.
    pub(super) fn until(&self, after: &Self) -> Vec<CoreUse> {
        let ticks = after.ticks.saturating_sub(self.ticks).max(1);
        let seconds = ticks as f64 / self.ticks_per_second.max(1) as f64;
        let of = |(before, after): (&CoreStatus, &CoreStatus)| before.until(after, ticks, seconds);
        self.cores.iter().zip(&after.cores).map(of).collect()
    }

    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.ticks);
        results.u64(self.ticks_per_second);
        results.u32(self.cores.len() as u32);
        for core in &self.cores {
            core.words().iter().for_each(|word| results.u64(*word));
        }
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let (ticks, ticks_per_second) = (results.u64()?, results.u64()?);
        let count = (results.u32()? as usize).min(CORES_MAX);
        let cores =
            (0..count).map(|_| CoreStatus::decode(&mut results)).collect::<Result<_, _>>()?;
        Ok(Self { ticks, ticks_per_second, cores })
    }
}

impl CoreStatus {
    fn words(&self) -> [u64; 9] {
        [
            self.cpu,
            self.busy_ticks,
            self.polls,
            self.empty_polls,
            self.calls,
            self.credit_stalls,
            self.queue_full,
            self.copies,
            self.steal_ms,
        ]
    }

    fn decode(results: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            cpu: results.u64()?,
            busy_ticks: results.u64()?,
            polls: results.u64()?,
            empty_polls: results.u64()?,
            calls: results.u64()?,
            credit_stalls: results.u64()?,
            queue_full: results.u64()?,
            copies: results.u64()?,
            steal_ms: results.u64()?,
        })
    }

    fn until(&self, after: &Self, ticks: u64, seconds: f64) -> CoreUse {
        let since = |of: fn(&Self) -> u64| of(after).wrapping_sub(of(self));
        let (calls, busy_ticks) = (since(|core| core.calls), since(|core| core.busy_ticks) as f64);
        CoreUse {
            cpu: Some(after.cpu as usize),
            calls,
            calls_per_second: calls as f64 / seconds,
            busy_ticks_per_call: (calls > 0).then(|| busy_ticks / calls as f64),
            busy_percent: busy_ticks * 100.0 / ticks as f64,
            polls: since(|core| core.polls),
            empty_polls: since(|core| core.empty_polls),
            credit_stalls: since(|core| core.credit_stalls),
            queue_full: since(|core| core.queue_full),
            copies: since(|core| core.copies),
            steal_ms: after.steal_ms.saturating_sub(self.steal_ms),
        }
    }
}

pub(super) fn encode_holdings(holdings: Holdings, results: &mut Encoder<'_>) {
    results.u64(holdings.resident_bytes);
    results.u64(holdings.descriptors);
}

pub(super) fn decode_holdings(mut results: Decoder<'_>) -> Result<Holdings, DecodeError> {
    Ok(Holdings { resident_bytes: results.u64()?, descriptors: results.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_as_busy_as_its_ticks_and_its_calls_share_them() {
        let core = |calls, busy_ticks| CoreStatus {
            cpu: 5,
            calls,
            busy_ticks,
            steal_ms: calls,
            ..CoreStatus::default()
        };
        let status = |ticks, cores| Status { ticks, ticks_per_second: 1000, cores };
        let before = status(1000, vec![core(10, 500), core(0, 0)]);
        let after = status(3000, vec![core(110, 1500), core(0, 0)]);
        let used = before.until(&after);
        assert_eq!((used[0].cpu, used[0].calls, used[0].calls_per_second), (Some(5), 100, 50.0));
        assert_eq!((used[0].busy_ticks_per_call, used[0].busy_percent), (Some(10.0), 50.0));
        assert_eq!((used[0].steal_ms, used[1].steal_ms), (100, 0));
        assert_eq!(used[1].busy_ticks_per_call, None);
    }
}
