//! Threads for blocking operations of cores: opening files, closing them, and, without a ring,
//! reading and writing them.

use super::node::Node;
use super::transfer::{Task, failed};
use super::tree::{TICK, Tree};
use crate::nfs::server::containment::contained;
use crate::nfs::server::file_system::Done;
use spinrpc::sync::lock;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// A request of a core.
pub(super) struct Job {
    /// The core's number, for its answer.
    pub(super) number: u32,
    pub(super) task: Task,
    pub(super) how: How,
    /// Has room for answers to all requests that the core has at a time.
    pub(super) answers: SyncSender<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Open the file, and leave the rest to the core's ring.
    Prepare,
    /// Like `Prepare`, but also perform a write that clears mode bits: the ring would write as the
    /// server.
    PrepareOrTakePrivileges,
    /// Perform all of it.
    Perform,
}

pub(super) struct Answer {
    pub(super) number: u32,
    pub(super) outcome: Answered,
}

pub(super) enum Answered {
    /// The file is open, and the caller has the right.
    Ready(Arc<Node>, Task),
    Done(Done),
}

/// State shared by the threads.
pub(super) trait Work: Send + Sync + 'static {
    /// Performs a request, as far as requested. Blocks.
    fn answer(&self, how: How, task: Task) -> Answered;

    /// Called after each request, and at least once per tick.
    fn tend(&self);
}

