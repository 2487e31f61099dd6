//! Calls that have ended without an answer, in the order in which the application is told.

use crate::fabric::ConnId;
use crate::reactor::words::calls::{CallEnd, CallKey};
#[cfg(feature = "canary")]
use spinrpc_proto::output::SlotId;
use std::collections::VecDeque;

/// Calls whose ends were not yet reported to the application.
pub(in crate::reactor) struct EndedCalls {
    calls: VecDeque<(ConnId, CallKey, CallEnd)>,
    /// Slots that keep their memory until the responder answers.
    #[cfg(feature = "canary")]
    fenced: VecDeque<(ConnId, SlotId)>,
}

impl EndedCalls {
    pub(in crate::reactor) fn with_capacity(calls: usize) -> Self {
        Self {
            calls: VecDeque::with_capacity(calls),
            #[cfg(feature = "canary")]
            fenced: VecDeque::new(),
        }
    }

    pub(in crate::reactor) fn push(&mut self, conn: ConnId, call: CallKey, end: CallEnd) {
        self.calls.push_back((conn, call, end));
    }

    pub(in crate::reactor) fn pop(&mut self) -> Option<(ConnId, CallKey, CallEnd)> {
        self.calls.pop_front()
    }

    pub(in crate::reactor) fn len(&self) -> usize {
        self.calls.len()
    }

    #[inline]
    pub(in crate::reactor) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The responder of this call has not answered, and may still use its memory.
    #[cfg(feature = "canary")]
    pub(in crate::reactor) fn note_fenced(&mut self, conn: ConnId, slot: SlotId) {
        self.fenced.push_back((conn, slot));
    }

    #[cfg(feature = "canary")]
    pub(in crate::reactor) fn take_fenced(&mut self) -> Option<(ConnId, SlotId)> {
        self.fenced.pop_front()
    }
}
