//! Mail to a core from other threads: connections that the control thread made, replies of
//! deferred calls, requests to stop, the first orders of handles. A bounded crossbeam queue; the core drains it once per turn.

use crate::fabric::{AnyEndpoint, ConnId, FabricError, Wake};
use crate::mem::Bulk;
use crate::reactor::pending::goodbye::Farewell;
use crate::reactor::pending::latency::Latencies;
use crate::reactor::pending::observation::Observation;
#[cfg(feature = "gss")]
use crate::reactor::words::protection::LaidOut;
use crate::reactor::words::reply_plan::ReplyData;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crossbeam::queue::ArrayQueue;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::Encoded;
use spinrpc_proto::rpc::AcceptStatus;
use std::sync::{Arc, OnceLock};

/// Connections that peers begin find room in a mailbox until this part of it is taken, by whatever
/// letters: half of it is for the answers of deferred calls, and the rest for what this side begins.
const ACCEPTED_PART: usize = 4;

/// One piece of mail. Letters lie in the queue itself, so that a reply costs no allocation.
#[expect(clippy::large_enum_variant, reason = "letters lie in the queue, not on the heap")]
pub(crate) enum Mail<E = AnyEndpoint> {
    /// What became of connection request number `request`.
    Connected { request: u64, result: Result<E, FabricError> },
    /// A connection that a listener accepted for this core.
    Accepted(E),
    /// The reply of a deferred call.
    Reply(DeferredReply),
    /// The api has orders from other threads.
    Orders,
    /// A thread has gone on with a security context of the api's.
    #[cfg(feature = "gss")]
    Context,
    /// Tell what there is; comes back with the answer.
    Observe(Box<Observation>),
    /// Measure latencies from now on, or no longer, as these say, and count them there.
    Measure(Arc<Latencies>),
    /// End in good order.
    Leave(Farewell),
    /// Close everything.
    Shutdown,
}

/// A reply encoded on another thread.
pub(crate) struct DeferredReply {
    pub(crate) conn: ConnId,
    pub(crate) slot: SlotId,
    pub(crate) answer: DeferredAnswer,
}

/// Threads that write deferred results at a time without having memory made for that.
const DRAFT_MEMORIES_MAX: usize = 16;

/// What a deferred call is answered with.
#[cfg_attr(
    not(feature = "gss"),
    expect(clippy::large_enum_variant, reason = "letters lie in the queue, not on the heap")
)]
pub(crate) enum DeferredAnswer {
    /// Results: the RPC reply as an XDR stream in `stream`, and the data items beside it.
    Results { stream: Bulk, encoded: Encoded, data: ReplyData },
    /// Results without data items: the same stream, which fits inline.
    Plain { stream: Bulk },
    /// A reply under RPCSEC_GSS that is to be sealed by the core, in steps.
    #[cfg(feature = "gss")]
    Unsealed { reply: LaidOut, data: ReplyData },
    /// An RPC error.
    Reject(AcceptStatus),
    /// Not executed, as its time was over.
    TooLate,
}

/// The mailbox of one core.
pub(crate) struct Inbox<E = AnyEndpoint> {
    queue: ArrayQueue<Mail<E>>,
    waker: OnceLock<Arc<dyn Wake>>,
    is_closed: AtomicBool,
    /// Memory for deferred results that do not fit at once; as many as threads have answered at a time.
    draft_memory: ArrayQueue<Box<[u8]>>,
}

impl<E> Inbox<E> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            queue: ArrayQueue::new(capacity),
            waker: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            draft_memory: ArrayQueue::new(DRAFT_MEMORIES_MAX),
        }
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
        // Dropped where that many are spare already.
        drop(self.draft_memory.push(memory));
        result
    }

    /// The core names its waker when it starts.
    pub(crate) fn set_waker(&self, waker: Arc<dyn Wake>) {
        // A second core under the same number was refused before; the first waker stands.
        let _ = self.waker.set(waker);
    }

    /// Whether a core reads it.
    pub(crate) fn is_read(&self) -> bool {
        // Relaxed: who asks can always be too early or too late.
        self.waker.get().is_some() && !self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether its core has ended.
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: as above.
        self.is_closed.load(Ordering::Relaxed)
    }

    /// The core reads no more; what is left is dropped, and what comes.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // With that of `post`: either this finds the letter, or who posted it finds the box closed.
        fence(Ordering::SeqCst);
        self.empty();
    }

    /// Puts mail in; gives it back when the box is full, and a connection that a peer began when it is
    /// full enough: [`ACCEPTED_PART`].
    #[expect(clippy::result_large_err, reason = "the letter itself comes back")]
    pub(crate) fn post(&self, mail: Mail<E>) -> Result<(), Mail<E>> {
        let is_accepted = matches!(mail, Mail::Accepted(_));
        if is_accepted && self.queue.len() >= self.queue.capacity() / ACCEPTED_PART {
            return Err(mail);
        }
        self.queue.push(mail)?;
        self.wake();
        fence(Ordering::SeqCst);
        if self.is_closed.load(Ordering::Relaxed) {
            self.empty();
        }
        Ok(())
    }

    /// Answers a deferred call. Waits while the mailbox is full: deferred calls and what peers begin cannot
    /// fill it together, so that the core that reads it may answer such calls, too.
    pub(crate) fn post_reply(&self, reply: DeferredReply) {
        let mut mail = Mail::Reply(reply);
        while let Err(back) = self.post(mail) {
            mail = back;
            std::thread::yield_now();
        }
    }

    /// Lets a parked core look around. Returns true if it was parked.
    pub(crate) fn wake(&self) -> bool {
        self.waker.get().is_some_and(|waker| waker.wake())
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

    /// A letter that is kept would keep who waits for its answer.
    #[test]
    fn close_a_box_expect_all_mail_dropped_before_and_after() {
        let inbox = Inbox::<()>::new(1);
        let (report, reports) = channel();
        let leave = |core| Mail::Leave(Farewell { core, report: report.clone() });
        assert!(inbox.post(leave(0)).is_ok());
        assert!(matches!(inbox.post(leave(1)), Err(Mail::Leave(Farewell { core: 1, .. }))));
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
        let accepted = (0..16).take_while(|number| inbox.post(Mail::Accepted(*number)).is_ok());
        assert_eq!(accepted.count(), 4);
        let others = (0..16).take_while(|_| inbox.post(Mail::Shutdown).is_ok());
        assert_eq!(others.count(), 12);
    }
}
