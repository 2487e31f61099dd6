//! The lane of short messages: a plain call or reply goes from the driver to its handler by value, and
//! its receive never leaves the driver. Called by the turn, and by the api, whose calls start here.
//!
//! Whatever is not plain is looked at by the protocol core as any message is. If it is a call or a
//! reply without chunks all the same, as those of version two or with a credential are, it goes by
//! value; anything else is put into the receive that it was taken for, and goes the general way.

use crate::fabric::{
    ConnId, DownCause, Ends, Fabric, Head, LINE_PAIRS, LineHead, LongHead, Received, Short,
};
use crate::mem::Buf;
use crate::reactor::pending::serving::Serving;
use crate::reactor::pending::upcalls::Upcalls;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::words::calls::{
    Backpressure, CallId, CallOutcome, CallSpec, CallTarget, Deadline, ReplyFrame, ReplyTarget,
};
use crate::reactor::words::draft::{Draft, EncodeOnce, once};
use crate::reactor::words::gate::{Gate, Way};
use crate::reactor::words::message_memory::{MessageMemory, Undrafted};
use crate::reactor::words::messages::{ITEMS_DIFFER, is_plain, plain_header_bytes, version_of};
use crate::reactor::words::reply_plan::ReplyData;
use crate::reactor::words::sink::{Event, EventSink};
use crate::sys::clock::Ticks;
use spinrpc_proto::ids::{Instant, Program, Version, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::{DeliveredReply, ReplyStream, SlotId};
use spinrpc_proto::payload::StreamWriter;
use spinrpc_proto::plain::{CALL_BYTES, PlainCall, PlainReply, REPLY_BYTES, call_head, says_reply};
use spinrpc_proto::rdma::v1::MSG_HEADER_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::cell::Cell;
use std::rc::Rc;

impl CoreCell {
    /// Whether the lane of a connection may take this way, after a look at the connection if that is not known.
    #[inline(always)]
    fn lets(&self, lane: &ConnLane, way: Way) -> bool {
        lane.is_open(way) || (lane.gate.get() == Gate::UNKNOWN && self.look_at_gate(lane, way))
    }

    #[cold]
    fn look_at_gate(&self, lane: &ConnLane, way: Way) -> bool {
        match self.reactor().conns.find_for_lane(lane.id) {
            Some(c) => c.look_at_gate(),
            None => lane.gate.set(Gate::of(&[])),
        }
        lane.is_open(way)
    }
}

impl Conn {
    fn lets(&self, way: Way) -> bool {
        if self.lane.gate.get() == Gate::UNKNOWN {
            self.look_at_gate();
        }
        self.lane.is_open(way)
    }

    fn look_at_gate(&self) {
        let one = TransportVersion::One;
        let takes_any_short = self.takes_any_short();
        let proto = self.lane.proto();
        let sends_calls = (self.goes_plain() && self.closing.is_none())
            && proto.requester.negotiation().version() == one
            && takes_any_short
            && self.lane.send_reserved.get() == 0;
        // A buffer must be left for a reply that has to wait. Taking one makes the gate unknown.
        let takes_calls = proto.takes_plain_calls() && takes_any_short && self.has_spare_send();
        self.lane.gate.set(Gate::of(&[
            (Way::SendCalls, sends_calls),
            (Way::TakeCalls, takes_calls),
            (Way::TakeReplies, self.goes_plain() && proto.takes_plain_replies()),
        ]));
    }
}

/// A call of this connection is being served until this is dropped, by a panic, too.
struct Served<'a>(&'a Cell<Option<ConnId>>);

impl<'a> Served<'a> {
    #[inline(always)]
    fn begin(place: &'a Cell<Option<ConnId>>, conn: ConnId) -> Self {
        place.set(Some(conn));
        Self(place)
    }
}

impl Drop for Served<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl CoreCell {
    /// Handles a short message. State is borrowed for one step at a time, and not while a handler runs.
    #[inline(always)]
    pub(super) fn handle_short(
        &self,
        lane: &ConnLane,
        ends: &Ends,
        short: &Short,
        up: &mut impl Upcalls,
    ) {
        let is_plain = match says_reply(&short.pairs()) {
            true => self.deliver_plain_reply(lane, short, up),
            false => self.serve_plain_call(lane, ends, short, up),
        };
        if !is_plain {
            self.on_other_short(lane, ends, short, up);
        }
    }

