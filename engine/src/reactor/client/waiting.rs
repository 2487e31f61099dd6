//! Calls that wait in their slots, and are sent when they can be: on another connection after the loss of theirs (RFC 5666
//! section 8), in the version that the responder speaks (version two section 5.2), when a thread has sealed them, or, without
//! a slot, under another context.
//!
//! A call that may be sent again keeps its encoded stream, in a block of the core's memory; there are at most as many
//! as credits. Memory that a lost connection's peer could reach is never exposed again: arguments are copied to
//! memory of the new connection, results get new room. Deadlines continue to run. Held calls keep their XIDs, and their order
//! before new calls.
//!
//! The api decides when to try another connection; a thread makes it.

use crate::fabric::{ConnId, DownCause};
#[cfg(feature = "gss")]
use crate::mem::Bulk;
use crate::reactor::client::emit::Start;
#[cfg(feature = "gss")]
use crate::reactor::in_flight::gss_calls::DeniedCall;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::reconnecting::Suspended;
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Backpressure, CallEnd, Resend, SlotToken};
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::kept::Kept;
use crate::reactor::types::memory::longest_block_bytes;
use crate::sys::journal::event;
#[cfg(feature = "gss")]
use spinrpc_proto::events::CallFailure;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::version::{Negotiation, Versions};
use std::time::Duration;

/// Retry interval of a call that found no credit, buffer or room. Usually a reply triggers the retry; the
/// interval covers replies to calls that have already ended.
const RESEND_PAUSE: Duration = Duration::from_millis(1);

