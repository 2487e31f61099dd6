//! Interrupts on poll cores: a common cause of rare long pauses.

use crate::doctor::input::{cores, cpus};
use crate::doctor::{CheckInput, Finding};
use crate::host::{Irq, both, minus};

pub(super) fn on_cores(input: &CheckInput<'_>) -> Finding {
    let irqs = &input.facts.irqs;
    if irqs.is_empty() {
        return Finding::unknown("the host does not report its interrupts");
    }
    let polled = input.cores();
    let quiet = input.facts.cpus.quiet(&polled);
    let hits = |irq: &&Irq| irq.cpus().is_some_and(|on| !both(on, &quiet).is_empty());
    let (managed, hitting): (Vec<&Irq>, Vec<&Irq>) =
        irqs.iter().filter(hits).partition(|irq| irq.is_managed());
    if hitting.is_empty() {
        let says = match managed.len() {
            0 => format!("none of {} interrupts goes to {}", irqs.len(), cores(&polled)),
            count => format!(
                "only interrupts of {count} disk queues go to {}: they cannot be moved, and only \
                 disk accesses from there cause them",
                cores(&polled)
            ),
        };
        return Finding::ok(says).seen(SOURCE, some_names(&managed));
    }
    let threads = minus(&quiet, &polled);
    let of_threads = match threads.is_empty() {
        true => String::new(),
        false => format!(" or to {}, on the same physical cores", cpus(&threads)),
    };
    let says = format!(
        "{} of {} interrupts go to {}{of_threads}",
        hitting.len(),
        irqs.len(),
        cores(&polled)
    );
    let finding = Finding::new(input.interference(), says).seen(SOURCE, some_names(&hitting));
    send_elsewhere(input, finding, &hitting)
}

fn some_names(irqs: &[&Irq]) -> String {
    let names = super::some_of(irqs.iter().map(|irq| format!("{} ({})", irq.number, irq.name)), 8);
    if names.is_empty() { "none of these CPUs".to_owned() } else { names }
}

fn send_elsewhere(input: &CheckInput<'_>, finding: Finding, hitting: &[&Irq]) -> Finding {
    let target = input.facts.cpus.housekeeping(&input.cores());
    if target.is_empty() {
        return finding.remedy("There is no other CPU to move them to");
    }
    let numbers: Vec<String> = hitting.iter().map(|irq| irq.number.to_string()).collect();
    let command = format!(
        "for irq in {}; do echo {target} > /proc/irq/$irq/smp_affinity_list; done",
        numbers.join(" ")
    );
    finding.remedy("Move them to other CPUs").command(command)
}

pub(super) fn irqbalance(input: &CheckInput<'_>) -> Finding {
    if !input.facts.tasks.has_irqbalance {
        return Finding::ok("irqbalance is not running");
    }
    let banned = input.facts.cpus.to_ban(&input.cores());
    if banned.is_empty() {
        return Finding::ok("irqbalance is running, and leaves isolated CPUs alone");
    }
    let says = format!("irqbalance is running, and may move interrupts to {}", cpus(&banned));
    Finding::new(input.interference(), says)
        .seen("/proc/*/stat", "irqbalance")
        .remedy(format!(
            "Stop it, or set IRQBALANCE_BANNED_CPULIST={banned} in /etc/default/irqbalance \
             (/etc/sysconfig/irqbalance) and restart it"
        ))
        .command("systemctl stop irqbalance  # to undo: systemctl start irqbalance")
}

const SOURCE: &str = "/proc/irq/*/effective_affinity_list";