    /// A reply to a call that has lent nothing. `false`, and nothing happened, for any other message.
    #[inline(always)]
    fn deliver_plain_reply(&self, lane: &ConnLane, short: &Short, up: &mut impl Upcalls) -> bool {
        let Some((reply, results)) = plain_reply(short) else { return false };
        let is_let = self.lets(lane, Way::TakeReplies);
        let token = is_let.then(|| lane.proto().requester.take_plain_reply(&reply)).flatten();
        let Some(token) = token else { return false };
        count(&self.lane.counts.replies_received, 1);
        if !up.on_plain_reply(lane.id, token, results) {
            self.on_first_plain_reply(lane.id, token, short, up);
        }
        true
    }

    /// A call that can be served at once. `false`, and nothing happened, for any other message.
    #[inline(always)]
    fn serve_plain_call(
        &self,
        lane: &ConnLane,
        ends: &Ends,
        short: &Short,
        up: &mut impl Upcalls,
    ) -> bool {
        let Some((call, arguments)) = plain_call(short) else { return false };
        if !self.lets(lane, Way::TakeCalls) || !lane.begin_plain_call(ends) {
            return false;
        }
        count(&self.lane.counts.calls_received, 1);
        let slot = Cell::new(None);
        let serving = Serving::with_room(lane.id, &slot, short.bytes(), Some(&self.lane.reply));
        match self.serve_in_place(lane.id, || up.on_plain_call(&serving, &call, arguments)) {
            CallOutcome::Replied if slot.get().is_none() => {
                lane.unreserve(1);
                let results = &mut self.lane.reply.borrow_mut().short;
                self.send_short_reply(lane, ends, call.xid, results);
            }
            outcome => self.end_plain_call(lane, ends, &slot, short, outcome),
        }
        self.close_if_asked();
        true
    }

    /// Delivers a plain reply through `on_reply`: the client is still connecting, or this is its first reply
    /// in reverse.
    #[cold]
    fn on_first_plain_reply(&self, conn: ConnId, token: u64, short: &Short, up: &mut impl Upcalls) {
        let stream = short.behind::<MSG_HEADER_BYTES>().unwrap_or_default();
        let call = (token, xid_in(short.bytes()).unwrap_or(Xid(0)));
        up.on_reply(ReplyFrame::short(conn, call, stream, &[0; ITEMS_MAX]));
    }

    /// A call that took a slot, or whose reply is not short.
    #[inline(never)]
    fn end_plain_call(
        &self,
        lane: &ConnLane,
        ends: &Ends,
        slot: &Cell<Option<SlotId>>,
        short: &Short,
        outcome: CallOutcome,
    ) {
        self.end_served(lane, slot, short.bytes(), Some(ends), outcome);
        if outcome == CallOutcome::Deferred {
            self.reactor().keep_deferred(lane.id, slot.get(), short);
        }
    }