impl CoreCell {
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
        self.reactor().resend_held(conn)
    }

    /// Ends the calls of clients that the api has given up, before a connection requested by one of them is assigned:
    /// it would go to a client that has ended.
    #[cold]
    pub(in crate::reactor) fn end_given_up_clients(&self, up: &mut impl Upcalls) {
        loop {
            let gone = self.reactor().interrupted().take_given_up();
            let Some(client) = gone else { return };
            let Suspended { lost, cause, mut requester, calls, .. } = client;
            requester.on_down(|slot, token| {
                if let Some(token) = token {
                    let end = CallEnd::of(calls.is_unexecuted(slot), &cause);
                    up.on_event(CoreEvent::CallFailed(lost, SlotToken { slot, token }, end));
                }
            });
            up.on_event(CoreEvent::Gone(lost, &cause));
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

/// Lost connections.
impl Reactor {
    /// Takes the calls out of a lost connection; returns those that end, and their ends.
    fn suspend(&mut self, gone: Conn, cause: &DownCause) -> Vec<(SlotToken, CallEnd)> {
        let (lost, server, mut requester) =
            (gone.id, gone.negotiated.peer(), gone.lane.take_requester());
        let Conn { mut calls, mut dialect, .. } = gone;
        let (mut ended, unsent) = (Vec::new(), requester.reserved().collect::<Vec<_>>());
        requester.suspend(|slot, token| {
            if let Some(call) = dialect.take_pull(slot).and_then(|pull| pull.call) {
                calls.put(slot, call);
            }
            let is_unsent = unsent.contains(&slot);
            let is_held = calls.lose(slot, is_unsent) && token.is_some();
            if !is_held {
                let is_unexecuted = match calls.kept(slot) {
                    Some(kept) => !kept.is_unknown(),
                    None => is_unsent,
                };
                calls.free(slot);
                let end = CallEnd::of(is_unexecuted, cause);
                ended.extend(token.map(|token| (SlotToken { slot, token }, end)));
            }
            is_held
        });
        if let Some(lasting) = &mut calls.lasting {
            lasting.lost_by = cause.clone();
        }
        self.wake_by(requester.next_deadline());
        let (cause, is_given_up) = (cause.clone(), false);
        self.interrupted().push(Suspended { lost, requester, calls, server, cause, is_given_up });
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
        let at_most_once =
            |kept: &Kept| kept.terms.resend == Resend::AtMostOnce && kept.is_unknown();
        let held: Vec<SlotId> = conn.lane.proto().requester.held().collect();
        for slot in held {
            if conn.calls.kept(slot).is_none_or(at_most_once) {
                let token = conn.lane.proto().requester.release_held(slot);
                conn.calls.free(slot);
                if let Some(token) = token {
                    let end = CallEnd::Down(cause.clone());
                    self.end_call(conn.id, SlotToken { slot, token }, end);
                }
            }
        }
    }

    /// The core ends: no client gets another connection.
    pub(in crate::reactor) fn give_up_all(&mut self) {
        if self.interrupted().give_up_all() {
            self.wake_by(Instant(0));
        }
    }
}

/// Held calls.
impl Reactor {
    fn resend_held(&mut self, conn: ConnId) -> bool {
        while let Some(slot) = self.next_held(conn) {
            match self.send_held(conn, slot) {
                Ok(()) => self.stats().calls_resent += 1,
                Err(refused) if may_pass(&refused) => {
                    self.interrupted().begin_resending(conn);
                    let pause_ends = self.pause_ends();
                    self.wake_by(pause_ends);
                    return false;
                }
                Err(refused) => {
                    event!(WARN, %refused, "a call cannot be sent again");
                    self.fail_held(conn, slot);
                }
            }
        }
        self.interrupted().end_resending(conn);
        true
    }

    /// The held call that was sent first.
    fn next_held(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conn(conn)?;
        let proto = c.lane.proto();
        proto.requester.held().min_by_key(|slot| c.calls.kept(*slot).map(Kept::order))
    }

    /// Sends a held call. One that cannot be sent stays as it is.
    fn send_held(&mut self, conn: ConnId, slot: SlotId) -> Result<(), Backpressure> {
        let c = self.conn(conn).ok_or(Backpressure::Down)?;
        c.lane.proto().requester.check_resend(slot).map_err(|_| Backpressure::NoCredit)?;
        let mut call = c.calls.take(slot).ok_or(Backpressure::Down)?;
        let missing = call.missing_results();
        let sent = match call.kept.take() {
            None => Err(Backpressure::Down),
            Some(mut kept) => {
                let sent = self.find_room(conn, &mut call, &missing).and_then(|()| {
                    self.protect_call(conn, Start::Again(slot), &mut call, &kept.draft())
                });
                if sent.is_ok() {
                    kept.count_resend();
                }
                call.kept = Some(kept);
                sent
            }
        };
        if sent.is_err() {
            for (result, bytes) in call.results.iter_mut().zip(missing) {
                result.take_if(|_| bytes.is_some());
            }
        }
        if let Some(c) = self.conn(conn) {
            c.calls.put(slot, call);
        }
        sent.map(drop)
    }

    /// Finds memory of the connection for results that have none.
    fn find_room(
        &mut self,
        conn: ConnId,
        call: &mut Outgoing,
        missing: &[Option<usize>; ITEMS_MAX],
    ) -> Result<(), Backpressure> {
        for (bytes, result) in missing.iter().zip(&mut call.results) {
            let Some(bytes) = *bytes else { continue };
            let longest_bytes = longest_block_bytes(self.config());
            let bulk = self.fabric_mut().bulk(conn, bytes);
            *result = Some(bulk.ok_or_else(|| no_block(bytes, longest_bytes))?);
        }
        Ok(())
    }

    pub(in crate::reactor) fn pause_ends(&self) -> Instant {
        Instant(self.turn_time().0.saturating_add(self.ticks(RESEND_PAUSE)))
    }

    /// Fails a held call that can never be sent on the new connection.
    fn fail_held(&mut self, conn: ConnId, slot: SlotId) {
        let Some((c, core)) = self.conn_and_core(conn) else { return };
        let cause = c.calls.lasting.as_ref().map(|lasting| lasting.lost_by.clone());
        let is_unexecuted = c.calls.is_unexecuted(slot);
        let end = CallEnd::of(is_unexecuted, &cause.unwrap_or(DownCause::Local));
        let token = c.lane.proto().requester.release_held(slot);
        c.calls.free(slot);
        if let Some(token) = token {
            core.end_call(conn, SlotToken { slot, token }, end);
        }
    }

    /// Sends the first call again on the same connection, in the version that the responder speaks. The call fits again,
    /// because headers of version one are not longer.
    #[cold]
    pub(in crate::reactor) fn fall_back(&mut self, conn: ConnId, slot: SlotId) {
        if self.send_held(conn, slot).is_err() {
            self.close_overrun(conn, "send buffers");
        }
    }

    /// Settles the version of calls on an accepted connection: the version in which it is called, or the only one
    /// spoken (version two section 5.3).
    pub(in crate::reactor) fn settle_in_reverse(&mut self, conn: ConnId) {
        let versions = self.config().versions();
        let Some(c) = self.conn(conn) else { return };
        let version = match versions {
            Versions::One | Versions::Two => versions.high(),
            Versions::Both => c.lane.proto().responder.version(),
        };
        c.lane.proto().requester.negotiate(Negotiation::settled(version));
    }
}

/// Sealed calls.
#[cfg(feature = "gss")]
impl Reactor {
    /// The body of a call is sealed: it is sent as soon as there is room.
    pub(in crate::reactor) fn take_sealed_call(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        message: Option<Bulk>,
    ) {
        let Some(message) = message else { return self.end_unsent(conn, slot) };
        let c = self.conn(conn).filter(|c| c.lane.proto().requester.is_reserved(slot));
        if let Some(call) = c.and_then(|c| c.calls.call(slot)) {
            call.sealed = Some(message);
        }
        self.gss_work().push_sealed((conn, slot));
    }

    /// Sends the first call that is sealed and finds room: one in a turn, as it may be copied, and is long. The others wait.
    pub(in crate::reactor) fn go_on_with_sealed(&mut self) {
        let count = self.gss_work().sealed();
        let goes_on = (0..count).any(|_| {
            let next = self.gss_work().take_sealed();
            let waits = next.filter(|(conn, slot)| !self.send_sealed(*conn, *slot));
            waits.map(|waits| self.gss_work().push_sealed(waits)).is_none()
        });
        if self.gss_work().sealed() > 0 {
            // What they wait for, such as the end of another call, need not be a message.
            let pause_ends = if goes_on { Instant(0) } else { self.pause_ends() };
            self.wake_by(pause_ends);
        }
    }

    /// Returns false if the call has to wait.
    fn send_sealed(&mut self, conn: ConnId, slot: SlotId) -> bool {
        let now = Instant(self.read_clock().0);
        let Some(c) = self.conn(conn) else { return true };
        let is_reserved = c.lane.proto().requester.is_reserved(slot);
        let Some(mut call) = Some(()).filter(|()| is_reserved).and_then(|()| c.calls.take(slot))
        else {
            // It has ended meanwhile: its number holds up no later ones.
            if let Some(gss) = c.gss_mut() {
                gss.forget(slot.xid());
            }
            return true;
        };
        // The timers end a call whose time is over; and a key of an earlier try to send it may not be dead yet.
        let is_late = call.terms.deadline <= now;
        let waits = is_late || call.sealed.as_ref().is_some_and(Bulk::is_leased);
        let sent = match waits {
            true => Err(Backpressure::NoBuffer),
            false => self.place_sealed_call(conn, Start::Reserved(slot), &mut call),
        };
        if let Some(c) = self.conn(conn) {
            c.calls.put(slot, call);
        }
        match sent {
            Ok(_) => true,
            // Of a connection that goes down it is sent again, or ends, with all others.
            Err(refused) if refused.is_transient() || refused == Backpressure::Down => false,
            Err(refused) => {
                event!(WARN, %refused, "a call that was sealed cannot be sent");
                self.end_unsent(conn, slot);
                true
            }
        }
    }

    /// A call ends that cannot be sent.
    fn end_unsent(&mut self, conn: ConnId, slot: SlotId) {
        let Some(c) = self.conn(conn) else { return };
        if let Some(gss) = c.gss_mut() {
            gss.forget(slot.xid());
        }
        let released = c.lane.proto().requester.release_reserved(slot);
        // One that has ended meanwhile has no slot: another call may have it.
        let Some(token) = released else { return };
        c.calls.free(slot);
        let end = CallEnd::Failed(CallFailure::NoMemory);
        self.end_call(conn, SlotToken { slot, token }, end);
    }
}

/// Denied calls.
#[cfg(feature = "gss")]
impl CoreCell {
    /// Keeps a denied call that waits for a context, until its deadline at the latest.
    pub(crate) fn await_context(&self, denied: DeniedCall) {
        let mut reactor = self.reactor();
        reactor.wake_by(denied.deadline());
        reactor.gss_work().push_denied(denied);
    }

    /// The denied calls of a connection.
    pub(crate) fn take_denied(&self, conn: ConnId) -> Vec<DeniedCall> {
        self.reactor().gss_work().take_denied(|call| call.conn == conn)
    }

    /// Sends a denied call again, with another XID and sequence number. On failure returns its token, and true if its
    /// time is over.
    pub(crate) fn retry_denied(&self, conn: ConnId, denied: DeniedCall) -> Result<(), (u64, bool)> {
        let mut reactor = self.reactor();
        let is_late = denied.deadline() <= Instant(reactor.read_clock().0);
        let DeniedCall {
            key: SlotToken { slot: denied_as, token }, kept, arguments, results, ..
        } = denied;
        let spare = reactor.conn(conn).filter(|_| !is_late).and_then(|c| c.calls.spare());
        let mut call = spare.ok_or((token, is_late))?;
        *call = Outgoing { terms: kept.terms, arguments, results, ..Outgoing::default() };
        let sent = reactor.protect_call(conn, Start::New(token), &mut call, &kept.draft());
        reactor.stats().calls_resent += u64::from(sent.is_ok());
        let c = reactor.conn(conn).ok_or((token, false))?;
        let Ok(slot) = sent else {
            c.calls.recycle(call);
            return Err((token, false));
        };
        call.kept = Some(kept);
        c.calls.put(slot, call);
        if let Some(gss) = c.gss_mut() {
            gss.note_denied(slot, denied_as);
        }
        Ok(())
    }
}

#[cfg(feature = "gss")]
impl Reactor {
    /// Ends denied calls whose time is over.
    pub(in crate::reactor) fn end_denied(&mut self) {
        let now = Instant(self.read_clock().0);
        for call in self.gss_work().take_denied(|call| call.deadline() <= now) {
            let end = CallEnd::Failed(CallFailure::TimedOut);
            self.end_call(call.conn, call.key, end);
        }
        if let Some(until) = self.gss_work().denied_until() {
            self.wake_by(until);
        }
    }
}
