//! CPUs: numbers, topology and isolation.

use super::Tree;
use spinrpc::config::{self, Config, RawConfig};
use spinrpc::sys::affinity::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

facts! {
    Cpus(tree) {
        model: Option<String> = model(tree);
        online: Option<CpuSet> = tree.cpus(ONLINE);
        /// CPUs that the reading process may run on (sched_getaffinity and cpuset).
        allowed: Option<CpuSet> = allowed(tree);
        /// CPUs excluded from scheduling (kernel parameter `isolcpus`).
        isolated: Option<CpuSet> = tree.cpus("sys/devices/system/cpu/isolated");
        /// CPUs without a timer tick while one task runs; `None` if the kernel is built without
        /// support.
        nohz_full: Option<CpuSet> = nohz_full(tree);
        /// NUMA nodes with their CPUs; a single node 0 on a kernel without NUMA.
        nodes: BTreeMap<u32, CpuSet> = nodes(tree);
        /// Hardware threads of the physical core of a CPU, including the CPU itself.
        siblings: BTreeMap<usize, CpuSet> = siblings(tree);
        /// Sets of CPUs that share an L3 cache, ascending and without common CPUs. A cache line takes
        /// several times as long between two L3 caches as within one.
        l3: Vec<CpuSet> = l3_caches(tree);
        /// CPUs of the fastest kind on a host with several kinds: P cores and not E cores, big cores
        /// and not LITTLE ones. `None` if all are alike, as far as the host reports.
        fast: Option<CpuSet> = performance_cores(tree).or_else(|| large_cores(tree));
    }
}

impl Cpus {
    pub fn node_of(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }

    /// Cores that are not pinned count evenly on all nodes with CPUs that this process may use.
    pub(crate) fn cores_by_node(&self, config: &Config) -> BTreeMap<u32, u64> {
        let node = |cpu: &usize| self.node_of(*cpu).unwrap_or_default();
        if !config.pins_cores() {
            let nodes: BTreeSet<u32> = self.for_engine().allowed.iter().map(node).collect();
            let each = config.cores().div_ceil(nodes.len()) as u64;
            return nodes.into_iter().map(|node| (node, each)).collect();
        }
        let mut cores = BTreeMap::new();
        config.cpus().iter().for_each(|cpu| *cores.entry(node(cpu)).or_insert(0) += 1);
        cores
    }

    /// Physical cores with several hardware threads, each once.
    pub fn shared_cores(&self) -> Vec<Vec<usize>> {
        let several = self.siblings.values().filter(|threads| threads.len() > 1);
        let cores: BTreeSet<Vec<usize>> = several.map(|threads| threads.iter().collect()).collect();
        cores.into_iter().collect()
    }

    /// CPUs for at most `most` cores among those of `host`: as `cores.list = "auto"` selects them, but of the fastest
    /// kind, and with `close` in one L3 cache, unless that leaves fewer. Every proposal of CPUs comes from here.
    pub fn select(&self, host: &config::Host, most: u64, close: bool) -> CpuSet {
        let all = auto(host, most);
        let fast = self.fast.as_ref().map(|fast| within(host, fast));
        let fast = fast.filter(|fast| auto(fast, most).len() == all.len());
        let host = fast.as_ref().unwrap_or(host);
        // The first one is that of CPU 0, which the kernel uses for its own work.
        let caches = self.l3.iter().skip(1).chain(self.l3.first()).filter(|_| close);
        let mut near = caches.map(|cache| auto(&within(host, cache), most));
        near.find(|cpus| cpus.len() == all.len()).unwrap_or_else(|| auto(host, most))
    }

    pub fn with_siblings(&self, polled: &CpuSet) -> CpuSet {
        let threads = polled.iter().filter_map(|cpu| self.siblings.get(&cpu));
        threads.flat_map(CpuSet::iter).chain(polled.iter()).collect()
    }

