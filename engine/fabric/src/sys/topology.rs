//! Layout of the machine's CPUs: NUMA nodes, hyper-threads, isolated ones, as sysfs tells it.

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A directory laid out as /sys, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("spinrpc-topology-{}-{number}", process::id());
            let tree = Self(std::env::temp_dir().join(name));
            // One that a killed run left behind, if any.
            let _ = fs::remove_dir_all(&tree.0);
            for (path, text) in files {
                let path = tree.0.join("devices/system").join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            tree
        }

        fn read(&self) -> io::Result<Topology> {
            Topology::read(&self.0)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn two_sockets_with_hyper_threads() {
        let tree = Tree::new(&[
            ("cpu/online", "0-7\n"),
            ("cpu/isolated", "2-3,6-7\n"),
            ("node/online", "0-1\n"),
            ("node/node0/cpulist", "0,2,4,6\n"),
            ("node/node1/cpulist", "1,3,5,7\n"),
            ("cpu/cpu0/topology/thread_siblings_list", "0,4\n"),
            ("cpu/cpu4/topology/thread_siblings_list", "0,4\n"),
            ("cpu/cpu7/topology/thread_siblings_list", "3,7\n"),
        ]);
        let topology = tree.read().unwrap();
        assert_eq!(topology.online(), &set("0-7"));
        assert_eq!(topology.isolated(), &set("2-3,6-7"));
        assert_eq!([0, 5, 6, 7].map(|cpu| topology.node_of(cpu)), [0, 1, 0, 1].map(Some));
        assert_eq!(topology.siblings(4), Some(&set("0,4")));
        assert_eq!(topology.siblings(7), Some(&set("3,7")));
        assert_eq!(topology.nodes().len(), 2);
    }

    #[test]
    fn a_cpu_that_is_offline_is_nowhere() {
        let files = [("cpu/online", "0-1"), ("node/online", "0"), ("node/node0/cpulist", "0-1")];
        let topology = Tree::new(&files).read().unwrap();
        assert_eq!(topology.node_of(2), None);
        assert_eq!(topology.siblings(2), None);
    }

    #[test]
    fn a_node_may_have_memory_only() {
        let tree = Tree::new(&[
            ("cpu/online", "0-1\n"),
            ("node/online", "0,8\n"),
            ("node/node0/cpulist", "0-1\n"),
            ("node/node8/cpulist", "\n"),
        ]);
        let topology = tree.read().unwrap();
        assert_eq!(topology.nodes().nth(1), Some((8, &CpuSet::default())));
    }

    #[test]
    fn without_nodes_and_siblings_each_cpu_is_a_core_of_node_0() {
        let topology = Tree::new(&[("cpu/online", "0,2\n")]).read().unwrap();
        assert_eq!(topology.nodes().collect::<Vec<_>>(), [(0, &set("0,2"))]);
        assert_eq!(topology.siblings(2), Some(&set("2")));
        assert!(topology.isolated().is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = Tree::new(&[]).read().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("cpu/online"), "{error}");

        let error = Tree::new(&[("cpu/online", "zero\n")]).read().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("cpu/online: \"zero\""), "{error}");

        let files = [("cpu/online", "0"), ("node/online", "0-1"), ("node/node0/cpulist", "0")];
        let error = Tree::new(&files).read().unwrap_err();
        assert!(error.to_string().contains("node1/cpulist"), "{error}");
    }

    #[test]
    fn this_machine_can_be_read() {
        let topology = Topology::current().unwrap();
        for cpu in topology.online().iter() {
            assert!(topology.siblings(cpu).unwrap().contains(cpu));
            assert!(topology.node_of(cpu).is_some());
        }
    }
}
