//! The changes that a host needs to fit a profile.

use super::item::Item;
use super::journal::Journal;
use super::site::Site;
use crate::host::{HostFacts, both, minus};
use crate::profile::Profile;
use serde::Serialize;
use spinrpc::config::{Driver, IdlePolicy};
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::mmap::HugePages;

/// A write to one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// The item.
    pub item: Item,
    /// Path relative to the root.
    #[serde(serialize_with = "super::absolute")]
    pub path: String,
    /// Current value.
    pub from: String,
    /// Requested value.
    pub to: String,
    /// Reason, as a sentence.
    pub reason: String,
}

/// A change that spintune leaves to people: it needs a reboot, or concerns files of theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Advice {
    /// Reason, as a sentence.
    pub reason: String,
    /// Text to write, and where.
    pub what: String,
}

/// Changes to make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// By item, then by number.
    pub changes: Vec<Change>,
    /// Changes to make by hand.
    pub advice: Vec<Advice>,
}

impl Change {
    /// A wanted value. The current one is not known yet.
    fn to(
        item: Item,
        path: impl Into<String>,
        to: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        let (path, to, reason) = (path.into(), to.into(), reason.into());
        Self { item, path, from: String::new(), to, reason }
    }
}

impl Plan {
    /// Computes the changes that the host needs. Leaves out files that do not exist, files that
    /// cannot be written (interrupts that cannot be moved), and files that already have the value.
    /// The journal says which values spintune has set already.
    pub fn of(site: &Site, profile: &Profile, journal: &Journal) -> Self {
        let facts = HostFacts::read(site.tree());
        let needs = Needs::new(&facts, profile, journal);
        let changes = needs.changes().into_iter().filter_map(|change| {
            let from = site.read(&change.path).ok().filter(|_| site.may_be_set(&change.path))?;
            (from != change.to).then_some(Change { from, ..change })
        });
        Self { changes: changes.collect(), advice: needs.advice() }
    }

    /// Returns whether nothing has to be changed. There may still be advice.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

struct Needs<'a> {
    facts: &'a HostFacts,
    profile: &'a Profile,
    journal: &'a Journal,
    cores: CpuSet,
    /// CPUs for interrupts.
    rest: CpuSet,
}

impl<'a> Needs<'a> {
    fn new(facts: &'a HostFacts, profile: &'a Profile, journal: &'a Journal) -> Self {
        let cores: CpuSet = profile.config().cpus().iter().copied().collect();
        let rest = facts.cpus.housekeeping(&cores);
        Self { facts, profile, journal, cores, rest }
    }

    /// Wanted values, whatever the current ones are.
    fn changes(&self) -> Vec<Change> {
        let mut changes = self.switches();
        changes.extend(self.hugepages());
        if self.polls_pinned() {
            changes.extend(self.governors());
            changes.extend(self.interrupts());
        }
        changes.sort_by_key(|change| change.item);
        changes
    }

    /// Cores poll, each on a CPU of its own.
    fn polls_pinned(&self) -> bool {
        let config = self.profile.config();
        config.idle_policy() != IdlePolicy::Sleep && config.pins_cores()
    }

    /// The kernel may run any task where the cores run.
    fn is_open(&self) -> bool {
        !minus(&self.cores, &self.facts.cpus.isolated.clone().unwrap_or_default()).is_empty()
    }

