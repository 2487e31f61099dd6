//! Work requests and completions: the vocabulary between reactor and drivers.
//!
//! Posting moves buffers into the driver, a completion moves them back, so everything here is
//! safe to use. Ids are index and generation, never pointers: a stale one is counted and dropped.

use super::DownCause;
use crate::mem::{Buf, Lease};

/// Names a queue pair of one core's fabric: index and generation, in one word, which is how it is
/// moved.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct QpId(u64);

impl QpId {
    /// The queue pair at `index` of the driver's table, which has been used `generation` times
    /// before.
    #[inline]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// Place in the driver's table.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Raised each time the place is used again.
    #[inline]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl std::fmt::Debug for QpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QpId({}.{})", self.index(), self.generation())
    }
}

/// The reactor's name for a connection; same shape as [`QpId`].
pub type ConnId = QpId;

/// Value that the reactor gets back with a completion; the driver does not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WrId(pub u64);

/// A stretch of the peer's memory, as it stands in a chunk list: handle, length, offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// R_key or STag.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
    /// Offset of the first byte; opaque, only ever added to.
    pub offset: u64,
}

/// One entry of a send queue.
#[derive(Debug)]
pub enum SendWr {
    /// A message for the peer's next posted receive; the buffer is freed when it has left.
    Send {
        /// The message.
        message: Buf,
        /// Send With Invalidate: the peer's key that dies on arrival.
        invalidate: Option<u32>,
    },
    /// Fetches the peer's memory; completes with [`CompletionKind::Read`].
    Read {
        /// Comes back with the completion.
        id: WrId,
        /// From the peer's memory ...
        from: RemoteSlice,
        /// ... into this one, which has the same length.
        into: Lease,
    },
    /// Places bytes in the peer's memory, before any later Send of this queue pair. Completes only
    /// when it fails; the lease ends when the bytes have left.
    Write {
        /// From this memory ...
        from: Lease,
        /// ... to the peer's, which has the same length.
        to: RemoteSlice,
    },
}

/// A queue is full (or its queue pair is gone): the request comes back untouched.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// Reason why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum WrError {
    /// The queue pair went down before the request was done.
    #[error("flushed: the connection went down first")]
    Flushed,
    /// The peer's key does not exist, or lacks the right, or does not cover the bytes.
    #[error("remote access error: key, right or bounds")]
    RemoteAccess,
    /// A message was longer than the receive posted for it.
    #[error("message longer than the posted receive")]
    Length,
}

/// One finished piece of work.
#[derive(Debug)]
pub struct Completion {
    /// The queue pair.
    pub qp: QpId,
    /// The event.
    pub kind: CompletionKind,
}

/// Completed operation or other event.
#[derive(Debug)]
pub enum CompletionKind {
    /// A message arrived in a posted receive.
    Received {
        /// The posted buffer, its length set to that of the message; of a chain, the rest of a
        /// message that is longer than the head is in the tail.
        message: Buf,
        /// The key of ours that the peer invalidated with it, now dead.
        invalidated: Option<u32>,
    },
    /// An RDMA Read is done, its bytes in place, or failed.
    Read {
        /// As posted.
        id: WrId,
        /// Result of the request.
        result: Result<(), WrError>,
    },
    /// An exposure that [`super::Fabric::revoke`] began to end is over: its key is dead.
    Revoked {
        /// The key.
        handle: u32,
    },
    /// A posted receive that will not be used: its queue pair went down.
    RecvFlushed {
        /// The posted buffer.
        buf: Buf,
    },
    /// The last completion of a queue pair, after every work request of it was accounted for.
    Down {
        /// The first cause.
        cause: DownCause,
    },
}

/// A bounded batch of completions, allocated once.
///
/// Received messages, which are nearly all of them, have separate places: three words each, written
/// and read word by word. An enum would be moved in larger pieces than it was written in, which
/// stalls the core (store forwarding) for longer than the message takes to copy.
#[derive(Debug)]
pub struct Completions {
    received: Box<[ReceivedPlace]>,
    count: usize,
    next: usize,
    others: Vec<Completion>,
}

