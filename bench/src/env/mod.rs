//! The environment of a result: everything a reader needs to doubt it. Unknown facts are omitted, never guessed.

mod process;

pub(crate) use process::{Holdings, ThreadTimes, WAITED_PERCENT, holdings, memory_bytes};

use crate::cores::CoreList;
use crate::fabric::Fabric;
use crate::units::joined;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use spinrpc::Engine;
use spinrpc::sys::affinity::CpuSet;
use spinrpc_tuning::Profile;
use spinrpc_tuning::doctor::{CheckInput, Verdict, examine};
use spinrpc_tuning::host::{Adapter, CpuTimes, HostFacts, Tree};
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Environment {
    pub(crate) version: String,
    pub(crate) revision: Option<String>,
    pub(crate) build: String,
    pub(crate) features: Vec<String>,
    pub(crate) profile: String,
    /// Hash of the resolved profile, which distinguishes profiles of the same name.
    pub(crate) profile_hash: String,
    /// Transport of the calls, with its device if any; absent if no calls are made.
    pub(crate) fabric: Option<String>,
    /// Bandwidth of the device's link; absent for software devices and shared memory.
    pub(crate) link_bytes_per_second: Option<f64>,
    /// Version of RPC-over-RDMA on the connections; absent until it is known.
    pub(crate) rpc_version: Option<u32>,
    pub(crate) started_unix_s: u64,
    /// CPUs that this process polls on: all that it may use, if its cores are not pinned.
    pub(crate) cores: Vec<usize>,
    #[serde(flatten)]
    pub(crate) host: Machine,
    /// Known problems of this host; absent if no profile is used, and where reports are merged.
    #[serde(skip_deserializing)]
    pub(crate) doctor: Option<Examination>,
    pub(crate) memlock_bytes: Option<u64>,
    pub(crate) steal_ms_before: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct ProfileId {
    pub(crate) name: String,
    pub(crate) hash: String,
}

impl Environment {
    /// Observes the environment. Reads two dozen small files; not for the data path.
    pub(crate) fn observe(cores: &CoreList, profile: ProfileId, fabric: Option<&Fabric>) -> Self {
        let device = fabric.and_then(|fabric| fabric.device.as_ref());
        let name = device.map(|device| device.name.as_str());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: option_env!("SPINPERF_REVISION").map(str::to_owned),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            features: if cfg!(feature = "verbs") { vec!["verbs".to_owned()] } else { Vec::new() },
            profile: profile.name,
            profile_hash: profile.hash,
            fabric: fabric.map(Fabric::show),
            link_bytes_per_second: device.and_then(|device| device.bytes_per_second),
            rpc_version: None,
            started_unix_s: UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()),
            cores: cores.as_slice().to_vec(),
            host: Machine::observe(&Tree::host(), cores.as_slice(), name),
            doctor: None,
            memlock_bytes: getrlimit(Resource::Memlock).current,
            steal_ms_before: StealTimes::now().ms(cores.as_slice()),
        }
    }

    pub(crate) fn note_version(&mut self, engine: &Engine) {
        let speaks_two =
            |core| engine.stats(core).is_ok_and(|stats| stats.connections_version_two > 0);
        self.rpc_version = Some(if (0..engine.cores()).any(speaks_two) { 2 } else { 1 });
    }

    pub(crate) fn examine(&mut self, profile: &Profile) {
        self.doctor = Some(Examination::of(profile));
    }

    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let host = &self.host;
        let build = format!("{} {}", self.version, self.revision.as_deref().unwrap_or("-"));
        let features = joined(&self.features, ", ");
        let features = (!features.is_empty()).then(|| format!("with {features}"));
        let version = self.rpc_version.map(|version| format!("RPC-over-RDMA version {version}"));
        let node = host.device_node.map(|node| format!("NUMA node {node}"));
        let load = host.load_average.map_or("-".to_owned(), |load| format!("{load:.2}"));
        let steal = format!("{:.0} ms stolen from the cores since boot", self.steal_ms_before);
        let mut facts = vec![
            ("spinperf", vec![Some(build), Some(self.build.clone()), features]),
            ("profile", vec![Some(format!("{} ({})", self.profile, self.profile_hash))]),
            ("fabric", vec![Some(or_dash(&self.fabric)), version, node]),
        ];
        facts.extend(self.host_facts());
        facts.push(("doctor", vec![self.doctor.as_ref().map(Examination::fact)]));
        facts.push(("before", vec![Some(format!("load {load} (1 min)")), Some(steal)]));
        let shown =
            facts.into_iter().map(|(name, all)| (name, joined(all.into_iter().flatten(), ", ")));
        shown.filter(|(_, fact)| !fact.is_empty()).collect()
    }

    fn host_facts(&self) -> [(&'static str, Vec<Option<String>>); 4] {
        let host = &self.host;
        let named = |name: &str, fact: &Option<String>| Some(format!("{name} {}", fact.as_ref()?));
        let switch = |name: &str, on: Option<bool>| {
            on.map(|on| format!("{name} {}", if on { "on" } else { "off" }))
        };
        let mut nodes = host.core_nodes.clone();
        nodes.dedup();
        let nodes = (!nodes.is_empty()).then(|| format!("NUMA node {}", joined(nodes, ",")));
        let idle = if host.idle_states.is_some() { &host.idle_states } else { &host.idle_driver };
        let locked = self.memlock_bytes.map(|bytes| format!("{} KiB", bytes >> 10));
        let cpu = vec![
            Some(or_dash(&host.cpu)),
            named("microcode", &host.microcode),
            named("online", &host.cpus_online),
            named("isolated", &host.cpus_isolated),
            switch("SMT", host.smt),
        ];
        let cores = vec![
            Some(joined(&self.cores, ",")),
            nodes,
            Some(format!("governor {}", or_dash(&host.governor))),
            switch("boost", host.boost),
            named("idle:", idle),
        ];
        let clock = named("clock source", &host.clock_source);
        let kernel = vec![Some(or_dash(&host.kernel)), clock, host.kernel_parameters.clone()];
        let memory = vec![
            Some(format!("THP {}", or_dash(&host.thp))),
            named("huge pages", &host.huge_pages),
            Some(format!("memlock {}", locked.unwrap_or_else(|| "unlimited".to_owned()))),
            switch("NUMA balancing", host.numa_balancing),
        ];
        [("cpu", cpu), ("cores", cores), ("kernel", kernel), ("memory", memory)]
    }
}

