//! The settings of a host that can be changed. Each item lists the files that it may write to.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting of a host. Its name, for people and in a journal, is that of the variant in small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Item {
    Governor,
    /// Reserved pages of 2 MiB.
    Hugepages,
    /// Transparent huge pages.
    Thp,
    /// Merging of equal pages (KSM).
    Ksm,
    NumaBalancing,
    /// Detection of CPUs that hang.
    Watchdog,
    /// Memory statistics, updated on every CPU.
    StatInterval,
    TimerMigration,
    /// Division of CPU time by session.
    Autogroup,
    Irq,
}

/// Prefix and suffix of the files of items; between them is a number or nothing.
const FILES: &[(Item, &str, &str)] = &[
    (Item::Governor, "sys/devices/system/cpu/cpu", "/cpufreq/scaling_governor"),
    (Item::Hugepages, "sys/devices/system/node/node", "/hugepages/hugepages-2048kB/nr_hugepages"),
    (Item::Hugepages, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", ""),
    (Item::Thp, "sys/kernel/mm/transparent_hugepage/enabled", ""),
    (Item::Thp, "sys/kernel/mm/transparent_hugepage/defrag", ""),
    (Item::Ksm, "sys/kernel/mm/ksm/run", ""),
    (Item::NumaBalancing, "proc/sys/kernel/numa_balancing", ""),
    (Item::Watchdog, "proc/sys/kernel/watchdog", ""),
    (Item::Watchdog, "proc/sys/kernel/nmi_watchdog", ""),
    (Item::StatInterval, "proc/sys/vm/stat_interval", ""),
    (Item::TimerMigration, "proc/sys/kernel/timer_migration", ""),
    (Item::Autogroup, "proc/sys/kernel/sched_autogroup_enabled", ""),
    (Item::Irq, "proc/irq/", "/smp_affinity_list"),
];

impl Item {
    /// The item that a file belongs to. `path` is relative to the root.
    pub fn of(path: &str) -> Option<Self> {
        let is_number = |text: &str| text.parse::<u32>().is_ok() && !text.starts_with('+');
        let is_own = |(_, begin, end): &&(Self, &str, &str)| match end.is_empty() {
            true => path == *begin,
            false => {
                let number = path.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end));
                number.is_some_and(is_number)
            }
        };
        FILES.iter().find(is_own).map(|(item, ..)| *item)
    }
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_owns_its_files_and_no_others() {
        assert_eq!(Item::of("proc/irq/120/smp_affinity_list"), Some(Item::Irq));
        assert_eq!(Item::of("proc/sys/kernel/nmi_watchdog"), Some(Item::Watchdog));
        for path in [
            "proc/irq/../sys/kernel/core_pattern/smp_affinity_list",
            "proc/irq//smp_affinity_list",
            "proc/irq/+1/smp_affinity_list",
            "/proc/irq/1/smp_affinity_list",
            "proc/irq/1/smp_affinity_list/x",
            "etc/passwd",
            "",
        ] {
            assert_eq!(Item::of(path), None, "{path}");
        }
    }
}
