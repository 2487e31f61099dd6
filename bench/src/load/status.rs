//! Counters of cores, and their activity between two reads. One answer of the server covers all its
//! cores; a client reads its own.

use super::measurement::CoreUse;
use super::program::CORES_MAX;
use crate::env::{StealTimes, ThreadTimes};
use spinrpc::sys::clock::Clock;
use spinrpc::{DecodeError, Decoder, Encoder, Engine};
use spinrpc_xdr::{Array, Decode, Encode, Xdr};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
struct CoreStatus {
    /// If it is pinned.
    cpu: u64,
    busy_ticks: u64,
    polls: u64,
    empty_polls: u64,
    calls: u64,
    credit_stalls: u64,
    queue_full: u64,
    copies: u64,
    /// Time that the hypervisor ran something else instead of the CPU.
    steal_ms: u64,
    /// Times of its thread; zero if the kernel does not report them.
    cpu_ns: u64,
    system_ns: u64,
    switches: u64,
    waited_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    ticks: u64,
    ticks_per_second: u64,
    cores: Vec<CoreStatus>,
}

impl Status {
    pub(super) fn observe(
        engine: &Engine,
        cores: impl Iterator<Item = usize>,
        thread: impl Fn(usize) -> Option<ThreadTimes>,
    ) -> Self {
        let clock = Clock::shared();
        let config = engine.config();
        let cpus = if config.pins_cores() { config.cpus() } else { &[] };
        let core = |index: usize| {
            // They are cores of this engine.
            let stats = engine.stats(index).unwrap_or_default();
            CoreStatus {
                cpu: cpus.get(index).map_or(UNKNOWN, |cpu| *cpu as u64),
                busy_ticks: stats.busy_ticks,
                polls: stats.polls,
                empty_polls: stats.empty_polls,
                calls: stats.replies_received + stats.calls_received,
                credit_stalls: stats.credit_stalls,
                queue_full: stats.queue_full,
                copies: stats.copies,
                ..CoreStatus::default()
            }
        };
        let (ticks, ticks_per_second) = (clock.now().0, clock.ticks_per_second());
        let indices: Vec<usize> = cores.take(CORES_MAX as usize).collect();
        let mut cores: Vec<_> = indices.iter().copied().map(core).collect();
        // Last, because it takes long, and a core counts the time to its next turn with work as
        // busy: before `ticks` it would make the core busier than the elapsed time.
        let steal = StealTimes::now();
        for (core, index) in cores.iter_mut().zip(indices) {
            core.steal_ms = known(core.cpu).map_or(0, |cpu| steal.ms(&[cpu as usize]) as u64);
            let times = thread(index).unwrap_or_default();
            (core.cpu_ns, core.system_ns) = (times.cpu_ns, times.system_ns);
            (core.switches, core.waited_ns) = (times.switches, times.waited_ns.unwrap_or(UNKNOWN));
        }
        Self { ticks, ticks_per_second, cores }
    }

    pub(super) fn until(&self, after: &Self) -> Vec<CoreUse> {
        let ticks = after.ticks.saturating_sub(self.ticks).max(1);
        let seconds = ticks as f64 / self.ticks_per_second.max(1) as f64;
        let of = |(before, after): (&CoreStatus, &CoreStatus)| before.until(after, ticks, seconds);
        self.cores.iter().zip(&after.cores).map(of).collect()
    }

    pub(super) fn only_cpu(&self) -> Option<usize> {
        let [core] = &self.cores[..] else { return None };
        known(core.cpu).map(|cpu| cpu as usize)
    }

    pub(super) fn encode(&self, results: &mut Encoder<'_>) {
        results.u64(self.ticks);
        results.u64(self.ticks_per_second);
        results.u32(self.cores.len() as u32);
        self.cores.iter().for_each(|core| core.encode(results));
    }

    pub(super) fn decode(mut results: Decoder<'_>) -> Result<Self, DecodeError> {
        let (ticks, ticks_per_second) = (results.u64()?, results.u64()?);
        let cores = Array::<CoreStatus, CORES_MAX>::decode(&mut results)?;
        Ok(Self { ticks, ticks_per_second, cores: cores.iter().collect() })
    }
}

pub(super) fn until(before: &[Status], after: &[Status]) -> Vec<CoreUse> {
    before.iter().zip(after).flat_map(|(before, after)| before.until(after)).collect()
}