fn or_dash(fact: &Option<String>) -> String {
    fact.clone().unwrap_or_else(|| "-".to_owned())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interference {
    pub(crate) steal_ms: f64,
    pub(crate) load_average_after: f64,
}

impl Interference {
    pub(crate) fn fact(&self) -> (&'static str, String) {
        let (steal_ms, load) = (self.steal_ms, self.load_average_after);
        ("during", format!("{steal_ms:.0} ms stolen from the cores, load after {load:.2}"))
    }
}

pub(crate) struct StealMeter {
    cores: Vec<usize>,
    start_ms: f64,
}

impl StealMeter {
    pub(crate) fn start(cores: &CoreList) -> Self {
        let cores = cores.as_slice().to_vec();
        let start_ms = StealTimes::now().ms(&cores);
        Self { cores, start_ms }
    }

    pub(crate) fn stop(self) -> Interference {
        Interference {
            steal_ms: (StealTimes::now().ms(&self.cores) - self.start_ms).max(0.0),
            load_average_after: load_average().unwrap_or_default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Name of the host; absent in older reports.
    pub(crate) host_name: Option<String>,
    pub(crate) cpu: Option<String>,
    pub(crate) microcode: Option<String>,
    pub(crate) cpus_online: Option<String>,
    pub(crate) cpus_isolated: Option<String>,
    pub(crate) smt: Option<bool>,
    pub(crate) kernel: Option<String>,
    /// Kernel parameters for CPUs, clocks, interrupts and huge pages; others may contain secrets.
    pub(crate) kernel_parameters: Option<String>,
    /// Frequency governor of the first core; absent on most virtual machines.
    pub(crate) governor: Option<String>,
    pub(crate) boost: Option<bool>,
    pub(crate) idle_driver: Option<String>,
    pub(crate) idle_states: Option<String>,
    pub(crate) clock_source: Option<String>,
    pub(crate) thp: Option<String>,
    pub(crate) huge_pages: Option<String>,
    pub(crate) numa_balancing: Option<bool>,
    /// NUMA node of each core of the run, in its order; empty if the kernel reports none.
    pub(crate) core_nodes: Vec<u32>,
    pub(crate) device_node: Option<u32>,
    pub(crate) device_firmware: Option<String>,
    pub(crate) load_average: Option<f64>,
}

impl Machine {
    pub(crate) fn observe(tree: &Tree, cores: &[usize], device: Option<&str>) -> Self {
        let facts = HostFacts::read(tree);
        let first = cores.first().copied().unwrap_or_default();
        let cpus = &facts.cpus;
        let named = |adapter: &&Adapter| Some(&*adapter.device.name) == device;
        let adapter = facts.rdma.adapters.iter().find(named);
        let isolated = cpus.isolated.as_ref().filter(|set| set.iter().next().is_some());
        Self {
            host_name: facts.kernel.host_name.clone(),
            cpu: cpus.model.clone(),
            microcode: microcode(tree),
            cpus_online: cpus.online.as_ref().map(CpuSet::to_string),
            cpus_isolated: isolated.map(CpuSet::to_string),
            smt: (!cpus.siblings.is_empty())
                .then(|| cpus.siblings.values().any(|set| set.len() > 1)),
            kernel: facts.kernel.release.clone(),
            kernel_parameters: facts.kernel.parameters.clone().filter(|words| !words.is_empty()),
            governor: facts.power.governors.get(&first).cloned(),
            boost: facts.power.boost,
            idle_driver: facts.power.idle_driver.clone(),
            idle_states: idle_states(&facts, first),
            clock_source: facts.clock.source.clone(),
            thp: facts.memory.thp.clone(),
            huge_pages: huge_pages(&facts),
            numa_balancing: facts.memory.numa_balancing,
            core_nodes: cores.iter().filter_map(|core| cpus.node_of(*core)).collect(),
            device_node: adapter.and_then(|adapter| adapter.node),
            device_firmware: adapter.and_then(|adapter| adapter.device.firmware.clone()),
            load_average: facts.tasks.load_average,
        }
    }
}

fn microcode(tree: &Tree) -> Option<String> {
    let text = tree.peek("proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("microcode"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn idle_states(facts: &HostFacts, core: usize) -> Option<String> {
    let states = facts.power.idle_states.get(&core)?.iter().map(|state| {
        let off = if state.is_disabled { " (off)" } else { "" };
        format!("{} {} µs{off}", state.name, state.exit_latency_us)
    });
    Some(joined(states, ", "))
}

fn huge_pages(facts: &HostFacts) -> Option<String> {
    let pools = &facts.memory.huge_pages;
    let shown = pools.iter().map(|pool| {
        let node = pool.node.map_or_else(String::new, |node| format!(" on node {node}"));
        format!("{} x {} KiB{node}", pool.total, pool.page_bytes >> 10)
    });
    (!pools.is_empty()).then(|| joined(shown, ", "))
}

fn load_average() -> Option<f64> {
    Tree::host().line("proc/loadavg")?.split(' ').next()?.parse().ok()
}

pub(crate) struct StealTimes(BTreeMap<usize, CpuTimes>);

impl StealTimes {
    pub(crate) fn now() -> Self {
        Self(CpuTimes::read_all(&Tree::host()))
    }

    /// Total of `cores` in milliseconds. Linux counts in hundredths of a second.
    pub(crate) fn ms(&self, cores: &[usize]) -> f64 {
        let ticks: u64 = cores.iter().filter_map(|core| Some(self.0.get(core)?.steal)).sum();
        ticks as f64 * 1000.0 / rustix::param::clock_ticks_per_second() as f64
    }
}

/// Result of `spintune doctor` for this host and a profile, without active tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Examination {
    pub(crate) verdict: Verdict,
    pub(crate) failures: Vec<&'static str>,
    pub(crate) warnings: Vec<&'static str>,
}

impl Examination {
    /// Reads some hundred small files.
    pub(crate) fn of(profile: &Profile) -> Self {
        let facts = HostFacts::read(&Tree::host());
        let report = examine(&CheckInput { facts: &facts, profile, tried: None });
        let with = |verdict| {
            let found = report.checks.iter().filter(|check| check.finding.verdict == verdict);
            found.map(|check| check.id).collect()
        };
        let (failures, warnings) = (with(Verdict::Fail), with(Verdict::Warn));
        Self { verdict: report.verdict, failures, warnings }
    }

    pub(crate) fn fact(&self) -> String {
        let named = |what: &str, checks: &[&str]| {
            (!checks.is_empty()).then(|| format!("{what} {}", checks.join(", ")))
        };
        let found = [named("fails", &self.failures), named("warns of", &self.warnings)];
        match &*joined(found.into_iter().flatten(), "; ") {
            "" => "suits the profile (passive checks only)".to_owned(),
            found => format!("{found} (spintune doctor has the remedies)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn an_environment_names_build_and_cores() {
        let profile = ProfileId { name: "base".to_owned(), hash: "0".to_owned() };
        let fabric = Fabric::of("shm:x").unwrap();
        let environment = Environment::observe(&CoreList::from(0), profile, Some(&fabric));
        assert_eq!(environment.cores, [0]);
        let facts = environment.facts();
        assert!(facts.contains(&("fabric", "shared memory".to_owned())));
        assert!(environment.host.kernel.is_some());
        assert!(facts.iter().any(|(_, fact)| fact.contains("base")));
    }

    fn recorded(name: &str) -> Tree {
        let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tuning/tests/hosts");
        Tree::open(&records.join(name)).unwrap()
    }

    #[test]
    fn a_server_with_a_device_tells_everything() {
        let machine = Machine::observe(&recorded("server-2s-mlx5-right.txt"), &[2], Some("mlx5_0"));
        let told = [
            &machine.cpu,
            &machine.cpus_online,
            &machine.cpus_isolated,
            &machine.kernel,
            &machine.kernel_parameters,
            &machine.governor,
            &machine.idle_driver,
            &machine.idle_states,
            &machine.clock_source,
            &machine.thp,
            &machine.huge_pages,
            &machine.device_firmware,
        ];
        assert!(told.iter().all(|fact| fact.is_some()), "{machine:#?}");
        assert_eq!(machine.core_nodes.len(), 1, "{machine:#?}");
        assert!(machine.device_node.is_some() && machine.smt.is_some(), "{machine:#?}");
    }

    #[test]
    fn what_a_host_does_not_tell_is_left_out() {
        let machine = Machine::observe(&recorded("vm-2.txt"), &[0], None);
        assert!(machine.cpu.is_some() && machine.kernel.is_some(), "{machine:#?}");
        assert_eq!((machine.governor, machine.device_firmware), (None, None));
    }

    #[test]
    fn this_host_is_examined_for_a_profile() {
        let profile = spinrpc_tuning::load("dev-vm", &spinrpc::config::Host::current()).unwrap();
        let examination = Examination::of(&profile);
        let bad = !examination.failures.is_empty() || !examination.warnings.is_empty();
        assert_eq!(bad, examination.verdict >= Verdict::Warn, "{examination:?}");
        assert!(!examination.fact().is_empty());
    }
}
