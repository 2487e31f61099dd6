//! Letters for a control thread, from any thread, and what the thread waits for besides.
//!
//! The drivers' control threads have one each. Nothing here is for the data path.

use crate::sync::atomic::{AtomicBool, Ordering};
use crossbeam::queue::SegQueue;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A queue, and a descriptor that is readable when its reader has to look at it.
pub struct Mailbox<T> {
    letters: SegQueue<T>,
    event: OwnedFd,
    stopped: AtomicBool,
}

impl<T> Mailbox<T> {
    /// An empty one.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { letters: SegQueue::new(), event, stopped: AtomicBool::new(false) })
    }

    /// Leaves a letter, and wakes the reader. Returns false if that was told to stop: then the letter may stay.
    pub fn post(&self, letter: T) -> bool {
        self.letters.push(letter);
        self.wake();
        // SeqCst pairs with that of `stop`: either the reader is told, or we see that it is gone.
        !self.stopped.load(Ordering::SeqCst)
    }

    pub fn take(&self) -> Option<T> {
        self.letters.pop()
    }

    /// Tells the reader to stop. Letters that were posted before are there still.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Returns whether the reader was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Makes the descriptor readable for letters that come from now on.
    pub fn clear_event(&self) {
        // Empty already is as good.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn wake(&self) {
        // A full counter wakes, too.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.letters.len()).finish_non_exhaustive()
    }
}

/// Fills `events`, as far as its capacity goes, with those of the descriptors in `epoll`. Waits for the first one, until
/// `deadline` at the longest; a signal ends the wait early.
pub fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, deadline: Option<Instant>) {
    let timeout = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
    });
    events.clear();
    // Nothing but a signal ends the wait early.
    let _ = epoll::wait(epoll, spare_capacity(events), timeout.as_ref());
}

/// Waits for the end of a thread that was told to stop, unless it is the calling one: the last handle of a control thread
/// may be an acceptor's. A panic of the thread has been reported by the hook.
pub fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
        let _ = thread.join();
    }
}
