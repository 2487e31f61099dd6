//! The lane of short messages: a plain call or reply goes from the driver to its handler by value, and
//! its receive never leaves the driver. Called by the turn; calls start in `start_call`.
//!
//! A device delivers every message in a posted receive. A plain call or reply there is copied, handled in the same way,
//! and its receive is posted again; its answer goes by value.
//!
//! A call without chunks that has a credential, or is of version two, is served like a plain one, except that its RPC
//! header is left to the api. The protocol core inspects every other message as usual. If it turns out to be a call or
//! a reply without chunks, such as a call under RPCSEC_GSS, it goes by value. Anything else is put into its receive
//! and takes the general path.

use crate::fabric::{
    ConnId, DownCause, LineHead, Received, SHORT_BYTES_MAX, Short, ShortEndpoint, ShortEndpointOps,
};
use crate::mem::Buf;
use crate::reactor::common::sends::Posted;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::Upcalls;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::connection::Conn;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{CallOutcome, ReplyFrame, ReplyTarget};
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::{is_chunkless, version_of, xid_of};
use crate::reactor::types::lane_gate::LaneWay;
use crate::reactor::types::reply_plan::ReplyData;
use spinrpc_proto::events::{DeliveredReply, ReplyStream, SlotId};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::plain::{CALL_BYTES, PlainCall, PlainReply, REPLY_BYTES, says_reply};
use spinrpc_proto::rdma::v1::MSG_HEADER_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::rc::Rc;

mod non_plain;

impl CoreCell {
    /// Returns true if the lane of a connection may take this way, after a look at the connection if that is not
    /// known.
    #[inline(always)]
    pub(super) fn may_use(&self, conn_lane: &ConnLane, way: LaneWay) -> bool {
        conn_lane.is_open(way) || (conn_lane.is_unknown() && self.look_at_gate(conn_lane, way))
    }

    #[cold]
    fn look_at_gate(&self, conn_lane: &ConnLane, way: LaneWay) -> bool {
        match self.reactor().conns().find_for_lane(conn_lane.id()) {
            Some(c) => c.look_at_gate(),
            None => conn_lane.set_gate(&[]),
        }
        conn_lane.is_open(way)
    }
}

impl Conn {
    pub(super) fn may_use(&self, way: LaneWay) -> bool {
        if self.lane.is_unknown() {
            self.look_at_gate();
        }
        self.lane.is_open(way)
    }

    /// Ends a call without chunks: releases its slot, if it has one, and the room reserved for its reply.
    fn end_chunkless(&mut self, slot: Option<SlotId>) {
        match slot {
            None => self.lane.unreserve(1),
            Some(slot) => {
                self.release(slot);
                self.lane.proto().responder.end_chunkless(slot);
            }
        }
    }

    fn look_at_gate(&self) {
        let one = TransportVersion::One;
        let takes_any_short = self.takes_any_short(one);
        let proto = self.lane.proto();
        // A call that a handler starts here must not take the place that is reserved for the reply to the handler's own
        // call; only the general path counts places.
        let shares_places = self.lane.short_endpoint().is_some_and(ShortEndpoint::use_queue_slots);
        let sends_calls = (self.is_without_gss() && self.closing.is_none())
            && proto.requester.negotiation().version() == one
            && takes_any_short
            && self.lane.reserved() == 0
            && !(shares_places && proto.takes_calls_one());
        // There must be a free buffer for a reply that has to wait, and a free slot for a call that is not answered
        // at once. Taking one makes the gate unknown.
        let takes_calls = proto.responder.has_slot() && self.has_spare_send();
        let takes_one = takes_calls && takes_any_short && proto.takes_calls_one();
        let takes_two =
            takes_calls && proto.takes_calls_two() && self.takes_any_short(TransportVersion::Two);
        self.lane.set_gate(&[
            (LaneWay::SendCalls, sends_calls),
            (LaneWay::TakeCalls, takes_one),
            (LaneWay::TakeCallsTwo, takes_two),
            (LaneWay::TakeReplies, self.is_without_gss() && proto.takes_replies_one()),
        ]);
    }
}

