//! What a host is busy with.

use super::Tree;
use std::collections::BTreeMap;

/// How long CPUs have been doing what since the host was started, in clock ticks (proc_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuTimes {
    /// In total.
    pub total: u64,
    /// With nothing to do.
    pub idle: u64,
    /// When it would have run, but the hypervisor ran something else.
    pub steal: u64,
}

impl CpuTimes {
    /// Those of every CPU.
    #[must_use]
    pub fn read_all(tree: &Tree) -> BTreeMap<usize, Self> {
        let stat = tree.reduced("proc/stat", |text| super::lines(text, &["cpu"]));
        let stat = stat.unwrap_or_default();
        stat.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<(usize, Self)> {
        let (name, numbers) = line.split_once(' ')?;
        let cpu = name.strip_prefix("cpu")?.parse().ok()?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
        // The times of guests, at the end, are counted as those of users, too.
        let total = numbers.iter().take(8).fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        let idle = numbers.get(3)?.saturating_add(*numbers.get(4)?);
        Some((cpu, Self { total, idle, steal: *numbers.get(7)? }))
    }

    /// What has been added since.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// Processes that stand in the way of others, as far as they can be seen.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Tasks {
    /// Average number of tasks that wanted to run, over the last minute.
    pub load_average: Option<f64>,
    /// irqbalance runs, which moves interrupts from CPU to CPU.
    pub has_irqbalance: bool,
    /// Threads of programs (not of the kernel) that run before all ordinary ones.
    pub realtime: Vec<RealtimeTask>,
}

/// A thread with a real-time priority.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RealtimeTask {
    /// Its number.
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// From 1 to 99; higher runs first.
    pub priority: u32,
    /// The CPU that it ran on last.
    pub cpu: usize,
}

impl Tasks {
    /// Looks through all threads in `/proc`, up to [`super::tree::NAMES_MAX`] processes with as many
    /// threads each.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let average = tree.line("proc/loadavg");
        let mut tasks = Self {
            load_average: average.and_then(|line| line.split(' ').next()?.parse().ok()),
            ..Self::default()
        };
        for process in super::numbered::<u32>(&tree.names("proc"), "") {
            let folder = format!("proc/{process}/task");
            for thread in super::numbered::<u32>(&tree.names(&folder), "") {
                tasks.look_at(tree, &format!("{folder}/{thread}/stat"));
            }
        }
        tasks
    }

    fn look_at(&mut self, tree: &Tree, path: &str) {
        let Some(stat) = tree.peek(path).and_then(|text| Stat::parse(&text)) else { return };
        let is_irqbalance = stat.task.name == "irqbalance";
        let stands_in_the_way = stat.task.priority > 0 && !stat.is_kernel;
        if (is_irqbalance || stands_in_the_way) && tree.text(path).is_some() {
            self.has_irqbalance |= is_irqbalance;
            self.realtime.extend(stands_in_the_way.then_some(stat.task));
        }
    }
}

/// The fields of proc_pid_stat(5) that matter here.
struct Stat {
    task: RealtimeTask,
    is_kernel: bool,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name may have blanks and brackets in it.
        let (head, tail) = text.rsplit_once(')')?;
        let (thread, name) = head.split_once(" (")?;
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3);
        let flags: u64 = field(9)?.parse().ok()?;
        Some(Self {
            task: RealtimeTask {
                thread: thread.parse().ok()?,
                name: name.to_owned(),
                priority: field(40)?.parse().ok()?,
                cpu: field(39)?.parse().ok()?,
            },
            is_kernel: flags & KERNEL_THREAD != 0,
        })
    }
}

/// PF_KTHREAD of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;
