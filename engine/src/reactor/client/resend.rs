//! Resends a client's calls after its connection was lost (RFC 5666 section 8): the requester and the calls that may
//! be sent again wait here, without a connection, and continue on the next one, in their original order and before
//! new calls.
//!
//! A call that may be sent again keeps its encoded stream, in a block of the core's memory; there are at most as many
//! as credits. Memory that the lost connection's peer could reach is never exposed again: arguments are copied to
//! memory of the new connection, results get new room. Deadlines continue to run.
//!
//! The api decides when to try another connection; the control thread makes it.

use crate::fabric::{ConnId, DownCause};
use crate::mem::Bulk;
use crate::reactor::client::calls::Start;
use crate::reactor::pending::call_table::CallTable;
use crate::reactor::pending::ended_calls::GivenUp;
use crate::reactor::pending::interrupted::Suspended;
use crate::reactor::pending::lasting::{Lasting, Retransmit};
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{Backpressure, CallEnd, CallId, CallKey, CallSpec, Resend};
use crate::reactor::words::draft::Draft;
use crate::reactor::words::memory::longest_block_bytes;
use crate::reactor::words::messages::no_block;
use crate::sys::journal::event;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::SlotId;
use std::time::Duration;

/// Retry interval of a held call that found no credit, buffer or room. Usually a reply triggers the retry; the
/// interval covers replies to calls that have already ended.
const RESEND_PAUSE: Duration = Duration::from_millis(1);

impl CoreCell {
    /// Starts a call that is kept until it ends.
    pub(in crate::reactor) fn start_kept_call(
        &self,
        conn: ConnId,
        token: u64,
        spec: &mut CallSpec,
        draft: &Draft<'_>,
    ) -> Result<CallId, Backpressure> {
        // A call that cannot start anyway is not stored.
        drop(self.reactor().take_send_buffer(conn)?.0);
        let kept = self.keep(spec, draft)?;
        let slot = self.start_special_call(conn, Start::New(token), spec, draft)?;
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
        let reactor = self.reactor();
        let (from, bytes) = (draft.stream(), draft.stream().len());
        let longest_bytes = longest_block_bytes(&reactor.config);
        let mut stream = reactor.bulk.take(bytes).ok_or_else(|| no_block(bytes, longest_bytes))?;
        stream.bytes_mut().copy_from_slice(from);
        Ok(Retransmit::new(stream, *draft.cuts(), reactor.stats.calls_sent, spec))
    }

    /// The connection of a lasting client went down: calls that may be sent again wait for the next one.
    pub(in crate::reactor) fn suspend(&self, gone: Conn, cause: &DownCause, up: &mut impl Upcalls) {
        let lost = gone.id;
        let ended = self.reactor().suspend(gone, cause);
        for (call, end) in ended {
            up.on_call_failed(lost, call, end);
        }
        up.on_lost(lost, cause);
    }

