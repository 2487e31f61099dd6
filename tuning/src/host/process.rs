//! Limits and privileges of the reading process.

use super::Tree;

facts! {
    Process(tree) {
        /// True if it has CAP_IPC_LOCK and may lock any amount of memory.
        may_lock_all: bool = is_first_namespace(tree) && capabilities(tree) & IPC_LOCK != 0;
        memlock: Option<Bounds> = memlock(tree);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Effective limit; `None` means unlimited.
    pub soft: Option<u64>,
    /// Maximum to which the process may raise the soft limit.
    pub hard: Option<u64>,
}

pub(super) fn status(tree: &Tree) -> Option<String> {
    tree.reduced("proc/self/status", |text| super::lines(text, STATUS))
}

/// In another user namespace a privilege over memory has no effect.
fn is_first_namespace(tree: &Tree) -> bool {
    let map = tree.text("proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn capabilities(tree: &Tree) -> u64 {
    let status = status(tree).unwrap_or_default();
    let set = super::field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    set.unwrap_or_default()
}

/// Parses a line such as `Max locked memory         8388608              unlimited
/// bytes`.
fn memlock(tree: &Tree) -> Option<Bounds> {
    let limits = tree.reduced("proc/self/limits", |text| super::lines(text, &[MEMLOCK]))?;
    let line = limits.lines().find_map(|line| line.strip_prefix(MEMLOCK))?;
    let mut words = line.split_whitespace();
    let mut bound = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Bounds { soft: bound()?, hard: bound()? })
}

const IPC_LOCK: u64 = 1 << 14;
const STATUS: &[&str] = &["Cpus_allowed_list", "CapEff"];
const MEMLOCK: &str = "Max locked memory";
