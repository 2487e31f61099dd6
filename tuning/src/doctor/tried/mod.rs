//! Active tests on the host itself. They take seconds and leave no changes.

mod caps;
mod hops;
mod jitter;
mod permissions;
mod port;
mod sockets;

pub use caps::Caps;
pub use hops::Hop;
pub use jitter::Jitter;

use crate::host::{CpuTimes, HostFacts, Tree, adapters};
use spinrpc::Config;
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::clock::{Clock, ClockSource};
use std::collections::BTreeMap;
use std::io;
use std::thread;
use std::time::Duration;

/// Test results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    /// Time between the two samples.
    pub interval: Duration,
    /// Clock ticks per second, the kernel's unit of CPU time.
    pub ticks_per_second: u64,
    /// CPU times in the first sample.
    pub times_before: BTreeMap<usize, CpuTimes>,
    /// CPU times in the second sample.
    pub times_after: BTreeMap<usize, CpuTimes>,
    /// Device counters in the first sample.
    pub counters_before: BTreeMap<String, u64>,
    /// Device counters in the second sample.
    pub counters_after: BTreeMap<String, u64>,
    /// Duration of the jitter measurement.
    pub watched: Duration,
    /// Jitter of each poll core, or the reason why it could not be measured.
    pub jitter: Vec<Result<Jitter, String>>,
    /// Round trips between pairs of CPUs.
    pub hops: Vec<Hop>,
    /// Error of creating and sealing anonymous memory, if it was refused.
    pub memfd_refused: Option<String>,
    /// Error of watching a process through a pidfd.
    pub pidfd_refused: Option<String>,
    /// Error of passing descriptors over a socket.
    pub descriptors_refused: Option<String>,
    /// Addresses in shared memory that have a listener: `shm:echo`.
    pub listeners: Vec<String>,
    /// Socket files without a listener.
    pub stale_sockets: Vec<String>,
    /// Names of programs that listen at TCP port 2049, as far as this user may see them.
    pub nfs_port_holders: Vec<String>,
    /// Clock that engines of this process use.
    pub clock: Option<ClockSource>,
    /// Capabilities of devices; `None` in a program without verbs.
    pub caps: Option<Result<Vec<Caps>, String>>,
    /// Memory allocator of this program.
    pub allocator: String,
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
        let (times_before, counters_before) =
            (CpuTimes::read_all(&tree), adapters::counters(&tree));
        progress("watching other work on the host");
        thread::sleep(INTERVAL);
        let (times_after, counters_after) = (CpuTimes::read_all(&tree), adapters::counters(&tree));
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
            times_before,
            times_after,
            counters_before,
            counters_after,
            watched: WATCH,
            jitter,
            hops,
            memfd_refused: refused(permissions::memory()),
            pidfd_refused: refused(permissions::watch()),
            descriptors_refused: refused(permissions::pass()),
            listeners,
            stale_sockets,
            nfs_port_holders: port::holders(&facts.kerberos),
            clock: Some(Clock::shared().source()),
            caps: caps::ask(),
            allocator: "the system".to_owned(),
        }
    }

    /// Sets the allocator that the program chose.
    pub fn with_allocator(self, name: &str) -> Self {
        Self { allocator: name.to_owned(), ..self }
    }
}

fn refused<T>(attempt: io::Result<T>) -> Option<String> {
    attempt.err().map(|error| error.to_string())
}
