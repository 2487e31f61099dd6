//! Resources of a process, from `/proc`.

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use spinrpc_xdr::Xdr;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory of this process: its own with its part of what it shares (Pss, see proc_pid_smaps(5)), and its page tables
/// (VmPTE, see proc_pid_status(5)). `None` if the kernel does not report it. A heap may grow by huge pages of 2 MiB, so
/// this is of use for the growth of many MiB only.
pub(crate) fn memory_bytes() -> Option<u64> {
    Some((kib("/proc/self/smaps_rollup", "Pss:")? + kib("/proc/self/status", "VmPTE:")?) << 10)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Xdr)]
pub(crate) struct Holdings {
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
}

pub(crate) fn holdings(process: u32) -> Holdings {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
    Holdings {
        resident_bytes: kib(&format!("/proc/{process}/status"), "VmRSS:").unwrap_or(0) << 10,
        descriptors: descriptors.map_or(0, |entries| entries.count() as u64),
    }
}

/// Part of the time that disturbs a median of microseconds, and more than the kernel's own threads take.
pub(crate) const WAITED_PERCENT: f64 = 1.0;

/// What the scheduler has counted for a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadTimes {
    /// Time on a CPU, in nanoseconds. Unlike the clock ticks of a core's turns, it includes sleeping and waking.
    pub(crate) cpu_ns: u64,
    /// The part of it in the kernel, in nanoseconds with the resolution of its clock tick (mostly 10 ms).
    pub(crate) system_ns: u64,
    /// Time that the thread was ready to run and another one had its CPU, in nanoseconds; unknown to some kernels.
    pub(crate) waited_ns: Option<u64>,
    /// Times that the thread left its CPU, of its own accord or not.
    pub(crate) switches: u64,
}

impl ThreadTimes {
    pub(crate) fn own() -> Option<Self> {
        let times = Self::read(Path::new("/proc/thread-self"))?;
        let exact = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = exact.tv_sec as u64 * 1_000_000_000 + exact.tv_nsec as u64;
        Some(Self { cpu_ns, ..times })
    }

    /// Those of the thread of this process that polls for a core of its engine, if there is one such thread. Reads
    /// a file of each thread. The time of another thread than the calling one is as of the last tick of its CPU:
    /// some milliseconds ago, and up to a second on CPUs without ticks (`nohz_full`).
    pub(crate) fn of_core(core: usize) -> Option<Self> {
        let (thread, own) =
            (Self::thread_of("self", core)?, fs::read_link("/proc/thread-self").ok()?);
        match own.file_name() == thread.file_name() {
            true => Self::own(),
            false => Self::read(&thread),
        }
    }

    /// The same of another process.
    pub(crate) fn of_core_in(process: u32, core: usize) -> Option<Self> {
        Self::read(&Self::thread_of(&process.to_string(), core)?)
    }

    fn thread_of(process: &str, core: usize) -> Option<PathBuf> {
        let name = format!("spinrpc-core-{core}");
        // Longer names are cut off by the kernel, and may be those of several.
        let name = &name[..name.len().min(COMM_BYTES)];
        let is_named = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
        let mut threads = threads.flatten().filter(is_named);
        let thread = threads.next()?;
        threads.next().is_none().then(|| thread.path())
    }

    fn read(thread: &Path) -> Option<Self> {
        let text = |name: &str| fs::read_to_string(thread.join(name)).ok();
        Self::parse(&text("stat")?, text("schedstat").as_deref(), &text("status")?)
    }

    /// From the texts of files as proc_pid_stat(5), proc_pid_schedstat(5) and proc_pid_status(5) describe them.
    fn parse(stat: &str, schedstat: Option<&str>, status: &str) -> Option<Self> {
        // A name may contain blanks and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_whitespace().collect();
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let time = |index: usize| Some(fields.get(index)?.parse::<u64>().ok()? * tick_ns);
        let (user_ns, system_ns) = (time(UTIME_FIELD)?, time(STIME_FIELD)?);
        let exact = schedstat.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let switches = |key: &str| number(status, key);
        Some(Self {
            cpu_ns: exact.unwrap_or(user_ns + system_ns),
            system_ns,
            // The second number is the time on a run queue.
            waited_ns: schedstat.and_then(|text| text.split_whitespace().nth(1)?.parse().ok()),
            switches: switches("voluntary_ctxt_switches:")?
                + switches("nonvoluntary_ctxt_switches:")?,
        })
    }
}

fn kib(path: &str, key: &str) -> Option<u64> {
    number(&fs::read_to_string(path).ok()?, key)
}

fn number(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse().ok()
}

const COMM_BYTES: usize = 15;
/// Fields 14 and 15 of proc_pid_stat(5), counted from 0 behind the name, which is the second.
const UTIME_FIELD: usize = 11;
const STIME_FIELD: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_memory() {
        assert!(memory_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn what_the_scheduler_counts_is_read_after_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 64 9 9 9 9 250 30 0 0 20 0 1 0 9 9 9";
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let times = ThreadTimes::parse(stat, Some("2805000000 17 9"), status).unwrap();
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        assert_eq!((times.cpu_ns, times.system_ns), (2_805_000_000, 30 * tick_ns));
        assert_eq!((times.switches, times.waited_ns), (7, Some(17)));
        let short = ThreadTimes::parse(stat, Some("5"), status).unwrap();
        assert_eq!(short.waited_ns, None);
        let coarse = ThreadTimes::parse(stat, None, status).unwrap();
        assert_eq!((coarse.cpu_ns, coarse.waited_ns), (280 * tick_ns, None));
        assert_eq!(ThreadTimes::parse("7 (a", None, status), None);
        assert!(ThreadTimes::own().is_some_and(|own| own.cpu_ns > 0));
    }

    /// Name threads as an engine does. Expect the times of the one that is meant, and none where the kernel has cut
    /// off what tells two apart.
    #[test]
    fn a_core_is_found_by_the_name_of_its_thread() {
        let hold = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            let threads = [77, 991, 992].map(|core| {
                let thread = std::thread::Builder::new().name(format!("spinrpc-core-{core}"));
                let hold = &hold;
                let look = move || {
                    hold.wait();
                    let own = ThreadTimes::of_core(core);
                    hold.wait();
                    own.is_some_and(|own| own.cpu_ns > 0)
                };
                thread.spawn_scoped(scope, look).unwrap()
            });
            hold.wait();
            let found = [77, 991, 78].map(|core| ThreadTimes::of_core(core).is_some());
            let elsewhere = ThreadTimes::of_core_in(std::process::id(), 77).is_some();
            hold.wait();
            assert_eq!(found, [true, false, false]);
            assert!(elsewhere);
            assert_eq!(threads.map(|thread| thread.join().unwrap()), [true, false, false]);
        });
    }

    #[test]
    fn a_process_holds_memory_and_descriptors() {
        let before = holdings(std::process::id());
        let file = fs::File::open("/proc/self/status").unwrap();
        let after = holdings(std::process::id());
        assert!(before.resident_bytes > 0 && after.descriptors > 0);
        drop(file);
        assert_eq!(holdings(0), Holdings::default());
    }
}
