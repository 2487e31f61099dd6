//! Calls as a stream, for a thread that is not a core: reverse calls of a client, or those of a server whose handlers
//! run elsewhere.

use super::owned_call::{CallMemory, IncomingCall};
use crate::api::call::Call;
use crate::api::service::Service;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use atomic_waker::AtomicWaker;
use crossbeam::queue::ArrayQueue;
use spinrpc_proto::ids::Procedure;
use spinrpc_proto::rpc::AcceptStatus;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Calls of a program, on their way to the thread or task that executes them:
/// [`Engine::serve_stream`](crate::Engine::serve_stream).
///
/// As a client's end of calls in reverse (RFC 8167), it receives the server's calls to the client,
/// in any runtime. Each [`IncomingCall`] is answered when its answer is there, on any thread, in
/// any order.
///
/// ```
/// use spinrpc::{AcceptStatus, CallStream, IncomingCall};
///
/// /// A task of any runtime, until all cores have ended.
/// async fn answer(mut calls: CallStream) {
///     while let Some(call) = calls.next().await {
///         let mut call: IncomingCall = call;
///         match call.args().u32() {
///             Ok(number) => call.reply(|results| results.u32(2 * number)),
///             Err(_) => call.reject(AcceptStatus::GarbageArgs),
///         }
///     }
/// }
/// ```
pub struct CallStream(Arc<Shared>);

/// Shared by the cores, the stream and the calls that were taken from it.
pub(super) struct Shared {
    calls: ArrayQueue<Box<CallMemory>>,
    /// Memory for calls; a new one is refused when there is none.
    free: ArrayQueue<Box<CallMemory>>,
    waker: AtomicWaker,
    cores: AtomicUsize,
    is_closed: AtomicBool,
}

impl Shared {
    /// Room for `calls_max` calls at a time, from this number of cores.
    fn new(calls_max: usize, cores: usize) -> Self {
        let calls_max = calls_max.max(1);
        let free = ArrayQueue::new(calls_max);
        (0..calls_max).for_each(|_| drop(free.push(Box::default())));
        let (calls, waker) = (ArrayQueue::new(calls_max), AtomicWaker::new());
        let (cores, is_closed) = (AtomicUsize::new(cores), AtomicBool::new(false));
        Self { calls, free, waker, cores, is_closed }
    }

    /// Gives the memory of a call back, which has been cleared.
    pub(super) fn give_back(&self, kept: Box<CallMemory>) {
        // There is room for all.
        drop(self.free.push(kept));
    }

    fn push(self: &Arc<Self>, kept: Box<CallMemory>) {
        // There is room for all.
        drop(self.calls.push(kept));
        // With that of `CallStream::drop`: either that finds the call, or this finds the stream closed.
        fence(Ordering::SeqCst);
        match self.is_closed.load(Ordering::Relaxed) {
            true => self.refuse_all(),
            false => self.waker.wake(),
        }
    }

    fn pop(self: &Arc<Self>) -> Option<IncomingCall> {
        self.calls.pop().map(|kept| IncomingCall::new(kept, Arc::clone(self)))
    }

    fn refuse_all(self: &Arc<Self>) {
        while let Some(call) = self.pop() {
            drop(call);
        }
    }

    fn has_ended(&self) -> bool {
        // Acquire pairs with the Release of the cores that end: their last calls are seen.
        self.cores.load(Ordering::Acquire) == 0
    }
}

impl CallStream {
    /// Takes the next call, if there is one. Never blocks.
    pub fn try_next(&mut self) -> Option<IncomingCall> {
        self.0.pop()
    }

    /// Takes the next call, or has the task woken when there is one. `None` when all cores have ended, or the engine has.
    /// As `poll_next` of the `Stream` trait of the crate `futures`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<IncomingCall>> {
        if let Some(call) = self.0.pop() {
            return Poll::Ready(Some(call));
        }
        self.0.waker.register(context.waker());
        // It may have come, or the engine ended, between the look and the registration.
        let has_ended = self.0.has_ended();
        match self.0.pop() {
            Some(call) => Poll::Ready(Some(call)),
            None if has_ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Waits for the next call; see [`CallStream::poll_next`]. Dropped while it waits, it loses no call.
    pub async fn next(&mut self) -> Option<IncomingCall> {
        poll_fn(|context| self.poll_next(context)).await
    }
}

/// Calls that were not taken, and those that come, are answered with SYSTEM_ERR.
impl Drop for CallStream {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.0.refuse_all();
        drop(self.0.waker.take());
    }
}

impl std::fmt::Debug for CallStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallStream").field("waiting", &self.0.calls.len()).finish_non_exhaustive()
    }
}

/// Makes the service of each core. Dropped with its engine, it ends the stream.
pub(in crate::api) struct Feeders(Arc<Shared>);

impl Feeders {
    pub(in crate::api) fn new(calls_max: usize, cores: usize) -> (Self, CallStream) {
        let shared = Arc::new(Shared::new(calls_max, cores));
        (Self(Arc::clone(&shared)), CallStream(shared))
    }

    pub(in crate::api) fn feeder(&self) -> impl Service + use<> {
        Feeder(Arc::clone(&self.0))
    }
}

impl Drop for Feeders {
    fn drop(&mut self) {
        self.0.cores.store(0, Ordering::Release);
        self.0.waker.wake();
    }
}

struct Feeder(Arc<Shared>);

impl Service for Feeder {
    fn call(&mut self, call: Call<'_>) {
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        let free = self.0.free.pop().filter(|_| !self.0.is_closed.load(Ordering::Relaxed));
        let Some(mut kept) = free else { return call.reject(AcceptStatus::SystemErr) };
        match kept.keep(call) {
            Ok(()) => self.0.push(kept),
            Err(call) => {
                self.0.give_back(kept);
                call.reject(AcceptStatus::SystemErr);
            }
        }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        // One less, as long as there are some. AcqRel: `Shared::has_ended` sees the calls of all cores.
        let less = |cores: usize| cores.checked_sub(1);
        let _ = self.0.cores.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        self.0.waker.wake();
    }
}
