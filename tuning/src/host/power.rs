//! Frequency and sleep states of CPUs.

use super::Tree;
use std::collections::BTreeMap;

/// Power facts that the host reports. Most virtual machines report nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Power {
    /// Driver of CPU frequencies: `intel_pstate`.
    pub frequency_driver: Option<String>,
    /// Frequency governor of each CPU that has one.
    pub governors: BTreeMap<usize, String>,
    /// True if CPUs may exceed their nominal frequency.
    pub boost: Option<bool>,
    /// Driver of sleep states: `intel_idle`.
    pub idle_driver: Option<String>,
    /// Sleep states of each CPU that has any.
    pub idle_states: BTreeMap<usize, Vec<IdleState>>,
    /// True if the reading process may write to `/dev/cpu_dma_latency`, which keeps CPUs out of
    /// slow sleep states while it is open; `None` if the file does not exist.
    pub dma_latency_writable: Option<bool>,
}

/// A sleep state of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdleState {
    /// `POLL`, `C1E`, `C6`.
    pub name: String,
    /// Exit latency in microseconds.
    pub exit_latency_us: u64,
    /// True if the state is disabled.
    pub is_disabled: bool,
}

impl Power {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let cpus = super::numbered(&tree.names(CPU), "cpu");
        let governor = |cpu: &usize| {
            let path = format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor");
            Some((*cpu, tree.line(&path)?))
        };
        let states = |cpu: &usize| Some(*cpu).zip(idle_states(tree, *cpu));
        let first = cpus.first().copied().unwrap_or_default();
        Self {
            frequency_driver: tree.line(&format!("{CPU}/cpu{first}/cpufreq/scaling_driver")),
            governors: cpus.iter().filter_map(governor).collect(),
            boost: boost(tree),
            idle_driver: tree.line(&format!("{CPU}/cpuidle/current_driver")),
            idle_states: cpus.iter().filter_map(states).collect(),
            dma_latency_writable: tree.is_writable("dev/cpu_dma_latency"),
        }
    }

    /// The enabled sleep state of a CPU with the longest exit latency.
    #[must_use]
    pub fn slowest_state(&self, cpu: usize) -> Option<&IdleState> {
        let allowed = self.idle_states.get(&cpu)?.iter().filter(|state| !state.is_disabled);
        allowed.max_by_key(|state| state.exit_latency_us)
    }
}

fn boost(tree: &Tree) -> Option<bool> {
    let flag = |file| tree.value::<u8>(&format!("{CPU}/{file}"));
    let intel = flag("intel_pstate/no_turbo").map(|off| off == 0);
    intel.or_else(|| flag("cpufreq/boost").map(|on| on != 0))
}

fn idle_states(tree: &Tree, cpu: usize) -> Option<Vec<IdleState>> {
    let folder = format!("{CPU}/cpu{cpu}/cpuidle");
    let names = tree.names(&folder);
    let states = names.iter().filter(|name| name.starts_with("state")).filter_map(|state| {
        let file = |file| format!("{folder}/{state}/{file}");
        Some(IdleState {
            name: tree.line(&file("name"))?,
            exit_latency_us: tree.value(&file("latency"))?,
            is_disabled: tree.value::<u64>(&file("disable")).is_some_and(|disabled| disabled != 0),
        })
    });
    let states: Vec<IdleState> = states.collect();
    (!states.is_empty()).then_some(states)
}

const CPU: &str = "sys/devices/system/cpu";
