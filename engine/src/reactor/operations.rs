//! Operations of a core, for the api and through it for handlers. Every operation returns at once, and borrows the
//! core's state only for itself, so that handlers and encoders may call any of them.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
#[cfg(feature = "gss")]
use crate::mem::BulkPool;
use crate::reactor::in_flight::deferred::Deferred;
use crate::reactor::in_flight::roles::NoReverse;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{CallId, ReplyTarget, RpcRefusal};
use crate::reactor::types::negotiate::Settled;
use crate::reactor::types::stats::StatsSnapshot;
use crate::sys::clock::Ticks;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::version::{Negotiation, TransportVersion};
use std::rc::Rc;
use std::time::Duration;

impl CoreCell {
    /// Changes the statistics.
    pub(crate) fn count(&self, change: impl FnOnce(&mut StatsSnapshot)) {
        change(self.reactor().stats());
    }

    /// The core's own registered memory.
    #[cfg(feature = "gss")]
    pub(crate) fn pool(&self) -> BulkPool {
        self.reactor().arena().clone()
    }

    /// Calls of `conn` that wait for their replies; `None` when it is down.
    pub(crate) fn in_flight(&self, conn: ConnId) -> Option<usize> {
        self.reactor().with_calls(conn, |requester, _| {
            requester.credits().in_flight() as usize + requester.held().count()
        })
    }

    /// Credits in use on `conn`, and true if it has one for another call; `None` when it is down.
    pub(crate) fn load(&self, conn: ConnId) -> Option<(u32, bool)> {
        self.reactor().with_calls(conn, |requester, _| {
            (requester.credits().in_flight(), requester.credits().available())
        })
    }

    /// Returns true while the application awaits the answer of any call on `conn`.
    pub(crate) fn awaits_any(&self, conn: ConnId) -> bool {
        self.reactor().with_calls(conn, |requester, _| requester.awaits_any()).unwrap_or(false)
    }

    /// Returns true while the application awaits the answer of this call on `conn`.
    pub(crate) fn is_awaited(&self, conn: ConnId, call: CallId) -> bool {
        let mut reactor = self.reactor();
        reactor.with_calls(conn, |requester, _| requester.is_awaited(call.slot())).unwrap_or(false)
    }

    /// The lane of a connection, which short messages use; `None` when it is down.
    pub(crate) fn lane_of(&self, conn: ConnId) -> Option<Rc<ConnLane>> {
        self.reactor().lane_of(conn).map(|(lane, _)| lane)
    }

    /// As [`CoreCell::close`], of a client that has no security context, for this reason.
    #[cfg(feature = "gss")]
    pub(crate) fn close_insecure(&self, conn: ConnId, reason: String) {
        match self.core_lane().is_serving(conn) {
            true => self.close(conn),
            false => self.reactor().begin_close(conn, DownCause::Security(reason.into())),
        }
    }

    /// A client makes reverse calls on this accepted connection from now on, inline only if so requested.
    pub(crate) fn begin_reverse(&self, conn: ConnId, is_inline: bool) -> Result<(), NoReverse> {
        match self.core_lane().is_closing(conn) {
            true => Err(NoReverse::Down),
            false => {
                // The lane counts a call after it was served.
                let is_served = self.core_lane().is_serving(conn);
                self.reactor().begin_reverse(conn, is_inline, is_served)
            }
        }
    }

    /// Sets the version negotiation of a new connection, before its first call.
    pub(crate) fn negotiate(&self, conn: ConnId, negotiation: Negotiation) {
        if let Some(c) = self.reactor().conn(conn) {
            c.negotiate(negotiation);
        }
    }

    /// The first call of a connection was answered. `None` when it is down.
    pub(crate) fn settle(&self, conn: ConnId) -> Option<Settled> {
        let mut reactor = self.reactor();
        let (c, core) = reactor.conn_and_core(conn)?;
        let settled = c.settle();
        let is_two = settled.negotiated.version() == Some(TransportVersion::Two);
        core.stats().connections_version_two += u64::from(is_two);
        Some(settled)
    }

    /// Lets the calls of a connection outlive it, as far as their specs permit; each is sent again at most
    /// `resends_max` times.
    pub(crate) fn make_lasting(&self, conn: ConnId, resends_max: u8) {
        if let Some(c) = self.reactor().conn(conn) {
            c.calls.make_lasting(resends_max);
        }
    }

    /// Requests `CoreEvent::Alarm` after this time, or earlier.
    pub(crate) fn set_alarm(&self, after: Duration) {
        let mut reactor = self.reactor();
        let at = Instant(reactor.turn_time().0.saturating_add(reactor.ticks(after)));
        reactor.detached_clients().set_alarm(at);
        reactor.wake_by(at);
    }

    /// Ends the held calls of a lost connection, then `CoreEvent::Gone`.
    pub(crate) fn give_up(&self, lost: ConnId, cause: DownCause) {
        let mut reactor = self.reactor();
        if reactor.detached_clients().give_up(lost, cause) {
            reactor.wake_by(Instant(0));
        }
    }

    /// Makes the core take a turn after this time, should it sleep then.
    pub(crate) fn look_after(&self, time: Duration) {
        let reactor = self.reactor();
        self.core_lane().note_deadline(reactor.in_ticks(reactor.ticks(time)));
    }

    /// The core's time, from an arbitrary start.
    pub(crate) fn time(&self) -> Duration {
        let reactor = self.reactor();
        Duration::from_nanos(reactor.ns(reactor.turn_time().0))
    }

    /// The same in ticks, for what is done with each call.
    #[inline]
    pub(crate) fn time_in_ticks(&self) -> Ticks {
        self.reactor().turn_time()
    }
}

/// Answers to calls.
impl CoreCell {
    /// Returns the target of an answer that is not a short reply, after taking a slot if the call has none; `None` when
    /// its connection has gone.
    #[inline]
    pub(crate) fn target<'a>(&self, serving: &Serving<'a>) -> Option<ReplyTarget<'a>> {
        serving.target(|conn, version| self.reactor().take_slot(conn, version))
    }

    /// Answers a call with an error.
    pub(crate) fn reject(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal) {
        self.reactor().refuse(to, answer);
    }

    /// The call, to be answered later; `None` when too many calls are deferred.
    pub(crate) fn defer(&self, to: &ReplyTarget<'_>) -> Option<Deferred> {
        self.reactor().defer_call(to)
    }

    /// Memory of the core for the results of a call of this connection, counted in its share.
    pub(crate) fn bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.reactor().charged_bulk(conn, bytes)
    }
}
