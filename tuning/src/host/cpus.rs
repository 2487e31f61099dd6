//! CPUs: numbers, topology and isolation.

use super::Tree;
use spinrpc::config;
use spinrpc::sys::affinity::CpuSet;
use std::collections::{BTreeMap, BTreeSet};

/// CPU facts that the host reports. `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cpus {
    /// Model name of the processor.
    pub model: Option<String>,
    /// Online CPUs.
    pub online: Option<CpuSet>,
    /// CPUs that the reading process may run on (sched_getaffinity and cpuset).
    pub allowed: Option<CpuSet>,
    /// CPUs excluded from scheduling (kernel parameter `isolcpus`).
    pub isolated: Option<CpuSet>,
    /// CPUs without a timer tick while one task runs; `None` if the kernel is built without
    /// support.
    pub nohz_full: Option<CpuSet>,
    /// NUMA nodes with their CPUs; a single node 0 on a kernel without NUMA.
    pub nodes: BTreeMap<u32, CpuSet>,
    /// Hardware threads of the physical core of a CPU, including the CPU itself.
    pub siblings: BTreeMap<usize, CpuSet>,
    /// Socket of a CPU.
    pub packages: BTreeMap<usize, u32>,
}

impl Cpus {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let online = tree.cpus(&format!("{CPU}/online"));
        let each = || online.iter().flat_map(CpuSet::iter);
        let topology = |cpu, file| format!("{CPU}/cpu{cpu}/topology/{file}");
        let siblings = |cpu| Some((cpu, tree.cpus(&topology(cpu, "thread_siblings_list"))?));
        let package = |cpu| Some((cpu, tree.value(&topology(cpu, "physical_package_id"))?));
        Self {
            model: model(tree),
            allowed: allowed(tree),
            isolated: tree.cpus(&format!("{CPU}/isolated")),
            nohz_full: nohz_full(tree),
            nodes: nodes(tree, online.as_ref()),
            siblings: each().filter_map(siblings).collect(),
            packages: each().filter_map(package).collect(),
            online,
        }
    }

    /// NUMA node of a CPU.
    #[must_use]
    pub fn node_of(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }

    /// Physical cores with several hardware threads, each once.
    #[must_use]
    pub fn shared_cores(&self) -> Vec<Vec<usize>> {
        let several = self.siblings.values().filter(|threads| threads.len() > 1);
        let cores: BTreeSet<Vec<usize>> = several.map(|threads| threads.iter().collect()).collect();
        cores.into_iter().collect()
    }

    /// Input for resolving `cores.list = "auto"`. A host that reports nothing counts as having CPU
    /// 0.
    #[must_use]
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

/// The list in sysfs, or `(null)`, which kernels show if the boot parameter was not set.
fn nohz_full(tree: &Tree) -> Option<CpuSet> {
    let list = tree.text(&format!("{CPU}/nohz_full"))?;
    Some(list.parse().unwrap_or_default())
}

fn allowed(tree: &Tree) -> Option<CpuSet> {
    let status = super::process::status(tree)?;
    super::field(&status, "Cpus_allowed_list")?.parse().ok()
}

fn nodes(tree: &Tree, online: Option<&CpuSet>) -> BTreeMap<u32, CpuSet> {
    let numbers = super::numbered(&tree.names(NODE), "node");
    let cpus = |node| Some((node, tree.cpus(&format!("{NODE}/node{node}/cpulist"))?));
    let nodes: BTreeMap<u32, CpuSet> = numbers.into_iter().filter_map(cpus).collect();
    match online {
        Some(online) if nodes.is_empty() => BTreeMap::from([(0, online.clone())]),
        _ => nodes,
    }
}

fn model(tree: &Tree) -> Option<String> {
    let processor = super::clock::first_processor(tree)?;
    super::field(&processor, "model name").map(str::to_owned)
}

const CPU: &str = "sys/devices/system/cpu";
pub(super) const NODE: &str = "sys/devices/system/node";
