//! The changes that a host needs to fit a profile.

use super::item::Item;
use super::journal::Journal;
use super::site::Site;
use crate::host::HostFacts;
use crate::profile::Profile;
use spinrpc::config::{Driver, IdlePolicy};
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::mmap::HugePages;

/// A write to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The item.
    pub item: Item,
    /// Path relative to the root.
    pub path: String,
    /// Current value.
    pub from: String,
    /// Requested value.
    pub to: String,
    /// Reason, as a sentence.
    pub reason: String,
}

/// A change that spintune leaves to people: it needs a reboot, or concerns files of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advice {
    /// Reason, as a sentence.
    pub reason: String,
    /// Text to write, and where.
    pub what: String,
}

/// Changes to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// By item, then by number.
    pub changes: Vec<Change>,
    /// Changes to make by hand.
    pub advice: Vec<Advice>,
}

/// Requested value of a file.
struct Wish {
    item: Item,
    path: String,
    to: String,
    reason: String,
}

impl Plan {
    /// Computes the changes that the host needs. Leaves out files that do not exist, files that
    /// cannot be written (interrupts that cannot be moved), and files that already have the value.
    /// The journal says which values spintune has set already.
    #[must_use]
    pub fn of(site: &Site, profile: &Profile, journal: &Journal) -> Self {
        let facts = HostFacts::read(&site.tree());
        let needs = Needs::new(&facts, profile, journal);
        let changes = needs.wishes().into_iter().filter_map(|wish| {
            let Wish { item, path, to, reason } = wish;
            let from = site.read(&path).ok().filter(|_| site.may_be_set(&path))?;
            (from != to).then_some(Change { item, path, from, to, reason })
        });
        Self { changes: changes.collect(), advice: needs.advice() }
    }

    /// Returns whether nothing has to be changed. There may still be advice.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

struct Needs<'a> {
    facts: &'a HostFacts,
    profile: &'a Profile,
    journal: &'a Journal,
    /// CPUs of the cores.
    cores: CpuSet,
    /// The other online CPUs without the isolated ones, which may belong to another engine. All the
    /// others if that leaves none.
    rest: CpuSet,
}

impl<'a> Needs<'a> {
    fn new(facts: &'a HostFacts, profile: &'a Profile, journal: &'a Journal) -> Self {
        let cores: CpuSet = profile.config().cpus().iter().copied().collect();
        let online = facts.cpus.online.iter().flat_map(CpuSet::iter);
        let others: CpuSet = online.filter(|cpu| !cores.contains(*cpu)).collect();
        let isolated = facts.cpus.isolated.clone().unwrap_or_default();
        let open: CpuSet = others.iter().filter(|cpu| !isolated.contains(*cpu)).collect();
        let rest = if open.is_empty() { others } else { open };
        Self { facts, profile, journal, cores, rest }
    }

    fn wishes(&self) -> Vec<Wish> {
        let mut wishes = self.memory();
        wishes.extend(self.hugepages());
        // Competing work does not disturb a core that sleeps when idle.
        if self.profile.config().idle_policy() != IdlePolicy::Sleep {
            wishes.extend(self.governors());
            wishes.extend(quiet());
            wishes.extend(self.interrupts());
        }
        wishes.sort_by_key(|wish| wish.item);
        wishes
    }

    fn governors(&self) -> impl Iterator<Item = Wish> {
        self.cores.iter().map(|cpu| Wish {
            item: Item::Governor,
            path: format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"),
            to: "performance".to_owned(),
            reason: format!("CPU {cpu} polls, and must keep its frequency."),
        })
    }

