//! Programs that have a socket open. Only root sees those of other users.

use crate::host::Kerberos;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs that listen at TCP port 2049. The kernel is none.
pub(super) fn holders(facts: &Kerberos) -> Vec<String> {
    let inodes = facts.listeners.iter().flatten().map(|listener| listener.inode).collect();
    programs(&inodes)
}

fn programs(inodes: &BTreeSet<u64>) -> Vec<String> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let targets: BTreeSet<String> =
        inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let mut left = DESCRIPTORS_MAX;
    let mut names = BTreeSet::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let is_process = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|digit| digit.is_ascii_digit()))
    };
    for process in entries.map(|entry| entry.path()).filter(is_process) {
        if has(&process, &targets, &mut left) {
            // Other users choose the names of their programs.
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            names.insert(crate::printable::printable(name.trim_end()));
        }
    }
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

fn has(process: &Path, targets: &BTreeSet<String>, left: &mut usize) -> bool {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().take(*left);
    let mut links = descriptors.filter_map(Result::ok).filter_map(|entry| {
        *left = left.saturating_sub(1);
        fs::read_link(entry.path()).ok()
    });
    links.any(|link| link.to_str().is_some_and(|link| targets.contains(link)))
}

/// Of a host with more descriptors, some are not looked at.
const DESCRIPTORS_MAX: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn the_program_of_a_socket_is_this_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
        let link = link.to_str().unwrap();
        let inode = link.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let inodes = BTreeSet::from([inode]);
        // A program that another test is starting also has the socket until it runs.
        let come_to_be = |expected: &[&str]| {
            let end = Instant::now() + Duration::from_secs(60);
            while programs(&inodes) != expected && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
            }
            programs(&inodes) == expected
        };
        assert!(come_to_be(&[own.trim_end()]));
        drop(listener);
        assert!(come_to_be(&[]));
        assert!(programs(&BTreeSet::new()).is_empty());
    }
}
