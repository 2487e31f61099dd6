//! Mail to a core from other threads: connections made by other threads, replies of deferred calls, requests to
//! stop, the first orders of handles. A bounded crossbeam queue; the core drains it once per turn.

use crate::fabric::{ConnId, Endpoint, FabricError, Wake};
use crate::reactor::in_flight::deferred::DeferredReply;
use crate::reactor::in_flight::drain::DrainRequest;
use crate::reactor::in_flight::latency::Latencies;
use crate::reactor::in_flight::observation::Observation;
use crate::reactor::types::calls::RpcRefusal;
#[cfg(feature = "gss")]
use crate::reactor::types::protection::{LaidOut, Protection};
use crate::reactor::types::reply_plan::EncodedReply;
#[cfg(feature = "gss")]
use crate::reactor::types::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::cache_lines::{APART_BYTES, assert_lines};
use crossbeam::queue::ArrayQueue;
use std::sync::{Arc, OnceLock};

/// Connections opened by peers, and orders to close one, go into a mailbox until this fraction of it is full, with any letters. Half
/// of it is for the answers of deferred calls, and the rest for events that this side begins.
const ACCEPTED_PART: usize = 4;

/// One piece of mail. Letters lie in the queue itself, and are small, because each is moved a few times.
pub(crate) enum Mail<E = Endpoint> {
    /// Result of a connection request.
    Connected { request: Requested, result: Result<Box<E>, FabricError> },
    /// A connection that a listener accepted for this core.
    Accepted(Box<E>),
    /// The reply of a deferred call.
    Reply(Box<DeferredReply>),
    /// The api has orders from other threads.
    Orders,
    /// A thread has advanced a security context of the api, or sealed or unsealed a body.
    #[cfg(feature = "gss")]
    GssResult,
    /// Report the state of the core; returns with the answer.
    Observe(Box<Observation>),
    /// Shut down gracefully.
    Leave(DrainRequest),
    /// Close this connection, if it is still there.
    Close(ConnId),
    /// Close everything.
    Shutdown,
}

/// A connection that a client has requested: goes to the thread that connects, and returns with its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requested {
    pub(crate) number: u64,
    /// The peer may make reverse calls.
    pub(crate) takes_reverse: bool,
    /// The lost connection that it replaces.
    pub(crate) lost: Option<ConnId>,
}

/// Threads that can write deferred results at a time without a new allocation.
const DRAFT_MEMORIES_MAX: usize = 16;

/// Answer of a deferred call.
#[cfg_attr(
    not(feature = "gss"),
    expect(clippy::large_enum_variant, reason = "it lies in a box that is used again")
)]
pub(crate) enum DeferredAnswer {
    /// Results; their stream is where they were encoded if it is short ([`DeferredReply::stage`]).
    Results(EncodedReply),
    /// Results of an RPC reply without data items, all of which is there.
    Staged,
    /// A long reply under RPCSEC_GSS, which threads of the core are to seal.
    #[cfg(feature = "gss")]
    ToSeal {
        protection: Protection,
        reply: LaidOut,
        data: ReplyData,
    },
    Refused(RpcRefusal),
}

/// The mailbox of one core.
pub(crate) struct Inbox<E = Endpoint> {
    queue: ArrayQueue<Mail<E>>,
    waker: OnceLock<Arc<dyn Wake>>,
    is_closed: AtomicBool,
    /// Memory for deferred results that do not fit directly; as many blocks as threads have answered at a time.
    draft_memory: ArrayQueue<Box<[u8]>>,
    latencies: Latencies,
}

// Other threads push letters, and the core pops them. Both look at the other fields.
assert_lines!(Inbox<u64>: queue, draft_memory);
// Within the queue, its two ends and their elements.
const _: () = assert!(size_of::<ArrayQueue<u64>>() >= 3 * APART_BYTES);

