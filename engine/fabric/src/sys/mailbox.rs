//! Control threads, work that any thread leaves for them, and what they wait for besides.
//!
//! The drivers have one each. Nothing here is for the data path.

use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crossbeam::queue::SegQueue;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Work for a thread with the state `S`. There is little per connection, each once, or a few times.
type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

pub(crate) struct Mailbox<S> {
    jobs: SegQueue<Job<S>>,
    event: OwnedFd,
    stopped: AtomicBool,
    /// The thread has ended, perhaps by a panic: what is left from now on is dropped.
    closed: AtomicBool,
}

impl<S> Mailbox<S> {
    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let [stopped, closed] = [(); 2].map(|()| AtomicBool::new(false));
        Ok(Self { jobs: SegQueue::new(), event, stopped, closed })
    }

    /// Does not block.
    pub(crate) fn leave(&self, job: impl FnOnce(&mut S) + Send + 'static) {
        self.jobs.push(Box::new(job));
        // Pairs with the fence of `close`: one of the two sees what the other has done.
        fence(Ordering::SeqCst);
        match self.closed.load(Ordering::Relaxed) {
            true => self.drop_jobs(),
            false => self.wake(),
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.drop_jobs();
    }

    /// Threads that wait for them notice by the other end of a channel.
    fn drop_jobs(&self) {
        while self.jobs.pop().is_some() {}
    }

    pub(crate) fn take(&self) -> Option<Job<S>> {
        self.jobs.pop()
    }

    /// Work that was left before is there still.
    fn stop(&self) {
        // Release pairs with the Acquire of `is_stopped`: the reader sees what was left before.
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Makes the descriptor readable for work that comes from now on.
    pub(crate) fn clear_event(&self) {
        // Empty already is as good.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    fn wake(&self) {
        // A full counter wakes, too.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl<S> AsFd for Mailbox<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl<S> fmt::Debug for Mailbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.jobs.len()).finish_non_exhaustive()
    }
}

/// Handle on a control thread, which ends with the last one.
pub(crate) struct Handle<S> {
    name: &'static str,
    pub(crate) mailbox: Arc<Mailbox<S>>,
    thread: OnceLock<JoinHandle<()>>,
}

impl<S: 'static> Handle<S> {
    pub(crate) fn new(name: &'static str) -> io::Result<Arc<Self>> {
        let mailbox = Arc::new(Mailbox::new()?);
        Ok(Arc::new(Self { name, mailbox, thread: OnceLock::new() }))
    }

    pub(crate) fn run(&self, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let over = Over(Arc::clone(&self.mailbox));
        let thread = thread::Builder::new().name(self.name.into()).spawn(|| {
            let _over = over;
            body();
        })?;
        // It runs once.
        let _ = self.thread.set(thread);
        Ok(())
    }

    /// Has the thread `end` something with this number when the result is dropped, which waits for that.
    pub(crate) fn guard(self: &Arc<Self>, number: u64, end: fn(&mut S, u64)) -> Guard<S> {
        Guard { thread: Arc::clone(self), number, end }
    }
}

struct Over<S>(Arc<Mailbox<S>>);

impl<S> Drop for Over<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<S> fmt::Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S> Drop for Handle<S> {
    /// Waits for the end of the thread, unless that is the calling one: the last handle may be an acceptor's. A panic of the
    /// thread has been reported by the hook.
    fn drop(&mut self) {
        self.mailbox.stop();
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Something that a control thread has until this is dropped, such as a listener, whose address is free then.
pub(crate) struct Guard<S: 'static> {
    thread: Arc<Handle<S>>,
    number: u64,
    end: fn(&mut S, u64),
}

impl<S: 'static> Drop for Guard<S> {
    fn drop(&mut self) {
        let (done, wait) = mpsc::channel();
        let (number, end) = (self.number, self.end);
        self.thread.mailbox.leave(move |state| {
            end(state, number);
            let _ = done.send(());
        });
        let ending = self.thread.thread.get().map(|it| it.thread().id());
        if ending != Some(thread::current().id()) {
            // An error means that the thread is gone, and all that it had.
            let _ = wait.recv();
        }
    }
}

/// Waits for the first event, until `deadline` at the longest; a signal ends the wait early.
pub(crate) fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, deadline: Option<Instant>) {
    let timeout = deadline.map(|deadline| {
        let left = deadline.saturating_duration_since(Instant::now());
        Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
    });
    events.clear();
    // Nothing but a signal ends the wait early.
    let _ = epoll::wait(epoll, spare_capacity(events), timeout.as_ref());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Let the thread panic. Expect the end of what it had not to be waited for, left before or after that.
    #[test]
    fn nobody_waits_for_a_thread_that_has_panicked() {
        let handle = Handle::<u32>::new("panics").unwrap();
        let early = handle.guard(1, |_, _| {});
        let mailbox = Arc::clone(&handle.mailbox);
        let body = move || {
            while mailbox.take().is_none() {
                thread::yield_now();
            }
            // Without a word from the hook.
            std::panic::resume_unwind(Box::new("of a job"));
        };
        handle.run(body).unwrap();
        drop(early);
        drop(handle.guard(2, |_, _| {}));
    }
}
