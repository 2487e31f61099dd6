//! Replies under RPCSEC_GSS: the protection stored in the slot of a call is applied here, whichever part answers, so
//! that no reply leaves without it. Called where replies are sent.

use crate::fabric::{ConnId, Peer};
use crate::mem::{Buf, Bulk};
use crate::reactor::in_flight::deferred::DeferredReply;
use crate::reactor::in_flight::gss_work::{Body, BodyStage, Finished, Then};
use crate::reactor::in_flight::mailbox::DeferredAnswer;
use crate::reactor::in_flight::server_call::Serving;
use crate::reactor::in_flight::upcalls::CallFrame;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::types::calls::{Admitted, CallOutcome, ReplyTarget};
use crate::reactor::types::draft::Draft;
use crate::reactor::types::header_bytes::{SYSTEM_ERR, is_under_gss};
use crate::reactor::types::protection::{
    LaidOut, Protection, Unprotected, cost, finish_sealing, host_number,
};
use crate::reactor::types::reply_plan::ReplyData;
use crate::sys::journal::event;
use spinrpc_gss::BodySealing;
use spinrpc_gss::context::Context;
use spinrpc_proto::chunking::Encoded;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::v1::{HeaderView, MessageType};
use spinrpc_proto::rpc::AcceptStatus;
use spinrpc_proto::version::TransportVersion;
use spinrpc_proto::xdr::roundup4;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::take;

