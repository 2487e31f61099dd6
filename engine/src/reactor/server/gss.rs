//! Replies under RPCSEC_GSS: the protection stored in the slot of a call is applied here, whichever part answers, so
//! that no reply leaves without it. Called where replies are sent.

use crate::fabric::{ConnId, Peer};
use crate::mem::Bulk;
use crate::reactor::in_flight::deferred::{DeferredReply, Noted};
use crate::reactor::in_flight::gss_bodies::{Awaited, Body, Purpose};
use crate::reactor::in_flight::mailbox::DeferredAnswer;
use crate::reactor::in_flight::read_ids::ReadOwner;
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::in_flight::upcalls::CallFrame;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Admitted, CallOutcome, ReplyTarget};
use crate::reactor::types::encoded_stream::EncodedStream;
use crate::reactor::types::header_bytes::{SYSTEM_ERR, is_under_gss};
use crate::reactor::types::latency::Stage;
use crate::reactor::types::protection::{LaidOut, ProtectError, Protection, host_number};
use crate::reactor::types::reply_plan::{EncodedReply, ReplyData};
use crate::sys::journal::event;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::rdma::v1::{HeaderView, MessageType};
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::version::TransportVersion;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Knowledge about a call for whose Read chunks there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) enum UnfetchedCall {
    /// It is not under RPCSEC_GSS, as far as that is known.
    Unprotected,
    /// It is, and its RPC header is in its message: its verifier is checked, and the answer has one.
    Verifiable,
    /// Its RPC header is among what was not fetched, on a connection with calls under RPCSEC_GSS: an RPC reply without a
    /// verifier would pass for a forged one, so that it gets RDMA_ERROR.
    Hidden,
}

impl CoreCell {
    /// The call in this slot is verified: every answer to it is protected from now on.
    pub(crate) fn protect(&self, to: &ReplyTarget<'_>, protection: Protection) {
        if let Some(c) = self.reactor().conn(to.conn) {
            c.protect(to.slot, protection);
        }
    }

    pub(in crate::reactor) fn protection_of(&self, to: &ReplyTarget<'_>) -> Option<Protection> {
        let mut reactor = self.reactor();
        reactor.conn(to.conn)?.serves.protection(to.slot).cloned()
    }

    /// Answers a call with these results, under the protection of the call.
    pub(in crate::reactor) fn answer_protected(
        &self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: ReplyData,
        draft: &EncodedStream<'_>,
    ) {
        if !protection.service.protects_body() {
            let is_chunkless = to.is_chunkless && data.count() == 0;
            let head =
                (protection.head_bytes(), |xid, place: &mut [u8]| protection.put_head(xid, place));
            if is_chunkless && self.reactor().emit_chunkless_reply(to, head, draft.stream()) {
                return;
            }
            return protection.behind_header(draft, |draft| self.place_reply(to, data, draft));
        }
        let pool = self.reactor().arena().clone();
        let laid_out = protection.lay_out(&pool, &data, draft);
        let mut reactor = self.reactor();
        match laid_out {
            Ok(reply) if reactor.gss_work().takes(to.conn, reply.message.len()) => {
                let times = reactor.seal_times();
                if let Some(c) = reactor.conn(to.conn) {
                    c.serves.set_sealing(to.slot, true);
                    times.into_iter().for_each(|times| c.serves.put_times(to.slot, times));
                }
                let (call, data) = ((to.conn, to.slot), data.without_items());
                reactor.offload_body(Body::reply(call, protection.clone(), reply, data));
            }
            Ok(reply) => reactor.seal_and_answer(to, protection, reply, data.without_items()),
            Err(why) => reactor.refuse_unprotected(to, why),
        }
    }

    /// The rules for messages of that version.
    pub(crate) fn rules(&self, version: TransportVersion) -> Profile {
        self.reactor().config().protocol().under(version)
    }

    /// Outcome of a call that was served: one whose reply is being sealed is answered later.
    pub(crate) fn outcome_of(&self, serving: &Serving<'_>, outcome: CallOutcome) -> CallOutcome {
        match serving.slot() {
            Some(slot) => self.reactor().outcome_of(serving.conn, slot, outcome),
            None => outcome,
        }
    }

    /// Sends the replies of a connection that its threads seal, before it is closed at the request of its handler, or those of all
    /// when the engine shuts down.
    #[cold]
    pub(in crate::reactor) fn finish_seals(&self, conn: Option<ConnId>) {
        loop {
            let finished = self.reactor().gss_work().wait_for(conn, Awaited::Reply);
            let Some((sealed, end)) = finished else { return };
            self.finish_sealed(sealed, end.is_ok());
        }
    }

    pub(in crate::reactor) fn finish_sealed(&self, sealed: Body, is_sealed: bool) {
        let Body { conn, message: reply, then: Purpose::Reply { slot, data, .. }, .. } = sealed
        else {
            return;
        };
        let mut reactor = self.reactor();
        reactor.end_deferred((conn, slot), Noted::default());
        reactor.answer_deferred(conn, slot, |reactor, to| match is_sealed {
            true => reactor.answer_sealed(to, reply, data),
            false => reactor.refuse(to, &SYSTEM_ERR),
        });
    }