/// Messages of one connection that the lane has handled, until they are counted ([`CoreCell::count_handled`]): a
/// panic that ends the core leaves them uncounted.
#[derive(Default)]
struct Handled {
    /// Messages that were neither plain calls nor plain replies.
    others: usize,
    /// Plain replies.
    replies: usize,
    /// Calls that were not answered here.
    unanswered: usize,
    bytes_sent: usize,
}

impl CoreCell {
    /// Handles a short message taken from a connection, and those behind it, `at_most` in all (not zero). Returns
    /// their number; `None` if nothing can have been taken from the connection.
    #[inline(always)]
    pub(super) fn handle_shorts_of(
        &self,
        conn_lane: &ConnLane,
        short: &mut Short,
        at_most: usize,
        up: &mut impl Upcalls,
    ) -> Option<usize> {
        Some(match conn_lane.short_endpoint()? {
            ShortEndpoint::Shm(endpoint) => {
                self.handle_shorts(conn_lane, &**endpoint, short, at_most, up)
            }
            #[cfg(feature = "sim")]
            ShortEndpoint::Sim(endpoint) => {
                self.handle_simulated(conn_lane, &**endpoint, short, at_most, up)
            }
            _ => return None,
        })
    }

    /// As [`CoreCell::handle_shorts`], in a separate function because every instruction of the other one counts.
    #[cfg(feature = "sim")]
    #[inline(never)]
    fn handle_simulated(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &mut Short,
        at_most: usize,
        up: &mut impl Upcalls,
    ) -> usize {
        self.handle_shorts(conn_lane, endpoint, short, at_most, up)
    }

    /// Handles a short message that was taken, and those behind it, `at_most` in all (not zero). Returns their
    /// number.
    #[inline(always)]
    pub(super) fn handle_shorts(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &mut Short,
        mut at_most: usize,
        up: &mut impl Upcalls,
    ) -> usize {
        let mut handled = Handled::default();
        let mut left = at_most;
        loop {
            left -= 1;
            self.handle_short(conn_lane, endpoint, short, &mut handled, up);
            if left == 0 {
                break;
            }
            match endpoint.take(short) {
                Some(true) => {}
                Some(false) => (at_most, left) = (at_most - left + 1, 1),
                None => break,
            }
        }
        let messages = at_most - left;
        self.count_handled(conn_lane, messages, &handled);
        messages
    }

    /// Handles a message in a posted receive as one that came by value, if it is a plain reply, a plain call, or a call that
    /// is served like one: devices deliver all messages that way. Returns any other message.
    #[inline(always)]
    pub(super) fn handle_received_short(
        &self,
        received: Received,
        (last, short): (&mut Option<Rc<ConnLane>>, &mut Short),
        up: &mut impl Upcalls,
    ) -> Option<Received> {
        let is_candidate = received.message.len() <= SHORT_BYTES_MAX
            && received.invalidated.is_none()
            && self.core_lane().takes_received();
        match is_candidate {
            true => self.handle_candidate(received, last, short, up),
            false => Some(received),
        }
    }

