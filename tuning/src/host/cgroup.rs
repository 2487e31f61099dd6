//! Control-group limits of the reading process: version 2, version 1, or both.

use super::Tree;
use spinrpc::sys::affinity::CpuSet;

/// Effective limits: the tightest of the group and its visible ancestors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    pub cpus: Option<CpuSet>,
    /// CPU time limit; `None` means unlimited.
    pub quota: Option<Quota>,
    /// Number of times it was throttled after using up its CPU time.
    pub throttled: Option<u64>,
    /// Memory limit in bytes and the file that sets it; `None` means unlimited.
    pub memory_max: Option<Limit>,
    pub memory_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub quota_us: u64,
    pub period_us: u64,
    /// The file that sets it.
    pub file: String,
}

impl Quota {
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us.max(1) as f64
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    /// The file that sets it.
    pub file: String,
}

impl Cgroup {
    pub fn read(tree: &Tree) -> Self {
        let [cpu, cpuset, memory] = ["cpu", "cpuset", "memory"].map(|name| Group::find(tree, name));
        let quotas = cpu.iter().flat_map(Group::upwards).filter_map(|dir| quota(tree, &dir));
        let limits = memory.iter().flat_map(Group::upwards).filter_map(|dir| limit(tree, &dir));
        let cpus = |group: &Group| {
            let files = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
            files.iter().find_map(|file| tree.cpus(&format!("{}/{file}", group.directory)))
        };
        let used = |group: &Group| {
            let files = ["memory.current", "memory.usage_in_bytes"];
            files.iter().find_map(|file| tree.value(&format!("{}/{file}", group.directory)))
        };
        Self {
            quota: quotas.min_by(|a, b| a.cpus().total_cmp(&b.cpus())),
            throttled: cpu.as_ref().and_then(|group| throttled(tree, &group.directory)),
            cpus: cpuset.as_ref().and_then(cpus).filter(|cpus| !cpus.is_empty()),
            memory_max: limits.min_by_key(|limit| limit.bytes),
            memory_bytes: memory.as_ref().and_then(used),
        }
    }
}

#[derive(Debug)]
struct Group {
    mount: String,
    directory: String,
}

impl Group {
    /// The group of version 1 for that controller, or else the one of version 2.
    fn find(tree: &Tree, controller: &str) -> Option<Self> {
        let cgroups = |text: &str| super::kept(text, |line| line.contains(" - cgroup"));
        let mounts = tree.reduced("proc/self/mountinfo", cgroups)?;
        let groups = tree.text("proc/self/cgroup")?;
        Self::of(&mounts, &groups, Some(controller)).or_else(|| Self::of(&mounts, &groups, None))
    }

    /// `None` stands for version 2, which has one hierarchy for all controllers.
    fn of(mounts: &str, groups: &str, controller: Option<&str>) -> Option<Self> {
        let is_ours = |names: &str| match controller {
            Some(controller) => names.split(',').any(|name| name == controller),
            None => names.is_empty(),
        };
        let path = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            parts.next().filter(|names| is_ours(names)).and(parts.next())
        })?;
        let (root, mount) = mounts.lines().find_map(|line| mount_of(line, controller))?;
        let mount = mount.trim_matches('/').to_owned();
        let inside = path.strip_prefix(root.trim_end_matches('/')).unwrap_or_default();
        let directory = format!("{mount}/{}", inside.trim_matches('/'));
        Some(Self { directory: directory.trim_end_matches('/').to_owned(), mount })
    }

    fn upwards(&self) -> Vec<String> {
        let mut directories = vec![self.directory.clone()];
        let mut rest = self.directory.as_str();
        while let Some((above, _)) = rest.rsplit_once('/') {
            if rest.len() <= self.mount.len() || directories.len() >= DEPTH_MAX {
                break;
            }
            directories.push(above.to_owned());
            rest = above;
        }
        directories
    }
}

/// Deeper than groups are nested in practice.
const DEPTH_MAX: usize = 64;

/// Root and mount point, of a line such as `31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`
/// (proc_pid_mountinfo(5)).
fn mount_of<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split_whitespace();
    let file_system = kind.next()?;
    let options = kind.next_back()?;
    let fits = match controller {
        None => file_system == "cgroup2",
        Some(name) => file_system == "cgroup" && options.split(',').any(|option| option == name),
    };
    let mut fields = place.split_whitespace().skip(3);
    fits.then(|| fields.next().zip(fields.next())).flatten()
}

fn quota(tree: &Tree, directory: &str) -> Option<Quota> {
    let file = |name| format!("{directory}/{name}");
    let quota = |quota_us, period_us, name| {
        Some(Quota { quota_us, period_us, file: format!("/{}", file(name)) })
    };
    if let Some(line) = tree.line(&file("cpu.max")) {
        let (quota_us, period_us) = line.split_once(' ')?;
        return quota(quota_us.parse().ok()?, period_us.parse().ok()?, "cpu.max");
    }
    let quota_us = tree.value(&file("cpu.cfs_quota_us"))?;
    quota(quota_us, tree.value(&file("cpu.cfs_period_us"))?, "cpu.cfs_quota_us")
}

fn limit(tree: &Tree, directory: &str) -> Option<Limit> {
    let read = |name| {
        let file = format!("{directory}/{name}");
        Some(Limit { bytes: tree.value(&file)?, file: format!("/{file}") })
    };
    let limit = read("memory.max").or_else(|| read("memory.limit_in_bytes"))?;
    (limit.bytes < UNLIMITED_BYTES).then_some(limit)
}

/// Version 1 reports "unlimited" as the largest length in pages.
const UNLIMITED_BYTES: u64 = 1 << 62;

fn throttled(tree: &Tree, directory: &str) -> Option<u64> {
    let stat = tree.reduced(&format!("{directory}/cpu.stat"), |text| {
        let line = text.lines().find(|line| line.starts_with("nr_throttled "));
        line.unwrap_or_default().to_owned()
    })?;
    stat.split_once(' ')?.1.trim().parse().ok()
}
