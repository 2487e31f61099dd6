//! One turn of a core.
//!
//! It reaps completions, advances connections, runs handlers, polls services, reads mail, looks
//! at deadlines, and flushes. The state is borrowed for one step at a time and never while a handler
//! runs, so that handlers may start calls and answer others.

use crate::fabric::{
    CompletionKind, Completions, ConnId, DownCause, QpId, Received, Short, ShortEndpoint,
    SingleConnPoll,
};
use crate::mem::Buf;
use crate::reactor::in_flight::upcalls::{CallFrame, CoreEvent, Upcalls};
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{CallEnd, Progress, RpcRefusal, SlotToken};
use crate::sys::journal::event;
use spinrpc_proto::events::{
    Arrival, CallFailure, Dropped, Event, FailedCall, PeerMisbehaved, SlotId,
};
use std::cell::RefMut;
use std::rc::Rc;

/// Turns with messages in a row that end early between two looks at the state they leave out (`look_around`).
const LOOK_EVERY: u32 = 16;
/// The same for turns without messages.
const LOOK_IDLE_EVERY: u32 = 8;

/// State of arriving messages that a core keeps between turns, including when a turn looks around. The api holds it.
pub(crate) struct ArrivedMessages {
    batch: Completions,
    short: Short,
    /// Short messages of one turn.
    shorts_max: usize,
    /// Short messages that may be handled before the next look around.
    shorts_left: usize,
    /// Turns that have ended early since the last look around, and had no messages.
    idle_turns: u32,
    /// Turns in a row that have ended early, and had messages. They come into the statistics together, at the latest with
    /// the first turn that has none.
    busy_turns: u32,
    /// The lane of the connection that the last short message arrived on: usually the next one arrives there, too.
    /// Dropped when a connection ends, because it keeps that connection's memory.
    conn_lane: Option<Rc<ConnLane>>,
}

impl ArrivedMessages {
    /// At most `limit` completions in a turn, and as many short messages.
    pub(crate) fn with_limit(limit: usize) -> Self {
        let (batch, short) = (Completions::with_limit(limit), Short::EMPTY);
        let (idle_turns, busy_turns, conn_lane) = (0, 0, None);
        Self {
            batch,
            short,
            shorts_max: limit,
            shorts_left: limit,
            idle_turns,
            busy_turns,
            conn_lane,
        }
    }

    /// Begins a new interval: all state is checked now.
    #[inline(always)]
    fn begin_looks(&mut self) {
        (self.shorts_left, self.idle_turns) = (self.shorts_max, 0);
    }

    /// Returns true if the turn with this number of messages has to look around.
    #[inline(always)]
    fn is_to_look(&self, shorts: usize) -> bool {
        let is_due = match shorts {
            0 => self.idle_turns >= LOOK_IDLE_EVERY,
            _ => self.busy_turns >= LOOK_EVERY,
        };
        is_due || self.shorts_left == shorts
    }
}

/// State of a turn after its short messages, with their number.
enum TurnEnd {
    /// It has ended.
    Over(usize),
    /// There may be more to do in it.
    GoesOn(usize),
    /// There is more to do: it cannot end early.
    IsWhole(usize),
}

impl CoreCell {
    /// Runs one turn. Returns the number of completions, letters and events of services it handled, and if a service
    /// has to be polled again.
    #[inline(never)]
    pub(crate) fn turn(&self, arrived: &mut ArrivedMessages, up: &mut impl Upcalls) -> Progress {
        // May be left over from a handler that panicked, if the panic ended the turn.
        self.close_if_asked();
        self.core_lane().begin_turn();
        let shorts = match self.take_alone(arrived, up) {
            Some(TurnEnd::Over(shorts)) => return Progress { events: shorts, is_waiting: false },
            Some(TurnEnd::IsWhole(shorts)) => return self.finish_turn(shorts, arrived, up),
            Some(TurnEnd::GoesOn(shorts)) => shorts,
            None if self.core_lane().polls_first() => return self.finish_turn(0, arrived, up),
            None => self.take_shorts(arrived, up),
        };
        match self.ends_early(shorts, arrived, up) {
            true => Progress { events: shorts, is_waiting: false },
            false => self.finish_turn(shorts, arrived, up),
        }
    }

