//! What the kernel tells of a host in `/proc` and `/sys`, as far as it changes speeds.
//!
//! What is missing there is left out, never guessed. Reads under any root, so that tests can look
//! at hosts other than their own.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A host, seen by the cores of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct HostFacts {
    pub(crate) cpu: Option<String>,
    pub(crate) microcode: Option<String>,
    pub(crate) cpus_online: Option<String>,
    /// CPUs that the scheduler leaves alone; absent where there are none.
    pub(crate) cpus_isolated: Option<String>,
    /// Threads of one core: `on`, `off`, `notsupported` and so on.
    pub(crate) smt: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) kernel_cmdline: Option<String>,
    /// Frequency governor of the first core; absent on most virtual machines.
    pub(crate) governor: Option<String>,
    /// Frequencies above the nominal: `on` or `off`.
    pub(crate) boost: Option<String>,
    pub(crate) idle_driver: Option<String>,
    /// Idle states that the first core may enter, with the time it takes to leave each.
    pub(crate) idle_states: Option<String>,
    pub(crate) clock_source: Option<String>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub(crate) thp: Option<String>,
    /// Huge pages reserved, with their size.
    pub(crate) huge_pages: Option<String>,
    /// `1` where the kernel moves pages after those who use them.
    pub(crate) numa_balancing: Option<String>,
    /// NUMA node of each core of the run, in its order; empty where the kernel tells of none.
    pub(crate) core_nodes: Vec<u32>,
    /// NUMA node of the RDMA device.
    pub(crate) device_node: Option<i32>,
    /// Version of the RDMA device's firmware.
    pub(crate) device_firmware: Option<String>,
    /// Load average over one minute.
    pub(crate) load_average: Option<f64>,
}

impl HostFacts {
    /// Looks around below `root`, which is `/` but for tests. Reads two dozen small files.
    pub(crate) fn observe(root: &Path, cores: &[usize], device: Option<&str>) -> Self {
        let files = Files(root);
        let first = cores.first().copied().unwrap_or_default();
        let cpu = |path: &str| files.line(&format!("{CPUS}/{path}"));
        let of_device =
            |path: &str| files.line(&format!("sys/class/infiniband/{}/{path}", device?));
        Self {
            cpu: files.value("proc/cpuinfo", "model name"),
            microcode: files.value("proc/cpuinfo", "microcode"),
            cpus_online: cpu("online"),
            cpus_isolated: cpu("isolated"),
            smt: cpu("smt/control"),
            kernel: files.line("proc/sys/kernel/osrelease"),
            kernel_cmdline: files.line("proc/cmdline"),
            governor: cpu(&format!("cpu{first}/cpufreq/scaling_governor")),
            boost: files.boost(),
            idle_driver: cpu("cpuidle/current_driver"),
            idle_states: files.idle_states(first),
            clock_source: files
                .line("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            thp: files.line("sys/kernel/mm/transparent_hugepage/enabled").and_then(chosen),
            huge_pages: files.huge_pages(),
            numa_balancing: files.line("proc/sys/kernel/numa_balancing"),
            core_nodes: cores.iter().filter_map(|core| files.node(*core)).collect(),
            device_node: of_device("device/numa_node").and_then(|node| node.parse().ok()),
            device_firmware: of_device("fw_ver"),
            load_average: load_average(root),
        }
    }
}

/// Load average over one minute.
pub(super) fn load_average(root: &Path) -> Option<f64> {
    Files(root).line("proc/loadavg")?.split(' ').next()?.parse().ok()
}

/// Time the hypervisor ran something else instead of these cores since they started, in
/// milliseconds.
pub(super) fn steal_ms(root: &Path, cores: &[usize]) -> f64 {
    let stat = Files(root).text("proc/stat").unwrap_or_default();
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
    Files(Path::new("/"))
        .value(&format!("proc/{process}/smaps_rollup"), "Pss:")
        .and_then(|value| value.split(' ').next()?.parse::<f64>().ok())
        .map_or(0.0, |kib| kib * 1024.0)
}

/// The files of a host.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// The first line of a file, if it says anything.
    fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// The value behind the first line that begins with `key`, as `/proc` writes them.
    fn value(&self, path: &str, key: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }

    fn huge_pages(&self) -> Option<String> {
        let total = self.value("proc/meminfo", "HugePages_Total")?;
        let size = self.value("proc/meminfo", "Hugepagesize")?;
        Some(format!("{total} x {size}"))
    }

    /// Drivers say either that it is on, or that it is off.
    fn boost(&self) -> Option<String> {
        let on = self.line(&format!("{CPUS}/cpufreq/boost")).map(|on| on == "1");
        let off = self.line(&format!("{CPUS}/intel_pstate/no_turbo")).map(|off| off == "1");
        let on = on.or(off.map(|off| !off))?;
        Some(if on { "on" } else { "off" }.to_owned())
    }

