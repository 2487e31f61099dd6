//! Periodic kernel work on every CPU.

use crate::doctor::input::{are, cores};
use crate::doctor::{CheckInput, Finding};

pub(super) fn watchdogs(input: &CheckInput<'_>) -> Finding {
    let kernel = &input.facts.kernel;
    let running = [("nmi_watchdog", kernel.nmi_watchdog), ("watchdog", kernel.watchdog)];
    let on: Vec<&str> =
        running.iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| *name).collect();
    if on.is_empty() {
        return match running.iter().all(|(_, on)| on.is_none()) {
            true => Finding::unknown("the kernel does not report watchdogs"),
            false => Finding::ok("no watchdog is active"),
        };
    }
    let says = format!("{} interrupts each CPU every few seconds", on.join(" and "));
    let finding = Finding::info(says).remedy("Disable it if tail latency matters");
    on.into_iter().fold(finding, |finding, name| {
        finding
            .seen(format!("/proc/sys/kernel/{name}"), 1)
            .command(format!("sysctl -w kernel.{name}=0"))
    })
}

pub(super) fn stat_interval(input: &CheckInput<'_>) -> Finding {
    let Some(seconds) = input.facts.kernel.stat_interval_s else {
        return Finding::unknown(
            "the kernel does not report how often it updates memory statistics",
        );
    };
    let finding = if seconds >= CALM_S {
        Finding::ok(format!("memory statistics are updated every {seconds} s"))
    } else {
        Finding::info(format!("memory statistics are updated on each CPU every {seconds} s"))
            .remedy("Use a longer interval if tail latency matters")
            .command(format!("sysctl -w vm.stat_interval={CALM_S}"))
    };
    finding.seen("/proc/sys/vm/stat_interval", seconds)
}

pub(super) fn timer_migration(input: &CheckInput<'_>) -> Finding {
    let file = "/proc/sys/kernel/timer_migration";
    match input.facts.kernel.timer_migration {
        None => Finding::ok("the kernel does not migrate timers"),
        Some(false) => Finding::ok("timers stay on their CPU").seen(file, 0),
        Some(true) => {
            Finding::info("timers of idle CPUs migrate to busy ones, and a polling core is busy")
                .seen(file, 1)
                .remedy("Keep timers on their CPU if tail latency matters")
                .command("sysctl -w kernel.timer_migration=0")
        }
    }
}

/// Measured on Linux 6.18: beside busy threads of other sessions, a pinned thread got no CPU for 8 s of 8 with autogroup, and
/// waited for 14 ms at most without.
pub(super) fn autogroup(input: &CheckInput<'_>) -> Finding {
    let file = "/proc/sys/kernel/sched_autogroup_enabled";
    match input.facts.kernel.autogroup {
        None => Finding::ok("the kernel does not divide CPU time by session"),
        Some(false) => Finding::ok("CPU time is divided by thread").seen(file, 0),
        Some(true) if input.open_cores().is_empty() => {
            Finding::ok(format!("{} isolated", are(&input.cores()))).seen(file, 1)
        }
        Some(true) => {
            let open = cores(&input.open_cores());
            let says = format!(
                "{open} may wait for seconds for threads of other sessions (seen on Linux 6.18)"
            );
            Finding::info(says)
                .seen(file, 1)
                .remedy(
                    "Divide CPU time by thread and start the engine again (threads that run keep \
                     their session's share), or isolate the cores",
                )
                .command("sysctl -w kernel.sched_autogroup_enabled=0")
        }
    }
}

/// Value set by tuned's low-latency profile.
const CALM_S: u64 = 10;