    /// Handles short messages that have arrived on the only connection to be checked, without using the driver or any
    /// other state of the core that does not change. Returns `None`, and does nothing, if there is no such
    /// connection.
    #[inline(always)]
    fn take_alone(&self, arrived: &mut ArrivedMessages, up: &mut impl Upcalls) -> Option<TurnEnd> {
        let conn_lane = arrived.conn_lane.as_deref()?;
        let Some(ShortEndpoint::Shm(endpoint)) = conn_lane.short_endpoint() else { return None };
        let goes_on = match endpoint.take_alone(&mut arrived.short) {
            SingleConnPoll::Taken { goes_on } => goes_on,
            SingleConnPoll::Silent => return Some(TurnEnd::GoesOn(0)),
            SingleConnPoll::Unknown => return None,
        };
        let at_most = if goes_on { arrived.shorts_left } else { 1 };
        let shorts = self.handle_shorts(conn_lane, &**endpoint, &mut arrived.short, at_most, up);
        if up.polls() {
            return Some(TurnEnd::GoesOn(shorts));
        }
        if arrived.busy_turns >= LOOK_EVERY || arrived.shorts_left == shorts {
            return Some(self.look_around_alone(shorts, arrived));
        }
        if !self.inbox().is_empty() || !endpoint.end_turn_alone() {
            return Some(TurnEnd::GoesOn(shorts));
        }
        arrived.shorts_left -= shorts;
        self.end_busy_turn(arrived);
        Some(TurnEnd::Over(shorts))
    }

    /// Ends a turn of [`CoreCell::take_alone`] that looks around.
    #[inline(never)]
    fn look_around_alone(&self, shorts: usize, arrived: &mut ArrivedMessages) -> TurnEnd {
        if !self.look_around(&mut self.reactor(), arrived, false) {
            return TurnEnd::IsWhole(shorts);
        }
        let endpoint = arrived.conn_lane.as_ref().and_then(|conn_lane| conn_lane.short_endpoint());
        let Some(ShortEndpoint::Shm(endpoint)) = endpoint else { return TurnEnd::GoesOn(shorts) };
        if !self.inbox().is_empty() || !endpoint.end_turn_alone() {
            return TurnEnd::GoesOn(shorts);
        }
        self.end_busy_turn(arrived);
        TurnEnd::Over(shorts)
    }

    /// A turn with messages has ended early.
    #[inline(always)]
    fn end_busy_turn(&self, arrived: &mut ArrivedMessages) {
        arrived.busy_turns += 1;
        self.core_lane().end_turn();
    }

    /// Handles short messages that have arrived on any connection, of which the turn may handle one or more. Returns
    /// their number.
    #[inline(never)]
    fn take_shorts(&self, arrived: &mut ArrivedMessages, up: &mut impl Upcalls) -> usize {
        let (short, last, at_most) =
            (&mut arrived.short, &mut arrived.conn_lane, arrived.shorts_left);
        let mut left = at_most;
        while left > 0 {
            let mut reactor = self.reactor();
            let Some(first) = reactor.fabric_mut().next_short(short) else { break };
            if last.as_ref().is_none_or(|conn_lane| conn_lane.id() != first.qp) {
                *last = reactor.short_lane(first.qp);
            }
            drop(reactor);
            let Some(conn_lane) = last.as_deref() else { break };
            let at_most = if first.goes_on { left } else { 1 };
            let Some(handled) = self.handle_shorts_of(conn_lane, short, at_most, up) else { break };
            left -= handled;
            if first.is_last {
                break;
            }
        }
        at_most - left
    }

