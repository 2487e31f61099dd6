//! Calls that wait in their slots, and are sent when they can be: on another connection after the loss of theirs (RFC 5666
//! section 8), in the version that the responder speaks (version two section 5.2), under another context, or when a
//! thread has sealed them.
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
use crate::reactor::in_flight::gss_calls::GssCalls;
use crate::reactor::in_flight::outgoing::Outgoing;
use crate::reactor::in_flight::upcalls::{CoreEvent, Upcalls};
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
#[cfg(feature = "gss")]
use crate::reactor::types::calls::ReplyBuffers;
use crate::reactor::types::calls::{Backpressure, CallEnd, SlotToken};
use crate::reactor::types::header_bytes::no_block;
use crate::reactor::types::memory::longest_block_bytes;
use crate::reactor::types::resend_source::Kept;
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
            let gone = self.reactor().detached_clients().take_given_up();
            let Some(mut client) = gone else { return };
            let lost = client.lost();
            client.end_calls(|call, end| up.on_event(CoreEvent::CallFailed(lost, call, end)));
            up.on_event(CoreEvent::Gone(lost, client.cause()));
        }
    }

    /// Attends to clients without a connection, and to those that are resending their calls.
    #[cold]
    pub(in crate::reactor) fn attend_interrupted(&self, up: &mut impl Upcalls) {
        self.end_given_up_clients(up);
        let now = Instant(self.reactor().turn_time().0);
        let is_due = self.reactor().detached_clients().take_alarm(now);
        if is_due {
            up.on_event(CoreEvent::Alarm);
        }
        let resending = self.reactor().detached_clients().resending().clone();
        for conn in resending {
            if self.resend_held(conn) {
                up.on_event(CoreEvent::Resent(conn));
            }
        }
    }
}

/// Returns true if a call refused for this reason may be sent later.
fn may_pass(refused: &Backpressure) -> bool {
    refused.is_transient() || *refused == Backpressure::Down
}

/// Lost connections.
impl Reactor {
    /// Takes the calls out of a lost connection; returns those that end, and their ends.
    fn suspend(&mut self, mut gone: Conn, cause: &DownCause) -> Vec<(SlotToken, CallEnd)> {
        let (lost, server, mut requester) =
            (gone.id, gone.negotiated.peer(), gone.lane.take_requester());
        let (mut ended, unsent) = (Vec::new(), requester.reserved().collect::<Vec<_>>());
        requester.suspend(|slot, token| {
            if let Some(((.., Some(call)), _)) = gone.take_pull(slot) {
                gone.calls.put(slot, call);
            }
            let (calls, is_unsent) = (&mut gone.calls, unsent.contains(&slot));
            let is_held = calls.lose(slot, is_unsent) && token.is_some();
            if !is_held {
                let end = calls.end_of(slot, is_unsent, cause);
                calls.free(slot);
                ended.extend(token.map(|token| (SlotToken { slot, token }, end)));
            }
            is_held
        });
        self.wake_by(requester.next_deadline());
        self.detached_clients().push((lost, cause.clone()), server, (requester, gone.calls));
        ended
    }

    /// Moves the client that lost a connection to this one.
    pub(in crate::reactor) fn take_over(&mut self, lost: ConnId, conn: ConnId) {
        let Some(mut client) = self.detached_clients().take(lost) else { return };
        let Some(c) = self.conn(conn) else { return };
        let server = c.negotiated.peer();
        let remembers = client.move_to(server, (&mut c.lane.proto().requester, &mut c.calls));
        self.stats().reconnects += 1;
        if !remembers {
            self.fail_at_most_once(conn, client.cause());
        }
    }

    /// Another server answers now, which cannot know which calls the previous one has executed: calls that it may
    /// have executed end.
    fn fail_at_most_once(&mut self, conn: ConnId, cause: &DownCause) {
        let Some(c) = self.conn(conn) else { return };
        let held = c.lane.proto().requester.held().collect::<Vec<SlotId>>();
        let ended =
            held.into_iter().filter(|slot| c.calls.kept(*slot).is_none_or(Kept::is_unrepeatable));
        for slot in ended.collect::<Vec<_>>() {
            self.end_waiting(conn, slot, CallEnd::Down(cause.clone()));
        }
    }

