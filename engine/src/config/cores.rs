//! Selection of the CPUs that the cores run on.

use super::raw::{RawCores, SmtPolicy};
use super::{ConfigError, to_usize};
use crate::sys::affinity;
use crate::sys::topology::Topology;
use std::fmt;
use std::str::FromStr;

/// Key `cores.list`: the CPU of each core, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreList {
    /// The engine picks, see [`Host`].
    Auto,
    /// These CPUs, core 0 on the first one. Obeyed as written: `cores.max`, `cores.skip` and
    /// `cores.smt` are for `Auto`.
    Cpus(Vec<usize>),
}

/// CPUs of the host, with the properties that the selection uses.
///
/// `auto` takes the CPUs that are isolated (kernel parameter `isolcpus`) and allowed; where there
/// are none, the allowed ones. Of three or more it drops CPU 0, which the kernel uses for itself;
/// of fewer it takes CPU 0 last. Those that share a physical core with CPU 0 come after those that
/// do not. Second hardware threads come after all first ones, and with `cores.smt = avoid` never
/// together with the first one in the same process. `cores.skip` then leaves out the first few, so
/// that a client and a server of one host, `skip = 0` and `skip = 1`, use two CPUs even where there
/// are only two. When the CPUs run out, `auto` begins again with the first.
///
/// An engine then passes over the CPUs that other engines of the host have claimed, of any process, as
/// long as there are others ([`CpuClaim`](crate::sys::cpu_claim::CpuClaim)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// CPUs this process may run on, ascending.
    pub allowed: Vec<usize>,
    /// CPUs kept free of other work by the kernel, ascending.
    pub isolated: Vec<usize>,
    /// CPUs that share a physical core, one entry for each physical core with several.
    pub smt_siblings: Vec<Vec<usize>>,
}

impl Host {
    /// This host, as the calling thread may use it: ask before pinning that thread to a CPU.
    ///
    /// Facts that the system does not report are left out: without sysfs there are no isolated CPUs
    /// and no siblings, and a thread that cannot learn its CPUs is taken to have CPU 0 only. Makes
    /// system calls and reads files.
    pub fn current() -> Self {
        let allowed = affinity::allowed().unwrap_or_default();
        let allowed = if allowed.is_empty() { vec![0] } else { allowed.iter().collect() };
        let Ok(topology) = Topology::current() else {
            return Self { allowed, ..Self::default() };
        };
        let isolated = topology.isolated().iter().collect();
        let siblings = topology.online().iter().filter_map(|cpu| topology.siblings(cpu));
        let mut smt_siblings: Vec<Vec<usize>> =
            siblings.filter(|core| core.len() > 1).map(|core| core.iter().collect()).collect();
        smt_siblings.sort_unstable();
        smt_siblings.dedup();
        Self { allowed, isolated, smt_siblings }
    }

    fn share_a_core(&self, a: usize, b: usize) -> bool {
        self.smt_siblings.iter().any(|core| core.contains(&a) && core.contains(&b))
    }

    /// The CPUs `auto` may take, best first; never empty.
    fn preference(&self) -> Vec<usize> {
        let isolated = self.isolated.iter().filter(|cpu| self.allowed.contains(cpu));
        let mut pool: Vec<usize> = isolated.copied().collect();
        if pool.is_empty() {
            pool.clone_from(&self.allowed);
        }
        let has_zero = pool.contains(&0);
        pool.retain(|&cpu| cpu != 0);
        let mut order = self.second_threads_last(&pool);
        if order.is_empty() || (has_zero && order.len() == 1) {
            order.push(0);
        }
        order
    }

    fn second_threads_last(&self, pool: &[usize]) -> Vec<usize> {
        let mut first: Vec<usize> = Vec::with_capacity(pool.len());
        let mut second = Vec::new();
        for &cpu in pool {
            let taken = first.iter().any(|&other| self.share_a_core(cpu, other));
            if taken { &mut second } else { &mut first }.push(cpu);
        }
        // The kernel's own work on CPU 0 slows the other thread of its physical core.
        first.sort_by_key(|&cpu| self.share_a_core(cpu, 0));
        first.append(&mut second);
        first
    }
}

/// The CPU of each core.
pub(super) fn resolve(cores: &RawCores, host: &Host) -> Result<Vec<usize>, ConfigError> {
    let CoreList::Cpus(cpus) = &cores.list else { return Ok(automatic(cores, host)) };
    if cpus.iter().all(|cpu| host.allowed.contains(cpu)) {
        return Ok(cpus.clone());
    }
    let allowed = CoreList::Cpus(host.allowed.clone());
    Err(ConfigError {
        key: "cores.list",
        value: format!("\"{}\"", cores.list),
        expected: format!("CPUs that this process may use: {allowed}"),
    })
}

/// CPUs that `auto` may take on this host, best first; none with a list.
pub(super) fn candidates(cores: &RawCores, host: &Host) -> Vec<usize> {
    match cores.list {
        CoreList::Auto => automatic(&RawCores { max: u64::MAX, ..cores.clone() }, host),
        CoreList::Cpus(_) => Vec::new(),
    }
}

/// CPUs that `auto` selects on this host; at least one, and at most `cores.max`.
pub(super) fn automatic(cores: &RawCores, host: &Host) -> Vec<usize> {
    let order = host.preference();
    let start = to_usize(cores.skip) % order.len();
    let mut taken: Vec<usize> = Vec::new();
    for &cpu in order.iter().cycle().skip(start).take(order.len()) {
        let beside = taken.iter().any(|&other| host.share_a_core(cpu, other));
        if !(beside && cores.smt == SmtPolicy::Avoid) {
            taken.push(cpu);
        }
    }
    taken.truncate(to_usize(cores.max).max(1));
    taken
}

/// Highest CPU number a list may name, so that a short text cannot ask for a huge list.
const CPU_MAX: usize = 4095;

impl CoreList {
    /// Reads a list from `text`. Returns `false`, and changes nothing, if `text` is not a list.
    pub(super) fn read(&mut self, text: &str) -> bool {
        text.parse().map(|cores| *self = cores).is_ok()
    }
}

impl FromStr for CoreList {
    type Err = ();

    /// Reads `auto` or a list such as `2-5,8`: nothing twice, at least one CPU.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let cpu = |digits: &str| digits.trim().parse::<usize>().ok().filter(|&n| n <= CPU_MAX);
            let (first, last) = (cpu(first).ok_or(())?, cpu(last).ok_or(())?);
            if first > last || cpus.iter().any(|listed| (first..=last).contains(listed)) {
                return Err(());
            }
            cpus.extend(first..=last);
        }
        Ok(Self::Cpus(cpus))
    }
}

impl fmt::Display for CoreList {
    /// Writes the format that [`CoreList::from_str`] reads, runs of ascending CPUs as ranges.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Cpus(cpus) = self else { return out.write_str("auto") };
        for (index, run) in cpus.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [first, .., last] => write!(out, "{comma}{first}-{last}")?,
                run => write!(out, "{comma}{}", run.first().copied().unwrap_or_default())?,
            }
        }
        Ok(())
    }
}
