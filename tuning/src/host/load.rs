use super::Tree;
use std::collections::BTreeMap;

/// CPU times since boot, in clock ticks (proc_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    pub total: u64,
    pub idle: u64,
    /// Ready to run while the hypervisor ran something else.
    pub steal: u64,
}

impl CpuTimes {
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
        // The guest times at the end are already part of the user times.
        let total = numbers.iter().take(8).fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        let idle = numbers.get(3)?.saturating_add(*numbers.get(4)?);
        Some((cpu, Self { total, idle, steal: *numbers.get(7)? }))
    }

    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    /// Average number of runnable tasks over the last minute.
    pub load_average: Option<f64>,
    /// True if irqbalance runs, which moves interrupts between CPUs.
    pub has_irqbalance: bool,
    /// Active profile of tuned if it runs, or an empty text. It sets governors, huge pages and kernel parameters.
    pub tuned: Option<String>,
    /// User-space threads with a real-time priority.
    pub realtime: Vec<RealtimeTask>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealtimeTask {
    pub thread: u32,
    pub name: String,
    /// From 1 to 99; higher runs first.
    pub priority: u32,
    /// CPU that it ran on last.
    pub cpu: usize,
}

impl Tasks {
    /// Reads all threads in `/proc`: up to [`super::tree::NAMES_MAX`] processes with as many
    /// threads each.
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
        let [is_irqbalance, is_tuned] = ["irqbalance", "tuned"].map(|name| stat.task.name == name);
        let stands_in_the_way = stat.task.priority > 0 && !stat.is_kernel;
        if (is_irqbalance || is_tuned || stands_in_the_way) && tree.text(path).is_some() {
            self.has_irqbalance |= is_irqbalance;
            if is_tuned {
                self.tuned = Some(tree.line("etc/tuned/active_profile").unwrap_or_default());
            }
            self.realtime.extend(stands_in_the_way.then_some(stat.task));
        }
    }
}

struct Stat {
    task: RealtimeTask,
    is_kernel: bool,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name may contain blanks and brackets.
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
