//! Interrupts and the CPUs that take them.

use super::Tree;
use spinrpc::sys::affinity::CpuSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Irq {
    /// Number below `/proc/irq`.
    pub number: u32,
    /// Name of the handler: `mlx5_comp3@pci:0000:3b:00.0`.
    pub name: String,
    /// CPUs that it may be sent to.
    pub affinity: Option<CpuSet>,
    /// CPUs of these that it is sent to now, if the kernel reports them.
    pub effective: Option<CpuSet>,
}

impl Irq {
    /// Reads all interrupts with a handler, by number. On a kernel without `/sys/kernel/irq`, the
    /// names are directories below `/proc/irq`.
    pub fn read_all(tree: &Tree) -> Vec<Self> {
        let numbers = super::numbered(&tree.names(PROC), "");
        numbers.into_iter().filter_map(|number| Self::read(tree, number)).collect()
    }

    fn read(tree: &Tree, number: u32) -> Option<Self> {
        let name = tree.line(&format!("sys/kernel/irq/{number}/actions"));
        let name = name.or_else(|| handler(tree, number))?;
        let affinity = tree.cpus(&format!("{PROC}/{number}/smp_affinity_list"));
        let effective = tree.cpus(&format!("{PROC}/{number}/effective_affinity_list"));
        Some(Self { number, name, affinity, effective })
    }

    /// Returns whether the kernel manages its affinity: a write to it fails with `EIO`. Only input and output of the CPUs
    /// of such a queue cause it. Queues of NVMe devices (but for the first one, of commands) and of virtio disks are
    /// known by name, because only debugfs tells.
    pub fn is_managed(&self) -> bool {
        let queue = |prefix, infix| {
            let (device, queue) = self.name.strip_prefix(prefix)?.split_once(infix)?;
            device.parse::<u32>().ok()?;
            queue.parse::<u32>().ok()
        };
        queue("nvme", "q").is_some_and(|queue| queue > 0) || queue("virtio", "-req.").is_some()
    }

    /// CPUs that receive it now; all allowed ones if the kernel does not report them.
    pub fn cpus(&self) -> Option<&CpuSet> {
        let effective = self.effective.as_ref().filter(|cpus| !cpus.is_empty());
        effective.or(self.affinity.as_ref())
    }
}

fn handler(tree: &Tree, number: u32) -> Option<String> {
    let folder = format!("{PROC}/{number}");
    let is_file = |name: &String| KNOWN_FILES.contains(&name.as_str());
    let name = tree.names(&folder).into_iter().find(|name| !is_file(name))?;
    tree.exists(&format!("{folder}/{name}")).then_some(name)
}

const PROC: &str = "proc/irq";

/// Entries next to the handlers.
const KNOWN_FILES: &[&str] = &[
    "affinity_hint",
    "effective_affinity",
    "effective_affinity_list",
    "node",
    "smp_affinity",
    "smp_affinity_list",
    "spurious",
];
