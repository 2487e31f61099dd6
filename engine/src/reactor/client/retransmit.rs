//! Resends a client's calls after its connection was lost (RFC 5666 section 8): the requester and the calls that may
//! be sent again wait here, without a connection, and continue on the next one, in their original order and before
//! new calls.
//!
//! A call that may be sent again keeps its encoded stream, in a block of the core's memory; there are at most as many
//! as credits. Memory that the lost connection's peer could reach is never exposed again: arguments are copied to
//! memory of the new connection, results get new room. Deadlines continue to run.
//!
//! The api decides when to try another connection; a thread makes it.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
use crate::reactor::client::chunked_calls::Start;
use crate::reactor::in_flight::reconnecting::Suspended;
use crate::reactor::in_flight::retransmit_table::{Lasting, Retransmit};
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallEnd, CallId, CallSpec, Resend, SlotToken};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::memory::longest_block_bytes;
use crate::sys::journal::event;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use std::time::Duration;

/// Retry interval of a held call that found no credit, buffer or room. Usually a reply triggers the retry; the
/// interval covers replies to calls that have already ended.
const RESEND_PAUSE: Duration = Duration::from_millis(1);

impl CoreCell {
    /// Starts a call that is kept until it ends.
    pub(in crate::reactor) fn keep_call(
        &self,
        conn: ConnId,
        token: u64,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
    ) -> Result<CallId, Backpressure> {
        // A call that cannot start anyway is not stored.
        drop(self.reactor().take_send_buffer(conn)?.0);
        let kept = self.keep(spec, draft)?;
        let slot = self.protect_call(conn, Start::New(token), spec, draft)?;
        if let Some(lasting) = self.reactor().lasting(conn) {
            lasting.put(slot, kept);
        }
        Ok(CallId::of(slot))
    }

    fn keep(&self, spec: &CallSpec, draft: &Draft<'_>) -> Result<Retransmit, Backpressure> {
        if spec.arguments.iter().flatten().any(Bulk::is_exposed) {
            return Err(Backpressure::Misuse(
                "an exposed argument in a call that may be sent again",
            ));
        }
        let mut reactor = self.reactor();
        let order = reactor.stats().calls_sent;
        let kept = Retransmit::new(reactor.arena(), draft, order, spec);
        let longest_bytes = longest_block_bytes(reactor.config());
        kept.ok_or_else(|| no_block(draft.stream().len(), longest_bytes))
    }

    /// The connection of a lasting client went down: calls that may be sent again wait for the next one.
    pub(in crate::reactor) fn suspend(&self, gone: Conn, cause: &DownCause, up: &mut impl Upcalls) {
        let lost = gone.id;
        let ended = self.reactor().suspend(gone, cause);
        for (call, end) in ended {
            up.on_event(CoreEvent::CallFailed(lost, call, end));
        }
        up.on_event(CoreEvent::Lost(lost, cause));
    }

    /// Sends held calls again as far as credits and memory permit. Returns true when all are sent.
    pub(crate) fn resend_held(&self, conn: ConnId) -> bool {
        loop {
            let next = self.reactor().next_held(conn);
            let Some(slot) = next else { break };
            match self.retransmit(conn, slot) {
                Ok(()) => {}
                Err(refused) if may_pass(&refused) => {
                    self.reactor().look_again_soon(conn);
                    return false;
                }
                Err(refused) => {
                    event!(WARN, %refused, "a call cannot be sent again");
                    self.reactor().fail_held(conn, slot);
                }
            }
        }
        self.reactor().interrupted().end_resending(conn);
        true
    }

    fn retransmit(&self, conn: ConnId, slot: SlotId) -> Result<(), Backpressure> {
        let (kept, mut spec) = self.reactor().take_held(conn, slot)?;
        let sent = self.protect_call(conn, Start::Again(slot), &mut spec, &kept.draft());
        self.reactor().put_back(conn, slot, kept, spec, sent.is_ok());
        sent.map(drop)
    }

    /// Ends the calls of clients that the api has given up, before a connection requested by one of them is assigned:
    /// it would go to a client that has ended.
    #[cold]
    pub(in crate::reactor) fn end_given_up_clients(&self, up: &mut impl Upcalls) {
        loop {
            let gone = self.reactor().interrupted().take_given_up();
            let Some(client) = gone else { return };
            end_all(client, up);
        }
    }

