//! Steps of clients' mechanisms: each on a thread that does nothing else meanwhile, of which there are a few, so that one
//! which never returns holds up no other. A thread that never blocks for long hands them out, when they are due, and says
//! when the time of one is over (`Config::gss_mechanism_time`). Steps that never begin are dropped on a thread of its own: they own a part of
//! the application's mechanism, whose destructor may block or panic.

use super::threads::{Busy, Job, run_job};
use crate::api::helper_thread::spawn_helper;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::lock;
use crate::sys::journal::event;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Mechanisms that run at a time; those beyond wait. One that never returns keeps its thread.
const THREADS_MAX: usize = 4;

/// Steps that wait to be dropped, or are being dropped. As long as there are so many no other step is accepted: those beyond
/// can only be steps that had been accepted before, of which each client has one.
const DROPS_MAX: usize = 256;

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
pub(super) struct Initiating {
    news: Mutex<Option<Sender<News>>>,
    drops: Arc<AtomicUsize>,
}

enum News {
    Task(Task),
    /// The thread of this number is free again.
    Free(usize),
    Unwanted,
    End,
}

impl Initiating {
    pub(super) fn run(&self, task: Task) -> Result<(), Busy> {
        if self.drops.load(Ordering::Relaxed) >= DROPS_MAX {
            return Err(Busy);
        }
        let mut place = lock(&self.news);
        if place.is_none() {
            let (sender, news) = channel();
            let mut manager = Manager {
                own: sender.clone(),
                threads: Vec::new(),
                waiting: Vec::new(),
                dropped: Dropped { jobs: None, drops: Arc::clone(&self.drops) },
            };
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
        if let Some(sender) = &*lock(&self.news) {
            // If it fails the thread has gone already, with all steps.
            drop(sender.send(News::Unwanted));
        }
    }
}

impl Drop for Initiating {
    fn drop(&mut self) {
        if let Some(sender) = lock(&self.news).take() {
            // If it fails the thread has gone already.
            drop(sender.send(News::End));
        }
    }
}

struct Manager {
    own: Sender<News>,
    threads: Vec<Thread>,
    /// Steps that have not begun, the first that came first.
    waiting: Vec<Task>,
    dropped: Dropped,
}

/// The thread that drops steps, which is there from the first one on. One whose drop never returns keeps those behind it.
struct Dropped {
    jobs: Option<Sender<Job>>,
    drops: Arc<AtomicUsize>,
}

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
                Ok(News::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Those in the channel are none that a core still sends: its engine has gone.
        for task in news.try_iter() {
            if let News::Task(task) = task {
                self.waiting.push(task);
            }
        }
        self.waiting.drain(..).for_each(|task| self.dropped.take(task.job));
    }

    fn forget_unwanted(&mut self) {
        let unwanted = |task: &mut Task| !task.wanted.load(Ordering::Relaxed);
        for task in self.waiting.extract_if(.., unwanted) {
            self.dropped.take(task.job);
        }
    }

