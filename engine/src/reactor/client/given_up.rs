//! Calls that end without an answer: because their deadline expired, they were cancelled, or their reply cannot be
//! fetched. Ended calls are recorded first, and reported when the state is no longer borrowed, because that runs a
//! handler. Called by the core.

use crate::fabric::ConnId;
use crate::reactor::pending::call_table::CallTable;
use crate::reactor::pending::ended_calls::GivenUp;
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{CallEnd, CallKey};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::output::{CallFailure, Output, SlotId};
use std::collections::VecDeque;

/// Collects the calls of one connection that are given up.
struct GiveUp<'a> {
    conn: ConnId,
    calls: &'a mut CallTable,
    given_up: &'a mut VecDeque<GivenUp>,
}

impl Output for GiveUp<'_> {
    /// The memory of a fenced call stays, because the responder may still write there. The copy kept for a resend is
    /// dropped now: the answer may arrive, and another call may take the slot, before the application is notified of
    /// the end.
    fn fail_call(&mut self, slot: SlotId, token: u64, failure: CallFailure, fenced: bool) {
        if fenced {
            self.calls.forget(slot);
        } else {
            self.calls.free(slot);
        }
        self.given_up.push_back(GivenUp {
            #[cfg(feature = "canary")]
            fenced: fenced.then_some(slot),
            ..GivenUp::new(self.conn, CallKey { slot, token }, CallEnd::Failed(failure))
        });
    }
}

impl CoreCell {
    pub(in crate::reactor) fn end_given_up(&self, up: &mut impl Upcalls) {
        #[cfg(feature = "canary")]
        self.reactor().free_given_up();
        loop {
            let ended = self.reactor().given_up.pop_front();
            let Some(GivenUp { conn, call, end, .. }) = ended else { return };
            #[cfg(feature = "gss")]
            self.keep_no_more(conn, call.slot);
            up.on_call_failed(conn, call, end);
        }
    }

    pub(in crate::reactor) fn cancel_call(&self, conn: ConnId, slot: SlotId) -> bool {
        let is_requested = self.cancel_requested(conn, slot);
        #[cfg(feature = "gss")]
        return is_requested || self.cancel_secured(conn, slot);
        #[cfg(not(feature = "gss"))]
        return is_requested;
    }

    /// The same of a call that the requester knows by this slot.
    pub(in crate::reactor) fn cancel_requested(&self, conn: ConnId, slot: SlotId) -> bool {
        let reactor = &mut *self.reactor();
        let found = match reactor.conns.find(conn) {
            Some(c) => Some((&mut c.lane.proto().requester, &mut c.calls)),
            None => reactor.interrupted.calls_of(conn),
        };
        let Some((requester, calls)) = found else { return false };
        let mut sink = GiveUp { conn, calls, given_up: &mut reactor.given_up };
        requester.cancel(slot, &mut sink)
    }
}

impl Reactor {
    /// The bug that the canary plants, which a simulation has to find: the memory of an abandoned call is released at
    /// once, and the late reply of an honest responder is written over its next user, or finds its key dead.
    #[cfg(feature = "canary")]
    fn free_given_up(&mut self) {
        for ended in &mut self.given_up {
            let Some(slot) = ended.fenced.take() else { continue };
            let Some(c) = self.conns.find(ended.conn) else { continue };
            if let Some(hold) = c.end_call(slot, &mut self.fabric) {
                c.calls.recycle(hold);
            }
        }
    }

    /// Notifies the application that a reply cannot be fetched.
    pub(in crate::reactor) fn give_up_reply(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        failure: CallFailure,
    ) {
        let Some(c) = self.conns.find(conn) else { return };
        let mut sink = GiveUp { conn, calls: &mut c.calls, given_up: &mut self.given_up };
        c.lane.proto().requester.give_up_pull(slot, failure, &mut sink);
    }
}

impl Reactor {
    /// Fails the calls whose deadline has passed, and finds the next deadline. The cost grows with the number of
    /// connections, but it runs only when a deadline was reached.
    pub(in crate::reactor) fn expire_calls(&mut self, now: Instant) {
        let before = self.given_up.len();
        let given_up = &mut self.given_up;
        for c in self.conns.iter_mut() {
            let mut sink = GiveUp { conn: c.id, calls: &mut c.calls, given_up };
            c.lane.proto().requester.on_time(now, &mut sink);
            self.next_deadline = self.next_deadline.min(c.lane.proto().requester.next_deadline());
        }
        for (conn, requester, calls) in self.interrupted.all() {
            requester.on_time(now, &mut GiveUp { conn, calls, given_up });
        }
        self.stats.timeouts += (self.given_up.len() - before) as u64;
    }
}
