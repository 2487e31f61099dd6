//! Threads for mechanisms, which may block for long or never return: each runs one job at a time, and one more than these
//! looks at the clock. The jobs of one owner have at most half of the threads that the others leave, so that a name service
//! that does not answer for the users of a few hosts does not hold up the next one.

use super::threads::{Busy, Job, run_job};
use crate::api::helper_thread::spawn_helper;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{lock, wait_for_change};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Longest rest of the thread that looks at the clock.
const REST_MAX: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// May block; of this owner.
    Of(u64),
    /// Drops a job that has not begun. Destructors of the application's mechanism may block or panic; one runs at a time.
    Drop,
    /// Runs on the thread that looks at the clock.
    Quick,
}

pub(super) struct Entry {
    pub(super) kind: Kind,
    /// It does not begin before.
    pub(super) due: Instant,
    /// False once its client no longer waits for it.
    pub(super) wanted: Option<Arc<AtomicBool>>,
    pub(super) job: Job,
}

/// Its threads are there from the first jobs on, and end with it.
pub(super) struct Workers(Arc<Shared>);

pub(super) struct Shared {
    name: &'static str,
    /// Jobs that may block at a time; those beyond wait.
    at_most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The first that came first.
    waiting: Vec<Entry>,
    running: Vec<Kind>,
    threads: usize,
    is_over: bool,
}

impl Workers {
    pub(super) fn new(name: &'static str, at_most: usize) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { name, at_most, state, changed }))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Has unwanted jobs dropped now: some are due in hours.
    pub(super) fn forget_unwanted(&self) {
        let _state = lock(&self.0.state);
        self.0.changed.notify_all();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Has threads run these jobs, if there is room for more.
    pub(super) fn add(
        self: &Arc<Self>,
        entries: impl IntoIterator<Item = Entry>,
        has_room: impl FnOnce(&State) -> bool,
    ) -> Result<(), Busy> {
        let mut state = lock(&self.state);
        if !has_room(&state) {
            return Err(Busy);
        }
        if state.threads == 0 {
            self.spawn(&mut state);
        }
        if state.threads == 0 {
            return Err(Busy);
        }
        state.waiting.extend(entries);
        self.changed.notify_all();
        Ok(())
    }

    fn spawn(self: &Arc<Self>, state: &mut State) {
        let shared = Arc::clone(self);
        let spawned = spawn_helper(self.name, move || shared.run_jobs());
        state.threads += usize::from(spawned.is_ok());
    }

    fn run_jobs(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let Some(Entry { kind, job, .. }) = state.next(now, self.at_most) else {
                if state.is_over && state.waiting.is_empty() {
                    return;
                }
                state = self.rest(state, now);
                continue;
            };
            // While it runs, another thread looks at the clock.
            if kind != Kind::Quick && state.running.len() >= state.threads {
                self.spawn(&mut state);
            }
            drop(state);
            run_job(job);
            state = lock(&self.state);
            state.end(kind);
            self.changed.notify_all();
        }
    }

    /// Waits until something changes, or a job is due.
    fn rest<'a>(&'a self, state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        let dues = state.waiting.iter().map(|entry| entry.due.saturating_duration_since(now));
        let rest = dues.filter(|rest| !rest.is_zero()).min().unwrap_or(REST_MAX);
        wait_for_change(&self.changed, state, &self.state, rest)
    }
}

impl State {
    pub(super) fn waiting(&self, is_meant: impl Fn(Kind) -> bool) -> usize {
        self.waiting.iter().filter(|entry| is_meant(entry.kind)).count()
    }

    pub(super) fn running(&self, is_meant: impl Fn(Kind) -> bool) -> usize {
        self.running.iter().filter(|kind| is_meant(**kind)).count()
    }

    /// The first job that is due and may begin.
    fn next(&mut self, now: Instant, at_most: usize) -> Option<Entry> {
        self.drop_unwanted(now);
        let may_begin = |entry: &Entry| entry.due <= now && self.may_begin(entry.kind, at_most);
        let index = self.waiting.iter().position(may_begin)?;
        let entry = self.waiting.remove(index);
        self.running.push(entry.kind);
        Some(entry)
    }

    /// True of 4, 2, 1 and 1 jobs of 8 for owners whose jobs all block.
    fn may_begin(&self, kind: Kind, at_most: usize) -> bool {
        match kind {
            Kind::Of(_) => {
                let all = self.running(|other| matches!(other, Kind::Of(_)));
                self.running(|other| other == kind) < at_most.saturating_sub(all)
            }
            Kind::Drop => !self.running.contains(&Kind::Drop),
            Kind::Quick => true,
        }
    }

    fn drop_unwanted(&mut self, now: Instant) {
        let is_over = self.is_over;
        let is_wanted = |wanted: &Arc<AtomicBool>| wanted.load(Ordering::Relaxed);
        let is_unwanted = |entry: &Entry| is_over || !entry.wanted.as_ref().is_none_or(is_wanted);
        self.waiting.retain(|entry| entry.kind != Kind::Quick || !is_unwanted(entry));
        for entry in &mut self.waiting {
            if entry.kind != Kind::Drop && is_unwanted(entry) {
                let job = std::mem::replace(&mut entry.job, Box::new(|| {}));
                let job = Box::new(move || drop(job));
                *entry = Entry { kind: Kind::Drop, due: now, wanted: None, job };
            }
        }
    }

    fn end(&mut self, kind: Kind) {
        if let Some(index) = self.running.iter().position(|other| *other == kind) {
            self.running.swap_remove(index);
        }
    }
}