    /// Has a plain call served, with room for its reply, and sends that: by value through `ends`, if it is short.
    #[inline(always)]
    fn serve_with_room(
        &self,
        lane: &ConnLane,
        slot: &Cell<Option<SlotId>>,
        message: &[u8],
        ends: Option<&Ends>,
        serve: impl FnOnce(&Serving<'_>) -> CallOutcome,
    ) -> CallOutcome {
        let conn = lane.id;
        let room = self.lane.takes_replies.then_some(&self.lane.reply);
        let call = Serving::with_room(conn, slot, message, room);
        let outcome = self.serve_in_place(conn, || serve(&call));
        self.end_served(lane, slot, message, ends, outcome);
        self.close_if_asked();
        outcome
    }

    /// Sends the answer of a call that was served, if it has one now.
    fn end_served(
        &self,
        lane: &ConnLane,
        slot: &Cell<Option<SlotId>>,
        message: &[u8],
        ends: Option<&Ends>,
        outcome: CallOutcome,
    ) {
        let conn = lane.id;
        match outcome {
            CallOutcome::Replied
                if let Some(ends) = ends
                    && let Some(xid) = xid_in(message) =>
            {
                match slot.get() {
                    None => lane.unreserve(1),
                    Some(slot) => self.reactor().end_plain_slot(conn, slot),
                }
                self.send_short_reply(lane, ends, xid, &mut self.lane.reply.borrow_mut().short);
            }
            CallOutcome::Replied => self.send_written_reply(conn, slot.get(), message, true),
            CallOutcome::RepliedAtLength => {
                self.send_written_reply(conn, slot.get(), message, false);
            }
            _ if slot.get().is_none() => self.reactor().forget_plain_call(conn),
            _ => {}
        }
    }

    /// Sends a reply that was written but does not go by value.
    fn send_written_reply(&self, conn: ConnId, slot: Option<SlotId>, call: &[u8], is_short: bool) {
        let mut memory = self.lane.reply.borrow_mut();
        let mut written = memory.written_mut(is_short);
        if let Ok(message) = &mut written
            && version_of(call) == TransportVersion::One
            && self.reactor().send_long_reply(conn, slot, call, message)
        {
            return;
        }
        let Some(slot) = slot.or_else(|| self.reactor().take_slot(conn)) else { return };
        let to = ReplyTarget { conn, slot, message: call, plain: true };
        match written {
            Ok(message) => {
                self.send_plain_results(&to, message.get(REPLY_BYTES..).unwrap_or_default());
            }
            Err(why) => self.reactor().refuse_undrafted(&to, &ReplyData::new(), why),
        }
    }

    /// Has a call served. Its handler may have asked for its connection to be closed.
    #[inline(always)]
    pub(super) fn serve_in_place(
        &self,
        conn: ConnId,
        serve: impl FnOnce() -> CallOutcome,
    ) -> CallOutcome {
        let _served = Served::begin(&self.lane.serving, conn);
        serve()
    }

    /// Closes the connection that was served, if its handler has asked for that.
    #[inline(always)]
    pub(super) fn close_if_asked(&self) {
        if self.lane.closing.get().is_some() {
            self.close_now();
        }
    }

    #[cold]
    fn close_now(&self) {
        if let Some(conn) = self.lane.closing.take() {
            let mut reactor = self.reactor();
            // A driver takes back what it has not sent.
            reactor.fabric.flush();
            reactor.begin_close(conn, DownCause::Local);
        }
    }

    /// Returns true if the connection closes as soon as the call that is being served is answered.
    pub(super) fn is_closing(&self, conn: ConnId) -> bool {
        self.lane.closing.get() == Some(conn)
    }

    /// Has a plain call served that is not in its plainest form. `takes_any`: a short message may be as long as
    /// any is.
    #[inline(always)]
    pub(super) fn serve_plain(
        &self,
        (lane, takes_any): (&ConnLane, bool),
        slot: SlotId,
        message: &[u8],
        header_bytes: usize,
        up: &mut impl Upcalls,
    ) -> CallOutcome {
        let serve = |serving: &Serving<'_>| up.on_short_call(serving, &message[header_bytes..]);
        let takes_short = takes_any && version_of(message) == TransportVersion::One;
        let ends = lane.ends.as_ref().filter(|_| takes_short);
        self.serve_with_room(lane, &Cell::new(Some(slot)), message, ends, serve)
    }

    /// Closes a connection, after the answer to the call of it that is being served.
    pub(super) fn close_unless_serving(&self, conn: ConnId) {
        match self.lane.serving.get() == Some(conn) {
            true => self.lane.closing.set(Some(conn)),
            false => self.reactor().begin_close(conn, DownCause::Local),
        }
    }

    #[inline(never)]
    fn on_other_short(&self, lane: &ConnLane, ends: &Ends, short: &Short, up: &mut impl Upcalls) {
        let conn = lane.id;
        let mut reactor = self.reactor();
        let Some(c) = reactor.conns.find(conn) else { return };
        let takes_any = c.takes_any_short();
        let mut sink = EventSink::new();
        lane.proto().on_receive(short.bytes(), &mut sink);
        match &sink.event {
            Event::Call(slot) => {
                if let Some(header_bytes) = plain_header_bytes(short.bytes()) {
                    if reactor.reserve_of(conn, *slot, 1, 0, ends.send_room()).is_none() {
                        return reactor.put_off_short(conn, *slot, short);
                    }
                    drop(reactor);
                    let header_bytes = header_bytes as usize;
                    let (to, message) = ((lane, takes_any), short.bytes());
                    let outcome = self.serve_plain(to, *slot, message, header_bytes, up);
                    if outcome == CallOutcome::Deferred {
                        self.reactor().keep_deferred(conn, Some(*slot), short);
                    }
                    return;
                }
            }
            Event::Reply(reply) => {
                if let Some(stream) = reactor.take_short_reply(conn, reply, short) {
                    drop(reactor);
                    let call = (reply.token, reply.slot.xid());
                    return up.on_reply(ReplyFrame::short(conn, call, stream, &reply.placed));
                }
            }
            _ => {}
        }
        let Some(message) = reactor.keep(conn, short) else { return };
        let received = Received { qp: conn, message, invalidated: None };
        self.on_event(reactor, received, sink, up);
    }
}

impl CoreCell {
    /// Sends a short message as a call without a credential, if it can leave now; if not nothing has
    /// happened.
    #[inline(always)]
    fn send_without_credential(
        &self,
        lane: &ConnLane,
        (program, version): (Program, Version),
        target: &CallTarget<'_>,
        spec: &CallSpec,
        message: &Short,
    ) -> Option<CallId> {
        let (token, procedure) = (target.token, target.procedure);
        self.send_short_call(lane, token, spec, message, |xid, credits, _| PlainCall {
            xid,
            credits,
            program,
            version,
            procedure,
        })
    }

