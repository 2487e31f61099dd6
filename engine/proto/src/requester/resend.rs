//! Calls that outlive their connection: "RPC recovery can handle complete loss and re-establishment
//! of the link" (RFC 5666 section 8).
//!
//! The requester itself outlives the connection. It keeps the slots of the calls that are to be sent
//! again, and with them their XIDs: a responder recognises a call that it has executed by its XID
//! (RFC 5531 section 9). The slots of all other calls are free, with generations that go on, so that
//! no XID is used for another call on the next connection. Credits start again at one (RFC 8166
//! section 3.3.3).

use super::{CallRefused, CallSlot, Chunks, NO_SLOT, Requester, SLOTS_MAX, StartedCall, State};
use crate::chunking::CallChunks;
use crate::credit::Credits;
use crate::events::SlotId;
use crate::ids::Instant;

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// Requests only this many credits, though there are more slots. With one slot more than
    /// credits a new connection can start a call while every call of the old one is held.
    #[must_use]
    pub fn requesting(mut self, credits: u32) -> Self {
        self.credits = Credits::new(credits);
        self
    }

    /// Keeps so many credits of each grant free, for answers to calls in reverse.
    #[must_use]
    pub fn holding_back(mut self, credits: u32) -> Self {
        self.credits = self.credits.holding_back(credits);
        self
    }

    /// The connection is gone, and the next one takes this requester over. `each` gets the slot of
    /// every call, and its token when the application still waits for it; such a call is held if
    /// `each` says so. All others end: their memory is not accessed any more.
    pub fn suspend(&mut self, mut each: impl FnMut(SlotId, Option<u64>) -> bool) {
        self.next_deadline = Instant(u64::MAX);
        for index in 0..self.slots.as_ref().len().min(SLOTS_MAX) as u16 {
            let slot = &mut self.slots.as_mut()[usize::from(index)];
            let id = SlotId { index, generation: slot.generation };
            let token = slot.state.is_awaited().then_some(slot.token);
            let held = slot.state != State::Free && each(id, token) && token.is_some();
            slot.state = if held { State::Held } else { State::Free };
            if held {
                self.next_deadline = self.next_deadline.min(slot.deadline);
            }
        }
        self.credits = self.credits.renewed();
        self.collect_free();
    }

    fn collect_free(&mut self) {
        self.first_free = NO_SLOT;
        let count = self.slots.as_ref().len().min(SLOTS_MAX) as u16;
        for index in (0..count).rev() {
            if self.slots.as_ref()[usize::from(index)].state == State::Free {
                self.free(index);
            }
        }
    }

    /// Takes a slot for a call that is held from the first: it has an XID, and needs a credit when it is sent. `None` where
    /// no slot is free.
    pub fn hold(&mut self, token: u64, deadline: Instant) -> Option<SlotId> {
        (self.first_free != NO_SLOT).then(|| {
            let slot = self.occupy(token, deadline, false).slot;
            self.slots.as_mut()[usize::from(slot.index)].state = State::Held;
            slot
        })
    }

    /// Sends a call that waits in its slot, with the XID it has: a held one takes a credit, a reserved one has one. Writes the
    /// transport header as [`Requester::start_call`] does. `chunks` are those of the present connection.
    ///
    /// # Panics
    /// As [`Requester::start_call`].
    ///
    /// # Errors
    /// As [`Requester::check_resend`]; then nothing was taken.
    pub fn resend(
        &mut self,
        id: SlotId,
        chunks: &CallChunks,
        header: &mut [u8],
    ) -> Result<(StartedCall, usize), CallRefused> {
        self.check_resend(id)?;
        match self.state_of(id) {
            Some(State::Reserved) => self.credits.spend_reserved(),
            _ => self.credits.spend(),
        }
        let slot = &mut self.slots.as_mut()[usize::from(id.index)];
        (slot.state, slot.has_chunks) = (State::InFlight, !chunks.is_empty());
        slot.lends_nothing &= !slot.has_chunks;
        slot.chunks = Chunks::Offered(chunks.results);
        // RDMA_DONEs that were sent meanwhile are before it.
        slot.dones_total = self.credits.dones_total();
        let xid = id.xid();
        Ok((StartedCall { slot: id, xid }, self.emit_call(xid, chunks, header)))
    }

    /// Checks whether a call that waits in its slot may be sent now.
    ///
    /// # Errors
    /// [`CallRefused::NoSlot`] if it does not wait, because it has ended or is sent. [`CallRefused::NoCredit`] otherwise: a
    /// reserved call has none if the responder has lowered its grant meanwhile, and calls in flight take all of it.
    pub fn check_resend(&self, id: SlotId) -> Result<(), CallRefused> {
        let has_credit = match self.state_of(id) {
            Some(State::Held) => self.credits.available(),
            Some(State::Reserved) => self.credits.lets_reserved(),
            _ => return Err(CallRefused::NoSlot),
        };
        has_credit.then_some(()).ok_or(CallRefused::NoCredit)
    }

    /// Ends a held or reserved call that will not be sent, and says which token it carried.
    pub fn release_held(&mut self, id: SlotId) -> Option<u64> {
        match self.state_of(id)? {
            State::Held => {}
            State::Reserved => self.credits.end_reserved(),
            _ => return None,
        }
        self.free(id.index);
        Some(self.slots.as_ref()[usize::from(id.index)].token)
    }

    /// The calls that are held, in the order of their slots.
    pub fn held(&self) -> impl Iterator<Item = SlotId> {
        self.in_state(State::Held)
    }

    pub(super) fn in_state(&self, state: State) -> impl Iterator<Item = SlotId> {
        let slots = self.slots.as_ref().iter().enumerate();
        slots
            .filter(move |(_, slot)| slot.state == state)
            .map(|(index, slot)| SlotId { index: index as u16, generation: slot.generation })
    }
}
