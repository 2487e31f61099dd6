//! Memory: size, huge pages, and mechanisms that move pages.

use super::Tree;

facts! {
    Memory(tree) {
        total_bytes: Option<u64> = info(tree, "MemTotal");
        /// Available without swapping, in bytes.
        available_bytes: Option<u64> = info(tree, "MemAvailable");
        /// Pools of huge pages: one for each size, and one for each node if the kernel has NUMA nodes.
        huge_pages: Vec<HugePages> = huge_pages(tree);
        /// Transparent huge pages: `always`, `madvise` or `never`.
        thp: Option<String> = tree.chosen("sys/kernel/mm/transparent_hugepage/enabled");
        /// Effort at a page fault to get one: `always` stalls for it.
        thp_defrag: Option<String> = tree.chosen("sys/kernel/mm/transparent_hugepage/defrag");
        /// True if khugepaged compacts memory itself.
        khugepaged_defrag: Option<bool> =
            tree.flag("sys/kernel/mm/transparent_hugepage/khugepaged/defrag");
        /// True if KSM merges equal pages.
        ksm: Option<bool> = tree.value::<u64>("sys/kernel/mm/ksm/run").map(|run| run == 1);
        /// True if the kernel unmaps pages to find out which node uses them.
        numa_balancing: Option<bool> = tree.flag("proc/sys/kernel/numa_balancing");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// NUMA node; `None` on a kernel without nodes.
    pub node: Option<u32>,
    pub page_bytes: u64,
    pub total: u64,
    pub free: u64,
}

impl HugePages {
    pub fn file(&self) -> String {
        format!("/{}/nr_hugepages", pool(self.node, self.page_bytes))
    }
}

impl Memory {
    /// Huge pages of this size on a node, or on the host if it does not separate nodes.
    pub fn pool(&self, node: u32, page_bytes: u64) -> Option<&HugePages> {
        let fits = |pool: &&HugePages| {
            pool.page_bytes == page_bytes && pool.node.is_none_or(|own| own == node)
        };
        self.huge_pages.iter().find(fits)
    }
}

fn huge_pages(tree: &Tree) -> Vec<HugePages> {
    let nodes = super::numbered(&tree.names(super::cpus::NODE), "node");
    let mut places: Vec<Option<u32>> = nodes.into_iter().map(Some).collect();
    if places.is_empty() {
        places.push(None);
    }
    places.into_iter().flat_map(|node| pools(tree, node)).collect()
}

fn pools(tree: &Tree, node: Option<u32>) -> Vec<HugePages> {
    let names = tree.names(&pools_folder(node));
    let sizes = names.iter().filter_map(|name| page_kib(name));
    let read = |kib: u64| {
        let folder = pool(node, kib << 10);
        let total = tree.value(&format!("{folder}/nr_hugepages"))?;
        let free = tree.value(&format!("{folder}/free_hugepages"))?;
        Some(HugePages { node, page_bytes: kib << 10, total, free })
    };
    sizes.filter_map(read).collect()
}

fn page_kib(name: &str) -> Option<u64> {
    let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    (kib < 1 << 40).then_some(kib)
}

fn pools_folder(node: Option<u32>) -> String {
    match node {
        Some(node) => format!("{}/node{node}/hugepages", super::cpus::NODE),
        None => "sys/kernel/mm/hugepages".to_owned(),
    }
}

fn pool(node: Option<u32>, page_bytes: u64) -> String {
    format!("{}/hugepages-{}kB", pools_folder(node), page_bytes >> 10)
}

/// Bytes of a line such as `MemTotal:  16303456 kB`.
fn info(tree: &Tree, key: &str) -> Option<u64> {
    let info = tree.reduced("proc/meminfo", |text| super::lines(text, MEMINFO))?;
    let kib: u64 = super::field(&info, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

const MEMINFO: &[&str] = &["MemTotal", "MemAvailable", "HugePages_Total", "Hugepagesize"];
