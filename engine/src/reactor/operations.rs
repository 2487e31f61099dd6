//! Operations of a core, for the api and through it for handlers. Every operation returns at once, and borrows the
//! core's state only for itself, so that handlers and encoders may call any of them.

use crate::fabric::{ConnId, DownCause};
use crate::mem::{Bulk, BulkPool, Slab};
use crate::reactor::pending::deferred::DeferTicket;
use crate::reactor::pending::offered::Settled;
use crate::reactor::pending::reply_cache::Ticket;
use crate::reactor::pending::roles::NoReverse;
use crate::reactor::pending::serving::ReplyOps;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{Backpressure, CallId, ReplyTarget, RpcRefusal};
use crate::reactor::words::draft::{Draft, EncodeOnce};
use crate::reactor::words::instance::Instance;
use crate::reactor::words::messages::SYSTEM_ERR;
use crate::reactor::words::reply_plan::ReplyData;
use spinrpc_proto::output::SlotId;
use spinrpc_proto::requester::{CallSlot, Requester};
use spinrpc_proto::version::Negotiation;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

impl CoreCell {
    /// A call that was refused for this reason waits in the engine: the application was not refused anything.
    pub(crate) fn uncount(&self, refused: Backpressure) {
        if refused == Backpressure::NoCredit {
            self.reactor().stats().credit_stalls -= 1;
        }
    }

    /// Answers a call whose handler panicked with SYSTEM_ERR, unless it was answered before.
    pub(crate) fn fail_call(&self, to: &ReplyTarget<'_>) {
        self.reactor().fail_call(to);
    }

    /// Gives up a call. Returns false if it has ended.
    pub(crate) fn cancel(&self, conn: ConnId, call: CallId) -> bool {
        self.cancel_call(conn, call.slot())
    }

    /// Memory for arguments and results of calls to the peer of `conn`.
    pub(crate) fn conn_bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.application_bulk(conn, bytes)
    }

    /// The core's own registered memory.
    pub(crate) fn pool(&self) -> BulkPool {
        self.reactor().bulk().clone()
    }

    /// Calls of `conn` that wait for their replies; `None` when it is down.
    pub(crate) fn in_flight(&self, conn: ConnId) -> Option<usize> {
        let mut reactor = self.reactor();
        let (conns, core) = reactor.split();
        let count = |requester: &Requester<Box<[CallSlot]>>| {
            requester.credits().in_flight() as usize + requester.held().count()
        };
        match conns.find(conn) {
            Some(c) => Some(count(&c.lane.proto().requester)),
            None => Some(count(core.interrupted().calls_of(conn)?.0)),
        }
    }

    /// Forgets a call without an answer: its connection will close.
    pub(crate) fn leave_call(&self, to: &ReplyTarget<'_>) {
        self.reactor().leave_call(to);
    }

    /// The lane of a connection, which short messages use; `None` when it is down.
    pub(crate) fn lane_of(&self, conn: ConnId) -> Option<Rc<ConnLane>> {
        self.reactor().lane_of(conn).map(|(lane, _)| lane)
    }

    /// Begins to close a connection.
    pub(crate) fn close(&self, conn: ConnId) {
        self.close_unless_serving(conn);
    }

    /// The same of a client that has no security context, for this reason.
    #[cfg(feature = "gss")]
    pub(crate) fn close_insecure(&self, conn: ConnId, reason: String) {
        match self.lane().is_serving(conn) {
            true => self.close(conn),
            false => self.reactor().begin_close(conn, DownCause::Security(reason.into())),
        }
    }

    /// The peer of the connection requested under this number may make reverse calls.
    pub(crate) fn take_reverse_calls(&self, request: u64) {
        self.reactor().take_reverse_calls(request);
    }

    /// A client makes reverse calls on this accepted connection from now on, inline only if so requested.
    pub(crate) fn begin_reverse(&self, conn: ConnId, is_inline: bool) -> Result<(), NoReverse> {
        match self.lane().is_closing(conn) {
            true => Err(NoReverse::Down),
            false => {
                // The lane counts a call after it was served.
                let is_served = self.lane().is_serving(conn);
                self.reactor().begin_reverse(conn, is_inline, is_served)
            }
        }
    }

    /// Sets the version negotiation of a new connection, before its first call.
    pub(crate) fn negotiate(&self, conn: ConnId, negotiation: Negotiation) {
        self.reactor().negotiate(conn, negotiation);
    }

    /// The first call of a connection was answered. `None` when it is down.
    pub(crate) fn settle(&self, conn: ConnId) -> Option<Settled> {
        self.reactor().settle(conn)
    }

    /// Lets the calls of a connection outlive it, as far as their specs permit; each is sent again at most
    /// `resends_max` times.
    pub(crate) fn make_lasting(&self, conn: ConnId, resends_max: u8) {
        self.reactor().make_lasting(conn, resends_max);
    }

    /// Requests `CoreEvent::Retry` after a time.
    pub(crate) fn retry_after(&self, lost: ConnId, after: Duration) {
        self.reactor().retry_after(lost, after);
    }

    /// As [`CoreCell::connect`], for another connection in the place of `lost`.
    pub(crate) fn reconnect(
        &self,
        lost: ConnId,
        address: &str,
        timeout: Duration,
        instance: Instance,
        lent: &Arc<[Slab]>,
    ) -> u64 {
        let request = self.connect(address, timeout, instance, lent);
        self.reactor().note_request(lost, request);
        request
    }

    /// Ends the held calls of a lost connection, then `CoreEvent::Gone`.
    pub(crate) fn give_up(&self, lost: ConnId, cause: DownCause) {
        self.reactor().give_up(lost, cause);
    }

    /// Makes the core take a turn after this time, should it sleep then.
    pub(crate) fn look_after(&self, time: Duration) {
        let reactor = self.reactor();
        self.lane().note_deadline(reactor.in_ticks(reactor.ticks(time)));
    }

    /// The core's time, from an arbitrary start.
    pub(crate) fn time(&self) -> Duration {
        let reactor = self.reactor();
        Duration::from_nanos(reactor.ns(reactor.time().0))
    }
}

