//! Jobs for the control thread, from any thread.

use super::super::link::Remains;
use super::listener::{ListenRequest, StopListening};
use super::machine::Failure;
use super::requests::ConnectRequest;
use super::routes::DeviceEvent;
use crate::sync::atomic::{AtomicBool, Ordering};
use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Jobs for the thread. There are few per connection, each once.
pub(in super::super) enum Job {
    /// Make a connection.
    Connect(Box<ConnectRequest>),
    /// Accept connections.
    Listen(Box<ListenRequest>),
    /// Accept no more.
    StopListening(StopListening),
    /// The receives of a connection are posted: answer its request.
    Accept(u64),
    /// End a connection.
    Disconnect(u64),
    /// Destroy a connection's queue pair.
    Destroy(u64),
    /// The core is done with a connection; these are the remaining objects.
    Dismantle(u64, Box<Remains>),
    /// The request for a connection could not be sent.
    RequestFailed(u64, Failure),
    /// A device says something of a connection.
    Device(u64, DeviceEvent),
}

/// A queue and a descriptor that wakes the thread.
pub(in super::super) struct Mailbox {
    jobs: SegQueue<Job>,
    event: OwnedFd,
    stopped: AtomicBool,
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { jobs: SegQueue::new(), event, stopped: AtomicBool::new(false) })
    }

    pub(super) fn post(&self, job: Job) {
        self.jobs.push(job);
        self.wake();
    }

    pub(super) fn take(&self) -> Option<Job> {
        self.jobs.pop()
    }

    /// Ends the thread when it has done all jobs in the mailbox.
    pub(super) fn stop(&self) {
        // Release pairs with the Acquire below: jobs posted before are seen.
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn clear_event(&self) {
        // Empty already is as good.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn wake(&self) {
        // A full counter wakes, too.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}
