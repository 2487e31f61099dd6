//! Clock source of the kernel, and what the processor reports of itself.

use super::Tree;

facts! {
    ClockFacts(tree) {
        /// The kernel's clock source: `tsc`, `kvm-clock`, `hpet`.
        source: Option<String> = tree.line(&format!("{SOURCES}/current_clocksource"));
        available: Vec<String> = available(tree);
        /// The host is a virtual machine; `None` if the processor does not report it (not an x86).
        is_guest: Option<bool> = is_guest(tree);
    }
}

fn available(tree: &Tree) -> Vec<String> {
    let sources = tree.line(&format!("{SOURCES}/available_clocksource")).unwrap_or_default();
    sources.split_whitespace().map(str::to_owned).collect()
}

/// Model of the first processor, and the one of its flags that is looked at; `/proc/cpuinfo` repeats them for each CPU.
pub(super) fn first_processor(tree: &Tree) -> Option<String> {
    tree.reduced("proc/cpuinfo", |text| {
        let model = super::field(text, "model name").map(|model| format!("model name : {model}\n"));
        let flags = super::field(text, "flags").map(|flags| {
            let guest = flags.split_whitespace().find(|flag| *flag == GUEST);
            format!("flags : {}\n", guest.unwrap_or_default())
        });
        [model, flags].into_iter().flatten().collect()
    })
}

fn is_guest(tree: &Tree) -> Option<bool> {
    let processor = first_processor(tree)?;
    let flags = super::field(&processor, "flags")?;
    Some(flags.split_whitespace().any(|flag| flag == GUEST))
}

const GUEST: &str = "hypervisor";

const SOURCES: &str = "sys/devices/system/clocksource/clocksource0";