    /// As [`CoreCell::handle_received_short`], of a message that is short enough and invalidates no key.
    #[inline(never)]
    fn handle_candidate(
        &self,
        received: Received,
        last: &mut Option<Rc<ConnLane>>,
        short: &mut Short,
        up: &mut impl Upcalls,
    ) -> Option<Received> {
        let qp = received.qp;
        if last.as_ref().is_none_or(|conn_lane| conn_lane.id() != qp) {
            *last = self.reactor().short_lane(qp);
        }
        let conn_lane = last.as_deref();
        let Some((conn_lane, endpoint)) =
            conn_lane.and_then(|conn_lane| Some((conn_lane, conn_lane.short_endpoint()?)))
        else {
            return Some(received);
        };
        if !short.copy_from(received.message.bytes()) {
            return Some(received);
        }
        // A call that is answered later keeps it.
        let receive = self.core_lane().hold_receive(received.message);
        let mut handled = Handled::default();
        let is_plain = self.handle_plain(conn_lane, endpoint, short, &mut handled, up);
        if is_plain {
            self.count_handled(conn_lane, 1, &handled);
        }
        let is_served = is_plain || self.serve_other_call(conn_lane, endpoint, short, up);
        let message = receive.take();
        if is_served {
            if let Some(message) = message {
                self.reactor().repost_short(qp, endpoint, message);
            }
            return None;
        }
        message.map(|message| Received { qp, message, invalidated: None })
    }

    /// Counts messages of one connection together, so that the most common ones need not be counted one by one.
    #[inline(always)]
    fn count_handled(&self, conn_lane: &ConnLane, messages: usize, handled: &Handled) {
        let counts = self.core_lane().counts();
        counts.count_replies_received(handled.replies);
        let calls = messages.saturating_sub(handled.replies + handled.others);
        if calls > 0 {
            counts.count_calls_received(calls);
            counts.count_replies_sent(calls - handled.unanswered, handled.bytes_sent);
            conn_lane.count_calls(calls as u64);
        }
    }

    /// Handles a short message. State is borrowed for one step at a time, and not while a handler runs.
    #[inline(always)]
    fn handle_short(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &Short,
        handled: &mut Handled,
        up: &mut impl Upcalls,
    ) {
        if !self.handle_plain(conn_lane, endpoint, short, handled, up) {
            handled.others += 1;
            self.on_other_short(conn_lane, endpoint, short, up);
        }
    }

    /// Handles a plain call or a plain reply. `false`, and nothing happened, for any other message.
    #[inline(always)]
    fn handle_plain(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &Short,
        handled: &mut Handled,
        up: &mut impl Upcalls,
    ) -> bool {
        match says_reply(&short.pairs()) {
            true => self.deliver_plain_reply(conn_lane, short, handled, up),
            false => self.serve_plain_call(conn_lane, endpoint, short, handled, up),
        }
    }

    /// A reply to a call that has lent nothing. `false`, and nothing happened, for any other message.
    #[inline(always)]
    fn deliver_plain_reply(
        &self,
        conn_lane: &ConnLane,
        short: &Short,
        handled: &mut Handled,
        up: &mut impl Upcalls,
    ) -> bool {
        let Some((reply, results)) = plain_reply(short) else { return false };
        let is_let = self.may_use(conn_lane, LaneWay::TakeReplies);
        let token = is_let.then(|| conn_lane.proto().requester.take_plain_reply(&reply)).flatten();
        let Some(token) = token else { return false };
        handled.replies += 1;
        if !up.on_plain_reply(conn_lane.id(), token, results) {
            self.on_first_plain_reply(conn_lane.id(), token, short, up);
        }
        true
    }

    /// A call that can be served at once. `false`, and nothing happened, for any other message.
    #[inline(always)]
    fn serve_plain_call(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &Short,
        handled: &mut Handled,
        up: &mut impl Upcalls,
    ) -> bool {
        let Some((call, arguments)) = plain_call(short) else { return false };
        let message = short.bytes();
        if !self.may_use(conn_lane, LaneWay::TakeCalls) || endpoint.room() <= conn_lane.reserved() {
            return false;
        }
        debug_assert!(
            conn_lane.proto().responder.has_slot(),
            "the gate lets calls in without a slot"
        );
        conn_lane.reserve(1);
        let conn = conn_lane.id();
        let serving = Serving::with_room(conn, None, message, Some(self.core_lane().reply()));
        // As `serve_in_place` does, whose closure would not be inlined here.
        let served = self.core_lane().begin_serving(conn);
        let outcome = up.on_plain_call(&serving, &call, arguments);
        drop(served);
        match outcome {
            // The call has no slot: taking one forgoes the room for such a reply.
            CallOutcome::Replied => {
                conn_lane.unreserve(1);
                let mut memory = self.core_lane().reply().borrow_mut();
                match self.emit_short_reply(conn_lane, endpoint, call.xid, memory.short_mut()) {
                    Some(bytes) => handled.bytes_sent += bytes,
                    None => handled.unanswered += 1,
                }
            }
            outcome => {
                handled.unanswered += 1;
                self.end_or_defer(conn_lane, serving.slot(), short, outcome);
            }
        }
        self.close_if_asked();
        true
    }

