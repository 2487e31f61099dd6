use super::item::Item;
use super::journal::Journal;
use super::site::value_in;
use crate::doctor::CheckInput;
use crate::doctor::switches::SWITCHES;
use crate::host::{HostFacts, Tree, both};
use crate::profile::Profile;
use serde::Serialize;
use spinrpc::config::{Driver, IdlePolicy};
use spinrpc::sys::affinity::CpuSet;
use spinrpc::sys::mmap::HugePages;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub item: Item,
    #[serde(serialize_with = "super::absolute")]
    pub path: String,
    pub from: String,
    pub to: String,
    pub reason: String,
}

/// A change that spintune leaves to people: it needs a reboot, or concerns files of theirs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Reason, as a sentence without a full stop.
    pub reason: String,
    /// Text to write, and where.
    pub what: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By item, then by number.
    pub changes: Vec<Change>,
    pub advice: Vec<Advice>,
}

impl Change {
    /// A wanted value of a file of an item. The current one is not known yet.
    fn to(path: impl Into<String>, to: impl ToString, reason: impl Into<String>) -> Option<Self> {
        let (path, to, reason) = (path.into(), to.to_string(), reason.into());
        Some(Self { item: Item::of(&path)?, path, from: String::new(), to, reason })
    }
}

impl Plan {
    /// Computes the changes that the host needs. Leaves out files that do not exist, files that
    /// cannot be written (interrupts that cannot be moved), and files that already have the value.
    /// The journal says which values spintune has set already.
    pub fn of(tree: &Tree, profile: &Profile, journal: &Journal) -> Self {
        let facts = HostFacts::read(tree);
        let needs = Needs::new(&facts, profile, journal);
        let changes = needs.changes().into_iter().filter_map(|change| {
            let text = tree.peek(&change.path).filter(|_| tree.may_be_set(&change.path))?;
            let from = value_in(&text)?;
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
    input: CheckInput<'a>,
    journal: &'a Journal,
    cores: CpuSet,
    rest: CpuSet,
}

impl<'a> Needs<'a> {
    fn new(facts: &'a HostFacts, profile: &'a Profile, journal: &'a Journal) -> Self {
        let cores: CpuSet = profile.config().cpus().iter().copied().collect();
        let rest = facts.cpus.housekeeping(&cores);
        Self { input: CheckInput { facts, profile, tried: None }, journal, cores, rest }
    }

    fn changes(&self) -> Vec<Change> {
        let wanted = SWITCHES.iter().filter(|one| one.is_to_be_set(&self.input));
        let mut changes: Vec<Change> =
            wanted.filter_map(|one| Change::to(one.file, one.to, one.says)).collect();
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
        self.input.mode() != IdlePolicy::Sleep && self.input.config().pins_cores()
    }

    fn governors(&self) -> impl Iterator<Item = Change> {
        self.cores.iter().filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            let why = format!("CPU {cpu} polls, and must keep its frequency");
            Change::to(path, "performance", why)
        })
    }

    /// On each node with cores, in addition to those already in use.
    fn hugepages(&self) -> Vec<Change> {
        let config = self.input.config();
        if config.hugepages() == HugePages::Off {
            return Vec::new();
        }
        let pages = (config.arena_bytes() as u64).div_ceil(PAGE_BYTES);
        let pools =
            self.input.facts.memory.huge_pages.iter().filter(|p| p.page_bytes == PAGE_BYTES);
        let by_node = self.input.facts.cpus.cores_by_node(config);
        let changes = pools.filter_map(|pool| {
            let on_node = |found: &(&u32, &u64)| pool.node.is_none_or(|node| node == *found.0);
            let cores: u64 = by_node.iter().filter(on_node).map(|(_, cores)| cores).sum();
            let path = pool.file().trim_start_matches('/').to_owned();
            let needed = pages * cores;
            let to = self.pages_in_all(&path, needed, pool.total, pool.free)?;
            let where_ = pool.node.map_or(String::new(), |node| format!(" of node {node}"));
            let reason = format!(
                "The arenas of the cores{where_} need {needed} pages of 2 MiB ({cores} of {pages} \
                 pages), besides those already in use"
            );
            Change::to(path, to, reason)
        });
        changes.collect()
    }

    /// `None` if there are enough. Pages reserved for this very profile count: its engine uses them.
    fn pages_in_all(&self, path: &str, needed: u64, total: u64, free: u64) -> Option<u64> {
        let now = total.to_string();
        let own = self.journal.entry(path).filter(|entry| entry.wrote(&now));
        let is_settled = self.journal.hash == hash_of(self.input.profile);
        if own.is_some_and(|entry| entry.to == now) && is_settled {
            return None;
        }
        let before = own.and_then(|entry| entry.from.parse().ok()).unwrap_or(total).min(total);
        let free_before = free.saturating_sub(total - before);
        let wanted = before + needed.saturating_sub(free_before);
        (wanted > total).then_some(wanted)
    }

    /// Interrupts that the kernel manages stay: they cannot be moved, and disturb only users of the disk.
    fn interrupts(&self) -> Vec<Change> {
        let quiet = self.input.facts.cpus.quiet(&self.cores);
        let movable = self.input.facts.irqs.iter().filter(|irq| !irq.is_managed());
        let changes = movable.filter_map(|irq| {
            let affinity = irq.affinity.as_ref()?;
            let hit = both(affinity, &quiet);
            if hit.is_empty() || self.rest.is_empty() {
                return None;
            }
            let others = both(affinity, &self.rest);
            let to = if others.is_empty() { &self.rest } else { &others };
            let path = format!("proc/irq/{}/smp_affinity_list", irq.number);
            let why = format!("{} may interrupt the cores on CPUs {hit}", irq.name);
            Change::to(path, to, why)
        });
        changes.collect()
    }

    fn advice(&self) -> Vec<Advice> {
        let advice = [self.isolation(), self.irqbalance(), self.tuned(), self.memlock()];
        advice.into_iter().flatten().collect()
    }

    fn isolation(&self) -> Option<Advice> {
        let cores = &self.cores;
        let config = self.input.config();
        let polls = config.idle_policy() == IdlePolicy::Busy && config.pins_cores();
        let parameters = self
            .input
            .facts
            .cpus
            .isolation(cores)
            .filter(|_| polls && !self.input.open_cores().is_empty())?;
        Some(Advice {
            reason: format!("The kernel may run any task on CPUs {cores}, where the cores poll"),
            what: format!("kernel command line, at the next boot: {parameters}"),
        })
    }

    fn irqbalance(&self) -> Option<Advice> {
        let polls = self.polls_pinned();
        let banned = self.input.facts.cpus.to_ban(&self.cores);
        (self.input.facts.tasks.has_irqbalance && polls && !banned.is_empty()).then(|| Advice {
            reason: "irqbalance is running, and moves interrupts back to the cores".to_owned(),
            what: format!(
                "/etc/default/irqbalance or /etc/sysconfig/irqbalance: \
                 IRQBALANCE_BANNED_CPULIST={banned}"
            ),
        })
    }

    fn tuned(&self) -> Option<Advice> {
        self.input.facts.tasks.tuned.is_some().then(|| Advice {
            reason: "tuned is running, and sets the same values whenever it starts, stops or \
                     changes its profile"
                .to_owned(),
            what: "before this script: systemctl disable --now tuned; or a profile of tuned with \
                   these values"
                .to_owned(),
        })
    }

    fn memlock(&self) -> Option<Advice> {
        let config = self.input.config();
        let process = &self.input.facts.process;
        let needed = (config.arena_bytes() * config.cores()) as u64;
        let limit = process.memlock?.soft.filter(|_| !process.may_lock_all)?;
        let locks =
            config.driver() == Driver::Verbs || config.lock() == spinrpc::config::Want::Require;
        (locks && limit < needed).then(|| Advice {
            reason: format!(
                "Arenas of {} MiB must be locked, and this user may lock {} MiB",
                needed >> 20,
                limit >> 20
            ),
            what: "unit of the service: LimitMEMLOCK=infinity; login: memlock in \
                   /etc/security/limits.d; docker: --ulimit memlock=-1"
                .to_owned(),
        })
    }
}

pub(super) fn hash_of(profile: &Profile) -> String {
    format!("{:016x}", profile.hash())
}

const PAGE_BYTES: u64 = 2 << 20;
