//! Control-group limits of the reading process, of version 2.

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
        let Some(group) = Group::find(tree) else { return Self::default() };
        let file = |name: &str| format!("{}/{name}", group.directory);
        let directories = group.upwards();
        let quotas = directories.iter().filter_map(|dir| quota(tree, dir));
        let limits = directories.iter().filter_map(|dir| limit(tree, dir));
        let cpus = ["cpuset.cpus.effective", "cpuset.cpus"];
        let cpus = cpus.iter().find_map(|name| tree.cpus(&file(name)));
        Self {
            quota: quotas.min_by(|a, b| a.cpus().total_cmp(&b.cpus())),
            throttled: throttled(tree, &group.directory),
            cpus: cpus.filter(|cpus| !cpus.is_empty()),
            memory_max: limits.min_by_key(|limit| limit.bytes),
            memory_bytes: tree.value(&file("memory.current")),
        }
    }
}

#[derive(Debug)]
struct Group {
    mount: String,
    directory: String,
}

impl Group {
    fn find(tree: &Tree) -> Option<Self> {
        let cgroups = |text: &str| super::kept(text, |line| line.contains(" - cgroup2 "));
        let mounts = tree.reduced("proc/self/mountinfo", cgroups)?;
        let groups = tree.text("proc/self/cgroup")?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        // Root and mount point, of a line such as `31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw` (proc_pid_mountinfo(5)).
        let mut fields = mounts.lines().next()?.split_whitespace().skip(3);
        let (root, mount) = fields.next().zip(fields.next())?;
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

fn quota(tree: &Tree, directory: &str) -> Option<Quota> {
    let file = format!("{directory}/cpu.max");
    let line = tree.line(&file)?;
    let (quota_us, period_us) = line.split_once(' ')?;
    let (quota_us, period_us) = (quota_us.parse().ok()?, period_us.parse().ok()?);
    Some(Quota { quota_us, period_us, file: format!("/{file}") })
}

fn limit(tree: &Tree, directory: &str) -> Option<Limit> {
    let file = format!("{directory}/memory.max");
    Some(Limit { bytes: tree.value(&file)?, file: format!("/{file}") })
}

fn throttled(tree: &Tree, directory: &str) -> Option<u64> {
    let stat = tree.reduced(&format!("{directory}/cpu.stat"), |text| {
        let line = text.lines().find(|line| line.starts_with("nr_throttled "));
        line.unwrap_or_default().to_owned()
    })?;
    stat.split_once(' ')?.1.trim().parse().ok()
}
