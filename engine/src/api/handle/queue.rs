//! Answers for a thread that waits for many things at once, by its own event loop.

use super::answer::Answer;
use super::call::{Destination, HandleCall, give_back};
use crate::api::client::Token;
use crate::api::errors::CallError;
use crate::reactor::Backpressure;
use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::box_queue::{BoxQueue, Item};
use crate::sync::cache_lines::assert_lines;
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
pub struct AnswerQueue(Arc<Owned>);

/// Shared by the clones of a queue: with the last of them it ends.
#[derive(Debug)]
struct Owned(Arc<Queued>);

/// Shared by the clones of a queue and its calls, those among its answers, too.
pub(super) struct Queued {
    answers: BoxQueue<HandleCall>,
    places: usize,
    /// Answers that have come or will come; those that were not taken are never more than there are places. Threads that call
    /// write it; cores do not.
    expected: CachePadded<AtomicU64>,
    event: OwnedFd,
    is_armed: AtomicBool,
    /// No thread has it any more: answers go back.
    is_closed: AtomicBool,
}

// Cores push answers, and threads that make calls count and take them.
assert_lines!(Queued: answers, expected);

impl AnswerQueue {
    /// A queue for at most `calls` calls at a time, at least one; those whose answers have not been taken count.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn new(calls: usize) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let places = calls.max(1);
        let (answers, expected) = (BoxQueue::new(places), CachePadded::default());
        let [is_armed, is_closed] = [(); 2].map(|()| AtomicBool::new(false));
        let queued = Queued { answers, places, expected, event, is_armed, is_closed };
        Ok(Self(Arc::new(Owned(Arc::new(queued)))))
    }

    /// The answer that came first, with the token of its call. Never blocks.
    pub fn next(&self) -> Option<(Token, Result<Answer, CallError>)> {
        let queued = &*self.0.0;
        let call = queued.take()?;
        let token = match call.to {
            Destination::Queue(_, token) | Destination::Core(_, token) => token,
            Destination::Holder => Token(0),
        };
        let waiter = Arc::clone(&call.waiter);
        Some((token, Answer::of(call, waiter)))
    }

    /// Arms the descriptor to become readable with the next answer. `false` if there is one
    /// already: then the descriptor is unchanged, and [`AnswerQueue::next`] has the answer. One
    /// system call.
    pub fn arm(&self) -> bool {
        let queued = &*self.0.0;
        let mut count = [0; 8];
        // Clears the count that ended an earlier wait; an empty counter is not an error here.
        let _ = rustix::io::read(&queued.event, &mut count);
        queued.is_armed.store(true, Ordering::Relaxed);
        // With that of `push_all`: either it sees the queue armed, or this sees the answer.
        fence(Ordering::SeqCst);
        let is_empty = queued.answers.is_empty();
        if !is_empty {
            queued.is_armed.store(false, Ordering::Relaxed);
        }
        is_empty
    }

    pub(super) fn reserve(&self) -> Result<QueuePlace, Backpressure> {
        let queued = &self.0.0;
        // Relaxed: it is only counted.
        let expected = queued.expected.fetch_add(1, Ordering::Relaxed);
        let place = QueuePlace(Some(Arc::clone(queued)));
        // What this thread has seen taken is seen, through its order, by the core that answers. With an older head the queue
        // would seem full there, and the answer would be lost.
        match expected.saturating_sub(queued.answers.taken()) < queued.places as u64 {
            true => Ok(place),
            false => Err(Backpressure::AnswerQueueFull),
        }
    }
}

impl AsFd for AnswerQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.event.as_fd()
    }
}

/// Answers hold their queue, which holds them: without this neither would ever go.
impl Drop for Owned {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
        // With that of `push_all`: either it sees the queue closed, or this finds the answer.
        fence(Ordering::SeqCst);
        self.0.empty();
    }
}

impl Queued {
    fn take(&self) -> Option<Box<HandleCall>> {
        match self.answers.pop_one() {
            Some(Item::Main(call)) => Some(call),
            _ => None,
        }
    }

    /// Puts an answer in, for which there is a place.
    pub(super) fn push(&self, call: Box<HandleCall>) {
        self.push_all(std::iter::once(call));
    }

    /// The same for many.
    pub(super) fn push_all(&self, mut calls: impl ExactSizeIterator<Item = Box<HandleCall>>) {
        self.answers.push_all(&mut calls);
        calls.for_each(give_back);
        fence(Ordering::SeqCst);
        if self.is_armed.load(Ordering::Relaxed) && self.is_armed.swap(false, Ordering::Relaxed) {
            // A counter that is full is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        if self.is_closed.load(Ordering::Relaxed) {
            self.empty();
        }
    }

    fn empty(&self) {
        while let Some(call) = self.take() {
            give_back(call);
        }
    }
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queued").field("places", &self.places).finish_non_exhaustive()
    }
}

/// A place for an answer, until its call is on its way.
pub(super) struct QueuePlace(Option<Arc<Queued>>);

impl QueuePlace {
    /// The call is written, and will be answered.
    pub(super) fn destination(mut self, token: Token) -> Destination {
        self.0.take().map_or(Destination::Holder, |queue| Destination::Queue(queue, token))
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            // Relaxed: no answer has been in it.
            queue.expected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
