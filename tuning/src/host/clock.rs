//! Clock source of the kernel, and properties of the processor's counter.

use super::Tree;

/// Clock facts that the host reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockFacts {
    /// The kernel's clock source: `tsc`, `kvm-clock`, `hpet`.
    pub source: Option<String>,
    /// Other available clock sources.
    pub available: Vec<String>,
    /// The time-stamp counter has the same rate at every frequency; `None` if the processor does
    /// not report it (not an x86).
    pub constant_tsc: Option<bool>,
    /// The time-stamp counter runs in every sleep state.
    pub nonstop_tsc: Option<bool>,
    /// The host is a virtual machine.
    pub is_guest: Option<bool>,
}

impl ClockFacts {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let processor = first_processor(tree).unwrap_or_default();
        let flags = super::field(&processor, "flags");
        let has = |flag: &str| flags.map(|flags| flags.split_whitespace().any(|one| one == flag));
        let available = tree.line(&format!("{SOURCES}/available_clocksource")).unwrap_or_default();
        Self {
            source: tree.line(&format!("{SOURCES}/current_clocksource")),
            available: available.split_whitespace().map(str::to_owned).collect(),
            constant_tsc: has("constant_tsc"),
            nonstop_tsc: has("nonstop_tsc"),
            is_guest: has("hypervisor"),
        }
    }
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

const FLAGS: &[&str] = &[
    "constant_tsc",
    "nonstop_tsc",
    "tsc_reliable",
    "hypervisor",
    "fpu",
    "aes",
    "sha_ni",
    "fp",
    "sha2",
];

const SOURCES: &str = "sys/devices/system/clocksource/clocksource0";