    /// Completes a turn after its short messages.
    #[inline(never)]
    fn finish_turn(
        &self,
        shorts: usize,
        arrived: &mut ArrivedMessages,
        up: &mut impl Upcalls,
    ) -> Progress {
        let mut events = shorts + self.begin_whole_turn(arrived);
        let ArrivedMessages { batch, conn_lane, short, .. } = arrived;
        while let Some(received) = batch.next_received() {
            if let Some(received) = self.handle_received_short(received, (conn_lane, short), up) {
                self.on_message(received, up);
            }
        }
        // Answers to short messages of a device do not wait for the rest of the turn, if that sends nothing itself: it
        // takes longer than a flush.
        let takes_from_device = self.core_lane().polls_first() && self.core_lane().takes_received();
        if takes_from_device && events > shorts && !batch.has_others() && !up.polls() {
            self.reactor().fabric_mut().flush();
        }
        let (arrivals, mut is_waiting) = (events, false);
        if batch.has_others() {
            *conn_lane = None;
            for completion in batch.drain_others() {
                self.on_other(completion.qp, completion.kind, up);
            }
        }
        if up.polls() {
            let polled = up.poll();
            (events, is_waiting) = (events + polled.events, polled.is_waiting);
        }
        let mut reactor = self.reactor();
        if self.needs_attention(&mut reactor) {
            drop(reactor);
            events += self.attend(arrivals, up);
            // A handler that ran there may have begun work that has to be polled for.
            is_waiting |= up.polls();
            reactor = self.reactor();
        }
        self.core_lane().end_turn();
        reactor.end_turn(events, self.core_lane().counts());
        sample(reactor, up);
        Progress { events, is_waiting }
    }

    /// Polls the driver. Earlier turns that ended early have not taken the time of the core.
    #[inline(always)]
    fn begin_whole_turn(&self, arrived: &mut ArrivedMessages) -> usize {
        let mut reactor = self.reactor();
        reactor.begin_turn();
        if arrived.idle_turns + arrived.busy_turns > 0 {
            reactor.stamp(std::mem::take(&mut arrived.busy_turns));
        }
        arrived.begin_looks();
        reactor.fabric_mut().poll(&mut arrived.batch)
    }

    /// Ends a turn that has only short messages to handle, if any: a caller that waits for a reply does not wait for
    /// the rest of the turn, and an empty turn does not delay a message that arrives meanwhile.
    ///
    /// Each turn checks for letters, for longer messages and for other events of the driver; a turn without a message
    /// also for bells and cancelled calls. All of these, and the clock, are checked after [`LOOK_EVERY`] turns with
    /// messages in a row, after `LOOK_IDLE_EVERY` without, or after as many messages as one turn may handle. Peers that were
    /// silent, cancelled calls and deadlines wait no longer than that.
    #[inline(always)]
    fn ends_early(
        &self,
        shorts: usize,
        arrived: &mut ArrivedMessages,
        up: &mut impl Upcalls,
    ) -> bool {
        if up.polls() {
            return false;
        }
        let is_idle = shorts == 0;
        let reactor = &mut *self.reactor();
        if !arrived.is_to_look(shorts) {
            arrived.shorts_left -= shorts;
        } else if !self.look_around(reactor, arrived, is_idle) {
            return false;
        }
        let is_due = is_idle && self.needs_attention(reactor);
        if is_due || !self.inbox().is_empty() || !reactor.fabric_mut().skip_poll(is_idle) {
            return false;
        }
        self.core_lane().end_turn();
        reactor.fabric_mut().flush();
        if is_idle {
            reactor.count_busy_turns(std::mem::take(&mut arrived.busy_turns));
            arrived.idle_turns += 1;
            reactor.stats().polls += 1;
            reactor.stats().empty_polls += 1;
            return true;
        }
        arrived.busy_turns += 1;
        true
    }

