//! The lane of short messages: a plain call or reply goes from the driver to its handler by value, and
//! its receive never leaves the driver. Called by the turn.
//!
//! Whatever is not plain is looked at by the protocol core as any message is. If it is a call or a
//! reply without chunks all the same, as those of version two or with a credential are, it goes by
//! value; anything else is put into the receive that it was taken for, and goes the general way.

use super::calls::is_plain;
use super::core::{CoreCell, Reactor};
use super::ops::{CallOutcome, CallSpec, CallTarget, Encode, ReplyFrame, ReplyTarget, Upcalls};
use super::replies::{plain_header_bytes, release};
use super::sink::{Event, EventSink};
use crate::fabric::{ConnId, Fabric, Received, SHORT_BYTES_MAX, Short};
use crate::mem::Buf;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::output::{DeliveredReply, ReplyStream, SlotId};
use spinrpc_proto::payload::StreamWriter;
use spinrpc_proto::plain::{CALL_BYTES, PlainCall, PlainReply, REPLY_BYTES, call_head, says_reply};
use spinrpc_proto::rdma::v1::MSG_HEADER_BYTES;
use spinrpc_proto::version::TransportVersion;
use std::cell::{Cell, RefCell};

/// Where the lane of a core writes messages, and whether that is worth trying.
pub(super) struct Lane {
    scratch: RefCell<Short>,
    calls: Guess,
    replies: Guess,
}

/// A message that the lane cannot take, because it is too long or finds no room at the peer, is encoded
/// again for the general way. So after one of them none is tried until a short one goes the general way
/// to a peer for which nothing else waits.
struct Guess {
    is_possible: bool,
    is_good: Cell<bool>,
}

/// A call that is encoded.
struct ShortCall {
    conn: ConnId,
    token: u64,
    /// Its headers without XID and credits; `None`: the RPC header is in the message.
    head: Option<PlainCall>,
}

/// What became of a call that was tried.
enum Try {
    Sent,
    /// It is refused.
    NotNow,
    /// The lane cannot take it.
    Wrong,
}

impl Lane {
    /// `is_possible`: the driver sends messages by value.
    pub(super) fn new(is_possible: bool) -> Self {
        let guess = || Guess { is_possible, is_good: Cell::new(is_possible) };
        Self { scratch: RefCell::new(Short::EMPTY), calls: guess(), replies: guess() }
    }
}

impl Guess {
    fn was_wrong(&self) -> bool {
        self.is_good.set(false);
        false
    }
}

impl<F: Fabric> CoreCell<F> {
    /// A plain call of version one, so long, is posted now.
    #[inline]
    pub(super) fn note_call(&self, conn: ConnId, bytes: usize) {
        self.note(&self.lane.calls, conn, bytes);
    }

    /// As [`CoreCell::note_call`], of a reply.
    #[inline]
    pub(super) fn note_reply(&self, conn: ConnId, bytes: usize) {
        self.note(&self.lane.replies, conn, bytes);
    }

    #[inline]
    fn note(&self, guess: &Guess, conn: ConnId, bytes: usize) {
        let is_short = guess.is_possible && bytes <= SHORT_BYTES_MAX;
        guess.is_good.set(is_short && !self.reactor().fabric.has_unsent(conn));
    }
}

/// Kind of a short message, after the state of its connection has taken it.
enum Step {
    /// The reply of the call with this token.
    Reply(ConnId, u64),
    /// A call, and the place of its reply.
    Call(ConnId, SlotId, PlainCall),
    /// Not plain: nothing has happened.
    Other(ConnId),
}