    /// A number for the host at the other end, by which its contexts are counted.
    pub(crate) fn host_of(&self, conn: ConnId) -> u64 {
        let mut reactor = self.reactor();
        let peer = reactor.conn(conn).and_then(|c| c.peer());
        let mut hasher = DefaultHasher::new();
        match peer {
            Some(Peer::Socket(address)) => return host_number(address.ip()),
            Some(Peer::Process { uid, .. }) => uid.hash(&mut hasher),
            _ => {}
        }
        hasher.finish()
    }
}

impl Reactor {
    /// Seals a reply and sends it.
    pub(in crate::reactor) fn seal_and_answer(
        &mut self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        mut reply: LaidOut,
        data: ReplyData,
    ) {
        match protection.seal(&mut reply, self.gss_work().crypto()) {
            Ok(()) => self.answer_sealed(to, reply.message, data),
            Err(why) => self.refuse_unprotected(to, why),
        }
    }

    fn refuse_unprotected(&mut self, to: &ReplyTarget<'_>, why: ProtectError) {
        event!(DEBUG, %why, "a reply cannot be protected");
        self.stats().no_buffer += 1;
        self.refuse(to, &SYSTEM_ERR);
    }

    /// Sends a reply from where it was sealed.
    fn answer_sealed(&mut self, to: &ReplyTarget<'_>, reply: Bulk, data: ReplyData) {
        self.send_encoded(to, &mut EncodedReply::whole(reply, data));
    }

    /// Returns true if the answer of this deferred call is long, and a thread of the core seals it.
    pub(in crate::reactor) fn try_offload_seal(&mut self, reply: &mut DeferredReply) -> bool {
        let (conn, slot) = (reply.conn(), reply.slot());
        let is_long = matches!(reply.answer(), DeferredAnswer::ToSeal { .. });
        if !is_long || !self.gss_work().has_room(conn) {
            return false;
        }
        let noted = reply.noted();
        if let DeferredAnswer::ToSeal { protection, reply, data } = reply.take_answer() {
            noted.into_iter().for_each(|noted| self.seal_deferred((conn, slot), noted));
            self.offload_body(Body::reply((conn, slot), protection, reply, data));
        }
        true
    }

    /// The answer of a deferred call is sealed from now on.
    fn seal_deferred(&mut self, call: (ConnId, SlotId), noted: Noted) {
        let now = self.read_clock();
        let times = self.answered_times(call, noted, now);
        if let Some((mut times, c)) = times {
            times.enter(Stage::Crypto, now);
            c.serves.put_times(call.1, times);
        }
    }

    /// A call whose reply is being sealed counts as one that is answered later.
    pub(in crate::reactor) fn outcome_of(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        outcome: CallOutcome,
    ) -> CallOutcome {
        match self.conn(conn).is_some_and(|c| c.serves.set_sealing(slot, false)) {
            true => CallOutcome::Deferred,
            false => outcome,
        }
    }

    /// How a call whose Read chunks find no memory is to be answered.
    #[cold]
    pub(in crate::reactor) fn starved(&mut self, conn: ConnId, slot: SlotId) -> UnfetchedCall {
        let Some(c) = self.conn(conn) else { return UnfetchedCall::Unprotected };
        let Some(message) = c.serves.message(slot) else { return UnfetchedCall::Unprotected };
        let proto = c.lane.proto();
        match HeaderView::new_checked(message.bytes(), proto.limits()) {
            Ok(view) if view.message_type() == MessageType::Nomsg && c.is_secured() => {
                UnfetchedCall::Hidden
            }
            Ok(view) if is_under_gss(view.payload()) => UnfetchedCall::Verifiable,
            _ => UnfetchedCall::Unprotected,
        }
    }

    /// Passes on such a call without its chunks, to be refused. Deferred while there is no room for the answer.
    #[cold]
    pub(in crate::reactor) fn frame_starved(
        &mut self,
        conn: ConnId,
        slot: SlotId,
    ) -> Option<CallFrame> {
        let (c, core) = self.conn_and_core(conn)?;
        if c.queue_room(core.fabric()) == 0 || !c.has_spare_send() {
            c.serves.set_starved(slot, true);
            self.put_off(conn, ReadOwner::Call(slot));
            return None;
        }
        let message = c.serves.take_message(slot)?;
        let view = HeaderView::new_checked(message.bytes(), c.lane.proto().limits()).ok()?;
        let header_bytes = view.header_bytes() as u32;
        let admitted = Admitted { header_bytes, is_chunkless: false, long: false };
        Some(CallFrame { conn, slot, message, admitted, sinks: None })
    }

    /// Answers a verified call with an RPC error: "the verifier of an accepted reply" (RFC 2203 section 5.3.3.2)
    /// is there in errors, too.
    pub(in crate::reactor) fn emit_protected_refusal(
        &mut self,
        conn: ConnId,
        call: &HeaderView<'_>,
        (protection, status): (&Protection, AcceptStatus),
    ) {
        let mic = protection.sign();
        let header = protection.header(call.xid(), status, &mic);
        self.emit_rpc_header(conn, call.transport_version(), Some(call), &header);
    }
}
