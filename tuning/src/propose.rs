//! Generates a profile for a host from its facts, with a reason for every value. It is a starting
//! point to edit, and never exceeds the host's resources.

use crate::host::{Adapter, HostFacts};
use crate::reference::comment;
use spinrpc::config::{Config, CoreList, Driver, Host, RawConfig};
use std::fmt::Display;

/// Text of a profile for this host and driver. It is valid there.
pub fn propose(facts: &HostFacts, driver: Driver) -> String {
    let plan = Plan::of(facts, driver);
    let mut text = comment(&plan.title());
    text.push_str("schema = 1\n");
    text.push_str(&comment(&plan.include_reason()));
    text.push_str(&format!("include = [\"{}\"]\n", plan.include()));
    text.push_str(&format!("description = \"{}\"\n", plan.description()));
    for (group, entries) in plan.groups() {
        text.push_str(&format!("\n[{group}]\n"));
        for Entry { name, value, reason } in entries {
            text.push_str(&comment(&reason));
            text.push_str(&format!("{name} = {value}\n"));
        }
    }
    text
}

/// A key of a group, its value in profile syntax, and the reason.
struct Entry {
    name: &'static str,
    value: String,
    reason: String,
}

fn entry(name: &'static str, value: impl Display, reason: impl Into<String>) -> Entry {
    Entry { name, value: value.to_string(), reason: reason.into() }
}

/// A value as a TOML string.
fn quoted(value: impl Display) -> String {
    toml::Value::String(value.to_string()).to_string()
}

/// Decisions that several values depend on.
struct Plan<'a> {
    facts: &'a HostFacts,
    driver: Driver,
    adapter: Option<&'a Adapter>,
    host: Host,
    /// CPUs of `host` that the cores may use: those near the adapter, if there are any.
    near: Host,
    cpus: Vec<usize>,
    idle: Idle,
    arena_mib: u64,
}

/// Idle policy for this host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// The CPUs are isolated for the cores.
    Busy,
    /// There are several CPUs.
    Adaptive,
    /// There are two CPUs, or less CPU time than CPUs.
    Polite,
    /// There is one CPU.
    Sleep,
}

impl<'a> Plan<'a> {
    fn of(facts: &'a HostFacts, driver: Driver) -> Self {
        let adapter = if driver == Driver::Verbs { best_adapter(facts) } else { None };
        let host = facts.cpus.for_engine();
        let near = near(&host, adapter);
        let cpus = cores(&near, cores_wanted(&near));
        let mut plan = Self {
            facts,
            driver,
            adapter,
            idle: idle(facts, &near, &cpus, adapter),
            host,
            near,
            cpus,
            arena_mib: 0,
        };
        plan.arena_mib = plan.arena();
        plan
    }

    fn title(&self) -> String {
        let name = self.facts.kernel.host_name.as_deref().unwrap_or("this host");
        let nodes = self.facts.cpus.nodes.len().max(1);
        let memory = self.facts.memory.total_bytes.map_or(String::new(), |bytes| {
            format!(" and {:.1} GiB of memory", bytes as f64 / GIB as f64)
        });
        let cpus = counted(self.host.allowed.len(), "CPU");
        format!(
            "For {name}, as spintune init found it: {cpus} to run on, {}{memory}. Every value has \
             its reason; what is not set is as included.",
            counted(nodes, "NUMA node")
        )
    }

    fn description(&self) -> String {
        let name = self.facts.kernel.host_name.as_deref().unwrap_or("this host");
        let fabric = match self.driver {
            Driver::Shm => "by shared memory",
            Driver::Verbs => "by RDMA devices",
        };
        let plain =
            name.chars().filter(|letter| letter.is_alphanumeric() || "-_.".contains(*letter));
        format!("{}, {fabric}, as spintune init found it", plain.collect::<String>())
    }

    fn is_software(&self) -> bool {
        self.adapter.is_some_and(|adapter| adapter.device.is_software)
    }

    fn kernel_driver(&self) -> &str {
        self.adapter.and_then(|adapter| adapter.device.driver.as_deref()).unwrap_or_default()
    }

