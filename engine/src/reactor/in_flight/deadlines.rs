//! The end of a call's time, and of a message's wait for memory, a buffer or room in the send queue.

use super::read_ids::ReadOwner;
use crate::reactor::types::calls::RpcRefusal;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::version::TransportVersion;

/// Entry of a core's queue, which is tried again in whole turns. The queue's length is bounded by the calls and replies
/// in progress, and by the answers that a connection may be owed.
pub(in crate::reactor) enum Waiting {
    /// A call that finds no room, or a message with more to fetch. It is in the queue at most once.
    Message(ReadOwner),
    /// RDMA_ERROR, to a message with that version word.
    Error(Xid, u32, RdmaError),
    /// Another answer without results.
    Refusal(Xid, TransportVersion, RpcRefusal),
}

/// Wait of a message for memory, a buffer or room in the send queue.
#[derive(Clone, Copy, Default)]
pub(in crate::reactor) struct MessageWait {
    /// It is in the queue of the core.
    is_queued: bool,
    /// Generation of the call in its slot that waits for memory, and the end of that wait.
    ends: Option<(u32, Instant)>,
}

impl MessageWait {
    getters! {
        is_queued: bool,
    }

    /// Returns true if it was in the queue before.
    pub(in crate::reactor) fn set_queued(&mut self, is_queued: bool) -> bool {
        std::mem::replace(&mut self.is_queued, is_queued)
    }

    /// End of the wait for memory: the known one, or else `ends` from now on.
    pub(in crate::reactor) fn ends(&mut self, slot: SlotId, ends: Instant) -> Instant {
        let known = self.ends.filter(|(generation, _)| *generation == slot.generation);
        let (_, ends) = *self.ends.insert(known.unwrap_or((slot.generation, ends)));
        ends
    }
}

/// Turns without an event after which all that had arrived is taken: one may pass to notice a bell, one to notice a long
/// message, and one to take it.
const QUIET_TURNS: u32 = 4;
/// Turns after which deadlines are acted on even if more arrives.
const TURNS_MAX: u32 = 128;

/// Deadlines that have passed, and what had arrived by then is being taken: replies may lie in the rings of a process that was
/// stopped for longer than its deadlines.
#[derive(Default)]
pub(in crate::reactor) struct Overdue {
    /// Time at which they were noticed.
    since: Option<Instant>,
    turns: u32,
    quiet: u32,
}

impl Overdue {
    /// Takes part in a turn with this number of arrivals, at whose end a deadline has passed. Returns the time up to which
    /// deadlines may be acted on, once what had arrived by then is taken.
    pub(in crate::reactor) fn look(&mut self, arrivals: usize, now: Instant) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        self.turns += 1;
        self.quiet = if arrivals == 0 { self.quiet + 1 } else { 0 };
        let is_taken = self.quiet >= QUIET_TURNS || self.turns >= TURNS_MAX;
        is_taken.then(|| {
            *self = Self::default();
            since
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_wait_for_what_has_arrived_and_not_for_ever() {
        let mut overdue = Overdue::default();
        let mut ends_after = |events: &[usize]| {
            let mut turns = events.iter().enumerate();
            turns.find_map(|(turn, events)| {
                Some((turn + 1, overdue.look(*events, Instant(turn as u64))?))
            })
        };
        assert_eq!(ends_after(&[0, 0, 0, 0]), Some((4, Instant(0))));
        assert_eq!(ends_after(&[0, 9, 0, 0, 0, 0]), Some((6, Instant(0))));
        assert_eq!(ends_after(&[1; 200]), Some((TURNS_MAX as usize, Instant(0))));
    }
}
