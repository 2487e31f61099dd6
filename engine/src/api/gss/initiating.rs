//! Steps of clients' mechanisms: each on a thread that does nothing else meanwhile, of which there are a few, so that one
//! which never returns holds up no other. A thread that never blocks for long hands them out, when they are due, and says
//! when the time of one is over (`gss.mechanism_ms`).

use super::threads::{Busy, Job, run_job};
use crate::api::helper::spawn_helper;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Mechanisms that run at a time; those beyond wait. One that never returns keeps its thread.
const THREADS_MAX: usize = 4;

/// One step.
pub(super) struct Task {
    /// It does not begin before.
    pub(super) due: Instant,
    /// It is late then, whether or not it has begun.
    pub(super) deadline: Instant,
    /// False once its client no longer waits for it.
    pub(super) wanted: Arc<AtomicBool>,
    pub(super) job: Job,
    pub(super) late: Job,
}

/// Hands out steps; its thread is there from the first one on.
#[derive(Default)]
pub(super) struct Initiating(Mutex<Option<Sender<News>>>);

/// What the thread hears.
enum News {
    Task(Task),
    /// The thread of this number is free again.
    Free(usize),
    /// A step is no longer wanted.
    Unwanted,
    /// The engine has gone.
    End,
}

impl Initiating {
    pub(super) fn run(&self, task: Task) -> Result<(), Busy> {
        let mut place = lock(&self.0);
        if place.is_none() {
            let (sender, news) = channel();
            let mut manager =
                Manager { own: sender.clone(), threads: Vec::new(), waiting: Vec::new() };
            spawn_helper("spin-gss-init", move || manager.run(&news)).map_err(|_| Busy)?;
            *place = Some(sender);
        }
        match &*place {
            Some(sender) => sender.send(News::Task(task)).map_err(|_| Busy),
            None => Err(Busy),
        }
    }

    /// Frees the steps that are no longer wanted: some are due in hours.
    pub(super) fn forget_unwanted(&self) {
        if let Some(sender) = &*lock(&self.0) {
            // If it fails the thread has gone already, with all steps.
            drop(sender.send(News::Unwanted));
        }
    }
}

impl Drop for Initiating {
    fn drop(&mut self) {
        if let Some(sender) = lock(&self.0).take() {
            // If it fails the thread has gone already.
            drop(sender.send(News::End));
        }
    }
}

struct Manager {
    /// For threads, to say that they are free.
    own: Sender<News>,
    threads: Vec<Thread>,
    /// Steps that have not begun, the first that came first.
    waiting: Vec<Task>,
}

/// A thread that runs mechanisms.
struct Thread {
    jobs: Sender<Job>,
    step: Option<Running>,
}

struct Running {
    deadline: Instant,
    /// Until it has been run.
    late: Option<Job>,
}

impl Manager {
    fn run(&mut self, news: &Receiver<News>) {
        loop {
            let now = Instant::now();
            self.say_what_is_late(now);
            self.begin_what_is_due(now);
            let next = match self.next_time(now) {
                None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => news.recv_timeout(at.saturating_duration_since(now)),
            };
            match next {
                Ok(News::Task(task)) => {
                    self.forget_unwanted();
                    self.waiting.push(task);
                }
                Ok(News::Unwanted) => self.forget_unwanted(),
                Ok(News::Free(index)) => self.threads[index].step = None,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn forget_unwanted(&mut self) {
        self.waiting.retain(|task| task.wanted.load(Ordering::Relaxed));
    }

    fn say_what_is_late(&mut self, now: Instant) {
        while let Some(index) = self.waiting.iter().position(|task| task.deadline <= now) {
            run_job(self.waiting.remove(index).late);
        }
        let steps = self.threads.iter_mut().filter_map(|thread| thread.step.as_mut());
        for step in steps.filter(|step| step.deadline <= now) {
            if let Some(late) = step.late.take() {
                run_job(late);
            }
        }
    }

    fn begin_what_is_due(&mut self, now: Instant) {
        while let Some(index) = self.waiting.iter().position(|task| task.due <= now) {
            let Some(free) = self.free_thread() else { return };
            let Task { deadline, job, late, .. } = self.waiting.remove(index);
            self.threads[free].step = Some(Running { deadline, late: Some(late) });
            // A thread ends only with this one.
            drop(self.threads[free].jobs.send(job));
        }
    }

    /// A thread that is free, or a further one.
    fn free_thread(&mut self) -> Option<usize> {
        let free = self.threads.iter().position(|thread| thread.step.is_none());
        if free.is_some() || self.threads.len() == THREADS_MAX {
            return free;
        }
        let (own, index) = (self.own.clone(), self.threads.len());
        let (jobs, received) = channel::<Job>();
        let run = move || {
            while let Ok(job) = received.recv() {
                run_job(job);
                if own.send(News::Free(index)).is_err() {
                    return;
                }
            }
        };
        spawn_helper("spin-gss-step", run).ok()?;
        self.threads.push(Thread { jobs, step: None });
        Some(index)
    }

    /// When there is something to do, whatever happens.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let steps = self.threads.iter().filter_map(|thread| thread.step.as_ref());
        let running = steps.filter(|step| step.late.is_some()).map(|step| step.deadline);
        let waiting = self.waiting.iter().map(|task| match task.due > now {
            true => task.due.min(task.deadline),
            false => task.deadline,
        });
        running.chain(waiting).min()
    }
}
