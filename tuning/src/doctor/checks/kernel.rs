//! Periodic kernel work on every CPU.

use crate::doctor::{Finding, Patient, Verdict};

pub(super) fn watchdogs(patient: &Patient<'_>) -> Finding {
    let kernel = &patient.facts.kernel;
    let running = [("nmi_watchdog", kernel.nmi_watchdog), ("watchdog", kernel.watchdog)];
    let on: Vec<&str> =
        running.iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| *name).collect();
    if on.is_empty() {
        return match running.iter().all(|(_, on)| on.is_none()) {
            true => Finding::unknown("the kernel does not speak of watchdogs"),
            false => Finding::ok("no watchdog looks after CPUs"),
        };
    }
    let says = format!("{} interrupts each CPU every few seconds", on.join(" and "));
    let finding = Finding::new(Verdict::Info, says).remedy("Switch it off where tails matter");
    on.into_iter().fold(finding, |finding, name| {
        finding
            .seen(format!("/proc/sys/kernel/{name}"), 1)
            .command(format!("sysctl -w kernel.{name}=0"))
    })
}

pub(super) fn stat_interval(patient: &Patient<'_>) -> Finding {
    let file = "/proc/sys/vm/stat_interval";
    match patient.facts.kernel.stat_interval_s {
        None => Finding::unknown("the kernel does not say how often it counts memory"),
        Some(seconds) if seconds >= CALM_S => {
            Finding::ok(format!("memory is counted every {seconds} s")).seen(file, seconds)
        }
        Some(seconds) => {
            Finding::new(Verdict::Info, format!("memory is counted on each CPU every {seconds} s"))
                .seen(file, seconds)
                .remedy("Make that rarer where tails matter")
                .command(format!("sysctl -w vm.stat_interval={CALM_S}"))
        }
    }
}

pub(super) fn timer_migration(patient: &Patient<'_>) -> Finding {
    let file = "/proc/sys/kernel/timer_migration";
    match patient.facts.kernel.timer_migration {
        None => Finding::ok("the kernel moves no timers"),
        Some(false) => Finding::ok("timers stay on their CPU").seen(file, 0),
        Some(true) => Finding::new(
            Verdict::Info,
            "timers of idle CPUs move to busy ones, and a core that polls is busy",
        )
        .seen(file, 1)
        .remedy("Have each CPU keep its own where tails matter")
        .command("sysctl -w kernel.timer_migration=0"),
    }
}

/// Value set by tuned's low-latency profile.
const CALM_S: u64 = 10;