impl ReplyOps for CoreCell {
    fn reply(
        &self,
        to: &ReplyTarget<'_>,
        data: ReplyData,
        keep: Option<Ticket>,
        encode: EncodeOnce<'_>,
    ) {
        self.encode_reply(to, data, keep, encode);
    }

    fn reply_again(&self, to: &ReplyTarget<'_>, data: ReplyData, draft: &Draft<'_>) {
        self.send_results(to, data, draft);
    }

    fn drop_call(&self, to: &ReplyTarget<'_>) {
        let mut reactor = self.reactor();
        reactor.stats().calls_dropped += 1;
        reactor.refuse(to, &SYSTEM_ERR);
    }

    fn reject(&self, to: &ReplyTarget<'_>, answer: &RpcRefusal) {
        self.reactor().refuse(to, answer);
    }

    fn leave_repeated(&self, to: &ReplyTarget<'_>) {
        self.reactor().leave_repeated(to);
    }

    fn defer(&self, to: &ReplyTarget<'_>) -> Option<DeferTicket> {
        self.reactor().defer_call(to)
    }

    fn take_slot(&self, conn: ConnId) -> Option<SlotId> {
        self.reactor().take_slot(conn)
    }

    fn bulk(&self, conn: ConnId, bytes: usize) -> Option<Bulk> {
        self.reactor().charged_bulk(conn, bytes)
    }

    fn count_replay(&self) {
        self.reactor().stats().replies_replayed += 1;
    }

    fn count_full(&self) {
        self.reactor().stats().reply_cache_full += 1;
    }
}

impl Reactor {
    /// Ends every connection, including those that are still to come.
    pub(in crate::reactor) fn shut_down(&mut self) {
        self.refuse_connections();
        self.close_all();
        self.give_up_all();
    }
}
