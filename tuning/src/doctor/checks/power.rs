use crate::doctor::input::{agree, cores};
use crate::doctor::{CheckInput, Finding};
use spinrpc::config::IdlePolicy;
use spinrpc::sys::clock::ClockSource;
use std::collections::BTreeSet;

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
    let run = agree(cores, &polled, "runs", "run");
    let says = format!("{run} at a frequency that follows the load ({names})");
    Finding::new(input.interference(), says)
        .seen(GOVERNOR, names)
        .seen_if("scaling_driver", power.frequency_driver.as_ref())
        .remedy("Set the governor to performance")
        .command(format!("cpupower -c {polled} frequency-set -g performance"))
}

pub(super) fn idle(input: &CheckInput<'_>) -> Finding {
    let power = &input.facts.power;
    let polled = input.cores();
    if let Some(limit) = input.config().cpu_dma_latency() {
        return held(power.dma_latency_writable, limit.as_micros());
    }
    let Some(slowest) = power.slowest_state_of(polled.iter()) else {
        return not_said(input, "sleep states");
    };
    let (name, exit_us) = (&slowest.name, slowest.exit_latency_us);
    let seen = format!("{name} takes {exit_us} µs");
    if exit_us <= FAST_EXIT_US {
        let says = format!("the slowest sleep state takes {exit_us} µs to leave");
        return Finding::ok(says).seen(STATES, seen);
    }
    let may = format!("may sleep in {name}, with an exit latency of {exit_us} µs");
    // A core that polls does not sleep; a parked core wakes up late by the exit latency.
    let finding = match input.mode() {
        IdlePolicy::Busy => Finding::info(format!("a core that does not poll {may}")),
        IdlePolicy::Adaptive | IdlePolicy::Sleep => {
            Finding::warn(format!("{} {may}", cores(&polled)))
        }
    };
    let remedy = match power.dma_latency_writable {
        Some(true) => {
            "Let the engine keep CPUs out of it: host.cpu_dma_latency_us=0; or disable it"
        }
        Some(false) => {
            "Disable it, or make the device writable by this user and set host.cpu_dma_latency_us"
        }
        None => "Disable it",
    };
    finding
        .seen(STATES, seen)
        .seen_if(DEVICE, power.dma_latency_writable.map(access))
        .remedy(remedy)
        .command(format!("cpupower -c {polled} idle-set -D {FAST_EXIT_US}"))
}

/// The engine keeps CPUs awake itself, and fails to start if it cannot.
fn held(writable: Option<bool>, limit_us: u128) -> Finding {
    let finding = match writable {
        Some(true) => Finding::ok(format!(
            "the engine keeps CPUs out of states with exit latencies above {limit_us} µs"
        )),
        Some(false) => Finding::fail("the engine lacks permission for host.cpu_dma_latency_us")
            .remedy("Make it writable by this user, or set the key to off")
            .command(format!("setfacl -m u:$USER:rw {DEVICE}")),
        None => Finding::fail("the device that host.cpu_dma_latency_us needs does not exist")
            .remedy("Set the key to off, or give a container the device with --device"),
    };
    finding.seen(DEVICE, writable.map_or("not there", access))
}

fn access(writable: bool) -> &'static str {
    if writable { "writable" } else { "not writable by this user" }
}

/// The clock is read many times for each call.
pub(super) fn clock(input: &CheckInput<'_>) -> Finding {
    let source = known!(input.facts.clock.source.as_deref(), "its clock source");
    let of_engine = input.tried.and_then(|tried| tried.clock);
    let finding = match (source, of_engine) {
        ("hpet" | "acpi_pm" | "refined-jiffies" | "jiffies", _) => given_up(source),
        (_, Some(ClockSource::Counter)) | ("tsc" | "arch_sys_counter", None) => {
            Finding::ok("the engine uses the processor's counter")
        }
        (_, Some(ClockSource::Monotonic)) => Finding::info(format!(
            "the engine asks the kernel ({source}), at tens of nanoseconds per read"
        )),
        (_, None) => Finding::unknown(format!(
            "the kernel uses {source}; on the host itself, doctor asks the engine for its clock"
        )),
    };
    finding.seen(CLOCK, source)
}

fn given_up(source: &str) -> Finding {
    let says = format!(
        "the kernel does not trust the processor's counter and uses {source}: each clock read \
         takes up to a microsecond"
    );
    Finding::warn(says)
        .remedy(
            "Look for the reason in the kernel log. If the counters of all CPUs agree, add the \
             kernel parameter tsc=reliable. Measurements with this clock source are meaningless",
        )
        .command("dmesg | grep -i -e tsc -e clocksource")
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
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
