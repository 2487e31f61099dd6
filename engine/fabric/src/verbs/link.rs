//! Interface of the two halves: the objects that the control half created for a connection, and the
//! messages of each half to the other about it.
//!
//! The control half makes a [`Link`] and gives it to a core, which posts and polls. The core asks
//! for each step of the end ([`Link::tell`], [`Link::leave`]), and drops the link when everything it had posted is accounted
//! for; the control half is told and takes down the rest.

use super::super::DownCause;
use super::control::{Control, ControlThread, Event};
use super::memory::LinkMemory;
use super::objects::CompletionQueue;
use crate::sync::atomic::{AtomicBool, Ordering};
use rdma_sys::ibv_qp;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This side asked for it: the link is made when it is established.
    Connecting,
    /// The peer did: the link comes before the acceptance, which waits for [`Event::ReceivesPosted`].
    Accepting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkLimits {
    /// Work requests of the send queue, those for binding and invalidating windows included.
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) inline_bytes: u32,
    /// RDMA Reads that may be outstanding from this side, as both ends agreed.
    pub(super) reads_out: u16,
    /// See [`Adapter`](super::super::adapters::Adapter).
    pub(super) signal_from_bytes: u32,
    /// Flags of a completion, one of which tells that a key was invalidated.
    pub(super) invalidated_flags: u32,
    /// The connection is one of iWARP: the side that connected sends the first message (RFC 6581
    /// section 6), and RDMA Read needs memory that the peer may write.
    pub(super) is_iwarp: bool,
}

#[derive(Debug, Default)]
pub(super) struct LinkState {
    established: AtomicBool,
    over: OnceLock<DownCause>,
    destroyed: AtomicBool,
}

impl LinkState {
    pub(super) fn is_established(&self) -> bool {
        // Acquire pairs with the Release below: the queue pair is ready.
        self.established.load(Ordering::Acquire)
    }

    pub(super) fn set_established(&self) {
        self.established.store(true, Ordering::Release);
    }

    pub(super) fn over(&self) -> Option<&DownCause> {
        self.over.get()
    }

    /// The first cause stands; either half may know it first.
    pub(super) fn set_over(&self, cause: DownCause) {
        let _ = self.over.set(cause);
    }

    /// The queue pair is destroyed: the device touches none of its buffers any more.
    pub(super) fn is_destroyed(&self) -> bool {
        // Acquire pairs with the Release below: everything the device wrote came before.
        self.destroyed.load(Ordering::Acquire)
    }

    pub(super) fn set_destroyed(&self) {
        self.destroyed.store(true, Ordering::Release);
    }
}

/// A connection's queue pair, and the objects that belong to it. Dropping it ends the connection,
/// and makes the control thread take everything down: disconnect, queue pair, memory, protection
/// domain.
///
/// A holder of `queue` gives it up before the link: the device's context goes with its last connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Alive until [`LinkState::is_destroyed`], and after that not to be touched.
    pub(super) qp: NonNull<ibv_qp>,
    /// This link's name at the control thread; never used twice in a process.
    pub(super) number: u64,
    pub(super) side: Side,
    /// Queue on which its work requests complete, together with those of other links of the core.
    pub(super) queue: ManuallyDrop<Arc<CompletionQueue>>,
    pub(super) memory: ManuallyDrop<LinkMemory>,
    pub(super) limits: LinkLimits,
    pub(super) state: Arc<LinkState>,
    pub(super) control: Arc<Control>,
}

// SAFETY: a queue pair may be used from any thread, by one at a time; the link is its one user.
unsafe impl Send for Link {}

impl Link {
    #[cold]
    pub(super) fn tell(&self, event: Event) {
        self.leave(move |thread, number| thread.happen(number, event));
    }

    /// The core is notified when the job is done.
    #[cold]
    pub(super) fn leave(&self, job: impl FnOnce(&mut ControlThread, u64) + Send + 'static) {
        let number = self.number;
        self.control.mailbox.leave(move |thread| job(thread, number));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: each is taken once, here; they are not accessed any more.
        let remains =
            unsafe { (ManuallyDrop::take(&mut self.memory), ManuallyDrop::take(&mut self.queue)) };
        self.leave(move |thread, number| thread.dismantle(number, remains));
    }
}

/// Objects that a link leaves to the control thread: they go after the queue pair, and before the
/// device.
pub(super) type Remains = (LinkMemory, Arc<CompletionQueue>);
