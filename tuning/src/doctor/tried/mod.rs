//! Active tests on the host itself. They take seconds and leave no changes.

mod caps;
mod hops;
mod jitter;
mod kdc;
mod permissions;
mod port;
mod sockets;

pub use caps::Caps;
pub use hops::Hop;
pub use jitter::Jitter;
pub use kdc::KdcClock;
pub use permissions::Permission;

use crate::host::{CpuTimes, HostFacts, Tree, adapters};
use spinrpc::Config;
use spinrpc::sys::affinity::CpuSet;
use std::collections::BTreeMap;
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
    /// Creating and sealing anonymous memory.
    pub memfd: Permission,
    /// Watching a process through a pidfd.
    pub pidfd: Permission,
    /// Passing descriptors over a socket.
    pub descriptors: Permission,
    /// Addresses in shared memory that have a listener: `shm:echo`.
    pub listeners: Vec<String>,
    /// Socket files without a listener.
    pub stale_sockets: Vec<String>,
    /// Names of programs that listen at TCP port 2049, as far as this user may see them.
    pub nfs_port_holders: Vec<String>,
    /// Clock of the key distribution center, or the reason why it is not known; `None` if it was not asked.
    pub kdc: Option<Result<KdcClock, String>>,
    /// Capabilities of devices; `None` in a program without verbs.
    pub caps: Option<Result<Vec<Caps>, String>>,
    /// Memory allocator of this program.
    pub allocator: String,
}

/// Durations of the tests.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time between the two samples of CPU times and counters.
    pub interval: Duration,
    /// Duration of the jitter measurement, on all poll cores at the same time.
    pub watch: Duration,
    /// Duration for one pair of CPUs; there are at most 28 pairs.
    pub pair: Duration,
}

impl Default for Patience {
    /// Two and a half seconds in total.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            watch: Duration::from_secs(1),
            pair: Duration::from_millis(15),
        }
    }
}

impl Tried {
    /// Tests this host for as long as `patience` says. Occupies the poll cores meanwhile, so other
    /// work on them has to wait. Calls `progress` with the name of each test.
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
        progress("watching other work on the host");
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
            nfs_port_holders: port::holders(&facts.kerberos),
            kdc: None,
            caps: caps::ask(),
            allocator: "the system".to_owned(),
        }
    }

    /// Sets the allocator that the program chose.
    #[must_use]
    pub fn with_allocator(self, name: &str) -> Self {
        Self { allocator: name.to_owned(), ..self }
    }

    /// Asks the key distribution center at `kdc`, `HOST` or `HOST:PORT`, for its time: the only test that asks another host.
    /// It sends a request for a ticket of the default realm. Blocks for five seconds at most, after name resolution.
    #[must_use]
    pub fn with_kdc(self, facts: &HostFacts, kdc: &str) -> Self {
        let asked = match &facts.kerberos.realm {
            Some(realm) => kdc::ask(kdc, realm),
            None => Err("/etc/krb5.conf has no default_realm".to_owned()),
        };
        Self { kdc: Some(asked), ..self }
    }
}

/// Counters that increased, with the increase.
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