    /// The core ends: no client gets another connection.
    pub(in crate::reactor) fn give_up_all(&mut self) {
        if self.detached_clients().give_up_all() {
            self.wake_by(Instant(0));
        }
    }
}

/// Calls that wait in their slots.
impl Reactor {
    fn resend_held(&mut self, conn: ConnId) -> bool {
        while let Some(slot) = self.next_held(conn) {
            match self.send_waiting(conn, slot) {
                Ok(()) => self.stats().calls_resent += 1,
                Err(refused) if may_pass(&refused) => {
                    self.detached_clients().begin_resending(conn);
                    let pause_ends = self.pause_ends();
                    self.wake_by(pause_ends);
                    return false;
                }
                Err(refused) => {
                    event!(WARN, %refused, "a call cannot be sent again");
                    let Some(c) = self.conn(conn) else { break };
                    let end = c.calls.end_of(slot, false, &c.calls.lost_by());
                    self.end_waiting(conn, slot, end);
                }
            }
        }
        self.detached_clients().end_resending(conn);
        true
    }

    /// The held call that was sent first. Those that were denied wait for another context.
    fn next_held(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conn(conn)?;
        #[cfg(feature = "gss")]
        let waits = c.gss().is_some_and(GssCalls::has_denied);
        #[cfg(not(feature = "gss"))]
        let waits = false;
        let proto = c.lane.proto();
        let held = proto.requester.held().map(|slot| (slot, c.calls.kept(slot)));
        let held = held.filter(|(_, kept)| !waits || !kept.is_some_and(Kept::is_denied));
        held.min_by_key(|(_, kept)| kept.map(Kept::order)).map(|(slot, _)| slot)
    }

    /// Sends a call that waits in its slot. One that cannot be sent stays as it is.
    fn send_waiting(&mut self, conn: ConnId, slot: SlotId) -> Result<(), Backpressure> {
        let c = self.conn(conn).ok_or(Backpressure::Down)?;
        c.lane.proto().requester.check_resend(slot).map_err(|_| Backpressure::NoCredit)?;
        let mut call = c.calls.take(slot).ok_or(Backpressure::Down)?;
        let sent = self.go_on(conn, slot, &mut call);
        if let Some(c) = self.conn(conn) {
            c.calls.put(slot, call);
        }
        sent
    }