    /// `POLL 0 µs, C1 2 µs, C6 133 µs (off)`.
    fn idle_states(&self, core: usize) -> Option<String> {
        let state = |index: usize| {
            let of = |file| self.line(&format!("{CPUS}/cpu{core}/cpuidle/state{index}/{file}"));
            let off = if of("disable").is_some_and(|off| off != "0") { " (off)" } else { "" };
            Some(format!("{} {} µs{off}", of("name")?, of("latency")?))
        };
        let states: Vec<String> = (0..IDLE_STATES_MAX).map_while(state).collect();
        (!states.is_empty()).then(|| states.join(", "))
    }

    /// The NUMA node of a core: a link beside it.
    fn node(&self, core: usize) -> Option<u32> {
        let entries = fs::read_dir(self.path(&format!("{CPUS}/cpu{core}"))).ok()?;
        let names = entries.flatten().map(|entry| entry.file_name());
        names.filter_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).next()
    }
}

/// The bracketed word of a sysfs choice such as `always [madvise] never`.
fn chosen(line: String) -> Option<String> {
    let (_, rest) = line.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

const CPUS: &str = "sys/devices/system/cpu";
const STEAL_COLUMN: usize = 8;
/// As many as the kernel keeps for a core (CPUIDLE_STATE_MAX).
const IDLE_STATES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A host made of these files; gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("spinperf-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_server_with_a_device_tells_everything() {
        let tree = Tree::new(
            "server",
            &[
                ("proc/cpuinfo", "processor\t: 0\nmodel name\t: Gold 6338\nmicrocode\t: 0xd0003\n"),
                ("proc/cmdline", "BOOT_IMAGE=/vmlinuz isolcpus=2-15 quiet\n"),
                ("proc/sys/kernel/osrelease", "6.1.0-30-amd64\n"),
                ("proc/sys/kernel/numa_balancing", "1\n"),
                ("proc/loadavg", "0.52 0.40 0.30 1/900 1234\n"),
                ("proc/meminfo", "HugePages_Total:     512\nHugepagesize:       2048 kB\n"),
                ("sys/devices/system/cpu/online", "0-63\n"),
                ("sys/devices/system/cpu/isolated", "2-15\n"),
                ("sys/devices/system/cpu/smt/control", "on\n"),
                ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
                ("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n"),
                ("sys/devices/system/cpu/cpu2/cpuidle/state0/name", "POLL\n"),
                ("sys/devices/system/cpu/cpu2/cpuidle/state0/latency", "0\n"),
                ("sys/devices/system/cpu/cpu2/cpuidle/state1/name", "C6\n"),
                ("sys/devices/system/cpu/cpu2/cpuidle/state1/latency", "133\n"),
                ("sys/devices/system/cpu/cpu2/cpuidle/state1/disable", "1\n"),
                ("sys/devices/system/cpu/cpu2/node1/x", ""),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("sys/class/infiniband/mlx5_0/fw_ver", "20.35.1012\n"),
                ("sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
            ],
        );
        let facts = HostFacts::observe(&tree.0, &[2], Some("mlx5_0"));
        let of = |fact: &Option<String>| fact.clone().unwrap_or_default();
        assert_eq!(of(&facts.cpu), "Gold 6338");
        assert_eq!(of(&facts.microcode), "0xd0003");
        assert!(of(&facts.kernel_cmdline).contains("isolcpus=2-15"));
        assert_eq!(of(&facts.cpus_isolated), "2-15");
        assert_eq!(
            (of(&facts.smt), of(&facts.governor)),
            ("on".to_owned(), "performance".to_owned())
        );
        assert_eq!(of(&facts.boost), "on");
        assert_eq!(of(&facts.idle_driver), "intel_idle");
        assert_eq!(of(&facts.idle_states), "POLL 0 µs, C6 133 µs (off)");
        assert_eq!(of(&facts.huge_pages), "512 x 2048 kB");
        assert_eq!(of(&facts.thp), "madvise");
        assert_eq!((facts.core_nodes, facts.device_node), (vec![1], Some(1)));
        assert_eq!(facts.device_firmware.as_deref(), Some("20.35.1012"));
        assert_eq!(facts.load_average, Some(0.52));
    }

    #[test]
    fn what_a_host_does_not_tell_is_left_out() {
        let tree = Tree::new("silent", &[("sys/devices/system/cpu/isolated", "\n")]);
        assert_eq!(HostFacts::observe(&tree.0, &[0], None), HostFacts::default());
    }

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
}