    /// The same of a call whose RPC header is in the message.
    fn send_with_credential(
        &self,
        lane: &ConnLane,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        message: &Short,
    ) -> Option<CallId> {
        let token = target.token;
        self.send_short_call(lane, token, spec, message, |xid, credits, message| {
            let (first, [a, b, c, d]) = call_head(xid, credits);
            let [.., e, f] = message.pairs::<LINE_PAIRS>();
            LineHead::new(first, [a, b, c, d, e, f])
        })
    }

    /// Sends the call in `message`, whose first words `head` makes of its XID and credits.
    #[inline(always)]
    fn send_short_call<const HEAD: usize, H: Into<Head<HEAD>>>(
        &self,
        lane: &ConnLane,
        token: u64,
        spec: &CallSpec,
        message: &Short,
        head: impl FnOnce(Xid, u32, &Short) -> H,
    ) -> Option<CallId> {
        let ends = lane.ends.as_ref().filter(|_| self.lets(lane, Way::SendCalls))?;
        let mut proto = lane.proto();
        let next = proto.requester.next_call().ok()?;
        if !ends.send(head(next.xid, next.requested(), message), message) {
            return None;
        }
        // Behind the message, which does not wait for the clock.
        let deadline = self.lane_deadline(spec);
        let call = next.start(token, deadline);
        self.lane.next_deadline.set(self.lane.next_deadline.get().min(deadline));
        count(&self.lane.counts.calls_sent, 1);
        count(&self.lane.counts.bytes_inline, message.length() as u64);
        Some(CallId(call))
    }

    /// When a call that starts now is given up.
    #[inline(always)]
    fn lane_deadline(&self, spec: &CallSpec) -> Instant {
        let now = self.lane.stamp.get().or_else(|| self.read_stamp());
        match (spec.deadline, now) {
            (Deadline::Default, Some(now)) => {
                Instant(now.0.saturating_add(self.lane.default_timeout_ticks))
            }
            _ => self.reactor().deadline(spec),
        }
    }

    /// The time, for all calls of the turn if there is one: it is not older than the turn, however long the application
    /// was away.
    #[inline(always)]
    fn read_stamp(&self) -> Option<Ticks> {
        let now = self.lane.clock?.now();
        if self.lane.in_turn.get() {
            self.lane.stamp.set(Some(now));
        }
        Some(now)
    }

