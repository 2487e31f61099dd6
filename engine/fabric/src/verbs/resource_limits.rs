//! Reasons why the kernel refuses a device's object or the memory for it: limits of the process, and of its cgroup.

use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const CGROUPS: &str = "/sys/fs/cgroup";

pub(super) fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            format!("{error}: {}; {}", locked_memory(), rdma_cgroup(&exhausted()))
        }
        _ => error.to_string(),
    }
}

/// The kernel's error is ENOMEM.
fn locked_memory() -> String {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    format!(
        "the process has pinned {}, and may lock {limit} (RLIMIT_MEMLOCK: ulimit -l, LimitMEMLOCK= \
         of a service, docker --ulimit memlock=-1)",
        pinned().unwrap_or_else(|| "an unknown amount".into())
    )
}

fn pinned() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
    Some(line.trim().into())
}

/// The kernel's error is EAGAIN.
fn rdma_cgroup(exhausted: &[String]) -> String {
    match exhausted {
        [] => "no limit of its rdma cgroup is exhausted (rdma.max)".into(),
        all => format!("its rdma cgroup has no more: {}; raise rdma.max", all.join(", ")),
    }
}

fn exhausted() -> Vec<String> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some((root, path)) = place(&own) else { return Vec::new() };
    let folders = path.ancestors().map(|folder| root.join(folder));
    let read = |folder: &PathBuf, file| fs::read_to_string(folder.join(file)).unwrap_or_default();
    folders
        .flat_map(|folder| {
            let found = exhausted_in(&read(&folder, "rdma.max"), &read(&folder, "rdma.current"));
            found.into_iter().map(move |limit| format!("{limit} in {}", folder.display()))
        })
        .collect()
}

/// The mount of the hierarchy that limits RDMA, and the path of the process in it, by its `/proc/self/cgroup`.
fn place(own: &str) -> Option<(PathBuf, PathBuf)> {
    let fields = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next().zip(fields.next())
    });
    let version_1 = fields.clone().find(|(names, _)| names.split(',').any(|name| name == "rdma"));
    let version_2 = fields.clone().find(|(names, _)| names.is_empty());
    let (names, path) = version_1.or(version_2)?;
    let root = Path::new(CGROUPS).join(if names.is_empty() { "" } else { "rdma" });
    Some((root, Path::new(path.trim_start_matches('/')).into()))
}

/// Lines of both files are of a device: `mlx5_0 hca_handle=2 hca_object=2000`, or `max`.
fn exhausted_in(max: &str, current: &str) -> Vec<String> {
    let entries = |line: &str| {
        let mut words = line.split_ascii_whitespace().map(str::to_owned);
        let device = words.next().unwrap_or_default();
        words.map(|word| (device.clone(), word)).collect::<Vec<_>>()
    };
    let used: Vec<_> = current.lines().flat_map(entries).collect();
    let is_reached = |(device, limit): &(String, String)| {
        let (kind, most) = limit.split_once('=')?;
        let most: u64 = most.parse().ok()?;
        let of_kind = |(other, used): &(String, String)| {
            let (name, used) = used.split_once('=')?;
            (other == device && name == kind).then(|| used.parse::<u64>().ok())?
        };
        let used = used.iter().find_map(of_kind)?;
        (used >= most).then(|| format!("{device} {kind} {used} of {most}"))
    };
    max.lines().flat_map(entries).filter_map(|entry| is_reached(&entry)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_both_limits() {
        for errno in [libc::EAGAIN, libc::ENOMEM] {
            let said = explain(&io::Error::from_raw_os_error(errno));
            assert!(said.contains("RLIMIT_MEMLOCK") && said.contains("rdma.max"), "{said}");
        }
        let other = explain(&io::Error::from_raw_os_error(libc::EINVAL));
        assert!(!other.contains("RLIMIT_MEMLOCK"), "{other}");
    }

    #[test]
    fn the_limit_that_is_reached_is_found() {
        let max = "mlx5_0 hca_handle=2 hca_object=2000\nmlx5_1 hca_handle=max hca_object=5\n";
        let current = "mlx5_0 hca_handle=1 hca_object=2000\nmlx5_1 hca_handle=900 hca_object=4\n";
        assert_eq!(exhausted_in(max, current), ["mlx5_0 hca_object 2000 of 2000"]);
        assert_eq!(exhausted_in("", current), [""; 0]);
        assert_eq!(exhausted_in("mlx5_2 hca_object=0\n", ""), [""; 0], "none is in use");
        let said = rdma_cgroup(&exhausted_in(max, current));
        assert!(said.contains("mlx5_0 hca_object 2000 of 2000"), "{said}");
    }

    #[test]
    fn the_cgroup_is_found_in_both_versions() {
        let found = |own: &str| place(own).map(|(root, path)| root.join(path));
        let two = found("0::/user.slice/x.service\n");
        assert_eq!(two.as_deref(), Some(Path::new("/sys/fs/cgroup/user.slice/x.service")));
        let one = found("5:cpu,cpuacct:/a\n4:rdma:/b\n0::/c\n");
        assert_eq!(one.as_deref(), Some(Path::new("/sys/fs/cgroup/rdma/b")));
        assert_eq!(found(""), None);
    }
}
