//! Settings of the kernel that disturb cores: a row each, of which doctor makes findings, and `fit` the changes of a plan.

use super::{CheckInput, Finding, Verdict};
use crate::host::HostFacts;
use spinrpc::config::IdlePolicy;

pub(crate) struct Switch {
    /// Its check; empty if it has none.
    check: &'static str,
    severity: fn(&CheckInput<'_>) -> Verdict,
    /// Path relative to the root, and the value that does not disturb.
    pub(crate) file: &'static str,
    pub(crate) to: &'static str,
    now: Fact,
    matters: fn(&CheckInput<'_>) -> bool,
    pub(crate) says: &'static str,
    remedy: &'static str,
}

/// The value that the host reports, and whether it is the one that disturbs.
type Fact = fn(&HostFacts) -> Option<(String, bool)>;

impl Switch {
    pub(crate) fn is_to_be_set(&self, input: &CheckInput<'_>) -> bool {
        (self.matters)(input) && (self.now)(input.facts).is_some_and(|(_, disturbs)| disturbs)
    }

    fn command(&self) -> String {
        let Self { file, to, .. } = self;
        match file.strip_prefix("proc/sys/") {
            Some(name) => format!("sysctl -w {}={to}", name.replace('/', ".")),
            None => format!("echo {to} > /{file}"),
        }
    }
}

pub(super) fn judge(check: &str, input: &CheckInput<'_>) -> Finding {
    let known = SWITCHES.iter().filter(|one| one.check == check);
    let known = known.filter_map(|one| Some((one, (one.now)(input.facts)?)));
    let known: Vec<(&Switch, (String, bool))> = known.collect();
    let bad: Vec<&Switch> =
        known.iter().map(|(one, _)| *one).filter(|one| one.is_to_be_set(input)).collect();
    let finding = match bad[..] {
        [] if known.is_empty() && OPTIONAL.contains(&check) => {
            Finding::ok("the kernel does not have it, or does not report it")
        }
        [] if known.is_empty() => Finding::unknown("the kernel does not report it"),
        [] => Finding::ok("does not disturb"),
        [first, ..] => {
            let says: Vec<&str> = bad.iter().map(|one| one.says).collect();
            Finding::new((first.severity)(input), says.join("; ")).remedy(first.remedy)
        }
    };
    let see = |finding: Finding, (one, (value, _)): &(&Switch, (String, bool))| {
        finding.seen(format!("/{}", one.file), value)
    };
    let finding = known.iter().fold(finding, see);
    if bad.is_empty() { finding } else { finding.commands(bad.iter().map(|one| one.command())) }
}

/// Checks of what a kernel may be built without.
const OPTIONAL: &[&str] =
    &["memory.ksm", "memory.numa_balancing", "kernel.timer_migration", "kernel.autogroup"];

fn flag(on: Option<bool>) -> Option<(String, bool)> {
    on.map(|on| (u8::from(on).to_string(), on))
}

fn is_always(mode: &Option<String>) -> Option<(String, bool)> {
    mode.clone().map(|mode| (mode.clone(), mode == "always"))
}

fn always(_: &CheckInput<'_>) -> bool {
    true
}

/// Competing work does not disturb a core that sleeps when idle.
fn polls(input: &CheckInput<'_>) -> bool {
    input.mode() != IdlePolicy::Sleep
}

macro_rules! switches {
    ($($check:literal $severity:expr, $file:literal = $to:literal, $now:expr, $matters:expr, $says:literal, $remedy:expr;)+) => {
        &[$(Switch {
            check: $check, severity: $severity, file: $file, to: $to,
            now: $now, matters: $matters, says: $says, remedy: $remedy,
        }),+]
    };
}

const IF_TAIL_MATTERS: &str = "Change it if tail latency matters";

/// Value of `vm.stat_interval` that tuned's low-latency profile sets.
const CALM_S: u64 = 10;

pub(crate) static SWITCHES: &[Switch] = switches! {
    "memory.thp" |input| input.interference(), "sys/kernel/mm/transparent_hugepage/enabled" = "madvise",
        |facts| is_always(&facts.memory.thp), always,
        "any page fault may stall for a huge page (always)", "Restrict them to programs that request them";
    "" |_| Verdict::Info, "sys/kernel/mm/transparent_hugepage/defrag" = "madvise", |facts| is_always(&facts.memory.thp_defrag), always,
        "a page fault waits for memory compaction", "";
    "memory.khugepaged" |_| Verdict::Info, "sys/kernel/mm/transparent_hugepage/khugepaged/defrag" = "0",
        |facts| flag(facts.memory.khugepaged_defrag), |input| input.facts.memory.thp.as_deref() != Some("never"),
        "khugepaged moves pages to form huge ones, and stalls programs that access them meanwhile", "Disable its compaction";
    "memory.ksm" |input| input.interference(), "sys/kernel/mm/ksm/run" = "0", |facts| flag(facts.memory.ksm), always,
        "equal pages are merged, and copied again at the next write", "Disable it unless something on this host needs it (2 in the place of 0 separates the pages that are merged)";
    "memory.numa_balancing" |input| input.interference(), "proc/sys/kernel/numa_balancing" = "0",
        |facts| flag(facts.memory.numa_balancing), |input| input.facts.cpus.nodes.len() > 1,
        "pages are unmapped to find out which node uses them, which causes page faults during calls",
        "Disable it: the memory of cores is on their node already";
    // Set first, and so restored last: while watchdog is 0, the kernel does not accept 1 here.
    "kernel.watchdogs" |_| Verdict::Info, "proc/sys/kernel/nmi_watchdog" = "0", |facts| flag(facts.kernel.nmi_watchdog), polls,
        "the NMI watchdog interrupts even CPUs that take no interrupts, every few seconds", IF_TAIL_MATTERS;
    "kernel.watchdogs" |_| Verdict::Info, "proc/sys/kernel/watchdog" = "0", |facts| flag(facts.kernel.watchdog), polls,
        "the watchdog checks each CPU every few seconds", IF_TAIL_MATTERS;
    "kernel.stat_interval" |_| Verdict::Info, "proc/sys/vm/stat_interval" = "10",
        |facts| facts.kernel.stat_interval_s.map(|seconds| (seconds.to_string(), seconds < CALM_S)), polls,
        "memory statistics are updated on each CPU, at this interval in seconds", IF_TAIL_MATTERS;
    "kernel.timer_migration" |_| Verdict::Info, "proc/sys/kernel/timer_migration" = "0", |facts| flag(facts.kernel.timer_migration), polls,
        "timers of idle CPUs migrate to busy ones, and a polling core is busy", IF_TAIL_MATTERS;
    // Measured on Linux 6.18: beside busy threads of other sessions, a pinned thread got no CPU for 8 s of 8 with autogroup, and
    // waited for 14 ms at most without.
    "kernel.autogroup" |_| Verdict::Info, "proc/sys/kernel/sched_autogroup_enabled" = "0", |facts| flag(facts.kernel.autogroup),
        |input| input.config().pins_cores() && !input.open_cores().is_empty(),
        "poll cores may wait for seconds for threads of other sessions (seen on Linux 6.18)",
        "Divide CPU time by thread and start the engine again (threads that run keep their session's share), or isolate the cores";
};