    fn governors(&self) -> impl Iterator<Item = Change> {
        self.cores.iter().map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            let why = format!("CPU {cpu} polls, and must keep its frequency.");
            Change::to(Item::Governor, path, "performance", why)
        })
    }

    fn switches(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut change = |item, path: &str, to: &str, why: &str| {
            changes.push(Change::to(item, path, to, why));
        };
        let memory = &self.facts.memory;
        if memory.thp.as_deref() == Some("always") {
            let why = "Only programs that request transparent huge pages get them; others do not \
                       stall for them.";
            change(Item::Thp, THP_ENABLED, "madvise", why);
        }
        if memory.thp_defrag.as_deref() == Some("always") {
            let why = "A page fault must not wait for memory compaction.";
            change(Item::Thp, THP_DEFRAG, "madvise", why);
        }
        if memory.ksm == Some(true) {
            let why = "Merged pages are copied again at the first write to them.";
            change(Item::Ksm, "sys/kernel/mm/ksm/run", "0", why);
        }
        if memory.numa_balancing == Some(true) {
            let why = "Pages are unmapped to find out which node uses them, which causes page faults \
                       during calls.";
            change(Item::NumaBalancing, "proc/sys/kernel/numa_balancing", "0", why);
        }
        if self.profile.config().pins_cores() && self.is_open() {
            let why = "A core that is ready must not wait for seconds for other sessions. Programs that \
                       run keep their session's share until they are started again.";
            change(Item::Autogroup, "proc/sys/kernel/sched_autogroup_enabled", "0", why);
        }
        // Competing work does not disturb a core that sleeps when idle.
        if self.profile.config().idle_policy() != IdlePolicy::Sleep {
            // Set first, and so restored last: while watchdog is 0, the kernel does not accept 1 here.
            let why = "It interrupts even CPUs that take no interrupts.";
            change(Item::Watchdog, "proc/sys/kernel/nmi_watchdog", "0", why);
            let why = "It checks every CPU every few seconds.";
            change(Item::Watchdog, "proc/sys/kernel/watchdog", "0", why);
            let why = "Timers of idle CPUs must not migrate to busy ones.";
            change(Item::TimerMigration, "proc/sys/kernel/timer_migration", "0", why);
            let why = "Each CPU updates its statistics at this interval, in seconds.";
            change(Item::StatInterval, "proc/sys/vm/stat_interval", "10", why);
        }
        changes
    }

    /// On each node with cores, as many pages as their arenas need, in addition to those already in
    /// use.
    fn hugepages(&self) -> Vec<Change> {
        let config = self.profile.config();
        if config.hugepages() == HugePages::Off {
            return Vec::new();
        }
        let pages = (config.arena_bytes() as u64).div_ceil(PAGE_BYTES);
        let pools = self.facts.memory.huge_pages.iter().filter(|p| p.page_bytes == PAGE_BYTES);
        let by_node = self.facts.cpus.cores_by_node(config);
        let changes = pools.filter_map(|pool| {
            let on_node = |found: &(&u32, &u64)| pool.node.is_none_or(|node| node == *found.0);
            let cores: u64 = by_node.iter().filter(on_node).map(|(_, cores)| cores).sum();
            let path = pool.file().trim_start_matches('/').to_owned();
            let needed = pages * cores;
            let to = self.pages_in_all(&path, needed, pool.total, pool.free)?;
            let where_ = pool.node.map_or(String::new(), |node| format!(" of node {node}"));
            let reason = format!(
                "The arenas of the cores{where_} need {needed} pages of 2 MiB ({cores} of {pages} \
                 pages), besides those already in use."
            );
            Some(Change::to(Item::Hugepages, path, to.to_string(), reason))
        });
        changes.collect()
    }

    /// `None` if there are enough. Pages reserved for this very profile count as its own: a running
    /// engine uses them and needs no more.
    fn pages_in_all(&self, path: &str, needed: u64, total: u64, free: u64) -> Option<u64> {
        let now = total.to_string();
        let own = self.journal.entry(path).filter(|entry| entry.wrote(&now));
        let is_settled = self.journal.hash == hash_of(self.profile);
        if own.is_some_and(|entry| entry.to == now) && is_settled {
            return None;
        }
        let before = own.and_then(|entry| entry.from.parse().ok()).unwrap_or(total).min(total);
        let free_before = free.saturating_sub(total - before);
        let wanted = before + needed.saturating_sub(free_before);
        (wanted > total).then_some(wanted)
    }

    /// Moves interrupts off the cores and their hardware threads, if other CPUs are left. Those that the kernel manages
    /// stay: they cannot be moved, and disturb only CPUs that access the disk.
    fn interrupts(&self) -> Vec<Change> {
        let quiet = self.facts.cpus.quiet(&self.cores);
        let movable = self.facts.irqs.iter().filter(|irq| !irq.is_managed());
        let changes = movable.filter_map(|irq| {
            let affinity = irq.affinity.as_ref()?;
            let hit = both(affinity, &quiet);
            if hit.is_empty() || self.rest.is_empty() {
                return None;
            }
            let others = both(affinity, &self.rest);
            let to = if others.is_empty() { &self.rest } else { &others };
            let path = format!("proc/irq/{}/smp_affinity_list", irq.number);
            let why = format!("{} may interrupt the cores on CPUs {hit}.", irq.name);
            Some(Change::to(Item::Irq, path, to.to_string(), why))
        });
        changes.collect()
    }

    fn advice(&self) -> Vec<Advice> {
        let advice = [self.isolation(), self.irqbalance(), self.tuned(), self.memlock()];
        advice.into_iter().flatten().collect()
    }

    fn isolation(&self) -> Option<Advice> {
        let cores = &self.cores;
        let config = self.profile.config();
        let polls = config.idle_policy() == IdlePolicy::Busy && config.pins_cores();
        let parameters = self.facts.cpus.isolation(cores).filter(|_| polls && self.is_open())?;
        Some(Advice {
            reason: format!("The kernel may run any task on CPUs {cores}, where the cores poll."),
            what: format!("kernel command line, at the next boot: {parameters}"),
        })
    }

    fn irqbalance(&self) -> Option<Advice> {
        let polls = self.polls_pinned();
        let banned = self.facts.cpus.to_ban(&self.cores);
        (self.facts.tasks.has_irqbalance && polls && !banned.is_empty()).then(|| Advice {
            reason: "irqbalance is running, and moves interrupts back to the cores.".to_owned(),
            what: format!(
                "/etc/default/irqbalance or /etc/sysconfig/irqbalance: \
                 IRQBALANCE_BANNED_CPULIST={banned}"
            ),
        })
    }

    fn tuned(&self) -> Option<Advice> {
        self.facts.tasks.tuned.is_some().then(|| Advice {
            reason: "tuned is running, and sets the same values whenever it starts, stops or \
                     changes its profile."
                .to_owned(),
            what: "before this script: systemctl disable --now tuned; or a profile of tuned with \
                   these values"
                .to_owned(),
        })
    }

    fn memlock(&self) -> Option<Advice> {
        let config = self.profile.config();
        let process = &self.facts.process;
        let needed = (config.arena_bytes() * config.cores()) as u64;
        let limit = process.memlock?.soft.filter(|_| !process.may_lock_all)?;
        let locks =
            config.driver() == Driver::Verbs || config.lock() == spinrpc::config::Want::Require;
        (locks && limit < needed).then(|| Advice {
            reason: format!(
                "Arenas of {} MiB must be locked, and this user may lock {} MiB.",
                needed >> 20,
                limit >> 20
            ),
            what: "unit of the service: LimitMEMLOCK=infinity; login: memlock in \
                   /etc/security/limits.d; docker: --ulimit memlock=-1"
                .to_owned(),
        })
    }
}

/// The hash as written in a journal.
pub(super) fn hash_of(profile: &Profile) -> String {
    format!("{:016x}", profile.hash())
}

const PAGE_BYTES: u64 = 2 << 20;
const THP_ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const THP_DEFRAG: &str = "sys/kernel/mm/transparent_hugepage/defrag";