    /// Online CPUs for interrupts and other work while `polled` are polled on: none of `polled`. If others are left, none
    /// that shares a physical core with them, and none that is isolated, which may belong to another engine.
    pub fn housekeeping(&self, polled: &CpuSet) -> CpuSet {
        let online = self.online.clone().unwrap_or_default();
        let others = minus(&online, polled);
        let open = minus(&others, &self.isolated.clone().unwrap_or_default());
        let apart = minus(&open, &self.with_siblings(polled));
        [apart, open].into_iter().find(|set| !set.is_empty()).unwrap_or(others)
    }

    /// CPUs to keep interrupts away from while `polled` are polled on: hardware threads of their physical cores, too,
    /// unless that leaves none for interrupts.
    pub fn quiet(&self, polled: &CpuSet) -> CpuSet {
        minus(&self.with_siblings(polled), &self.housekeeping(polled))
    }

    /// CPUs to keep irqbalance away from while `polled` are polled on. It leaves isolated CPUs and those without a timer
    /// tick alone.
    pub fn to_ban(&self, polled: &CpuSet) -> CpuSet {
        let spared = [&self.isolated, &self.nohz_full].into_iter().flatten().flat_map(CpuSet::iter);
        let left = minus(polled, &spared.collect());
        if left.is_empty() { left } else { self.quiet(&left) }
    }

    /// Kernel parameters that isolate `polled`, and have others take interrupts: hardware threads of polled
    /// cores are isolated, too, and CPU 0 never, which the kernel needs for its own work. `None` if there is no CPU for
    /// one of the two.
    pub fn isolation(&self, polled: &CpuSet) -> Option<String> {
        let list = minus(&self.with_siblings(polled), &CpuSet::from_iter([BOOT_CPU]));
        let rest = self.housekeeping(&list);
        (!list.is_empty() && !rest.is_empty()).then(|| {
            format!(
                "isolcpus=managed_irq,domain,{list} nohz_full={list} rcu_nocbs={list} \
                 irqaffinity={rest}"
            )
        })
    }

    /// Input for resolving `cores.list = "auto"`. A host that reports nothing counts as having CPU
    /// 0.
    pub fn for_engine(&self) -> config::Host {
        let list = |set: &Option<CpuSet>| set.iter().flat_map(CpuSet::iter).collect::<Vec<_>>();
        let allowed = list(if self.allowed.is_some() { &self.allowed } else { &self.online });
        config::Host {
            allowed: if allowed.is_empty() { vec![0] } else { allowed },
            isolated: list(&self.isolated),
            smt_siblings: self.shared_cores(),
        }
    }
}

/// CPUs that `auto` selects; none if the host has no CPU, or cannot have as many cores.
fn auto(host: &config::Host, most: u64) -> CpuSet {
    if host.allowed.is_empty() {
        return CpuSet::default();
    }
    let mut raw = RawConfig::default();
    raw.cores.max = most;
    raw.validate_for(host).map(|config| config.cpus().iter().copied().collect()).unwrap_or_default()
}

/// The host without all CPUs but these. Isolated ones go first, as `auto` takes them.
fn within(host: &config::Host, cpus: &CpuSet) -> config::Host {
    let is_isolated = |cpu: &usize| host.isolated.contains(cpu);
    let has_isolated = host.allowed.iter().any(is_isolated);
    let keep = |cpu: &usize| cpus.contains(*cpu) && (!has_isolated || is_isolated(cpu));
    config::Host { allowed: host.allowed.iter().copied().filter(keep).collect(), ..host.clone() }
}

fn online(tree: &Tree) -> Vec<usize> {
    tree.cpus(ONLINE).iter().flat_map(CpuSet::iter).collect()
}

fn siblings(tree: &Tree) -> BTreeMap<usize, CpuSet> {
    let list = |cpu| format!("{CPU}/cpu{cpu}/topology/thread_siblings_list");
    online(tree).into_iter().filter_map(|cpu| Some((cpu, tree.cpus(&list(cpu))?))).collect()
}