    /// Sends held calls again as far as credits and memory permit. Returns true when all are sent.
    pub(crate) fn resend_held(&self, conn: ConnId) -> bool {
        loop {
            let next = self.reactor().next_held(conn);
            let Some(slot) = next else { break };
            match self.send_again(conn, slot) {
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
        self.reactor().interrupted.resending.retain(|other| *other != conn);
        true
    }

    fn send_again(&self, conn: ConnId, slot: SlotId) -> Result<(), Backpressure> {
        let (kept, mut spec) = self.reactor().take_held(conn, slot)?;
        let draft = Draft::new(kept.stream.bytes(), kept.cuts);
        let sent = self.start_special_call(conn, Start::Again(slot), &mut spec, &draft);
        self.reactor().put_back(conn, slot, kept, spec, sent.is_ok());
        sent.map(drop)
    }

    /// Ends the calls of clients that the api has given up, before a connection requested by one of them is assigned:
    /// it would go to a client that has ended.
    #[cold]
    pub(in crate::reactor) fn end_given_up_clients(&self, up: &mut impl Upcalls) {
        loop {
            let gone = self.reactor().take_given_up();
            let Some(client) = gone else { return };
            end_all(client, up);
        }
    }

    /// Attends to clients without a connection, and to those that are resending their calls.
    #[cold]
    pub(in crate::reactor) fn attend_interrupted(&self, up: &mut impl Upcalls) {
        self.end_given_up_clients(up);
        loop {
            let due = self.reactor().take_due();
            let Some(lost) = due else { break };
            up.on_retry(lost);
        }
        let resending = self.reactor().interrupted.resending.clone();
        for conn in resending {
            if self.resend_held(conn) {
                up.on_resent(conn);
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
fn end_all(mut client: Suspended, up: &mut impl Upcalls) {
    let (lost, cause, calls) = (client.lost, client.cause, client.calls);
    let lasting = calls.lasting.as_deref();
    client.requester.on_down(|slot, token| {
        if let Some(token) = token {
            let is_unexecuted = lasting.is_some_and(|lasting| lasting.is_unexecuted(slot));
            up.on_call_failed(lost, CallKey { slot, token }, CallEnd::of(is_unexecuted, &cause));
        }
    });
    up.on_gone(lost, &cause);
}

impl Reactor {
    fn lasting(&mut self, conn: ConnId) -> Option<&mut Lasting> {
        self.conns.find(conn)?.calls.lasting.as_deref_mut()
    }

    /// Returns true if calls of this connection may outlive it.
    pub(in crate::reactor) fn is_lasting(&mut self, conn: ConnId) -> bool {
        self.lasting(conn).is_some()
    }

    pub(in crate::reactor) fn make_lasting(&mut self, conn: ConnId, resends_max: u8) {
        let Some(c) = self.conns.find(conn) else { return };
        let slots = c.calls.slots();
        let lasting = c.calls.lasting.get_or_insert_with(|| Lasting::new(slots, resends_max));
        lasting.resends_max = resends_max;
    }

    /// Takes the calls out of a lost connection; returns those that end, and their ends.
    fn suspend(&mut self, gone: Conn, cause: &DownCause) -> Vec<(CallKey, CallEnd)> {
        let Conn { id: lost, lane, mut calls, mut dialect, negotiated, .. } = gone;
        let mut requester = lane.take_requester();
        let (mut ended, unsent) = (Vec::new(), requester.reserved().collect::<Vec<_>>());
        requester.suspend(|slot, token| {
            let is_unexecuted = unsent.contains(&slot);
            if let Some(lasting) = &mut calls.lasting {
                lasting.note_loss(slot, is_unexecuted);
            }
            if let Some(hold) = dialect.end_pull(slot) {
                calls.put(slot, hold);
            }
            let held = token.is_some() && calls.detach(slot);
            if !held {
                let lasting = calls.lasting.as_deref();
                let kept = lasting.and_then(|lasting| lasting.kept(slot));
                let is_unexecuted = kept.map_or(is_unexecuted, |kept| !kept.is_unknown);
                calls.free(slot);
                let end = CallEnd::of(is_unexecuted, cause);
                ended.extend(token.map(|token| (CallKey { slot, token }, end)));
            }
            held
        });
        if let Some(lasting) = &mut calls.lasting {
            lasting.lost_by = cause.clone();
        }
        self.interrupted.resending.retain(|conn| *conn != lost);
        self.next_deadline = self.next_deadline.min(requester.next_deadline());
        self.interrupted.suspended.push(Suspended {
            lost,
            request: None,
            retry_at: Instant(u64::MAX),
            requester,
            calls,
            server: negotiated.peer(),
            cause: cause.clone(),
            is_given_up: false,
        });
        ended
    }

    /// Moves the suspended client that requested this connection to it.
    pub(in crate::reactor) fn take_over(&mut self, request: u64, conn: &mut Conn) {
        let asked = |client: &Suspended| client.request == Some(request) && !client.is_given_up;
        let Some(index) = self.interrupted.suspended.iter().position(asked) else { return };
        let client = self.interrupted.suspended.swap_remove(index);
        conn.lane.proto().requester = client.requester;
        conn.calls = client.calls;
        self.stats.reconnects += 1;
        if !client.server.remembers_for(conn.negotiated.peer()) {
            self.fail_at_most_once(conn, &client.cause);
        }
    }

    /// Another server answers now, which cannot know which calls the previous one has executed: calls that it may
    /// have executed end.
    fn fail_at_most_once(&mut self, conn: &mut Conn, cause: &DownCause) {
        let lasting = conn.calls.lasting.as_deref();
        let at_most_once = |slot: &SlotId| {
            let kept = lasting.and_then(|lasting| lasting.kept(*slot));
            kept.is_none_or(|kept| kept.resend == Resend::AtMostOnce && kept.is_unknown)
        };
        let ended: Vec<SlotId> = conn.lane.proto().requester.held().filter(at_most_once).collect();
        for slot in ended {
            let token = conn.lane.proto().requester.release_held(slot);
            conn.calls.free(slot);
            let end = CallEnd::Down(cause.clone());
            let ended = token.map(|token| GivenUp::new(conn.id, CallKey { slot, token }, end));
            self.given_up.extend(ended);
        }
    }

    /// The held call that was sent first, unless it has no credit.
    fn next_held(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conns.find(conn)?;
        let lasting = c.calls.lasting.as_deref()?;
        c.lane
            .proto()
            .requester
            .held()
            .min_by_key(|slot| lasting.kept(*slot).map(|kept| kept.order))
    }

    /// The stored state of a held call, with the buffers it lends to the new connection.
    fn take_held(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Result<(Retransmit, CallSpec), Backpressure> {
        let c = self.conns.find(conn).ok_or(Backpressure::Down)?;
        c.lane.proto().requester.check_resend(slot).map_err(|_| Backpressure::NoCredit)?;
        let mut rooms = [const { None }; ITEMS_MAX];
        let lasting = c.calls.lasting.as_deref_mut().ok_or(Backpressure::Down)?;
        let wanted = lasting.kept(slot).map_or([None; ITEMS_MAX], |kept| kept.rooms);
        for (bytes, room) in wanted.iter().zip(&mut rooms) {
            let Some(bytes) = *bytes else { continue };
            let longest_bytes = longest_block_bytes(&self.config);
            let bulk = self.fabric.bulk(conn, bytes);
            *room = Some(bulk.ok_or_else(|| no_block(bytes, longest_bytes))?);
        }
        let kept = lasting.kept[usize::from(slot.index)].take().ok_or(Backpressure::Down)?;
        let mut spec = CallSpec { is_special: true, ..CallSpec::short() };
        spec.reply_bytes_max = kept.reply_bytes_max;
        spec.resend = kept.resend;
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
        self.stats.calls_resent += u64::from(sent);
        let Some(c) = self.conns.find(conn) else { return };
        if sent {
            kept.in_flight = true;
            kept.resends += 1;
        } else if let Some(mut hold) = c.calls.spare() {
            for (room, result) in kept.rooms.iter().zip(&mut spec.results) {
                result.take_if(|_| room.is_some());
            }
            hold.arguments = spec.arguments;
            hold.results = spec.results;
            c.calls.put(slot, hold);
        }
        if let Some(lasting) = &mut c.calls.lasting {
            lasting.put(slot, kept);
        }
    }

    fn look_again_soon(&mut self, conn: ConnId) {
        let resending = &mut self.interrupted.resending;
        if !resending.contains(&conn) {
            resending.push(conn);
        }
        self.next_deadline = self.next_deadline.min(self.pause_ends());
    }

    pub(in crate::reactor) fn pause_ends(&self) -> Instant {
        Instant(self.time().0.saturating_add(self.clock.from_duration(RESEND_PAUSE)))
    }

    /// Fails a held call that can never be sent on the new connection.
    fn fail_held(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conns.find(conn) else { return };
        let lasting = c.calls.lasting.as_deref();
        let cause = lasting.map_or(DownCause::Local, |lasting| lasting.lost_by.clone());
        let is_unexecuted = lasting.is_some_and(|lasting| lasting.is_unexecuted(slot));
        let token = c.lane.proto().requester.release_held(slot);
        c.calls.free(slot);
        let end = CallEnd::of(is_unexecuted, &cause);
        let ended = token.map(|token| GivenUp::new(conn, CallKey { slot, token }, end));
        self.given_up.extend(ended);
    }

    pub(in crate::reactor) fn retry_after(&mut self, lost: ConnId, after: Duration) {
        let at = Instant(self.time().0.saturating_add(self.clock.from_duration(after)));
        let Some(client) = self.interrupted.find(lost) else { return };
        client.retry_at = at;
        self.next_deadline = self.next_deadline.min(at);
    }

    pub(in crate::reactor) fn note_request(&mut self, lost: ConnId, request: u64) {
        if let Some(client) = self.interrupted.find(lost) {
            client.request = Some(request);
        }
    }

    pub(in crate::reactor) fn give_up(&mut self, lost: ConnId, cause: DownCause) {
        if let Some(client) = self.interrupted.find(lost) {
            client.cause = cause;
            client.is_given_up = true;
            self.next_deadline = Instant(0);
        }
    }

    /// The core ends: no client gets another connection.
    pub(in crate::reactor) fn give_up_all(&mut self) {
        for client in &mut self.interrupted.suspended {
            client.cause = DownCause::Local;
            client.is_given_up = true;
            self.next_deadline = Instant(0);
        }
    }

    fn take_given_up(&mut self) -> Option<Suspended> {
        let suspended = &mut self.interrupted.suspended;
        let index = suspended.iter().position(|client| client.is_given_up)?;
        Some(suspended.swap_remove(index))
    }

    fn take_due(&mut self) -> Option<ConnId> {
        let now = Instant(self.time().0);
        let due = self.interrupted.suspended.iter_mut().find(|client| client.retry_at <= now)?;
        due.retry_at = Instant(u64::MAX);
        Some(due.lost)
    }
}

impl CallTable {
    /// Returns true if the call in this slot may be sent again; removes the resources of the lost connection.
    fn detach(&mut self, slot: SlotId) -> bool {
        let Some(lasting) = self.lasting.as_deref().filter(|lasting| lasting.may_resend(slot))
        else {
            return false;
        };
        if lasting.kept(slot).is_some_and(|kept| !kept.in_flight) {
            return true;
        }
        let result_bytes = lasting.kept(slot).map_or([0; ITEMS_MAX], |kept| kept.result_bytes);
        let rooms = self.hold(slot).map(|hold| hold.detach(&result_bytes));
        let kept = self.lasting.as_deref_mut().and_then(|lasting| lasting.kept_mut(slot));
        let (Some(rooms), Some(kept)) = (rooms, kept) else { return false };
        kept.rooms = rooms;
        kept.in_flight = false;
        true
    }
}