    /// Performs the checks that turns that end early leave out. Returns false if this turn cannot end early.
    #[inline(never)]
    fn look_around(
        &self,
        reactor: &mut Reactor,
        arrived: &mut ArrivedMessages,
        is_idle: bool,
    ) -> bool {
        reactor.stamp(std::mem::take(&mut arrived.busy_turns));
        arrived.begin_looks();
        // First: if it finds work, the poll of this turn does it, whatever made the turn a whole one.
        let rests = reactor.fabric_mut().rests();
        rests && !self.needs_attention(reactor) && !reactor.is_to_publish(is_idle)
    }

    #[inline(always)]
    fn needs_attention(&self, reactor: &mut Reactor) -> bool {
        reactor.wake_by(self.core_lane().take_deadline());
        reactor.needs_attention()
    }

    #[cold]
    fn on_other(&self, qp: QpId, kind: CompletionKind, up: &mut impl Upcalls) {
        match kind {
            CompletionKind::Received { message, invalidated } => {
                self.on_message(Received { qp, message, invalidated }, up);
            }
            CompletionKind::Read { id, result } => {
                let whole = self.reactor().on_read(qp, id, result);
                self.go_on(whole, up);
            }
            CompletionKind::Revoked { handle } => self.on_revoked(qp, handle, up),
            CompletionKind::RecvFlushed { buf } => drop(buf),
            CompletionKind::Down { cause } => self.on_down(qp, &cause, up),
        }
    }

    /// Passes a message to the protocol core. Its event is handled when the state is no longer borrowed, because that
    /// may run a handler.
    #[inline(always)]
    fn on_message(&self, received: Received, up: &mut impl Upcalls) {
        let Received { qp, message, invalidated } = received;
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(qp) else { return };
        let mut arrival = Arrival::default();
        c.lane.proto().on_receive(message.bytes(), &mut arrival);
        self.on_event(reactor, Received { qp, message, invalidated }, arrival, up);
    }

    /// Handles the event caused by a message.
    #[inline(always)]
    pub(super) fn on_event(
        &self,
        mut reactor: RefMut<'_, Reactor>,
        received: Received,
        arrival: Arrival,
        up: &mut impl Upcalls,
    ) {
        let Received { qp, message, invalidated } = received;
        match &arrival.event {
            Event::Call(slot) => {
                let frame = reactor.frame_call(qp, *slot, message);
                drop(reactor);
                if let Some(frame) = frame {
                    self.deliver_call(frame, up);
                }
            }
            Event::Reply(reply) => {
                drop(reactor);
                self.arrive_reply(Received { qp, message, invalidated }, (*reply, false), up);
            }
            Event::PullReply => {
                drop(reactor);
                let Some(reply) = arrival.to_pull else { return };
                self.arrive_reply(Received { qp, message, invalidated }, (reply, true), up);
            }
            _ => {
                let failed =
                    reactor.on_rare(qp, message, arrival.event, arrival.close, invalidated);
                drop(reactor);
                if let Some((call, failure)) = failed {
                    up.on_event(CoreEvent::CallFailed(qp, call, CallEnd::Failed(failure)));
                }
            }
        }
    }

    /// Handles mail, deadlines, and calls that wait for memory, which most turns do not have; at the end of a turn with
    /// `arrivals` from the fabric.
    #[cold]
    fn attend(&self, arrivals: usize, up: &mut impl Upcalls) -> usize {
        let letters = self.read_mail(up);
        self.switch_measuring(up);
        self.end_overdue(arrivals, up);
        #[cfg(feature = "gss")]
        let letters = letters + self.go_on_with_bodies(up);
        self.resume(up);
        self.attend_interrupted(up);
        self.reactor().go_on_leaving();
        letters
    }

    /// Begins or ends to measure latencies, as the control socket's thread wants.
    fn switch_measuring(&self, up: &mut impl Upcalls) {
        let latencies = self.inbox().latencies();
        if latencies.is_to_switch() {
            up.on_event(CoreEvent::Measure(latencies.switch()));
        }
    }

