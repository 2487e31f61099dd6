//! The exports in force, which may be replaced while a server runs.
//!
//! A core keeps the exports that it last saw, and reads one number per call to learn of others: it locks only after a
//! change. What is replaced is dropped by [`ExportTable::collect`], never by a core, because closing a back end may block.

use super::Exports;
use crate::server::file_system::FileSystem;
use spinrpc::sync::lock;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Exports that can be replaced as a whole.
#[derive(Debug)]
pub struct ExportTable {
    version: AtomicU64,
    state: Mutex<State>,
}

struct State {
    current: Arc<Exports>,
    /// Replaced exports that a core or a thread may still use.
    replaced: Vec<Arc<Exports>>,
    closing: Vec<Arc<dyn FileSystem>>,
}

impl ExportTable {
    /// A table with these exports in force.
    pub fn new(exports: Exports) -> Arc<Self> {
        let current = Arc::new(exports);
        let state = State { current, replaced: Vec::new(), closing: Vec::new() };
        Arc::new(Self { version: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// The exports in force. Locks for a moment.
    pub fn current(&self) -> Arc<Exports> {
        Arc::clone(&lock(&self.state).current)
    }

    /// Replaces the exports: calls that begin from now on use the new ones. Call [`ExportTable::collect`] later.
    pub fn replace(&self, exports: Exports) {
        let mut state = lock(&self.state);
        let old = std::mem::replace(&mut state.current, Arc::new(exports));
        let gone: Vec<_> = old
            .iter()
            .map(|export| &export.file_system)
            .filter(|old| !state.current.iter().any(|new| Arc::ptr_eq(&new.file_system, old)))
            .cloned()
            .collect();
        for file_system in gone {
            if !state.closing.iter().any(|closing| Arc::ptr_eq(closing, &file_system)) {
                state.closing.push(file_system);
            }
        }
        // Those of an earlier change may be out of use: addresses of names change without a call of `collect`. Their back
        // ends stay in `closing`, so that none is closed here.
        state.replaced.push(old);
        state.replaced.retain(|exports| Arc::strong_count(exports) > 1);
        // Paired with the load of `Current::is_stale`: who sees the number finds the exports.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Drops replaced exports and closes back ends that nothing uses any more. Returns whether some are left. May block.
    pub fn collect(&self) -> bool {
        let mut closed = Vec::new();
        let is_left = {
            let mut state = lock(&self.state);
            state.replaced.retain(|exports| Arc::strong_count(exports) > 1);
            let State { current, closing, .. } = &mut *state;
            // A back end may have come back.
            closing.retain(|old| !current.iter().any(|new| Arc::ptr_eq(&new.file_system, old)));
            closed.extend(closing.extract_if(.., |old| Arc::strong_count(old) == 1));
            !state.closing.is_empty() || !state.replaced.is_empty()
        };
        drop(closed);
        is_left
    }

    pub(in crate::server) fn for_each_back_end(&self, act: impl Fn(&dyn FileSystem)) {
        let state = lock(&self.state);
        state.current.iter().for_each(|export| act(&*export.file_system));
        state.closing.iter().for_each(|file_system| act(&**file_system));
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("current", &self.current).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(in crate::server) struct Current {
    table: Arc<ExportTable>,
    version: u64,
    exports: Arc<Exports>,
}

impl Current {
    pub(in crate::server) fn new(table: &Arc<ExportTable>) -> Self {
        let version = table.version.load(Ordering::Acquire);
        Self { table: Arc::clone(table), version, exports: table.current() }
    }

    #[inline]
    pub(in crate::server) fn exports(&self) -> &Exports {
        &self.exports
    }

    pub(in crate::server) fn shared(&self) -> &Arc<Exports> {
        &self.exports
    }

    #[inline]
    pub(in crate::server) fn is_stale(&self) -> bool {
        self.version != self.table.version.load(Ordering::Acquire)
    }

    pub(in crate::server) fn refresh(&mut self) {
        *self = Self::new(&Arc::clone(&self.table));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Export;
    use super::super::tests::export;
    use super::*;

    fn exports(paths: &[(u32, &str)]) -> Exports {
        Exports::new(paths.iter().map(|(id, path)| export(*id, path, "ro")).collect()).unwrap()
    }

    #[test]
    fn a_core_learns_of_new_exports_and_keeps_the_old_ones_alive_until_then() {
        let table = ExportTable::new(exports(&[(1, "/a")]));
        let mut current = Current::new(&table);
        assert!(!current.is_stale());
        table.replace(exports(&[(2, "/b")]));
        assert!(current.is_stale() && current.exports().by_id(1).is_some());
        assert!(table.collect(), "the core still has the old ones");
        current.refresh();
        assert!(!current.is_stale() && current.exports().by_id(1).is_none());
        assert!(current.exports().by_id(2).is_some());
        assert!(!table.collect());
    }

    #[test]
    fn exports_that_nothing_uses_do_not_pile_up() {
        let old = export(1, "/a", "ro");
        let (kept, watch) = (old.clone(), Arc::downgrade(&old.file_system));
        let table = ExportTable::new(Exports::new(vec![old]).unwrap());
        for _ in 0..10 {
            table.replace(Exports::new(vec![kept.clone()]).unwrap());
        }
        assert_eq!(lock(&table.state).replaced.len(), 0);
        drop(kept);
        table.replace(exports(&[(2, "/b")]));
        assert!(watch.upgrade().is_some(), "only the collection closes a back end");
        assert!(!table.collect() && watch.upgrade().is_none());
    }

    #[test]
    fn a_back_end_is_closed_once_nothing_uses_it() {
        let old = export(1, "/a", "ro");
        let (kept, watch) = (Arc::clone(&old.file_system), Arc::downgrade(&old.file_system));
        let table = ExportTable::new(Exports::new(vec![old]).unwrap());
        table.replace(exports(&[(2, "/b")]));
        assert!(table.collect());
        drop(kept);
        assert!(watch.upgrade().is_some(), "only the collection closes it");
        assert!(!table.collect());
        assert!(watch.upgrade().is_none());
    }

    #[test]
    fn a_back_end_that_stays_exported_is_not_closed() {
        let old = export(1, "/a", "ro");
        let again = Export { path: "/b".to_owned(), ..old.clone() };
        let watch = Arc::downgrade(&old.file_system);
        let table = ExportTable::new(Exports::new(vec![old]).unwrap());
        table.replace(Exports::new(vec![again]).unwrap());
        assert!(!table.collect());
        assert!(watch.upgrade().is_some());
    }
}
