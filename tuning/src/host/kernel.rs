//! The kernel: release, parameters and periodic work.

use super::Tree;

/// Kernel facts that the host reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// The host's name.
    pub host_name: Option<String>,
    /// Release: `6.12.9-amd64`.
    pub release: Option<String>,
    /// The parameters that concern CPUs, clocks, interrupts and huge pages.
    pub parameters: Vec<Parameter>,
    /// True if the watchdog checks every CPU for hangs, every few seconds.
    pub watchdog: Option<bool>,
    /// True if the watchdog also uses non-maskable interrupts.
    pub nmi_watchdog: Option<bool>,
    /// Seconds between updates of the memory statistics on each CPU.
    pub stat_interval_s: Option<u64>,
    /// True if timers of an idle CPU migrate to a busy one.
    pub timer_migration: Option<bool>,
}

/// A kernel parameter from the boot command line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Part before the equals sign.
    pub name: String,
    /// Part after it.
    pub value: Option<String>,
}

impl Kernel {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let flag = |file| tree.value::<u64>(&format!("{SYSCTL}/{file}")).map(|value| value != 0);
        let command_line = tree.reduced("proc/cmdline", relevant).unwrap_or_default();
        Self {
            host_name: tree.line(&format!("{SYSCTL}/kernel/hostname")),
            release: tree.line(&format!("{SYSCTL}/kernel/osrelease")),
            parameters: command_line.split_whitespace().map(parameter).collect(),
            watchdog: flag("kernel/watchdog"),
            nmi_watchdog: flag("kernel/nmi_watchdog"),
            stat_interval_s: tree.value(&format!("{SYSCTL}/vm/stat_interval")),
            timer_migration: flag("kernel/timer_migration"),
        }
    }

    /// Value of a parameter, if it has one.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut named = self.parameters.iter().filter(|parameter| parameter.name == name);
        named.next_back()?.value.as_deref()
    }
}

/// Drops all other parameters, which may contain secrets.
fn relevant(command_line: &str) -> String {
    let is_relevant = |word: &&str| {
        let name = word.split('=').next().unwrap_or_default();
        PARAMETERS.contains(&name)
    };
    command_line.split_whitespace().filter(is_relevant).collect::<Vec<_>>().join(" ")
}

fn parameter(word: &str) -> Parameter {
    match word.split_once('=') {
        Some((name, value)) => Parameter { name: name.to_owned(), value: Some(value.to_owned()) },
        None => Parameter { name: word.to_owned(), value: None },
    }
}

const SYSCTL: &str = "proc/sys";

const PARAMETERS: &[&str] = &[
    "clocksource",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "kthread_cpus",
    "mitigations",
    "nmi_watchdog",
    "nohz",
    "nohz_full",
    "nosmt",
    "nosoftlockup",
    "nowatchdog",
    "numa_balancing",
    "processor.max_cstate",
    "rcu_nocb_poll",
    "rcu_nocbs",
    "skew_tick",
    "transparent_hugepage",
    "tsc",
];