    /// Delivers a plain reply through `on_reply`, because the client is still connecting, or this is its first reply
    /// in reverse.
    #[cold]
    fn on_first_plain_reply(&self, conn: ConnId, token: u64, short: &Short, up: &mut impl Upcalls) {
        let stream = short.behind::<MSG_HEADER_BYTES>().unwrap_or_default();
        let call = (token, xid_of(short.bytes()));
        up.on_reply(ReplyFrame::short(conn, call, stream, &[0; ITEMS_MAX]));
    }

    /// Ends a call that took a slot, or whose reply is not short; keeps the message of one that is answered later.
    #[inline(never)]
    fn end_or_defer(
        &self,
        conn_lane: &ConnLane,
        slot: Option<SlotId>,
        short: &Short,
        outcome: CallOutcome,
    ) {
        if outcome != CallOutcome::Deferred || slot.is_none() {
            return self.end_served(
                conn_lane,
                slot,
                short.bytes(),
                conn_lane.short_endpoint(),
                outcome,
            );
        }
        self.core_lane().with_receive(|receive| {
            self.reactor().keep_deferred(conn_lane.id(), slot, short, receive);
        });
    }

    /// Sends the answer of a call that was served, if it has one now.
    fn end_served(
        &self,
        conn_lane: &ConnLane,
        slot: Option<SlotId>,
        message: &[u8],
        endpoint: Option<&ShortEndpoint>,
        outcome: CallOutcome,
    ) {
        let conn = conn_lane.id();
        match outcome {
            CallOutcome::Replied
                if let Some(endpoint) = endpoint
                    && let Some(xid) = message.first_chunk() =>
            {
                let xid = Xid(u32::from_be_bytes(*xid));
                self.reactor().end_chunkless(conn, slot);
                let mut memory = self.core_lane().reply().borrow_mut();
                if let Some(bytes) =
                    self.emit_short_reply(conn_lane, endpoint, xid, memory.short_mut())
                {
                    self.core_lane().counts().count_replies_sent(1, bytes);
                }
            }
            CallOutcome::Replied => self.emit_written_reply(conn, slot, message, true),
            CallOutcome::RepliedAtLength => self.emit_written_reply(conn, slot, message, false),
            // Its handler has leaked it.
            _ if slot.is_none() => self.reactor().end_chunkless(conn, None),
            _ => {}
        }
    }

    /// Sends a reply that was written but does not go by value.
    fn emit_written_reply(&self, conn: ConnId, slot: Option<SlotId>, call: &[u8], is_short: bool) {
        let mut memory = self.core_lane().reply().borrow_mut();
        let mut written = memory.written_mut(is_short);
        if let Ok(message) = &mut written
            && version_of(call) == TransportVersion::One
            && self.reactor().emit_long_reply(conn, slot, call, message)
        {
            return;
        }
        let Some(slot) = slot.or_else(|| self.reactor().take_slot(conn, version_of(call))) else {
            return;
        };
        let to = ReplyTarget { conn, slot, message: call, is_chunkless: true };
        match written {
            Ok(message) => {
                let results = message.get(REPLY_BYTES..).unwrap_or_default();
                self.answer_with(&to, ReplyData::new(), &EncodedStream::without_items(results));
            }
            Err(why) => self.reactor().refuse_undrafted(&to, &ReplyData::new(), why),
        }
    }

