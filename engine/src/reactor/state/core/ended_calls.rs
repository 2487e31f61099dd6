//! Calls that end without an answer: because their deadline expired, they were cancelled, or their reply cannot be
//! fetched. Ended calls are recorded first, and reported when the state is no longer borrowed, because that runs a
//! handler.

use super::{Core, CoreCell, Reactor};
use crate::fabric::ConnId;
use crate::reactor::in_flight::call_table::{CallTable, ConnRequester};
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::types::calls::{CallEnd, CallId, SlotToken};
use spinrpc_proto::events::{CallFailure, FailedCall, SlotId};
use spinrpc_proto::ids::Instant;
use std::collections::VecDeque;

/// See [`Core::ended`].
pub(super) type EndedCalls = VecDeque<(ConnId, SlotToken, CallEnd)>;

/// Collects the calls of one connection that are given up.
pub(in crate::reactor) struct GiveUp<'a> {
    conn: ConnId,
    calls: &'a mut CallTable,
    ended: &'a mut EndedCalls,
}

impl GiveUp<'_> {
    fn add(&mut self, failed: FailedCall) {
        let FailedCall { slot, token, failure, is_fenced } = failed;
        self.calls.give_up(slot, is_fenced);
        self.ended.push_back((self.conn, SlotToken { slot, token }, CallEnd::Failed(failure)));
    }
}

impl Core {
    /// A call has ended without an answer.
    pub(in crate::reactor) fn end_call(&mut self, conn: ConnId, call: SlotToken, end: CallEnd) {
        self.ended.push_back((conn, call, end));
    }
}

impl CoreCell {
    pub(in crate::reactor) fn report_ended_calls(&self, up: &mut impl Upcalls) {
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
        let is_requested = reactor.with_calls(conn, |requester, mut ended| {
            let cancelled = requester.cancel(slot);
            #[cfg(feature = "gss")]
            let cancelled = cancelled.or_else(|| requester.cancel(ended.calls.renamed(slot)?));
            cancelled.map(|failed| ended.add(failed)).is_some()
        });
        let is_requested = is_requested.unwrap_or(false);
        // A call whose reply is unsealed has no slot any more; its memory is private.
        #[cfg(feature = "gss")]
        if !is_requested && let Some(token) = reactor.gss_work().take_reply_to_unseal(conn, slot) {
            let end = CallEnd::Failed(CallFailure::Cancelled);
            reactor.end_call(conn, SlotToken { slot, token }, end);
            return true;
        }
        is_requested
    }
}

impl Reactor {
    /// Acts on the calls of a connection, or of the client that has lost it, and collects those that end.
    pub(in crate::reactor) fn with_calls<R>(
        &mut self,
        conn: ConnId,
        act: impl FnOnce(&mut ConnRequester, GiveUp<'_>) -> R,
    ) -> Option<R> {
        let Core { ended, detached_clients, .. } = &mut self.core;
        if let Some(c) = self.conns.find(conn) {
            let calls = &mut c.calls;
            return Some(act(&mut c.lane.proto().requester, GiveUp { conn, calls, ended }));
        }
        let (_, requester, calls) = detached_clients.all().find(|(lost, ..)| *lost == conn)?;
        Some(act(requester, GiveUp { conn, calls, ended }))
    }

    /// Fails the calls whose deadline has passed, and finds the next deadline. The cost grows with the number of
    /// connections, but it runs only when a deadline was reached.
    pub(in crate::reactor) fn expire_calls(&mut self, now: Instant) {
        let (conns, core) = self.split();
        let before = core.ended.len();
        for c in conns.iter_mut() {
            let requester = &mut c.lane.proto().requester;
            let (conn, calls, ended) = (c.id, &mut c.calls, &mut core.ended);
            let mut ended = GiveUp { conn, calls, ended };
            requester.on_time(now, |failed| ended.add(failed));
            core.wake_by(requester.next_deadline());
        }
        for (conn, requester, calls) in core.detached_clients.all() {
            let mut ended = GiveUp { conn, calls, ended: &mut core.ended };
            requester.on_time(now, |failed| ended.add(failed));
        }
        core.stats.timeouts += (core.ended.len() - before) as u64;
    }

    /// Notifies the application that a reply cannot be fetched.
    pub(in crate::reactor) fn give_up_reply(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        failure: CallFailure,
    ) {
        self.with_calls(conn, |requester, mut ended| {
            requester.give_up_pull(slot, failure).into_iter().for_each(|failed| ended.add(failed));
        });
    }
}
