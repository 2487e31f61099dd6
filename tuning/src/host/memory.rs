//! Memory: size, huge pages, and mechanisms that move pages.

use super::Tree;

/// Memory facts that the host reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Total, in bytes.
    pub total_bytes: Option<u64>,
    /// Available without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// Pools of huge pages: one for each size, and one for each node if the kernel has NUMA nodes.
    pub huge_pages: Vec<HugePages>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Effort at a page fault to get one: `always` stalls for it.
    pub thp_defrag: Option<String>,
    /// True if khugepaged compacts memory itself.
    pub khugepaged_defrag: Option<bool>,
    /// True if KSM merges equal pages.
    pub ksm: Option<bool>,
    /// True if the kernel unmaps pages to find out which node uses them.
    pub numa_balancing: Option<bool>,
}

/// Reserved pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePages {
    /// NUMA node; `None` on a kernel without nodes.
    pub node: Option<u32>,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Number of reserved pages.
    pub total: u64,
    /// Number of free pages.
    pub free: u64,
}

impl HugePages {
    /// The file that reads and sets the number of reserved pages.
    #[must_use]
    pub fn file(&self) -> String {
        format!("/{}/nr_hugepages", pool(self.node, self.page_bytes))
    }
}

impl Memory {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let info = tree.reduced("proc/meminfo", |text| super::lines(text, MEMINFO));
        let bytes = |key| kib(&info.clone().unwrap_or_default(), key);
        let thp = |file| format!("{MM}/transparent_hugepage/{file}");
        let flag = |path: &str| tree.value::<u64>(path).map(|value| value != 0);
        Self {
            total_bytes: bytes("MemTotal"),
            available_bytes: bytes("MemAvailable"),
            huge_pages: huge_pages(tree),
            thp: tree.chosen(&thp("enabled")),
            thp_defrag: tree.chosen(&thp("defrag")),
            khugepaged_defrag: flag(&thp("khugepaged/defrag")),
            ksm: tree.value::<u64>(&format!("{MM}/ksm/run")).map(|run| run == 1),
            numa_balancing: flag("proc/sys/kernel/numa_balancing"),
        }
    }

    /// Free huge pages of this size on a node, or on the host if it does not separate nodes.
    #[must_use]
    pub fn free_huge_pages(&self, node: u32, page_bytes: u64) -> Option<u64> {
        let fits = |pool: &&HugePages| {
            pool.page_bytes == page_bytes && pool.node.is_none_or(|own| own == node)
        };
        self.huge_pages.iter().find(fits).map(|pool| pool.free)
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
        None => format!("{MM}/hugepages"),
    }
}

fn pool(node: Option<u32>, page_bytes: u64) -> String {
    format!("{}/hugepages-{}kB", pools_folder(node), page_bytes >> 10)
}

/// Parses a line such as `MemTotal:  16303456 kB` and returns bytes.
fn kib(text: &str, key: &str) -> Option<u64> {
    let kib: u64 = super::field(text, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

const MM: &str = "sys/kernel/mm";
const MEMINFO: &[&str] = &["MemTotal", "MemAvailable", "HugePages_Total", "Hugepagesize"];
