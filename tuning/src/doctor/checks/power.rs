//! Frequencies and sleep states of poll cores.

use crate::doctor::input::{agree, cores};
use crate::doctor::{CheckInput, Finding, Verdict};
use crate::host::IdleState;
use spinrpc::config::IdlePolicy;
use spinrpc::sys::affinity::CpuSet;
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) fn governor(input: &CheckInput<'_>) -> Finding {
    let power = &input.facts.power;
    let polled = input.cores();
    let governors: BTreeSet<&str> =
        polled.iter().filter_map(|cpu| power.governors.get(&cpu).map(String::as_str)).collect();
    let names = governors.iter().copied().collect::<Vec<_>>().join(", ");
    if governors.is_empty() {
        return not_said(input, "frequencies");
    }
    if governors.iter().eq([&"performance"]) {
        return Finding::ok("performance").seen(GOVERNOR, names);
    }
    let says = format!(
        "{} {} at a frequency that follows the load ({names})",
        cores(&polled),
        agree(&polled, "runs", "run")
    );
    let finding = Finding::new(input.interference(), says).seen(GOVERNOR, names);
    let finding = match &power.frequency_driver {
        Some(driver) => finding.seen("scaling_driver", driver),
        None => finding,
    };
    finding
        .remedy("Set the governor to performance")
        .command(format!("cpupower -c {polled} frequency-set -g performance"))
}

pub(super) fn boost(input: &CheckInput<'_>) -> Finding {
    match input.facts.power.boost {
        None => not_said(input, "frequencies above the nominal one"),
        Some(false) => Finding::ok("CPUs stay at their nominal frequency"),
        Some(true) => Finding::new(
            Verdict::Info,
            "CPUs exceed their nominal frequency while they are cool: fast, but runs differ from \
             each other",
        )
        .seen("intel_pstate/no_turbo or cpufreq/boost", "on"),
    }
}

pub(super) fn idle(input: &CheckInput<'_>) -> Finding {
    let power = &input.facts.power;
    let polled = input.cores();
    if let Some(limit) = input.config().cpu_dma_latency() {
        return held(power.dma_latency_writable, limit);
    }
    let states = polled.iter().filter_map(|cpu| power.slowest_state(cpu));
    let Some(slowest) = states.max_by_key(|state| state.exit_latency_us) else {
        return not_said(input, "sleep states");
    };
    let seen = format!("{} takes {} µs", slowest.name, slowest.exit_latency_us);
    if slowest.exit_latency_us <= FAST_EXIT_US {
        let says = format!("the slowest sleep state takes {} µs to leave", slowest.exit_latency_us);
        return Finding::ok(says).seen(STATES, seen);
    }
    let finding = sleeps_deeply(input, &polled, slowest).seen(STATES, seen);
    let command = format!("cpupower -c {polled} idle-set -D {FAST_EXIT_US}");
    match power.dma_latency_writable {
        Some(true) => finding
            .seen(DEVICE, "writable")
            .remedy("Let the engine keep CPUs out of it: host.cpu_dma_latency_us=0; or disable it"),
        Some(false) => finding.seen(DEVICE, "not writable by this user").remedy(
            "Disable it, or make the device writable by this user and set host.cpu_dma_latency_us",
        ),
        None => finding.remedy("Disable it"),
    }
    .command(command)
}

/// With `host.cpu_dma_latency_us`, the engine keeps CPUs awake itself and fails to start if it
/// cannot.
fn held(writable: Option<bool>, limit: Duration) -> Finding {
    let limit_us = limit.as_micros();
    match writable {
        Some(true) => {
            let says = format!(
                "the engine keeps CPUs out of states with exit latencies above \
                                {limit_us} µs"
            );
            Finding::ok(says).seen(DEVICE, "writable")
        }
        Some(false) => {
            Finding::new(Verdict::Fail, "the engine lacks permission for host.cpu_dma_latency_us")
                .seen(DEVICE, "not writable by this user")
                .remedy("Make it writable by this user, or set the key to off")
                .command(format!("setfacl -m u:$USER:rw {DEVICE}"))
        }
        None => Finding::new(
            Verdict::Fail,
            "the device that host.cpu_dma_latency_us needs does \
                                             not exist",
        )
        .seen(DEVICE, "not there")
        .remedy("Set the key to off, or give a container the device with --device"),
    }
}

/// A core that polls does not sleep; a parked core wakes up late by the exit latency.
fn sleeps_deeply(input: &CheckInput<'_>, polled: &CpuSet, slowest: &IdleState) -> Finding {
    let (name, exit_us) = (&slowest.name, slowest.exit_latency_us);
    match input.mode() {
        IdlePolicy::Busy => Finding::new(
            Verdict::Info,
            format!(
                "a core that does not poll may sleep in {name}, with an exit latency of \
                     {exit_us} µs"
            ),
        ),
        IdlePolicy::Adaptive | IdlePolicy::Sleep => Finding::new(
            Verdict::Warn,
            format!("{} may sleep in {name}, with an exit latency of {exit_us} µs", cores(polled)),
        ),
    }
}

fn not_said(input: &CheckInput<'_>, what: &str) -> Finding {
    match input.facts.clock.is_guest {
        Some(true) => Finding::ok(format!("{what} are managed by the hypervisor")),
        _ => Finding::unknown(format!("the host does not report {what}")),
    }
}

/// Comparable to the cost of a kernel wake-up.
const FAST_EXIT_US: u64 = 10;
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
const STATES: &str = "/sys/devices/system/cpu/cpu*/cpuidle/state*/latency";
const DEVICE: &str = "/dev/cpu_dma_latency";
