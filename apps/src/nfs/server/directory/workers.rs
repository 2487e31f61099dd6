//! Threads that do for the cores what may wait: opening files, closing them, and, where there is no
//! ring, reading and writing them.

use super::transfer::Task;
use super::tree::{TICK, Tree};
use crate::nfs::server::directory::node::Node;
use crate::nfs::server::file_system::Done;
use spinrpc::sync::lock;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

/// What a core asks for.
pub(super) struct Job {
    /// The core's own, for its answer.
    pub(super) number: u32,
    pub(super) task: Task,
    pub(super) how: How,
    /// Has room for an answer to all that the core asks for at a time.
    pub(super) answers: SyncSender<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Open the file, and leave the rest to the core's ring unless that cannot do it.
    Prepare,
    /// Do all of it.
    Perform,
}

pub(super) struct Answer {
    pub(super) number: u32,
    pub(super) outcome: Answered,
}

pub(super) enum Answered {
    /// The file is open, and the caller may.
    Ready(Arc<Node>, Task),
    Done(Done),
}

/// The threads; they end when it is dropped, which waits for what they are doing.
pub(super) struct Workers {
    /// None only while it is dropped. Has no bound of its own: each core asks for no more at a time than
    /// it has slots, and how many cores there will be is not known when the threads start.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts so many threads.
    pub(super) fn start(tree: &Arc<Tree>, threads: usize) -> io::Result<Self> {
        let (jobs, queued) = channel();
        let queued = Arc::new(Mutex::new(queued));
        let start = |_| {
            let (tree, queued) = (Arc::clone(tree), Arc::clone(&queued));
            Builder::new().name("spin-nfs-files".to_owned()).spawn(move || work(&tree, &queued))
        };
        let threads = (0..threads.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Queues a job, without waiting. False if there are no threads any more.
    pub(super) fn ask(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

fn work(tree: &Arc<Tree>, queued: &Mutex<Receiver<Job>>) {
    loop {
        // A statement of its own: the lock is not held during the job.
        let job = lock(queued).recv_timeout(TICK);
        match job {
            Ok(job) => do_job(tree, job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        tree.tend();
    }
}

fn do_job(tree: &Tree, job: Job) {
    let outcome = match job.how {
        How::Prepare => tree.prepare_or_perform(job.task),
        How::Perform => Answered::Done(tree.perform(job.task)),
    };
    // A core that has ended meanwhile needs no answer.
    let _ = job.answers.try_send(Answer { number: job.number, outcome });
}

impl Tree {
    fn prepare_or_perform(&self, task: Task) -> Answered {
        match self.prepare(&task) {
            Ok(node) if self.needs_thread(&node, &task) => Answered::Done(self.perform(task)),
            Ok(node) => Answered::Ready(node, task),
            Err(status) => {
                Answered::Done(super::transfer::failed(status, self.attributes_if_held(&task.key)))
            }
        }
    }

    fn needs_thread(&self, node: &Node, task: &Task) -> bool {
        let is_root = self.identity.is_root(&task.caller);
        node.stat().is_ok_and(|present| task.operation.takes_privileges(&present, is_root))
    }
}