/// The threads. Dropping it waits for jobs in progress, and drops queued ones, whose answers are no
/// longer wanted.
pub(super) struct Workers {
    /// `None` only while it is dropped. Unbounded: each core has no more requests at a time than
    /// slots, and the number of cores is unknown when the threads start.
    jobs: Option<Sender<Job>>,
    is_stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts this many threads.
    pub(super) fn start(work: &Arc<impl Work>, threads: usize) -> io::Result<Self> {
        let (jobs, queued) = channel();
        let (queued, is_stopped) = (Arc::new(Mutex::new(queued)), Arc::default());
        let start = |_| {
            let (work, queued) = (Arc::clone(work), Arc::clone(&queued));
            let is_stopped = Arc::clone(&is_stopped);
            let run = move || run(&*work, &queued, &is_stopped);
            Builder::new().name("spin-nfs-files".to_owned()).spawn(run)
        };
        let threads = (0..threads.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), is_stopped, threads })
    }

    /// Starts no further jobs: queued and later ones are dropped without an answer. Does not block.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Queues a job without blocking. False if the threads have stopped.
    pub(super) fn ask(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(work: &impl Work, queued: &Mutex<Receiver<Job>>, is_stopped: &AtomicBool) {
    loop {
        // A separate statement, so that the lock is not held during the job.
        let job = lock(queued).recv_timeout(TICK);
        match job {
            Ok(_) if is_stopped.load(Ordering::Acquire) => continue,
            Ok(job) => do_job(work, job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let _ = contained(|| {
            work.tend();
            Ok(())
        });
    }
}

fn do_job(work: &impl Work, Job { number, task, how, answers }: Job) {
    let outcome = contained(|| Ok(work.answer(how, task)))
        .unwrap_or_else(|status| Answered::Done(failed(status, None)));
    // A core that has stopped meanwhile needs no answer.
    let _ = answers.try_send(Answer { number, outcome });
}

impl Work for Tree {
    fn answer(&self, how: How, task: Task) -> Answered {
        match how {
            How::Prepare => self.prepare_or_perform(task, |_, _| false),
            How::PrepareOrTakePrivileges => self.prepare_or_perform(task, |node, task| {
                node.stat().is_ok_and(|present| self.takes_privileges(task, &present))
            }),
            How::Perform => Answered::Done(self.perform(task)),
        }
    }

    fn tend(&self) {
        Self::tend(self);
    }
}

impl Tree {
    fn prepare_or_perform(
        &self,
        task: Task,
        needs_thread: impl FnOnce(&Node, &Task) -> bool,
    ) -> Answered {
        match self.prepare(&task) {
            Ok(node) if needs_thread(&node, &task) => Answered::Done(self.perform(task)),
            Ok(node) => Answered::Ready(node, task),
            Err(status) => Answered::Done(failed(status, self.attributes_if_held(&task.key))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::transfer::Operation;
    use super::*;
    use crate::nfs::protocol::{Nfsstat3, WccData};
    use crate::nfs::server::exports::Caller;
    use crate::nfs::server::file_system::FileKey;
    use spinrpc::Groups;
    use std::sync::mpsc::sync_channel;

    /// Does jobs with the work assigned to their number, and reports them.
    struct Planted<F> {
        work: F,
        done: Mutex<Vec<u32>>,
    }

    impl<F: Fn(u32) + Send + Sync + 'static> Planted<F> {
        fn new(work: F) -> Arc<Self> {
            Arc::new(Self { work, done: Mutex::default() })
        }
    }

    impl<F: Fn(u32) + Send + Sync + 'static> Work for Planted<F> {
        fn answer(&self, _: How, task: Task) -> Answered {
            (self.work)(task.caller.uid);
            lock(&self.done).push(task.caller.uid);
            Answered::Done(Done::Committed { wcc: WccData::default() })
        }

        fn tend(&self) {}
    }

    fn job(number: u32, answers: &SyncSender<Answer>) -> Job {
        let caller = Caller { uid: number, gid: 0, groups: Groups::default() };
        let task = Task { caller, key: FileKey::of(b"file"), operation: Operation::Commit };
        Job { number, task, how: How::Perform, answers: answers.clone() }
    }

    /// The first job, on the only thread, ends when `end` has started; the second one is queued.
    fn done_when_ended_by(end: impl FnOnce(Workers)) -> Vec<u32> {
        let (begin, begun) = channel();
        let end_began = Arc::new(Mutex::new(None::<Arc<AtomicBool>>));
        let sees = Arc::clone(&end_began);
        let planted = Planted::new(move |_| {
            begin.send(()).unwrap();
            while !lock(&sees).as_ref().is_some_and(|stopped| stopped.load(Ordering::Acquire)) {
                std::thread::yield_now();
            }
        });
        let workers = Workers::start(&planted, 1).unwrap();
        *lock(&end_began) = Some(Arc::clone(&workers.is_stopped));
        let (answers, _answered) = sync_channel(2);
        assert!(workers.ask(job(1, &answers)) && workers.ask(job(2, &answers)));
        begun.recv().unwrap();
        end(workers);
        lock(&planted.done).clone()
    }

    #[test]
    fn what_waits_for_a_thread_is_not_done_when_the_threads_are_dropped() {
        assert_eq!(done_when_ended_by(drop), [1]);
    }

    #[test]
    fn what_waits_for_a_thread_or_comes_is_not_done_once_they_are_stopped() {
        let stop_and_ask = |workers: Workers| {
            workers.stop();
            let (answers, answered) = sync_channel(1);
            assert!(workers.ask(job(3, &answers)));
            drop(answers);
            // It is over when the job is dropped.
            assert!(answered.recv().is_err());
        };
        assert_eq!(done_when_ended_by(stop_and_ask), [1]);
    }

    #[test]
    fn a_panic_fails_its_own_request_and_the_thread_goes_on() {
        let planted = Planted::new(|number| assert_ne!(number, 1, "planted"));
        let workers = Workers::start(&planted, 1).unwrap();
        let (answers, answered) = sync_channel(2);
        assert!(workers.ask(job(1, &answers)) && workers.ask(job(2, &answers)));
        let Answer { number: 1, outcome: Answered::Done(Done::Failed { status, .. }) } =
            answered.recv().unwrap()
        else {
            panic!("the first was to fail")
        };
        assert_eq!(status, Nfsstat3::Nfs3errServerfault);
        let second = answered.recv().unwrap();
        assert!(matches!(second.outcome, Answered::Done(Done::Committed { .. })));
    }
}