    /// The last completion of a connection: every call of it ends now.
    fn on_down(&self, conn: ConnId, cause: &DownCause, up: &mut impl Upcalls) {
        self.end_fences(conn, up);
        let Some(mut gone) = self.reactor().remove(conn) else { return };
        // The driver's cause is Local when the reactor was first to end it, and knows why.
        let cause = match (cause, gone.closing.take()) {
            (DownCause::Local, Some(reason)) => reason,
            _ => cause.clone(),
        };
        if let Some(peer) = &gone.peer() {
            event!(INFO, %peer, connection = ?conn, reason = %cause, "a connection has ended");
        }
        self.report_ended_calls(up);
        let verdict = gone.lane.proto().requester.verdict();
        let mut is_wanted = false;
        up.on_event(CoreEvent::Ending { conn, verdict, wants_another: &mut is_wanted });
        if is_wanted && !self.reactor().is_shut_down() {
            return self.suspend(*gone, &cause, up);
        }
        // Those that were still being sealed.
        let unsent: Vec<_> = gone.lane.proto().requester.reserved().collect();
        let mut ended = Vec::new();
        gone.lane
            .proto()
            .requester
            .on_down(|slot, token| ended.extend(token.map(|token| (slot, token))));
        for (slot, token) in ended {
            let is_unsent = unsent.contains(&slot);
            gone.calls.lose(slot, is_unsent);
            let end = gone.calls.end_of(slot, is_unsent, &cause);
            up.on_event(CoreEvent::CallFailed(conn, SlotToken { slot, token }, end));
        }
        up.on_event(CoreEvent::Down(conn, &cause));
    }

    /// Sleeps until there is work, for `at_most`, and not beyond the next deadline.
    pub(crate) fn park(&self, at_most: std::time::Duration, up: &mut impl Upcalls) {
        let mut reactor = self.reactor();
        if !self.needs_attention(&mut reactor) {
            reactor.park(at_most, self.core_lane().counts());
            sample(reactor, up);
        }
    }

    /// The core has stopped: its peers are notified now.
    pub(crate) fn end(&self) {
        if let Some(mut reactor) = self.try_reactor() {
            // First, so that no connection is assigned to this core whatever fails below.
            self.inbox().close();
            reactor.publish(self.core_lane().counts());
            reactor.close_all();
            // Last: a device may take seconds, and no thread may wait for this core meanwhile.
            reactor.fabric_mut().end();
            reactor.drop_conns();
        }
    }

    /// Connections that are not down yet.
    pub(crate) fn connections(&self) -> usize {
        self.reactor().conns().ids().len()
    }

    /// Tells the application of calls that passed their deadline or were cancelled. Their memory
    /// stays fenced until the responder answers or the connection goes.
    fn end_overdue(&self, arrivals: usize, up: &mut impl Upcalls) {
        self.reactor().expire(arrivals);
        self.report_ended_calls(up);
    }

    /// Runs the service of a call, then gives its receive buffer back to the driver.
    #[inline]
    pub(super) fn deliver_call(&self, frame: CallFrame, up: &mut impl Upcalls) {
        if !frame.admitted.is_chunkless {
            return self.deliver_other_call(frame, up);
        }
        let CallFrame { conn, slot, message, admitted, .. } = frame;
        let header_bytes = admitted.header_bytes as usize;
        let Some((conn_lane, takes_any)) = self.reactor().lane_of(conn) else { return };
        let to = (&*conn_lane, takes_any);
        let outcome = self.serve_chunkless(to, slot, message.bytes(), header_bytes, up);
        self.reactor().finish_chunkless_call(conn, slot, message, outcome);
        self.close_if_asked();
    }

    /// Delivers a call that has chunks or padding.
    #[inline(never)]
    fn deliver_other_call(&self, mut frame: CallFrame, up: &mut impl Upcalls) {
        let outcome = self.serve_in_place(frame.conn, || up.on_call(&mut frame));
        self.reactor().finish_call(frame, outcome);
        // After the call, so that a reply that a thread seals can be finished.
        self.close_if_asked();
    }
}

