//! Limits and privileges of the reading process.

use super::Tree;

/// Limits and privileges of a process, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Effective user.
    pub user: Option<u32>,
    /// True if it has CAP_IPC_LOCK and may lock any amount of memory.
    pub may_lock_all: bool,
    /// Limit of locked memory in bytes.
    pub memlock: Option<Bounds>,
    /// Limit of open files and sockets.
    pub open_files: Option<Bounds>,
}

/// A resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Effective limit; `None` means unlimited.
    pub soft: Option<u64>,
    /// Maximum to which the process may raise the soft limit.
    pub hard: Option<u64>,
}

impl Process {
    /// Reads the facts.
    #[must_use]
    pub fn read(tree: &Tree) -> Self {
        let status = status(tree).unwrap_or_default();
        let limits = tree.reduced("proc/self/limits", |text| super::lines(text, LIMITS));
        let limits = limits.unwrap_or_default();
        let users = super::field(&status, "Uid");
        Self {
            user: users.and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
            may_lock_all: is_first_namespace(tree) && capabilities(&status) & IPC_LOCK != 0,
            memlock: bounds(&limits, "Max locked memory"),
            open_files: bounds(&limits, "Max open files"),
        }
    }
}

/// The lines of `/proc/self/status` that the readers use.
pub(super) fn status(tree: &Tree) -> Option<String> {
    tree.reduced("proc/self/status", |text| super::lines(text, STATUS))
}

/// In another user namespace a privilege over memory has no effect.
fn is_first_namespace(tree: &Tree) -> bool {
    let map = tree.text("proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn capabilities(status: &str) -> u64 {
    let set = super::field(status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    set.unwrap_or_default()
}

/// Parses a line such as `Max locked memory         8388608              unlimited
/// bytes`.
fn bounds(limits: &str, name: &str) -> Option<Bounds> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace();
    let mut bound = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Bounds { soft: bound()?, hard: bound()? })
}

const IPC_LOCK: u64 = 1 << 14;
const STATUS: &[&str] = &["Cpus_allowed_list", "CapEff", "Uid"];
const LIMITS: &[&str] = &["Max locked memory", "Max open files"];
