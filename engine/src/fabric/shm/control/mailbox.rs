//! Commands for the control thread, from any thread.

use super::super::endpoint::Link;
use super::{Listener, Watch};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Messages to the thread.
pub(super) enum Command {
    /// Accept connections, under this token.
    Listen(u64, Box<Listener>),
    /// Watch over an established connection.
    Watch(u64, Box<Watch>),
    /// Forget a token, and say so.
    Remove(u64, Option<Sender<()>>),
    /// Give up a connection's memory, which takes long.
    Retire(Box<Link>),
}

/// A queue and a descriptor that wakes the thread.
pub(in super::super) struct Mailbox {
    commands: SegQueue<Command>,
    event: OwnedFd,
    stopped: AtomicBool,
    next_token: AtomicU64,
}

impl Mailbox {
    /// The token of the mailbox itself.
    pub(super) const TOKEN: u64 = 0;

    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            commands: SegQueue::new(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopped: AtomicBool::new(false),
            next_token: AtomicU64::new(Self::TOKEN + 1),
        })
    }

    /// A token of no request.
    pub(in super::super) fn next_token(&self) -> u64 {
        // Relaxed: only that it is unique matters.
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Has an established connection watched, as long as the lease lives.
    pub(in super::super) fn watch(self: &Arc<Self>, watch: Watch) -> WatchLease {
        let token = self.next_token();
        self.post(Command::Watch(token, Box::new(watch)));
        WatchLease { token, mailbox: Arc::clone(self) }
    }

    /// Has a connection's memory given up elsewhere.
    pub(in super::super) fn retire(&self, link: Link) {
        self.post(Command::Retire(Box::new(link)));
    }

    pub(super) fn post(&self, command: Command) {
        self.commands.push(command);
        // SeqCst pairs with that of `stop`: either the thread is told, or we see that it is gone.
        if self.stopped.load(Ordering::SeqCst) {
            self.discard();
        } else {
            self.wake();
        }
    }

    pub(super) fn take(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// Ends the thread. What is left, and what comes later, is dropped.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
        self.discard();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn clear_event(&self) {
        let mut count = [0; 8];
        // Empty already is as good.
        let _ = rustix::io::read(&self.event, &mut count);
    }

    fn wake(&self) {
        // A full counter wakes, too.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn discard(&self) {
        while let Some(command) = self.take() {
            drop(command);
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("waiting", &self.commands.len()).finish_non_exhaustive()
    }
}

/// A watch over a peer; dropping it closes the socket to it.
#[derive(Debug)]
pub(in super::super) struct WatchLease {
    token: u64,
    mailbox: Arc<Mailbox>,
}

impl Drop for WatchLease {
    fn drop(&mut self) {
        self.mailbox.post(Command::Remove(self.token, None));
    }
}
