//! A call that has not ended and its answer, as a thread holds them.

use super::call::{HandleCall, Waiter, give_back};
use super::pool::Pool;
use crate::api::codec::Decoder;
use crate::api::errors::CallError;
use crate::api::owned_reply::Arrived;
use crate::mem::{Bulk, ExposedBulk};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// Looks of a thread for the answer before it sleeps: some tens of microseconds, in which a server on a busy core
/// has answered.
const LOOKS: u32 = 2_000;

/// A call that has not ended: a [`Future`] of its [`Answer`], for any executor, or to be waited for. Dropped before the answer
/// is there, it cancels the call, as [`Client::cancel`](crate::Client::cancel) does: the server may still execute
/// it, and its buffers stay with the connection until the server has answered.
#[must_use = "dropped, it cancels the call"]
pub struct PendingCall {
    waiter: Option<Arc<Waiter>>,
    /// A waker was left with the waiter.
    has_waker: bool,
    /// The core was parked when the call was started: the answer takes longer than a look is worth, and this thread's
    /// CPU may be the one that the core is to run on.
    was_parked: bool,
    /// Its deadline, if no core ran that would see to it when the call was started.
    end_without_core: Option<Instant>,
}

impl PendingCall {
    pub(super) fn new(
        waiter: Arc<Waiter>,
        was_parked: bool,
        end_without_core: Option<Instant>,
    ) -> Self {
        Self { waiter: Some(waiter), has_waker: false, was_parked, end_without_core }
    }

    /// Blocks the thread until the answer is there, or the call's deadline has passed. The core sees to the deadline;
    /// while none runs yet, this function does.
    ///
    /// # Errors
    /// [`CallError`] gives the reason why the call failed, and whether to try again.
    /// [`CallError::Cancelled`] on the thread of the call's own core, or on the one that ends its
    /// calls after it: that thread would wait for itself, unless the answer is there already.
    pub fn wait(mut self) -> Result<Answer, CallError> {
        let waits_for_itself = |pool: &Pool| pool.is_core_here() || pool.is_refused_here();
        if self.waiter.as_ref().is_some_and(|waiter| waits_for_itself(&waiter.pool)) {
            return self.take().unwrap_or(Err(CallError::Cancelled));
        }
        let looks = if self.was_parked { 1 } else { LOOKS };
        for _ in 0..looks {
            if let Some(answer) = self.take() {
                return answer;
            }
            std::hint::spin_loop();
        }
        PARKER.with(|waker| {
            let mut context = Context::from_waker(waker);
            loop {
                if let Poll::Ready(answer) = Pin::new(&mut self).poll(&mut context) {
                    return answer;
                }
                self.park()?;
            }
        })
    }

    fn park(&self) -> Result<(), CallError> {
        let has_core = self.waiter.as_ref().is_some_and(|waiter| waiter.pool.has_core());
        let Some(end) = self.end_without_core.filter(|_| !has_core) else {
            thread::park();
            return Ok(());
        };
        let left = end.saturating_duration_since(Instant::now());
        // Not "not executed": the core may start right now.
        if left.is_zero() {
            return Err(CallError::TimedOut);
        }
        thread::park_timeout(left);
        Ok(())
    }

    /// The answer, if it is there. It can be taken once.
    fn take(&mut self) -> Option<Result<Answer, CallError>> {
        let waiter = self.waiter.as_ref()?;
        let call = waiter.answer.take()?;
        let waiter = self.leave()?;
        Some(Answer::of(call, waiter))
    }

    /// Parts with the waiter, before others may use it. A waker that was registered too late would stay there.
    fn leave(&mut self) -> Option<Arc<Waiter>> {
        let waiter = self.waiter.take()?;
        if self.has_waker {
            drop(waiter.waker.take());
        }
        Some(waiter)
    }
}

impl Future for PendingCall {
    type Output = Result<Answer, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(answer) = self.take() {
            return Poll::Ready(answer);
        }
        let Self { waiter, has_waker, .. } = &mut *self;
        let Some(waiter) = waiter else { return Poll::Ready(Err(CallError::Cancelled)) };
        *has_waker = true;
        waiter.waker.register(context.waker());
        // It may have come between the look and the registration.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some(waiter) = self.leave() else { return };
        match waiter.answer.abandon() {
            Some(call) => give_back(call),
            None => waiter.pool.order_cancel(waiter.number),
        }
    }
}

impl std::fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = self.waiter.as_ref().map(|waiter| waiter.number);
        f.debug_struct("PendingCall").field("number", &number).finish()
    }
}

/// A successful answer, as long as it is kept. It counts as one of the core's calls in flight
/// (`Config::handle_calls`) until it is dropped.
pub struct Answer {
    call: Option<Box<HandleCall>>,
    /// The call's own: the memory goes back to its pool.
    waiter: Arc<Waiter>,
}

impl Answer {
    pub(super) fn of(call: Box<HandleCall>, waiter: Arc<Waiter>) -> Result<Self, CallError> {
        let mut answer = Self { call: Some(call), waiter };
        match answer.arrived().map(Arrived::status) {
            Some(Err(error)) => Err(error),
            _ => Ok(answer),
        }
    }

    fn arrived(&mut self) -> Option<&mut Arrived> {
        self.call.as_mut()?.arrived()
    }

    /// The results. Data items that were placed or fetched come with the first reader.
    pub fn results(&mut self) -> Decoder<'_> {
        self.call.as_mut().map_or_else(Decoder::exhausted, |call| call.results())
    }

    /// The next result buffer that no reader has been asked for: its length says how many bytes were placed.
    pub fn take_result(&mut self) -> Option<Bulk> {
        self.arrived()?.take_result()
    }

    /// As [`Answer::take_result`], for buffers of either kind.
    pub fn take_exposed_result(&mut self) -> Option<ExposedBulk> {
        self.arrived()?.take_exposed_result()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.waiter.give_back(call);
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

struct Parker(Thread);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static PARKER: Waker = Waker::from(Arc::new(Parker(thread::current())));
}