    /// Sends the reply to a call that is over, whose results are in `message`.
    #[inline(always)]
    fn send_short_reply(&self, lane: &ConnLane, ends: &Ends, xid: Xid, message: &mut Short) {
        let reply = PlainReply { xid, credits: lane.proto().responder.grant() };
        if !ends.send(reply, message) {
            return self.queue_short_reply(lane.id, reply, message);
        }
        count(&self.lane.counts.replies_sent, 1);
        count(&self.lane.counts.bytes_inline, message.length() as u64);
    }

    /// Something else waits to be sent, or the peer has no room: the reply waits behind it. The call was
    /// taken while there was a buffer for it, and a place in the send queue.
    #[cold]
    fn queue_short_reply(&self, conn: ConnId, reply: PlainReply, message: &mut Short) {
        message.set_head(&LineHead::from(reply));
        self.reactor().queue_short_reply(conn, message);
    }
}

impl From<PlainCall> for LongHead {
    #[inline(always)]
    fn from(call: PlainCall) -> Self {
        let (first, pairs) = call.emit();
        Self::new(first, pairs)
    }
}

impl From<PlainReply> for LineHead {
    #[inline(always)]
    fn from(reply: PlainReply) -> Self {
        let (first, pairs) = reply.emit();
        Self::new(first, pairs)
    }
}

/// The transaction id of a message.
fn xid_in(message: &[u8]) -> Option<Xid> {
    message.first_chunk().map(|xid| Xid(u32::from_be_bytes(*xid)))
}

impl Reactor {
    /// The lane of a connection, and whether a short message on it may be as long as any is.
    pub(super) fn lane_of(&mut self, conn: ConnId) -> Option<(Rc<ConnLane>, bool)> {
        let c = self.conns.find(conn)?;
        Some((Rc::clone(&c.lane), c.takes_any_short()))
    }

    /// Sends the call in `message` as [`CoreCell::send_short_call`] does, whatever its length.
    fn send_long_call(
        &mut self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        message: &mut [u8],
    ) -> Option<CallId> {
        let deadline = self.deadline(spec);
        let bytes = message.len();
        let c = self.conns.find_for_lane(conn)?;
        if !c.lets(Way::SendCalls) || bytes > c.negotiated.plain_bytes_max(TransportVersion::One) {
            return None;
        }
        let mut proto = c.lane.proto();
        let next = proto.requester.next_call().ok()?;
        target.header.write_without_credential(target.procedure, &mut message[MSG_HEADER_BYTES..]);
        let (first, pairs) = call_head(next.xid, next.requested());
        put_head(message, first, &pairs);
        if !self.fabric.send_copied(conn, message) {
            return None;
        }
        let call = next.start(target.token, deadline);
        self.next_deadline = self.next_deadline.min(deadline);
        self.stats.calls_sent += 1;
        self.stats.bytes_inline += bytes as u64;
        Some(CallId(call))
    }

    /// The same of a reply of version one.
    fn send_long_reply(
        &mut self,
        conn: ConnId,
        slot: Option<SlotId>,
        call: &[u8],
        message: &mut [u8],
    ) -> bool {
        let (c, xid) = (self.conns.find_for_lane(conn), call.first_chunk());
        let (Some(c), Some(xid)) = (c, xid) else { return false };
        if message.len() > c.negotiated.plain_bytes_max(TransportVersion::One) {
            return false;
        }
        let (xid, credits) = (Xid(u32::from_be_bytes(*xid)), c.lane.proto().responder.grant());
        let (first, pairs) = PlainReply { xid, credits }.emit();
        put_head(message, first, &pairs);
        if !self.fabric.send_copied(conn, message) {
            return false;
        }
        match slot {
            None => c.lane.unreserve(1),
            Some(slot) => {
                c.release(slot);
                c.lane.proto().responder.end_plain(slot);
            }
        }
        self.stats.replies_sent += 1;
        self.stats.bytes_inline += message.len() as u64;
        true
    }

