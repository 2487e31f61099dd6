//! Threads for what may block for long, or never return: connects, and mechanisms of RPCSEC_GSS. One job per thread; one
//! more thread waits for due times. Each user sets the limits, overall and per owner.

use super::helper_thread::spawn_helper;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{lock, wait_for_change};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) type Job = Box<dyn FnOnce() + Send>;

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
    /// Runs a job, and contains its panics.
    run: fn(Job),
    /// Tells by the number of jobs that run, and of those of its owner, whether another one may begin; it waits otherwise.
    may_begin: fn(usize, usize) -> bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The first that came first.
    waiting: Vec<Entry>,
    running: Vec<Kind>,
    threads: Vec<JoinHandle<()>>,
    is_over: bool,
}

impl Workers {
    pub(super) fn new(
        name: &'static str,
        run: fn(Job),
        may_begin: fn(usize, usize) -> bool,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { name, run, may_begin, state, changed }))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Has unwanted jobs dropped now: some are due in hours.
    #[cfg(feature = "gss")]
    pub(super) fn forget_unwanted(&self) {
        let _state = lock(&self.0.state);
        self.0.changed.notify_all();
    }

    fn end(&self) {
        lock(&self.0.state).is_over = true;
        self.0.changed.notify_all();
    }

    /// Ends the threads, and waits for the jobs that they run.
    pub(super) fn join(&self) {
        self.end();
        loop {
            let thread = lock(&self.0.state).threads.pop();
            let Some(thread) = thread else { return };
            drop(thread.join());
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Leaves these jobs to the threads. Returns false without room for them, or without a thread.
    pub(super) fn add(
        self: &Arc<Self>,
        entries: impl IntoIterator<Item = Entry>,
        has_room: impl FnOnce(&State) -> bool,
    ) -> bool {
        let mut state = lock(&self.state);
        if state.is_over || !has_room(&state) {
            return false;
        }
        if state.threads.is_empty() {
            self.spawn(&mut state);
        }
        if state.threads.is_empty() {
            return false;
        }
        state.waiting.extend(entries);
        self.changed.notify_all();
        true
    }

    fn spawn(self: &Arc<Self>, state: &mut State) {
        let shared = Arc::clone(self);
        state.threads.extend(spawn_helper(self.name, move || shared.run_jobs()));
    }

    fn run_jobs(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            let Some(Entry { kind, job, .. }) = state.next(now, self.may_begin) else {
                if state.is_over && state.waiting.is_empty() {
                    return;
                }
                state = self.rest(state, now);
                continue;
            };
            // While it runs, another thread looks at the clock.
            if kind != Kind::Quick && state.running.len() >= state.threads.len() {
                self.spawn(&mut state);
            }
            drop(state);
            (self.run)(job);
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
    #[cfg(feature = "gss")]
    pub(super) fn waiting(&self, is_meant: impl Fn(Kind) -> bool) -> usize {
        self.waiting.iter().filter(|entry| is_meant(entry.kind)).count()
    }

    pub(super) fn running(&self, is_meant: impl Fn(Kind) -> bool) -> usize {
        self.running.iter().filter(|kind| is_meant(**kind)).count()
    }

    /// The first job that is due and may begin.
    fn next(&mut self, now: Instant, may_begin: fn(usize, usize) -> bool) -> Option<Entry> {
        self.drop_unwanted(now);
        let is_next = |entry: &Entry| entry.due <= now && self.may_begin(entry.kind, may_begin);
        let index = self.waiting.iter().position(is_next)?;
        let entry = self.waiting.remove(index);
        self.running.push(entry.kind);
        Some(entry)
    }

    fn may_begin(&self, kind: Kind, rule: fn(usize, usize) -> bool) -> bool {
        match kind {
            Kind::Of(_) => {
                let all = self.running(|other| matches!(other, Kind::Of(_)));
                rule(all, self.running(|other| other == kind))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs of these owners, which are due.
    fn waiting(owners: impl IntoIterator<Item = u64>) -> State {
        let due = Instant::now();
        let entry =
            |owner| Entry { kind: Kind::Of(owner), due, wanted: None, job: Box::new(|| {}) };
        State { waiting: owners.into_iter().map(entry).collect(), ..State::default() }
    }

    fn begun(state: &mut State, rule: fn(usize, usize) -> bool) -> Vec<Kind> {
        let next = || state.next(Instant::now(), rule).map(|entry| entry.kind);
        std::iter::from_fn(next).collect()
    }

    /// As for connections, of which an address has one at a time.
    #[test]
    fn the_oldest_job_that_may_begin_is_next() {
        let rule = |running, own| own == 0 && running < 3;
        let mut state = waiting([0, 0, 1, 1, 2, 3]);
        assert_eq!(begun(&mut state, rule), [Kind::Of(0), Kind::Of(1), Kind::Of(2)]);
        for (ended, next) in [(1, 1), (0, 0), (2, 3)] {
            state.end(Kind::Of(ended));
            assert_eq!(begun(&mut state, rule), [Kind::Of(next)]);
        }
        assert!(state.waiting.is_empty());
    }

    /// As for tokens, where the jobs of an owner may all block.
    #[test]
    fn an_owner_leaves_half_of_the_threads_to_the_others() {
        let mut state = waiting((0..5).flat_map(|owner| [owner; 8]));
        let all = begun(&mut state, |running, own| own + running < 8);
        let of = |owner| all.iter().filter(|kind| **kind == Kind::Of(owner)).count();
        assert_eq!([0, 1, 2, 3, 4].map(of), [4, 2, 1, 1, 0]);
    }

    #[test]
    fn a_job_that_is_not_due_waits_and_one_that_is_not_wanted_is_dropped_first() {
        let (mut state, wanted) = (waiting([7, 8]), Arc::new(AtomicBool::new(true)));
        state.waiting[0].due += REST_MAX;
        state.waiting[0].wanted = Some(Arc::clone(&wanted));
        let rule = |_, _| true;
        assert_eq!(begun(&mut state, rule), [Kind::Of(8)]);
        wanted.store(false, Ordering::Relaxed);
        assert_eq!(begun(&mut state, rule), [Kind::Drop]);
    }
}
