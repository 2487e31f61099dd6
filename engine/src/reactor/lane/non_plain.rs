//! Short messages that are neither plain calls nor plain replies.

use super::Handled;
use crate::fabric::{LINE_PAIRS, LongHead, Received, Short, ShortEndpointOps};
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::Upcalls;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::core::CoreCell;
use crate::reactor::types::calls::{CallOutcome, ReplyFrame};
use crate::reactor::types::header_bytes::{chunkless_header_bytes, is_under_gss};
use crate::reactor::types::lane_gate::LaneWay;
use spinrpc_proto::events::{Arrival, Event};
use spinrpc_proto::ids::Xid;
use spinrpc_proto::plain::{PlainReply, REPLY_BYTES};
use spinrpc_proto::rdma::HeaderView;
use spinrpc_proto::rpc::{Direction, opens_with};
use spinrpc_proto::version::TransportVersion;

impl CoreCell {
    /// Serves a call that has a credential, or is of version two, like a plain one, and counts it; the api checks its RPC
    /// header. `false`, and nothing happened, for any other message.
    #[inline(always)]
    pub(super) fn serve_other_call(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &Short,
        up: &mut impl Upcalls,
    ) -> bool {
        let Some((way, xid, stream)) = other_call(short.bytes()) else { return false };
        if !self.may_use(conn_lane, way) || endpoint.room() <= conn_lane.reserved() {
            return false;
        }
        debug_assert!(
            conn_lane.proto().responder.has_slot(),
            "the gate lets calls in without a slot"
        );
        conn_lane.reserve(1);
        let conn = conn_lane.id();
        let serving = Serving::with_room(conn, None, short.bytes(), Some(self.core_lane().reply()));
        let outcome = self.serve_in_place(conn, || up.on_inline_call(&serving, stream));
        let sent = match (outcome, way) {
            (CallOutcome::Replied, LaneWay::TakeCallsTwo) => {
                self.answer_in_version_two(conn_lane, endpoint, (short, xid))
            }
            (CallOutcome::Replied, _) => {
                conn_lane.unreserve(1);
                let mut memory = self.core_lane().reply().borrow_mut();
                self.emit_short_reply(conn_lane, endpoint, xid, memory.short_mut())
            }
            (outcome, _) => {
                self.end_or_defer(conn_lane, serving.slot(), short, outcome);
                None
            }
        };
        self.close_if_asked();
        let (unanswered, bytes_sent) = (usize::from(sent.is_none()), sent.unwrap_or(0));
        self.count_handled(conn_lane, 1, &Handled { unanswered, bytes_sent, ..Handled::default() });
        true
    }

    /// Sends the short reply of version two that was written. Its header is a word longer than the head it was written
    /// behind. Returns its bytes if it was sent here.
    #[inline(always)]
    fn answer_in_version_two(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        (call, xid): (&Short, Xid),
    ) -> Option<usize> {
        let mut memory = self.core_lane().reply().borrow_mut();
        let message = memory.short_mut();
        if !message.insert_word::<REPLY_BYTES>() {
            drop(memory);
            self.emit_written_reply(conn_lane.id(), None, call.bytes(), true);
            return None;
        }
        conn_lane.unreserve(1);
        let reply = PlainReply { xid, credits: conn_lane.proto().responder.grant() };
        let (first, [a, b, c, d, e, f]) = reply.emit_two();
        let [.., g, h] = message.pairs::<{ LINE_PAIRS + 2 }>();
        let (head, bytes) = (LongHead::new(first, [a, b, c, d, e, f, g, h]), message.length());
        if !endpoint.send(head, message, bytes) {
            message.set_head(&head);
            self.reactor().queue_short_reply(conn_lane.id(), message);
            return None;
        }
        Some(bytes)
    }

    /// A short message that is neither a plain call nor a plain reply. Those that are not served like plain calls are
    /// inspected by the protocol core.
    #[inline(never)]
    pub(super) fn on_other_short(
        &self,
        conn_lane: &ConnLane,
        endpoint: &impl ShortEndpointOps,
        short: &Short,
        up: &mut impl Upcalls,
    ) {
        if self.serve_other_call(conn_lane, endpoint, short, up) {
            return;
        }
        let conn = conn_lane.id();
        let mut reactor = self.reactor();
        let Some(c) = reactor.conn(conn) else { return };
        let takes_any = c.takes_any_short(TransportVersion::One);
        let mut arrival = Arrival::default();
        conn_lane.proto().on_receive(short.bytes(), &mut arrival);
        match &arrival.event {
            Event::Call(slot) => {
                if let Some(header_bytes) = chunkless_header_bytes(short.bytes())
                    && reactor.reserve(conn, *slot, (1, 0), endpoint.room()).is_some()
                {
                    drop(reactor);
                    let header_bytes = header_bytes as usize;
                    let (to, message) = ((conn_lane, takes_any), short.bytes());
                    let outcome = self.serve_chunkless(to, *slot, message, header_bytes, up);
                    if outcome == CallOutcome::Deferred {
                        self.reactor().keep_deferred(conn, Some(*slot), short, &mut None);
                    }
                    return self.close_if_asked();
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
        self.on_event(reactor, received, arrival, up);
    }
}

/// The way, the XID and the RPC message of a call without chunks that is not under RPCSEC_GSS, if both headers agree on
/// the XID.
fn other_call(message: &[u8]) -> Option<(LaneWay, Xid, &[u8])> {
    let (way, view) = match HeaderView::chunkless(message) {
        Some(view) => (LaneWay::TakeCalls, view),
        None => (LaneWay::TakeCallsTwo, HeaderView::chunkless_two(message)?),
    };
    let (xid, stream) = (view.xid(), view.payload());
    let is_call = opens_with(stream, xid, Direction::Call)
        && view.direction() != Some(Direction::Reply)
        && !is_under_gss(stream);
    is_call.then_some((way, xid, stream))
}
