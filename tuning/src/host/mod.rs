//! Facts that a host reports in sysfs and procfs, as Rust types.
//!
//! The readers are functions over a [`Tree`], which is this host or the record of another one.
//! They never fail: facts that a host does not report are unknown. They change nothing. `spintune
//! doctor`, `init` and `plan` are based on these facts.
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
mod kerberos;
mod kernel;
mod load;
mod memory;
mod power;
mod process;
mod record;
pub(crate) mod root;
pub mod tree;

pub use adapters::{Adapter, PciLink, Rdma};
pub use cgroup::{Cgroup, Limit, Quota};
pub use clock::ClockFacts;
pub use cpus::Cpus;
pub use irqs::Irq;
pub use kerberos::{KEYTAB, Kerberos, Keytab, Listener};
pub use kernel::{Kernel, Parameter};
pub use load::{CpuTimes, RealtimeTask, Tasks};
pub use memory::{HugePages, Memory};
pub use power::{IdleState, Power};
pub use process::{Bounds, Process};
pub use record::{NotARecord, Record};
pub use tree::{Permissions, Tree};

use std::collections::BTreeMap;
use std::str::FromStr;

/// All facts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HostFacts {
    /// CPUs and their topology.
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
    /// Control groups of the reading process.
    pub cgroup: Cgroup,
    /// Limits of the reading process.
    pub process: Process,
    /// RDMA devices.
    pub rdma: Rdma,
    /// CPU times since boot.
    pub times: BTreeMap<usize, CpuTimes>,
    /// Competing tasks.
    pub tasks: Tasks,
    /// Kerberos for NFS.
    pub kerberos: Kerberos,
    /// Error counters of RDMA devices, from [`adapters::counters`].
    pub counters: BTreeMap<String, u64>,
}

impl HostFacts {
    /// Reads some hundred small files (some thousand on a large host), which takes milliseconds. On
    /// this host it also queries the addresses of the network interfaces.
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
            kerberos: Kerberos::read(tree),
            counters: adapters::counters(tree),
        }
    }

    /// Records everything that is read from a host. The record yields the same facts again.
    #[must_use]
    pub fn record(tree: Tree) -> Record {
        let tree = tree.recorded();
        // Read for the record only.
        let _ = Self::read(&tree);
        tree.into_record()
    }
}

/// Value of the first line `KEY : VALUE`.
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

/// Numbers in names such as `cpu7`; skips other names.
fn numbered<T: FromStr>(names: &[String], prefix: &str) -> Vec<T> {
    names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
}
