use super::Tree;

facts! {
    Kernel(tree) {
        host_name: Option<String> = tree.line("proc/sys/kernel/hostname");
        /// Release: `6.12.9-amd64`.
        release: Option<String> = tree.line("proc/sys/kernel/osrelease");
        /// The parameters that concern CPUs, clocks, interrupts and huge pages, as on the boot command line.
        parameters: Option<String> = tree.reduced("proc/cmdline", relevant);
        /// True if the watchdog checks every CPU for hangs, every few seconds.
        watchdog: Option<bool> = tree.flag("proc/sys/kernel/watchdog");
        /// True if the watchdog also uses non-maskable interrupts.
        nmi_watchdog: Option<bool> = tree.flag("proc/sys/kernel/nmi_watchdog");
        /// Seconds between updates of the memory statistics on each CPU.
        stat_interval_s: Option<u64> = tree.value("proc/sys/vm/stat_interval");
        /// True if timers of an idle CPU migrate to a busy one.
        timer_migration: Option<bool> = tree.flag("proc/sys/kernel/timer_migration");
        /// True if sessions share CPU time, rather than threads.
        autogroup: Option<bool> = tree.flag("proc/sys/kernel/sched_autogroup_enabled");
    }
}

/// Drops all other parameters, which may contain secrets.
fn relevant(command_line: &str) -> String {
    let is_relevant = |word: &&str| {
        let name = word.split('=').next();
        PARAMETERS.split_whitespace().any(|known| Some(known) == name)
    };
    command_line.split_whitespace().filter(is_relevant).collect::<Vec<_>>().join(" ")
}

const PARAMETERS: &str = "
    clocksource default_hugepagesz hugepages hugepagesz idle intel_idle.max_cstate intel_iommu
    intel_pstate iommu irqaffinity isolcpus kthread_cpus mitigations nmi_watchdog nohz nohz_full
    nosmt nosoftlockup nowatchdog numa_balancing processor.max_cstate rcu_nocb_poll rcu_nocbs
    skew_tick transparent_hugepage tsc";
