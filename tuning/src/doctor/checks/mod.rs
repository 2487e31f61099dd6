//! The list of checks, with one file for each topic.

/// A fact of the host; without it, the check that asks for it is over.
macro_rules! known {
    ($fact:expr, $what:literal) => {
        match $fact {
            Some(fact) => fact,
            None => return Finding::unknown(concat!("the host does not report ", $what)),
        }
    };
}

mod cpus;
mod irqs;
mod load;
mod memory;
mod power;
mod probes;
mod process;
mod rdma;

pub(super) use probes::GAP_NS;

use super::{CheckInput, Finding, switches};
use std::fmt::Display;

pub(super) struct Spec {
    pub(super) id: &'static str,
    pub(super) group: &'static str,
    pub(super) title: &'static str,
    is_of_pinned: bool,
    /// Absent for settings of the kernel, whose rows say everything.
    judge: Option<Judge>,
}

type Judge = fn(&CheckInput<'_>) -> Finding;

const fn spec(group: &'static str, id: &'static str, title: &'static str, judge: Judge) -> Spec {
    Spec { judge: Some(judge), ..switch(group, id, title) }
}

const fn switch(group: &'static str, id: &'static str, title: &'static str) -> Spec {
    Spec { id, group, title, is_of_pinned: false, judge: None }
}

/// A check that compares the CPU of a core with others.
const fn of_pinned(
    group: &'static str,
    id: &'static str,
    title: &'static str,
    judge: Judge,
) -> Spec {
    Spec { is_of_pinned: true, ..spec(group, id, title, judge) }
}

impl Spec {
    pub(super) fn run(&self, input: &CheckInput<'_>) -> Finding {
        match self.judge {
            None => switches::judge(self.id, input),
            Some(_) if self.is_of_pinned && !input.config().pins_cores() => {
                Finding::ok("cores are not pinned to CPUs (cores.list=any)")
            }
            Some(judge) => judge(input),
        }
    }
}

const CPUS: &str = "CPUs";
const INTERRUPTS: &str = "Interrupts";
const POWER: &str = "Power and clock";
const MEMORY: &str = "Memory";
const KERNEL: &str = "Kernel";
const RDMA: &str = "RDMA";
const LOAD: &str = "Load";
const PROCESS: &str = "This process";
const PROBES: &str = "Probes";

/// All checks in display order; checks of a group are adjacent.
pub(super) static ALL: &[Spec] = &[
    spec(CPUS, "cpus.allowed", "poll cores among the allowed CPUs", cpus::allowed),
    spec(CPUS, "cpus.quota", "CPU quota", cpus::quota),
    spec(CPUS, "cpus.spare", "CPUs left for other work", cpus::spare),
    of_pinned(CPUS, "cpus.isolated", "isolated poll cores", cpus::isolated),
    of_pinned(CPUS, "cpus.tick", "timer tick on poll cores", cpus::tick),
    of_pinned(CPUS, "cpus.zero", "polling on CPU 0", cpus::zero),
    of_pinned(
        CPUS,
        "cpus.smt",
        "hardware threads that share physical cores with poll cores",
        cpus::smt,
    ),
    of_pinned(CPUS, "cpus.kind", "P and E cores", cpus::kind),
    of_pinned(CPUS, "cpus.cache", "L3 caches of poll cores", cpus::cache),
    of_pinned(INTERRUPTS, "irqs.cores", "interrupts on poll cores", irqs::on_cores),
    spec(INTERRUPTS, "irqs.irqbalance", "irqbalance", irqs::irqbalance),
    spec(POWER, "power.governor", "frequency governor of poll cores", power::governor),
    spec(POWER, "power.idle", "sleep states of poll cores", power::idle),
    spec(POWER, "clock.source", "clock", power::clock),
    spec(MEMORY, "memory.room", "memory for cores and connections", memory::room),
    spec(MEMORY, "memory.lock", "lockable memory", memory::lock),
    spec(MEMORY, "memory.hugepages", "huge pages for arenas", memory::huge_pages),
    switch(MEMORY, "memory.thp", "transparent huge pages"),
    switch(MEMORY, "memory.khugepaged", "compaction by khugepaged"),
    switch(MEMORY, "memory.ksm", "merging of equal pages (KSM)"),
    switch(MEMORY, "memory.numa_balancing", "page migration between nodes"),
    switch(KERNEL, "kernel.watchdogs", "watchdogs"),
    switch(KERNEL, "kernel.stat_interval", "memory statistics"),
    switch(KERNEL, "kernel.timer_migration", "migration of timers"),
    switch(KERNEL, "kernel.autogroup", "CPU time by session"),
    spec(RDMA, "rdma.devices", "RDMA devices", rdma::devices),
    spec(RDMA, "rdma.ports", "ports", rdma::ports),
    spec(RDMA, "rdma.gids", "GIDs for RoCE version 2", rdma::gids),
    spec(RDMA, "rdma.mtu", "packet size", rdma::mtu),
    of_pinned(RDMA, "rdma.node", "NUMA nodes of the device and the poll cores", rdma::node),
    spec(RDMA, "rdma.pcie", "PCI Express link of the device", rdma::pcie),
    spec(RDMA, "rdma.library", "libibverbs", rdma::library),
    spec(RDMA, "rdma.caps", "capabilities of the device", rdma::caps),
    spec(LOAD, "load.average", "runnable tasks", load::average),
    of_pinned(LOAD, "load.cores", "other work on poll cores", load::on_cores),
    of_pinned(LOAD, "load.realtime", "real-time tasks", load::realtime),
    spec(LOAD, "load.tuned", "tuned", load::tuned),
    spec(PROCESS, "process.memfd", "anonymous shared memory", |input| {
        process::call(input, "memfd_create", "anonymous memory can be created and sealed")
    }),
    spec(PROCESS, "process.pidfd", "watching a peer", |input| {
        process::call(input, "pidfd_open", "the death of a peer is detected")
    }),
    spec(PROCESS, "process.descriptors", "passing descriptors", |input| {
        process::call(
            input,
            "sendmsg with SCM_RIGHTS",
            "descriptors can be passed between processes",
        )
    }),
    spec(PROCESS, "build.release", "build of this program", process::build),
    of_pinned(PROBES, "probe.jitter", "time lost on poll cores", probes::jitter),
];

fn not_tried() -> Finding {
    Finding::unknown("not tested")
}

fn some_of(items: impl IntoIterator<Item = impl Display>, most: usize) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let shown = items[..most.min(items.len())].join(", ");
    match items.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{} MiB", bytes.div_ceil(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_check_has_a_name_of_its_own_and_groups_stay_together() {
        let ids: BTreeSet<_> = ALL.iter().map(|spec| spec.id).collect();
        assert_eq!(ids.len(), ALL.len());
        let mut groups: Vec<_> = ALL.iter().map(|spec| spec.group).collect();
        groups.dedup();
        let distinct: BTreeSet<_> = groups.iter().collect();
        assert_eq!(distinct.len(), groups.len(), "{groups:?}");
    }

    #[test]
    fn long_lists_are_cut() {
        let items = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(some_of(&items, 3), "a, b, c");
        assert_eq!(some_of(&items, 1), "a and 2 more");
        assert_eq!(size((64 << 20) + 1), "65 MiB");
        assert_eq!(size(64 << 10), "64 KiB");
    }
}