    fn include(&self) -> &'static str {
        match (self.driver, self.kernel_driver()) {
            (Driver::Verbs, "mlx5_core") => "verbs-mlx5",
            (Driver::Verbs, "rdma_rxe") => "verbs-rxe",
            (Driver::Verbs, "siw") => "verbs-siw",
            (Driver::Shm, _) if self.idle == Idle::Busy => "shm-local",
            _ if self.is_small() => "dev-vm",
            _ => "base",
        }
    }

    fn include_reason(&self) -> String {
        match (self.include(), self.adapter) {
            ("dev-vm", _) => "A small host: other programs run, and little is asked of it.".into(),
            ("shm-local", _) => {
                "CPUs are isolated here, so that cores may poll without rest.".into()
            }
            ("base", None) => "The defaults of every key.".into(),
            ("base", Some(adapter)) => {
                let driver = adapter.device.driver.as_deref().unwrap_or("unknown");
                format!("The defaults: no shipped profile is for adapters with driver {driver}.")
            }
            (_, Some(adapter)) => format!("What the driver of {} is good at.", adapter.device.name),
            (_, None) => "What goes with the rest.".into(),
        }
    }

    fn is_small(&self) -> bool {
        self.host.allowed.len() <= 2 || self.memory_bytes() < 4 * GIB
    }

    /// Memory that this process may use.
    fn memory_bytes(&self) -> u64 {
        let limit = self.facts.cgroup.memory_max.as_ref().map(|limit| limit.bytes);
        let total = self.facts.memory.total_bytes.unwrap_or(4 * GIB);
        limit.map_or(total, |limit| limit.min(total))
    }

    fn groups(&self) -> Vec<(&'static str, Vec<Entry>)> {
        let groups = [
            ("fabric", vec![self.fabric()]),
            ("cores", self.cores()),
            ("poll", self.poll()),
            ("mem", self.mem()),
            ("rpc", self.rpc()),
            ("verbs", self.verbs()),
            ("limits", vec![self.conns()]),
            ("host", self.host()),
        ];
        groups.into_iter().filter(|(_, entries)| !entries.is_empty()).collect()
    }

    fn fabric(&self) -> Entry {
        match self.driver {
            Driver::Shm => entry(
                "driver",
                quoted("shm"),
                "Programs of this host call each other; for others, spintune init --fabric verbs.",
            ),
            Driver::Verbs => entry("driver", quoted("verbs"), "As asked for."),
        }
    }

    fn cores(&self) -> Vec<Entry> {
        if self.host.allowed.len() <= 2 {
            let reason = "With so few CPUs a server and its client take one each by themselves: \
                          give the client cores.skip = 1.";
            return vec![entry("list", quoted("auto"), reason)];
        }
        let list = CoreList::Cpus(self.cpus.clone());
        vec![entry("list", quoted(list), self.why_these_cpus())]
    }

    fn why_these_cpus(&self) -> String {
        let isolated = self.cpus.iter().all(|cpu| self.near.isolated.contains(cpu));
        let mut why = match isolated {
            true => "CPUs that the kernel keeps free of other work (isolcpus)".to_owned(),
            false => "The first CPUs that are allowed".to_owned(),
        };
        if let Some(adapter) = self.adapter.filter(|_| self.near != self.host) {
            let node = adapter.node.map_or(String::new(), |node| format!(", node {node}"));
            why.push_str(&format!(" and near {}{node}", adapter.device.name));
        }
        if !self.cpus.contains(&0) {
            why.push_str(", without CPU 0, which the kernel uses for itself");
        }
        if !self.near.smt_siblings.is_empty() {
            why.push_str(", one of each physical core");
        }
        match isolated {
            true => why + ".",
            false => why + ". None are isolated; spintune plan says how to.",
        }
    }

    fn poll(&self) -> Vec<Entry> {
        match self.idle {
            Idle::Busy => vec![entry(
                "mode",
                quoted("busy"),
                "The CPUs have nothing else to do, so that giving way would help nobody.",
            )],
            Idle::Sleep => vec![entry(
                "mode",
                quoted("sleep"),
                "There is one CPU: whoever is to answer runs on it, too, and only when this core \
                 does not.",
            )],
            Idle::Adaptive => vec![entry(
                "mode",
                quoted("adaptive"),
                "Others run on these CPUs as well: idle cores give way, and sleep in the end.",
            )],
            Idle::Polite => self.polite(),
        }
    }

    fn polite(&self) -> Vec<Entry> {
        let why = match (&self.facts.cgroup.quota, self.is_software()) {
            (Some(quota), _) => format!(
                "Of {:.1} CPUs' time that {} leaves this process, idle cores must use little: who \
                 has used it up stands still for the rest of each period.",
                quota.cpus(),
                quota.file
            ),
            (None, true) => {
                "The device moves packets on the CPUs that the cores poll on, and needs \
                             its turn."
                    .to_owned()
            }
            (None, false) => {
                "Two CPUs for both ends and all else: an idle core gives way early.".to_owned()
            }
        };
        let spin_us = if self.is_software() { 100 } else { 20 };
        vec![
            entry("mode", quoted("adaptive"), why),
            entry("spin_us", spin_us, "Some round trips of this fabric, and no more."),
            entry("yield_us", 100, "Then whoever waits for the CPU runs first."),
        ]
    }

    fn mem(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        if !self.is_software() {
            entries.push(entry("arena_mib", self.arena_mib, self.why_this_arena()));
        }
        entries.push(self.hugepages());
        entries.push(self.lock());
        let prefault = self.memory_bytes() >= 4 * GIB && self.facts.cgroup.memory_max.is_none();
        let why = match prefault {
            true => "There is memory enough to have it in place from the start.",
            false => "There is little memory, or a limit on it: it is taken only as it is used.",
        };
        entries.push(entry("prefault", prefault, why));
        entries
    }

    /// Arena of each core: a sixteenth of the memory in total, limited by the lockable memory.
    fn arena(&self) -> u64 {
        let cores = self.cpus.len().max(1) as u64;
        let share_mib = (self.memory_bytes() / 16 / cores) >> 20;
        let lockable_mib =
            self.lockable_bytes().map_or(u64::MAX, |bytes| (bytes / 2 / cores) >> 20);
        let mib = match self.driver {
            // As in the included profile.
            Driver::Verbs if self.is_software() => SOFTWARE_ARENA_MIB,
            Driver::Verbs => share_mib.min(lockable_mib).min(DEVICE_ARENA_MIB_MAX),
            Driver::Shm => share_mib,
        };
        let power = mib.clamp(ARENA_MIB_MIN, ARENA_MIB_MAX).ilog2();
        1 << power
    }

    fn why_this_arena(&self) -> String {
        let share = format!("A sixteenth of the memory for {}", counted(self.cpus.len(), "core"));
        match (self.driver, self.lockable_bytes()) {
            (Driver::Verbs, None) => format!(
                "{share}, and {DEVICE_ARENA_MIB_MAX} MiB each at most: every connection registers \
                 it again."
            ),
            (Driver::Verbs, Some(bytes)) => format!(
                "{share}, and half of the {} MiB at most that may be locked (ulimit -l): devices \
                 lock what is registered. LimitMEMLOCK=infinity of a service allows more.",
                bytes >> 20
            ),
            _ => format!("{share}, {ARENA_MIB_MIN} to {ARENA_MIB_MAX} MiB each."),
        }
    }

    /// `None` means unlimited.
    fn lockable_bytes(&self) -> Option<u64> {
        let process = &self.facts.process;
        if process.may_lock_all { None } else { process.memlock?.soft }
    }

    fn hugepages(&self) -> Entry {
        let pages = self.arena_mib.div_ceil(2) * self.cpus.len() as u64;
        let node = self.cpus.first().and_then(|cpu| self.facts.cpus.node_of(*cpu)).unwrap_or(0);
        let free = self.facts.memory.free_huge_pages(node, 2 << 20).unwrap_or(0);
        let thp = self.facts.memory.thp.as_deref();
        match thp {
            _ if self.is_software() => {
                entry("hugepages", quoted("off"), "The device reads memory by 4-KiB pages anyway.")
            }
            _ if free >= pages => entry(
                "hugepages",
                quoted("try"),
                format!("{free} of 2 MiB are free on node {node}, and {pages} are needed."),
            ),
            None | Some("never") => entry(
                "hugepages",
                quoted("off"),
                format!("{free} are free where {pages} are needed, and the kernel makes none."),
            ),
            Some(_) => entry(
                "hugepages",
                quoted("try"),
                format!(
                    "{free} are free on node {node} where {pages} are needed; the kernel may make \
                     transparent ones."
                ),
            ),
        }
    }

    fn lock(&self) -> Entry {
        let bytes = (self.arena_mib << 20) * self.cpus.len() as u64;
        match self.lockable_bytes() {
            None => entry("lock", quoted("try"), "This process may lock any amount of memory."),
            Some(limit) if limit >= bytes => entry(
                "lock",
                quoted("try"),
                format!("{} MiB may be locked, {} are needed.", limit >> 20, bytes >> 20),
            ),
            Some(limit) => entry(
                "lock",
                quoted("off"),
                format!(
                    "{} MiB may be locked, {} are needed: LimitMEMLOCK=infinity of a service, or \
                     memlock in limits.d, allows it.",
                    limit >> 20,
                    bytes >> 20
                ),
            ),
        }
    }

    fn rpc(&self) -> Vec<Entry> {
        match self.include() {
            "base" | "shm-local" if self.memory_bytes() < 4 * GIB => {
                vec![entry("credits", 32, "Half of the buffers for each connection.")]
            }
            _ => Vec::new(),
        }
    }

    fn verbs(&self) -> Vec<Entry> {
        let Some(adapter) = self.adapter else { return Vec::new() };
        let name = &adapter.device.name;
        let why = match adapter.device.is_active() {
            true => format!("{name} is the device to go by: an address of another is a mistake."),
            false => format!("{name} is there, but no port of it works; see spintune doctor."),
        };
        vec![entry("device", quoted(name), why)]
    }

    /// Limits connection memory to an eighth of the memory, with all connections in use.
    fn conns(&self) -> Entry {
        let fits = self.memory_bytes() / 8 / CONN_BYTES;
        let conns = 1_u64 << fits.clamp(CONNS_MIN, CONNS_MAX).ilog2();
        let reason = "An eighth of the memory at most, at about a megabyte for each one in use.";
        entry("conns", conns, reason)
    }

    fn host(&self) -> Vec<Entry> {
        let power = &self.facts.power;
        let slowest = self.cpus.iter().filter_map(|cpu| power.slowest_state(*cpu));
        let Some(state) = slowest.max_by_key(|state| state.exit_latency_us) else {
            return Vec::new();
        };
        let wanted = self.idle == Idle::Busy && state.exit_latency_us > WAKE_US_MAX;
        if !wanted || power.dma_latency_writable != Some(true) {
            return Vec::new();
        }
        let reason = format!(
            "CPUs may sleep in {}, which takes {} µs to wake up from: that of the other end of a \
             connection, too. This user may forbid it while an engine runs.",
            state.name, state.exit_latency_us
        );
        vec![entry("cpu_dma_latency_us", 0, reason)]
    }
}