    /// Serves a call. Its handler may have closed the connection.
    #[inline(always)]
    pub(super) fn serve_in_place(
        &self,
        conn: ConnId,
        serve: impl FnOnce() -> CallOutcome,
    ) -> CallOutcome {
        let _served = self.core_lane().begin_serving(conn);
        serve()
    }

    /// Closes the connection that was served, if its handler has requested that.
    #[inline(always)]
    pub(super) fn close_if_asked(&self) {
        if self.core_lane().has_closing() {
            self.close_now();
        }
    }

    #[cold]
    fn close_now(&self) {
        if let Some(conn) = self.core_lane().take_closing() {
            #[cfg(feature = "gss")]
            self.finish_seals(Some(conn));
            let mut reactor = self.reactor();
            // A driver discards messages that it has not sent.
            reactor.fabric_mut().flush();
            reactor.begin_close(conn, DownCause::Local);
        }
    }

    /// Serves a call without chunks that has a slot, and sends its reply: by value if it is short; `takes_any`
    /// if that may have the maximum length. The caller keeps the message of a call that is answered later, and then
    /// closes the connection if asked to.
    #[inline(always)]
    pub(super) fn serve_chunkless(
        &self,
        (conn_lane, takes_any): (&ConnLane, bool),
        slot: SlotId,
        message: &[u8],
        header_bytes: usize,
        up: &mut impl Upcalls,
    ) -> CallOutcome {
        let conn = conn_lane.id();
        let room = self.core_lane().takes_replies().then_some(self.core_lane().reply());
        let call = Serving::with_room(conn, Some(slot), message, room);
        let serve = || up.on_inline_call(&call, &message[header_bytes..]);
        let outcome = self.serve_in_place(conn, serve);
        let takes_short = takes_any && version_of(message) == TransportVersion::One;
        let endpoint = conn_lane.short_endpoint().filter(|_| takes_short);
        self.end_served(conn_lane, Some(slot), message, endpoint, outcome);
        outcome
    }

    /// Closes a connection, after the answer to its call that is being served.
    pub(crate) fn close(&self, conn: ConnId) {
        match self.core_lane().is_serving(conn) {
            true => self.core_lane().close_when_served(conn),
            false => self.reactor().begin_close(conn, DownCause::Local),
        }
    }
}

impl CoreCell {
    /// Sends the reply to a finished call, whose results are in `message`. Returns its bytes; `None` if the reply
    /// waits to be sent, and is counted then.
    #[inline(always)]
    fn emit_short_reply(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        xid: Xid,
        message: &mut Short,
    ) -> Option<usize> {
        let reply = PlainReply { xid, credits: conn_lane.proto().responder.grant() };
        let bytes = message.length();
        if !endpoint.send(ReplyHead(reply), message, bytes) {
            self.queue_short_reply(conn_lane.id(), reply, message);
            return None;
        }
        Some(bytes)
    }

    /// Queues a reply because other messages wait to be sent, or the peer has no room. The call was accepted only
    /// while there was a buffer and a place in the send queue for its reply.
    #[cold]
    fn queue_short_reply(&self, conn: ConnId, reply: PlainReply, message: &mut Short) {
        message.set_head(&LineHead::from(ReplyHead(reply)));
        self.reactor().queue_short_reply(conn, message);
    }
}

/// A reply whose headers are built where they are sent from.
struct ReplyHead(PlainReply);

impl From<ReplyHead> for LineHead {
    #[inline(always)]
    fn from(ReplyHead(reply): ReplyHead) -> Self {
        let (first, pairs) = reply.emit();
        Self::new(first, pairs)
    }
}