impl<F: Fabric> CoreCell<F> {
    /// Handles at most `at_most` short messages that have arrived, and returns their number.
    #[inline(always)]
    pub(super) fn take_shorts(
        &self,
        short: &mut Short,
        at_most: usize,
        up: &mut impl Upcalls,
    ) -> usize {
        for count in 0..at_most {
            // The state is borrowed in a statement of its own: a handler runs behind it.
            let step = self.reactor().next_step(short);
            match step {
                None => return count,
                Some(Step::Reply(conn, token)) => {
                    let results = short.behind::<REPLY_BYTES>().unwrap_or_default();
                    if !up.on_plain_reply(conn, token, results) {
                        self.on_first_plain_reply(conn, token, short, up);
                    }
                }
                Some(Step::Call(conn, slot, call)) => {
                    let to = ReplyTarget { conn, slot, message: short.bytes(), plain: true };
                    let arguments = short.behind::<CALL_BYTES>().unwrap_or_default();
                    if up.on_plain_call(&to, &call, arguments) == CallOutcome::Deferred {
                        self.reactor().keep_deferred(conn, slot, short);
                    }
                }
                Some(Step::Other(conn)) => self.on_other_short(conn, short, up),
            }
        }
        at_most
    }

    /// Delivers a plain reply through `on_reply`: the client is still connecting, or this is its first reply
    /// in reverse.
    #[cold]
    fn on_first_plain_reply(&self, conn: ConnId, token: u64, short: &Short, up: &mut impl Upcalls) {
        let stream = short.behind::<MSG_HEADER_BYTES>().unwrap_or_default();
        let (placed, buffers, padded) = (&[0; ITEMS_MAX], None, None);
        up.on_reply(ReplyFrame { conn, token, stream, placed, buffers, padded });
    }

    /// Runs the service of a call without chunks.
    #[inline(always)]
    fn deliver_short(
        &self,
        conn: ConnId,
        slot: SlotId,
        short: &Short,
        header_bytes: usize,
        up: &mut impl Upcalls,
    ) {
        let message = short.bytes();
        let to = ReplyTarget { conn, slot, message, plain: true };
        if up.on_short_call(&to, &message[header_bytes..]) == CallOutcome::Deferred {
            self.reactor().keep_deferred(conn, slot, short);
        }
    }

    #[inline(never)]
    fn on_other_short(&self, conn: ConnId, short: &Short, up: &mut impl Upcalls) {
        let mut reactor = self.reactor();
        let Some(c) = reactor.conns.find(conn) else { return };
        let mut sink = EventSink::new();
        c.proto.on_receive(short.bytes(), &mut sink);
        match &sink.event {
            Event::Call(slot) => {
                if let Some(header_bytes) = plain_header_bytes(short.bytes()) {
                    if reactor.reserve(conn, *slot, 1, 0).is_none() {
                        return reactor.put_off_short(conn, *slot, short);
                    }
                    drop(reactor);
                    return self.deliver_short(conn, *slot, short, header_bytes as usize, up);
                }
            }
            Event::Reply(reply) => {
                if let Some(stream) = reactor.take_short_reply(conn, reply, short) {
                    drop(reactor);
                    let (token, placed) = (reply.token, &reply.placed);
                    let (buffers, padded) = (None, None);
                    let frame = ReplyFrame { conn, token, stream, placed, buffers, padded };
                    return up.on_reply(frame);
                }
            }
            _ => {}
        }
        let Some(message) = reactor.keep(conn, short) else { return };
        let received = Received { qp: conn, message, invalidated: None };
        self.on_event(reactor, received, sink, up);
    }
}

