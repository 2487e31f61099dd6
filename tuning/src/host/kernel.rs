//! The kernel: its release, what it was started with, and the work it does of its own accord.

use super::Tree;

/// A host's kernel, as far as it tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernel {
    /// The host's name.
    pub host_name: Option<String>,
    /// Its release: `6.12.9-amd64`.
    pub release: Option<String>,
    /// Those of its parameters that are about CPUs, clocks, interrupts and huge pages.
    pub parameters: Vec<Parameter>,
    /// Whether it looks for CPUs that hang, once in some seconds on each.
    pub watchdog: Option<bool>,
    /// Whether it does so by non-maskable interrupts, too.
    pub nmi_watchdog: Option<bool>,
    /// Seconds between its updates of the statistics of memory on each CPU.
    pub stat_interval_s: Option<u64>,
    /// Whether timers of an idle CPU move to a busy one.
    pub timer_migration: Option<bool>,
}

/// A kernel parameter as it was given at boot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Before the equals sign.
    pub name: String,
    /// After it.
    pub value: Option<String>,
}

impl Kernel {
    /// Reads them.
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

    /// The value of a parameter, where it was given one.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut named = self.parameters.iter().filter(|parameter| parameter.name == name);
        named.next_back()?.value.as_deref()
    }
}

/// The rest says nothing to us, and may well be a secret.
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