    /// Attends to clients without a connection, and to those that are resending their calls.
    #[cold]
    pub(in crate::reactor) fn attend_interrupted(&self, up: &mut impl Upcalls) {
        self.end_given_up_clients(up);
        let now = Instant(self.reactor().turn_time().0);
        let alarm = self.reactor().interrupted().alarm.take_if(|at| *at <= now);
        if alarm.is_some() {
            up.on_event(CoreEvent::Alarm);
        }
        let resending = self.reactor().interrupted().resending.clone();
        for conn in resending {
            if self.resend_held(conn) {
                up.on_event(CoreEvent::Resent(conn));
            }
        }
    }
}

/// Returns true if a call refused for this reason may be sent later.
fn may_pass(refused: &Backpressure) -> bool {
    use Backpressure::{Connecting, Down, NoBuffer, NoCredit, Reconnecting, SendQueueFull};
    // Connecting: a security context is being replaced.
    matches!(refused, NoCredit | NoBuffer | SendQueueFull | Down | Connecting | Reconnecting)
}

/// There will be no other connection: every held call ends.
fn end_all(client: Suspended, up: &mut impl Upcalls) {
    let Suspended { lost, cause, mut requester, calls, .. } = client;
    let lasting = calls.lasting;
    requester.on_down(|slot, token| {
        if let Some(token) = token {
            let is_unexecuted = lasting.as_ref().is_some_and(|kept| kept.is_unexecuted(slot));
            let end = CallEnd::of(is_unexecuted, &cause);
            up.on_event(CoreEvent::CallFailed(lost, SlotToken { slot, token }, end));
        }
    });
    up.on_event(CoreEvent::Gone(lost, &cause));
}

impl Reactor {
    fn lasting(&mut self, conn: ConnId) -> Option<&mut Lasting> {
        self.conn(conn)?.calls.lasting.as_deref_mut()
    }

    /// Returns true if calls of this connection may outlive it.
    pub(in crate::reactor) fn is_lasting(&mut self, conn: ConnId) -> bool {
        self.lasting(conn).is_some()
    }

    /// Takes the calls out of a lost connection; returns those that end, and their ends.
    fn suspend(&mut self, gone: Conn, cause: &DownCause) -> Vec<(SlotToken, CallEnd)> {
        let (lost, server, mut requester) =
            (gone.id, gone.negotiated.peer(), gone.lane.take_requester());
        let Conn { mut calls, mut dialect, .. } = gone;
        let (mut ended, unsent) = (Vec::new(), requester.reserved().collect::<Vec<_>>());
        requester.suspend(|slot, token| {
            let is_unexecuted = unsent.contains(&slot);
            if let Some(lasting) = calls.lasting.as_mut() {
                lasting.note_loss(slot, is_unexecuted);
            }
            if let Some(hold) = dialect.take_pull(slot).and_then(|pull| pull.hold) {
                calls.put(slot, hold);
            }
            let held = token.is_some() && calls.detach(slot);
            if !held {
                let kept = calls.lasting.as_ref().and_then(|lasting| lasting.kept(slot));
                let is_unexecuted = kept.map_or(is_unexecuted, |kept| !kept.is_unknown());
                calls.free(slot);
                let end = CallEnd::of(is_unexecuted, cause);
                ended.extend(token.map(|token| (SlotToken { slot, token }, end)));
            }
            held
        });
        if let Some(lasting) = calls.lasting.as_mut() {
            lasting.lost_by = cause.clone();
        }
        self.wake_by(requester.next_deadline());
        self.interrupted().push(Suspended {
            lost,
            requester,
            calls,
            server,
            cause: cause.clone(),
            is_given_up: false,
        });
        ended
    }

    /// Moves the client that lost a connection to this one.
    pub(in crate::reactor) fn take_over(&mut self, lost: ConnId, conn: &mut Conn) {
        let Some(client) = self.interrupted().take(lost) else { return };
        let remembers = client.server.remembers_for(conn.negotiated.peer());
        (conn.lane.proto().requester, conn.calls) = (client.requester, client.calls);
        self.stats().reconnects += 1;
        if !remembers {
            self.fail_at_most_once(conn, &client.cause);
        }
    }