impl<F: Fabric> CoreCell<F> {
    /// Starts a plain call that a short message holds, if it can leave now; if not nothing has happened.
    /// It is encoded before anything is looked at: most calls can leave. An encoder that starts a call itself finds no memory here, and that call goes the general way.
    #[inline(always)]
    pub(super) fn start_short_call(
        &self,
        conn: ConnId,
        target: &CallTarget<'_>,
        spec: &CallSpec,
        encode: Encode<'_>,
    ) -> bool {
        let Lane { scratch, calls, .. } = &self.lane;
        if !calls.is_good.get() {
            return false;
        }
        let Ok(mut scratch) = scratch.try_borrow_mut() else { return false };
        let head = match target.header.plain() {
            Some((program, version)) => {
                let mut writer = StreamWriter::new(&mut scratch.whole_mut()[CALL_BYTES..], &[]);
                encode(&mut writer);
                let Some(argument_bytes) = writer.plain_bytes() else { return calls.was_wrong() };
                scratch.set_len(CALL_BYTES + argument_bytes);
                let (xid, credits, procedure) = (Xid(0), 1, target.procedure);
                Some(PlainCall { xid, credits, program, version, procedure })
            }
            None => {
                let mut writer =
                    StreamWriter::new(&mut scratch.whole_mut()[MSG_HEADER_BYTES..], &[]);
                target.header.write(target.procedure, &mut writer);
                encode(&mut writer);
                let Some(stream_bytes) = writer.plain_bytes() else { return calls.was_wrong() };
                scratch.set_len(MSG_HEADER_BYTES + stream_bytes);
                None
            }
        };
        let call = ShortCall { conn, token: target.token, head };
        match self.reactor().send_short_call(&call, spec, &mut scratch) {
            Try::Sent => true,
            // Refused the general way, too, with the reason.
            Try::NotNow => false,
            Try::Wrong => calls.was_wrong(),
        }
    }

    /// Answers a plain call of version one with a short message, if it can leave now; if not nothing has
    /// happened.
    #[inline(always)]
    pub(super) fn send_short_reply(&self, to: &ReplyTarget<'_>, encode: Encode<'_>) -> bool {
        let Lane { scratch, replies, .. } = &self.lane;
        if !replies.is_good.get() {
            return false;
        }
        let Ok(mut scratch) = scratch.try_borrow_mut() else { return false };
        let mut writer = StreamWriter::new(&mut scratch.whole_mut()[REPLY_BYTES..], &[]);
        encode(&mut writer);
        let Some(result_bytes) = writer.plain_bytes() else { return replies.was_wrong() };
        scratch.set_len(REPLY_BYTES + result_bytes);
        let was_sent = self.reactor().post_short_reply(to, &mut scratch);
        was_sent || replies.was_wrong()
    }
}

impl<F: Fabric> Reactor<F> {
    /// Takes the next short message, and what a plain one has to do with the state of its connection.
    #[inline(always)]
    fn next_step(&mut self, short: &mut Short) -> Option<Step> {
        let conn = self.fabric.next_short(short)?;
        let step = match says_reply(&short.pairs()) {
            true => plain_reply(short)
                .and_then(|reply| self.take_plain_reply(conn, &reply))
                .map(|token| Step::Reply(conn, token)),
            false => plain_call(short)
                .and_then(|call| Some(Step::Call(conn, self.take_plain_call(conn)?, call))),
        };
        Some(step.unwrap_or(Step::Other(conn)))
    }

    #[inline(always)]
    fn send_short_call(&mut self, call: &ShortCall, spec: &CallSpec, message: &mut Short) -> Try {
        let deadline = self.deadline(spec);
        let ShortCall { conn, token, head } = *call;
        let Some(c) = self.conns.find(conn) else { return Try::NotNow };
        let requester = &mut c.proto.requester;
        if c.closing.is_some() || requester.check_room().is_err() {
            return Try::NotNow;
        }
        let bytes = message.length();
        let may_leave = requester.negotiation().version() == TransportVersion::One
            && bytes <= c.negotiated.plain_bytes_max(TransportVersion::One)
            && c.send_reserved == 0;
        if !may_leave {
            return Try::Wrong;
        }
        let (xid, credits) = (requester.next_xid(), requester.credits().requested());
        match head {
            Some(call) => {
                let (first, pairs) = PlainCall { xid, credits, ..call }.emit();
                message.set_head(first, &pairs);
            }
            None => {
                let (first, pairs) = call_head(xid, credits);
                message.set_head(first, &pairs);
            }
        }
        if !self.fabric.send_short(conn, message) || requester.start_plain(token, deadline).is_err()
        {
            return Try::Wrong;
        }
        self.next_deadline = self.next_deadline.min(deadline);
        self.stats.calls_sent += 1;
        self.stats.bytes_inline += bytes as u64;
        Try::Sent
    }