    fn say_what_is_late(&mut self, now: Instant) {
        while let Some(index) = self.waiting.iter().position(|task| task.deadline <= now) {
            let Task { late, job, .. } = self.waiting.remove(index);
            run_job(late);
            self.dropped.take(job);
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

impl Dropped {
    fn take(&mut self, job: Job) {
        if self.jobs.is_none() {
            let ((sender, jobs), drops) = (channel::<Job>(), Arc::clone(&self.drops));
            let run = move || {
                for job in jobs {
                    run_job(Box::new(move || drop(job)));
                    drops.fetch_sub(1, Ordering::Relaxed);
                }
            };
            self.jobs = spawn_helper("spin-gss-drop", run).is_ok().then_some(sender);
        }
        match &self.jobs {
            Some(sender) => {
                self.drops.fetch_add(1, Ordering::Relaxed);
                // A thread ends only with the manager.
                drop(sender.send(job));
            }
            None => {
                event!(WARN, "there is no thread to drop a security mechanism: it is leaked");
                std::mem::forget(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(20);
    const HOUR: Duration = Duration::from_secs(3600);

    /// As the destructor of an application's mechanism may: says where it runs, waits for leave, and panics.
    struct Stubborn {
        at: Sender<Option<String>>,
        leave: Receiver<()>,
    }

    impl Drop for Stubborn {
        fn drop(&mut self) {
            self.at.send(std::thread::current().name().map(str::to_owned)).unwrap();
            self.leave.recv_timeout(LIMIT).unwrap();
            // Not by panic!, whose message the harness may be reading by then: nothing waits for this thread.
            std::panic::resume_unwind(Box::new("asked for"));
        }
    }

    fn run(initiating: &Initiating, after: Duration, wanted: &Arc<AtomicBool>, job: Job) {
        let (due, wanted) = (Instant::now() + after, Arc::clone(wanted));
        let task = Task { due, deadline: due + HOUR, wanted, job, late: Box::new(|| {}) };
        assert!(initiating.run(task).is_ok());
    }

    /// A step that is wanted runs.
    fn goes_on(initiating: &Initiating) {
        let (done, heard) = channel();
        let job = Box::new(move || done.send(()).unwrap());
        run(initiating, Duration::ZERO, &Arc::new(AtomicBool::new(true)), job);
        heard.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn a_destructor_that_blocks_and_panics_holds_up_no_step() {
        let initiating = Initiating::default();
        let (at, dropped) = channel();
        // Each twice: its end lets the next one go on.
        for ends in [false, true, false, true] {
            let (give, leave) = channel();
            let (stubborn, wanted) =
                (Stubborn { at: at.clone(), leave }, Arc::new(AtomicBool::new(true)));
            run(&initiating, HOUR, &wanted, Box::new(move || drop(stubborn)));
            wanted.store(false, Ordering::Relaxed);
            match ends {
                false => initiating.forget_unwanted(),
                // Another step does the same.
                true => goes_on(&initiating),
            }
            let name = dropped.recv_timeout(LIMIT).unwrap();
            assert_eq!(name.as_deref(), Some("spin-gss-drop"));
            goes_on(&initiating);
            give.send(()).unwrap();
        }
        // At the end of the engine, too.
        let (give, leave) = channel();
        let stubborn = Stubborn { at, leave };
        let job = Box::new(move || drop(stubborn));
        run(&initiating, HOUR, &Arc::new(AtomicBool::new(true)), job);
        drop(initiating);
        let name = dropped.recv_timeout(LIMIT).unwrap();
        assert_eq!(name.as_deref(), Some("spin-gss-drop"));
        give.send(()).unwrap();
    }

    /// The first destructor does not return. What comes behind it is bounded, and so is the memory.
    #[test]
    fn no_step_is_accepted_while_too_many_wait_to_be_dropped() {
        let initiating = Initiating::default();
        let ((at, dropped), (give, leave)) = (channel(), channel());
        let stubborn = Stubborn { at, leave };
        let unwanted = Arc::new(AtomicBool::new(true));
        run(&initiating, HOUR, &unwanted, Box::new(move || drop(stubborn)));
        for _ in 1..DROPS_MAX {
            run(&initiating, HOUR, &unwanted, Box::new(|| {}));
        }
        unwanted.store(false, Ordering::Relaxed);
        // Handed out when the steps before it have been given to the other thread.
        goes_on(&initiating);
        dropped.recv_timeout(LIMIT).unwrap();
        let begin = || {
            let (due, wanted) = (Instant::now(), Arc::new(AtomicBool::new(true)));
            let task = Task {
                due,
                deadline: due + HOUR,
                wanted,
                job: Box::new(|| {}),
                late: Box::new(|| {}),
            };
            initiating.run(task)
        };
        assert!(begin().is_err(), "{DROPS_MAX} steps wait to be dropped");
        give.send(()).unwrap();
        let ends = Instant::now() + LIMIT;
        while begin().is_err() {
            assert!(Instant::now() < ends, "none is accepted any more");
            std::thread::yield_now();
        }
    }
}
