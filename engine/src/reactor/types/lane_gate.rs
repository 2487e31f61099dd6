//! The gate of a connection: the ways that the lane of short messages may take without a closer look. Touches
//! nothing; used by the table of connections and the lane.
//!
//! Everything unusual closes a way: a negotiation, an end, replies that wait. Finding a connection
//! for anything but the lane makes its gate unknown ([`ConnTable::find`]), so that no caller has to remember it.
//!
//! [`ConnTable::find`]: super::conn_table::ConnTable::find

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) struct LaneGate(u8);

/// A way through a [`LaneGate`].
#[derive(Clone, Copy, Debug)]
pub(in crate::reactor) enum LaneWay {
    SendCalls = 1,
    TakeCalls = 2,
    TakeReplies = 4,
    /// Calls of version two.
    TakeCallsTwo = 8,
}

const KNOWN: u8 = 16;

impl LaneGate {
    /// Something may have changed since the last look.
    pub(in crate::reactor) const UNKNOWN: Self = Self(0);

    /// A known gate with these ways, open or not.
    pub(in crate::reactor) fn of(ways: &[(LaneWay, bool)]) -> Self {
        let open = ways.iter().filter(|(_, is_open)| *is_open);
        Self(open.fold(KNOWN, |gate, (way, _)| gate | *way as u8))
    }

    /// It is known, and lets one through.
    #[inline(always)]
    pub(in crate::reactor) const fn is_open(self, way: LaneWay) -> bool {
        self.0 & way as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_lets_through_what_it_knows_to_be_open() {
        let all =
            [LaneWay::SendCalls, LaneWay::TakeCalls, LaneWay::TakeReplies, LaneWay::TakeCallsTwo];
        assert!(all.iter().all(|way| !LaneGate::UNKNOWN.is_open(*way)));
        for open in 0..all.len() {
            let ways: Vec<_> = all.iter().enumerate().map(|(at, way)| (*way, at == open)).collect();
            let gate = LaneGate::of(&ways);
            assert!(all.iter().enumerate().all(|(at, way)| gate.is_open(*way) == (at == open)));
        }
        let closed = LaneGate::of(&[(LaneWay::SendCalls, false)]);
        assert!(closed != LaneGate::UNKNOWN && !closed.is_open(LaneWay::SendCalls));
    }
}
