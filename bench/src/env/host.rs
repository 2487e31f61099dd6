//! The host facts that affect speed, as read by `spinrpc-tuning`.
//!
//! Unknown facts are omitted, never guessed.

use crate::units::joined;
use serde::{Deserialize, Serialize};
use spinrpc::sys::affinity::CpuSet;
use spinrpc_tuning::Profile;
use spinrpc_tuning::doctor::{CheckInput, Verdict, examine};
use spinrpc_tuning::host::{CpuTimes, HostFacts, Tree};
use std::collections::BTreeMap;

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
        let named =
            |adapter: &&spinrpc_tuning::host::Adapter| Some(&*adapter.device.name) == device;
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

/// `POLL 0 µs, C1 2 µs, C6 133 µs (off)`.
fn idle_states(facts: &HostFacts, core: usize) -> Option<String> {
    let states = facts.power.idle_states.get(&core)?.iter().map(|state| {
        let off = if state.is_disabled { " (off)" } else { "" };
        format!("{} {} µs{off}", state.name, state.exit_latency_us)
    });
    Some(joined(states, ", "))
}

/// `512 x 2048 KiB on node 0, 0 x 1048576 KiB on node 0`.
fn huge_pages(facts: &HostFacts) -> Option<String> {
    let pools = &facts.memory.huge_pages;
    let shown = pools.iter().map(|pool| {
        let node = pool.node.map_or_else(String::new, |node| format!(" on node {node}"));
        format!("{} x {} KiB{node}", pool.total, pool.page_bytes >> 10)
    });
    (!pools.is_empty()).then(|| joined(shown, ", "))
}

pub(super) fn load_average() -> Option<f64> {
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
