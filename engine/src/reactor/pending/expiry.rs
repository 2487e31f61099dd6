//! The end of a call's time.

use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::SlotId;

/// Time at which a call expires, and the generation of the call in its slot.
#[derive(Clone, Copy)]
pub(in crate::reactor) struct Expiry {
    pub(in crate::reactor) generation: u32,
    pub(in crate::reactor) at: Instant,
}

impl Expiry {
    /// Of no call: the first of a slot has generation one.
    pub(in crate::reactor) const NONE: Self = Self { generation: 0, at: Instant(u64::MAX) };

    /// The time of the call in this slot: the known one, or else `at` from now on.
    pub(in crate::reactor) fn of(&mut self, slot: SlotId, at: Instant) -> Instant {
        if self.generation != slot.generation {
            *self = Self { generation: slot.generation, at };
        }
        self.at
    }
}
