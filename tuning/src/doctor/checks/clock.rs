//! The clock, which is read many times for each call.

use crate::doctor::{CheckInput, Finding, Verdict};

pub(super) fn source(input: &CheckInput<'_>) -> Finding {
    let clock = &input.facts.clock;
    let Some(source) = clock.source.as_deref() else {
        return Finding::unknown("the host does not report its clock source");
    };
    let finding = match source {
        "tsc" => Finding::ok("the clock source is the processor's counter"),
        "hpet" | "acpi_pm" | "refined-jiffies" | "jiffies" => given_up(source),
        other if clock.constant_tsc == Some(true) && clock.nonstop_tsc == Some(true) => {
            Finding::ok(format!(
                "the kernel uses {other}; the engine uses the processor's counter, which is stable"
            ))
        }
        other => Finding::new(
            Verdict::Info,
            format!("the clock source is the kernel ({other}), at tens of nanoseconds per read"),
        ),
    };
    finding.seen(SOURCE, source)
}

fn given_up(source: &str) -> Finding {
    let says = format!(
        "the kernel does not trust the processor's counter and uses {source}: each clock read \
         takes up to a microsecond"
    );
    Finding::new(Verdict::Warn, says)
        .remedy(
            "Look for the reason in the kernel log. If the counters of all CPUs agree, add the \
             kernel parameter tsc=reliable. Measurements with this clock source are meaningless",
        )
        .command("dmesg | grep -i -e tsc -e clocksource")
}

const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
