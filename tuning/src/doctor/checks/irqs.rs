//! Interrupts on poll cores: a common cause of rare long pauses.

use crate::doctor::input::{both, cores, minus};
use crate::doctor::{CheckInput, Finding};
use crate::host::Irq;
use spinrpc::sys::affinity::CpuSet;

pub(super) fn on_cores(input: &CheckInput<'_>) -> Finding {
    let irqs = &input.facts.irqs;
    if irqs.is_empty() {
        return Finding::unknown("the host does not report its interrupts");
    }
    let polled = input.cores();
    let hits = |irq: &&Irq| irq.cpus().is_some_and(|cpus| !both(cpus, &polled).is_empty());
    let hitting: Vec<&Irq> = irqs.iter().filter(hits).collect();
    if hitting.is_empty() {
        let says = format!("none of {} interrupts goes to {}", irqs.len(), cores(&polled));
        return Finding::ok(says).seen(SOURCE, "none of these CPUs");
    }
    let names: Vec<String> =
        hitting.iter().map(|irq| format!("{} ({})", irq.number, irq.name)).collect();
    let says = format!("{} of {} interrupts go to {}", hitting.len(), irqs.len(), cores(&polled));
    let finding = Finding::new(input.interference(), says).seen(SOURCE, super::some_of(&names, 8));
    send_elsewhere(input, finding, &hitting)
}

/// Isolated CPUs are excluded even if they are not polled on.
fn send_elsewhere(input: &CheckInput<'_>, finding: Finding, hitting: &[&Irq]) -> Finding {
    let rest = input.rest();
    let housekeeping = minus(&rest, &input.facts.cpus.isolated.clone().unwrap_or_default());
    let target = if housekeeping.is_empty() { rest } else { housekeeping };
    if target.is_empty() {
        return finding.remedy("There is no other CPU to move them to");
    }
    let numbers: Vec<String> = hitting.iter().map(|irq| irq.number.to_string()).collect();
    let command = format!(
        "for irq in {}; do echo {target} > /proc/irq/$irq/smp_affinity_list; done",
        numbers.join(" ")
    );
    finding
        .remedy(
            "Move them to other CPUs. Interrupts managed by the kernel (NVMe queues) cannot be \
             moved, but avoid CPUs isolated with isolcpus=managed_irq",
        )
        .command(command)
}

pub(super) fn irqbalance(input: &CheckInput<'_>) -> Finding {
    if !input.facts.tasks.has_irqbalance {
        return Finding::ok("irqbalance is not running");
    }
    let spared = |set: &Option<CpuSet>| set.clone().unwrap_or_default();
    let cpus = &input.facts.cpus;
    let left = minus(&minus(&input.cores(), &spared(&cpus.isolated)), &spared(&cpus.nohz_full));
    if left.is_empty() {
        return Finding::ok("irqbalance is running, and leaves isolated CPUs alone");
    }
    let says = format!("irqbalance is running, and may move interrupts to {}", cores(&left));
    Finding::new(input.interference(), says)
        .seen("/proc/*/stat", "irqbalance")
        .remedy(format!(
            "Stop it, or set IRQBALANCE_BANNED_CPULIST={left} in /etc/default/irqbalance \
             (/etc/sysconfig/irqbalance) and restart it"
        ))
        .command("systemctl stop irqbalance  # to undo: systemctl start irqbalance")
}

const SOURCE: &str = "/proc/irq/*/effective_affinity_list";