/// Prefers active devices to inactive ones, then hardware to software.
fn best_adapter(facts: &HostFacts) -> Option<&Adapter> {
    let order = |adapter: &&Adapter| (adapter.device.is_active(), !adapter.device.is_software);
    let best = facts.rdma.adapters.iter().rev().max_by_key(order)?;
    Some(best)
}

/// The CPUs of the host near the adapter; all CPUs if none of those may be used.
fn near(host: &Host, adapter: Option<&Adapter>) -> Host {
    let Some(local) = adapter.and_then(|adapter| adapter.local_cpus.as_ref()) else {
        return host.clone();
    };
    let is_near = |cpu: &&usize| local.contains(**cpu);
    let allowed: Vec<usize> = host.allowed.iter().filter(is_near).copied().collect();
    match allowed.is_empty() {
        true => host.clone(),
        false => Host { allowed, ..host.clone() },
    }
}

/// All isolated CPUs, or else a quarter of the allowed ones.
fn cores_wanted(host: &Host) -> u64 {
    let isolated = host.isolated.iter().filter(|cpu| host.allowed.contains(cpu)).count() as u64;
    let quarter = host.allowed.len() as u64 / 4;
    if isolated > 0 { isolated.min(CORES_MAX) } else { quarter.clamp(1, CORES_MAX / 2) }
}

