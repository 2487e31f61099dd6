//! Threads for operations that may block. They take jobs from a queue.

use super::catch_panic::contained;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded, unbounded};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

pub(super) trait Work<J>: Send + Sync + 'static {
    /// Time after which a thread without a job calls [`Work::tend`]; `None` if that does nothing.
    const TICK: Option<Duration> = None;

    /// Fate of jobs that have not started when the threads are stopped, and of later ones. If true, the
    /// threads go on to take jobs and to tend, and drop each job. If false, the threads end, and jobs are
    /// kept until [`Threads`] is dropped.
    const DRAINS: bool;

    /// Performs a job on the thread of this number. May block. A panic ends the job, not the thread.
    fn perform(&self, thread: usize, job: J);

    /// Called after each job, and at least once per tick.
    fn tend(&self) {}
}

/// The threads. Dropping it waits for jobs in progress; queued ones are dropped.
pub(super) struct Threads<J> {
    /// `None` only while it is dropped.
    queue: Option<Sender<J>>,
    /// The other end, so that jobs left when the threads have ended are kept until this is dropped.
    jobs: Receiver<J>,
    is_stopped: Arc<AtomicBool>,
    /// Each ends with the job, if any, that it had taken but not started when it was stopped.
    threads: Vec<Thread<J>>,
}

type Thread<J> = JoinHandle<Option<J>>;

type Run<J> = Box<dyn FnOnce() -> Option<J> + Send>;

impl<J: Send + 'static> Threads<J> {
    /// At most `queue_max` jobs wait for a thread, or any number.
    pub(super) fn start(
        work: &Arc<impl Work<J>>,
        name: &str,
        count: usize,
        queue_max: Option<usize>,
    ) -> io::Result<Self> {
        Self::start_by(work, count, queue_max, |number, run| {
            Builder::new().name(format!("{name}{number}")).spawn(run)
        })
    }

    /// If a thread cannot be spawned, those before it have ended when this returns.
    fn start_by(
        work: &Arc<impl Work<J>>,
        count: usize,
        queue_max: Option<usize>,
        spawn: impl Fn(usize, Run<J>) -> io::Result<Thread<J>>,
    ) -> io::Result<Self> {
        let (queue, jobs) = queue_max.map_or_else(unbounded, bounded);
        let is_stopped = Arc::default();
        let mut all = Self { queue: Some(queue), jobs, is_stopped, threads: Vec::new() };
        for number in 0..count.max(1) {
            let (work, jobs, is_stopped) =
                (Arc::clone(work), all.jobs.clone(), Arc::clone(&all.is_stopped));
            let run = move || run(&*work, number, &jobs, &is_stopped);
            all.threads.push(spawn(number, Box::new(run))?);
        }
        Ok(all)
    }
}

