//! The files held open: a bounded number, the most recently used ones.
//!
//! Threads that may block add and remove files. A polling core only looks them up, and takes the
//! slow path if a thread has the lock. A thread also closes removed entries, because closing a
//! deleted file frees its blocks, which takes a while.

use super::file_system::FileKey;
use spinrpc::sync::lock;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;
pub(super) const TICK: Duration = Duration::from_secs(1);
/// Number of ticks after which an unused file is closed.
const IDLE_TICKS_MAX: u32 = 5;
/// Ticks without a write after which a file that is open for writing is closed; readers open it again.
const UNWRITTEN_TICKS_MAX: u32 = 5;

type Shard<N> = HashMap<FileKey, Arc<N>>;

#[derive(Default)]
pub(super) struct HeldState {
    last_use: AtomicU32,
    /// Written and not synced since: closing it would lose an error of write-back.
    is_dirty: AtomicBool,
    unwritten_ticks: AtomicU32,
    /// Held from the check of a SETATTR to its change.
    pub(super) setting: Mutex<()>,
}

pub(super) trait Held {
    fn key(&self) -> &FileKey;

    fn state(&self) -> &HeldState;

    fn is_open_to_write(&self) -> bool;

    fn is_dirty(&self) -> bool {
        self.state().is_dirty.load(Ordering::Relaxed)
    }

    fn set_dirty(&self, is_dirty: bool) {
        self.state().is_dirty.store(is_dirty, Ordering::Relaxed);
        if is_dirty {
            self.note_write();
        }
    }

    fn note_write(&self) {
        self.state().unwritten_ticks.store(0, Ordering::Relaxed);
    }

    /// Called once per tick. Returns true if the file is open for writing, and has not been written for long.
    fn is_needlessly_writable(&self) -> bool {
        let ticks = self.state().unwritten_ticks.fetch_add(1, Ordering::Relaxed);
        self.is_open_to_write() && !self.is_dirty() && ticks >= UNWRITTEN_TICKS_MAX
    }

    fn touch(&self, tick: u32) {
        self.state().last_use.store(tick, Ordering::Relaxed);
    }

    fn idle_ticks(&self, tick: u32) -> u32 {
        tick.saturating_sub(self.state().last_use.load(Ordering::Relaxed))
    }
}

pub(super) struct Nodes<N> {
    shards: [Mutex<Shard<N>>; SHARDS],
    shard_max: usize,
    /// Removed, but still in use by some thread or core.
    leaving: Mutex<Vec<Arc<N>>>,
    tick: AtomicU32,
    tended: Mutex<Instant>,
}

impl<N: Held> Nodes<N> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_max: max.div_ceil(SHARDS).max(1),
            leaving: Mutex::default(),
            tick: AtomicU32::new(0),
            tended: Mutex::new(Instant::now()),
        }
    }

    /// A cheap clock for cores.
    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn peek(&self, key: &FileKey) -> Option<Arc<N>> {
        let node = Arc::clone(self.shard(key).try_lock().ok()?.get(key)?);
        node.touch(self.tick());
        Some(node)
    }

    pub(super) fn find(&self, key: &FileKey) -> Option<Arc<N>> {
        let node = Arc::clone(lock(self.shard(key)).get(key)?);
        node.touch(self.tick());
        Some(node)
    }

    /// Returns the existing one if it is held already. If there is no room, another one goes to `close`.
    pub(super) fn hold(&self, node: N, close: impl FnOnce(Arc<N>)) -> Arc<N> {
        node.touch(self.tick());
        let mut shard = lock(self.shard(node.key()));
        if let Some(held) = shard.get(node.key()) {
            return Arc::clone(held);
        }
        let given_up = if shard.len() < self.shard_max { None } else { give_up(&mut shard) };
        let node = Arc::new(node);
        shard.insert(*node.key(), Arc::clone(&node));
        drop(shard);
        if let Some(node) = given_up {
            close(node);
        }
        node
    }

    pub(super) fn forget(&self, key: &FileKey) {
        let node = lock(self.shard(key)).remove(key);
        node.into_iter().for_each(|node| self.leave(node));
    }

    /// Closes a removed entry, now or when it is no longer in use.
    pub(super) fn leave(&self, node: Arc<N>) {
        lock(&self.leaving).push(node);
        self.close_unused();
    }

    /// Advances the clock, and passes files to `close` that are unused, deleted, or open for writing without need; once per
    /// tick. One in use stays unless it was deleted: another entry would know neither of its changes nor of errors of its
    /// writes.
    pub(super) fn tend(&self, is_gone: impl Fn(&N) -> bool, close: impl Fn(Arc<N>)) {
        let Ok(mut tended) = self.tended.try_lock() else { return };
        if tended.elapsed() < TICK {
            return;
        }
        *tended = Instant::now();
        drop(tended);
        let tick = self.tick.fetch_add(1, Ordering::Relaxed) + 1;
        for shard in &self.shards {
            let is_over = |node: &Arc<N>| {
                let is_needless =
                    node.is_needlessly_writable() || node.idle_ticks(tick) > IDLE_TICKS_MAX;
                is_needless && Arc::strong_count(node) == 1 || is_gone(node)
            };
            let over: Vec<_> =
                lock(shard).extract_if(|_, node| is_over(node)).map(|(_, node)| node).collect();
            over.into_iter().for_each(&close);
        }
        self.close_unused();
    }

    #[cfg(test)]
    pub(super) fn end_tick(&self) {
        *lock(&self.tended) -= TICK;
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// New uses of removed entries are not possible, so an entry that only this list holds stays
    /// that way.
    fn close_unused(&self) {
        let mut leaving = lock(&self.leaving);
        let all = mem::take(&mut *leaving);
        let (unused, used): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|node| Arc::strong_count(node) == 1);
        *leaving = used;
        drop(leaving);
        drop(unused);
    }

    fn shard(&self, key: &FileKey) -> &Mutex<Shard<N>> {
        let fold = |sum: usize, byte: &u8| sum.wrapping_mul(31).wrapping_add(usize::from(*byte));
        let folded = key.as_bytes().iter().fold(0, fold);
        &self.shards[folded % SHARDS]
    }
}

/// Removes the least recently used file of those that are not in use; one that needs a sync only if all do.
fn give_up<N: Held>(shard: &mut Shard<N>) -> Option<Arc<N>> {
    let rank = |node: &Arc<N>| (node.is_dirty(), std::cmp::Reverse(node.idle_ticks(u32::MAX)));
    let unused = shard.iter().filter(|(_, node)| Arc::strong_count(node) == 1);
    let key = unused.min_by_key(|(_, node)| rank(node)).map(|(key, _)| *key)?;
    shard.remove(&key)
}
