//! Jobs for the control thread, from any thread.

use super::super::memory::LinkMemory;
use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the thread can be told. There are few per connection, each once.
pub(in super::super) enum Job {
    /// The receives are posted: accept.
    Accept(u64),
    /// End a connection.
    Disconnect(u64),
    /// Destroy a connection's queue pair.
    Destroy(u64),
    /// The core is done with a connection; here is its memory.
    Dismantle(u64, Box<LinkMemory>),
}

/// A queue and a descriptor that wakes the thread.
pub(super) struct Mailbox {
    jobs: SegQueue<Job>,
    event: OwnedFd,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { jobs: SegQueue::new(), event })
    }

    pub(super) fn post(&self, job: Job) {
        self.jobs.push(job);
        self.wake();
    }

    pub(super) fn take(&self) -> Option<Job> {
        self.jobs.pop()
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn clear_event(&self) {
        // Empty already is as good.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    pub(super) fn wake(&self) {
        // A full counter wakes, too.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}
