//! Active tests on the host itself. They take seconds and leave no changes.

mod caps;
mod jitter;
mod permissions;

pub use caps::Caps;
pub use jitter::Jitter;

use crate::host::{CpuTimes, Tree};
use spinrpc::Config;
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::clock::{Clock, ClockSource};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    pub interval: Duration,
    /// Times of each CPU.
    pub before: BTreeMap<usize, CpuTimes>,
    pub after: BTreeMap<usize, CpuTimes>,
    pub watched: Duration,
    /// Jitter of each poll core, or the reason why it could not be measured.
    pub jitter: Vec<Result<Jitter, String>>,
    /// Errors of system calls that were refused, by their names.
    pub refused: BTreeMap<&'static str, String>,
    pub clock: Option<ClockSource>,
    /// Capabilities of devices; `None` in a program without verbs.
    pub caps: Option<Result<Vec<Caps>, String>>,
    pub allocator: String,
}

/// Time between the two samples of CPU times.
const INTERVAL: Duration = Duration::from_secs(1);
/// Duration of the jitter measurement, on all poll cores at the same time.
const WATCH: Duration = Duration::from_secs(1);

impl Tried {
    /// Tests this host, for two seconds. Occupies the poll cores meanwhile, so other
    /// work on them has to wait. Calls `progress` with the name of each test.
    pub fn out(config: &Config, progress: &mut dyn FnMut(&str)) -> Self {
        let tree = Tree::host();
        // Cores that are not pinned have no CPU to watch.
        let polled = if config.pins_cores() { config.cpus() } else { &[] };
        let cores: CpuSet = polled.iter().copied().collect();
        let before = CpuTimes::read_all(&tree);
        progress("watching other work on the host");
        thread::sleep(INTERVAL);
        let after = CpuTimes::read_all(&tree);
        if !cores.is_empty() {
            progress(&format!("watching the clock on CPUs {cores}"));
        }
        let jitter = jitter::watch(&cores, WATCH);
        Self {
            interval: INTERVAL,
            before,
            after,
            watched: WATCH,
            jitter,
            refused: permissions::refused(),
            clock: Some(Clock::shared().source()),
            caps: caps::ask(),
            allocator: "the system".to_owned(),
        }
    }
}
