//! The settings of a host that can be changed. Each item lists the files that it may write to.

use std::fmt;

/// A setting of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Item {
    /// Frequency governor of a CPU.
    Governor,
    /// Reserved pages of 2 MiB.
    HugePages,
    /// Transparent huge pages.
    TransparentHugePages,
    /// Merging of equal pages (KSM).
    Ksm,
    /// Migration of pages between nodes.
    NumaBalancing,
    /// Detection of CPUs that hang.
    Watchdog,
    /// Memory statistics, updated on every CPU.
    StatInterval,
    /// Migration of timers to busy CPUs.
    TimerMigration,
    /// CPU affinity of an interrupt.
    Interrupt,
}

/// Item, name, prefix and suffix of its files; between them is a number or nothing.
const ITEMS: &[(Item, &str, &str, &str)] = &[
    (Item::Governor, "governor", "sys/devices/system/cpu/cpu", "/cpufreq/scaling_governor"),
    (
        Item::HugePages,
        "hugepages",
        "sys/devices/system/node/node",
        "/hugepages/hugepages-2048kB/nr_hugepages",
    ),
    (Item::HugePages, "hugepages", "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", ""),
    (Item::TransparentHugePages, "thp", "sys/kernel/mm/transparent_hugepage/enabled", ""),
    (Item::TransparentHugePages, "thp", "sys/kernel/mm/transparent_hugepage/defrag", ""),
    (Item::Ksm, "ksm", "sys/kernel/mm/ksm/run", ""),
    (Item::NumaBalancing, "numa-balancing", "proc/sys/kernel/numa_balancing", ""),
    (Item::Watchdog, "watchdog", "proc/sys/kernel/watchdog", ""),
    (Item::Watchdog, "watchdog", "proc/sys/kernel/nmi_watchdog", ""),
    (Item::StatInterval, "stat-interval", "proc/sys/vm/stat_interval", ""),
    (Item::TimerMigration, "timer-migration", "proc/sys/kernel/timer_migration", ""),
    (Item::Interrupt, "irq", "proc/irq/", "/smp_affinity_list"),
];

impl Item {
    /// Its name, for people and in a journal.
    #[must_use]
    pub fn name(self) -> &'static str {
        ITEMS.iter().find(|(item, ..)| *item == self).map_or("", |(_, name, ..)| name)
    }

    /// Returns the item with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        ITEMS.iter().find(|(_, own, ..)| *own == name).map(|(item, ..)| *item)
    }

    /// Returns whether this file belongs to the item. `path` is relative to the root.
    #[must_use]
    pub fn owns(self, path: &str) -> bool {
        let own = ITEMS.iter().filter(|(item, ..)| *item == self);
        own.into_iter().any(|(_, _, begin, end)| match end.is_empty() {
            true => path == *begin,
            false => {
                let number = path.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end));
                number
                    .is_some_and(|number| number.parse::<u32>().is_ok() && !number.starts_with('+'))
            }
        })
    }
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_owns_its_files_and_no_others() {
        assert!(Item::Interrupt.owns("proc/irq/120/smp_affinity_list"));
        assert!(Item::Watchdog.owns("proc/sys/kernel/nmi_watchdog"));
        for path in [
            "proc/irq/../sys/kernel/core_pattern/smp_affinity_list",
            "proc/irq//smp_affinity_list",
            "proc/irq/+1/smp_affinity_list",
            "/proc/irq/1/smp_affinity_list",
            "proc/irq/1/smp_affinity_list/x",
            "etc/passwd",
            "",
        ] {
            assert!(ITEMS.iter().all(|(item, ..)| !item.owns(path)), "{path}");
        }
        assert!(!Item::Governor.owns("proc/irq/120/smp_affinity_list"), "another's");
    }

    #[test]
    fn items_are_found_by_their_names() {
        for (item, name, ..) in ITEMS {
            assert_eq!((Item::find(name), item.name()), (Some(*item), *name));
        }
    }
}
