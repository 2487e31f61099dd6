//! State of arriving messages that a core keeps between turns, including when a turn looks around. Used by the turn
//! only; the api holds it.

use crate::fabric::{Completions, Short};
use crate::reactor::state::conn_lane::ConnLane;
use std::rc::Rc;

/// Turns with messages that end early between two looks at the state they leave out (`look_around`).
pub(in crate::reactor) const LOOK_EVERY: u32 = 16;
/// The same for turns without messages.
const LOOK_IDLE_EVERY: u32 = 8;

/// Buffers of a turn for messages that have arrived.
pub(crate) struct ArrivedMessages {
    pub(in crate::reactor) batch: Completions,
    pub(in crate::reactor) short: Short,
    /// Short messages of one turn.
    shorts_max: usize,
    /// Short messages that may be handled before the next look around.
    pub(in crate::reactor) shorts_left: usize,
    /// Turns that have ended early since the last look around, and had no messages.
    pub(in crate::reactor) idle_turns: u32,
    /// Turns that have ended early since the statistics were updated, and had messages.
    pub(in crate::reactor) busy_turns: u32,
    /// The lane of the connection that the last short message arrived on: usually the next one arrives there, too.
    /// Dropped when a connection ends, because it keeps that connection's memory.
    pub(in crate::reactor) lane: Option<Rc<ConnLane>>,
}

impl ArrivedMessages {
    /// At most `limit` completions in a turn, and as many short messages.
    pub(crate) fn with_limit(limit: usize) -> Self {
        let (batch, short) = (Completions::with_limit(limit), Short::EMPTY);
        let (idle_turns, busy_turns, lane) = (0, 0, None);
        Self { batch, short, shorts_max: limit, shorts_left: limit, idle_turns, busy_turns, lane }
    }

    /// Begins a new interval: all state is checked now.
    #[inline(always)]
    pub(in crate::reactor) fn begin_looks(&mut self) {
        (self.shorts_left, self.idle_turns) = (self.shorts_max, 0);
    }

    /// Returns true if the turn with this number of messages has to look around.
    #[inline(always)]
    pub(in crate::reactor) fn is_to_look(&self, shorts: usize) -> bool {
        let is_due = match shorts {
            0 => self.idle_turns >= LOOK_IDLE_EVERY,
            _ => self.busy_turns >= LOOK_EVERY,
        };
        is_due || self.shorts_left == shorts
    }
}
