//! Calls that have their XID before they are sent: the checksum of RPCSEC_GSS covers it, and a thread seals a long call. Such
//! a call has a slot and a credit, so that no other call gets them. Nothing of it is lent, and no reply to it is awaited: one
//! that comes is dropped as one without a call.

use super::{CallRefused, CallSlot, Requester, State};
use crate::events::SlotId;
use crate::ids::Instant;

impl<S: AsRef<[CallSlot]> + AsMut<[CallSlot]>> Requester<S> {
    /// Takes a slot and a credit for a call that [`Requester::resend`] sends later. Until then it can be cancelled,
    /// and its deadline ends it; both free its slot at once.
    ///
    /// # Errors
    /// As [`CallRefused`] says; then nothing was taken.
    pub fn reserve(&mut self, token: u64, deadline: Instant) -> Result<SlotId, CallRefused> {
        self.take(token, deadline, false).map(|started| {
            self.credits.reserve();
            self.slots.as_mut()[usize::from(started.slot.index)].state = State::Reserved;
            started.slot
        })
    }

    /// The calls that are reserved, in the order of their slots.
    pub fn reserved(&self) -> impl Iterator<Item = SlotId> {
        self.in_state(State::Reserved)
    }

    /// The call has a slot, and is not sent yet.
    pub fn is_reserved(&self, id: SlotId) -> bool {
        self.state_of(id) == Some(State::Reserved)
    }
}