/// Knowledge about a call for whose Read chunks there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reactor) enum Starved {
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
    pub(in crate::reactor) fn protect_reply(
        &self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: ReplyData,
        draft: &Draft<'_>,
    ) {
        if !protection.service.protects_body() {
            let is_plain = to.plain && data.count() == 0;
            let head =
                (protection.head_bytes(), |xid, place: &mut [u8]| protection.put_head(xid, place));
            if is_plain && self.reactor().emit_plain_reply(to, head, draft.stream()) {
                return;
            }
            return protection.behind_header(draft, |draft| self.place_reply(to, data, draft));
        }
        let pool = self.reactor().arena().clone();
        let in_steps = self.is_sealed_in_steps(to, protection, &data, draft);
        let laid_out = protection.lay_out(&pool, &data, draft);
        self.seal_reply(to, protection, (laid_out, in_steps), data.without_items());
    }

    /// Seals a reply and sends it, now or after several turns.
    pub(in crate::reactor) fn seal_reply(
        &self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        (laid_out, in_steps): (Result<LaidOut, Unprotected>, bool),
        data: ReplyData,
    ) {
        let sent = laid_out.and_then(|mut reply| {
            let mut sealing = protection.begin_sealing(&mut reply)?;
            if in_steps {
                self.reactor().seal_in_steps(to, protection, data, (reply, sealing));
                return Ok(());
            }
            let body = &mut reply.message.bytes_mut()[reply.at..];
            finish_sealing(
                (&protection.context, protection.service),
                &mut sealing,
                body,
                &self.crypto,
            )?;
            self.reactor().place_sealed(to, reply.message, data);
            Ok(())
        });
        if let Err(why) = sent {
            event!(DEBUG, %why, "a reply cannot be protected");
            let mut reactor = self.reactor();
            reactor.stats().no_buffer += 1;
            reactor.refuse(to, &SYSTEM_ERR);
        }
    }

    /// Returns true for results that are not to be sealed in this turn.
    fn is_sealed_in_steps(
        &self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: &ReplyData,
        draft: &Draft<'_>,
    ) -> bool {
        let items = data.item_bytes().map(|item| roundup4(item.len()));
        let bytes = draft.stream().len() + items.sum::<usize>();
        self.takes_steps(to.conn, &protection.context, protection.sealed_bytes(bytes))
    }

    /// Adds a body that is processed in parts, one each turn.
    pub(crate) fn push_work(&self, body: Body) {
        self.reactor().gss_work().push(body);
    }

    /// Returns true if a sealed body of this size is not to be processed in this turn, or not in one, and the connection has not
    /// reached its share.
    pub(crate) fn takes_steps(&self, conn: ConnId, context: &Context, bytes: usize) -> bool {
        let mut reactor = self.reactor();
        reactor.gss_work().enter(self.lane().turns());
        reactor.gss_work().is_to_wait(conn, cost(context, bytes))
    }

    /// The answer of a deferred call arrived by mail. One that has to be sealed waits if this turn has sealed enough.
    pub(in crate::reactor) fn finish_deferred_in_budget(&self, reply: Box<DeferredReply>) {
        let mut reactor = self.reactor();
        reactor.gss_work().enter(self.lane().turns());
        let is_sealed = matches!(reply.answer(), DeferredAnswer::Unsealed { .. });
        match is_sealed && reactor.gss_work().puts_off() {
            true => reactor.gss_work().put_off(reply),
            false => reactor.finish_deferred(reply),
        }
    }

    /// Seals answers that were put off: one at least, as other bodies may use up each turn.
    pub(crate) fn finish_put_off(&self) {
        let mut reactor = self.reactor();
        reactor.gss_work().enter(self.lane().turns());
        while let Some(reply) = reactor.gss_work().take_put_off(None) {
            reactor.finish_deferred(reply);
            if reactor.gss_work().is_spent() {
                return;
            }
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

    /// Returns true if there are unfinished bodies.
    pub(crate) fn has_bodies(&self) -> bool {
        !self.reactor().gss_work().is_empty()
    }

    /// Returns true if this turn has a body to seal or open: sealed calls that wait for a peer do not keep a core awake.
    pub(crate) fn has_steps(&self) -> bool {
        self.reactor().gss_work().has_steps()
    }

    /// Returns true if each turn has work to do or to check: denied calls end by their deadline.
    pub(crate) fn has_work(&self) -> bool {
        let mut reactor = self.reactor();
        reactor.gss_work().has_denied() || !reactor.gss_work().is_empty()
    }

    /// Completes the first unfinished reply of a connection at once.
    pub(crate) fn finish_work(&self, conn: ConnId) -> Option<Finished> {
        self.reactor().gss_work().finish_reply(conn)
    }

    /// Completes and sends the replies of a connection before it is closed at the request of its handler, or those of all
    /// when the engine shuts down.
    #[cold]
    pub(in crate::reactor) fn finish_seals(&self, conn: Option<ConnId>) {
        loop {
            let reply = self.reactor().gss_work().take_put_off(conn);
            let Some(reply) = reply else { break };
            self.reactor().finish_deferred(reply);
        }
        loop {
            let finished = self.reactor().gss_work().finish_seal(conn);
            let Some((sealed, end)) = finished else { return };
            self.finish_sealed(sealed, end.is_ok());
        }
    }

    pub(in crate::reactor) fn finish_sealed(&self, sealed: Body, is_sealed: bool) {
        let Body { conn, message: reply, then: Then::Reply { slot, data, .. }, .. } = sealed else {
            return;
        };
        let message = self.reactor().take_deferred(conn, slot);
        let Some(message) = message else { return };
        let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
        match is_sealed {
            true => self.reactor().place_sealed(&to, reply, data),
            false => self.reactor().refuse(&to, &SYSTEM_ERR),
        }
        self.reactor().repost(conn, message);
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
    /// The answer to this call is sent when its body is sealed.
    fn seal_in_steps(
        &mut self,
        to: &ReplyTarget<'_>,
        protection: &Protection,
        data: ReplyData,
        (LaidOut { message, at, .. }, sealing): (LaidOut, BodySealing),
    ) {
        let (conn, slot, protection) = (to.conn, to.slot, protection.clone());
        let Some(c) = self.conn(conn) else { return };
        c.serves.of(slot).is_sealing = true;
        let (stage, then) = (BodyStage::Seal(sealing), Then::Reply { slot, protection, data });
        self.gss_work().push(Body { conn, message, at, stage, then });
    }

    /// Sends a reply from where it was sealed.
    fn place_sealed(&mut self, to: &ReplyTarget<'_>, reply: Bulk, data: ReplyData) {
        let encoded = Encoded::plain(reply.len());
        self.place_encoded(to, reply, encoded, data);
    }

    /// The same for a deferred call that was answered on this core. It is sealed at once as long as the turn may process
    /// bodies, or if there is no place for it among those that wait.
    pub(in crate::reactor) fn seal_deferred(
        &mut self,
        (conn, slot, message): (ConnId, SlotId, Buf),
        mut reply: LaidOut,
        data: ReplyData,
    ) {
        let protection = self.conn(conn).and_then(|c| c.serves.protection(slot).cloned());
        let begun = protection.and_then(|protection| {
            let mut sealing = protection.begin_sealing(&mut reply).ok()?;
            let sealed = protection.sealed_bytes(reply.content_bytes);
            let waits = self.gss_work().is_to_wait(conn, cost(&protection.context, sealed));
            if !waits {
                let body = &mut reply.message.bytes_mut()[reply.at..];
                let sealed = (&*protection.context, protection.service);
                finish_sealing(sealed, &mut sealing, body, self.gss_work().crypto()).ok()?;
            }
            Some((protection, sealing, waits))
        });
        let Some((protection, sealing, true)) = begun else {
            let to = ReplyTarget { conn, slot, message: message.bytes(), plain: false };
            match begun {
                Some(_) => self.place_sealed(&to, reply.message, data),
                None => self.refuse(&to, &SYSTEM_ERR),
            }
            return self.repost(conn, message);
        };
        self.finish_plain_call(conn, slot, message, CallOutcome::Deferred);
        let (stage, then) = (BodyStage::Seal(sealing), Then::Reply { slot, protection, data });
        self.gss_work().push(Body { conn, message: reply.message, at: reply.at, stage, then });
    }

    /// The message of a call that is answered now, if it is still there.
    pub(in crate::reactor) fn take_deferred(&mut self, conn: ConnId, slot: SlotId) -> Option<Buf> {
        let message = self.conn(conn).and_then(|c| c.take_deferred(slot));
        self.stats().stale += u64::from(message.is_none());
        message
    }

    /// A call whose reply is being sealed counts as one that is answered later.
    pub(in crate::reactor) fn outcome_of(
        &mut self,
        conn: ConnId,
        slot: SlotId,
        outcome: CallOutcome,
    ) -> CallOutcome {
        match self.conn(conn).is_some_and(|c| take(&mut c.serves.of(slot).is_sealing)) {
            true => CallOutcome::Deferred,
            false => outcome,
        }
    }

    /// How a call whose Read chunks find no memory is to be answered.
    #[cold]
    pub(in crate::reactor) fn starved(&mut self, conn: ConnId, slot: SlotId) -> Starved {
        let Some(c) = self.conn(conn) else { return Starved::Unprotected };
        let Some(message) = c.serves.message(slot) else { return Starved::Unprotected };
        let proto = c.lane.proto();
        match HeaderView::new_checked(message.bytes(), proto.limits()) {
            Ok(view) if view.message_type() == MessageType::Nomsg && c.is_secured() => {
                Starved::Hidden
            }
            Ok(view) if is_under_gss(view.payload()) => Starved::Verifiable,
            _ => Starved::Unprotected,
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
            self.put_off(conn, slot);
            return None;
        }
        c.serves.of(slot).is_starved = false;
        let message = c.serves.take_message(slot)?;
        let view = HeaderView::new_checked(message.bytes(), c.lane.proto().limits()).ok()?;
        let header_bytes = view.header_bytes() as u32;
        let admitted = Admitted { header_bytes, plain: false, long: false };
        Some(CallFrame { conn, slot, message, admitted, sinks: None })
    }

    /// Answers a verified call with an RPC error: "the verifier of an accepted reply" (RFC 2203 section 5.3.3.2)
    /// is there in errors, too.
    pub(in crate::reactor) fn emit_protected_refusal(
        &mut self,
        conn: ConnId,
        xid: Xid,
        version: TransportVersion,
        (protection, status): (&Protection, AcceptStatus),
    ) {
        let mic = protection.sign();
        let header = protection.header(xid, status, &mic);
        self.emit_rpc_header(conn, xid, version, &header);
    }
}