/// The CPUs that `auto` would take.
fn cores(host: &Host, most: u64) -> Vec<usize> {
    let mut raw = RawConfig::default();
    raw.cores.max = most;
    let resolved = raw.validate_for(host).unwrap_or_else(|_| Config::default());
    let mut cpus = resolved.cpus().to_vec();
    cpus.sort_unstable();
    cpus
}

fn idle(facts: &HostFacts, host: &Host, cpus: &[usize], adapter: Option<&Adapter>) -> Idle {
    let short_of_time = facts.cgroup.quota.is_some();
    let isolated = cpus.iter().all(|cpu| host.isolated.contains(cpu));
    let soft = adapter.is_some_and(|adapter| adapter.device.is_software);
    match host.allowed.len() {
        _ if short_of_time => Idle::Polite,
        _ if isolated => Idle::Busy,
        1 => Idle::Sleep,
        2 => Idle::Polite,
        _ if soft => Idle::Polite,
        _ => Idle::Adaptive,
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

const GIB: u64 = 1 << 30;
const ARENA_MIB_MIN: u64 = 4;
const ARENA_MIB_MAX: u64 = 256;
const DEVICE_ARENA_MIB_MAX: u64 = 64;
/// Value of the shipped profiles for software devices.
const SOFTWARE_ARENA_MIB: u64 = 16;
const CORES_MAX: u64 = 8;
const CONNS_MIN: u64 = 16;
const CONNS_MAX: u64 = 1024;
/// Buffers for the default credits and inline sizes, rings, and connection state.
const CONN_BYTES: u64 = 1 << 20;
/// Longer than a round trip between hosts.
const WAKE_US_MAX: u64 = 2;
