//! Active tests on the host itself. They take seconds and leave no changes.

mod caps;
mod hops;
mod jitter;
mod permissions;
mod sockets;

pub use caps::Caps;
pub use hops::Hop;
pub use jitter::Jitter;

use crate::host::{CpuTimes, HostFacts, Tree, adapters};
use spinrpc::Config;
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::clock::{Clock, ClockSource};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    pub interval: Duration,
    /// Clock ticks per second, the kernel's unit of CPU time.
    pub ticks_per_second: u64,
    pub before: Sample,
    pub after: Sample,
    pub watched: Duration,
    /// Jitter of each poll core, or the reason why it could not be measured.
    pub jitter: Vec<Result<Jitter, String>>,
    pub hops: Vec<Hop>,
    /// Errors of system calls that were refused, by their names.
    pub refused: BTreeMap<&'static str, String>,
    /// Addresses in shared memory that have a listener: `shm:echo`.
    pub listeners: Vec<String>,
    /// Socket files without a listener.
    pub stale_sockets: Vec<String>,
    pub clock: Option<ClockSource>,
    /// Capabilities of devices; `None` in a program without verbs.
    pub caps: Option<Result<Vec<Caps>, String>>,
    pub allocator: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub times: BTreeMap<usize, CpuTimes>,
    pub counters: BTreeMap<String, u64>,
}

impl Sample {
    fn take(tree: &Tree) -> Self {
        Self { times: CpuTimes::read_all(tree), counters: adapters::counters(tree) }
    }
}

/// Time between the two samples of CPU times and counters.
const INTERVAL: Duration = Duration::from_secs(1);
/// Duration of the jitter measurement, on all poll cores at the same time.
const WATCH: Duration = Duration::from_secs(1);
/// Duration for one pair of CPUs; there are at most 28 pairs.
const PAIR: Duration = Duration::from_millis(15);

impl Tried {
    /// Tests this host, for two and a half seconds. Occupies the poll cores meanwhile, so other
    /// work on them has to wait. Calls `progress` with the name of each test.
    pub fn out(facts: &HostFacts, config: &Config, progress: &mut dyn FnMut(&str)) -> Self {
        let tree = Tree::host();
        // Cores that are not pinned have no CPU to watch.
        let polled = if config.pins_cores() { config.cpus() } else { &[] };
        let cores: CpuSet = polled.iter().copied().collect();
        let before = Sample::take(&tree);
        progress("watching other work on the host");
        thread::sleep(INTERVAL);
        let after = Sample::take(&tree);
        if !cores.is_empty() {
            progress(&format!("watching the clock on CPUs {cores}"));
        }
        let jitter = jitter::watch(&cores, WATCH);
        progress("sending cache lines between CPUs");
        let hops = hops::measure(&facts.cpus, &cores, PAIR);
        let (listeners, stale_sockets) = sockets::look(&tree);
        Self {
            interval: INTERVAL,
            ticks_per_second: rustix::param::clock_ticks_per_second(),
            before,
            after,
            watched: WATCH,
            jitter,
            hops,
            refused: permissions::refused(),
            listeners,
            stale_sockets,
            clock: Some(Clock::shared().source()),
            caps: caps::ask(),
            allocator: "the system".to_owned(),
        }
    }

    pub fn with_allocator(self, name: &str) -> Self {
        Self { allocator: name.to_owned(), ..self }
    }
}