impl CoreStatus {
    fn until(&self, after: &Self, ticks: u64, seconds: f64) -> CoreUse {
        let since = |of: fn(&Self) -> u64| of(after).wrapping_sub(of(self));
        let (calls, busy_ticks) = (since(|core| core.calls), since(|core| core.busy_ticks) as f64);
        let is_counted = self.cpu_ns > 0 && after.cpu_ns >= self.cpu_ns;
        let percent = |ns: u64| is_counted.then(|| ns as f64 / seconds / 1e7);
        let cpu_ns = since(|core| core.cpu_ns);
        let waits = known(self.waited_ns).zip(known(after.waited_ns));
        CoreUse {
            cpu: known(after.cpu).map(|cpu| cpu as usize),
            calls,
            calls_per_second: calls as f64 / seconds,
            busy_ticks_per_call: (calls > 0).then(|| busy_ticks / calls as f64),
            busy_percent: Some(busy_ticks * 100.0 / ticks as f64),
            polls: since(|core| core.polls),
            empty_polls: since(|core| core.empty_polls),
            credit_stalls: since(|core| core.credit_stalls),
            queue_full: since(|core| core.queue_full),
            copies: since(|core| core.copies),
            steal_ms: after.steal_ms.saturating_sub(self.steal_ms),
            cpu_percent: percent(cpu_ns),
            // In coarser steps than the whole.
            system_percent: percent(since(|core| core.system_ns).min(cpu_ns)),
            switches: is_counted.then(|| since(|core| core.switches)),
            waited_percent: waits.and_then(|(before, after)| percent(after.saturating_sub(before))),
        }
    }
}

/// In place of a CPU, and of the time that a thread waited.
const UNKNOWN: u64 = u64::MAX;

fn known(word: u64) -> Option<u64> {
    Some(word).filter(|word| *word != UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status<const N: usize>(ticks: u64, cores: [CoreStatus; N]) -> Status {
        Status { ticks, ticks_per_second: 1000, cores: cores.into() }
    }

    #[test]
    fn a_core_is_as_busy_as_its_ticks_and_its_calls_share_them() {
        let core = |calls, busy_ticks| CoreStatus {
            cpu: 5,
            calls,
            busy_ticks,
            steal_ms: calls,
            ..CoreStatus::default()
        };
        let before = status(1000, [core(10, 500), core(0, 0)]);
        let used = before.until(&status(3000, [core(110, 1500), core(0, 0)]));
        assert_eq!((used[0].cpu, used[0].calls, used[0].calls_per_second), (Some(5), 100, 50.0));
        assert_eq!((used[0].busy_ticks_per_call, used[0].busy_percent), (Some(10.0), Some(50.0)));
        assert_eq!((used[0].steal_ms, used[1].steal_ms), (100, 0));
        assert_eq!((used[1].busy_ticks_per_call, used[0].cpu_percent), (None, None));
    }

    /// A core of an engine that does not pin it: no CPU to compare with, to count the steal time of, or to pin to.
    #[test]
    fn a_core_that_is_not_pinned_has_no_cpu() {
        let mut raw = spinrpc::config::RawConfig::default();
        raw.cores.list = spinrpc::config::CoreList::Any;
        let engine = Engine::new(raw.validate().unwrap()).unwrap();
        let status = Status::observe(&engine, std::iter::once(0), |_| None);
        assert_eq!(status.only_cpu(), None);
        let mut room = [0; 512];
        let mut to = Encoder::new(&mut room, &[]);
        status.encode(&mut to);
        let bytes = to.finish().stream_bytes;
        let read = Status::decode(Decoder::plain(&room[..bytes])).unwrap();
        assert_eq!((read.until(&read)[0].cpu, read), (None, status));
    }

    /// Sleep for most of two seconds. Expect the time on the CPU, of which turns with work are a part, and nothing from
    /// a thread that is not counted.
    #[test]
    fn a_core_uses_its_cpu_for_more_than_turns_with_work() {
        let at = |ticks, [cpu_ms, system_ms, switches]: [u64; 3]| {
            let core = CoreStatus {
                busy_ticks: ticks / 1000,
                cpu_ns: cpu_ms * 1_000_000,
                system_ns: system_ms * 1_000_000,
                waited_ns: switches * 1_000_000,
                switches,
                ..CoreStatus::default()
            };
            status(ticks, [core])
        };
        let used = at(1000, [50, 10, 100]).until(&at(3000, [250, 90, 1100]))[0];
        assert_eq!((used.cpu_percent, used.system_percent), (Some(10.0), Some(4.0)));
        assert_eq!((used.switches, used.busy_percent), (Some(1000), Some(0.1)));
        assert_eq!(used.waited_percent, Some(50.0));
        let unknown = at(1000, [0; 3]).until(&at(3000, [250, 90, 1100]))[0];
        assert_eq!((unknown.cpu_percent, unknown.switches), (None, None));
    }
}
