//! The environment of a result: everything a reader needs to doubt it.
//!
//! The commands take one [`Environment`] before and the interference after a run; `report` shows
//! both. `host` selects facts of the host, `process` reads the resources of processes.

mod host;
mod process;

pub(crate) use process::{Holdings, descriptor_limit, holdings, mapping_limit, memory_bytes};

use crate::cores::CoreList;
use crate::fabric::Fabric;
pub(crate) use host::StealTimes;
use host::{Examination, Machine, load_average};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use spinrpc::Engine;
use spinrpc_tuning::host::Tree;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, the build and the settings of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    /// Version of the crate.
    pub(crate) version: String,
    /// Source revision, when built in a git checkout.
    pub(crate) revision: Option<String>,
    /// `release` or `debug`.
    pub(crate) build: String,
    /// Optional features that were built in.
    pub(crate) features: Vec<String>,
    /// Name of the profile.
    pub(crate) profile: String,
    /// Hash of the resolved profile, which distinguishes profiles of the same name.
    pub(crate) profile_hash: String,
    /// Transport of the calls, with its device if any; absent if no calls are made.
    pub(crate) fabric: Option<String>,
    /// Bandwidth of the device's link; absent for software devices and shared memory.
    pub(crate) link_bytes_per_second: Option<f64>,
    /// Version of RPC-over-RDMA on the connections; absent until it is known.
    pub(crate) rpc_version: Option<u32>,
    /// Start of the run, in seconds since 1970-01-01 UTC.
    pub(crate) started_unix_s: u64,
    /// Cores that this process polls on.
    pub(crate) cores: Vec<usize>,
    /// The host, before the run.
    #[serde(flatten)]
    pub(crate) host: Machine,
    /// Known problems of this host; absent if no profile is used, and where reports are merged.
    #[serde(skip_deserializing)]
    pub(crate) doctor: Option<Examination>,
    /// Limit of locked memory of this process, in bytes; absent if unlimited.
    pub(crate) memlock_bytes: Option<u64>,
    /// Time stolen from the cores between boot and the run, in milliseconds.
    pub(crate) steal_ms_before: f64,
}

/// Name and hash of the profile of a run.
#[derive(Clone, Debug)]
pub(crate) struct ProfileId {
    pub(crate) name: String,
    pub(crate) hash: String,
}