    /// Another server answers now, which cannot know which calls the previous one has executed: calls that it may
    /// have executed end.
    fn fail_at_most_once(&mut self, conn: &mut Conn, cause: &DownCause) {
        let lasting = conn.calls.lasting.as_deref();
        let at_most_once = |slot: &SlotId| {
            let kept = lasting.and_then(|lasting| lasting.kept(*slot));
            kept.is_none_or(|kept| kept.resend() == Resend::AtMostOnce && kept.is_unknown())
        };
        let ended: Vec<SlotId> = conn.lane.proto().requester.held().filter(at_most_once).collect();
        for slot in ended {
            let token = conn.lane.proto().requester.release_held(slot);
            conn.calls.free(slot);
            if let Some(token) = token {
                let end = CallEnd::Down(cause.clone());
                self.end_call(conn.id, SlotToken { slot, token }, end);
            }
        }
    }

    /// The held call that was sent first, unless it has no credit.
    fn next_held(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conn(conn)?;
        let lasting = c.calls.lasting.as_ref()?;
        c.lane
            .proto()
            .requester
            .held()
            .min_by_key(|slot| lasting.kept(*slot).map(Retransmit::order))
    }

    /// The stored state of a held call, with the buffers it lends to the new connection.
    fn take_held(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Result<(Retransmit, CallSpec), Backpressure> {
        let (c, core) = self.conn_and_core(conn).ok_or(Backpressure::Down)?;
        c.lane.proto().requester.check_resend(slot).map_err(|_| Backpressure::NoCredit)?;
        let mut rooms = [const { None }; ITEMS_MAX];
        let lasting = c.calls.lasting.as_mut().ok_or(Backpressure::Down)?;
        let wanted = lasting.kept(slot).map_or([None; ITEMS_MAX], |kept| *kept.rooms());
        for (bytes, room) in wanted.iter().zip(&mut rooms) {
            let Some(bytes) = *bytes else { continue };
            let longest_bytes = longest_block_bytes(core.config());
            let bulk = core.fabric_mut().bulk(conn, bytes);
            *room = Some(bulk.ok_or_else(|| no_block(bytes, longest_bytes))?);
        }
        let kept = lasting.take(slot).ok_or(Backpressure::Down)?;
        let mut spec = kept.spec();
        if let Some(mut hold) = c.calls.take(slot) {
            spec.arguments = std::mem::take(&mut hold.arguments);
            spec.results = std::mem::take(&mut hold.results);
            c.calls.recycle(hold);
        }
        for (room, result) in rooms.into_iter().zip(&mut spec.results) {
            *result = room.or(result.take());
        }
        Ok((kept, spec))
    }

    /// Puts the stored state of a call back, where it stays until the call ends; a call that could not be sent again
    /// gets its buffers back.
    fn put_back(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        mut kept: Retransmit,
        mut spec: CallSpec,
        sent: bool,
    ) {
        self.stats().calls_resent += u64::from(sent);
        let Some(c) = self.conn(conn) else { return };
        if sent {
            kept.count_resend();
        } else if let Some(mut hold) = c.calls.spare() {
            for (room, result) in kept.rooms().iter().zip(&mut spec.results) {
                result.take_if(|_| room.is_some());
            }
            hold.arguments = spec.arguments;
            hold.results = spec.results;
            c.calls.put(slot, hold);
        }
        if let Some(lasting) = c.calls.lasting.as_mut() {
            lasting.put(slot, kept);
        }
    }

    fn look_again_soon(&mut self, conn: ConnId) {
        self.interrupted().begin_resending(conn);
        let pause_ends = self.pause_ends();
        self.wake_by(pause_ends);
    }

    pub(in crate::reactor) fn pause_ends(&self) -> Instant {
        Instant(self.turn_time().0.saturating_add(self.ticks(RESEND_PAUSE)))
    }

    /// Fails a held call that can never be sent on the new connection.
    fn fail_held(&mut self, conn: ConnId, slot: SlotId) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let lasting = c.calls.lasting.as_ref();
        let cause = lasting.map_or(DownCause::Local, |lasting| lasting.lost_by.clone());
        let is_unexecuted = lasting.is_some_and(|lasting| lasting.is_unexecuted(slot));
        let token = c.lane.proto().requester.release_held(slot);
        c.calls.free(slot);
        if let Some(token) = token {
            let end = CallEnd::of(is_unexecuted, &cause);
            core.end_call(conn, SlotToken { slot, token }, end);
        }
    }

    /// The core ends: no client gets another connection.
    pub(in crate::reactor) fn give_up_all(&mut self) {
        if self.interrupted().give_up_all() {
            self.wake_by(Instant(0));
        }
    }
}
