//! The calls of a client that have anything beyond an inline stream, by slot. It outlives the connection together with the
//! requester.

use crate::fabric::{DownCause, Received};
use crate::reactor::in_flight::box_pool::BoxPool;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::types::calls::{CallEnd, Resend};
use crate::reactor::types::resend_source::Kept;
use spinrpc_proto::events::{DeliveredReply, SlotId};
use spinrpc_proto::requester::{CallSlot, Requester};
use std::collections::VecDeque;

/// The requester of a connection.
pub(in crate::reactor) type ConnRequester = Requester<Box<[CallSlot]>>;

/// See the module.
pub(crate) struct CallTable {
    calls: Box<[Option<Box<Outgoing>>]>,
    /// Boxes for the calls that need them.
    spare: BoxPool<Outgoing>,
    /// How often calls may be sent again, and the cause of the loss of the last connection, if they may outlive it.
    lasting: Option<(u8, DownCause)>,
}

impl CallTable {
    /// Creates a table for `slots` calls (slow path: allocates).
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            calls: (0..slots).map(|_| None).collect(),
            // One for each call in flight, and one for a reply whose handler starts the next call.
            spare: BoxPool::new(slots + slots.min(1)),
            lasting: None,
        }
    }

    /// Calls may outlive the connection from now on, and be sent again so often.
    pub(in crate::reactor) fn make_lasting(&mut self, resends_max: u8) {
        self.lasting = Some((resends_max, self.lost_by()));
    }

    /// Returns true if calls may outlive the connection, and this one may be sent again on another.
    pub(in crate::reactor) fn is_lasting(&self, call: &Outgoing) -> bool {
        self.lasting.is_some() && call.terms().resend() != Resend::Never
    }

    /// The connection is lost.
    pub(in crate::reactor) fn note_loss(&mut self, cause: &DownCause) {
        if let Some((_, lost_by)) = &mut self.lasting {
            *lost_by = cause.clone();
        }
    }

    /// Cause of the loss of the last connection.
    pub(in crate::reactor) fn lost_by(&self) -> DownCause {
        self.lasting.as_ref().map_or(DownCause::Local, |(_, lost_by)| lost_by.clone())
    }

    /// Number of calls that fit.
    pub(in crate::reactor) fn slots(&self) -> usize {
        self.calls.len()
    }

    /// Blocks of registered memory that calls in flight hold.
    pub(in crate::reactor) fn blocks(&self) -> usize {
        self.calls.iter().flatten().map(|call| call.blocks()).sum()
    }

    /// An empty box for a call that needs one.
    pub(in crate::reactor) fn spare(&mut self) -> Option<Box<Outgoing>> {
        self.spare.take()
    }

    /// The emptied box goes back, for a later call.
    pub(crate) fn recycle(&mut self, mut call: Box<Outgoing>) {
        *call = Outgoing::default();
        self.spare.give(call);
    }

    pub(in crate::reactor) fn put(&mut self, slot: SlotId, call: Box<Outgoing>) {
        self.calls[usize::from(slot.index)] = Some(call);
    }

    /// Takes a call out of its slot. `None` for a call that has nothing there.
    #[inline(always)]
    pub(crate) fn take(&mut self, slot: SlotId) -> Option<Box<Outgoing>> {
        self.calls.get_mut(usize::from(slot.index))?.take()
    }

    /// Returns true if a call has anything in its slot.
    #[inline(always)]
    pub(in crate::reactor) fn has_any(&self, index: u16) -> bool {
        self.calls.get(usize::from(index)).is_some_and(Option::is_some)
    }

    /// A call that stays in its slot.
    pub(in crate::reactor) fn call(&mut self, slot: SlotId) -> Option<&mut Outgoing> {
        self.calls.get_mut(usize::from(slot.index))?.as_deref_mut()
    }

    /// The source that a call is sent again from.
    pub(in crate::reactor) fn kept(&self, slot: SlotId) -> Option<&Kept> {
        self.calls.get(usize::from(slot.index))?.as_ref()?.kept.as_ref()
    }

    /// The end of a call whose connection is lost; `is_unsent` if it was not sent there.
    pub(in crate::reactor) fn end_of(
        &self,
        slot: SlotId,
        is_unsent: bool,
        cause: &DownCause,
    ) -> CallEnd {
        match self.kept(slot) {
            Some(kept) if kept.is_denied() && !kept.is_unknown() => CallEnd::Denied(cause.clone()),
            Some(kept) => CallEnd::of(!kept.is_unknown(), cause),
            None => CallEnd::of(is_unsent, cause),
        }
    }

    /// The slot of a call that was denied in this one.
    #[cfg(feature = "gss")]
    pub(in crate::reactor) fn renamed(&self, slot: SlotId) -> Option<SlotId> {
        self.calls.iter().flatten().find_map(|call| call.kept.as_ref()?.moved_from(slot))
    }

    /// A call is not sent again; its memory stays.
    #[inline(never)]
    fn forget(&mut self, slot: SlotId) {
        self.call(slot).and_then(|call| call.kept.take());
    }

    /// The application has given a call up. The memory of a fenced call stays, because the responder may still write there. The
    /// copy kept for a resend is dropped now: the answer may arrive, and another call may take the slot, before the application
    /// is notified of the end.
    pub(in crate::reactor) fn give_up(&mut self, slot: SlotId, fenced: bool) {
        if !fenced {
            return self.free(slot);
        }
        self.forget(slot);
    }

    /// Frees the memory of an ended call that no peer can reach.
    pub(crate) fn free(&mut self, slot: SlotId) {
        if let Some(call) = self.take(slot) {
            self.recycle(call);
        }
    }

    /// The connection of a call is lost. Returns true if it may be sent again.
    pub(in crate::reactor) fn lose(&mut self, slot: SlotId, is_unsent: bool) -> bool {
        let resends_max = self.lasting.as_ref().map(|(resends_max, _)| *resends_max);
        let may_resend =
            self.call(slot).is_some_and(|call| call.lose(is_unsent, resends_max.unwrap_or(0)));
        may_resend && resends_max.is_some()
    }
}

/// A reply, with true if there is more to fetch of it, and its call.
pub(in crate::reactor) type FencedReply = (Received, (DeliveredReply, bool), Box<Outgoing>);

/// Replies that have arrived while keys of their calls are being killed, in order of arrival.
#[derive(Default)]
pub(crate) struct FencedReplies(VecDeque<FencedReply>);

impl FencedReplies {
    pub(in crate::reactor) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds one; `at_most` of them can be there. Most connections have none: the first one takes memory for all.
    pub(in crate::reactor) fn push(&mut self, reply: FencedReply, at_most: usize) {
        if self.0.capacity() == 0 {
            self.0.reserve_exact(at_most);
        }
        self.0.push_back(reply);
    }

    pub(in crate::reactor) fn take_first(&mut self) -> Option<FencedReply> {
        self.0.pop_front()
    }

    /// A key is dead. Returns the reply that waited for this one only.
    pub(in crate::reactor) fn key_died(&mut self, handle: u32) -> Option<FencedReply> {
        let is_of = |fenced: &FencedReply| fenced.2.lent.handles().contains(&handle);
        let at = self.0.iter().position(is_of)?;
        if self.0[at].2.lent.key_died() { self.0.remove(at) } else { None }
    }
}
