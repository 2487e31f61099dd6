//! Frequencies and sleep states of poll cores.

use crate::doctor::patient::{agree, cores};
use crate::doctor::{Finding, Patient, Verdict};
use crate::host::IdleState;
use spinrpc::config::IdlePolicy;
use spinrpc::sys::affinity::CpuSet;
use std::collections::BTreeSet;

pub(super) fn governor(patient: &Patient<'_>) -> Finding {
    let power = &patient.facts.power;
    let polled = patient.cores();
    let governors: BTreeSet<&str> =
        polled.iter().filter_map(|cpu| power.governors.get(&cpu).map(String::as_str)).collect();
    let names = governors.iter().copied().collect::<Vec<_>>().join(", ");
    if governors.is_empty() {
        return not_said(patient, "frequencies");
    }
    if governors.iter().eq([&"performance"]) {
        return Finding::ok("performance").seen(GOVERNOR, names);
    }
    let says = format!(
        "{} {} at a frequency that follows the load ({names})",
        cores(&polled),
        agree(&polled, "runs", "run")
    );
    let finding = Finding::new(patient.interference(), says).seen(GOVERNOR, names);
    let finding = match &power.frequency_driver {
        Some(driver) => finding.seen("scaling_driver", driver),
        None => finding,
    };
    finding
        .remedy("Choose the governor performance there")
        .command(format!("cpupower -c {polled} frequency-set -g performance"))
}

pub(super) fn boost(patient: &Patient<'_>) -> Finding {
    match patient.facts.power.boost {
        None => not_said(patient, "frequencies beyond the nominal one"),
        Some(false) => Finding::ok("CPUs keep to their nominal frequency"),
        Some(true) => Finding::new(
            Verdict::Info,
            "CPUs go beyond their nominal frequency while they are cool: fast, but no two runs \
             are alike",
        )
        .seen("intel_pstate/no_turbo or cpufreq/boost", "on"),
    }
}

pub(super) fn idle(patient: &Patient<'_>) -> Finding {
    let power = &patient.facts.power;
    let polled = patient.cores();
    let states = polled.iter().filter_map(|cpu| power.slowest_state(cpu));
    let Some(slowest) = states.max_by_key(|state| state.exit_latency_us) else {
        return not_said(patient, "sleep states");
    };
    let seen = format!("{} takes {} µs", slowest.name, slowest.exit_latency_us);
    if slowest.exit_latency_us <= FAST_EXIT_US {
        let says = format!("the slowest sleep state takes {} µs to leave", slowest.exit_latency_us);
        return Finding::ok(says).seen(STATES, seen);
    }
    let finding = sleeps_deeply(patient, &polled, slowest).seen(STATES, seen);
    let finding = match power.dma_latency_writable {
        Some(writable) => finding.seen("/dev/cpu_dma_latency", writable_word(writable)),
        None => finding,
    };
    finding
        .remedy("Switch off what takes longer, or hold /dev/cpu_dma_latency open with 0 in it")
        .command(format!("cpupower -c {polled} idle-set -D {FAST_EXIT_US}"))
}

/// A core that polls does not sleep; one that parks is late by that when it is woken.
fn sleeps_deeply(patient: &Patient<'_>, polled: &CpuSet, slowest: &IdleState) -> Finding {
    let (name, exit_us) = (&slowest.name, slowest.exit_latency_us);
    match patient.mode() {
        IdlePolicy::Busy => Finding::new(
            Verdict::Info,
            format!("a core that does not poll may sleep in {name}, {exit_us} µs away from work"),
        ),
        IdlePolicy::Adaptive | IdlePolicy::Sleep => Finding::new(
            Verdict::Warn,
            format!("{} may sleep in {name}, {exit_us} µs away from work", cores(polled)),
        ),
    }
}

fn not_said(patient: &Patient<'_>, what: &str) -> Finding {
    match patient.facts.clock.is_guest {
        Some(true) => Finding::ok(format!("{what} are left to the hypervisor")),
        _ => Finding::unknown(format!("the host does not speak of {what}")),
    }
}

const fn writable_word(writable: bool) -> &'static str {
    if writable { "may be written" } else { "must not be written by this user" }
}

/// What a wake-up by the kernel costs anyway.
const FAST_EXIT_US: u64 = 10;
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
const STATES: &str = "/sys/devices/system/cpu/cpu*/cpuidle/state*/latency";