impl Reactor {
    /// The lane of a connection, and true if a short message on it may have the maximum length.
    pub(super) fn lane_of(&mut self, conn: ConnId) -> Option<(Rc<ConnLane>, bool)> {
        let c = self.conn(conn)?;
        Some((Rc::clone(&c.lane), c.takes_any_short(TransportVersion::One)))
    }

    /// Sends a reply of version one that goes inline and is longer than a slot of the ring.
    fn emit_long_reply(
        &mut self,
        conn: ConnId,
        slot: Option<SlotId>,
        call: &[u8],
        message: &mut [u8],
    ) -> bool {
        let (c, xid) = (self.conn_for_lane(conn), call.first_chunk());
        let (Some((c, core)), Some(xid)) = (c, xid) else { return false };
        if message.len() > c.negotiated.unpadded_bytes_max(TransportVersion::One) {
            return false;
        }
        let (xid, credits) = (Xid(u32::from_be_bytes(*xid)), c.lane.proto().responder.grant());
        let (first, pairs) = PlainReply { xid, credits }.emit();
        put_head(message, first, &pairs);
        if !core.fabric_mut().send_copied(conn, message) {
            return false;
        }
        c.end_chunkless(slot);
        self.stats().replies_sent += 1;
        self.stats().bytes_inline += message.len() as u64;
        true
    }

    #[cold]
    fn end_chunkless(&mut self, conn: ConnId, slot: Option<SlotId>) {
        if let Some(c) = self.conn(conn) {
            c.end_chunkless(slot);
        }
    }

    /// As [`CoreCell::queue_short_reply`].
    fn queue_short_reply(&mut self, conn: ConnId, short: &Short) {
        let Some(message) = self.conn(conn).and_then(|c| c.sends.take()) else {
            return self.close_overrun(conn, "send buffers");
        };
        self.post(conn, short.put_into(message), Posted::Answer(None));
    }

    /// Takes a slot for a call that was served without one and is not answered by a short reply. The reserved
    /// room belongs to the slot from now on.
    #[inline(always)]
    pub(super) fn take_slot(&mut self, conn: ConnId, version: TransportVersion) -> Option<SlotId> {
        let c = self.conn(conn)?;
        let slot = c.lane.proto().responder.take_slot(version)?;
        c.serves.reserve(slot, 1);
        Some(slot)
    }

    /// The RPC message of a reply that a short message contains entirely.
    fn take_short_reply<'m>(
        &mut self,
        conn: ConnId,
        reply: &DeliveredReply,
        short: &'m Short,
    ) -> Option<&'m [u8]> {
        let ReplyStream::Inline { header_bytes } = reply.stream else { return None };
        let c = self.conn(conn)?;
        if !is_chunkless(header_bytes) || c.calls.has_any(reply.slot.index) {
            return None;
        }
        self.stats().replies_received += 1;
        short.bytes().get(header_bytes..)
    }

    /// Stores the message of a call that is answered later, in the receive that it came in or was taken for.
    #[cold]
    fn keep_deferred(
        &mut self,
        conn: ConnId,
        slot: Option<SlotId>,
        short: &Short,
        receive: &mut Option<Buf>,
    ) {
        let (Some(slot), taken) = (slot, receive.take()) else { return };
        match taken.or_else(|| self.fabric_mut().receive_of_short(conn)) {
            Some(message) => {
                let message = short.put_into(message);
                self.finish_chunkless_call(conn, slot, message, CallOutcome::Deferred);
            }
            None => self.close_overrun(conn, "receives"),
        }
    }

    /// Puts a short message into the receive that it was taken for.
    fn keep(&mut self, conn: ConnId, short: &Short) -> Option<Buf> {
        let Some(message) = self.fabric_mut().receive_of_short(conn) else {
            self.close_overrun(conn, "receives");
            return None;
        };
        Some(short.put_into(message))
    }
}

/// Writes the first words of a message; pairs are already in memory order.
pub(super) fn put_head(message: &mut [u8], first: [u8; 4], pairs: &[u64]) {
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
