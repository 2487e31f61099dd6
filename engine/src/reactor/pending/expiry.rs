//! The end of a call's time.

use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::SlotId;

/// When the time of a call is over, and which call of its slot that is.
#[derive(Clone, Copy)]
pub(in crate::reactor) struct Expiry {
    pub(in crate::reactor) generation: u32,
    pub(in crate::reactor) at: Instant,
}

impl Expiry {
    /// Of no call: the first of a slot has generation one.
    pub(in crate::reactor) const NONE: Self = Self { generation: 0, at: Instant(u64::MAX) };

    /// That of the call in this slot: the one that is known, or this one from now on.
    pub(in crate::reactor) fn of(&mut self, slot: SlotId, at: Instant) -> Instant {
        if self.generation != slot.generation {
            *self = Self { generation: slot.generation, at };
        }
        self.at
    }
}