#[derive(Debug, Default)]
struct ReceivedPlace {
    qp: QpId,
    /// The invalidated key and one; zero for none.
    invalidated: u64,
    message: Option<Buf>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    received: usize,
    others: usize,
}

/// A message that arrived: [`CompletionKind::Received`] in the form the reactor takes it.
#[derive(Debug)]
pub struct Received {
    /// The queue pair.
    pub qp: QpId,
    /// The posted buffer, its range that of the message.
    pub message: Buf,
    /// The key of ours that the peer invalidated with it, now dead.
    pub invalidated: Option<u32>,
}

impl Completions {
    /// A batch of at most `limit`.
    pub fn with_limit(limit: usize) -> Self {
        let received = (0..limit).map(|_| ReceivedPlace::default()).collect();
        Self { received, count: 0, next: 0, others: Vec::with_capacity(limit) }
    }

    /// Adds a received message. The caller has checked [`Completions::room`]: beyond it the
    /// message is dropped.
    #[inline(always)]
    pub fn push_received(&mut self, qp: QpId, message: Buf, invalidated: Option<u32>) {
        debug_assert!(self.room() > 0, "a driver pushed past the batch limit");
        if let Some(place) = self.received.get_mut(self.count) {
            place.qp = qp;
            place.invalidated = invalidated.map_or(0, |key| u64::from(key) + 1);
            place.message = Some(message);
            self.count += 1;
        }
    }

    /// Adds a completion other than a message. The caller has checked [`Completions::room`].
    #[cold]
    pub fn push(&mut self, qp: QpId, kind: CompletionKind) {
        debug_assert!(self.room() > 0, "a driver pushed past the batch limit");
        match kind {
            CompletionKind::Received { message, invalidated } => {
                self.push_received(qp, message, invalidated);
            }
            kind => self.others.push(Completion { qp, kind }),
        }
    }

    /// Number of completions that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.received.len().saturating_sub(self.count + self.others.len())
    }

    /// The next received message. Messages come before everything else of the batch, so that the
    /// end of a connection is seen after everything that arrived before it.
    #[inline(always)]
    pub fn next_received(&mut self) -> Option<Received> {
        if self.next == self.count {
            (self.next, self.count) = (0, 0);
            return None;
        }
        let place = &mut self.received[self.next];
        self.next += 1;
        let invalidated = place.invalidated.checked_sub(1).map(|key| key as u32);
        Some(Received { qp: place.qp, message: place.message.take()?, invalidated })
    }

    #[inline]
    pub(super) fn mark(&self) -> Mark {
        Mark { received: self.count, others: self.others.len() }
    }

    pub(super) fn received_since(
        &self,
        mark: Mark,
    ) -> impl Iterator<Item = (QpId, &Buf, Option<u32>)> + '_ {
        self.received[mark.received.min(self.count)..self.count].iter().filter_map(|place| {
            let key = place.invalidated.checked_sub(1);
            Some((place.qp, place.message.as_ref()?, key.map(|key| key as u32)))
        })
    }

    pub(super) fn others_since(&self, mark: Mark) -> &[Completion] {
        self.others.get(mark.others..).unwrap_or_default()
    }

    /// True if the batch has more than messages.
    #[inline]
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Empties the batch of everything but messages, in order.
    pub fn drain_others(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.others.drain(..)
    }

    /// Empties the batch: messages, then the rest.
    pub fn drain(&mut self) -> impl Iterator<Item = Completion> + '_ {
        let count = std::mem::take(&mut self.count);
        let next = std::mem::take(&mut self.next);
        let messages = self.received[next..count].iter_mut().filter_map(|place| {
            let message = place.message.take()?;
            let invalidated = place.invalidated.checked_sub(1).map(|key| key as u32);
            let kind = CompletionKind::Received { message, invalidated };
            Some(Completion { qp: place.qp, kind })
        });
        messages.chain(self.others.drain(..))
    }
}