impl Reactor {
    /// The lane of the connection that a short message arrived on.
    #[inline]
    pub(super) fn short_lane(&mut self, conn: ConnId) -> Option<Rc<ConnLane>> {
        self.conns().lane(conn).cloned()
    }

    /// Handles every event except a call and a reply. Failed calls are reported to the application.
    #[cold]
    fn on_rare(
        &mut self,
        qp: QpId,
        message: Buf,
        event: Event,
        close: Option<PeerMisbehaved>,
        invalidated: Option<u32>,
    ) -> Option<(SlotToken, CallFailure)> {
        if let Some(why) = close {
            self.close_misbehaving(qp, why);
        }
        if let Event::Pull(slot) = event {
            self.begin_pull(qp, slot, message);
            return None;
        }
        self.repost(qp, message);
        let ended = match event {
            Event::Failed(FailedCall { slot, .. }) | Event::Released(slot) => Some(slot),
            _ => None,
        };
        if !self.forget_call(qp, ended, invalidated) {
            self.close_misbehaving(qp, PeerMisbehaved::ForeignKey);
        }
        match event {
            Event::Failed(FailedCall { slot, token, failure, .. }) => {
                return Some((SlotToken { slot, token }, failure));
            }
            Event::Error(xid, version, error) => self.emit_error(qp, xid, version, error),
            Event::Refused(xid, version, status) => {
                self.stats().calls_refused += 1;
                self.emit_refusal(qp, (xid, version), None, &RpcRefusal::Accepted(status));
            }
            Event::Dropped(why) => {
                self.stats().messages_dropped += 1;
                note_dropped(why);
            }
            Event::FreeExports(slot) => self.on_done(qp, slot),
            Event::Resend(slot) => self.fall_back(qp, slot),
            Event::None
            | Event::Call(_)
            | Event::PullReply
            | Event::Pull(_)
            | Event::Reply(_)
            | Event::Released(_) => {}
        }
        None
    }

    /// Releases the memory of a call that ended without a reply. Returns false if the message that ended it, or a
    /// message that ended none, invalidated a key that is not the call's.
    fn forget_call(
        &mut self,
        conn: ConnId,
        slot: Option<SlotId>,
        invalidated: Option<u32>,
    ) -> bool {
        let Some((c, core)) = self.conn_and_core(conn) else { return true };
        slot.into_iter().for_each(|slot| c.forget_sent(slot));
        let call = slot.and_then(|slot| c.end_call(slot, core.fabric_mut()));
        let own = |handle| call.as_ref().is_some_and(|call| call.lent.handles().contains(&handle));
        let allowed = invalidated.is_none_or(own);
        if let Some(call) = call {
            c.calls.recycle(call);
        }
        allowed
    }

    /// Ends expired calls, exports of replies, and stalled connections.
    fn expire(&mut self, arrivals: usize) {
        let (conns, core) = self.split();
        let has_overdue = |now| conns.iter_mut().any(|c| c.lane.proto().requester.has_overdue(now));
        let Some(now) = core.take_overdue(arrivals, has_overdue) else { return };
        self.expire_calls(now);
        self.expire_exports(now);
        self.end_stalled(now);
        let pause_ends = self.pause_ends();
        self.note_other_deadlines(pause_ends);
    }
}

/// The next calls are timed if the last ones that were are long ago.
#[inline]
fn sample(mut reactor: RefMut<'_, Reactor>, up: &mut impl Upcalls) {
    let is_due = reactor.take_sample_due();
    drop(reactor);
    if is_due {
        up.on_event(CoreEvent::Sample);
    }
}

/// For people who look for the reason: messages that are dropped are rare.
#[cold]
fn note_dropped(why: Dropped) {
    event!(DEBUG, ?why, "dropped a message");
}
