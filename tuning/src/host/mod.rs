//! What a host says of itself in sysfs and procfs, as typed facts.
//!
//! The readers are functions over a [`Tree`], which is this host or what was recorded of another
//! one; none of them fails, as what a host does not tell is not known. Nothing is changed. The
//! checks of `spintune doctor` judge these facts, and whatever writes profiles for a host or
//! changes a host begins with them, too.
//!
//! ```
//! use spinrpc_tuning::host::{HostFacts, Tree};
//! let facts = HostFacts::read(&Tree::host());
//! if let Some(online) = &facts.cpus.online {
//!     println!("{} CPUs in {} nodes", online.len(), facts.cpus.nodes.len());
//! }
//! ```

pub mod adapters;
mod cgroup;
mod clock;
mod cpus;
mod irqs;
mod kernel;
mod load;
mod memory;
mod power;
mod process;
mod record;
pub mod tree;

pub use adapters::{Adapter, PciLink, Rdma};
pub use cgroup::{Cgroup, Limit, Quota};
pub use clock::ClockFacts;
pub use cpus::Cpus;
pub use irqs::Irq;
pub use kernel::{Kernel, Parameter};
pub use load::{CpuTimes, RealtimeTask, Tasks};
pub use memory::{HugePages, Memory};
pub use power::{IdleState, Power};
pub use process::{Bounds, Process};
pub use record::{NotARecord, Record};
pub use tree::Tree;

use std::collections::BTreeMap;
use std::str::FromStr;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HostFacts {
    /// CPUs and how they lie.
    pub cpus: Cpus,
    /// Interrupts.
    pub irqs: Vec<Irq>,
    /// Frequencies and sleep states.
    pub power: Power,
    /// Clock.
    pub clock: ClockFacts,
    /// Memory.
    pub memory: Memory,
    /// Kernel.
    pub kernel: Kernel,
    /// Control groups of the process that read this.
    pub cgroup: Cgroup,
    /// Limits of the process that read this.
    pub process: Process,
    /// RDMA devices.
    pub rdma: Rdma,
    /// What CPUs have done so far.
    pub times: BTreeMap<usize, CpuTimes>,
    /// What stands in the way.
    pub tasks: Tasks,
    /// Counters of errors of RDMA devices, as of [`adapters::counters`].
    pub counters: BTreeMap<String, u64>,
}

impl HostFacts {
    /// Reads some hundred small files, some thousand on a large host, which takes milliseconds. Of
    /// this host it also asks the network interfaces for their addresses.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let ask = || crate::rdma::interfaces().unwrap_or_default();
        let interfaces = if tree.is_this_host() { ask() } else { Vec::new() };
        Self {
            cpus: Cpus::read(tree),
            irqs: Irq::read_all(tree),
            power: Power::read(tree),
            clock: ClockFacts::read(tree),
            memory: Memory::read(tree),
            kernel: Kernel::read(tree),
            cgroup: Cgroup::read(tree),
            process: Process::read(tree),
            rdma: Rdma::read(tree, &interfaces),
            times: CpuTimes::read_all(tree),
            tasks: Tasks::read(tree),
            counters: adapters::counters(tree),
        }
    }

    /// What is read of a host, as a record that gives the same facts again.
    #[must_use]
    pub fn record(tree: Tree) -> Record {
        let tree = tree.recorded();
        // Only what was read matters here.
        let _ = Self::read(&tree);
        tree.into_record()
    }
}

/// The value of the first line `KEY : VALUE`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// The lines that begin with one of these.
fn lines(text: &str, beginnings: &[&str]) -> String {
    let is_wanted = |line: &&str| beginnings.iter().any(|beginning| line.starts_with(beginning));
    text.lines().filter(is_wanted).map(|line| format!("{line}\n")).collect()
}

/// The numbers of names such as `cpu7`; other names are left out.
fn numbered<T: FromStr>(names: &[String], prefix: &str) -> Vec<T> {
    names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
}