impl<J> Threads<J> {
    /// Starts no further jobs ([`Work::DRAINS`]). Does not block.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Queues a job; returns it if the queue is full. Does not block.
    pub(super) fn submit(&self, job: J) -> Result<(), J> {
        let Some(queue) = &self.queue else { return Err(job) };
        queue.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

impl<J> Drop for Threads<J> {
    fn drop(&mut self) {
        self.stop();
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl<J> fmt::Debug for Threads<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("count", &self.threads.len()).finish_non_exhaustive()
    }
}

fn run<J, W: Work<J>>(
    work: &W,
    number: usize,
    jobs: &Receiver<J>,
    is_stopped: &AtomicBool,
) -> Option<J> {
    loop {
        let job = match W::TICK {
            Some(tick) => jobs.recv_timeout(tick),
            None => jobs.recv().map_err(RecvTimeoutError::from),
        };
        match job {
            Ok(job) if is_stopped.load(Ordering::Acquire) => {
                if !W::DRAINS {
                    return Some(job);
                }
                drop(job);
            }
            Ok(job) => {
                let _ = contained(|| {
                    work.perform(number, job);
                    Ok(())
                });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        let _ = contained(|| {
            work.tend();
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinrpc::sync::lock;
    use std::sync::Mutex;
    use std::sync::mpsc::{self, TryRecvError, channel, sync_channel};
    use std::thread::yield_now;

    /// Performs jobs, and reports them.
    struct Planted<F, const DRAINS: bool> {
        work: F,
        done: Mutex<Vec<u32>>,
    }

    impl<F: Fn(u32) + Send + Sync + 'static, const DRAINS: bool> Planted<F, DRAINS> {
        fn new(work: F) -> Arc<Self> {
            Arc::new(Self { work, done: Mutex::default() })
        }
    }

    /// A job reports by its sender that it was performed, and by the drop of it that it is over.
    type Job = (u32, mpsc::Sender<u32>);

    impl<F: Fn(u32) + Send + Sync + 'static, const DRAINS: bool> Work<Job> for Planted<F, DRAINS> {
        const DRAINS: bool = DRAINS;

        fn perform(&self, _: usize, (number, performed): Job) {
            (self.work)(number);
            lock(&self.done).push(number);
            let _ = performed.send(number);
        }
    }

    /// The first job, on the only thread, ends when `end` has started; the second one is queued. `end`
    /// gets what they report.
    fn done_when_ended_by<const DRAINS: bool>(
        end: impl FnOnce(Threads<Job>, mpsc::Receiver<u32>),
    ) -> Vec<u32> {
        let (begin, begun) = channel();
        let end_began = Arc::new(Mutex::new(None::<Arc<AtomicBool>>));
        let sees = Arc::clone(&end_began);
        let planted = Planted::<_, DRAINS>::new(move |_| {
            begin.send(()).unwrap();
            while !lock(&sees).as_ref().is_some_and(|stopped| stopped.load(Ordering::Acquire)) {
                yield_now();
            }
        });
        let threads = Threads::start(&planted, "planted", 1, None).unwrap();
        *lock(&end_began) = Some(Arc::clone(&threads.is_stopped));
        let (performed, jobs) = channel();
        for number in [1, 2] {
            assert!(threads.submit((number, performed.clone())).is_ok());
        }
        drop(performed);
        begun.recv().unwrap();
        end(threads, jobs);
        lock(&planted.done).clone()
    }

    /// Stops the threads, submits a third job, and waits until the only thread has ended or dropped it.
    fn stop_and_submit(threads: &Threads<Job>) -> mpsc::Receiver<u32> {
        threads.stop();
        let (performed, late) = channel();
        assert!(threads.submit((3, performed)).is_ok());
        while !threads.threads[0].is_finished() && late.try_recv() == Err(TryRecvError::Empty) {
            yield_now();
        }
        late
    }

    #[test]
    fn what_waits_for_a_thread_is_not_done_when_the_threads_are_dropped() {
        assert_eq!(done_when_ended_by::<false>(|threads, _| drop(threads)), [1]);
        assert_eq!(done_when_ended_by::<true>(|threads, _| drop(threads)), [1]);
    }

    #[test]
    fn what_waits_for_a_thread_or_comes_is_not_done_once_they_are_stopped_and_kept_till_the_end() {
        let end = |threads: Threads<Job>, jobs: mpsc::Receiver<u32>| {
            let late = stop_and_submit(&threads);
            assert_eq!(jobs.try_recv(), Ok(1));
            assert_eq!([jobs.try_recv(), late.try_recv()], [Err(TryRecvError::Empty); 2]);
            drop(threads);
            assert_eq!([jobs.try_recv(), late.try_recv()], [Err(TryRecvError::Disconnected); 2]);
        };
        assert_eq!(done_when_ended_by::<false>(end), [1]);
    }

    #[test]
    fn what_waits_for_a_thread_or_comes_is_dropped_once_they_are_stopped_if_they_drain() {
        let end = |threads: Threads<Job>, jobs: mpsc::Receiver<u32>| {
            let late = stop_and_submit(&threads);
            assert_eq!(jobs.try_recv(), Ok(1));
            assert_eq!([jobs.try_recv(), late.try_recv()], [Err(TryRecvError::Disconnected); 2]);
            assert!(!threads.threads[0].is_finished());
        };
        assert_eq!(done_when_ended_by::<true>(end), [1]);
    }

    /// Tends once per reader of `tended`.
    struct Tender {
        tended: mpsc::SyncSender<()>,
    }

    impl Work<Job> for Tender {
        const TICK: Option<Duration> = Some(Duration::from_millis(1));
        const DRAINS: bool = true;

        fn perform(&self, _: usize, _: Job) {}

        fn tend(&self) {
            let _ = self.tended.send(());
        }
    }

    #[test]
    fn threads_that_drain_tend_until_they_are_dropped() {
        // Without room: no more than one tending can have begun before it is asked for.
        let (tended, tendings) = sync_channel(0);
        let threads = Threads::start(&Arc::new(Tender { tended }), "planted", 1, None).unwrap();
        threads.stop();
        let (performed, jobs) = channel();
        assert!(threads.submit((1, performed)).is_ok());
        // One that had begun, one after the job, and one without a job. The sender goes with the thread.
        assert_eq!([tendings.recv(), tendings.recv(), tendings.recv()], [Ok(()); 3]);
        assert_eq!(jobs.try_recv(), Err(TryRecvError::Disconnected));
        drop(tendings);
    }

    #[test]
    fn threads_started_before_one_that_could_not_be_have_ended() {
        let planted = Planted::<_, false>::new(|_| {});
        let has_ended = Arc::<AtomicBool>::default();
        let spawn = |number, run: Run<Job>| {
            if number == 1 {
                return Err(io::Error::other("planted"));
            }
            let has_ended = Arc::clone(&has_ended);
            Builder::new().spawn(move || {
                let job = run();
                // Time for a start that does not wait for this to be seen.
                (0..100_000).for_each(|_| yield_now());
                has_ended.store(true, Ordering::Release);
                job
            })
        };
        let started = Threads::start_by(&planted, 3, None, spawn);
        assert!(has_ended.load(Ordering::Acquire));
        assert_eq!(started.unwrap_err().to_string(), "planted");
    }

    #[test]
    fn a_job_beyond_the_longest_queue_comes_back() {
        let (go, gone) = channel::<()>();
        let gone = Mutex::new(gone);
        let (begin, begun) = channel();
        let planted = Planted::<_, false>::new(move |number| {
            begin.send(number).unwrap();
            let _ = lock(&gone).recv();
        });
        let threads = Threads::start(&planted, "planted", 1, Some(1)).unwrap();
        let (performed, jobs) = channel();
        assert!(threads.submit((1, performed.clone())).is_ok());
        begun.recv().unwrap();
        assert!(threads.submit((2, performed.clone())).is_ok());
        assert_eq!(threads.submit((3, performed)).unwrap_err().0, 3);
        drop(go);
        assert_eq!([jobs.recv(), jobs.recv()], [Ok(1), Ok(2)]);
    }

    #[test]
    fn a_panic_ends_its_own_job_and_the_thread_goes_on() {
        let planted = Planted::<_, false>::new(|number| assert_ne!(number, 1, "planted"));
        let threads = Threads::start(&planted, "planted", 1, None).unwrap();
        let (performed, jobs) = channel();
        for number in [1, 2] {
            assert!(threads.submit((number, performed.clone())).is_ok());
        }
        drop(performed);
        assert_eq!(jobs.iter().collect::<Vec<_>>(), [2]);
    }
}
