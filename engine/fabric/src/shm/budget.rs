//! Bounds on the shared memory of connections: of one core, and with one peer process. Control plane
//! only: memory is taken before it is mapped, and given back after it is unmapped.

use crate::sync::lock;
use crate::sys::credentials::{Credentials, ProcessIdentity};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(super) struct MemoryBudget {
    core_bytes_max: usize,
    peer_bytes_max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    by_core: HashMap<usize, usize>,
    by_peer: HashMap<(u32, ProcessIdentity), usize>,
}

impl MemoryBudget {
    pub(super) fn new(core_bytes_max: usize, peer_bytes_max: usize) -> Self {
        Self { core_bytes_max, peer_bytes_max, used: Mutex::default() }
    }

    pub(super) fn left(&self, core: usize, peer: Credentials) -> usize {
        let used = lock(&self.used);
        let of_core = used.by_core.get(&core).copied().unwrap_or(0);
        let of_peer = used.by_peer.get(&(peer.uid, peer.process)).copied().unwrap_or(0);
        let left = self.core_bytes_max.saturating_sub(of_core);
        left.min(self.peer_bytes_max.saturating_sub(of_peer))
    }

    pub(super) fn take(
        self: &Arc<Self>,
        core: usize,
        peer: Credentials,
        bytes: usize,
    ) -> Option<MemoryLease> {
        let peer = (peer.uid, peer.process);
        let mut used = lock(&self.used);
        let fits = |used: Option<&usize>, max| {
            used.copied().unwrap_or(0).checked_add(bytes).is_some_and(|sum| sum <= max)
        };
        let allowed = fits(used.by_core.get(&core), self.core_bytes_max)
            && fits(used.by_peer.get(&peer), self.peer_bytes_max);
        allowed.then(|| {
            *used.by_core.entry(core).or_default() += bytes;
            *used.by_peer.entry(peer).or_default() += bytes;
            MemoryLease { budget: Arc::clone(self), core, peer, bytes }
        })
    }
}

#[derive(Debug)]
pub(super) struct MemoryLease {
    budget: Arc<MemoryBudget>,
    core: usize,
    peer: (u32, ProcessIdentity),
    bytes: usize,
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let mut used = lock(&self.budget.used);
        give_back(&mut used.by_core, self.core, self.bytes);
        give_back(&mut used.by_peer, self.peer, self.bytes);
    }
}

/// Peers without memory are forgotten, so that the table does not grow with every process there ever was.
fn give_back<K: Eq + Hash>(used: &mut HashMap<K, usize>, key: K, bytes: usize) {
    if let Some(held) = used.get_mut(&key) {
        *held = held.saturating_sub(bytes);
        if *held == 0 {
            used.remove(&key);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cores_and_peers_have_bounds_of_their_own_and_get_back_what_is_dropped() {
        let budget = Arc::new(MemoryBudget::new(100, 60));
        let peer = |inode| {
            let process = ProcessIdentity::Inode(inode);
            Credentials { pid: 0, uid: 7, process }
        };
        let first = budget.take(0, peer(1), 60).unwrap();
        assert!(budget.take(0, peer(1), 1).is_none(), "more than a peer may have");
        assert!(budget.take(1, peer(1), 1).is_none(), "a peer has one bound over all cores");
        assert_eq!([budget.left(0, peer(1)), budget.left(1, peer(1))], [0, 0]);
        assert_eq!([budget.left(0, peer(2)), budget.left(1, peer(2))], [40, 60]);
        let second = budget.take(0, peer(2), 40).unwrap();
        assert!(budget.take(0, peer(3), 1).is_none(), "more than a core may have");
        assert!(budget.take(1, peer(3), usize::MAX).is_none());
        drop(first);
        let third = budget.take(0, peer(1), 60).unwrap();
        drop((second, third));
        let used = lock(&budget.used);
        assert!(used.by_core.is_empty() && used.by_peer.is_empty(), "{used:?}");
    }
}
