//! How the machine's CPUs lie: NUMA nodes, hyper-threads, isolated ones, as sysfs tells it.

use super::affinity::CpuSet;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The layout at the time of reading; CPUs that come or go later do not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    online: CpuSet,
    isolated: CpuSet,
    nodes: BTreeMap<u32, CpuSet>,
    siblings: BTreeMap<usize, CpuSet>,
}

impl Topology {
    /// This machine's.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn current() -> io::Result<Self> {
        Self::read(Path::new("/sys"))
    }

    /// The one described below `root`, which is laid out as `/sys` is. A kernel without NUMA has no
    /// nodes there: all CPUs are in node 0 then.
    ///
    /// # Errors
    /// `devices/system/cpu/online` cannot be read, or a list there is none (`InvalidData`).
    pub fn read(root: &Path) -> io::Result<Self> {
        let system = root.join("devices/system");
        let online = read_list(&system.join("cpu/online"))?;
        let isolated = read_list_if_any(&system.join("cpu/isolated"))?.unwrap_or_default();
        let nodes = read_nodes(&system.join("node"), &online)?;
        let siblings = read_siblings(&system.join("cpu"), &online)?;
        Ok(Self { online, isolated, nodes, siblings })
    }

    /// CPUs that run.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// CPUs the scheduler leaves alone (kernel parameter `isolcpus`).
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// NUMA nodes with their CPUs, ascending; a node of memory only has none.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (u32, &CpuSet)> {
        self.nodes.iter().map(|(node, cpus)| (*node, cpus))
    }

    /// The NUMA node `cpu` is in, if it is online.
    pub fn node_of(&self, cpu: usize) -> Option<u32> {
        self.nodes().find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| node)
    }

    /// The hyper-threads of the physical core `cpu` is in, itself among them, if it is online.
    pub fn siblings(&self, cpu: usize) -> Option<&CpuSet> {
        self.siblings.get(&cpu)
    }
}

fn read_nodes(dir: &Path, online: &CpuSet) -> io::Result<BTreeMap<u32, CpuSet>> {
    // Node numbers are written as CPU numbers are.
    let Some(numbers) = read_list_if_any(&dir.join("online"))? else {
        return Ok(BTreeMap::from([(0, online.clone())]));
    };
    let mut nodes = BTreeMap::new();
    for number in numbers.iter() {
        let cpus = read_list(&dir.join(format!("node{number}/cpulist")))?;
        let number = u32::try_from(number).map_err(io::Error::other)?;
        nodes.insert(number, cpus);
    }
    Ok(nodes)
}

fn read_siblings(dir: &Path, online: &CpuSet) -> io::Result<BTreeMap<usize, CpuSet>> {
    let mut siblings = BTreeMap::new();
    for cpu in online.iter() {
        let path = dir.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        let alone = || CpuSet::from_iter([cpu]);
        siblings.insert(cpu, read_list_if_any(&path)?.unwrap_or_else(alone));
    }
    Ok(siblings)
}

/// The list in a file; `None` if there is no such file.
fn read_list_if_any(path: &Path) -> io::Result<Option<CpuSet>> {
    match read_list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn read_list(path: &Path) -> io::Result<CpuSet> {
    let text = fs::read_to_string(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
    })?;
    text.parse().map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
    })
}
