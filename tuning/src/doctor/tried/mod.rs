//! What only trying tells, on the host itself: seconds of watching, and nothing that lasts.

mod caps;
mod hops;
mod jitter;
mod permissions;
mod sockets;

pub use caps::Caps;
pub use hops::Hop;
pub use jitter::Jitter;
pub use permissions::Permission;

use crate::host::{CpuTimes, HostFacts, Tree, adapters};
use spinrpc::Config;
use spinrpc::sys::affinity::CpuSet;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    /// How long the host was left to itself between two looks.
    pub interval: Duration,
    /// In what the kernel counts the time of CPUs.
    pub ticks_per_second: u64,
    /// What CPUs had done before.
    pub times_before: BTreeMap<usize, CpuTimes>,
    /// And after.
    pub times_after: BTreeMap<usize, CpuTimes>,
    /// What devices had counted before.
    pub counters_before: BTreeMap<String, u64>,
    /// And after.
    pub counters_after: BTreeMap<String, u64>,
    /// How long the clock was watched.
    pub watched: Duration,
    /// What was seen on each poll core, or why nothing was.
    pub jitter: Vec<Result<Jitter, String>>,
    /// Round trips between pairs of CPUs.
    pub hops: Vec<Hop>,
    /// Making memory without a name, and sealing it.
    pub memfd: Permission,
    /// Watching a process.
    pub pidfd: Permission,
    /// Passing descriptors over a socket.
    pub descriptors: Permission,
    /// Names in shared memory that somebody listens at: `shm:echo`.
    pub listeners: Vec<String>,
    /// Socket files that nobody listens at any more.
    pub stale_sockets: Vec<String>,
    /// What devices can do; `None` in a program without verbs.
    pub caps: Option<Result<Vec<Caps>, String>>,
    /// Where this program has its memory from.
    pub allocator: String,
}

/// How long each part takes.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The host is left to itself.
    pub interval: Duration,
    /// The clock is watched on all poll cores at the same time.
    pub watch: Duration,
    /// Of one pair of CPUs, of which there are 28 at most.
    pub pair: Duration,
}

impl Default for Patience {
    /// Two seconds and a half in all.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            watch: Duration::from_secs(1),
            pair: Duration::from_millis(15),
        }
    }
}

impl Tried {
    /// Tries out this host: takes as long as `patience` has it, and takes the poll cores for itself
    /// meanwhile, so that what else wants them has to wait. `progress` is told what begins.
    #[must_use]
    pub fn out(
        facts: &HostFacts,
        config: &Config,
        patience: Patience,
        progress: &mut dyn FnMut(&str),
    ) -> Self {
        let tree = Tree::host();
        let cores: CpuSet = config.cpus().iter().copied().collect();
        let (times_before, counters_before) =
            (CpuTimes::read_all(&tree), adapters::counters(&tree));
        progress("watching what else the host does");
        thread::sleep(patience.interval);
        let (times_after, counters_after) = (CpuTimes::read_all(&tree), adapters::counters(&tree));
        progress(&format!("watching the clock on CPUs {cores}"));
        let jitter = jitter::watch(&cores, patience.watch);
        progress("sending cache lines between CPUs");
        let hops = hops::measure(&facts.cpus, &cores, patience.pair);
        let (listeners, stale_sockets) = sockets::look(&tree);
        Self {
            interval: patience.interval,
            ticks_per_second: rustix::param::clock_ticks_per_second(),
            times_before,
            times_after,
            counters_before,
            counters_after,
            watched: patience.watch,
            jitter,
            hops,
            memfd: permissions::memfd(),
            pidfd: permissions::pidfd(),
            descriptors: permissions::descriptors(),
            listeners,
            stale_sockets,
            caps: caps::ask(),
            allocator: "the system".to_owned(),
        }
    }

    /// The same, with the allocator that the program chose.
    #[must_use]
    pub fn with_allocator(self, name: &str) -> Self {
        Self { allocator: name.to_owned(), ..self }
    }
}

/// Counters that rose, and by how much.
#[must_use]
pub fn counters_risen(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> Vec<(String, u64)> {
    let risen = |(name, now): (&String, &u64)| {
        let by = now.checked_sub(*before.get(name)?)?;
        (by > 0).then(|| (name.clone(), by))
    };
    after.iter().filter_map(risen).collect()
}