impl Environment {
    /// Observes the environment. Reads two dozen small files; not for the data path.
    pub(crate) fn observe(cores: &CoreList, profile: ProfileId, fabric: Option<&Fabric>) -> Self {
        let link = fabric.and_then(|fabric| fabric.link.as_ref());
        let device = link.map(|link| link.device.as_str());
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: option_env!("SPINPERF_REVISION").map(str::to_owned),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            features: if cfg!(feature = "verbs") { vec!["verbs".to_owned()] } else { Vec::new() },
            profile: profile.name,
            profile_hash: profile.hash,
            fabric: fabric.map(Fabric::show),
            link_bytes_per_second: link.and_then(|link| link.bytes_per_second),
            rpc_version: None,
            started_unix_s: unix_seconds(),
            cores: cores.as_slice().to_vec(),
            host: Machine::observe(&Tree::host(), cores.as_slice(), device),
            doctor: None,
            memlock_bytes: getrlimit(Resource::Memlock).current,
            steal_ms_before: StealTimes::now().ms(cores.as_slice()),
        }
    }

    /// Records the version that the connections of this engine, all to one server, have negotiated.
    pub(crate) fn note_version(&mut self, engine: &Engine) {
        let speaks_two =
            |core| engine.stats(core).is_ok_and(|stats| stats.connections_version_two > 0);
        self.rpc_version = Some(if (0..engine.cores()).any(speaks_two) { 2 } else { 1 });
    }

    /// Records whether the host suits a profile, without active tests.
    pub(crate) fn examine(&mut self, profile: &spinrpc_tuning::Profile) {
        self.doctor = Some(Examination::of(profile));
    }

    /// For people: the subject of each line, and a few facts.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let features = match self.features.as_slice() {
            [] => String::new(),
            features => format!(", with {}", features.join(", ")),
        };
        let revision = self.revision.as_deref().unwrap_or("-");
        let mut facts = vec![
            ("spinperf", format!("{} {revision}, {}{features}", self.version, self.build)),
            ("profile", format!("{} ({})", self.profile, self.profile_hash)),
            ("fabric", self.fabric_fact()),
        ];
        facts.extend(self.cpu_facts());
        facts.push(("kernel", self.kernel_fact()));
        facts.push(("memory", self.memory_fact()));
        facts.extend(self.doctor.as_ref().map(|doctor| ("doctor", doctor.fact())));
        facts.push(("before", self.before_fact()));
        facts
    }

    fn fabric_fact(&self) -> String {
        let version = self.rpc_version.map(|version| format!("RPC-over-RDMA version {version}"));
        let node = self.host.device_node.map(|node| format!("NUMA node {node}"));
        listed([Some(or_dash(self.fabric.as_ref())), version, node])
    }

    fn cpu_facts(&self) -> Vec<(&'static str, String)> {
        let host = &self.host;
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        let mut nodes = host.core_nodes.clone();
        nodes.dedup();
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let nodes = (!nodes.is_empty()).then(|| format!("NUMA node {}", nodes.join(",")));
        let idle = host.idle_states.as_ref().or(host.idle_driver.as_ref());
        vec![
            (
                "cpu",
                listed([
                    Some(or_dash(host.cpu.as_ref())),
                    named("microcode", host.microcode.as_ref()),
                    named("online", host.cpus_online.as_ref()),
                    named("isolated", host.cpus_isolated.as_ref()),
                    switch("SMT", host.smt),
                ]),
            ),
            (
                "cores",
                listed([
                    Some(cores.join(",")),
                    nodes,
                    Some(format!("governor {}", or_dash(host.governor.as_ref()))),
                    switch("boost", host.boost),
                    named("idle:", idle),
                ]),
            ),
        ]
    }

    fn kernel_fact(&self) -> String {
        let host = &self.host;
        listed([
            Some(or_dash(host.kernel.as_ref())),
            named("clock source", host.clock_source.as_ref()),
            host.kernel_parameters.clone(),
        ])
    }

    fn memory_fact(&self) -> String {
        let memlock = match self.memlock_bytes {
            None => "unlimited".to_owned(),
            Some(bytes) => format!("{} KiB", bytes >> 10),
        };
        let host = &self.host;
        listed([
            Some(format!("THP {}", or_dash(host.thp.as_ref()))),
            named("huge pages", host.huge_pages.as_ref()),
            Some(format!("memlock {memlock}")),
            switch("NUMA balancing", host.numa_balancing),
        ])
    }

    fn before_fact(&self) -> String {
        let load =
            self.host.load_average.map_or_else(|| "-".to_owned(), |load| format!("{load:.2}"));
        let steal_ms = self.steal_ms_before;
        format!("load {load} (1 min), {steal_ms:.0} ms stolen from the cores since boot")
    }
}

/// Interference with the measured cores during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interference {
    /// Time that the hypervisor ran something else instead of the measured cores, in milliseconds.
    pub(crate) steal_ms: f64,
    /// Load average over one minute, after the run.
    pub(crate) load_average_after: f64,
}

impl Interference {
    /// Summary for people.
    pub(crate) fn fact(&self) -> (&'static str, String) {
        let (steal_ms, load) = (self.steal_ms, self.load_average_after);
        ("during", format!("{steal_ms:.0} ms stolen from the cores, load after {load:.2}"))
    }
}

/// Measures steal time from its creation on.
pub(crate) struct StealMeter {
    cores: Vec<usize>,
    start_ms: f64,
}

impl StealMeter {
    /// Starts counting on these cores.
    pub(crate) fn start(cores: &CoreList) -> Self {
        let cores = cores.as_slice().to_vec();
        let start_ms = StealTimes::now().ms(&cores);
        Self { cores, start_ms }
    }

    /// Interference since the start.
    pub(crate) fn stop(self) -> Interference {
        Interference {
            steal_ms: (StealTimes::now().ms(&self.cores) - self.start_ms).max(0.0),
            load_average_after: load_average().unwrap_or_default(),
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn or_dash(fact: Option<&String>) -> String {
    fact.cloned().unwrap_or_else(|| "-".to_owned())
}

fn named(name: &str, fact: Option<&String>) -> Option<String> {
    fact.map(|fact| format!("{name} {fact}"))
}

fn switch(name: &str, on: Option<bool>) -> Option<String> {
    on.map(|on| format!("{name} {}", if on { "on" } else { "off" }))
}

fn listed<const N: usize>(facts: [Option<String>; N]) -> String {
    facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