    /// A plain call is answered: gives its slot back, and the room that it kept.
    #[cold]
    fn end_plain_slot(&mut self, conn: ConnId, slot: SlotId) {
        if let Some(c) = self.conns.find(conn) {
            c.release(slot);
            c.lane.proto().responder.end_plain(slot);
        }
    }

    /// As [`CoreCell::queue_short_reply`].
    fn queue_short_reply(&mut self, conn: ConnId, short: &Short) {
        let Some(message) = self.conns.find(conn).and_then(|c| c.sends.take()) else {
            return self.close_overrun(conn, "send buffers");
        };
        self.post_answer(conn, short.put_into(message), None);
    }

    /// A slot for a plain call that is served without one, but not answered by a short reply. The room that
    /// is kept is the slot's from now on.
    pub(super) fn take_slot(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conns.find(conn)?;
        let slot = c.lane.proto().responder.place_plain()?;
        c.serves[usize::from(slot.index)].reserved = 1;
        Some(slot)
    }

    /// A call that was served without a slot has no answer: its handler has leaked it.
    #[cold]
    fn forget_plain_call(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.find(conn) {
            c.lane.unreserve(1);
        }
    }

    /// The RPC message of a reply that a short message has all of.
    fn take_short_reply<'m>(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        short: &'m Short,
    ) -> Option<&'m [u8]> {
        let ReplyStream::Inline { header_bytes } = reply.stream else { return None };
        let c = self.conns.find(conn)?;
        if !is_plain(header_bytes) || c.calls.has_hold(reply.slot.index) {
            return None;
        }
        self.stats.replies_received += 1;
        short.bytes().get(header_bytes..)
    }

    /// The message of a call that is answered later, in the place of that of any other.
    #[cold]
    fn keep_deferred(&mut self, conn: ConnId, slot: Option<SlotId>, short: &Short) {
        let (Some(c), Some(slot)) = (self.conns.find(conn), slot) else { return };
        if !c.lane.proto().responder.is_delivered(slot) {
            // Answered within its handler, as an option may be.
            return;
        }
        let Some(message) = self.fabric.receive_of_short(conn) else {
            return self.close_overrun(conn, "receives");
        };
        c.serves[usize::from(slot.index)].message = Some(short.put_into(message));
        c.promise_send();
    }

    #[cold]
    fn put_off_short(&mut self, conn: ConnId, slot: SlotId, short: &Short) {
        if let Some(message) = self.keep(conn, short) {
            self.put_off_call(conn, slot, message);
        }
    }

    /// Puts a short message into the receive that it was taken for.
    fn keep(&mut self, conn: ConnId, short: &Short) -> Option<Buf> {
        let Some(message) = self.fabric.receive_of_short(conn) else {
            self.close_overrun(conn, "receives");
            return None;
        };
        Some(short.put_into(message))
    }
}

/// Counts what the lane did; the statistics are published from there.
#[inline(always)]
fn count(of: &Cell<u64>, more: u64) {
    of.set(of.get().wrapping_add(more));
}

/// Puts the first words of a message, of which pairs lie as they do in memory.
fn put_head(message: &mut [u8], first: [u8; 4], pairs: &[u64]) {
    if let Some((word, behind)) = message.split_first_chunk_mut() {
        *word = first;
        let places = behind.as_chunks_mut().0.iter_mut();
        places.zip(pairs).for_each(|(place, pair)| *place = pair.to_ne_bytes());
    }
}

/// A plain reply, and its results.
#[inline(always)]
fn plain_reply(short: &Short) -> Option<(PlainReply, &[u8])> {
    let reply = PlainReply::parse(short.first_word(), &short.pairs())?;
    Some((reply, short.behind::<REPLY_BYTES>()?))
}

/// A plain call, and its arguments.
#[inline(always)]
fn plain_call(short: &Short) -> Option<(PlainCall, &[u8])> {
    let call = PlainCall::parse(short.first_word(), &short.pairs())?;
    Some((call, short.behind::<CALL_BYTES>()?))
}

