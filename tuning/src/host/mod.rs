//! Facts that a host reports in sysfs and procfs, as Rust types.
//!
//! The readers are functions over a [`Tree`], which is this host or the record of another one.
//! They never fail: facts that a host does not report are unknown. They change nothing. `spintune
//! doctor` and `plan` are based on these facts.
//!
//! ```
//! use spinrpc_tuning::host::{HostFacts, Tree};
//! let facts = HostFacts::read(&Tree::host());
//! if let Some(online) = &facts.cpus.online {
//!     println!("{} CPUs in {} nodes", online.len(), facts.cpus.nodes.len());
//! }
//! ```

/// Declares facts of a kind, each with its description, its type, and how it is read from `tree`.
macro_rules! facts {
    ($(#[$about:meta])* $Facts:ident($tree:ident) {
        $($(#[$description:meta])* $fact:ident: $type:ty = $read:expr;)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $Facts {
            $($(#[$description])* pub $fact: $type,)+
        }

        impl $Facts {
            pub fn read($tree: &Tree) -> Self {
                Self { $($fact: $read,)+ }
            }
        }
    };
}

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
pub(crate) use cpus::{both, minus};
pub use irqs::Irq;
pub use kernel::Kernel;
pub use load::{CpuTimes, RealtimeTask, Tasks};
pub use memory::{HugePages, Memory};
pub use power::{IdleState, Power};
pub use process::{Bounds, Process};
pub use record::{NotARecord, Record};
pub use tree::Tree;

use std::str::FromStr;

facts! {
    /// All facts. To read them takes milliseconds for some hundred small files (some thousand on a large host). On
    /// this host the addresses of the network interfaces are queried, too.
    HostFacts(tree) {
        cpus: Cpus = Cpus::read(tree);
        irqs: Vec<Irq> = Irq::read_all(tree);
        power: Power = Power::read(tree);
        clock: ClockFacts = ClockFacts::read(tree);
        memory: Memory = Memory::read(tree);
        kernel: Kernel = Kernel::read(tree);
        cgroup: Cgroup = Cgroup::read(tree);
        process: Process = Process::read(tree);
        rdma: Rdma = Rdma::read(tree);
        tasks: Tasks = Tasks::read(tree);
    }
}

impl HostFacts {
    /// Records everything that is read from a host. The record yields the same facts again.
    pub fn record(tree: Tree) -> Record {
        let tree = tree.recorded();
        // The record has what is read.
        Self::read(&tree);
        tree.into_record()
    }
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

fn lines(text: &str, beginnings: &[&str]) -> String {
    kept(text, |line| beginnings.iter().any(|beginning| line.starts_with(beginning)))
}

fn kept(text: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    text.lines().filter(|line| is_wanted(line)).map(|line| format!("{line}\n")).collect()
}

/// Numbers in names such as `cpu7`; skips other names.
fn numbered<T: FromStr>(names: &[String], prefix: &str) -> Vec<T> {
    names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
}
