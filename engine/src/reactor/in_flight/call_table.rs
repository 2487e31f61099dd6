//! The calls of a client that have anything beyond an inline stream, by slot. It outlives the connection together with the
//! requester.

use crate::fabric::DownCause;
use crate::mem::Buf;
use crate::reactor::in_flight::box_pool::BoxPool;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::types::calls::CallEnd;
use crate::reactor::types::kept::Kept;
use spinrpc_proto::events::{DeliveredReply, SlotId};

/// A reply that has arrived.
pub(crate) struct Arrived {
    pub(in crate::reactor) message: Buf,
    pub(in crate::reactor) reply: DeliveredReply,
    /// The key that the peer invalidated with it.
    pub(in crate::reactor) invalidated: Option<u32>,
    /// It has a Read list: there is more to fetch.
    pub(in crate::reactor) is_partial: bool,
}

/// A reply that has arrived while keys of its call are being killed.
pub(crate) struct FencedReply {
    pub(in crate::reactor) arrived: Arrived,
    pub(in crate::reactor) call: Option<Box<Outgoing>>,
}

/// Terms under which the calls of a client outlive its connections.
pub(crate) struct Lasting {
    pub(in crate::reactor) resends_max: u8,
    /// Cause of the loss of the last connection.
    pub(in crate::reactor) lost_by: DownCause,
}

/// See the module.
pub(crate) struct CallTable {
    calls: Box<[Option<Box<Outgoing>>]>,
    /// Boxes for the calls that need them.
    spare: BoxPool<Outgoing>,
    /// Set if the client's calls may outlive the connection.
    pub(in crate::reactor) lasting: Option<Lasting>,
    /// Ended calls whose responders may still use their memory.
    #[cfg(feature = "canary")]
    pub(in crate::reactor) canary: Vec<SlotId>,
}

impl CallTable {
    /// Creates a table for `slots` calls (slow path: allocates).
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            calls: (0..slots).map(|_| None).collect(),
            // One for each call in flight, and one for a reply whose handler starts the next call.
            spare: BoxPool::new(slots + slots.min(1)),
            lasting: None,
            #[cfg(feature = "canary")]
            canary: Vec::new(),
        }
    }

    /// Calls may outlive the connection from now on, and be sent again so often.
    pub(in crate::reactor) fn make_lasting(&mut self, resends_max: u8) {
        let none = || Lasting { resends_max, lost_by: DownCause::Local };
        self.lasting.get_or_insert_with(none).resends_max = resends_max;
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
        let mut renamed =
            self.calls.iter().flatten().filter_map(|call| call.kept.as_ref()?.renamed);
        renamed.find(|renamed| renamed.from == slot).map(|renamed| renamed.to)
    }

    /// A call is not sent again; its memory stays.
    #[inline(never)]
    pub(in crate::reactor) fn forget(&mut self, slot: SlotId) {
        self.call(slot).and_then(|call| call.kept.take());
    }

    /// Frees the memory of an ended call that no peer can reach.
    pub(crate) fn free(&mut self, slot: SlotId) {
        if let Some(call) = self.take(slot) {
            self.recycle(call);
        }
    }

    /// The connection of a call is lost. Returns true if it may be sent again.
    pub(in crate::reactor) fn lose(&mut self, slot: SlotId, is_unsent: bool) -> bool {
        let resends_max = self.lasting.as_ref().map(|lasting| lasting.resends_max);
        let may_resend =
            self.call(slot).is_some_and(|call| call.lose(is_unsent, resends_max.unwrap_or(0)));
        may_resend && resends_max.is_some()
    }
}
