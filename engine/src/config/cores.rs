//! Selection of the CPUs that the cores run on.

use super::keys::RawCores;
use super::{ConfigError, to_usize};
use crate::sys::affinity::{self, CPUS_MAX};
use crate::sys::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Key `cores.list`: the CPU of each core, `auto` or `any`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreList {
    /// The engine picks, see [`Host`].
    Auto,
    /// As many cores as `cores.max` says, at most one for each CPU that this process may use, and their threads are not
    /// pinned: the kernel moves them, with their caches and without regard to other pollers. For hosts that this process
    /// shares, and with `poll.mode` other than `busy`.
    Any,
    /// These CPUs, core 0 on the first one. Obeyed as written: `cores.max` is for `Auto`.
    Cpus(Vec<usize>),
}

/// CPUs of the host, with the properties that the selection uses.
///
/// `auto` takes the CPUs that are isolated (kernel parameter `isolcpus`) and allowed; where there
/// are none, the allowed ones. Of three or more it drops CPU 0, which the kernel uses for itself;
/// of fewer it takes CPU 0 last. Those that share a physical core with CPU 0 come after those that
/// do not. Second hardware threads come after all first ones. An engine has no more cores than there are
/// physical cores: two pollers on one take each other's cycles.
///
/// An engine then passes over the CPUs that other engines of the host have claimed, of any process, as
/// long as there are others ([`CpuClaim`](crate::sys::cpu_claim::CpuClaim)): a client and a server of one
/// host use two CPUs even where there are only two.
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

    /// The physical core of each CPU that shares one.
    fn shared_cores(&self) -> BTreeMap<usize, usize> {
        let cores = self.smt_siblings.iter().enumerate();
        cores.flat_map(|(core, cpus)| cpus.iter().map(move |&cpu| (cpu, core))).collect()
    }

    /// The CPUs `auto` may take, best first; never empty.
    pub fn preference(&self) -> Vec<usize> {
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
        let shared = self.shared_cores();
        let mut taken = BTreeSet::new();
        let is_first = |cpu: &usize| shared.get(cpu).is_none_or(|core| taken.insert(core));
        let (mut first, mut second): (Vec<usize>, Vec<usize>) =
            pool.iter().copied().partition(is_first);
        // The kernel's own work on CPU 0 slows the other thread of its physical core.
        let core_of_zero = shared.get(&0);
        first.sort_by_key(|cpu| core_of_zero.is_some() && shared.get(cpu) == core_of_zero);
        first.append(&mut second);
        first
    }
}

pub(super) fn resolve(cores: &RawCores, host: &Host) -> Result<Vec<usize>, ConfigError> {
    let cpus = match &cores.list {
        CoreList::Auto => return Ok(automatic(cores, host)),
        CoreList::Any => {
            let allowed = if host.allowed.is_empty() { &[0][..] } else { &host.allowed };
            return Ok(allowed.iter().copied().take(to_usize(cores.max)).collect());
        }
        CoreList::Cpus(cpus) => cpus,
    };
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
        CoreList::Auto => host.preference(),
        CoreList::Any | CoreList::Cpus(_) => Vec::new(),
    }
}

/// CPUs that `auto` selects on this host, one for each physical core; at least one, and at most `cores.max`.
pub(super) fn automatic(cores: &RawCores, host: &Host) -> Vec<usize> {
    let shared = host.shared_cores();
    let mut taken = BTreeSet::new();
    let is_apart = |cpu: &usize| shared.get(cpu).is_none_or(|core| taken.insert(core));
    host.preference().into_iter().filter(is_apart).take(to_usize(cores.max).max(1)).collect()
}

impl CoreList {
    /// Reads a list from `text`. Returns `false`, and changes nothing, if `text` is not a list.
    pub(super) fn read(&mut self, text: &str) -> bool {
        text.parse().map(|cores| *self = cores).is_ok()
    }
}

impl FromStr for CoreList {
    type Err = ();

    /// Reads `auto`, `any` or a list such as `2-5,8`: nothing twice, at least one CPU.
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => return Ok(Self::Auto),
            "any" => return Ok(Self::Any),
            _ => {}
        }
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let cpu = |digits: &str| digits.trim().parse::<usize>().ok().filter(|&n| n < CPUS_MAX);
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
        let cpus = match self {
            Self::Auto => return out.write_str("auto"),
            Self::Any => return out.write_str("any"),
            Self::Cpus(cpus) => cpus,
        };
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
