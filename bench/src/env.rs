//! Where and on what a result was measured: everything a reader needs to doubt it.
//!
//! Reads `/proc` and `/sys`; what is missing there is left out, never guessed. The commands take
//! one [`Environment`] before and the interference after a run; `report` prints both.

use crate::cores::CoreList;
use crate::fabric::Fabric;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use spinrpc::Engine;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, the build and the settings of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Environment {
    /// Version of the crate.
    pub(crate) version: &'static str,
    /// Source revision, when built in a git checkout.
    pub(crate) revision: Option<&'static str>,
    /// `release` or `debug`.
    pub(crate) build: &'static str,
    /// Name of the profile.
    pub(crate) profile: String,
    /// Hash of the resolved profile, so that equal names with other contents can be told apart.
    pub(crate) profile_hash: String,
    /// What the calls went by, and the device if it is one; absent where no calls are made.
    pub(crate) fabric: Option<String>,
    /// Version of RPC-over-RDMA that connections spoke; absent until that is known.
    pub(crate) rpc_version: Option<u32>,
    /// Start of the run, in seconds since 1970-01-01 UTC.
    pub(crate) started_unix_s: u64,
    /// Cores that this process polls on.
    pub(crate) cores: Vec<usize>,
    pub(crate) cpu: Option<String>,
    pub(crate) cpus_online: Option<String>,
    pub(crate) kernel: Option<String>,
    /// Frequency governor of the first core; absent on most virtual machines.
    pub(crate) governor: Option<String>,
    pub(crate) clock_source: Option<String>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub(crate) thp: Option<String>,
    /// Huge pages reserved, with their size.
    pub(crate) huge_pages: Option<String>,
    /// Bytes this process may lock; absent when unlimited.
    pub(crate) memlock_bytes: Option<u64>,
    /// Load average over one minute, before the run.
    pub(crate) load_average: Option<f64>,
}

/// Name and hash of the profile a run used.
#[derive(Clone, Debug)]
pub(crate) struct ProfileId {
    pub(crate) name: String,
    pub(crate) hash: String,
}

impl Environment {
    /// Looks around. Reads a dozen small files; not for the data path.
    pub(crate) fn observe(cores: &CoreList, profile: ProfileId, fabric: Option<&Fabric>) -> Self {
        let first = cores.as_slice().first().copied().unwrap_or_default();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            revision: option_env!("SPINPERF_REVISION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            profile: profile.name,
            profile_hash: profile.hash,
            fabric: fabric.map(Fabric::show),
            rpc_version: None,
            started_unix_s: unix_seconds(),
            cores: cores.as_slice().to_vec(),
            cpu: value_of("/proc/cpuinfo", "model name"),
            cpus_online: line_of("/sys/devices/system/cpu/online"),
            kernel: line_of("/proc/sys/kernel/osrelease"),
            governor: line_of(&format!(
                "/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor"
            )),
            clock_source: line_of(
                "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            thp: line_of("/sys/kernel/mm/transparent_hugepage/enabled").and_then(chosen),
            huge_pages: huge_pages(),
            memlock_bytes: getrlimit(Resource::Memlock).current,
            load_average: line_of("/proc/loadavg")
                .and_then(|line| line.split(' ').next()?.parse().ok()),
        }
    }

    /// Notes which version the connections of this engine, all to one server, have come to speak.
    pub(crate) fn note_version(&mut self, engine: &Engine) {
        let speaks_two = |core| engine.stats(core).connections_version_two > 0;
        self.rpc_version = Some(if (0..engine.cores()).any(speaks_two) { 2 } else { 1 });
    }

    fn spoken(&self) -> String {
        let version = self.rpc_version;
        version.map_or_else(String::new, |version| format!(", RPC-over-RDMA version {version}"))
    }

    /// Lines for people, each a few facts wide.
    pub(crate) fn lines(&self) -> Vec<String> {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let memlock = match self.memlock_bytes {
            None => "unlimited".to_owned(),
            Some(bytes) => format!("{} KiB", bytes >> 10),
        };
        let load = self.load_average.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}"));
        vec![
            format!("spinperf {} {}, {}", self.version, self.revision.unwrap_or("-"), self.build),
            format!("profile  {} ({})", self.profile, self.profile_hash),
            format!("fabric   {}{}", or_none(&self.fabric), self.spoken()),
            format!("cpu      {}, online {}", or_none(&self.cpu), or_none(&self.cpus_online)),
            format!(
                "kernel   {}, clock source {}, governor {}",
                or_none(&self.kernel),
                or_none(&self.clock_source),
                or_none(&self.governor)
            ),
            format!(
                "memory   THP {}, huge pages {}, memlock {memlock}",
                or_none(&self.thp),
                or_none(&self.huge_pages)
            ),
            format!("load     {load} (1 min, before)"),
        ]
    }
}