/// An encoder may not start another call.
const NESTED: Backpressure = Backpressure::Misuse("the encoder of a call has started another one");

/// A call's id, or why it was not started.
type Started = Result<CallId, Backpressure>;

impl CoreCell {
    /// Starts a call; on success the buffers of `spec` have moved out of it. It is encoded before anything is
    /// looked at: most calls can leave.
    ///
    /// `explain` gets the outcome of calls that do not leave at once, not of most calls.
    /// Inlined into the crate that makes the call, so that the compiler sees the encoder.
    #[inline]
    pub(crate) fn start_call(
        &self,
        (conn, lane): (ConnId, Option<&Rc<ConnLane>>),
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        encode: impl FnOnce(&mut StreamWriter<'_>),
        explain: impl FnOnce(&mut Started),
    ) -> Started {
        let Ok(mut memory) = self.lane.call.try_borrow_mut() else { return Err(NESTED) };
        let is_plain = spec.is_plain() && self.lane.takes_calls;
        let plain = lane.zip(target.header.plain()).filter(|_| is_plain);
        let Some((lane, called)) = plain else {
            let to = (conn, lane);
            let encode = &mut once(encode);
            let mut outcome = self.start_other_call(to, target, spec, &mut memory, encode);
            explain(&mut outcome);
            return outcome;
        };
        let is_short = memory.encode::<CALL_BYTES>(encode);
        if is_short
            && let Some(call) =
                self.send_without_credential(lane, called, target, spec, &memory.short)
        {
            return Ok(call);
        }
        drop(memory);
        let memory = &mut self.lane.call.borrow_mut();
        let mut outcome = self.start_written_call(conn, target, spec, memory, is_short);
        explain(&mut outcome);
        outcome
    }

    /// A call that the lane cannot send, or not now, whose arguments are written.
    #[inline(never)]
    fn start_written_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        memory: &mut MessageMemory,
        is_short: bool,
    ) -> Result<CallId, Backpressure> {
        let message = memory.written_mut(is_short).map_err(Undrafted::refusal)?;
        if !is_short && let Some(call) = self.reactor().send_long_call(conn, target, spec, message)
        {
            return Ok(call);
        }
        let stream = &mut message[MSG_HEADER_BYTES..];
        target.header.write_without_credential(target.procedure, stream);
        let token = target.token;
        if let Some(call) = self.reactor().start_plain_call(conn, token, spec, stream)? {
            return Ok(call);
        }
        self.start_any_call(conn, token, spec, &Draft::plain(stream))
    }

    /// A call that is not plain or has a credential, or whose driver sends nothing by value.
    #[inline(never)]
    fn start_other_call(
        &self,
        (conn, lane): (ConnId, Option<&Rc<ConnLane>>),
        target: &CallTarget<'_>,
        spec: &mut CallSpec,
        memory: &mut MessageMemory,
        encode: EncodeOnce<'_>,
    ) -> Result<CallId, Backpressure> {
        let write = |stream: &mut StreamWriter<'_>| {
            target.header.write(target.procedure, stream);
            encode(stream);
        };
        if spec.is_plain() && self.lane.takes_calls {
            let is_short = memory.encode::<MSG_HEADER_BYTES>(write);
            if is_short
                && let Some(lane) = lane
                && let Some(call) = self.send_with_credential(lane, target, spec, &memory.short)
            {
                return Ok(call);
            }
            return self.start_written_call(conn, target, spec, memory, is_short);
        }
        if spec.overfull {
            return Err(Backpressure::Misuse("more than four data items in one direction"));
        }
        let items = spec.argument_count();
        let draft = memory.draft(items, self.lane.alignment, &mut once(write));
        let draft = draft.map_err(Undrafted::refusal)?;
        if draft.cuts().count() != items {
            return Err(ITEMS_DIFFER);
        }
        let (token, is_plain) = (target.token, spec.is_plain() && !self.names_times);
        if is_plain
            && let Some(call) =
                self.reactor().start_plain_call(conn, token, spec, draft.stream())?
        {
            return Ok(call);
        }
        self.start_any_call(conn, token, spec, &draft)
    }
}
