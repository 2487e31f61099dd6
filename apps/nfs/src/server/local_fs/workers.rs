//! Blocking operations of cores, on threads: opening files, closing them, and, without a ring, reading
//! and writing them.

use super::node::Node;
use super::transfer::{Task, failed};
use super::tree::Tree;
use crate::server::catch_panic::contained;
use crate::server::file_system::Done;
use crate::server::nodes::TICK;
use crate::server::threads::{Threads, Work};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// The threads of a directory. Their queue is unbounded: each core has no more requests at a time than
/// slots, and the number of cores is unknown when the threads start.
pub(super) type Workers = Threads<Job>;

pub(super) struct Job {
    /// The core's number, for its answer.
    pub(super) number: u32,
    pub(super) task: Task,
    pub(super) how: How,
    /// Has room for answers to all requests that the core has at a time.
    pub(super) answers: SyncSender<(u32, Answered)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Open the file, and leave the rest to the core's ring.
    Prepare,
    /// Also performs a write that clears mode bits: the ring would write as the server.
    PrepareOrTakePrivileges,
    Perform,
}

pub(super) enum Answered {
    /// The file is open, and the caller has the right.
    Ready(Arc<Node>, Task),
    Done(Done),
}

impl Work<Job> for Tree {
    const TICK: Option<Duration> = Some(TICK);

    /// No caller waits for the answers, jobs hold memory of cores, and files that were written must
    /// still be synced and closed.
    const DRAINS: bool = true;

    fn perform(&self, _: usize, Job { number, task, how, answers }: Job) {
        let outcome = in_any_case(|| self.answer(how, task));
        // A core that has stopped meanwhile needs no answer.
        let _ = answers.try_send((number, outcome));
    }

    fn tend(&self) {
        Self::tend(self);
    }
}

/// The answer to a request: its failure if `answer` panics.
fn in_any_case(answer: impl FnOnce() -> Answered) -> Answered {
    contained(|| Ok(answer())).unwrap_or_else(|status| Answered::Done(failed(status, None)))
}

impl Tree {
    /// Performs a request, as far as requested. Blocks.
    fn answer(&self, how: How, task: Task) -> Answered {
        let node = match self.prepare(&task) {
            Ok(node) => node,
            Err(status) => {
                return Answered::Done(failed(status, self.attributes_if_held(&task.key)));
            }
        };
        let takes = |present| self.takes_privileges(&task, &present);
        let is_all = match how {
            How::Prepare => false,
            How::PrepareOrTakePrivileges => node.stat().is_ok_and(takes),
            How::Perform => true,
        };
        if is_all { Answered::Done(self.perform(node, task)) } else { Answered::Ready(node, task) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Nfsstat3;

    #[test]
    fn a_panic_fails_its_request() {
        let Answered::Done(Done::Failed { status, .. }) = in_any_case(|| panic!("planted")) else {
            panic!("the request was to fail")
        };
        assert_eq!(status, Nfsstat3::Nfs3errServerfault);
    }
}
