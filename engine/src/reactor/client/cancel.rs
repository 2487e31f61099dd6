//! Calls that end without an answer: because their deadline expired, they were cancelled, or their reply cannot be
//! fetched. Ended calls are recorded first, and reported when the state is no longer borrowed, because that runs a
//! handler. Called by the core.

use crate::fabric::ConnId;
use crate::reactor::in_flight::call_table::CallTable;
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{CallEnd, CallId, SlotToken};
use spinrpc_proto::events::{CallFailure, Output, SlotId};
use spinrpc_proto::ids::Instant;
use std::collections::VecDeque;

/// Collects the calls of one connection that are given up.
struct GiveUp<'a> {
    conn: ConnId,
    calls: &'a mut CallTable,
    ended: &'a mut VecDeque<(ConnId, SlotToken, CallEnd)>,
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
        #[cfg(feature = "canary")]
        if fenced {
            self.calls.canary.push(slot);
        }
        self.ended.push_back((self.conn, SlotToken { slot, token }, CallEnd::Failed(failure)));
    }
}

impl CoreCell {
    pub(in crate::reactor) fn report_ended_calls(&self, up: &mut impl Upcalls) {
        #[cfg(feature = "canary")]
        self.reactor().free_given_up();
        loop {
            let ended = self.reactor().ended.pop_front();
            let Some((conn, call, end)) = ended else { return };
            #[cfg(feature = "gss")]
            if let Some(gss) = self.reactor().conn(conn).and_then(|c| c.gss_mut()) {
                gss.keep_no_more(call.slot.xid());
            }
            up.on_event(CoreEvent::CallFailed(conn, call, end));
        }
    }

    /// Gives up a call. Returns false if it has ended.
    pub(crate) fn cancel(&self, conn: ConnId, call: CallId) -> bool {
        let slot = call.slot();
        let mut reactor = self.reactor();
        let (conns, core) = reactor.split();
        let (interrupted, ended) = (&mut core.interrupted, &mut core.ended);
        let found = match conns.find(conn) {
            Some(c) => Some((&mut c.lane.proto().requester, &mut c.calls)),
            None => interrupted.calls_of(conn),
        };
        let is_requested = found.is_some_and(|(requester, calls)| {
            let is_requested = requester.cancel(slot, &mut GiveUp { conn, calls, ended });
            #[cfg(feature = "gss")]
            if !is_requested && let Some(renamed) = calls.renamed(slot) {
                return requester.cancel(renamed, &mut GiveUp { conn, calls, ended });
            }
            is_requested
        });
        // A call whose reply is opened has no slot any more; its memory is private.
        #[cfg(feature = "gss")]
        if !is_requested && let Some(token) = core.gss_work.take_opening(conn, slot) {
            let end = CallEnd::Failed(CallFailure::Cancelled);
            core.end_call(conn, SlotToken { slot, token }, end);
            return true;
        }
        is_requested
    }
}

impl Reactor {
    /// The bug that the canary plants, which a simulation has to find: the memory of an abandoned call is released at
    /// once, and the late reply of an honest responder is written over its next user, or finds its key dead.
    #[cfg(feature = "canary")]
    fn free_given_up(&mut self) {
        let (conns, core) = self.split();
        for c in conns.iter_mut() {
            while let Some(slot) = c.calls.canary.pop() {
                if let Some(call) = c.end_call(slot, core.fabric_mut()) {
                    c.calls.recycle(call);
                }
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
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let mut sink = GiveUp { conn, calls: &mut c.calls, ended: &mut core.ended };
        c.lane.proto().requester.give_up_pull(slot, failure, &mut sink);
    }
}

impl Reactor {
    /// Fails the calls whose deadline has passed, and finds the next deadline. The cost grows with the number of
    /// connections, but it runs only when a deadline was reached.
    pub(in crate::reactor) fn expire_calls(&mut self, now: Instant) {
        let (conns, core) = self.split();
        let before = core.ended.len();
        for c in conns.iter_mut() {
            let mut sink = GiveUp { conn: c.id, calls: &mut c.calls, ended: &mut core.ended };
            c.lane.proto().requester.on_time(now, &mut sink);
            core.wake_by(c.lane.proto().requester.next_deadline());
        }
        let (interrupted, ended) = (&mut core.interrupted, &mut core.ended);
        for (conn, requester, calls) in interrupted.all() {
            requester.on_time(now, &mut GiveUp { conn, calls, ended });
        }
        let timeouts = core.ended.len() - before;
        core.stats().timeouts += timeouts as u64;
    }
}
