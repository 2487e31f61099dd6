//! Tasks that wait for memory of a call, because as many calls are in flight as a core takes.

use super::pool::{CallGuard, Pool};
use crate::reactor::Backpressure;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future of memory for a call. Tasks get it in the order in which they began to wait, except that one which does not wait
/// yet may take what has just become free.
pub(super) struct Room<'a> {
    pool: &'a Pool,
    is_closed: &'a AtomicBool,
    number: Option<u64>,
}

impl<'a> Room<'a> {
    pub(super) fn new(pool: &'a Pool, is_closed: &'a AtomicBool) -> Self {
        Self { pool, is_closed, number: None }
    }

    /// Waits no more. One that was woken wakes the next: it takes nothing, or may have found other memory than that which it
    /// was woken for.
    fn leave(&mut self) {
        if let Some(number) = self.number.take()
            && !self.pool.waiting.remove(number)
        {
            self.pool.waiting.wake_one();
        }
    }

    fn claim(&mut self) -> Poll<Result<CallGuard, Backpressure>> {
        let claimed = match self.is_closed.load(Ordering::Relaxed) {
            true => Err(Backpressure::Down),
            false => CallGuard::new(self.pool),
        };
        if let Err(Backpressure::TooManyCalls) = claimed {
            return Poll::Pending;
        }
        self.leave();
        Poll::Ready(claimed)
    }
}

impl Future for Room<'_> {
    type Output = Result<CallGuard, Backpressure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let claimed = self.claim();
        if claimed.is_ready() {
            return claimed;
        }
        self.number = Some(self.pool.waiting.register(self.number, context.waker()));
        fence(Ordering::SeqCst);
        self.claim()
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
