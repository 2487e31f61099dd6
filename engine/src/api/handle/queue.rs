//! Answers for a thread that waits for many things at once, by its own event loop.

use super::answer::Answer;
use super::call::{Destination, HandleCall, give_back};
use crate::api::client::Token;
use crate::api::errors::CallError;
use crate::reactor::Backpressure;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crossbeam::queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A queue of answers with a descriptor that poll, epoll and io_uring can watch. Any thread may take answers; one at
/// a time may wait.
///
/// The loop of a thread that waits:
///
/// ```
/// use spinrpc::AnswerQueue;
///
/// let queue = AnswerQueue::new(64)?;
/// // Calls are started by `ClientHandle::start_to_queue`.
/// while let Some((token, answer)) = queue.next() {
///     println!("{token:?}: {answer:?}");
/// }
/// if queue.arm() {
///     // Nothing has come meanwhile: wait until `queue.as_fd()` is readable, then take answers again.
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AnswerQueue(Arc<Queued>);

/// Shared by the clones of a queue and the cores.
pub(super) struct Queued {
    answers: ArrayQueue<(Token, Box<HandleCall>)>,
    /// Answers that are there or will come: never more than there are places.
    expected: AtomicUsize,
    event: OwnedFd,
    is_armed: AtomicBool,
}

impl AnswerQueue {
    /// A queue for at most `calls` calls at a time, at least one; those whose answers have not been taken count.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn new(calls: usize) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (answers, expected) = (ArrayQueue::new(calls.max(1)), AtomicUsize::new(0));
        Ok(Self(Arc::new(Queued { answers, expected, event, is_armed: AtomicBool::new(false) })))
    }

    /// The answer that came first, with the token of its call. Never blocks.
    pub fn next(&self) -> Option<(Token, Result<Answer, CallError>)> {
        let (token, call) = self.0.answers.pop()?;
        // Relaxed: it bounds, and orders nothing.
        self.0.expected.fetch_sub(1, Ordering::Relaxed);
        Some((token, Answer::of(call)))
    }

    /// Has the descriptor become readable with the next answer. `false` if there is one already: then it stays as it
    /// is, and [`AnswerQueue::next`] has the answer. One system call.
    pub fn arm(&self) -> bool {
        let mut count = [0; 8];
        // What a wait before was ended with; an empty counter is no error here.
        let _ = rustix::io::read(&self.0.event, &mut count);
        self.0.is_armed.store(true, Ordering::Relaxed);
        // With that of `push`: either it sees the queue armed, or this sees the answer.
        fence(Ordering::SeqCst);
        let is_empty = self.0.answers.is_empty();
        if !is_empty {
            self.0.is_armed.store(false, Ordering::Relaxed);
        }
        is_empty
    }

    /// Takes a place for an answer.
    pub(super) fn reserve(&self) -> Result<Place, Backpressure> {
        let places = self.0.answers.capacity();
        let taken = self.0.expected.fetch_add(1, Ordering::Relaxed);
        let place = Place(Some(Arc::clone(&self.0)));
        if taken < places { Ok(place) } else { Err(Backpressure::TooManyCalls) }
    }
}

impl AsFd for AnswerQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl Queued {
    /// Puts an answer in, for which there is a place.
    pub(super) fn push(&self, token: Token, call: Box<HandleCall>) {
        if let Err((_, call)) = self.answers.push((token, call)) {
            return give_back(call);
        }
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::Relaxed) {
            // A counter that is full is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        while let Some((_, call)) = self.answers.pop() {
            give_back(call);
        }
    }
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queued").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

/// A place for an answer, until its call is on its way.
pub(super) struct Place(Option<Arc<Queued>>);

impl Place {
    /// The call is written, and will be answered.
    pub(super) fn destination(mut self, token: Token) -> Destination {
        self.0.take().map_or(Destination::Holder, |queue| Destination::Queue(queue, token))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.expected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
