//! The environment of a result: everything a reader needs to doubt it.
//!
//! The commands take one [`Environment`] before and the interference after a run; `report` shows
//! both. `host` selects facts of the host, and `process` reads the resources and times of processes.

mod host;
mod process;

pub(crate) use process::{
    Holdings, ThreadTimes, WAITED_PERCENT, descriptor_limit, holdings, mapping_limit, memory_bytes,
    slab_bytes,
};

use crate::cores::CoreList;
use crate::fabric::Fabric;
use crate::units::joined;
pub(crate) use host::StealTimes;
use host::{Examination, Machine, load_average};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use spinrpc::Engine;
use spinrpc_tuning::host::Tree;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Serialize, Deserialize)]
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

    pub(crate) fn examine(&mut self, profile: &spinrpc_tuning::Profile) {
        self.doctor = Some(Examination::of(profile));
    }

    /// For people: the subject of each line, and a few facts.
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

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
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