    /// Takes a call up at the stage that it had reached: one that is sealed is placed, any other is protected first.
    fn go_on(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        call: &mut Outgoing,
    ) -> Result<(), Backpressure> {
        let start = Start::Again(slot);
        #[cfg(feature = "gss")]
        if let Some(message) = call.sealed() {
            // A key of an earlier try to send it may not be dead yet.
            return match message.is_leased() {
                true => Err(Backpressure::NoBuffer),
                false => self.place_sealed_call(conn, start, call).map(drop),
            };
        }
        let missing = call.missing_results();
        let kept = call.take_kept().ok_or(Backpressure::Down)?;
        let sent = self
            .find_room(conn, call, &missing)
            .and_then(|()| self.protect_call(conn, start, call, &kept.draft()));
        call.end_resend(kept, &missing, sent.is_ok());
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

    /// Ends a call that waits in its slot and cannot be sent.
    fn end_waiting(&mut self, conn: ConnId, slot: SlotId, end: CallEnd) {
        let Some(c) = self.conn(conn) else { return };
        c.forget_sent(slot);
        let released = c.lane.proto().requester.release_held(slot);
        // One that has ended meanwhile has no slot: another call may have it.
        let Some(token) = released else { return };
        c.calls.free(slot);
        self.end_call(conn, SlotToken { slot, token }, end);
    }

    pub(in crate::reactor) fn pause_ends(&self) -> Instant {
        Instant(self.turn_time().0.saturating_add(self.ticks(RESEND_PAUSE)))
    }

    /// Sends the first call again on the same connection, in the version that the responder speaks. The call fits again,
    /// because headers of version one are not longer.
    #[cold]
    pub(in crate::reactor) fn fall_back(&mut self, conn: ConnId, slot: SlotId) {
        if self.send_waiting(conn, slot).is_err() {
            self.close_overrun(conn, "memory to send the first call again");
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

#[cfg(feature = "gss")]
impl Reactor {
    /// The body of a call is sealed: it is sent as soon as there is room.
    pub(in crate::reactor) fn take_sealed_call(
        &mut self,
        (conn, slot): (ConnId, SlotId),
        message: Option<Bulk>,
    ) {
        if message.is_none() {
            return self.end_waiting(conn, slot, CallEnd::Failed(CallFailure::NoMemory));
        }
        let c = self.conn(conn).filter(|c| c.lane.proto().requester.is_reserved(slot));
        if let Some(call) = c.and_then(|c| c.calls.call(slot)) {
            call.set_sealed(message);
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
        if !c.lane.proto().requester.is_reserved(slot) {
            // It has ended meanwhile: its number holds up no later ones.
            c.forget_sent(slot);
            return true;
        }
        // The timers end it.
        if c.calls.call(slot).is_some_and(|call| call.terms().deadline() <= now) {
            return false;
        }
        match self.send_waiting(conn, slot) {
            Ok(()) => true,
            // Of a connection that goes down it is sent again, or ends, with all others.
            Err(refused) if may_pass(&refused) => false,
            Err(refused) => {
                event!(WARN, %refused, "a call that was sealed cannot be sent");
                self.end_waiting(conn, slot, CallEnd::Failed(CallFailure::NoMemory));
                true
            }
        }
    }
}

#[cfg(feature = "gss")]
impl CoreCell {
    /// Holds a call that the server has not executed, because it has lost the context, until there is another one, at most for
    /// its time; it has another XID then. "Once", so that a server that denies every call is not asked forever. A call with
    /// at-most-once semantics that another connection may have executed is not sent again under another XID. Returns false if
    /// the call ends.
    pub(crate) fn hold_denied(
        &self,
        conn: ConnId,
        SlotToken { slot, token }: SlotToken,
        own: &mut Option<Kept>,
        buffers: Option<&mut ReplyBuffers<'_>>,
    ) -> bool {
        let (mut arguments, mut results): (&mut [_], &mut [_]) = (&mut [], &mut []);
        let mut place = own;
        if let Some(buffers) = buffers {
            (arguments, results) = (&mut *buffers.arguments, &mut *buffers.results);
            if place.is_none() {
                place = &mut *buffers.kept;
            }
        }
        let Some(kept) = place.as_ref().filter(|kept| kept.may_repeat()) else { return false };
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(conn) else { return false };
        let Some(mut call) = c.calls.spare() else { return false };
        let held = c.lane.proto().requester.hold(token, kept.terms().deadline());
        let (Some(held), Some(kept)) = (held, place.take()) else {
            c.calls.recycle(call);
            return false;
        };
        call.hold_denied(kept.denied(slot, held), (arguments, results));
        let deadline = call.terms().deadline();
        c.calls.put(held, call);
        if let Some(gss) = c.gss_mut() {
            gss.set_denied(true);
        }
        reactor.wake_by(deadline);
        true
    }

    /// There is a context: sends calls that were denied under the one before.
    pub(crate) fn retry_denied(&self, conn: ConnId) {
        let mut reactor = self.reactor();
        let gss = reactor.conn(conn).and_then(|c| c.gss_mut());
        if gss.is_some_and(|gss| gss.set_denied(false)) {
            reactor.resend_held(conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Backpressure, may_pass};

    #[test]
    fn what_an_application_may_retry_is_waited_for_and_so_is_a_connection() {
        use Backpressure::{Connecting, Down, InlineOnly, NoBuffer, NoCredit, NoReplyRoom};
        assert!([NoCredit, NoBuffer, NoReplyRoom, Connecting, Down].iter().all(may_pass));
        let lasting = [InlineOnly, Backpressure::TooLarge { needed_bytes: 1 }];
        assert!(!lasting.iter().any(may_pass));
    }
}
