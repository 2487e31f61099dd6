//! Calls without chunks, and plain replies, of version one: the operations that a lane of short messages
//! needs, in as few steps as possible. The results are those of the general functions.

use super::{CallRefused, CallSlot, INDEX_BITS, Requester, State, index_of, xid_of};
use crate::credit::Credits;
use crate::events::SlotId;
use crate::ids::{Instant, Xid};
use crate::plain::PlainReply;
use crate::version::TransportVersion;

/// A [`SlotId`] in one word, whose low half is the transaction id: the generation is its upper bits, all 32 of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallNumber(u64);

impl CallNumber {
    #[inline(always)]
    fn new(index: u16, generation: u32) -> Self {
        Self(u64::from(generation) << INDEX_BITS | u64::from(index))
    }

    #[inline(always)]
    fn xid(self) -> Xid {
        Xid(self.0 as u32)
    }

    /// The call's place.
    pub fn slot(self) -> SlotId {
        SlotId { index: index_of(self.xid()), generation: (self.0 >> INDEX_BITS) as u32 }
    }
}

impl From<SlotId> for CallNumber {
    fn from(slot: SlotId) -> Self {
        Self::new(slot.index, slot.generation)
    }
}

/// A call that may start now.
#[derive(Debug)]
pub struct NextCall<'a> {
    /// Its transaction id.
    pub xid: Xid,
    number: CallNumber,
    slot: &'a mut CallSlot,
    first_free: &'a mut u16,
    started: &'a mut u64,
    credits: &'a mut Credits,
    next_deadline: &'a mut Instant,
}

impl NextCall<'_> {
    /// The credit word of its header.
    #[inline(always)]
    pub fn requested(&self) -> u32 {
        self.credits.requested()
    }

    /// Records a call that has been sent: takes a slot and a credit. Returns the slot, and whether the deadline is the
    /// earliest ([`Requester::next_deadline`]).
    #[inline(always)]
    pub fn start(self, token: u64, deadline: Instant) -> (CallNumber, bool) {
        let Self { number, slot, first_free, started, credits, next_deadline, .. } = self;
        *first_free = slot.next_free;
        slot.occupy(token, deadline, false, credits.dones_total());
        *started += 1;
        credits.spend();
        let is_earliest = deadline < *next_deadline;
        if is_earliest {
            *next_deadline = deadline;
        }
        (number, is_earliest)
    }
}

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// Prepares a call of version one without chunks, whose header the caller writes: [`Requester::start_call`] in two steps. Nothing
    /// is taken before [`NextCall::start`], which its Send has gone before.
    ///
    /// # Errors
    /// As [`CallRefused`] says.
    #[inline(always)]
    pub fn next_call(&mut self) -> Result<NextCall<'_>, CallRefused> {
        if !self.credits.available() {
            return Err(CallRefused::NoCredit);
        }
        let index = self.first_free;
        // Behind the last slot where none is free.
        let slot = self.slots.as_mut().get_mut(usize::from(index)).ok_or(CallRefused::NoSlot)?;
        let number = CallNumber::new(index, slot.generation.wrapping_add(1));
        let xid = number.xid();
        let Self { first_free, started, credits, next_deadline, .. } = self;
        Ok(NextCall { xid, number, slot, first_free, started, credits, next_deadline })
    }

    /// The caller keeps memory for the call in this slot, which its reply has to give back.
    #[inline]
    pub fn lend(&mut self, slot: SlotId) {
        if let Some(slot) = self.slots.as_mut().get_mut(usize::from(slot.index)) {
            slot.lends_nothing = false;
        }
    }

    /// Ends the call that a plain reply answers, without anything else to be looked at, and says which token it
    /// carries. `None`, and nothing happened, for any but a call in flight that has no chunks and has lent nothing
    /// ([`Requester::lend`]), on a connection that is known to speak version one.
    #[inline(always)]
    pub fn take_plain_reply(&mut self, reply: &PlainReply) -> Option<u64> {
        let index = index_of(reply.xid);
        let slot = self.slots.as_mut().get_mut(usize::from(index))?;
        let lends_nothing = slot.state == State::InFlight
            && slot.lends_nothing
            && xid_of(index, slot.generation) == reply.xid;
        if !lends_nothing || !self.negotiation.is_settled_on(TransportVersion::One) {
            return None;
        }
        slot.state = State::Free;
        slot.next_free = core::mem::replace(&mut self.first_free, index);
        self.credits.replied(reply.credits);
        self.credits.cover(slot.dones_total);
        Some(slot.token)
    }
}