fn l3_caches(tree: &Tree) -> Vec<CpuSet> {
    let mut caches: Vec<CpuSet> = Vec::new();
    let mut known = BTreeSet::new();
    for cpu in online(tree) {
        let list = format!("{CPU}/cpu{cpu}/{L3}");
        let cache = if known.contains(&cpu) { None } else { tree.cpus(&list) };
        // Lists of a hostile record may overlap, and would take memory without bound.
        let is_new = |cache: &CpuSet| cache.iter().all(|cpu| !known.contains(&cpu));
        if let Some(cache) = cache.filter(|cache| cache.contains(cpu) && is_new(cache)) {
            known.extend(cache.iter());
            caches.push(cache);
        }
    }
    caches
}

/// P cores of a processor of Intel with both kinds; the kernel has a performance monitoring unit for each kind.
fn performance_cores(tree: &Tree) -> Option<CpuSet> {
    let has_others = tree.cpus("sys/devices/cpu_atom/cpus").is_some_and(|cpus| !cpus.is_empty());
    tree.cpus("sys/devices/cpu_core/cpus").filter(|cpus| has_others && !cpus.is_empty())
}

/// CPUs with almost the largest capacity. Alike CPUs differ by some percent where their highest frequencies do.
fn large_cores(tree: &Tree) -> Option<CpuSet> {
    let capacity = |cpu| Some((cpu, tree.value::<u32>(&format!("{CPU}/cpu{cpu}/cpu_capacity"))?));
    let capacities: Vec<(usize, u32)> = online(tree).into_iter().filter_map(capacity).collect();
    let largest = u64::from(capacities.iter().map(|(_, capacity)| *capacity).max()?);
    let is_large = |capacity: u32| u64::from(capacity) * 4 >= largest * 3;
    let large: CpuSet =
        capacities.iter().filter(|(_, one)| is_large(*one)).map(|(cpu, _)| *cpu).collect();
    (large.len() < capacities.len()).then_some(large)
}

pub(crate) fn minus(all: &CpuSet, others: &CpuSet) -> CpuSet {
    all.iter().filter(|cpu| !others.contains(*cpu)).collect()
}

pub(crate) fn both(one: &CpuSet, other: &CpuSet) -> CpuSet {
    one.iter().filter(|cpu| other.contains(*cpu)).collect()
}

/// The list in sysfs, or `(null)`, which kernels show if the boot parameter was not set.
fn nohz_full(tree: &Tree) -> Option<CpuSet> {
    let list = tree.text(&format!("{CPU}/nohz_full"))?;
    Some(list.parse().unwrap_or_default())
}

fn allowed(tree: &Tree) -> Option<CpuSet> {
    let status = super::process::status(tree)?;
    super::field(&status, "Cpus_allowed_list")?.parse().ok()
}

fn nodes(tree: &Tree) -> BTreeMap<u32, CpuSet> {
    let numbers = super::numbered(&tree.names(NODE), "node");
    let cpus = |node| Some((node, tree.cpus(&format!("{NODE}/node{node}/cpulist"))?));
    let nodes: BTreeMap<u32, CpuSet> = numbers.into_iter().filter_map(cpus).collect();
    match tree.cpus(ONLINE) {
        Some(online) if nodes.is_empty() => BTreeMap::from([(0, online)]),
        _ => nodes,
    }
}

fn model(tree: &Tree) -> Option<String> {
    let processor = super::clock::first_processor(tree)?;
    super::field(&processor, "model name").map(str::to_owned)
}

const BOOT_CPU: usize = 0;
const CPU: &str = "sys/devices/system/cpu";
const ONLINE: &str = "sys/devices/system/cpu/online";
/// The kernel numbers caches by level behind the two of the first one. Hosts without an L3 cache have no such file.
const L3: &str = "cache/index3/shared_cpu_list";
pub(super) const NODE: &str = "sys/devices/system/node";