    fn memory(&self) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let mut wish = |item, path: &str, to: &str, reason: &str| {
            let (path, to, reason) = (path.to_owned(), to.to_owned(), reason.to_owned());
            wishes.push(Wish { item, path, to, reason });
        };
        let memory = &self.facts.memory;
        if memory.thp.as_deref() == Some("always") {
            let why = "Only programs that request transparent huge pages get them; others do not \
                       stall for them.";
            wish(Item::TransparentHugePages, THP_ENABLED, "madvise", why);
        }
        if memory.thp_defrag.as_deref() == Some("always") {
            let why = "A page fault must not wait for memory compaction.";
            wish(Item::TransparentHugePages, THP_DEFRAG, "madvise", why);
        }
        if memory.ksm == Some(true) {
            let why = "Merged pages are copied again at the first write to them.";
            wish(Item::Ksm, "sys/kernel/mm/ksm/run", "0", why);
        }
        if memory.numa_balancing == Some(true) {
            let why = "Pages are unmapped to find out which node uses them, which causes page faults \
                 during calls.";
            wish(Item::NumaBalancing, "proc/sys/kernel/numa_balancing", "0", why);
        }
        wishes
    }

    /// On each node with cores, as many pages as their arenas need, in addition to those already in
    /// use.
    fn hugepages(&self) -> Vec<Wish> {
        let config = self.profile.config();
        if config.hugepages() == HugePages::Off {
            return Vec::new();
        }
        let pages = (config.arena_bytes() as u64).div_ceil(PAGE_BYTES);
        let pools = self.facts.memory.huge_pages.iter().filter(|p| p.page_bytes == PAGE_BYTES);
        let wishes = pools.filter_map(|pool| {
            let on_node = |cpu: &usize| {
                pool.node.is_none_or(|node| self.facts.cpus.node_of(*cpu) == Some(node))
            };
            let cores = self.cores.iter().filter(on_node).count() as u64;
            let path = pool.file().trim_start_matches('/').to_owned();
            let needed = pages * cores;
            let to = self.pages_in_all(&path, needed, pool.total, pool.free)?;
            let where_ = pool.node.map_or(String::new(), |node| format!(" of node {node}"));
            let reason = format!(
                "The arenas of the cores{where_} need {needed} pages of 2 MiB ({cores} of {pages} \
                 pages), besides those already in use."
            );
            Some(Wish { item: Item::HugePages, path, to: to.to_string(), reason })
        });
        wishes.collect()
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

    /// Moves interrupts off the cores, if other CPUs are left.
    fn interrupts(&self) -> Vec<Wish> {
        let wishes = self.facts.irqs.iter().filter_map(|irq| {
            let affinity = irq.affinity.as_ref()?;
            let hit: CpuSet = affinity.iter().filter(|cpu| self.cores.contains(*cpu)).collect();
            if hit.is_empty() || self.rest.is_empty() {
                return None;
            }
            let others: CpuSet = affinity.iter().filter(|cpu| self.rest.contains(*cpu)).collect();
            let to = if others.is_empty() { &self.rest } else { &others };
            Some(Wish {
                item: Item::Interrupt,
                path: format!("proc/irq/{}/smp_affinity_list", irq.number),
                to: to.to_string(),
                reason: format!("{} may interrupt the cores on CPUs {hit}.", irq.name),
            })
        });
        wishes.collect()
    }

    fn advice(&self) -> Vec<Advice> {
        let advice = [self.isolation(), self.irqbalance(), self.memlock()];
        advice.into_iter().flatten().collect()
    }

    fn isolation(&self) -> Option<Advice> {
        let (cores, rest) = (&self.cores, &self.rest);
        let isolated = self.facts.cpus.isolated.clone().unwrap_or_default();
        let polls = self.profile.config().idle_policy() == IdlePolicy::Busy;
        let is_worth_it =
            polls && !rest.is_empty() && cores.iter().any(|cpu| !isolated.contains(cpu));
        is_worth_it.then(|| Advice {
            reason: format!("The kernel may run any task on CPUs {cores}, where the cores poll."),
            what: format!(
                "kernel command line, at the next boot: isolcpus=managed_irq,domain,{cores} \
                 nohz_full={cores} rcu_nocbs={cores} irqaffinity={rest}"
            ),
        })
    }

    fn irqbalance(&self) -> Option<Advice> {
        let polls = self.profile.config().idle_policy() != IdlePolicy::Sleep;
        (self.facts.tasks.has_irqbalance && polls).then(|| Advice {
            reason: "irqbalance is running, and moves interrupts back to the cores.".to_owned(),
            what: format!(
                "/etc/default/irqbalance or /etc/sysconfig/irqbalance: IRQBALANCE_BANNED_CPULIST={}",
                self.cores
            ),
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

/// Turns off periodic kernel work on every CPU.
fn quiet() -> impl Iterator<Item = Wish> {
    let wishes = [
        // Set first, and so restored last: while watchdog is 0, the kernel does not accept 1 here.
        (Item::Watchdog, "nmi_watchdog", "0", "It interrupts even CPUs that take no interrupts."),
        (Item::Watchdog, "watchdog", "0", "It checks every CPU every few seconds."),
        (
            Item::TimerMigration,
            "timer_migration",
            "0",
            "Timers of idle CPUs must not migrate to busy ones.",
        ),
    ];
    let stat = Wish {
        item: Item::StatInterval,
        path: "proc/sys/vm/stat_interval".to_owned(),
        to: "10".to_owned(),
        reason: "Each CPU updates its statistics at this interval, in seconds.".to_owned(),
    };
    let kernel = wishes.map(|(item, file, to, reason)| Wish {
        item,
        path: format!("proc/sys/kernel/{file}"),
        to: to.to_owned(),
        reason: reason.to_owned(),
    });
    kernel.into_iter().chain([stat])
}

/// The hash as written in a journal.
pub(super) fn hash_of(profile: &Profile) -> String {
    format!("{:016x}", profile.hash())
}

const PAGE_BYTES: u64 = 2 << 20;
const THP_ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const THP_DEFRAG: &str = "sys/kernel/mm/transparent_hugepage/defrag";