/// What the host did to the measured cores during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Interference {
    /// Time the hypervisor ran something else instead of the measured cores, in milliseconds.
    pub(crate) steal_ms: f64,
    /// Load average over one minute, after the run.
    pub(crate) load_average_after: f64,
}

/// Counts steal time from its creation on.
pub(crate) struct StealMeter {
    cores: Vec<usize>,
    start_ms: f64,
}

impl StealMeter {
    /// Starts counting on these cores.
    pub(crate) fn start(cores: &CoreList) -> Self {
        let cores = cores.as_slice().to_vec();
        let start_ms = steal_ms(&cores);
        Self { cores, start_ms }
    }

    /// What happened since.
    pub(crate) fn stop(self) -> Interference {
        let load = line_of("/proc/loadavg").and_then(|line| line.split(' ').next()?.parse().ok());
        Interference {
            steal_ms: (steal_ms(&self.cores) - self.start_ms).max(0.0),
            load_average_after: load.unwrap_or_default(),
        }
    }
}

fn steal_ms(cores: &[usize]) -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = cores.iter().filter_map(|&core| steal_ticks(&stat, core)).sum();
    ticks as f64 * 1000.0 / rustix::param::clock_ticks_per_second() as f64
}

/// Column "steal" of a core's line in `/proc/stat` (see proc_stat(5)), in clock ticks.
fn steal_ticks(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
    line.split_ascii_whitespace().nth(STEAL_COLUMN)?.parse().ok()
}

/// Memory of a process, what it shares with others counted in shares (see proc_pid_smaps(5)); 0
/// when the kernel does not tell.
pub(crate) fn memory_bytes(process: u32) -> f64 {
    value_of(&format!("/proc/{process}/smaps_rollup"), "Pss:")
        .and_then(|value| value.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |kib| kib * 1024.0)
}

/// What a process holds of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Holdings {
    /// Memory that is resident.
    pub(crate) resident_bytes: u64,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
}

/// What this process holds now; zero where the kernel does not tell.
pub(crate) fn holdings(process: u32) -> Holdings {
    let resident = value_of(&format!("/proc/{process}/status"), "VmRSS:");
    let kib = resident.and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
    Holdings {
        resident_bytes: kib.unwrap_or(0) << 10,
        descriptors: descriptors.map_or(0, |entries| entries.count() as u64),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn line_of(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The value behind the first line that begins with `key`, as `/proc` writes them.
fn value_of(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The bracketed word of a sysfs choice such as `always [madvise] never`.
fn chosen(line: String) -> Option<String> {
    let (_, rest) = line.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn huge_pages() -> Option<String> {
    let total = value_of("/proc/meminfo", "HugePages_Total")?;
    let size = value_of("/proc/meminfo", "Hugepagesize")?;
    Some(format!("{total} x {size}"))
}

const STEAL_COLUMN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number_of_the_cores_own_line() {
        let stat =
            "cpu  1 2 3 4 5 6 7 99 9 10\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu10 0 0 0 0 0 0 0 5 0 0\n";
        assert_eq!(steal_ticks(stat, 1), Some(8));
        assert_eq!(steal_ticks(stat, 10), Some(5));
        assert_eq!(steal_ticks(stat, 2), None);
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never".to_owned()), Some("madvise".to_owned()));
        assert_eq!(chosen("always".to_owned()), None);
    }

    #[test]
    fn a_process_takes_memory() {
        assert!(memory_bytes(std::process::id()) > 0.0);
        assert_eq!(memory_bytes(0), 0.0);
    }

    #[test]
    fn a_process_holds_memory_and_descriptors() {
        let before = holdings(std::process::id());
        let file = fs::File::open("/proc/self/status").unwrap();
        let after = holdings(std::process::id());
        assert!(before.resident_bytes > 0 && after.descriptors > 0);
        drop(file);
        assert_eq!(holdings(0), Holdings::default());
    }

    #[test]
    fn an_environment_names_build_and_cores() {
        let profile = ProfileId { name: "base".to_owned(), hash: "0".to_owned() };
        let fabric = Fabric::of("shm:x").unwrap();
        let environment = Environment::observe(&CoreList::from(0), profile, Some(&fabric));
        assert_eq!(environment.cores, [0]);
        assert!(environment.lines().contains(&"fabric   shared memory".to_owned()));
        assert!(environment.kernel.is_some());
        assert!(environment.lines().iter().any(|line| line.contains("base")));
    }
}