impl<E> Inbox<E> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: ArrayQueue::new(capacity),
            waker: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            draft_memory: ArrayQueue::new(DRAFT_MEMORIES_MAX),
            latencies: Latencies::default(),
        }
    }

    /// Latencies of its core.
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Lends memory of `bytes` bytes, which is touched only as far as it is used.
    pub(in crate::reactor) fn lend_draft_memory<T>(
        &self,
        bytes: usize,
        then: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        let spare = self.draft_memory.pop().filter(|memory| memory.len() >= bytes);
        let mut memory = spare.unwrap_or_else(|| vec![0; bytes].into_boxed_slice());
        let result = then(&mut memory);
        // Dropped if there are enough spare blocks already.
        drop(self.draft_memory.push(memory));
        result
    }

    /// Letters that it holds.
    pub(crate) fn letters(&self) -> usize {
        self.queue.capacity()
    }

    /// The core names its waker when it starts.
    pub(crate) fn set_waker(&self, waker: Arc<dyn Wake>) {
        // A second core with the same number was refused earlier; the first waker is kept.
        let _ = self.waker.set(waker);
    }

    /// Returns true if a core reads it.
    pub(crate) fn is_read(&self) -> bool {
        // Relaxed: a caller can always be too early or too late.
        self.waker.get().is_some() && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns true if its core has ended.
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: as above.
        self.is_closed.load(Ordering::Relaxed)
    }

    /// The core stops reading: remaining and later letters are dropped.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // Pairs with the fence of `post`: either this finds the letter, or the poster finds the mailbox closed.
        fence(Ordering::SeqCst);
        self.empty();
    }

    /// Posts mail; returns it when the mailbox is full, or, for a connection that a peer opens or that is to be closed, when
    /// the fraction [`ACCEPTED_PART`] is full.
    pub(crate) fn post(&self, mail: Mail<E>) -> Result<(), Mail<E>> {
        let is_bounded = matches!(mail, Mail::Accepted(_) | Mail::Close(_));
        if is_bounded && self.queue.len() >= self.queue.capacity() / ACCEPTED_PART {
            return Err(mail);
        }
        self.push(mail)
    }

    #[inline]
    fn push(&self, mail: Mail<E>) -> Result<(), Mail<E>> {
        self.queue.push(mail)?;
        self.wake();
        if self.is_closed.load(Ordering::Relaxed) {
            self.empty();
        }
        Ok(())
    }

    /// Answers a deferred call. Waits while the mailbox is full: deferred calls and connections of peers cannot fill
    /// it together, so the core that reads it may answer such calls, too.
    pub(crate) fn answer(&self, reply: Box<DeferredReply>) {
        let mut mail = Mail::Reply(reply);
        while let Err(back) = self.push(mail) {
            mail = back;
            std::thread::yield_now();
        }
    }

    /// Lets a parked core look around. Returns true if it was parked. A fence in any case, for what the caller reads next.
    pub(crate) fn wake(&self) -> bool {
        match self.waker.get() {
            Some(waker) => waker.wake(),
            None => {
                fence(Ordering::SeqCst);
                false
            }
        }
    }

    fn empty(&self) {
        while self.take().is_some() {}
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn take(&self) -> Option<Mail<E>> {
        self.queue.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{TryRecvError, channel};

    /// A letter that is kept would block the thread that waits for its answer.
    #[test]
    fn close_a_box_expect_all_mail_dropped_before_and_after() {
        let inbox = Inbox::<()>::new(1);
        let (report, reports) = channel();
        let leave = |core| Mail::Leave(DrainRequest { core, report: report.clone() });
        assert!(inbox.post(leave(0)).is_ok());
        assert!(matches!(inbox.post(leave(1)), Err(Mail::Leave(DrainRequest { core: 1, .. }))));
        inbox.close();
        for core in 2..4 {
            assert!(inbox.post(leave(core)).is_ok());
        }
        drop(report);
        assert_eq!(reports.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn connections_of_peers_leave_room_for_other_letters() {
        let inbox = Inbox::new(16);
        let accepted =
            (0..16).take_while(|number| inbox.post(Mail::Accepted(Box::new(*number))).is_ok());
        assert_eq!(accepted.count(), 4);
        let others = (0..16).take_while(|_| inbox.post(Mail::Shutdown).is_ok());
        assert_eq!(others.count(), 12);
    }
}
