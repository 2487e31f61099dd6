use super::Tree;
use std::collections::BTreeMap;

facts! {
    /// Power facts that the host reports. Most virtual machines report nothing.
    Power(tree) {
        /// Driver of CPU frequencies: `intel_pstate`.
        frequency_driver: Option<String> = frequency_driver(tree);
        governors: BTreeMap<usize, String> = of_each(tree, |cpu| {
            tree.line(&format!("{cpu}/cpufreq/scaling_governor"))
        });
        /// True if CPUs may exceed their nominal frequency.
        boost: Option<bool> = boost(tree);
        /// Driver of sleep states: `intel_idle`.
        idle_driver: Option<String> = tree.line(&format!("{CPU}/cpuidle/current_driver"));
        idle_states: BTreeMap<usize, Vec<IdleState>> = of_each(tree, |cpu| idle_states(tree, cpu));
        /// True if the reading process may write to `/dev/cpu_dma_latency`, which keeps CPUs out of
        /// slow sleep states while it is open; `None` if the file does not exist.
        dma_latency_writable: Option<bool> = tree.is_writable("dev/cpu_dma_latency");
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleState {
    /// `POLL`, `C1E`, `C6`.
    pub name: String,
    pub exit_latency_us: u64,
    pub is_disabled: bool,
}

impl Power {
    /// The enabled sleep state of these CPUs with the longest exit latency.
    pub fn slowest_state_of(&self, cpus: impl IntoIterator<Item = usize>) -> Option<&IdleState> {
        let states = cpus.into_iter().filter_map(|cpu| self.idle_states.get(&cpu)).flatten();
        states.filter(|state| !state.is_disabled).max_by_key(|state| state.exit_latency_us)
    }
}

fn of_each<T>(tree: &Tree, read: impl Fn(&str) -> Option<T>) -> BTreeMap<usize, T> {
    let cpus = super::numbered::<usize>(&tree.names(CPU), "cpu").into_iter();
    cpus.filter_map(|cpu| Some((cpu, read(&format!("{CPU}/cpu{cpu}"))?))).collect()
}

fn frequency_driver(tree: &Tree) -> Option<String> {
    let first = *super::numbered::<usize>(&tree.names(CPU), "cpu").first()?;
    tree.line(&format!("{CPU}/cpu{first}/cpufreq/scaling_driver"))
}

fn boost(tree: &Tree) -> Option<bool> {
    let flag = |file| tree.flag(&format!("{CPU}/{file}"));
    let intel = flag("intel_pstate/no_turbo").map(|is_off| !is_off);
    intel.or_else(|| flag("cpufreq/boost"))
}

fn idle_states(tree: &Tree, cpu: &str) -> Option<Vec<IdleState>> {
    let folder = format!("{cpu}/cpuidle");
    let names = tree.names(&folder);
    let states = names.iter().filter(|name| name.starts_with("state")).filter_map(|state| {
        let file = |file| format!("{folder}/{state}/{file}");
        Some(IdleState {
            name: tree.line(&file("name"))?,
            exit_latency_us: tree.value(&file("latency"))?,
            is_disabled: tree.flag(&file("disable")).unwrap_or_default(),
        })
    });
    let states: Vec<IdleState> = states.collect();
    (!states.is_empty()).then_some(states)
}

const CPU: &str = "sys/devices/system/cpu";
