//! Resources of a process, from `/proc`.

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs;

/// Proportional memory of a process (Pss, see proc_pid_smaps(5)); 0 if the kernel does not report
/// it.
pub(crate) fn memory_bytes(process: u32) -> f64 {
    kib(&format!("/proc/{process}/smaps_rollup"), "Pss:").unwrap_or(0) as f64 * 1024.0
}

/// Resources that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Holdings {
    /// Resident memory.
    pub(crate) resident_bytes: u64,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
}

/// Current resources of a process; zero if the kernel does not report them.
pub(crate) fn holdings(process: u32) -> Holdings {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
    Holdings {
        resident_bytes: kib(&format!("/proc/{process}/status"), "VmRSS:").unwrap_or(0) << 10,
        descriptors: descriptors.map_or(0, |entries| entries.count() as u64),
    }
}

/// Descriptors that this process may open; `None` for any number.
pub(crate) fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Memory mappings that a process may have (`vm.max_map_count`), if the kernel reports it.
pub(crate) fn mapping_limit() -> Option<u64> {
    fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

/// The number on the first line that begins with `key`.
fn kib(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_memory() {
        assert!(memory_bytes(std::process::id()) > 0.0);
        assert_eq!(memory_bytes(0), 0.0);
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
