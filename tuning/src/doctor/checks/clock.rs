//! The clock, which is read many times for each call.

use crate::doctor::{Finding, Patient, Verdict};

pub(super) fn source(patient: &Patient<'_>) -> Finding {
    let clock = &patient.facts.clock;
    let Some(source) = clock.source.as_deref() else {
        return Finding::unknown("the host does not say what it keeps time by");
    };
    let finding = match source {
        "tsc" => Finding::ok("time comes from the processor's counter"),
        "hpet" | "acpi_pm" | "refined-jiffies" | "jiffies" => given_up(source),
        other if clock.constant_tsc == Some(true) && clock.nonstop_tsc == Some(true) => {
            Finding::ok(format!(
                "the kernel goes by {other}, the engine by the processor's counter, which is \
                 steady"
            ))
        }
        other => Finding::new(
            Verdict::Info,
            format!("time comes from the kernel ({other}), tens of nanoseconds for each look"),
        ),
    };
    finding.seen(SOURCE, source)
}

fn given_up(source: &str) -> Finding {
    let says = format!(
        "the kernel does not trust the processor's counter and goes by {source}: each look at the \
         clock takes up to a microsecond"
    );
    Finding::new(Verdict::Warn, says)
        .remedy(
            "See why in the kernel's log. Where the counters of all CPUs do agree, add the kernel \
             parameter tsc=reliable; no figure measured without that means anything",
        )
        .command("dmesg | grep -i -e tsc -e clocksource")
}

const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
