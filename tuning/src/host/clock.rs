//! Clock source of the kernel, and what the processor reports of itself.

use super::Tree;

facts! {
    ClockFacts(tree) {
        /// The kernel's clock source: `tsc`, `kvm-clock`, `hpet`.
        source: Option<String> = tree.line(&format!("{SOURCES}/current_clocksource"));
        available: Vec<String> = available(tree);
        /// The host is a virtual machine; `None` if the processor does not report it (not an x86).
        is_guest: Option<bool> = has_flag(tree, &["flags"], &["hypervisor"]);
    }
}

fn available(tree: &Tree) -> Vec<String> {
    let sources = tree.line(&format!("{SOURCES}/available_clocksource")).unwrap_or_default();
    sources.split_whitespace().map(str::to_owned).collect()
}

/// Model of the first processor, and those of its flags that are looked at; `/proc/cpuinfo` repeats them for each CPU.
pub(super) fn first_processor(tree: &Tree) -> Option<String> {
    tree.reduced("proc/cpuinfo", |text| {
        let model = super::field(text, "model name").map(|model| format!("model name : {model}\n"));
        // The second is that of Arm.
        let flags = ["flags", "Features"].map(|name| {
            let flags = super::field(text, name)?;
            let words = flags.split_whitespace().filter(|flag| FLAGS.contains(flag));
            Some(format!("{name} : {}\n", words.collect::<Vec<_>>().join(" ")))
        });
        [model].into_iter().chain(flags).flatten().collect()
    })
}

/// The first processor has one of these flags; `None` if it has none of these lines.
pub(super) fn has_flag(tree: &Tree, lines: &[&str], flags: &[&str]) -> Option<bool> {
    let processor = first_processor(tree)?;
    let words = lines.iter().find_map(|line| super::field(&processor, line))?;
    Some(words.split_whitespace().any(|word| flags.contains(&word)))
}

const FLAGS: &[&str] = &["hypervisor", "fpu", "aes", "sha_ni", "fp", "sha2"];

const SOURCES: &str = "sys/devices/system/clocksource/clocksource0";