    #[inline(always)]
    fn post_short_reply(&mut self, to: &ReplyTarget<'_>, message: &mut Short) -> bool {
        let (Some(c), Some(xid)) = (self.conns.find(to.conn), to.message.first_chunk()) else {
            return false;
        };
        let bytes = message.length();
        debug_assert!(c.proto.responder.is_delivered(to.slot), "a plain call is answered once");
        if bytes > c.negotiated.plain_bytes_max(TransportVersion::One) {
            return false;
        }
        let (xid, credits) = (Xid(u32::from_be_bytes(*xid)), c.proto.responder.grant());
        let (first, pairs) = PlainReply { xid, credits }.emit();
        message.set_head(first, &pairs);
        if !self.fabric.send_short(to.conn, message) {
            return false;
        }
        release(c, to.slot);
        c.proto.responder.end_plain(to.slot);
        self.stats.replies_sent += 1;
        self.stats.bytes_inline += bytes as u64;
        true
    }

    /// A reply to a call that has lent nothing: ends the call, and says which token it carries.
    #[inline(always)]
    fn take_plain_reply(&mut self, conn: ConnId, reply: &PlainReply) -> Option<u64> {
        let c = self.conns.find(conn)?;
        let slot = c.proto.requester.plain_slot(reply)?;
        if !c.proto.takes_plain_replies() || c.calls.has_hold(slot) {
            return None;
        }
        self.stats.replies_received += 1;
        Some(c.proto.requester.on_plain_reply(slot, reply))
    }

    /// A place for a plain call and for its reply.
    #[inline(always)]
    fn take_plain_call(&mut self, conn: ConnId) -> Option<SlotId> {
        let c = self.conns.find(conn)?;
        let has_room = c.send_room(&self.fabric) > 0 && c.has_spare_send();
        if !c.proto.takes_plain_calls() || !has_room {
            return None;
        }
        let slot = c.proto.responder.take_plain()?;
        c.send_reserved += 1;
        c.serves[usize::from(slot.index)].reserved = 1;
        self.stats.calls_received += 1;
        Some(slot)
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
        if !is_plain(header_bytes) || c.calls.has_hold(reply.slot) {
            return None;
        }
        self.stats.replies_received += 1;
        short.bytes().get(header_bytes..)
    }

    /// The message of a call that is answered later, in the place of that of any other.
    #[cold]
    fn keep_deferred(&mut self, conn: ConnId, slot: SlotId, short: &Short) {
        let Some(c) = self.conns.find(conn) else { return };
        if !c.proto.responder.is_delivered(slot) {
            // Answered within its handler, as an option may be.
            return;
        }
        let Some(message) = self.keep(conn, short) else { return };
        let Some(c) = self.conns.find(conn) else { return };
        c.serves[usize::from(slot.index)].message = Some(message);
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
        let Some(mut message) = self.fabric.receive_of_short(conn) else {
            self.close_overrun(conn, "receives");
            return None;
        };
        message.set_range(0..short.bytes().len());
        message.bytes_mut().copy_from_slice(short.bytes());
        Some(message)
    }
}

#[inline(always)]
fn plain_reply(short: &Short) -> Option<PlainReply> {
    let is_long_enough = short.length() >= REPLY_BYTES;
    PlainReply::parse(short.first_word(), &short.pairs()).filter(|_| is_long_enough)
}

#[inline(always)]
fn plain_call(short: &Short) -> Option<PlainCall> {
    let is_long_enough = short.length() >= CALL_BYTES;
    PlainCall::parse(short.first_word(), &short.pairs()).filter(|_| is_long_enough)
}
